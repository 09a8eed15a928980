"""Policies: ordered lists of rules with parameters and buckets, from YAML.

A rule is named by its name (`best_fit`): one that comes with Roost, or one of those of your own that the setting
`agent.rules` lists. A policy file of yours may also say where a rule is: `package.module:function`, or
`path/to/file.py:function` (a relative path is relative to the policy file).
"""

from __future__ import annotations

import hashlib
import importlib
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
from roost.model.yaml_file import PathStep, YamlFile
from roost.rules.own import NONE, PACKAGE, OwnRules, code_of, is_own, load_module, shipped_in

SHIPPED = Path(__file__).parent / "policies"
# Rules that older policies name: what there is instead.
GONE = {"eviction_cost": "begin with nobody_gives_way; `evictions: {among: 0.1}` says where the cheapest may be chosen"}
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


class _PolicyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    """A named, versioned set of rules. `digest` changes with every change of the file, or of rules of one's own."""

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
    def load(cls, path: str | Path, own: OwnRules = NONE) -> Policy:
        """The policy in a YAML file. A mistake is refused with its file and line; nothing is half-loaded."""
        file = YamlFile(path)
        found = _build(file, Path(path).read_bytes(), own)
        check_new_name(file.where(("name",)), found.name)
        return found

    @classmethod
    def parse(
        cls, text: str, path: str | Path = "policy.yaml", own: OwnRules = NONE, *, only_named: bool = False
    ) -> Policy:
        """The policy in a text; `path` is where errors say it is, and where relative rule files start.

        `only_named`: it may not say where rules are, which are code: for texts from others.
        """
        return _build(YamlFile(path, text), text.encode(), own, only_named)

    @property
    def code(self) -> str:
        """A hash of the files of its rules."""
        return hashlib.sha256(code_of(bound.rule for bound in self.rules.bound)).hexdigest()


@dataclass(frozen=True)
class PolicySource:
    """A policy as it was read once, for processes that are to decide by the same, whatever has become of its file.

    Rules are code, which each process loads for itself: that it is the same is checked.
    """

    text: str
    path: Path
    code: str  # a hash of the files of its rules
    own: OwnRules = NONE  # which this policy and others may name

    @classmethod
    def find(cls, name_or_file: str, own: OwnRules = NONE) -> PolicySource:
        """A policy, by name or file; a mistake is refused."""
        path = file_of(name_or_file)
        read = Policy.load(path, own)  # says what is wrong, if anything is
        return cls(path.read_bytes().decode(), path.absolute(), read.code, own)

    def policy(self) -> Policy:
        """The policy; refused if its rules, or others of one's own, are no longer what they were."""
        self.own.rules()
        found = Policy.parse(self.text, self.path, self.own)
        if found.code != self.code:
            raise InvalidInput(
                str(self.path), "its rules are not what they were when the service started", "restart the service"
            )
        return found


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
        for name in shipped_in(package):
            rule = rule_of(getattr(importlib.import_module(f"{PACKAGE}.{package}.{name}"), name))
            assert rule is not None, f"roost.rules.{package}.{name} holds no rule of its name"
            rules.append(rule)
    return tuple(rules)


def digest_of(raw: bytes, code: bytes = b"") -> str:
    """What tells a policy from others of its name: its text, and the code of the rules in it that are one's own."""
    return hashlib.sha256(raw + code).hexdigest()[:12]


def _build(file: YamlFile, raw: bytes, own: OwnRules, only_named: bool = False) -> Policy:
    head = file.convert(file.data, _PolicyFile)
    lists: dict[tuple[str, ...], tuple[BoundRule, ...]] = {}
    for section in SECTIONS:
        lists[section] = tuple(_bound_rules(file, section, own, only_named))
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
    mine = code_of(bound.rule for bound in rules.bound if is_own(bound.rule))
    return Policy(head.name, head.version, head.description, rules, digest_of(raw, mine))


def _bound_rules(file: YamlFile, section: tuple[str, ...], own: OwnRules, only_named: bool) -> Iterator[BoundRule]:
    package, kind, scopes = SECTIONS[section]
    entries: Any = file.data
    for step in section:
        entries = entries.get(step, {} if step == "clusters" else []) if isinstance(entries, dict) else []
    seen: set[str] = set()
    for i, entry in enumerate(entries):
        at: tuple[PathStep, ...] = (*section, i)
        settings = dict(entry) if isinstance(entry, dict) else {"rule": entry}
        name = settings.pop("rule", None)
        if not isinstance(name, str):
            raise file.mistake(at, "names no rule", "write `- best_fit` or `- {rule: best_fit, buckets: 3}`")
        try:
            if only_named and ":" in name:
                raise _elsewhere(name, own)
            rule = _find(name, package, file.path, own)
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


def _elsewhere(name: str, own: OwnRules) -> InvalidInput:
    """A text from others says where a rule is."""
    known, function = sorted(own.rules()), name.rpartition(":")[2]
    remedy = f"write {function}" if function in known else "name one that comes with Roost"
    if known and function not in known:
        remedy += f", or one that the service lists in agent.rules: {', '.join(known)}"
    elif not known:
        remedy += "; the service lists none of your own in agent.rules"
    return InvalidInput(name, "says where a rule is, which only a file of the service may", remedy)


def _find(name: str, package: str, policy: Path, own: OwnRules) -> Rule:
    """The rule of a name: one of ours by its file, one that is listed, or a user's by module or file and function."""
    source, _, function_name = name.rpartition(":")
    if not source:
        shipped = shipped_in(package)
        if name not in shipped:
            listed = own.rules()
            if name in GONE and name not in listed:
                raise InvalidInput(name, "is no longer a rule", GONE[name])
            if name not in listed:
                raise UnknownName(name, "rule here", name, [*shipped, *listed])
            return listed[name]
        source, function_name = f"{PACKAGE}.{package}.{name}", name
    function = getattr(load_module(source, policy.parent), function_name, None)
    if function is None:
        raise InvalidInput(name, f"{source} has no {function_name}", "name a function that is in it")
    if (rule := rule_of(function)) is None:
        raise InvalidInput(name, "is not a rule", "decorate it with @validator, @preference or @tenant_rule")
    return rule
