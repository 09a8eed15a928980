"""Duties: each has its turn, one that fails harms nobody, and a new one is a line of the table."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from roost.agent.agent import Agent
from roost.agent.courier import InlineCourier
from roost.api.json_lines import serve
from roost.api.service import Service
from roost.duties.duty import Duty, Roster
from roost.duties.fading import Fading
from roost.duties.table import DUTIES, Runner, make_roster
from roost.rules.policy import Policy
from roost.settings import Settings, Store
from roost.wiring import open_store
from tests.property.zones import TINY, ClusterPlan, build


class Toy:
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
    assert seldom.times == [0.0, 10.0, 20.0]
    assert roster.health["other"].runs == 3
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


def small_agent() -> Agent:
    """An agent on a small zone in memory."""
    store = open_store("memory:", create=build(TINY, (ClusterPlan(0, 0, (2, 2)),)))
    return Agent(store, InlineCourier(store), Policy.named("fast"), "one")


def test_a_runner_has_the_duties_that_it_can_have() -> None:
    settings, agent = Settings(), small_agent()
    runner = Runner(agent, settings, clock=lambda: 0.0, time_of_day=lambda: 0.0)
    assert set(make_roster(runner).health) == {"requeue", "healing", "fading"}
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


def test_a_new_line_of_the_table_runs_in_the_service_and_is_in_its_metrics(toy: Toy, tmp_path: Path) -> None:
    async def live() -> str:
        settings = replace(Settings(), store=Store(url=str(tmp_path / "zone.db")))
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
