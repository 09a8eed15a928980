"""Machines that fall silent are down, those heard again are what they were, and nothing is done on a suspicion."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

import pytest

from roost.agent.agent import Agent
from roost.agent.courier import InlineCourier
from roost.agent.operation import Operation
from roost.agent.verbs.entry import SetEntry
from roost.agent.verbs.machine import SetMachine
from roost.duties.duty import Roster
from roost.duties.heartbeats import DEAF, LOOKS, MANY, NOTE, Heartbeats
from roost.model.errors import StoreUnavailable
from roost.model.registry import SILENT
from roost.model.rows import MachineState
from roost.rules.policy import Policy
from roost.store.contract import Note, Outcome, Proposal, Register, SetCondition
from roost.wiring import open_store
from tests.property.zones import TINY, ClusterPlan, build

FAST = Policy.named("fast")
PATIENCE = 30.0
PROPOSALS = {SetEntry: Register, SetMachine: SetCondition}  # what operations ask of a store


class Station:
    """Somebody who listens, and a clock that goes when it is told to."""

    def __init__(self, *racks: int) -> None:
        self.zone = build(TINY, (ClusterPlan(0, 0, racks),))
        self.store, self.now = open_store("memory:", create=self.zone), 1_000.0
        self.agent = Agent(self.store, InlineCourier(self.store), FAST, "listener", now=lambda: self.now)
        self.begin()

    def begin(self) -> None:
        """A process begins, and remembers nothing."""
        self.heartbeats = Heartbeats(self.agent, PATIENCE)
        self.roster = Roster([self.heartbeats])

    def passes(self, seconds: float, *alive: str) -> None:
        """Time passes, while some machines say again and again that they are alive."""
        until = self.now + seconds
        while self.now < until:
            self.now += 1.0
            self.heartbeats.hear(alive)
            self.settle()

    def settle(self) -> None:
        self.roster.step(self.now)
        while not self.agent.idle:
            self.agent.step(0.01)
        self.agent.step()

    def set(self, machine: str, state: str) -> None:
        (answer,) = self.agent.run(self.agent.submit(SetMachine(machine, state=state)))  # type: ignore[arg-type]
        assert answer.ok

    def loses(self, monkeypatch: pytest.MonkeyPatch, operation: type[Operation]) -> None:
        """The store is away whenever a commit has one of these."""
        commit, wanted = self.store.commit, PROPOSALS[operation]

        def away(proposals: Sequence[Proposal], *rest: object, **more: object) -> list[Outcome]:
            if any(isinstance(each, wanted) for each in proposals):
                raise StoreUnavailable("away")
            return commit(proposals, *rest, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(self.store, "commit", away)

    def state(self, machine: str) -> MachineState:
        row = self.store.machine(machine)
        assert row is not None
        return MachineState(row.state)


@pytest.fixture
def station() -> Iterator[Station]:
    made = Station(3, 3)
    yield made
    made.agent.close()


@pytest.fixture
def hall() -> Iterator[Station]:
    """So many machines that most of them do not fail at once."""
    made = Station(MANY // 2, MANY // 2)
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


def test_if_most_of_many_fall_silent_at_once_the_listener_is_to_blame(hall: Station) -> None:
    names = hall.zone.machine_names
    half = len(names) // 2
    hall.passes(5, *names)
    hall.passes(3 * PATIENCE, *names[: half - 1])
    assert all(hall.state(name) == MachineState.READY for name in names)
    assert hall.heartbeats.doubted == half + 1
    hall.passes(PATIENCE / 2, *names)
    assert hall.heartbeats.doubted == 0
    hall.passes(2 * PATIENCE, *names[:half])
    assert [hall.state(name) for name in names[half:]] == [MachineState.DOWN] * half, "half of them may"
    assert hall.heartbeats.doubted == 0


@pytest.mark.parametrize(("alive", "listened"), [(0, 1), (1, 3)])
def test_of_a_few_machines_most_or_all_may_fail(station: Station, alive: int, listened: int) -> None:
    names = station.zone.machine_names[:listened]
    station.passes(5, *names)
    station.passes(2 * PATIENCE, *names[:alive])
    assert [station.state(name) for name in names[alive:]] == [MachineState.DOWN] * (listened - alive)


def test_nobody_is_silent_while_nobody_listens(station: Station) -> None:
    names = station.zone.machine_names
    station.passes(5, *names)
    station.now += 5 * PATIENCE  # the store was away, or the process stood still
    station.settle()
    station.passes(PATIENCE / 2)
    assert all(station.state(name) == MachineState.READY for name in names)
    station.passes(PATIENCE)
    assert all(station.state(name) == MachineState.DOWN for name in names)


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


@pytest.mark.parametrize("state", [MachineState.DRAINING, MachineState.QUARANTINED])
def test_a_machine_that_is_heard_again_is_what_it_was(station: Station, state: MachineState) -> None:
    first, *rest = station.zone.machine_names
    station.set(first, state.name.lower())
    station.passes(5, first, *rest)
    station.passes(2 * PATIENCE, *rest)
    assert station.state(first) == MachineState.DOWN
    station.begin()  # whoever listens next knows, too
    station.passes(3, first, *rest)
    assert station.state(first) == state
    assert station.heartbeats.silent == set()


def test_entries_of_earlier_versions_mean_that_it_was_ready(station: Station) -> None:
    first = station.zone.machine_names[0]
    station.set(first, "down")
    station.agent.run(station.agent.submit(SetEntry(SILENT, first, "30.0")))
    station.passes(3, first)
    assert station.state(first) == MachineState.READY


def test_what_somebody_says_of_a_silent_machine_holds(station: Station) -> None:
    first, *rest = station.zone.machine_names
    station.passes(5, first, *rest)
    station.passes(2 * PATIENCE, *rest)
    station.set(first, "ready")
    station.passes(2 * PATIENCE, *rest)
    assert station.state(first) == MachineState.READY


@pytest.mark.parametrize("operation", [SetEntry, SetMachine])
def test_a_silent_machine_is_down_once_the_store_is_back(
    station: Station, monkeypatch: pytest.MonkeyPatch, operation: type[Operation]
) -> None:
    first, *rest = station.zone.machine_names
    station.passes(5, first, *rest)
    with monkeypatch.context() as away:
        station.loses(away, operation)
        station.passes(2 * PATIENCE, *rest)
        assert station.state(first) == MachineState.READY
    station.passes(PATIENCE / 2, *rest)
    assert station.state(first) == MachineState.DOWN
    station.passes(3, first, *rest)
    assert station.state(first) == MachineState.READY


@pytest.mark.parametrize("operation", [SetEntry, SetMachine])
def test_a_machine_that_is_heard_again_is_back_once_the_store_is(
    station: Station, monkeypatch: pytest.MonkeyPatch, operation: type[Operation]
) -> None:
    first, *rest = station.zone.machine_names
    station.passes(5, first, *rest)
    station.passes(2 * PATIENCE, *rest)
    with monkeypatch.context() as away:
        station.loses(away, operation)
        station.passes(PATIENCE / 2, first, *rest)
        assert station.heartbeats.silent == {first}
    station.passes(PATIENCE / 2, first, *rest)
    assert station.state(first) == MachineState.READY
    assert station.heartbeats.silent == set()


def test_a_machine_that_is_heard_while_it_is_being_put_down_is_not_left_down(station: Station) -> None:
    first, *rest = station.zone.machine_names
    station.passes(5, first, *rest)
    while not station.heartbeats.silent:
        station.passes(1, *rest)
    station.now += 1
    station.roster.step(station.now)  # asks for it to be down
    station.heartbeats.hear([first])
    station.settle()
    assert station.state(first) == MachineState.DOWN
    station.passes(3, first, *rest)
    assert station.state(first) == MachineState.READY
    assert station.heartbeats.silent == set()


def test_names_that_the_zone_does_not_have_are_told(station: Station) -> None:
    assert station.heartbeats.hear(["nobody", station.zone.machine_names[0]]) == ["nobody"]


# ------------------------------------------------------------------------------------------------- several listeners


class Notes:
    """What listeners told one another through their store, on a clock that goes when it is told to."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.told: dict[str, tuple[float, bytes]] = {}
        self.away: set[str] = set()  # listeners that cannot reach the others

    def exchange(self, kind: str, name: str, value: bytes, keep: float) -> dict[str, Note]:
        assert (kind, keep >= PATIENCE) == (NOTE, True)
        if name in self.away:
            raise StoreUnavailable("away")
        now = self._clock()
        self.told[name] = now, value
        return {other: Note(now - at, told) for other, (at, told) in self.told.items() if other != name}


class Stations:
    """Several who listen, each with an agent of its own, on one store."""

    def __init__(self, count: int = 2) -> None:
        self.zone = build(TINY, (ClusterPlan(0, 0, (13, 12)),))
        self.store, self.now = open_store("memory:", create=self.zone), 1_000.0
        self.notes = Notes(lambda: self.now)
        self.store.exchange = self.notes.exchange  # type: ignore[method-assign]
        self.listeners: dict[str, Heartbeats] = {}
        self.rosters: dict[str, Roster] = {}
        self.executors: list[Slow] = []
        self.agents: dict[str, Agent] = {}
        for i in range(count):
            self.begin(f"listener-{i}")

    def begin(self, who: str) -> None:
        agent = Agent(self.store, InlineCourier(self.store), FAST, who, now=lambda: self.now)
        self.listeners[who], self.agents[who] = Heartbeats(agent, PATIENCE), agent
        self.rosters[who] = Roster([self.listeners[who]])

    def end(self, who: str) -> None:
        del self.listeners[who], self.rosters[who]
        self.agents.pop(who).close()

    def passes(self, seconds: float, alive: Mapping[str, Sequence[str]], every: float = 1.0) -> None:
        """Time passes, while some machines say to some listeners again and again that they are alive."""
        until, beat = self.now + seconds, self.now
        while self.now < until:
            self.now += 1.0
            if self.now >= beat:
                beat = self.now + every
                for who, machines in alive.items():
                    self.listeners[who].hear(machines)
            self.step()

    def step(self) -> None:
        for executor in self.executors:
            executor.work()
        for who, roster in self.rosters.items():
            roster.step(self.now)
            agent = self.agents[who]
            while not agent.idle:
                agent.step(0.01)
            agent.step()

    @property
    def down(self) -> set[str]:
        rows = self.store.load().machines
        return {name for name, row in rows.items() if row.state == MachineState.DOWN}


@pytest.fixture
def stations() -> Iterator[Stations]:
    made = Stations()
    yield made
    for who in list(made.listeners):
        made.end(who)


def alternate(stations: Stations, seconds: float, silent: Collection[str] = ()) -> None:
    """Each machine beats every 20 s, by turns here and there: each listener hears of it every 40 s."""
    names = [name for name in stations.zone.machine_names if name not in silent]
    for turn in range(int(seconds / 20)):
        here, there = ("listener-0", "listener-1") if turn % 2 else ("listener-1", "listener-0")
        stations.passes(20, {here: names[::2], there: names[1::2]}, every=20)


def test_machines_whose_heartbeats_are_spread_over_several_listeners_are_not_silent(stations: Stations) -> None:
    alternate(stations, 10 * PATIENCE)
    assert stations.down == set()
    assert all(listener.doubted == 0 for listener in stations.listeners.values())


def test_a_machine_that_none_of_several_listeners_hears_of_is_down_in_time_and_back_when_one_does(
    stations: Stations,
) -> None:
    first = stations.zone.machine_names[0]
    alternate(stations, 120)
    alternate(stations, 60, {first})
    assert stations.down == {first}, f"after {PATIENCE} s, up to 20 s since its last, and a look or two"
    stations.passes(3, {"listener-1": [first]})
    assert stations.down == set()
    alternate(stations, 120)
    assert stations.down == set()


def test_a_listener_that_cannot_reach_the_others_says_of_nobody_that_it_is_down(stations: Stations) -> None:
    names = stations.zone.machine_names
    stations.passes(10, {"listener-0": names[:5], "listener-1": names})
    stations.notes.away = {"listener-0", "listener-1"}
    stations.passes(5 * PATIENCE, {"listener-1": names[5:]})
    assert stations.down == set()
    failures = stations.rosters["listener-0"].health["heartbeats"].failures
    assert 4 * LOOKS <= failures <= 6 * LOOKS, "which people can see"


def test_what_a_listener_that_ended_had_heard_of_may_be_silent_for_as_long_again(stations: Stations) -> None:
    names = stations.zone.machine_names
    stations.passes(60, {"listener-0": names[:3], "listener-1": names[3:]})
    stations.end("listener-0")
    stations.passes(1.5 * PATIENCE, {"listener-1": names[3:]})
    assert stations.down == set(), "they may come to the other one yet"
    stations.passes(5, {"listener-1": names[1:]})
    stations.passes(1.5 * PATIENCE, {"listener-1": names[1:]})
    assert stations.down == {names[0]}


def test_a_listener_that_just_began_believes_none_of_old_notes(stations: Stations) -> None:
    names = stations.zone.machine_names
    stations.passes(10, {"listener-0": names, "listener-1": names})
    stations.end("listener-0")
    stations.end("listener-1")
    stations.now += 0.9 * PATIENCE
    stations.begin("listener-2")
    stations.passes(0.9 * PATIENCE, {})
    assert stations.down == set()


def test_a_machine_that_is_heard_of_elsewhere_while_it_is_being_put_down_is_not_left_down(stations: Stations) -> None:
    first, *rest = stations.zone.machine_names
    one, other = stations.listeners.values()
    mine, theirs = stations.agents.values()
    stations.passes(10, {"listener-0": [first, *rest]})
    while not one.silent:
        stations.passes(1, {"listener-0": rest})
        theirs.step()
    # Written down, but not down yet; the other one hears of it, and strikes what is written.
    theirs.run(theirs.submit(SetEntry(SILENT, first, None)))
    stations.passes(2, {"listener-0": rest})
    assert stations.down == {first}
    stations.passes(4, {"listener-0": rest, "listener-1": [first]})
    assert stations.down == set()
    assert one.silent == other.silent == set()
    mine.step()


def test_while_another_listener_cannot_be_understood_nobody_is_said_to_be_down(stations: Stations) -> None:
    names = stations.zone.machine_names
    stations.passes(10, {"listener-0": names})
    for _ in range(20):
        stations.notes.told["of another version"] = stations.now, b"?"
        stations.passes(PATIENCE / 10, {"listener-0": names[1:]})
    assert stations.down == set()
    stations.passes(1.5 * PATIENCE, {"listener-0": names[1:]})
    assert stations.down == {names[0]}, "once that one has ended"


class Slow(Executor):
    """Does what it was asked for so many seconds later, of a clock that goes when it is told to."""

    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        self._clock, self.seconds = clock, seconds
        self._asked: list[tuple[float, Callable[[], object], Future[Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._asked.append((self._clock() + self.seconds, partial(fn, *args, **kwargs), Future()))
        return self._asked[-1][2]

    def work(self) -> None:
        """What is due."""
        for due, work, done in self._asked[:]:
            if due <= self._clock():
                self._asked.remove((due, work, done))
                done.set_result(work())


def slow(stations: Stations, seconds: float) -> None:
    """From now on, the store takes so long to answer whoever tells."""
    for who in stations.rosters:
        executor = Slow(lambda: stations.now, seconds)
        stations.rosters[who] = Roster([stations.listeners[who]], executor)
        stations.executors.append(executor)


def test_what_others_heard_counts_though_the_store_takes_its_time(stations: Stations) -> None:
    slow(stations, PATIENCE / 5)
    first = stations.zone.machine_names[0]
    alternate(stations, 10 * PATIENCE)
    assert stations.down == set()
    alternate(stations, 80, {first})
    assert stations.down == {first}


def test_while_the_store_takes_too_long_to_tell_of_others_nobody_is_said_to_be_down(stations: Stations) -> None:
    names = stations.zone.machine_names
    slow(stations, 1.5 * DEAF * PATIENCE)
    stations.passes(10, {"listener-0": names})
    stations.passes(5 * PATIENCE, {"listener-0": names[1:]})
    assert stations.down == set()


def test_an_answer_that_was_waiting_while_nobody_listened_says_of_nobody_that_it_is_down(stations: Stations) -> None:
    names = stations.zone.machine_names
    slow(stations, 0.0)
    stations.passes(60, {"listener-0": names[:13], "listener-1": names[13:]})
    stations.now += 5 * PATIENCE  # the process stood still, whatever it was at
    stations.passes(0.9 * PATIENCE, {})
    assert stations.down == set()
