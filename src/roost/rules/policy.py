"""Policies: ordered lists of rules with parameters and buckets, from YAML.

A rule is named by its file (`best_fit`), or, if it is yours, by `package.module:function` or `path/to/file.py:function`
(a relative path is relative to the policy file).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from roost.engine.rule import Rule, rule_of
from roost.engine.ruleset import BoundRule, EvictionTerms, RuleSet
from roost.model.errors import InvalidInput, UnknownName
from roost.model.names import check_new_name
from roost.model.yaml_file import Step, YamlFile

SHIPPED = Path(__file__).parent / "policies"
ESSENTIAL = "has_room"  # without it a machine could be filled beyond its capacity
# section of the file -> (package of the shipped rules, what it may hold: kind and scopes)
SECTIONS: dict[tuple[str, ...], tuple[str, str, tuple[str, ...]]] = {
    ("clusters", "validators"): ("clusters", "validator", ("cluster",)),
    ("clusters", "preferences"): ("clusters", "preference", ("cluster",)),
    ("machines", "validators"): ("validators", "validator", ("machine",)),
    ("machines", "preferences"): ("preferences", "preference", ("machine", "rack")),
    ("tenants",): ("tenants", "tenant", ("tenant",)),
}


class _Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    validators: list[str | dict[str, Any]] = []
    preferences: list[str | dict[str, Any]] = []


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    machines: _Group
    version: int = 1
    description: str = ""
    top_clusters: int = 12
    clusters: _Group = _Group()
    tenants: list[str | dict[str, Any]] = []
    evictions: EvictionTerms = EvictionTerms()


@dataclass(frozen=True)
class Policy:
    """A named, versioned set of rules. `digest` changes with every change of the file."""

    name: str
    version: int
    description: str
    rules: RuleSet
    digest: str

    @classmethod
    def default(cls) -> Policy:
        """The policy Roost uses unless told otherwise."""
        return cls.named("default")

    @classmethod
    def named(cls, name: str) -> Policy:
        """A policy that comes with Roost."""
        return cls.load(_shipped(name))

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """The policy in a YAML file. A mistake is refused with its file and line; nothing is half-loaded."""
        file = YamlFile(path)
        found = _build(file, Path(path).read_bytes())
        check_new_name(file.where(("name",)), found.name)
        return found

    @classmethod
    def parse(cls, text: str, path: str | Path = "policy.yaml", *, only_shipped: bool = False) -> Policy:
        """The policy in a text; `path` is where errors say it is, and where relative rule files start.

        `only_shipped`: it may name no rules of the user's own, which are code: for texts from others.
        """
        return _build(YamlFile(path, text), text.encode(), only_shipped)


@dataclass(frozen=True)
class PolicySource:
    """A policy as it was read once, for processes that are to decide by the same, whatever has become of its file.

    Rules are code, which each process loads for itself: that it is the same is checked.
    """

    text: str
    path: Path
    code: str  # a hash of the files of its rules

    @classmethod
    def find(cls, name_or_file: str) -> PolicySource:
        """A policy, by name or file; a mistake is refused."""
        path = file_of(name_or_file)
        read = Policy.load(path)  # says what is wrong, if anything is
        return cls(path.read_bytes().decode(), path.absolute(), _code_of(read))

    def policy(self) -> Policy:
        """The policy; refused if its rules are no longer what they were."""
        found = Policy.parse(self.text, self.path)
        if _code_of(found) != self.code:
            raise InvalidInput(
                str(self.path), "its rules are not what they were when the service started", "restart the service"
            )
        return found


def _code_of(policy: Policy) -> str:
    rules = policy.rules
    lists = (rules.cluster_validators, rules.cluster_preferences, rules.validators, rules.preferences)
    bound = [each for some in (*lists, rules.tenant_rules) for each in some]
    files = sorted({inspect.getsourcefile(each.rule.function) or "" for each in bound})
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()


def file_of(name_or_file: str) -> Path:
    """Where a policy is: in a .yaml file, or, by its name, among those that come with Roost."""
    is_file = name_or_file.endswith((".yaml", ".yml")) or "/" in name_or_file
    return Path(name_or_file) if is_file else _shipped(name_or_file)


def _shipped(name: str) -> Path:
    if name not in shipped_policies():
        raise UnknownName("policy", "shipped policy", name, shipped_policies())
    return SHIPPED / f"{name}.yaml"


def shipped_policies() -> list[str]:
    """The names of the policies that come with Roost."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


@cache
def shipped_rules() -> tuple[Rule, ...]:
    """Every rule that comes with Roost, for people to choose from."""
    rules = []
    for package in dict.fromkeys(package for package, _, _ in SECTIONS.values()):
        for name in _modules(package):
            rule = rule_of(getattr(importlib.import_module(f"roost.rules.{package}.{name}"), name))
            assert rule is not None, f"roost.rules.{package}.{name} holds no rule of its name"
            rules.append(rule)
    return tuple(rules)


def _modules(package: str) -> list[str]:
    return [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent / package)])]


def _build(file: YamlFile, raw: bytes, only_shipped: bool = False) -> Policy:
    head = file.convert(file.data, _File)
    lists: dict[tuple[str, ...], tuple[BoundRule, ...]] = {}
    for section in SECTIONS:
        lists[section] = tuple(_bound_rules(file, section, only_shipped))
    ours = {b.rule.function.__module__ for b in lists["machines", "validators"]}
    if f"roost.rules.validators.{ESSENTIAL}" not in ours:
        raise file.mistake(
            ("machines", "validators"), f"{ESSENTIAL} is missing", "without it machines could be over-filled: add it"
        )
    try:
        rules = RuleSet(
            cluster_validators=lists["clusters", "validators"],
            cluster_preferences=lists["clusters", "preferences"],
            validators=lists["machines", "validators"],
            preferences=lists["machines", "preferences"],
            tenant_rules=lists[("tenants",)],
            top_clusters=head.top_clusters,
            evictions=head.evictions,
        )
    except InvalidInput as error:
        at = tuple(error.where.split(": "))
        raise file.mistake(at, error.problem, error.remedy) from None
    return Policy(head.name, head.version, head.description, rules, hashlib.sha256(raw).hexdigest()[:12])


def _bound_rules(file: YamlFile, section: tuple[str, ...], only_shipped: bool) -> Iterator[BoundRule]:
    package, kind, scopes = SECTIONS[section]
    entries: Any = file.data
    for step in section:
        entries = entries.get(step, {} if step == "clusters" else []) if isinstance(entries, dict) else []
    seen: set[str] = set()
    for i, entry in enumerate(entries):
        at: tuple[Step, ...] = (*section, i)
        settings = dict(entry) if isinstance(entry, dict) else {"rule": entry}
        name = settings.pop("rule", None)
        if not isinstance(name, str):
            raise file.mistake(at, "names no rule", "write `- best_fit` or `- {rule: best_fit, buckets: 3}`")
        try:
            if only_shipped and ":" in name:
                raise InvalidInput(name, "is not a rule that comes with Roost", "name one that does")
            rule = _find(name, package, file.path)
            if rule.kind != kind or rule.scope not in scopes:
                raise InvalidInput(name, f"is a {rule.scope} {rule.kind}", f"{'.'.join(section)} holds {kind} rules")
            if rule.name in seen:
                raise InvalidInput(name, "is listed twice", "keep one")
            seen.add(rule.name)
            buckets = settings.pop("buckets", None)
            if buckets is not None and (not isinstance(buckets, int) or isinstance(buckets, bool)):
                raise InvalidInput(f"{name}, buckets", f"is {buckets!r}", "use a whole number")
            yield BoundRule(rule, settings, buckets)
        except InvalidInput as error:
            problem = error.problem if error.where == name else f"{error.where}: {error.problem}"
            raise file.mistake(at, problem, error.remedy) from None


def _find(name: str, package: str, policy: Path) -> Rule:
    """The rule of a name: one of ours by its file, or a user's by module or file and function."""
    source, _, function_name = name.rpartition(":")
    if not source:
        if name not in _modules(package):
            raise UnknownName(name, "rule here", name, _modules(package))
        source, function_name = f"roost.rules.{package}.{name}", name
    try:
        module = _load(policy.parent / source) if source.endswith(".py") else importlib.import_module(source)
    except InvalidInput:
        raise
    except Exception as error:  # whatever a user's module does when it is imported
        said = f"{type(error).__name__}: {error}"
        raise InvalidInput(name, f"cannot be imported: {said}", "check the module or the path") from None
    function = getattr(module, function_name, None)
    if function is None:
        raise InvalidInput(name, f"{source} has no {function_name}", "name a function that is in it")
    if (rule := rule_of(function)) is None:
        raise InvalidInput(name, "is not a rule", "decorate it with @validator, @preference or @tenant_rule")
    return rule


def _load(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    return _load_file(path.resolve(), path.stat().st_mtime_ns)


@cache
def _load_file(path: Path, _changed: int) -> Any:
    """The module in a file, loaded once until it changes, so that its rules can share a derived column."""
    # Named by what it says, not by where it is: a kernel on disk looks its rules' modules up by name.
    name = f"roost_user_rules_{path.stem}_{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
