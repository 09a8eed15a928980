"""The obviously correct mover: a plan replayed on plain dictionaries, everything counted anew after each move."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from roost.model.inventory import MachineSpec
from roost.model.request import VM, Constraints
from roost.store.ledger import Ledger
from roost.whatif.plan import Plan, PlannedMove
from tests.oracle.plain import ladder

READY, MOST_VMS = 0, 64  # of policy `default`


class Books:
    """Who runs where, and what may not be."""

    def __init__(self, ledger: Ledger) -> None:
        self.catalogue = ledger.catalogue
        self.specs: dict[str, MachineSpec] = {name: row.spec for name, row in ledger.machines.items()}
        self.states = {name: row.state for name, row in ledger.machines.items()}
        self.vms: dict[str, tuple[str, VM]] = {name: (row.tenant, row.spec) for name, row in ledger.vms.items()}
        self.where = {name: row.machine for name, row in ledger.vms.items()}
        self.wishes = {name: row.constraints for name, row in ledger.tenants.items()}
        self.on: dict[str, set[str]] = {name: set() for name in self.specs}
        self.of: dict[str, set[str]] = {}
        for name, machine in self.where.items():
            self.on[machine].add(name)
            self.of.setdefault(self.vms[name][0], set()).add(name)
        self.cores = next(i for i, r in enumerate(self.catalogue.resources) if r.name == "cores")

    def density(self) -> float:
        """Cores in use over the cores of machines in use, in points."""
        used = sum(self.demand(name)[self.cores] for name in self.where)
        return 100 * used / sum(self.specs[m].capacity[self.cores] for m, vms in self.on.items() if vms)

    def demand(self, vm: str, machine: str = "") -> tuple[int, ...]:
        """What a VM takes where it runs, or elsewhere."""
        generation = self.specs[machine or self.where[vm]].generation
        return self.catalogue.demand[self.vms[vm][1].type, generation]

    def make(self, move: PlannedMove) -> Iterator[str]:
        """Make a move; yields what is wrong with it."""
        tenant, vm = self.vms[move.vm]
        before = self._broken(tenant)
        if self.where[move.vm] != move.source or move.source == move.target:
            yield f"{move.vm} is on {self.where[move.vm]}, not on {move.source}"
        if (tenant, vm.type) != (move.tenant, move.type):
            yield f"{move.vm} is of {tenant} and type {vm.type}"
        if self.states[move.target] != READY:
            yield f"{move.target} is not ready"
        self.on[move.target].add(move.vm)  # held there, while it still runs here
        yield from self._overfull(move.target)
        self.on[move.source].remove(move.vm)
        self.where[move.vm] = move.target
        if worse := self._broken(tenant) - before:
            yield f"{tenant} loses {worse}"

    def _broken(self, tenant: str) -> set[tuple[str, str]]:
        """What is not kept to, of each availability set of a tenant and of its VMs in none."""
        homes: dict[str, list[MachineSpec]] = {}
        for name in self.of[tenant]:
            homes.setdefault(self.vms[name][1].set, []).append(self.specs[self.where[name]])
        wish = self.wishes[tenant]
        return {(of_set, what) for of_set, there in homes.items() for what in broken(ladder(wish, of_set)[0], there)}

    def _overfull(self, machine: str) -> Iterator[str]:
        """What is wrong on a machine."""
        spec, names = self.specs[machine], self.on[machine]
        for r, resource in enumerate(self.catalogue.resources):
            if (taken := sum(self.demand(name, machine)[r] for name in names)) > spec.capacity[r]:
                yield f"{machine} is over capacity: {taken} of {spec.capacity[r]} {resource.name}"
        if len(names) > MOST_VMS:
            yield f"{machine} has {len(names)} VMs"
        held = {self.vms[name][0] for name in names if self.vms[name][1].isolated}
        if held and len({self.vms[name][0] for name in names}) > 1:
            yield f"{machine} is {held}'s alone"
        classes = Counter(self.vms[name][1].colocation for name in names)
        for a, b in self.catalogue.conflicts:
            if (a != b and classes[a] and classes[b]) or (a == b and classes[a] > 1):
                yield f"{machine} has VMs of {a} and {b}"
        for name in names:
            asked = self.vms[name][1]
            kind = next(t for t in self.catalogue.vm_types if t.name == asked.type)
            if not {*kind.requires, *asked.requires} <= set(spec.features):
                yield f"{name} lacks a feature on {machine}"


def broken(wish: Constraints, homes: list[MachineSpec]) -> set[str]:
    """The constraints that VMs on these machines do not keep."""
    racks, domains = Counter(m.rack for m in homes), Counter(m.update_domain for m in homes)
    machines, found = Counter(m.name for m in homes), set()
    for name, counts, limit in (("machine", machines, wish.max_per_machine), ("rack", racks, wish.max_per_rack)):
        if limit and max(counts.values()) > limit:
            found.add(f"max_per_{name}")
    for name, numbers, fewest, skew in (
        ("fault", racks.values(), wish.min_fault_domains, wish.fault_domain_skew),
        ("update", domains.values(), wish.min_update_domains, wish.update_domain_skew),
    ):
        if len(numbers) < min(fewest, len(homes)):
            found.add(f"min_{name}_domains")
        if skew and max(numbers) - min(numbers) > skew:
            found.add(f"{name}_domain_skew")
    if wish.max_fault_domains and len(racks) > wish.max_fault_domains:
        found.add("max_fault_domains")
    units = {"rack": racks, "cluster": {m.cluster for m in homes}, "datacenter": {m.datacenter for m in homes}}
    if wish.colocate and len(units[wish.colocate]) > 1:
        found.add("colocate")
    return found


def any_order(plan: Plan, seed: int) -> list[PlannedMove]:
    """The moves in an order that `after` allows, drawn at random."""
    rng, done, found = random.Random(seed), set[int](), list[PlannedMove]()
    waiting = list(plan.moves)
    while waiting:
        ready = [move for move in waiting if set(move.after) <= done]
        chosen = rng.choice(ready)
        waiting.remove(chosen)
        done.add(chosen.number)
        found.append(chosen)
    return found


def wrong_with(plan: Plan, ledger: Ledger, order: Iterable[PlannedMove] | None = None) -> Iterator[str]:
    """All that a plan claims and does not hold; claimed gains only in the plan's own order."""
    books = Books(ledger)
    density = books.density()
    if abs(100 * plan.before.density - density) > 1e-9:
        yield f"the density is {density}, not {plan.before.density}"
    for move in order or plan.moves:
        if order is None and not books.on[move.target]:
            yield f"move {move.number}: {move.target} runs nothing"
        yield from (f"move {move.number}: {problem}" for problem in books.make(move))
        if order is None:
            gained = books.density() - density
            density += gained
            frees = 0 if books.on[move.source] else books.specs[move.source].capacity[books.cores] / 1_000
            if abs(gained - move.gain) > 1e-9 or frees != move.frees:
                yield f"move {move.number} gains {gained} and frees {frees}, not {move.gain} and {move.frees}"
    if abs(100 * plan.after.density - books.density()) > 1e-9:
        yield f"the density is {books.density()} afterwards, not {plan.after.density}"
    terms = plan.terms
    if len(plan.moves) > terms.budget or len({move.vm for move in plan.moves}) < len(plan.moves):
        yield "more is moved than the budget allows, or a VM twice"
    for move in plan.moves:
        vm = books.vms[move.vm][1]
        named = not terms.tenants or any(fnmatchcase(move.tenant, each) for each in terms.tenants)
        of_kind = vm.type in (terms.types or (vm.type,)) and (vm.priority or "regular") in (
            terms.priorities or (vm.priority or "regular",)
        )
        if not (named and of_kind and (terms.isolated or not vm.isolated)):
            yield f"{move.vm} may not move"
