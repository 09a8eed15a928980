"""What a run measures: on cases worked out by hand, and on random ones against a replay that is slow and obvious."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.sim.experiment import Agents, Latency
from roost.sim.measures import MEASURES, RATES, REQUESTS, TIMELINE, measure_of
from roost.sim.result import RunResult
from roost.traces.workload import WorkloadType
from tests.oracle.replay import Replay
from tests.property.effort import examples
from tests.property.zones import TINY
from tests.scenario.simulated import KINDS, Ask, Watched, ask, column, fails, machines, rows, run, simulation, workload

LOWEST = TINY.bands[-1]
FAULTS = {
    "machine_failures", "vms_displaced", "vms_healed", "vms_returned", "vms_unhealed", "healing_mean", "healing_p99",
    "vms_requeued",
}  # fmt: skip
CACHING = {"cache_hits", "cache_misses", "updated", "cache_hit_ratio", "updates_per_decision"}

# ------------------------------------------------------------------------------------------------------------- by hand


def a_short_run() -> RunResult:
    """Two old machines (4 cores and 8 GiB each), by the second from 0 to 4.

    0: a big (3 cores, 6 GiB) that stays. 1: a big again: on the other machine. 2: a small that stays a second, next to
    one of them. 3: a wide (2 cores, 1 GiB), for which neither has room, though the small has just left. 4: nothing.
    """
    asks = [ask(0, "big"), ask(1, "big"), ask(2, "small", stay=1), ask(3, "wide")]
    return run(asks, machines(2), until=4)


SHORT_TIMELINE = {
    "time_s": [0, 1, 2, 3, 4],
    "warm": [1, 1, 1, 1, 1],
    "utilisation": [3 / 8, 6 / 8, 7 / 8, 6 / 8, 6 / 8],
    "density": [3 / 4, 6 / 8, 7 / 8, 6 / 8, 6 / 8],
    "empty_machines": [1, 0, 0, 0, 0],
    "machines_down": [0, 0, 0, 0, 0],
    "vms": [1, 2, 3, 2, 2],
    "vms_lower": [0, 0, 0, 0, 0],
    "vms_lost": [0, 0, 0, 0, 0],
    "vms_waiting": [0, 0, 0, 0, 0],
    "utilisation_highest": [3 / 8, 6 / 8, 7 / 8, 6 / 8, 6 / 8],
    "density_highest": [3 / 4, 6 / 8, 7 / 8, 6 / 8, 6 / 8],
    "evictions": [0, 0, 0, 0, 0],
    "requests": [1, 1, 1, 1, 0],
    "placed": [1, 1, 1, 0, 0],
    "declined": [0, 0, 0, 1, 0],
    "gave_up": [0, 0, 0, 0, 0],
    "vms_asked": [1, 1, 1, 1, 0],
    "vms_placed": [1, 1, 1, 0, 0],
    "queued": [0, 0, 0, 0, 0],
    "conflicts": [0, 0, 0, 0, 0],
    "retries": [0, 0, 0, 0, 0],
    # The second big finds the evaluation of the first; every other one is the first of its kind.
    "cache_hits": [0, 1, 0, 0, 0],
    "cache_misses": [1, 0, 1, 1, 0],
    "used_cores": [3 / 8, 6 / 8, 7 / 8, 6 / 8, 6 / 8],
    "used_memory": [6 / 16, 12 / 16, 13 / 16, 12 / 16, 12 / 16],
    # One machine until 1, then both.
    "density_cores": [3 / 4, 6 / 8, 7 / 8, 6 / 8, 6 / 8],
    "density_memory": [6 / 8, 12 / 16, 13 / 16, 12 / 16, 12 / 16],
    # A small fits wherever a core and a GiB are free: only the machine with the small is too full, with 1 GiB left.
    "stranded_cores": [0, 0, 0, 0, 0],
    "stranded_memory": [0, 0, 1 / 16, 0, 0],
}


def test_every_column_of_the_timeline_is_as_worked_out() -> None:
    result = a_short_run()
    for name, values in SHORT_TIMELINE.items():
        assert column(result, name) == values, name
    # Machines looked at: both by each first evaluation; by the second big the one that got the first.
    assert column(result, "updated") == [2, 1, 2, 2, 0]
    assert {*SHORT_TIMELINE, "updated"} == set(result.timeline.columns) >= set(TIMELINE)


def test_every_measure_is_as_worked_out() -> None:
    expected: dict[str, float | None] = {
        "density": (3 / 4 + 6 / 8 + 7 / 8 + 6 / 8 + 6 / 8) / 5,
        "utilisation": (3 / 8 + 6 / 8 + 7 / 8 + 6 / 8 + 6 / 8) / 5,
        "utilisation_highest": (3 / 8 + 6 / 8 + 7 / 8 + 6 / 8 + 6 / 8) / 5,
        "density_highest": (3 / 4 + 6 / 8 + 7 / 8 + 6 / 8 + 6 / 8) / 5,
        "evictions": 0,
        "evictions_per_vm_hour": None,  # nobody of lower priority ran
        "peak_utilisation": 7 / 8,
        "empty_machines": 1 / 5,
        "fewest_empty_machines": 0,
        "vms": 10 / 5,
        "requests": 4,
        "acceptance": 3 / 4,
        "fulfilment": 3 / 4,
        "declined": 1,
        "gave_up": 0,
        "invalid": 0,
        "vms_placed": 3,
        "throughput": 3 / 4,  # in 4 s
        "peak_throughput": 3 / 60,
        "conflicts": 0,
        "conflict_ratio": 0 / 3,
        "conflicts_per_minute_p99": 0,
        "retries_per_minute_p99": 0,
        "queueing_mean": 0,
        "queueing_p99": 0,
        "latency_mean": 0,
        "latency_p50": 0,
        "latency_p99": 0,
        "cache_hit_ratio": 1 / 4,
        "updates_per_decision": 7 / 4,
        "machine_failures": 0,
        "vms_displaced": 0,
        "vms_healed": 0,
        "vms_returned": 0,
        "vms_unhealed": 0,
        "healing_mean": None,  # nothing was healed
        "healing_p99": None,
        "vms_requeued": 0,
        "stranded_cores": 0,
        "stranded_memory": (1 / 16) / 5,
    }
    summary = a_short_run().summary
    assert summary == pytest.approx(expected)
    assert {measure.name for measure in MEASURES} <= set(summary)
    assert [measure_of(name).name for name in summary] == list(summary)


def test_requests_and_rates_have_their_columns() -> None:
    result = a_short_run()
    assert result.requests.columns == list(REQUESTS)
    assert rows(result)[3] == {
        "request": 3,
        "time_s": 3.0,
        "vms": 1,
        "status": "declined",
        "agent": 0,
        "queued_s": 0.0,
        "latency_s": 0.0,
        "retries": 0,
    }
    assert [row["status"] for row in rows(result)] == ["placed", "placed", "placed", "declined"]
    assert {name: column(result, name, "rates") for name in RATES} == {
        "time_s": [0],
        "warm": [1],
        "arrivals": [4],
        "placed": [3],
        "vms_placed": [3],
        "conflicts": [0],
        "retries": [0],
    }


def test_what_is_too_little_for_every_type_that_is_asked_for_is_stranded() -> None:
    # Three wides and a tall: 2 cores and 1 GiB each, and 1 and 3. An old machine with two wides has no core left, and
    # 6 GiB of no use, of 16 in all. The other, with a wide and a tall, has 1 core and 4 GiB: room for a tall.
    asks = [ask(0, "wide", "wide", tenant="a"), ask(1, "wide", "tall", tenant="b")]
    result = run(asks, machines(2), until=1)
    assert column(result, "stranded_memory") == [6 / 16, 6 / 16]
    assert column(result, "stranded_cores") == [0, 0]
    # One more tall leaves 0 cores and 1 GiB there as well.
    result = run([*asks, ask(2, "tall")], machines(2), until=2)
    assert column(result, "stranded_memory") == [6 / 16, 6 / 16, 7 / 16]


def test_cores_are_stranded_on_machines_that_are_out_of_memory() -> None:
    # A new machine has 6 cores and 6 GiB; two talls take 2 and 6: 4 cores are of no use. An empty machine strands none.
    result = run([ask(0, "tall", "tall")], machines(0, 2), until=1)
    assert column(result, "stranded_cores") == [4 / 12, 4 / 12]
    assert column(result, "stranded_memory") == [0, 0]


def test_what_precedes_the_warm_up_counts_in_no_measure() -> None:
    asks = [ask(0, "whole"), ask(1, "whole"), ask(60, "small"), ask(100, "small", "small"), ask(119, "small")]
    result = run(asks, machines(2), until=120, warm_up=60, sample=30)
    # Both machines are full from 1 on: whatever comes later is declined.
    assert column(result, "warm") == [0, 0, 1, 1, 1]
    assert column(result, "warm", "rates") == [0, 1]
    assert column(result, "arrivals", "rates") == [2, 3]
    wanted = {"requests": 3, "acceptance": 0, "fulfilment": 0, "declined": 3, "vms_placed": 0, "throughput": 0}
    assert {name: result.summary[name] for name in wanted} == wanted


def test_decisions_of_before_the_warm_up_count_in_no_measure_of_caches() -> None:
    # The sample at 60 tells what happened since 30: a first small, which is a miss. After it there are hits only.
    asks = [ask(at, "small") for at in (40, 70, 100)]
    result = run(asks, machines(2), until=120, warm_up=60, sample=30)
    assert column(result, "warm") == [0, 0, 1, 1, 1]
    assert column(result, "cache_misses") == [0, 0, 1, 0, 0]
    assert column(result, "cache_hits") == [0, 0, 0, 1, 1]
    assert result.summary["cache_hit_ratio"] == 1


def test_requests_that_make_no_sense_are_neither_placed_nor_declined() -> None:
    asks = workload([ask(0, "small"), ask(1, "whole")])
    strange = replace(asks, types=[*asks.types[:-1], WorkloadType("no-such", {})])
    summary = run(strange, machines(2), until=2).summary
    assert [summary[name] for name in ("requests", "acceptance", "declined", "gave_up", "invalid")] == [2, 0.5, 0, 0, 1]


def test_who_gives_way_counts_and_the_highest_priority_is_measured_for_itself() -> None:
    # Two old machines (4 cores each). 0: a spot big (3 cores). 1: a whole, which finds the other machine. 2: a whole
    # again, for which the spot VM has to go; so at 3 nobody of lower priority is left.
    asks = [ask(0, "big", priority=LOWEST), ask(1, "whole"), ask(2, "whole")]
    result = run(asks, machines(2), until=3)
    assert column(result, "vms") == [1, 2, 2, 2]
    assert column(result, "vms_lower") == [1, 1, 0, 0]
    assert column(result, "evictions") == [0, 0, 1, 0]
    assert column(result, "utilisation") == [3 / 8, 7 / 8, 1, 1]
    assert column(result, "utilisation_highest") == [0, 4 / 8, 1, 1]
    assert column(result, "density_highest") == [0, 1, 1, 1]
    assert result.summary["evictions"] == 1
    # By the four samples half a VM of lower priority ran on average, for 3 s.
    assert result.summary["evictions_per_vm_hour"] == pytest.approx(1 / (0.5 * 3 / 3_600))


def test_faults_before_the_warm_up_count_in_no_measure() -> None:
    asks = [ask(0, "small"), ask(20, "small")]
    made = fails(simulation(asks, machines(2), until=30, warm_up=10), (5, 0, 2), (5, 1, 2), (25, 0, 2), (25, 1, 2))
    result = made.run()
    assert result.summary["machine_failures"] == 2
    # Both VMs were on one machine when it failed again; what the first lost before counts nowhere.
    assert [result.summary[name] for name in ("vms_displaced", "vms_returned", "vms_unhealed")] == [2, 2, 0]


def test_throughput_is_by_the_second_and_its_peak_by_the_bin() -> None:
    # 2 VMs in the first 10 s, 6 in the second, 1 in the fourth, of which there are 5 s: 9 in 35 s.
    asks = [ask(1, "small", "small"), ask(10, *["small"] * 4), ask(19, "small", "small"), ask(30, "small")]
    result = run(asks, machines(4), until=35, bin=10)
    assert column(result, "vms_placed", "rates") == [2, 6, 0, 1]
    assert result.summary["throughput"] == 9 / 35
    assert result.summary["peak_throughput"] == 6 / 10


def test_an_arrival_at_the_very_end_is_in_a_bin_of_its_own_whatever_comes_of_it() -> None:
    result = run([ask(0, "whole"), ask(60, "small")], machines(1))
    assert column(result, "arrivals", "rates") == [1, 1]
    assert result.summary["throughput"] == 1 / 60


def test_percentiles_are_of_whole_minutes_and_by_nearest_rank() -> None:
    # Two agents and a commit of 10 ms: requests that arrive together for the last place of a machine conflict once.
    # Of 4 minutes, one has a conflict and a retry. The 99th percentile of 4 is the highest.
    asks = [ask(0, "wide", "small"), ask(70, "small"), ask(70, "small"), ask(239, "small")]
    what: dict[str, Any] = {"latency": Latency(commit_ms=10, feed_ms=500), "agents": Agents(count=2, top=1)}
    result = run(asks, machines(2), until=240, bin=30, **what)
    assert column(result, "conflicts", "rates") == column(result, "retries", "rates") == [0, 0, 1, 0, 0, 0, 0, 0]
    assert result.summary["conflicts_per_minute_p99"] == result.summary["retries_per_minute_p99"] == 1
    assert result.summary["conflict_ratio"] == 1 / 5
    # 10 ms each, but for the one that lost: it began its last try after 10 ms, and was answered after 20.
    assert result.summary["latency_p50"] == pytest.approx(0.010, abs=1.01e-6)
    assert result.summary["latency_p99"] == pytest.approx(0.020, abs=1.01e-6)
    assert result.summary["latency_mean"] == pytest.approx(0.050 / 4, abs=1.01e-6)
    assert result.summary["queueing_mean"] == pytest.approx(0.010 / 4, abs=1.01e-6)
    assert result.summary["queueing_p99"] == pytest.approx(0.010, abs=1.01e-6)


def test_a_run_in_which_nothing_happens_measures_nothing_rather_than_zero() -> None:
    result = run([ask(5, "small")], machines(1), until=2)
    nothing = [name for name, value in result.summary.items() if value is None]
    assert set(nothing) == {
        "acceptance", "fulfilment", "conflict_ratio", "queueing_mean", "queueing_p99", "latency_mean", "latency_p50",
        "latency_p99", "cache_hit_ratio", "updates_per_decision", "evictions_per_vm_hour", "healing_mean",
        "healing_p99",
    }  # fmt: skip
    assert result.summary["density"] == 0


# ---------------------------------------------------------------------------------------------------------- by replay

moments = st.integers(0, 40).map(lambda n: n * 0.5)
lifetimes = st.sampled_from([0.0, 0.5, 1.0, 3.0, 7.5, 20.0, float("inf")])


@st.composite
def asked(draw: st.DrawFn) -> list[Ask]:
    """Requests of a few tenants, often at one moment."""
    times = sorted(draw(st.lists(moments, min_size=2, max_size=14)))
    vms = st.lists(st.tuples(st.sampled_from(KINDS), lifetimes), min_size=1, max_size=3)
    tenants, bands = st.sampled_from(["", "", "a", "b"]), st.sampled_from(["", "", LOWEST])
    return [Ask(at, draw(vms), draw(tenants), priority=draw(bands)) for at in times]


@settings(max_examples=examples(50))
@given(
    asks=asked(),
    zone=st.sampled_from([(2, 0), (0, 2), (2, 1), (1, 2)]),
    agents=st.integers(1, 3),
    group=st.sampled_from([1, 1, 4]),
    latency=st.sampled_from([(0, 0, 0, 0), (100, 300, 0, 0), (100, 300, 50, 700), (0, 0, 250, 1_500)]),
    fill=st.sampled_from([0.0, 0.3]),
    warm_up=st.sampled_from([0.0, 10.0, 13.0]),
    bin_=st.sampled_from([5, 10, 60]),
    seed=st.integers(0, 3),
)
def test_a_replay_of_what_happened_measures_the_same(
    asks: list[Ask],
    zone: tuple[int, int],
    agents: int,
    group: int,
    latency: tuple[int, int, int, int],
    fill: float,
    warm_up: float,
    bin_: int,
    seed: int,
) -> None:
    hit, miss, commit, feed = latency
    until = asks[-1].at + 60.0
    if all(stay in (0.0, float("inf")) for each in asks for _, stay in each.vms):
        fill = 0.0  # nobody is found running who stays no time
    what: dict[str, Any] = {
        "until": until, "sample": 2.5, "bin": bin_, "warm_up": warm_up, "fill": fill,
        "agents": Agents(count=agents, group=group),
        "latency": Latency(hit_ms=hit, miss_ms=miss, commit_ms=commit, feed_ms=feed),
    }  # fmt: skip
    made = simulation(asks, machines(*zone), seed=seed, **what)
    watched = Watched.of(made)
    result = watched.tables
    half = made.experiment.latencies.commit_s / 2
    plain = Replay(watched, made.zone, [each.at for each in asks], **(what | {"half": half, "filled": fill > 0}))
    # Where somebody could give way, agents look twice at times, or wait, and no record tells of the first look.
    unseen = CACHING if any(each.priority for each in asks) else set()
    for found, row in zip(result.timeline.iter_rows(named=True), plain.timeline(), strict=True):
        expected = {name: value for name, value in row.items() if name not in unseen}
        assert {name: found[name] for name in expected} == pytest.approx(expected), found["time_s"]
    assert result.rates.to_dicts() == plain.rates()
    log = rows(result)
    answered = sorted(
        (round(row["time_s"] + row["latency_s"], 6), row["vms"], row["status"], row["retries"]) for row in log
    )
    wanted = sorted((round(each.at, 6), each.vms, each.status, each.retries) for each in plain.asked)
    assert [each[1:] for each in answered] == [each[1:] for each in wanted]
    assert [each[0] for each in answered] == pytest.approx([each[0] for each in wanted])
    summary = {name: value for name, value in plain.summary(log).items() if name not in unseen}
    assert {name: result.summary[name] for name in summary} == pytest.approx(summary)
    assert set(result.summary) - set(summary) - unseen == FAULTS
