"""Availability sets through an agent and a store: placed, grown, shrunk, lost and healed, moved, in any order.

What a set is owed is counted anew after every step, from the store's own rows, by nothing but the words of its terms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from roost.agent.agent import Agent
from roost.agent.courier import InlineCourier
from roost.agent.operation import Answer, Operation
from roost.agent.past import recall
from roost.agent.verbs.heal import HealVMs
from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.move import MoveVM
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.model.availability import AvailabilitySet
from roost.model.request import VM, Constraints, Request
from roost.rules.policy import Policy
from roost.store.audit import check_invariants
from roost.store.contract import Decline
from roost.wiring import open_store
from tests.property.effort import examples
from tests.property.requests import availability_sets
from tests.property.zones import SINGLE, ClusterPlan, build

FAST = Policy.named("fast")
TENANT, KIND, ROOM = "t", "one", 5  # a machine has room for so many
SETS = ("db", "web")
racks_of_machines = st.lists(st.integers(1, 3), min_size=2, max_size=5).map(tuple)
steps = st.lists(
    st.tuples(
        st.sampled_from(("grow", "grow", "grow", "shrink", "lose", "move", "fill")),
        st.sampled_from(SETS),
        st.integers(1, 5),
        st.integers(0, 2**16),
    ),
    min_size=1,
    max_size=14,
)


class Site:
    """An agent on a store of its own."""

    def __init__(self, racks: tuple[int, ...], sets: dict[str, AvailabilitySet]) -> None:
        self.zone = build(SINGLE, (ClusterPlan(0, 0, racks),))
        self.store = open_store("memory:", create=self.zone)
        self.agent = Agent(self.store, InlineCourier(self.store), FAST, f"agent-{id(self)}", now=lambda: 1_000.0)
        self.sets, self._keys = sets, count()

    def do(self, operation: Operation) -> tuple[Answer, str]:
        """What comes of an operation, and its key."""
        key = f"key {next(self._keys)}"
        (answer,) = self.agent.run(self.agent.submit(operation, key))
        self.agent.check_invariants()
        return answer, key

    def homes(self, of_set: str, without: Sequence[str] = ()) -> list[str]:
        """The machines of a set's VMs, by the store."""
        rows = self.store.load().vms.items()
        return [row.machine for name, row in rows if row.spec.set == of_set and name not in without]

    def vms(self) -> dict[str, Any]:
        """The tenant's VMs, by the store."""
        return {name: row for name, row in self.store.load().vms.items() if row.tenant == TENANT}

    def unit(self, machine: str, domain: str) -> int:
        """The rack or update domain of a machine."""
        return int(self.zone.machines[self.zone.machine(machine)][domain])

    def open(self) -> set[str]:
        """Machines that have room for one more."""
        ledger = self.store.load()
        taken = Counter(row.machine for row in ledger.vms.values())
        return {name for name, row in ledger.machines.items() if row.state == 0 and taken[name] < ROOM}

    def request(self, of_set: str, number: int) -> Request:
        """So many more VMs of a set."""
        exists = self.store.tenant(TENANT) is not None
        return Request(TENANT, [VM(KIND, set=of_set)] * number, None if exists else Constraints(sets=self.sets))

    # ---------------------------------------------------------------------------------------------- the claims

    def check_owed(self, of_set: str, before: Sequence[str], room: set[str]) -> None:
        """A set has what it is owed, after VMs were placed beside those it had on the machines `before`."""
        wanted, now = self.sets[of_set], self.homes(of_set)
        for domain, number in (("rack", wanted.fault_domains), ("update_domain", wanted.update_domains)):
            had = Counter(self.unit(machine, domain) for machine in before)
            has = Counter(self.unit(machine, domain) for machine in now)
            owed = min(number, len(now), len(had) + len(now) - len(before))
            if wanted.best_effort:
                if wanted.fault_domains and wanted.update_domains:
                    continue  # one may have been given up for the other: the oracle of the engine has that
                owed = min(owed, len(had.keys() | {self.unit(machine, domain) for machine in room}))
            assert len(has) >= owed, f"{of_set} is in {len(has)} of {owed} by {domain}"
            if number and not wanted.best_effort:
                lacking = len(had) < min(number, len(now))
                skew = max(had.values(), default=0) - (0 if lacking else min(had.values(), default=0))
                assert max(has.values()) - min(has.values()) <= max(1, skew)

    def check_declined(self, operation: PlaceVMs) -> None:
        """A set that does its best is declined only where VMs without any terms are."""
        request = operation.request
        if self.sets[request.vms[0].set].best_effort:
            free = Request("nobody", [VM(KIND)] * len(request.vms))
            _, proposal = self.agent.rehearse(PlaceVMs(free))
            assert isinstance(proposal, Decline), "it was declined for its terms"

    def check_told(self, key: str, answer: Answer, of_set: str, before: Sequence[str]) -> None:
        """What could not be reached is told, in the answer and by the record, which explains it again."""
        wanted, now = self.sets[of_set], self.homes(of_set)
        reached = len({self.unit(machine, "rack") for machine in now})
        owed = min(wanted.fault_domains, len(now), len({self.unit(m, "rack") for m in before}) + len(now) - len(before))
        if reached < owed:
            assert wanted.best_effort
            assert any(short.set == of_set and short.fault_domains == reached for short in answer.short)
        decided = self.store.decided(key)
        assert decided is not None
        assert decided.record.short == answer.short
        again = recall(self.store, key, lambda _: FAST)
        assert again.short == answer.short
        for vm in range(len(answer.placements)):
            told = again.explain(vm)
            assert told.machine == answer.placements[vm].machine
            assert told.of_set == of_set

    # ----------------------------------------------------------------------------------------------- the steps

    def grow(self, of_set: str, number: int, _which: int) -> None:
        """More VMs of a set."""
        before, room, operation = self.homes(of_set), self.open(), PlaceVMs(self.request(of_set, number))
        answer, key = self.do(operation)
        if answer.ok:
            self.check_owed(of_set, before, room)
            self.check_told(key, answer, of_set, before)
        else:
            assert answer.status == "declined", answer
            self.check_declined(operation)

    def shrink(self, _of_set: str, _number: int, which: int) -> None:
        """A VM goes."""
        if names := sorted(self.vms()):
            assert self.do(ReleaseVMs(TENANT, (names[which % len(names)],)))[0].ok

    def lose(self, _of_set: str, _number: int, which: int) -> None:
        """A machine fails, its VMs are healed, and it is repaired."""
        machine = self.zone.machine_names[which % len(self.zone.machine_names)]
        self.do(SetMachine(machine, state="down"))
        lost = [name for name, row in sorted(self.vms().items()) if row.machine == machine]
        for of_set in SETS:
            own = tuple(name for name in lost if self.vms()[name].spec.set == of_set)
            if not own:
                continue
            before, room = self.homes(of_set, own), self.open()
            answer, key = self.do(HealVMs(TENANT, own))
            if answer.ok:
                self.check_owed(of_set, before, room)
                self.check_told(key, answer, of_set, before)
        self.do(SetMachine(machine, state="ready"))

    def move(self, _of_set: str, _number: int, which: int) -> None:
        """An operator moves a VM; terms that are hard are kept to."""
        if not (names := sorted(self.vms())):
            return
        name, target = names[which % len(names)], self.zone.machine_names[which % len(self.zone.machine_names)]
        of_set = self.vms()[name].spec.set
        before, room, stays = self.homes(of_set, (name,)), self.open(), self.vms()[name].machine == target
        answer, _ = self.do(MoveVM(TENANT, name, target))
        wanted = self.sets[of_set]
        if answer.ok and not stays and not wanted.best_effort:
            self.check_owed(of_set, before, room)
        if wanted.best_effort and target in room:
            assert answer.ok, answer.detail
        if not answer.ok and target in room:
            assert f"for set {of_set} (" in answer.detail

    def fill(self, _of_set: str, number: int, which: int) -> None:
        """Others come."""
        self.do(PlaceVMs(Request(f"other {which} {next(self._keys)}", [VM(KIND)] * number)))


@given(racks=racks_of_machines, db=availability_sets, web=availability_sets, happens=steps)
@settings(max_examples=examples(120))
def test_whatever_happens_a_set_has_what_it_is_owed(
    racks: tuple[int, ...],
    db: AvailabilitySet,
    web: AvailabilitySet,
    happens: list[tuple[str, str, int, int]],
) -> None:
    site = Site(racks, {"db": db, "web": web})
    try:
        for step, of_set, number, which in happens:
            getattr(site, step)(of_set, number, which)
        check_invariants(site.store)
    finally:
        site.agent.close()
