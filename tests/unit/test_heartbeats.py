"""Machines that fall silent are down, those that are heard again are ready, and nothing is done on a suspicion."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from roost.agent.agent import Agent
from roost.agent.courier import InlineCourier
from roost.agent.heartbeats import SILENT, Heartbeats
from roost.agent.operation import SetMachine
from roost.model.rows import MachineState
from roost.rules.policy import Policy
from roost.wiring import open_store
from tests.property.zones import TINY, ClusterPlan, build

FAST = Policy.named("fast")
PATIENCE = 30.0


class Station:
    """Somebody who listens, and a clock that goes when it is told to."""

    def __init__(self) -> None:
        self.zone = build(TINY, (ClusterPlan(0, 0, (3, 3)),))
        self.store, self.now = open_store("memory:", create=self.zone), 1_000.0
        self.agent = Agent(self.store, InlineCourier(self.store), FAST, "listener", now=lambda: self.now)
        self.begin()

    def begin(self) -> None:
        """A process begins, and remembers nothing."""
        self.heartbeats = Heartbeats(self.agent, lambda: self.now, PATIENCE)

    def passes(self, seconds: float, *alive: str) -> None:
        """Time passes, while some machines say again and again that they are alive."""
        until = self.now + seconds
        while self.now < until:
            self.now += 1.0
            self.heartbeats.hear(alive)
            self.settle()

    def settle(self) -> None:
        self.heartbeats.step()
        while not self.agent.idle:
            self.agent.step(0.01)
        self.agent.step()

    def set(self, machine: str, state: str) -> None:
        (answer,) = self.agent.run(self.agent.submit(SetMachine(machine, state=state)))  # type: ignore[arg-type]
        assert answer.ok

    def state(self, machine: str) -> MachineState:
        row = self.store.machine(machine)
        assert row is not None
        return MachineState(row.state)


@pytest.fixture
def station() -> Iterator[Station]:
    made = Station()
    yield made
    made.agent.close()


def test_a_machine_that_falls_silent_is_down_and_is_ready_when_it_is_heard_again(station: Station) -> None:
    first, *rest = station.zone.machine_names
    station.passes(5, first, *rest)
    station.passes(PATIENCE - 2, *rest)
    assert station.state(first) == MachineState.READY, "not yet"
    station.passes(PATIENCE / 2, *rest)
    assert station.state(first) == MachineState.DOWN
    assert station.heartbeats.silent == {first}
    assert all(station.state(name) == MachineState.READY for name in rest)
    station.passes(2, first, *rest)
    assert station.state(first) == MachineState.READY
    assert station.heartbeats.silent == set()


def test_machines_that_never_said_anything_are_not_waited_for(station: Station) -> None:
    station.passes(5 * PATIENCE, *station.zone.machine_names[:2])
    assert all(station.state(name) == MachineState.READY for name in station.zone.machine_names)


def test_if_most_fall_silent_at_once_the_listener_is_to_blame(station: Station) -> None:
    names = station.zone.machine_names
    station.passes(5, *names)
    station.passes(3 * PATIENCE, *names[:2])
    assert all(station.state(name) == MachineState.READY for name in names)
    station.passes(5, *names)
    station.passes(2 * PATIENCE, *names[:3])
    assert [station.state(name) for name in names[3:]] == [MachineState.DOWN] * 3, "half of them may"


def test_another_process_knows_who_fell_silent(station: Station) -> None:
    first, *rest = station.zone.machine_names
    station.passes(5, first, *rest)
    station.passes(2 * PATIENCE, *rest)
    station.begin()
    assert station.heartbeats.silent == {first}
    station.passes(PATIENCE * 2, *rest)
    assert station.state(first) == MachineState.DOWN
    station.passes(1, first, *rest)
    assert station.state(first) == MachineState.READY


def test_a_machine_that_somebody_took_out_of_use_stays_so(station: Station) -> None:
    names = station.zone.machine_names
    station.set(names[0], "down")
    station.set(names[1], "quarantined")
    station.passes(5, *names)
    assert station.state(names[0]) == MachineState.DOWN, "it did not fall silent"
    station.passes(2 * PATIENCE, *names[2:])
    assert station.state(names[1]) == MachineState.DOWN
    station.set(names[1], "quarantined")  # while it is silent
    station.passes(2, *names)
    assert station.state(names[1]) == MachineState.QUARANTINED
    assert (SILENT, names[1]) not in station.agent.replica.registry


def test_names_that_the_zone_does_not_have_are_told(station: Station) -> None:
    assert station.heartbeats.hear(["nobody", station.zone.machine_names[0]]) == ["nobody"]
