"""From an ordered set of rules to one native kernel.

The rules' calls, in the policy's order, are written out as a small Python module above `body.py` and compiled by Numba.
What asks no rule is another module, that kernels share. A module's name is a hash of everything that went into it, so a
changed rule, zone shape or kernel gets a new one, and an unchanged one is loaded from disk in a moment. The numbers of
a policy are no part of it: they are data, and policies that differ in nothing else share a kernel.
"""

import contextlib
import hashlib
import importlib.util
import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from itertools import accumulate
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numba
import numpy as np

from roost.engine.kernel import codes
from roost.engine.kernel.asking import askers, signatures
from roost.engine.kernel.native import ruled
from roost.engine.ruleset import BoundRule, RuleSet, key_shifts
from roost.engine.shape import Shape, vm_row_type
from roost.engine.side_tables import PLACES, TABLES
from roost.engine.tenant_row import TENANT_TYPE
from roost.engine.view import LINK_TYPE
from roost.model.errors import InvalidInput
from roost.model.zone import Zone

BODY = Path(__file__).with_name("body.py")
# What kernels share: one module of these, in this order.
COMMON = tuple(BODY.with_name(f"{name}.py") for name in ("journal", "evaluation", "tenants", "choosing"))
MARKER = "# ------"  # the generated part goes above the first of these
# Whatever a kernel's meaning depends on, besides these, the rules and the shape of the zone.
MEANING = [
    *(BODY.with_name(f"{name}.py") for name in ("asking", "codes", "compiler", "native", "prefetch")),
    BODY.parent.with_name("tenant_row.py"),
]
DOMAIN_UNITS = {  # domain of a tenant rule: its code in the kernel, and where its unit's count stands
    "machine": (codes.MACHINE, "m"),
    "rack": (codes.RACK, "racks_at + machine.rack"),
    "cluster": (codes.CLUSTER, "clusters_at + machine.cluster"),
    "datacenter": (codes.DATACENTER, "datacenters_at + machine.datacenter"),
    "update_domain": (codes.UPDATE_DOMAIN, "updates_at + machine.update_domain"),
}
NUMBERS = "    numbers = data[0]"
KERNELS_KEPT = 200  # on disk, and as many of what they share
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
    common, vm_type = _common(zone), vm_row_type(zone, rules.own_traits)
    functions = _functions(rules)
    names = [f"{f.__module__}:{f.__qualname__}" for f in functions.values()]
    generated = f"from {common.__name__} import *\n\n{_generate(rules, zone)}"
    files = {BODY, *(p for f in functions.values() for p in _sources(f))}
    name = f"kernel_{_digest(files, names, generated, vm_type.descr)}"
    if name not in _loaded:
        start, marker, end = BODY.read_text().partition(MARKER)
        compiled = {name: _jitted(function, common, vm_type) for name, function in functions.items()}
        given = {"ASKED": signatures(zone, vm_type), **compiled}
        _loaded[name] = _load(name, start + generated + "\n\n\n" + marker + end, given)
    return _loaded[name]


def _common(zone: Zone) -> ModuleType:
    """What the kernels for zones of this shape share.

    It knows VMs by the fields that all of them have; where a policy has traits of its own, rows begin with the same.
    """
    vm_type = vm_row_type(zone)
    tables = (table.row_type(zone) for table in TABLES)
    types = (zone.machines.dtype, zone.racks.dtype, zone.clusters.dtype, vm_type, LINK_TYPE, TENANT_TYPE, *tables)
    name = f"common_{_digest({*COMMON, *MEANING}, *(dtype.descr for dtype in types))}"
    if name not in _loaded:
        _loaded[name] = _load(name, "\n\n".join(path.read_text() for path in COMMON), askers(signatures(zone, vm_type)))
    return _loaded[name]


def _digest(files: set[Path], *meaning: Any) -> str:
    digest = hashlib.sha256(f"{numba.__version__} {meaning}".encode())
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


@cache
def _jitted(function: Callable[..., Any], _common: ModuleType, _vm_type: np.dtype[np.void]) -> Any:
    """A rule's function for Numba, the same for all kernels with the same types of rows.

    For others it is another one: Numba takes a row with more fields for one with fewer.
    """
    return ruled(function)


def _load(name: str, text: str, given: dict[str, Any]) -> ModuleType:
    """A module of this text, in which the given names are known."""
    path = cache_directory() / f"{name}.py"
    if not path.exists():  # never rewritten: Numba takes a newer file for a changed one
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
            file.write(text)
        Path(file.name).replace(path)
        _forget_old(path.parent)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__dict__.update(given)
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
            also += [table.blank(zone)[0] for table in rule.reads]
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
        for kind in ("kernel", "common"):
            modules = sorted(folder.glob(f"{kind}_*.py"), key=lambda path: path.stat().st_mtime)
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
    call = _Caller(zone, rules)
    lines = [f"CLUSTER_VALIDATORS, VALIDATORS = {len(rules.cluster_validators)}, {len(rules.validators)}"]
    domains = tuple(DOMAIN_UNITS[b.rule.domain][0] for b in rules.tenant_rules) or (0,)
    lines += [f"TENANT_DOMAINS = {domains!r}", ""]

    lines += ["", "@entry", "def cluster_failure(cluster, vm, data):", NUMBERS]
    lines += _failures("cluster_validator", rules.cluster_validators, call, "cluster")
    lines += ["", "@asked", "def cluster_key(cluster, vm, data):", NUMBERS]
    lines += ["    if cluster_failure(cluster, vm, data) >= 0:", "        return INVALID"]
    shifts = key_shifts(rules.cluster_preferences)
    steps = zip(range(len(shifts)), rules.cluster_preferences, shifts, strict=True)
    lines += _score("cluster_preference", list(steps), call, "cluster")

    lines += ["", "@inside", "def machine_failure(machine, vm, m, columns, slots, data):", NUMBERS]
    lines += _failures("validator", rules.validators, call, "machine")
    lines += ["", "@inside", "def recheck_failure(machine, vm, numbers):"]
    lines += _failures("validator", rules.validators, call, "machine", only_rechecked=True)
    machine: list[tuple[int, BoundRule, int]] = []
    rack: list[tuple[int, BoundRule, int]] = []
    for step in zip(range(len(rules.shifts)), rules.preferences, rules.shifts, strict=True):
        (rack if step[1].rule.scope == "rack" else machine).append(step)
    lines += ["", "@inside", "def machine_score(machine, vm, m, columns, slots, data):", NUMBERS]
    lines += _score("preference", machine, call, "machine")
    lines += ["", "@inside", "def rack_bits(rack, vm, data):", NUMBERS, *_score("preference", rack, call, "rack")]

    for row, prefix, validators in (
        ("cluster", "cluster_validator", rules.cluster_validators),
        ("machine", "validator", rules.validators),
    ):
        lines += ["", "@entry", f"def {row}_detail({row}, vm, rule):"]
        for i, b in enumerate(validators):
            if b.rule.detail:
                lines += [f"    if rule == {i}:", f"        return {prefix}{i}_detail({row}, vm)"]
        lines += ["    return 0"]

    lines += ["", "@inside", "def column_value(j, machine, cluster, vm, m, columns, slots, data):", NUMBERS]
    for j, column in enumerate(columns):
        lines += [f"    if j == {j}:", f"        return {call(f'column{j}', BoundRule(column), 'machine')}"]
    lines += ["    return 0.0"]

    names = "m, machine, tenant, counts, racks_at, clusters_at, datacenters_at, updates_at, data"
    lines += ["", "@inside", f"def tenant_failure({names}):", NUMBERS]
    for i, b in enumerate(rules.tenant_rules):
        lines += [f"    tenant.here = counts[{DOMAIN_UNITS[b.rule.domain][1]}]"]
        arguments = ", ".join(["tenant", *call.parameters(f"tenant_rule{i}", b)])
        lines += [f"    if not tenant_rule{i}({arguments}):", f"        return {i}"]
    return "\n".join([*lines, "    return -1"])


class _Caller:
    """Writes the call of a rule: rows, its rows of side tables, the derived values it needs, its parameters."""

    def __init__(self, zone: Zone, rules: RuleSet) -> None:
        self.zone, self.columns = zone, rules.columns
        names = [f"{prefix}{i}" for prefix, group in _groups(rules) for i in range(len(group))]
        names += [f"column{i}" for i in range(len(rules.columns))]
        counts = [len(bound.numbers(zone)) for bound in rules.with_numbers]
        self._numbers_at = dict(zip(names, accumulate(counts, initial=0), strict=False))  # by the rule's name here

    def __call__(self, name: str, bound: BoundRule, row: str) -> str:
        needs = [f"columns[slots[{self.columns.index(need)}], m]" for need in bound.rule.needs]
        tables = [f"data[{1 + TABLES.index(table)}][{PLACES[table.per]}]" for table in bound.rule.reads]
        rows = [row, "vm", "cluster"] if bound.rule.of_cluster else [row, "vm"]
        return f"{name}({', '.join([*rows, *tables, *needs, *self.parameters(name, bound)])})"

    def parameters(self, name: str, bound: BoundRule) -> list[str]:
        """Its parameters: where each number stands among those of the policy, and words as constants."""
        at, written = self._numbers_at[name], []
        for value, default in zip(bound.constants(self.zone), bound.rule.defaults.values(), strict=True):
            if isinstance(default, bool | str):
                written.append(repr(value))
                continue
            many = len(value) if isinstance(value, tuple) else 1
            numbers = [f"numbers[{i}]" for i in range(at, at + many)]
            whole = "int({})" if isinstance(value, int) else "{}"
            written.append(f"({', '.join(numbers)},)" if isinstance(value, tuple) else whole.format(numbers[0]))
            at += many
        return written


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
