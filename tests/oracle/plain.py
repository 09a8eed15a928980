"""The obviously correct allocator: every answer is worked out from nothing, by the rules' own functions, uncompiled.

It remembers only which VM is where and what operators said of machines and clusters. Free resources, owners, sums of
racks and clusters, keys and derived values are computed again for every question, so nothing can be stale. Slow on
purpose, and without any code of the engine: of `roost.engine` it takes only what describes a rule.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roost.engine.rule import Rule
from roost.engine.ruleset import BoundRule, RuleSet
from roost.engine.side_tables import FORESIGHT
from roost.model.request import ON_PLACES, VM, Constraints
from roost.model.thresholds import Purpose, Thresholds
from roost.model.zone import Zone

READY = 0
UNIT_FIELD = {"rack": "rack", "cluster": "cluster", "datacenter": "datacenter", "update_domain": "update_domain"}
COLOCATE = {"": 0, "rack": 1, "cluster": 2, "datacenter": 3}
JOURNAL = ("revision", "older", "newer")
FREE = Constraints()
MOST_AS_GOOD = 1_000
MOST_GROUPS = 5  # of VMs that may give way, to try all ways
Key = tuple[int, ...]


def ladder(constraints: Constraints, of_set: str) -> list[Constraints]:
    """What a VM may be held to, strictest first: all of its terms and, as best effort, ever less of them."""
    best_effort = constraints.best_effort
    terms: dict[str, Any] = dict(constraints.named)
    if of_set:
        wanted, best_effort, terms = constraints.sets[of_set], constraints.sets[of_set].best_effort, {}
        if wanted.fault_domains:
            terms |= {"min_fault_domains": wanted.fault_domains, "fault_domain_skew": 1}
        if wanted.update_domains:
            terms |= {"min_update_domains": wanted.update_domains, "update_domain_skew": 1}
    found = [terms]
    for given_up in [
        {"min_update_domains"},
        {"min_fault_domains"},
        {"min_update_domains", "min_fault_domains"},
        {*terms},
    ]:
        less = {name: value for name, value in terms.items() if name not in given_up}
        if best_effort and less not in found:
            found.append(less)
    return [Constraints(**each) for each in found]


@dataclass(frozen=True, slots=True)
class Resident:
    """A VM on a machine."""

    vm: VM
    tenant: str
    machine: int


@dataclass(frozen=True, slots=True)
class Wish:
    """One VM to place. `refused` are the units (of the colocation domain) that were tried and are too small.

    Only the tenant's VMs in the same availability set count, or those in none.
    """

    vm: VM
    tenant: str
    constraints: Constraints = FREE
    remaining: int = 1  # VMs of the request still to place, this one included
    refused: frozenset[int] = frozenset()
    purpose: Purpose = Purpose.NEW


@dataclass(frozen=True)
class Answer:
    """Everything about one choice: who is out and why, and how good those who are left are."""

    rules: RuleSet
    rows: Rows
    vm: SimpleNamespace
    of_set: str
    cluster_failures: tuple[BoundRule | None, ...]  # by cluster: the first rule that says no
    failures: tuple[BoundRule | None, ...]  # by machine, its cluster's included
    scores: Mapping[int, tuple[float, ...]]  # by valid machine: what each preference says
    keys: Mapping[int, Key]  # by valid machine: the buckets of its preferences
    cluster_keys: Mapping[int, Key]  # by valid cluster
    ranked: tuple[int, ...]  # clusters with a valid machine, best first; if others come last, those that have another
    overfilling: frozenset[int]  # the valid machines on which VMs of lower priority have to give way

    @property
    def valid(self) -> list[int]:
        """The machines that may have the VM."""
        return sorted(self.keys)

    @property
    def chosen(self) -> tuple[int, ...]:
        """The clusters that are looked at."""
        return self.ranked[: self.rules.top_clusters]

    @cached_property
    def candidates(self) -> list[int]:
        """The valid machines of the chosen clusters, best first."""
        return sorted(
            (m for m in self.keys if self.rows.machines[m].cluster in self.chosen), key=lambda m: self.keys[m]
        )

    @property
    def best(self) -> frozenset[int]:
        """The machines that no preference can tell apart from the best."""
        return frozenset(m for m in self.candidates if self.keys[m] == self.keys[self.candidates[0]])

    @property
    def as_good(self) -> frozenset[int]:
        """Where somebody has to give way: the machines among which it is chosen by who that is."""
        share = max(1, math.ceil(self.rules.evictions.among * len(self.candidates)))
        return frozenset().union(*self.top(min(MOST_AS_GOOD, share)))

    def top(self, n: int) -> tuple[frozenset[int], frozenset[int]]:
        """Of the best n: those that are in for sure, and those that tie for the last places."""
        if not self.candidates:
            return frozenset(), frozenset()
        border = self.keys[self.candidates[:n][-1]]
        sure = frozenset(m for m in self.candidates if self.keys[m] < border)
        return sure, frozenset(m for m in self.candidates if self.keys[m] == border)


@dataclass(frozen=True)
class Rows:
    """Plain rows, as rules read them."""

    machines: list[SimpleNamespace]
    racks: list[SimpleNamespace]
    clusters: list[SimpleNamespace]


@dataclass
class PlainAllocator:
    """Knows where VMs are; answers which machine the next one should get."""

    zone: Zone
    rules: RuleSet
    residents: dict[str, Resident] = field(default_factory=dict)
    states: dict[int, int] = field(default_factory=dict)
    healths: dict[int, int] = field(default_factory=dict)
    quarantined: set[int] = field(default_factory=set)
    thresholds: dict[int, Thresholds] = field(default_factory=dict)  # by cluster, where they differ from the zone's
    numbers: dict[str, int] = field(default_factory=dict)
    foresight: dict[str, Any] = field(default_factory=dict)
    _known_constants: dict[tuple[Any, str], tuple[Any, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        nothing = FORESIGHT.blank(self.zone)[0]
        self.foresight = {name: nothing[name].tolist() for name in ("arrivals", "ahead")}

    # ------------------------------------------------------------------------------------------ bookkeeping

    def place(self, name: str, vm: VM, tenant: str, machine: int) -> None:
        """Note a VM on a machine."""
        assert name not in self.residents
        self.residents[name] = Resident(vm, tenant, machine)

    def remove(self, name: str) -> None:
        """Note that a VM is gone."""
        del self.residents[name]

    def homes(self, tenant: str, of_set: str = "") -> list[int]:
        """The machine of each of a tenant's VMs in an availability set, or in none."""
        return [r.machine for r in self.residents.values() if (r.tenant, r.vm.set) == (tenant, of_set)]

    def _number(self, tenant: str) -> int:
        return self.numbers.setdefault(tenant, len(self.numbers) + 1)

    # ------------------------------------------------------------------------------------------------- rows

    @cached_property
    def _fixed(self) -> Rows:
        """What never changes of each row, straight from the zone."""

        def plain(rows: NDArray[np.void], *names: str) -> list[SimpleNamespace]:
            return [SimpleNamespace(**{name: row[name].tolist() for name in names}) for row in rows]

        of_types = ("demands", "per_demand", "takes")
        place = ("rack", "cluster", "datacenter", "update_domain", "generation", "features", "capacity")
        return Rows(
            plain(self.zone.machines, *place, "versions_behind", "failures", "health", "state"),
            plain(self.zone.racks, "cluster"),
            plain(self.zone.clusters, "datacenter", "generation", "features", "supports", *of_types),
        )

    def demand(self, vm: VM) -> list[list[int]]:
        """What a VM takes of each resource, by hardware generation."""
        per_generation = self.zone.vm_types[self.zone.vm_type(vm.type)].demand
        none = (0,) * len(self.zone.resources)
        return [list(per_generation.get(g.name, none)) for g in self.zone.generations]

    def priority(self, vm: VM) -> int:
        """The band of a VM, 0 for the highest."""
        return self.zone.bands.index(vm.priority) if vm.priority else 0

    def vm_row(self, vm: VM, tenant: str, purpose: Purpose = Purpose.NEW) -> SimpleNamespace:
        """A VM as rules read it."""
        zone = self.zone
        kind = zone.vm_type(vm.type)
        needs = {*zone.vm_types[kind].requires, *vm.requires}
        colocation = _index(vm.colocation, zone.classes)
        conflicts = zone.conflicts[colocation].tolist() if colocation >= 0 else [0] * max(1, len(zone.classes))
        return SimpleNamespace(
            **{trait: vm.traits.get(trait, 0) for trait in self.rules.own_traits},
            type=kind,
            demand=self.demand(vm),
            supported=[int(g.name in zone.vm_types[kind].demand) for g in zone.generations],
            priority=self.priority(vm),
            features=sum(1 << i for i, feature in enumerate(zone.features) if feature in needs),
            isolation=self._number(tenant) if vm.isolated else 0,
            colocation=colocation,
            avoids=conflicts,
            datacenter=_index(vm.datacenter, zone.datacenters),
            cluster=_index(vm.cluster, zone.cluster_names),
            generation=_index(vm.generation, [g.name for g in zone.generations]),
            purpose=int(purpose),
        )

    def rows(self) -> Rows:
        """Every row as it is now."""
        on: list[list[Resident]] = [[] for _ in self._fixed.machines]
        for resident in self.residents.values():
            on[resident.machine].append(resident)
        machines = [self._machine(m, on[m]) for m in range(len(on))]
        racks = [
            SimpleNamespace(
                **vars(fixed), **self._sums([m for m in machines if m.rack == r]), first=self._first("rack", r)
            )
            for r, fixed in enumerate(self._fixed.racks)
        ]
        clusters = [
            SimpleNamespace(
                **vars(fixed),
                **self._sums([m for m in machines if m.cluster == c]),
                first=self._first("cluster", c),
                first_rack=min(r for r, rack in enumerate(racks) if rack.cluster == c),
                racks=sum(rack.cluster == c for rack in racks),
                index=c,
                quarantined=int(c in self.quarantined),
                thresholds=self._thresholds(c),
            )
            for c, fixed in enumerate(self._fixed.clusters)
        ]
        return Rows(machines, racks, clusters)

    def _thresholds(self, cluster: int) -> list[int]:
        if (own := self.thresholds.get(cluster)) is not None:
            return [own.new, own.scale_out, own.healing]
        kept: list[int] = self.zone.clusters[cluster]["thresholds"].tolist()
        return kept

    def _first(self, unit: str, index: int) -> int:
        return next(m for m, row in enumerate(self._fixed.machines) if getattr(row, unit) == index)

    def _machine(self, m: int, residents: Sequence[Resident]) -> SimpleNamespace:
        row = SimpleNamespace(**vars(self._fixed.machines[m]))
        taken = [(self.priority(r.vm), self.demand(r.vm)[row.generation]) for r in residents]
        row.free = [
            [total - sum(need[i] for band, need in taken if band <= b) for i, total in enumerate(row.capacity)]
            for b in range(len(self.zone.bands))
        ]
        row.vms = len(residents)
        row.owner = max((self._number(r.tenant) for r in residents if r.vm.isolated), default=0)
        row.isolated = sum(r.vm.isolated for r in residents)
        row.classes = [sum(r.vm.colocation == name for r in residents) for name in self.zone.classes] or [0]
        row.state = self.states.get(m, row.state)
        row.health = self.healths.get(m, row.health)
        return row

    def _sums(self, machines: Sequence[SimpleNamespace]) -> dict[str, Any]:
        ready = [m for m in machines if m.state == READY]
        resources, bands = range(len(self.zone.resources)), range(len(self.zone.bands))
        return {
            "capacity": [sum(m.capacity[r] for m in machines) for r in resources],
            "used": [[sum(m.capacity[r] - m.free[b][r] for m in machines) for r in resources] for b in bands],
            "free": [[sum(m.free[b][r] for m in ready) for r in resources] for b in bands],
            "machines": len(machines),
            "vms": sum(m.vms for m in machines),
            "empty": [sum(m.free[b] == m.capacity and not m.owner for m in ready) for b in bands],
        }

    # --------------------------------------------------------------------------------------------- deciding

    def answer(self, wish: Wish, lots: Sequence[int], ignored: Sequence[str] = ()) -> Answer:
        """What should come of a wish now. `lots` says how ties between clusters fall; rules can be `ignored`."""
        rules, rows, vm = self.rules, self.rows(), self.vm_row(wish.vm, wish.tenant, wish.purpose)
        cluster_failures, failures = self._failures(wish, rows, vm, ignored)
        valid = [m for m, failure in enumerate(failures) if failure is None]
        scores = {m: self._scores(rows, m, vm) for m in valid}
        cluster_keys = {
            c: tuple(_bucket(self._ask(b, cluster, vm), b.levels) for b in rules.cluster_preferences)
            for c, cluster in enumerate(rows.clusters)
            if cluster_failures[c] is None
        }
        overfilling = frozenset(
            m for m in valid if any(map(int.__lt__, rows.machines[m].free[-1], vm.demand[rows.machines[m].generation]))
        )
        feasible = {rows.machines[m].cluster for m in valid}
        if rules.preferences and rules.preferences[0].rule.spares:
            feasible = {rows.machines[m].cluster for m in valid if m not in overfilling} or feasible
        return Answer(
            rules=rules,
            rows=rows,
            vm=vm,
            of_set=wish.vm.set,
            cluster_failures=cluster_failures,
            failures=failures,
            scores=scores,
            keys={
                m: tuple(_bucket(s, b.levels) for s, b in zip(scores[m], rules.preferences, strict=True)) for m in valid
            },
            cluster_keys=cluster_keys,
            ranked=tuple(sorted(feasible, key=lambda c: (cluster_keys[c], lots[c]))),
            overfilling=overfilling,
        )

    def price(self, wish: Wish, m: int, together: Collection[str], own: Collection[str]) -> tuple[float, ...] | None:
        """What it costs that others give way to a VM on a machine, by band, beyond what they do already.

        Nothing at all if nobody has to; None if too many could go for all ways to be tried. VMs of tenants that go
        `together` do; the request's `own` do not go.
        """
        band, room = self.priority(wish.vm), self._machine(m, [r for r in self.residents.values() if r.machine == m])
        need, left = self.demand(wish.vm)[room.generation], room.free[-1]
        if all(has >= amount for has, amount in zip(left, need, strict=True)):
            return ()
        lower = {n: r for n, r in self.residents.items() if n not in own and self.priority(r.vm) > band}
        groups = {
            n if r.tenant not in together else r.tenant: [
                other for name, other in lower.items() if name == n or (other.tenant == r.tenant in together)
            ]
            for n, r in lower.items()
            if r.machine == m
        }
        if len(groups) > MOST_GROUPS:
            return None

        def least(wanted: Sequence[int]) -> list[float]:
            ways = [chain(*way) for n in range(len(groups) + 1) for way in combinations(groups.values(), n)]
            return min(self._cost(gone) for gone in map(list, ways) if self._frees(gone, m, wanted))

        now = least([amount - has for has, amount in zip(left, need, strict=True)])
        before = least([-has for has in left])
        return tuple(round(more - less, 9) for more, less in zip(now, before, strict=True))

    def _frees(self, gone: Sequence[Resident], m: int, wanted: Sequence[int]) -> bool:
        freed = [self.demand(r.vm)[self._fixed.machines[m].generation] for r in gone if r.machine == m]
        return all(sum(amounts[i] for amounts in freed) >= amount for i, amount in enumerate(wanted))

    def _cost(self, gone: Sequence[Resident]) -> list[float]:
        """By band, the highest that can give way first. All VMs are old: nobody knows since when they run."""
        terms, costs = self.rules.evictions, [0.0] * (len(self.zone.bands) - 1)
        for resident in gone:
            machine = self._fixed.machines[resident.machine]
            takes = self.demand(resident.vm)[machine.generation]
            share = max(amount / max(1, whole) for amount, whole in zip(takes, machine.capacity, strict=True))
            weight = terms.types.get(resident.vm.type, 1.0)
            costs[self.priority(resident.vm) - 1] += weight * (terms.number + terms.size * share + terms.age)
        return costs

    def waits_in_vain(self, wish: Wish) -> list[int]:
        """Machines that no rule but room keeps a VM from, and that would have room if all of lower priority left."""
        rows, vm = self.rows(), self.vm_row(wish.vm, wish.tenant, wish.purpose)
        _, failures = self._failures(wish, rows, vm, ("has_room",))
        found = []
        for m, machine in enumerate(rows.machines):
            need, left = self.demand(wish.vm)[machine.generation], list(machine.capacity)
            for resident in self.residents.values():
                if resident.machine == m and self.priority(resident.vm) <= self.priority(wish.vm):
                    taken = self.demand(resident.vm)[machine.generation]
                    left = [has - amount for has, amount in zip(left, taken, strict=True)]
            if failures[m] is None and all(has >= amount for has, amount in zip(left, need, strict=True)):
                found.append(m)
        return found

    def too_small(self, wanted: Sequence[tuple[Wish, int]], limits: Constraints) -> frozenset[int]:
        """The units of a co-location that cannot have all that is wanted: too few of a kind fit, one kind alone, in as
        many racks as may be, or the machines that take any are in too few domains, or have too little left.

        `wanted`: what each VM asks for, and how many of it. Where all are of one priority, a machine that is not for a
        VM now is not for it later, either.
        """
        rows, unit = self.rows(), limits.unit
        evicts = not any(bound.rule.spares for bound in self.rules.validators)
        bands = {self.priority(wish.vm) if evicts else -1 for wish, _ in wanted}
        small = set()
        for u in {getattr(machine, unit) for machine in rows.machines}:
            own = {m: machine for m, machine in enumerate(rows.machines) if getattr(machine, unit) == u}
            useful: set[int] = set()
            for wish, number in wanted:
                failures = self._failures(wish, rows, self.vm_row(wish.vm, wish.tenant, wish.purpose), ())[1]
                in_racks = Counter[int]()
                for m, machine in own.items():
                    if count := self._fit(wish.vm, machine, evicts, len(bands) == 1 and failures[m] is not None):
                        useful.add(m)
                        in_racks[machine.rack] += min(count, limits.max_per_machine or count)
                most = [min(n, limits.max_per_rack or n) for n in in_racks.values()]
                if sum(sorted(most, reverse=True)[: limits.max_fault_domains or len(most)]) < number:
                    small.add(u)
            everyone = sum(number for _, number in wanted)
            for domain, least in (("rack", limits.min_fault_domains), ("update_domain", limits.min_update_domains)):
                if least > 1 and len({getattr(own[m], domain) for m in useful}) < min(least, everyone):
                    small.add(u)
            for r in range(len(self.zone.resources)) if len(wanted) > 1 else ():
                needed = sum(number * self._least(wish.vm, r) for wish, number in wanted)
                if sum(own[m].free[min(bands)][r] for m in useful) < needed:
                    small.add(u)
        return frozenset(small)

    def _fit(self, vm: VM, machine: SimpleNamespace, evicts: bool, failed: bool) -> int:
        """How many such VMs fit on a machine, one after another."""
        if failed or not self.zone.supported[self.zone.vm_type(vm.type)][machine.generation]:
            return 0
        need, left = self.demand(vm)[machine.generation], list(machine.free[self.priority(vm) if evicts else -1])
        count = 0
        while min(has - amount for has, amount in zip(left, need, strict=True)) >= 0 and count < 10_000:
            left = [has - amount for has, amount in zip(left, need, strict=True)]
            count += 1
        return count

    def _least(self, vm: VM, resource: int) -> int:
        """What a VM takes of a resource at the least, on whatever it runs."""
        supported = self.zone.supported[self.zone.vm_type(vm.type)]
        found = [need[resource] for need, ok in zip(self.demand(vm), supported, strict=True) if ok]
        return min(found) if found else max(need[resource] for need in self.demand(vm))

    def _failures(
        self, wish: Wish, rows: Rows, vm: SimpleNamespace, ignored: Sequence[str]
    ) -> tuple[tuple[BoundRule | None, ...], tuple[BoundRule | None, ...]]:
        """By cluster, and by machine: the first rule that says no."""
        validators = [bound for bound in self.rules.validators if bound.rule.name not in ignored]
        of_clusters = tuple(
            self._first_failure(self.rules.cluster_validators, cluster, vm) for cluster in rows.clusters
        )
        tenant = self._tenant(wish, rows)
        of_machines = tuple(
            of_clusters[machine.cluster]
            or self._first_failure(validators, machine, vm)
            or self._tenant_failure(tenant, machine, m, wish, rows)
            for m, machine in enumerate(rows.machines)
        )
        return of_clusters, of_machines

    def _first_failure(
        self, validators: Sequence[BoundRule], row: SimpleNamespace, vm: SimpleNamespace
    ) -> BoundRule | None:
        return next((bound for bound in validators if not self._ask(bound, row, vm)), None)

    def _scores(self, rows: Rows, m: int, vm: SimpleNamespace) -> tuple[float, ...]:
        machine = rows.machines[m]
        return tuple(
            self._ask(bound, rows.racks[machine.rack] if bound.rule.scope == "rack" else machine, vm)
            for bound in self.rules.preferences
        )

    def _ask(self, bound: BoundRule, row: SimpleNamespace, vm: SimpleNamespace) -> Any:
        facts = [self._fact(need, row, vm) for need in bound.rule.needs]
        also = [self._fixed.clusters[row.cluster]] if bound.rule.of_cluster else []
        also += [SimpleNamespace(**self.foresight) for _ in bound.rule.reads]  # there is no other side table
        return bound.rule.function(row, vm, *also, *facts, *self._constants(bound))

    def _fact(self, column: Rule, row: SimpleNamespace, vm: SimpleNamespace) -> float:
        """What a derived column holds for a machine, worked out on the spot."""
        return float(self._ask(BoundRule(column), row, vm))

    def _constants(self, bound: BoundRule) -> tuple[Any, ...]:
        """A rule's parameters, which never change; asking for them is slow."""
        key = (bound.rule.function, repr(bound.parameters))
        if key not in self._known_constants:
            self._known_constants[key] = bound.constants(self.zone)
        return self._known_constants[key]

    def _tenant(self, wish: Wish, rows: Rows) -> SimpleNamespace:
        homes = [rows.machines[m] for m in self.homes(wish.tenant, wish.vm.set)]
        row: dict[str, int] = {name: getattr(wish.constraints, name) for name in ON_PLACES}
        row["colocate"] = COLOCATE[wish.constraints.colocate]
        row |= {"placed": len(homes), "remaining": wish.remaining}
        for unit in ("rack", "update_domain"):
            held = Counter(getattr(home, unit) for home in homes).values()
            row |= {f"{unit}s": len(held), f"least_in_{unit}": min(held, default=0)}
            row[f"most_in_{unit}"] = max(held, default=0)
        return SimpleNamespace(**row)

    def _tenant_failure(
        self, tenant: SimpleNamespace, machine: SimpleNamespace, m: int, wish: Wish, rows: Rows
    ) -> BoundRule | None:
        homes = self.homes(wish.tenant, wish.vm.set)
        for bound in self.rules.tenant_rules:
            unit = UNIT_FIELD.get(bound.rule.domain)
            if unit is None:
                tenant.here = sum(home == m for home in homes)
            else:
                tenant.here = sum(getattr(rows.machines[home], unit) == getattr(machine, unit) for home in homes)
                if unit == wish.constraints.unit and getattr(machine, unit) in wish.refused and not homes:
                    tenant.here = -1  # how a rule is told that the unit was tried and is too small
            if not bound.rule.function(tenant, *self._constants(bound)):
                return bound
        return None

    # --------------------------------------------------------------------------------------------- checking

    def over_capacity(self) -> list[str]:
        """Machines that hold more of something than they have, in any band."""
        return [
            f"{self.zone.machine_names[m]} has {band} free"
            for m, row in enumerate(self.rows().machines)
            for band in row.free
            if min(band) < 0
        ]

    def disagreements(
        self, machines: NDArray[np.void], racks: NDArray[np.void], clusters: NDArray[np.void]
    ) -> list[str]:
        """Where an engine's rows differ from what the VMs make of the zone. Owners are compared by who shares one."""
        rows, found = self.rows(), []
        for kind, mine, theirs in (("machine", rows.machines, machines), ("rack", rows.racks, racks),
                                   ("cluster", rows.clusters, clusters)):  # fmt: skip
            for name in theirs.dtype.names or ():
                if name in JOURNAL or name == "owners":  # the tenants' numbers are the engine's own affair
                    continue
                values = theirs[name].tolist()
                expected = [getattr(row, name) for row in mine]
                if name == "owner":
                    values, expected = _partition(values), _partition(expected)
                found += [
                    f"{kind} {i}: {name} is {value}, not {wanted}"
                    for i, (value, wanted) in enumerate(zip(values, expected, strict=True))
                    if value != wanted
                ]
        return found


def _index(name: str, known: Sequence[str]) -> int:
    return list(known).index(name) if name else -1


def _bucket(score: float, levels: int) -> int:
    assert -1e-9 <= score <= 1 + 1e-9, f"a score of {score}"
    return min(levels, max(0, math.ceil(score * levels)))


def _partition(owners: Sequence[int]) -> list[int]:
    """Owners renumbered in order of appearance, 0 for none."""
    order = {0: 0}
    return [order.setdefault(owner, len(order)) for owner in owners]
