"""Duties: each has its turn, one that fails harms nobody, and a new one is a line of the table."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from roost.agent.agent import Agent
from roost.agent.courier import InlineCourier
from roost.agent.verbs.machine import SetMachine
from roost.api.json_lines import serve
from roost.api.service import Service
from roost.duties.duty import Duty, Pausing, Roster, SimpleDuty
from roost.duties.fading import Fading
from roost.duties.table import DUTIES, Runner, make_roster
from roost.duties.trimming import Trimming
from roost.model.change import Entry
from roost.model.errors import StoreUnavailable
from roost.rules.policy import Policy
from roost.settings import RetentionSection, Settings, StoreSection
from roost.sim.experiment import Experiment, Latency
from roost.sim.runs import stage
from roost.sim.simulation import Simulation
from roost.wiring import open_store
from tests.property.zones import TINY, ClusterPlan, build
from tests.scenario.simulated import ask, machines, simulation


class Toy(SimpleDuty):
    """Counts its steps; fails in some of them."""

    name, period = "toy", 0.0

    def __init__(self, period: float = 0.0, failing: bool = False) -> None:
        self.period, self.failing = period, failing
        self.times: list[float] = []
        self.stepped = threading.Event()

    def step(self, now: float) -> None:
        """Note that it was called."""
        self.times.append(now)
        self.stepped.set()
        if self.failing:
            raise RuntimeError("the toy is broken")


class Other(Toy):
    """Another one."""

    name = "other"


def test_a_duty_has_its_turn_once_in_each_period() -> None:
    often, seldom = Toy(), Other(period=10.0)
    roster = Roster([often, seldom])
    for now in range(0, 25, 5):
        roster.step(float(now))
    assert often.times == [0.0, 5.0, 10.0, 15.0, 20.0]
    assert seldom.times == [10.0, 20.0]  # a process that begins has other things to do than what can wait
    assert roster.health["other"].runs == 2
    assert roster.health["other"].last_run == 20.0


def test_a_duty_that_fails_is_told_of_and_harms_neither_others_nor_its_next_step() -> None:
    broken, well = Toy(failing=True), Other()
    roster = Roster([broken, well])
    roster.step(1.0)
    assert well.times == [1.0]
    assert roster.failing == {"toy": "RuntimeError: the toy is broken"}
    broken.failing = False
    roster.step(2.0)
    assert broken.times == [1.0, 2.0]
    assert roster.failing == {}
    assert roster.health["toy"].failures == 1


def test_two_duties_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="the same name"):
        Roster([Toy(), Toy()])


class Patient(SimpleDuty):
    """Has something done elsewhere, twice; the second time that goes wrong."""

    name, period = "patient", 0.0

    def __init__(self) -> None:
        self.found: list[object] = []

    def step(self, now: float) -> Pausing:
        """Note what came of it."""
        self.found.append((yield lambda: now + 1.0))
        try:
            yield lambda: [][1]
        except IndexError as error:
            self.found.append(str(error))
        yield self.broken

    def broken(self) -> None:
        """Nobody expects that."""
        raise StoreUnavailable("the store is away")


class Later(Executor):
    """Does what it was asked for when told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[Callable[[], object], Future[Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.asked.append((partial(fn, *args, **kwargs), Future()))
        return self.asked[-1][1]

    def do_one(self) -> None:
        """What was asked for first."""
        work, done = self.asked.pop(0)
        done.set_running_or_notify_cancel()
        try:
            done.set_result(work())
        except Exception as error:
            done.set_exception(error)


def test_a_step_that_pauses_goes_on_with_what_came_of_it_and_holds_nobody_up() -> None:
    patient, other, later = Patient(), Other(), Later()
    roster = Roster([patient, other], later)
    roster.step(1.0)
    roster.step(2.0)
    assert (patient.found, other.times) == ([], [1.0, 2.0])
    assert len(later.asked) == 1  # one step at a time
    later.do_one()
    roster.step(3.0)
    assert patient.found == [2.0]
    later.do_one()
    roster.step(4.0)
    assert patient.found == [2.0, "list index out of range"]
    later.do_one()
    assert roster.health["patient"].runs == 0
    roster.step(5.0)
    assert roster.health["patient"].runs == 1
    assert roster.health["patient"].last_run == 1.0
    assert "StoreUnavailable" in roster.failing["patient"]
    roster.step(6.0)
    assert len(later.asked) == 1  # its next step


def test_without_an_executor_a_step_that_pauses_is_over_at_once() -> None:
    patient = Patient()
    roster = Roster([patient])
    roster.step(1.0)
    assert patient.found == [2.0, "list index out of range"]
    assert roster.health["patient"].runs == 1


def test_trimming_goes_by_what_the_settings_say_at_the_time() -> None:
    agent = small_agent()
    for _ in range(3):
        agent.run(agent.submit(SetMachine(agent.allocator.zone.machine_names[0], state="draining")))
        agent.run(agent.submit(SetMachine(agent.allocator.zone.machine_names[0], state="ready")))
    duty = Trimming(agent.store, RetentionSection(revisions=0, every_seconds=0.0))
    roster = Roster([duty])
    roster.step(0.0)
    roster.step(600.0)
    assert agent.store.head()[1] == 0
    duty.retention = RetentionSection(revisions=2, every_seconds=10.0)
    roster.step(1_200.0)
    last, trimmed = agent.store.head()
    assert last - trimmed == 2
    assert duty.period == 10.0


def small_agent() -> Agent:
    """An agent on a small zone in memory."""
    store = open_store("memory:", create=build(TINY, (ClusterPlan(0, 0, (2, 2)),)))
    return Agent(store, InlineCourier(store), Policy.named("fast"), "one")


def test_a_runner_has_the_duties_that_it_can_have() -> None:
    settings, agent = Settings(), small_agent()
    runner = Runner(agent, settings, clock=lambda: 0.0, time_of_day=lambda: 0.0)
    assert set(make_roster(runner).health) == {"requeue", "healing", "fading", "foresight", "trimming"}
    assert "foresight" not in make_roster(replace(runner, place=1)).health  # one of a host is enough
    listening = replace(settings, healing=replace(settings.healing, heartbeat_seconds=30.0))
    assert "heartbeats" in make_roster(replace(runner, settings=listening, listens=True)).health
    assert "heartbeats" not in make_roster(replace(runner, settings=listening)).health
    silent = replace(settings, agent=replace(settings.agent, requeue_seconds=0.0))
    assert "requeue" not in make_roster(replace(runner, settings=silent)).health
    assert make_roster(runner).find(Fading) is not None


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Toy:
    """A duty that was added by one line of the table."""
    made = Toy(failing=True)

    def make(_: Runner) -> Duty:
        return made

    monkeypatch.setattr("roost.duties.table.DUTIES", [*DUTIES, make])
    return made


def test_a_new_line_of_the_table_runs_in_a_worker(toy: Toy) -> None:
    written: list[bytes] = []

    def lines() -> Iterator[bytes]:
        yield b'{"key": "k", "do": "release", "tenant": "nobody"}\n'
        assert toy.stepped.wait(30.0)  # duties are seen to for as long as there may be more

    serve(small_agent(), lines(), written.append)
    assert toy.times
    assert msgspec.json.decode(written[0])["status"] == "invalid"


def test_a_new_line_of_the_table_runs_in_the_simulator_on_its_clock(toy: Toy) -> None:
    experiment = msgspec.convert(
        {
            "name": "toy",
            "zone": "synthetic:100",
            "workload": {"days": 0.1, "requests_per_day": 1_000},
            "policies": ["fast"],
            "seeds": [1],
        },
        Experiment,
    )
    toy.period, toy.failing = 1_000.0, False
    Simulation(experiment, "fast", 1, *stage(experiment, 1)).run()
    assert toy.times == [1_000.0 * (k + 1) for k in range(8)]


class Counting(Toy):
    """Wants to know of every VM that comes, and has two more steps to do then."""

    name = "counting"

    def __init__(self) -> None:
        super().__init__()
        self.left = 0

    @property
    def at_rest(self) -> bool:
        """Whether these are done."""
        return not self.left

    def concerns(self, entry: Entry) -> bool:
        """Whether one came."""
        if entry.placed:
            self.left = 3
        return bool(entry.placed)

    def step(self, now: float) -> None:
        """Do one of them."""
        super().step(now)
        self.left = max(0, self.left - 1)


def test_a_new_duty_that_says_what_concerns_it_is_stirred_and_waited_for_in_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Counting()
    monkeypatch.setattr("roost.duties.table.DUTIES", [*DUTIES, lambda _: made])
    simulation([ask(5, "small", stay=8)], machines(2), until=20, latency=Latency(feed_ms=20)).run()
    assert made.times == pytest.approx([0.0, 5.02, 6.02, 7.02])


def test_nobody_is_at_rest_while_a_step_is_under_way() -> None:
    later = Later()
    roster = Roster([Toy(), Patient()], later)
    assert roster.at_rest
    roster.step(1.0)
    assert not roster.at_rest


def test_a_new_line_of_the_table_runs_in_the_service_and_is_in_its_metrics(toy: Toy, tmp_path: Path) -> None:
    async def live() -> str:
        settings = replace(Settings(), store=StoreSection(url=str(tmp_path / "zone.db")))
        settings = replace(settings, agent=replace(settings.agent, policy="fast"))
        service = Service(settings)
        await service.start()
        while not toy.times:
            await asyncio.sleep(0.01)
        service.metrics.measure(service)
        found = service.metrics.text().decode()
        await service.stop(0.0)
        return found

    found = asyncio.run(live())
    lines = [line for line in io.StringIO(found) if 'duty="toy"' in line and "failures" in line]
    assert any(float(line.rsplit(" ", 1)[1]) >= 1 for line in lines), lines
