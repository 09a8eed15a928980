"""From an ordered set of rules to one native kernel.

The rules' calls, in the policy's order and with its parameters as constants, are written out as a small Python module
above `kernel_body.py` and compiled by Numba. The module's name is a hash of everything that went into it, so a changed
rule, parameter, zone shape or kernel gets a new module, and an unchanged one is loaded from disk in a moment.
"""

import contextlib
import hashlib
import importlib.util
import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numba
import numpy as np

from roost.engine import codes
from roost.engine.rule import Rule
from roost.engine.ruleset import BoundRule, RuleSet, key_shifts
from roost.engine.shape import Shape
from roost.engine.tenant_row import TENANT_TYPE
from roost.model.errors import InvalidInput
from roost.model.zone import Zone

BODY = Path(__file__).with_name("kernel_body.py")
# Whatever a kernel's meaning depends on, besides the rules and the shape of the zone.
MEANING = [BODY, *(BODY.with_name(name) for name in ("codes.py", "compiler.py", "prefetch.py", "tenant_row.py"))]
DOMAIN_UNITS = {  # domain of a tenant rule: its code in the kernel, and where its unit's count stands
    "machine": (codes.MACHINE, "m"),
    "rack": (codes.RACK, "racks_at + machine.rack"),
    "cluster": (codes.CLUSTER, "clusters_at + machine.cluster"),
    "datacenter": (codes.DATACENTER, "datacenters_at + machine.datacenter"),
    "update_domain": (codes.UPDATE_DOMAIN, "updates_at + machine.update_domain"),
}
KERNELS_KEPT = 200  # on disk
_loaded: dict[str, ModuleType] = {}


def cache_directory() -> Path:
    """Where compiled kernels are kept: ROOST_CACHE_DIR, or the user's cache, or a temporary folder if neither works."""
    chosen = os.environ.get("ROOST_CACHE_DIR")
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "roost"
    try:
        base.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=base):
            return base
    except OSError:
        return Path(tempfile.mkdtemp(prefix="roost-kernels-"))


def compile_rules(rules: RuleSet, zone: Zone) -> ModuleType:
    """The kernel of these rules for zones of this shape. Compiles on first use of each function, or loads from disk."""
    generated = _generate(rules, zone)
    functions = _functions(rules)
    names = [f"{f.__module__}:{f.__qualname__}" for f in functions.values()]
    digest = hashlib.sha256(f"{numba.__version__} {names} {generated}".encode())
    for dtype in (zone.machines.dtype, zone.racks.dtype, zone.clusters.dtype):
        digest.update(str(dtype.descr).encode())
    for path in sorted({*MEANING, *(p for f in functions.values() for p in _sources(f))}):
        digest.update(path.read_bytes())
    name = f"kernel_{digest.hexdigest()[:24]}"
    if name not in _loaded:
        _loaded[name] = _load(name, generated, functions)
    return _loaded[name]


def _load(name: str, generated: str, functions: dict[str, Callable[..., Any]]) -> ModuleType:
    path = cache_directory() / f"{name}.py"
    if not path.exists():  # never rewritten: Numba takes a newer file for a changed one
        text = BODY.read_text()
        marker = "# ------"
        at = text.index(marker)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
            file.write(text[:at] + generated + "\n\n" + text[at:])
        Path(file.name).replace(path)
        _forget_old(path.parent)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    jit = numba.njit(error_model="numpy")  # a division by zero becomes a score outside 0 to 1, which is caught
    module.__dict__.update({name: jit(function) for name, function in functions.items()})
    sys.modules[name] = module  # Numba finds a cached function's module by name
    spec.loader.exec_module(module)
    return module


def uncompilable(rules: RuleSet, zone: Zone, shape: Shape, error: Exception) -> InvalidInput:
    """Find the rule that Numba cannot compile, by compiling each alone."""
    rows = {"cluster": zone.clusters[0], "rack": zone.racks[0], "machine": zone.machines[0]}
    for bound in (*(b for _, group in _groups(rules) for b in group), *map(BoundRule, rules.columns)):
        rule = bound.rule
        if rule.kind == "tenant":
            arguments: list[Any] = [np.zeros(1, TENANT_TYPE)[0]]
        else:
            also = [rows["cluster"]] if rule.of_cluster else []
            arguments = [rows[rule.scope], shape.row[0], *also, *(0.0 for _ in rule.needs)]
        try:
            numba.njit(rule.function)(*arguments, *bound.constants(zone))
            if rule.detail:
                numba.njit(rule.detail)(*arguments)
        except Exception as alone:
            code = rule.function.__code__
            return InvalidInput(
                f"rule {rule.name} ({code.co_filename}:{code.co_firstlineno})",
                f"cannot be compiled: {_gist(alone)}",
                "use arithmetic, loops and math on fields that the rows have",
            )
    return InvalidInput("policy", f"cannot be compiled: {_gist(error)}")


def _gist(error: Exception) -> str:
    """The line of a long message that says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    said = next((line for line in lines if "rror" in line or "nknown" in line), lines[0])
    return f"{type(error).__name__}: {said}"


def _forget_old(folder: Path) -> None:
    """Keep the cache bounded: the oldest modules go, with what Numba compiled of them."""
    with contextlib.suppress(FileNotFoundError):  # another process may be doing the same
        modules = sorted(folder.glob("kernel_*.py"), key=lambda path: path.stat().st_mtime)
        for module in modules[:-KERNELS_KEPT]:
            for path in (module, *(folder / "__pycache__").glob(f"{module.stem}.*")):
                path.unlink(missing_ok=True)


def _functions(rules: RuleSet) -> dict[str, Callable[..., Any]]:
    """The name in the generated code of every function it calls."""
    named: dict[str, Callable[..., Any]] = {}
    for prefix, bound in _groups(rules):
        for i, b in enumerate(bound):
            named[f"{prefix}{i}"] = b.rule.function
            if b.rule.detail:
                named[f"{prefix}{i}_detail"] = b.rule.detail
    return named | {f"column{i}": column.function for i, column in enumerate(rules.columns)}


def _groups(rules: RuleSet) -> Iterator[tuple[str, tuple[BoundRule, ...]]]:
    yield "cluster_validator", rules.cluster_validators
    yield "cluster_preference", rules.cluster_preferences
    yield "validator", rules.validators
    yield "preference", rules.preferences
    yield "tenant_rule", rules.tenant_rules


def _sources(function: Callable[..., Any]) -> set[Path]:
    """The files a function's meaning depends on: its own, and those of the functions it calls."""
    files: set[Path] = set()
    seen: set[Any] = set()
    todo: list[Any] = [function]
    while todo:
        f = todo.pop()
        f = getattr(f, "py_func", f)
        if f in seen or not isinstance(f, FunctionType):
            continue
        seen.add(f)
        try:
            files.add(Path(inspect.getsourcefile(f) or ""))
        except TypeError:
            continue
        todo += [f.__globals__[n] for n in f.__code__.co_names if n in f.__globals__]
    return {p for p in files if p.is_file()}


def _generate(rules: RuleSet, zone: Zone) -> str:
    """The part of the kernel that differs between policies."""
    columns = rules.columns
    call = _Caller(zone, columns)
    lines = [f"CLUSTER_VALIDATORS, VALIDATORS = {len(rules.cluster_validators)}, {len(rules.validators)}"]
    domains = tuple(DOMAIN_UNITS[b.rule.domain][0] for b in rules.tenant_rules) or (0,)
    lines += [f"TENANT_DOMAINS = {domains!r}", ""]

    lines += ["", "@njit(cache=True)", "def cluster_failure(cluster, vm):"]
    lines += _failures("cluster_validator", rules.cluster_validators, call, "cluster")
    lines += ["", "@njit(cache=True)", "def cluster_key(cluster, vm):"]
    lines += ["    if cluster_failure(cluster, vm) >= 0:", "        return INVALID"]
    shifts = key_shifts(rules.cluster_preferences)
    steps = zip(range(len(shifts)), rules.cluster_preferences, shifts, strict=True)
    lines += _score("cluster_preference", list(steps), call, "cluster")

    lines += ["", "@njit(cache=True)", "def machine_failure(machine, vm, m, columns, slots):"]
    lines += _failures("validator", rules.validators, call, "machine")
    lines += ["", "@njit(cache=True)", "def recheck_failure(machine, vm):"]
    lines += _failures("validator", rules.validators, call, "machine", only_rechecked=True)
    machine: list[tuple[int, BoundRule, int]] = []
    rack: list[tuple[int, BoundRule, int]] = []
    for step in zip(range(len(rules.shifts)), rules.preferences, rules.shifts, strict=True):
        (rack if step[1].rule.scope == "rack" else machine).append(step)
    lines += ["", "@njit(cache=True)", "def machine_score(machine, vm, m, columns, slots):"]
    lines += _score("preference", machine, call, "machine")
    lines += ["", "@njit(cache=True)", "def rack_bits(rack, vm):", *_score("preference", rack, call, "rack")]

    for row, prefix, validators in (
        ("cluster", "cluster_validator", rules.cluster_validators),
        ("machine", "validator", rules.validators),
    ):
        lines += ["", "@njit(cache=True)", f"def {row}_detail({row}, vm, rule):"]
        for i, b in enumerate(validators):
            if b.rule.detail:
                lines += [f"    if rule == {i}:", f"        return {prefix}{i}_detail({row}, vm)"]
        lines += ["    return 0"]

    lines += ["", "@njit(cache=True)", "def column_value(j, machine, cluster, vm, m, columns, slots):"]
    for j, column in enumerate(columns):
        lines += [f"    if j == {j}:", f"        return {call(f'column{j}', BoundRule(column), 'machine')}"]
    lines += ["    return 0.0"]

    names = "m, machine, tenant, counts, racks_at, clusters_at, datacenters_at, updates_at"
    lines += ["", "@njit(cache=True)", f"def tenant_failure({names}):"]
    for i, b in enumerate(rules.tenant_rules):
        lines += [f"    tenant.here = counts[{DOMAIN_UNITS[b.rule.domain][1]}]"]
        constants = "".join(f", {value!r}" for value in b.constants(zone))
        lines += [f"    if not tenant_rule{i}(tenant{constants}):", f"        return {i}"]
    return "\n".join([*lines, "    return -1"])


class _Caller:
    """Writes the call of a rule: rows, the derived values it needs, its parameters as constants."""

    def __init__(self, zone: Zone, columns: tuple[Rule, ...]) -> None:
        self.zone, self.columns = zone, columns

    def __call__(self, name: str, bound: BoundRule, row: str) -> str:
        needs = [f"columns[slots[{self.columns.index(need)}], m]" for need in bound.rule.needs]
        constants = [repr(value) for value in bound.constants(self.zone)]
        rows = [row, "vm", "cluster"] if bound.rule.of_cluster else [row, "vm"]
        return f"{name}({', '.join([*rows, *needs, *constants])})"


def _failures(
    prefix: str, rules: tuple[BoundRule, ...], call: _Caller, row: str, only_rechecked: bool = False
) -> list[str]:
    lines = []
    for i, bound in enumerate(rules):
        if only_rechecked and not bound.rule.recheck:
            continue
        lines += [f"    if not {call(f'{prefix}{i}', bound, row)}:", f"        return {i}"]
    return [*lines, "    return -1"]


def _score(prefix: str, steps: list[tuple[int, BoundRule, int]], call: _Caller, row: str) -> list[str]:
    """Quantise each score into its bucket (⌈S·N⌉) and put it in its place; a score outside 0 to 1 is a fault."""
    lines = ["    key = 0"]
    for i, bound, shift in steps:
        lines += [
            f"    score = {call(f'{prefix}{i}', bound, row)}  # {bound.rule.name}",
            "    if not (-1e-9 <= score <= 1.000000001):",
            f"        return INVALID + {i + 1}",
            f"    key |= min({bound.levels}, max(0, ceil(score * {bound.levels}))) << {shift}",
        ]
    return [*lines, "    return key"]
