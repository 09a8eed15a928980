"""What `roost bench scale` tells is measured as it says: who computed how long, at which stage, for how many VMs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

from roost.bench import stages
from roost.bench.accounting import cpu_of, cpu_of_postgres
from roost.bench.load import LoadReport
from roost.bench.postgres import ThrowawayPostgres
from roost.bench.scale import TABLES, CaseFigures, FleetReading, ScalePlan, Window, bench_scale, tables
from roost.bench.scale_worker import AgentCounts, WorkerReading

PLAN = ScalePlan(machines=5_000, full=0.1, workers=(2,), rate=100.0, seconds=0.5, repeats=1)
OPEN, SATURATION = PLAN.loads
# Two threads: one computes three times as long as the other, each in a function with a timer. The first one waits, too,
# calls what has a timer of its own, and is called by something that is awaited.
BUSY = """
import asyncio, json, threading, time
from roost.bench import stages

def busy(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass

inner = stages.timed(lambda: busy(0.15), stages.SETTLE)

def decide():
    busy(0.3)
    time.sleep(0.3)
    inner()
    busy(0.15)

decide = stages.timed(decide, stages.DECIDE)

async def answer():
    busy(0.05)
    await asyncio.sleep(0.2)
    decide()
    try:
        await asyncio.wait_for(asyncio.sleep(10), 0.01)
    except TimeoutError:
        busy(0.1)
    return "answered"

before = stages.taken()
other = threading.Thread(target=lambda: busy(0.25), name="roost-courier")
other.start()
assert asyncio.run(stages.timed(answer, stages.ANSWER)()) == "answered"
after = stages.taken()
print(json.dumps({stage: after[stage] - before[stage] for stage in stages.ALL}))
"""


@pytest.fixture(scope="module")
def result() -> Mapping[str, Any]:
    """A short one, of two workers."""
    return bench_scale(PLAN)


def row(result: Mapping[str, Any], table: str, load: str) -> Mapping[str, float]:
    """The row of a load."""
    (found,) = [each for each in result[table] if each["load"] == load]
    figures: Mapping[str, float] = found
    return figures


@pytest.mark.parametrize("table", TABLES)
def test_every_table_has_a_row_for_each_case(result: Mapping[str, Any], table: str) -> None:
    assert [(each["load"], each["workers"]) for each in result[table]] == [(OPEN, 2), (SATURATION, 2)]


def test_everything_that_is_asked_for_is_placed(result: Mapping[str, Any]) -> None:
    steady, most = (row(result, "placed", load) for load in (OPEN, SATURATION))
    assert steady["not_placed"] == most["not_placed"] == 0
    assert 0.5 * PLAN.rate < steady["vms_per_second"] < 1.6 * PLAN.rate
    assert most["vms_per_second"] > steady["vms_per_second"]
    # A round that is under way at an edge of the window counts there, and its requests do not: of some fifty rounds.
    assert most["requests_per_group"] > steady["requests_per_group"] > 0.8
    assert 0 < steady["p50_ms"] <= steady["p99_ms"]


@pytest.mark.parametrize("load", [OPEN, SATURATION])
def test_memory_is_that_of_both_workers_and_of_the_larger(result: Mapping[str, Any], load: str) -> None:
    found = row(result, "placed", load)
    assert 100 < found["largest_MB"] < found["all_MB"] <= 2 * found["largest_MB"] + 1


@pytest.mark.parametrize("load", [OPEN, SATURATION])
def test_stages_add_up_to_what_workers_computed(result: Mapping[str, Any], load: str) -> None:
    cpu, spent = row(result, "cpu", load), row(result, "stages", load)
    assert sum(spent[stage] for stage in stages.ALL) == pytest.approx(cpu["workers_s"], rel=0.05)
    assert cpu["both_s"] == pytest.approx(cpu["workers_s"] + cpu["database_s"], rel=0.02)
    assert min(cpu["workers_s"], cpu["database_s"]) > 0


def test_under_load_most_of_the_time_belongs_to_a_stage(result: Mapping[str, Any]) -> None:
    spent = row(result, "stages", SATURATION)
    assert spent[stages.OTHER] < 0.25 * sum(spent[stage] for stage in stages.ALL)
    assert min(spent[stage] for stage in (stages.PARSE, stages.DECIDE, stages.COMMIT, stages.FOLLOW)) > 0


def test_a_core_for_each_worker_is_arithmetic(result: Mapping[str, Any]) -> None:
    cpu, each = row(result, "cpu", SATURATION), row(result, "with_a_core_each", SATURATION)
    assert each["vms_per_second"] == pytest.approx(2_000 / cpu["workers_s"], rel=0.05)
    assert each["database_cores"] == pytest.approx(each["vms_per_second"] * cpu["database_s"] / 1e3, rel=0.05)


# ------------------------------------------------------------------------------------------------------------- figures


def test_what_a_vm_costs_is_compared_turn_by_turn_with_the_fewest_workers() -> None:
    def figures(seconds: float) -> CaseFigures:
        return {name: {"both_s": seconds} for name in TABLES}

    plan = ScalePlan(workers=(2, 4))
    slower = [1.0, 2.0, 4.0]  # a machine that is
    found = {
        (load, workers): [figures(seconds * cost) for seconds, cost in zip(slower, costs, strict=True)]
        for load in plan.loads
        for workers, costs in ((2, (1.0, 1.0, 1.0)), (4, (1.5, 1.2, 1.1)))
    }
    rows = tables(plan, found)["cpu"]
    assert [(each["load"], each["workers"]) for each in rows] == list(found)
    assert [each["both_s"] for each in rows] == [2.0, 2.4] * 2
    assert [each["times_the_fewest"] for each in rows] == [1.0, 1.2] * 2


def reading(at: float, *counted: tuple[int, int, int]) -> FleetReading:
    """Workers that have placed, attempted and lost so much, and computed a second for each second."""
    workers = [
        WorkerReading(
            counted=AgentCounts(placed_vms=placed, commits=commits, conflicts=conflicts, rounds=1, lag=0),
            cpu=at,
            resident=1,
        )
        for placed, commits, conflicts in counted
    ]
    return FleetReading(at=at, workers=workers, database_cpu=at / 2)


def test_a_window_counts_what_was_done_in_it_by_all_workers() -> None:
    report = LoadReport(
        requests=1, offered=1, seconds=1.0, statuses={}, mean_ms=1.0, p50_ms=1.0, p99_ms=1.0, worst_ms=1.0
    )
    before, after = reading(10.0, (100, 110, 10), (0, 0, 0)), reading(14.0, (1_100, 1_200, 100), (1_000, 1_030, 30))
    window = Window(before=before, after=after, lags=[0], report=report)
    assert (window.grown("placed_vms"), window.grown("conflicts"), window.seconds) == (2_000, 120, 4.0)
    assert (window.workers_cpu, window.database_cpu) == (4.0, 1.0)  # of two workers; for 1,000 VMs


# ------------------------------------------------------------------------------------------------------------ stages


def test_whatever_the_table_names_is_there() -> None:
    for place in stages.TIMED:
        _, _, function = stages.find(place)
        assert callable(function), place


def test_what_threads_compute_counts_for_the_stage_they_are_at() -> None:
    done = subprocess.run([sys.executable, "-c", BUSY], check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout)
    expected = {stages.DECIDE: 0.45, stages.SETTLE: 0.15, stages.ANSWER: 0.15}
    assert {stage: found[stage] for stage in expected} == pytest.approx(expected, abs=0.05)
    assert found[stages.COMMIT] + found[stages.OTHER] == pytest.approx(0.25, abs=0.08), (
        "of a thread that may have ended"
    )
    assert found[stages.LOOP] < 0.1


# -------------------------------------------------------------------------------------------------------- accounting


def test_what_another_process_computes_is_seen() -> None:
    busy = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert 0.3 <= cpu_of(process.pid) < 0.6
        process.communicate(b"\n")


def test_what_a_backend_computed_counts_after_it_has_ended(server: ThrowawayPostgres) -> None:
    data = server.folder / "data"
    before = cpu_of_postgres(data)
    with psycopg.connect(server.url) as connection:
        connection.execute("SELECT sum(sqrt(i)) FROM generate_series(1, 2000000) AS i")
        backend, meanwhile = Path(f"/proc/{connection.info.backend_pid}"), cpu_of_postgres(data)
    assert meanwhile > before + 0.05
    deadline = time.monotonic() + 30.0
    while backend.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not backend.exists()
    assert cpu_of_postgres(data) >= meanwhile - 0.05
