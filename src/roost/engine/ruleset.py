"""An ordered set of rules with their parameters: all that the engine knows of a policy."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from roost.engine.kernel.codes import INVALID
from roost.engine.rule import TRAIT_FIELDS, OptionalResource, PerResource, ResourceName, Rule
from roost.engine.side_tables import SideTable
from roost.model.errors import InvalidInput, UnknownName
from roost.model.rows import MachineState
from roost.model.thresholds import WORDS
from roost.model.zone import Zone

LARGEST_NUMBER = 2**53  # beyond it whole numbers are no longer exact
CONTINUOUS = 2**20 - 1  # buckets of a preference that asks for none: one part in a million
KEY_BITS = 62
MOST_COST = 1_000_000


@dataclass(frozen=True)
class BoundRule:
    """A rule in its place in a policy: with its parameters and, for a preference, its buckets."""

    rule: Rule
    parameters: Mapping[str, Any] = field(default_factory=dict)
    buckets: int | None = None

    def __post_init__(self) -> None:
        for name, value in self.parameters.items():
            if name not in self.rule.defaults:
                raise UnknownName(f"rule {self.rule.name}", "parameter", name, self.rule.defaults)
            default = self.rule.defaults[name]
            wanted: tuple[type, ...]
            if isinstance(default, PerResource):
                wanted, word = (Mapping,), "a mapping of resources to numbers"
            elif isinstance(default, str):
                wanted, word = (str,), "the name of a resource"
            elif isinstance(default, bool):
                wanted, word = (bool,), "true or false"
            else:
                wanted, word = (int, float), "a number"
            where = f"rule {self.rule.name}, parameter {name}"
            if not isinstance(value, wanted) or (isinstance(value, bool) and wanted != (bool,)):
                raise InvalidInput(where, f"is {value!r}", f"it must be {word}")
            for number in value.values() if isinstance(value, Mapping) else [0 if isinstance(value, str) else value]:
                if not isinstance(number, int | float) or not abs(number) <= LARGEST_NUMBER:
                    raise InvalidInput(where, f"has {number!r}", "use numbers of ordinary size")
        if self.buckets is not None and (self.rule.kind != "preference" or not 1 <= self.buckets <= CONTINUOUS):
            remedy = f"use 1 to {CONTINUOUS:,}" if self.rule.kind == "preference" else "only preferences have buckets"
            raise InvalidInput(f"rule {self.rule.name}, buckets", f"is {self.buckets}", remedy)

    @property
    def levels(self) -> int:
        """How many buckets the score falls into (bucket 0 is for a score of exactly 0)."""
        return self.buckets or CONTINUOUS

    @property
    def width(self) -> int:
        """Bits of the key that it takes."""
        return self.levels.bit_length()

    def constants(self, zone: Zone) -> tuple[Any, ...]:
        """Its parameters as the rule receives them: resource names become indexes, mappings become tuples."""
        names = [r.name for r in zone.resources]
        values = {**self.rule.defaults, **self.parameters}
        resolved: list[Any] = []
        for name, default in self.rule.defaults.items():
            value, where = values[name], f"rule {self.rule.name}, parameter {name}"
            if isinstance(default, PerResource):
                if unknown := [k for k in value if k not in names and k not in default]:
                    raise UnknownName(where, "resource", unknown[0], names)
                resolved.append(tuple(float(value.get(n, 0.0)) for n in names))
            elif isinstance(default, ResourceName):
                absent = value not in names
                if absent and not (isinstance(default, OptionalResource) and value == default):
                    raise UnknownName(where, "resource", value, names)
                resolved.append(-1 if absent else names.index(value))
            else:
                resolved.append(value)
        return tuple(resolved)

    def numbers(self, zone: Zone) -> list[float]:
        """Those of its parameters that reach the compiled rule as data, and not as constants: all that are amounts."""
        found: list[float] = []
        for value, default in zip(self.constants(zone), self.rule.defaults.values(), strict=True):
            if not isinstance(default, bool | str):
                found += value if isinstance(value, tuple) else (value,)
        return found

    def reason(self, zone: Zone, detail: int, of_set: str = "") -> str:
        """Why it refuses: its reason, the placeholder filled from the zone's own words.

        `of_set`: the availability set of the VM, by whose terms tenant rules go.
        """
        if of_set and self.rule.kind == "tenant":
            return f"{self.rule.reason} for set {of_set}"
        if self.rule.detail is None:
            return self.rule.reason
        words: dict[str, Sequence[str]] = {
            "resource": [r.name for r in zone.resources],
            "state": [s.name.lower() for s in MachineState],
            "generation": [g.name for g in zone.generations],
            "purpose": WORDS,
        }
        return self.rule.reason.format(**{name: known[min(detail, len(known) - 1)] for name, known in words.items()})

    def bucket(self, score: float) -> int:
        """Which bucket a score falls into: ⌈S·N⌉."""
        scaled = min(1.0, max(0.0, score)) * self.levels
        return int(scaled) + (scaled > int(scaled))


class EvictionTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What it costs that a VM gives way, by which victims are chosen, and how long they are left to finish.

    cost of a VM  =  weight of its type (1 unless listed)  ×  (number + size × share + age × old)

    `share`: the largest share that it takes of any resource of its machine; `old`: 0 for a new VM, 1 after a week.

    Where somebody has to give way, the best machines by the policy's preferences, `among` of the valid ones, count as
    good as one another, and that is chosen where it costs least. 0: only those that are equal in all preferences do.
    """

    among: float = 0.1
    number: float = 1.0
    size: float = 1.0
    age: float = 0.25
    types: dict[str, float] = {}
    grace: float = 30.0  # seconds

    def __post_init__(self) -> None:
        if not 0 <= self.among <= 1:
            raise InvalidInput("evictions: among", f"is {self.among}", "use a share of the machines, from 0 to 1")
        for name in ("number", "size", "age", "grace"):
            if not 0 <= getattr(self, name) <= MOST_COST:
                raise InvalidInput(f"evictions: {name}", f"is {getattr(self, name)}", f"use 0 to {MOST_COST:,}")
        for name, weight in self.types.items():
            if not 0 < weight <= MOST_COST:
                remedy = f"use a number above 0, up to {MOST_COST:,}"
                raise InvalidInput(f"evictions: types: {name}", f"is {weight}", remedy)
        if not (self.number or self.size or self.age):
            raise InvalidInput("evictions", "cost nothing", "give number, size or age a weight above 0")


@dataclass(frozen=True)
class RuleSet:
    """The rules of a policy, in order. Preferences are strictly ordered: a later one breaks ties of the earlier."""

    cluster_validators: tuple[BoundRule, ...] = ()
    cluster_preferences: tuple[BoundRule, ...] = ()
    validators: tuple[BoundRule, ...] = ()
    preferences: tuple[BoundRule, ...] = ()
    tenant_rules: tuple[BoundRule, ...] = ()
    top_clusters: int = 12
    evictions: EvictionTerms = field(default_factory=EvictionTerms)

    def __post_init__(self) -> None:
        for title, rules in (("clusters", self.cluster_preferences), ("machines", self.preferences)):
            if (bits := sum(r.width for r in rules)) > KEY_BITS:
                raise InvalidInput(
                    f"{title}: preferences",
                    f"need {bits} bits of a {KEY_BITS}-bit key",
                    "give continuous ones buckets (each continuous one takes 20 bits, N buckets take log2 N)",
                )
        if not 1 <= self.top_clusters <= 1_000:
            raise InvalidInput("top_clusters", f"is {self.top_clusters}", "use 1 to 1,000; the paper uses 8 to 16")

    def __len__(self) -> int:
        return len(self.bound)

    @cached_property
    def bound(self) -> tuple[BoundRule, ...]:
        """All of them."""
        clusters = (*self.cluster_validators, *self.cluster_preferences)
        return (*clusters, *self.validators, *self.preferences, *self.tenant_rules)

    @cached_property
    def names(self) -> frozenset[str]:
        """What they are called."""
        return frozenset(bound.rule.name for bound in self.bound)

    @cached_property
    def columns(self) -> tuple[Rule, ...]:
        """The derived columns that the rules need, each after those it needs itself."""
        ordered: dict[Rule, None] = {}

        def visit(rule: Rule) -> None:
            for need in rule.needs:
                visit(need)
                ordered.setdefault(need)

        for bound in (*self.validators, *self.preferences):
            visit(bound.rule)
        return tuple(ordered)

    @cached_property
    def with_numbers(self) -> tuple[BoundRule, ...]:
        """All of them and the columns, in the order in which kernels find their numbers."""
        return (*self.bound, *(BoundRule(column) for column in self.columns))

    def numbers(self, zone: Zone) -> NDArray[np.float64]:
        """The numbers of all rules, one after another, as kernels take them."""
        return np.array([number for bound in self.with_numbers for number in bound.numbers(zone)], np.float64)

    @cached_property
    def rests_on(self) -> frozenset[SideTable]:
        """The side tables that the evaluation of machines rests on."""
        return frozenset(t for bound in (*self.validators, *self.preferences) for t in bound.rule.rests_on)

    @cached_property
    def cluster_traits(self) -> tuple[str, ...]:
        """What the ranking of clusters depends on."""
        return _traits([b.rule for b in (*self.cluster_validators, *self.cluster_preferences)])

    @cached_property
    def machine_traits(self) -> tuple[str, ...]:
        """What the evaluation of machines depends on."""
        return _traits([*(b.rule for b in (*self.validators, *self.preferences)), *self.columns])

    @cached_property
    def own_traits(self) -> tuple[str, ...]:
        """Traits that only user-written rules know."""
        return tuple(t for t in sorted({*self.cluster_traits, *self.machine_traits}) if t not in TRAIT_FIELDS)

    @cached_property
    def last_resort(self) -> int:
        """The key from which on machines are chosen only if no cluster has a better one.

        There others have to give way, if the first of all preferences is that they need not.
        """
        return 1 << self.shifts[0] if self.spares_first else int(INVALID)

    @property
    def spares_first(self) -> bool:
        """Whether others give way only if there is no other way."""
        return bool(self.preferences) and self.preferences[0].rule.spares

    @cached_property
    def evicts(self) -> bool:
        """Whether VMs of lower priority may have to give way."""
        return not any(bound.rule.spares for bound in self.validators)

    def view_of(self, priority: int) -> int:
        """The band as which a VM of a priority sees what is free: its own, or the lowest if nobody gives way."""
        return priority if self.evicts else -1

    @cached_property
    def enforced(self) -> frozenset[str]:
        """The tenant constraints that these rules know, by name, or as name=value for one of several values."""
        return frozenset(bound.rule.constraint for bound in self.tenant_rules)

    @cached_property
    def traits(self) -> frozenset[str]:
        """Everything of a VM that some rule reads."""
        return frozenset((*self.cluster_traits, *self.machine_traits))

    @cached_property
    def shifts(self) -> tuple[int, ...]:
        """Where each preference's bucket starts in a machine's key; the first rule takes the highest bits."""
        return key_shifts(self.preferences)

    @cached_property
    def cluster_shifts(self) -> tuple[int, ...]:
        """The same in a cluster's key."""
        return key_shifts(self.cluster_preferences)


class RulePolicy(Protocol):
    """Rules with a name: all that an agent needs to know of a policy."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def digest(self) -> str:
        """Another one for every change of it."""

    @property
    def rules(self) -> RuleSet:
        """Its rules, in order."""


@dataclass(frozen=True)
class PolicySplit:
    """The policy in force, and, while two are compared, another one for a share of the tenants."""

    main: RulePolicy
    other: RulePolicy | None = None
    share: float = 0.0  # of the tenants that `other` decides for

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0:
            raise InvalidInput("share", f"is {self.share}", "use 0 to 1")

    @property
    def policies(self) -> tuple[RulePolicy, ...]:
        """The one, or both."""
        return (self.main,) if self.other is None else (self.main, self.other)

    def arm_of(self, tenant: str) -> int:
        """0: the main policy decides for this tenant; 1: the other. By a hash, so alike in every process, for ever."""
        if self.other is None:
            return 0
        digest = hashlib.blake2b(tenant.encode(), digest_size=8).digest()
        return int(int.from_bytes(digest) < self.share * 2**64)


def key_shifts(rules: Sequence[BoundRule]) -> tuple[int, ...]:
    """The bit offset of each rule's bucket in a packed key."""
    shifts, at = [], sum(r.width for r in rules)
    for bound in rules:
        at -= bound.width
        shifts.append(at)
    return tuple(shifts)


def _traits(rules: Sequence[Rule]) -> tuple[str, ...]:
    return tuple(sorted({trait for rule in rules for trait in rule.traits}))
