"""Who gives way to what an agent has decided ahead of the feed, while others do something to the same VMs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from roost.agent.agent import Agent
from roost.agent.agreement import check_against
from roost.agent.operation import Operation
from roost.agent.settings import AgentSettings
from roost.agent.ticket import Ticket
from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.move import MoveVM
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.model.request import VM, Request
from roost.rules.policy import Policy
from roost.store.audit import check_invariants
from roost.wiring import open_store
from tests.property.cramped import NAMES, ZONE
from tests.property.interleaved import HeldCourier

POLICY = Policy.parse(
    "{name: plain, machines: {validators: [is_ready, has_room], preferences: [nobody_gives_way]}, tenants: []}"
)
SETTINGS = AgentSettings(pipeline=3, top=1)


class Two:
    """An agent whose every step is told, and somebody else who is always up to date."""

    def __init__(self) -> None:
        self.store = open_store("memory:", create=ZONE)
        self.courier, self.others = HeldCourier(self.store), HeldCourier(self.store)
        self.agent = Agent(self.store, self.courier, POLICY, "slow", settings=SETTINGS, now=lambda: 1.0)
        self.other = Agent(self.store, self.others, POLICY, "quick", settings=SETTINGS, now=lambda: 1.0)

    def meanwhile(self, *operations: Operation) -> None:
        """Somebody else does something, to the end."""
        for operation in operations:
            ticket = self.other.submit(operation)
            self.settle(self.other, self.others)
            assert ticket.answer is not None
            assert ticket.answer.status == "done", ticket.answer

    def decide(self, operation: Operation) -> Ticket:
        """The agent decides something, and sends it off."""
        ticket, sent = self.agent.submit(operation), len(self.courier.out)
        self.agent.step()
        assert len(self.courier.out) == sent + 1
        return ticket

    def hear(self) -> None:
        """The agent hears what is new."""
        self.courier.look()
        self.agent.step()

    @staticmethod
    def settle(agent: Agent, courier: HeldCourier) -> None:
        """Everything comes to its end."""
        for _ in range(10):
            courier.commit()
            courier.look()
            agent.step()

    def end(self, *tickets: Ticket) -> None:
        """All is answered, and agents and store agree."""
        self.settle(self.agent, self.courier)
        self.settle(self.other, self.others)
        assert [ticket.answer and ticket.answer.status for ticket in tickets] == ["done"] * len(tickets)
        assert self.agent.idle
        for agent in (self.agent, self.other):
            assert not agent.replica.leaving
            check_against(agent.replica, self.store.load())
        check_invariants(self.store)

    def evicted(self) -> list[str]:
        """Who had to give way, in order."""
        entries = [entry for _, entry in self.store.changes(0).after(0) if entry.eviction]
        return [vm.vm for entry in entries for vm in entry.released]


def place(tenant: str, band: str, *vms: tuple[str, str]) -> Operation:
    """VMs by type and name."""
    return PlaceVMs(Request(tenant, [VM(kind, name, band) for kind, name in vms]))


def machine_of(two: Two, vm: str) -> str:
    """Where a VM runs."""
    row = two.store.vm(vm)
    assert row is not None
    return row.machine


def full(machines: Sequence[str] = NAMES) -> list[tuple[str, str]]:
    """A VM as large as a machine, for each of some machines, which is called like it."""
    return [("eight", f"on {machine}") for machine in machines]


@pytest.fixture
def two() -> Two:
    """Two agents on three machines, each full of one VM of the lowest band, as both know."""
    made = Two()
    made.meanwhile(place("low", "iron", *full()))
    made.hear()
    return made


def victim_of(ticket: Ticket) -> str:
    """The VM that is to give way to something."""
    assert ticket.decision is not None
    (victim,) = ticket.decision.victims
    return victim.name


def test_what_was_decided_is_committed_and_told(two: Two) -> None:
    first = two.decide(place("high", "gold", ("eight", "x")))
    two.end(first)
    assert two.evicted() == [victim_of(first)]


def test_two_rounds_under_way_do_not_want_the_same_victim(two: Two) -> None:
    first = two.decide(place("high", "gold", ("eight", "x")))
    second = two.decide(place("higher", "gold", ("eight", "y")))
    assert victim_of(first) != victim_of(second)
    two.end(first, second)
    assert two.evicted() == [victim_of(first), victim_of(second)]


@pytest.mark.parametrize("heard", [False, True], ids=["unheard", "heard"])
def test_if_a_victim_is_gone_nobody_else_has_to_go_for_it(two: Two, heard: bool) -> None:
    first = two.decide(place("high", "gold", ("eight", "x")))
    two.meanwhile(ReleaseVMs("low", (victim_of(first),)))
    if heard:
        two.hear()
    two.end(first)
    assert two.evicted() == []


@pytest.mark.parametrize("heard", [False, True], ids=["unheard", "heard"])
def test_a_victim_that_somebody_else_has_evicted_is_not_evicted_again(two: Two, heard: bool) -> None:
    first = two.decide(place("high", "gold", ("eight", "x"), ("eight", "y")))
    two.meanwhile(place("higher", "gold", ("eight", "z")))
    if heard:
        two.hear()
    two.end(first)
    assert sorted(two.evicted()) == ["on m0", "on m1", "on m2"]


@pytest.mark.parametrize("heard", [False, True], ids=["unheard", "heard"])
def test_what_is_held_for_a_victim_meanwhile_goes_with_it(two: Two, heard: bool) -> None:
    two.meanwhile(ReleaseVMs("low"), place("mid", "silver", *full(NAMES[:2])), place("low", "iron", ("one", "a")))
    two.hear()
    first = two.decide(place("high", "gold", *(("eight", name) for name in "xyz")))
    two.meanwhile(ReleaseVMs("mid", ("on m0",)), MoveVM("low", "a", machine_of(two, "on m0"), "hold"))
    if heard:
        two.hear()
    two.end(first)
    assert sorted(two.evicted()) == ["a", "a~hold", "on m1"]


def test_nobody_is_told_to_free_what_is_leaving_already() -> None:
    two = Two()
    two.meanwhile(place("old", "gold", *full(NAMES[1:])), place("low", "silver", ("five", "a")))
    two.hear()
    first = two.decide(place("high", "gold", ("five", "x")))
    assert victim_of(first) == "a"
    second = two.decide(place("mid", "silver", ("eight", "y")))
    assert second.decision is not None
    (remedy,) = second.decision.explanation.remedies
    assert remedy.vms == ("x",)
    two.end(first)


def test_a_name_that_has_to_leave_twice_is_that_of_two_vms(two: Two) -> None:
    """A victim goes by itself, and another VM that gets its name has to leave as well, before the first is refused."""
    two.meanwhile(ReleaseVMs("low", ("on m0",)), place("old", "gold", ("eight", "old")))
    two.hear()
    first = two.decide(place("high", "gold", ("eight", "x")))
    name = victim_of(first)
    (other,) = {"on m1", "on m2"} - {name}
    machine = machine_of(two, name)
    two.meanwhile(SetMachine(machine, "draining"), ReleaseVMs("low"), place("low", "iron", ("eight", name)))
    assert machine_of(two, name) != machine, f"it is where {other} was"
    two.hear()
    second = two.decide(place("higher", "gold", ("eight", "y")))
    assert victim_of(second) == name
    two.end(second)
    assert first.answer is not None
    assert first.answer.status == "declined"
    assert two.evicted() == [name]


def test_a_vm_whose_name_another_had_for_a_while_gives_way_like_any_other() -> None:
    """The agent places a VM of low priority; meanwhile another of that name runs on the same machine, and is gone."""
    two = Two()
    two.meanwhile(place("old", "gold", *full(NAMES[1:])))
    two.hear()
    first = two.decide(place("mine", "iron", ("one", "x")))
    two.meanwhile(place("theirs", "iron", ("one", "x")))
    two.hear()
    two.meanwhile(ReleaseVMs("theirs", ("x",)))
    two.hear()
    two.settle(two.agent, two.courier)
    second = two.decide(place("high", "gold", ("eight", "y")))
    two.end(first, second)
    assert two.evicted() == ["x"]
