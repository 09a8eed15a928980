"""Runs in virtual time, worked out by hand: who waits how long, who leaves when, and what faults do."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from roost.agent.verbs.heal import HealVMs
from roost.agent.verbs.place import PlaceVMs
from roost.model.errors import InvalidInput, UnknownName
from roost.model.rows import MachineState
from roost.sim.experiment import Agents, Experiment, Faults, Latency, Maintenance, PlannedOutage, PolicyChange
from roost.sim.result import RunResult
from roost.sim.simulation import Simulation
from roost.store.audit import check_invariants
from roost.store.contract import SetCondition
from roost.traces.workload import WorkloadType
from tests.property.zones import TINY, ClusterPlan, build
from tests.scenario.simulated import NEVER, Ask, Watched, ask, column, fails, machines, rows, run, simulation, workload

SLOW_COMMIT = Latency(commit_ms=2_000)
A_MICROSECOND = 1.01e-6
MESH: dict[str, Any] = {"agents": Agents(count=2, top=1)}  # two agents that never avoid each other


def homes(watched: Watched) -> list[str]:
    """The machines of VMs, in the order in which they were placed."""
    return [
        placement.machine
        for seen in watched.answers
        if isinstance(seen.operation, PlaceVMs | HealVMs)
        for placement in seen.answer.placements
    ]


def home_of_the_first(made: Simulation) -> int:
    """The row of the machine that a run like this one puts its first VM on."""
    watched = Watched.of(made)
    return made.zone.machine_index[homes(watched)[0]]


def waits(result: RunResult) -> list[tuple[float, float]]:
    """How long requests were queued, and until they were answered."""
    return [(row["queued_s"], row["latency_s"]) for row in rows(result)]


def statuses(result: RunResult) -> list[str]:
    """What came of requests."""
    return [row["status"] for row in rows(result)]


# ----------------------------------------------------------------------------------------------------------- latencies


@pytest.mark.parametrize(
    ("pipeline", "expected"),
    [
        # A miss takes 80 ms to decide, then 6 ms to be committed: 86. The second arrives 50 ms after the first, waits
        # until that is answered, 36 ms, and is a hit: 36 + 10 + 6.
        (1, [(0.0, 0.086), (0.036, 0.052)]),
        # With two rounds under way it is decided while the first is being committed: it waits 30 ms. An agent does one
        # thing at a time: the first is answered once the second is decided, at 90.
        (2, [(0.0, 0.090), (0.030, 0.046)]),
    ],
)
def test_a_request_waits_for_the_one_before_it_and_takes_as_long_as_its_decision_and_commit(
    pipeline: int, expected: list[tuple[float, float]]
) -> None:
    latency = Latency(hit_ms=10, miss_ms=80, commit_ms=6, feed_ms=20)
    agents = Agents(pipeline=pipeline)
    result = run([ask(1, "small"), ask(1.05, "small")], machines(2), until=3, latency=latency, agents=agents)
    for found, wanted in zip(waits(result), expected, strict=True):
        assert found == pytest.approx(wanted, abs=A_MICROSECOND)


def test_requests_of_one_round_are_decided_one_after_another_and_answered_together() -> None:
    latency = Latency(hit_ms=10, miss_ms=80, commit_ms=6)
    result = run([ask(1, "small"), ask(1, "small")], machines(2), until=3, latency=latency, agents=Agents(group=8))
    assert waits(result) == [pytest.approx((0.0, 0.096), abs=A_MICROSECOND)] * 2  # 80 + 10 + 6


def test_hits_are_drawn_with_their_chance_when_it_is_given() -> None:
    latency = Latency(hit_ms=10, miss_ms=80, hit_ratio=0.9)
    made = simulation([ask(i, "small") for i in range(3)], machines(2), until=3, latency=latency)
    result = fails(made, shares=[0.95, 0.85, 0.9]).run()  # a miss, a hit, a miss
    assert [took for _, took in waits(result)] == pytest.approx([0.080, 0.010, 0.080], abs=A_MICROSECOND)


def test_a_request_that_is_declined_takes_its_decision_and_its_record() -> None:
    latency = Latency(hit_ms=10, miss_ms=80, commit_ms=6)
    asks = [ask(0, "whole"), ask(1, "whole"), ask(2, "whole")]
    result = run(asks, machines(1), until=3, latency=latency)
    assert statuses(result) == ["placed", "declined", "declined"]
    took = [took for _, took in waits(result)]
    assert took == pytest.approx([0.086, 0.016, 0.016], abs=A_MICROSECOND)  # it is evaluated anew only once


def test_an_answer_that_comes_after_news_is_not_forgotten() -> None:
    # The VM leaves at 1.0: committed at 1.1, answered at 1.2, and known from the feed at 1.35. The second request is
    # committed at 1.32 and answered at 1.42, when nothing else happens.
    latency = Latency(commit_ms=200, feed_ms=250)
    result = run([ask(0.8, "small", stay=0.0), ask(1.22, "small")], machines(2), until=9, latency=latency)
    assert waits(result)[1] == pytest.approx((0.0, 0.2), abs=A_MICROSECOND)


@pytest.mark.parametrize("at", [0.03, 0.07, 0.31, 0.59, 1.17, 2.29, 4.57, 9.13])
def test_news_are_there_when_they_are_said_to_be(at: float) -> None:
    """Whatever (at + feed) - feed is: it may be a little less than `at`."""
    latency = Latency(feed_ms=20)
    asks = [ask(0, "small", tenant="a"), ask(at, "small", stay=0, tenant="a"), ask(at, "small", stay=0, tenant="b")]
    result = run(asks, machines(2), until=20, latency=latency, **MESH)
    assert column(result, "vms")[-1] == 1


# ----------------------------------------------------------------------------------------------------------- conflicts


def last_place(**what: Any) -> Watched:
    """A machine with room for one VM, an empty one, and two agents that both prefer the former."""
    asks = [ask(0, "wide", "small"), ask(10, "small"), ask(10, "small")]
    return Watched.of(simulation(asks, machines(2), until=30, **(MESH | what)))


def test_two_agents_conflict_over_the_last_place_and_one_tries_again_elsewhere() -> None:
    watched = last_place(latency=Latency(commit_ms=10, feed_ms=500))
    # Both commit at 10.005; the loser knows at 10.010, and is answered 10 ms later.
    assert [row["retries"] for row in rows(watched.tables)] == [0, 0, 1]
    assert waits(watched.tables)[1] == pytest.approx((0.0, 0.010), abs=A_MICROSECOND)
    assert waits(watched.tables)[2] == pytest.approx((0.010, 0.020), abs=A_MICROSECOND)
    first, second, third, fourth = homes(watched)
    assert first == second == third != fourth
    assert watched.tables.summary["conflicts"] == 1
    assert watched.tables.summary["conflict_ratio"] == 1 / 4
    assert {row["agent"] for row in rows(watched.tables)[1:]} == {0, 1}
    check_invariants(watched.simulation.store)


def test_agents_that_know_of_each_other_at_once_do_not_conflict() -> None:
    watched = last_place()
    assert statuses(watched.tables) == ["placed"] * 3
    assert watched.tables.summary["conflicts"] == 0
    assert len(set(homes(watched)[2:])) == 2


def test_whoever_loses_and_may_not_try_again_gives_up() -> None:
    watched = last_place(latency=Latency(commit_ms=10, feed_ms=500), agents=Agents(count=2, top=1, retries=0))
    assert statuses(watched.tables) == ["placed", "placed", "gave_up"]
    assert watched.tables.summary["gave_up"] == 1
    assert column(watched.tables, "vms")[-1] == 3


# ---------------------------------------------------------------------------------------------- arrivals and departures


def test_a_request_that_fits_nowhere_is_declined_and_leaves_no_trace() -> None:
    result = run([ask(0, "whole"), ask(1, "small", "small")], machines(1), until=3)
    assert statuses(result) == ["placed", "declined"]
    assert column(result, "vms") == [1, 1, 1, 1]
    assert result.summary["acceptance"] == 1 / 2
    assert result.summary["fulfilment"] == 1 / 3


def test_a_vm_that_leaves_makes_room_for_whoever_arrives_then() -> None:
    asks = [ask(0, "whole", stay=5), ask(4, "whole"), ask(5, "whole")]
    assert statuses(run(asks, machines(1), until=6)) == ["placed", "declined", "placed"]


def test_vms_of_one_request_leave_each_at_its_own_time() -> None:
    asks = [Ask(1, [("small", 2), ("wide", 4), ("small", NEVER), ("small", 2)])]
    assert column(run(asks, machines(2), until=6), "vms") == [0, 4, 4, 2, 2, 1, 1]


def test_a_lifetime_begins_with_the_answer() -> None:
    # Committed at 2 and answered at 3, so it leaves at 5; that is committed a second later.
    result = run([ask(1, "small", stay=2)], machines(1), until=9, latency=SLOW_COMMIT)
    assert column(result, "vms") == [0, 0, 1, 1, 1, 1, 0, 0, 0, 0]


def test_a_vm_that_stays_no_time_is_gone_at_once() -> None:
    result = run([ask(1, "small", stay=0)], machines(1), until=3)
    assert column(result, "vms") == [0, 0, 0, 0]
    assert result.summary["vms_placed"] == 1


def test_an_agent_that_is_refused_for_what_it_has_not_heard_of_hears_of_it_at_once() -> None:
    # Each would call its first VM t/0, and news take a minute: whoever comes second knows nothing of the first.
    kinds = ("small", "wide", "wide", "wide")
    asks = [ask(0.5 * i, kind, stay=0.6, tenant="t") for i, kind in enumerate(kinds)]
    latency = Latency(feed_ms=60_000, commit_ms=400)
    watched = Watched.of(simulation(asks, machines(0, 2), until=300, latency=latency, **MESH))
    assert [seen.answer.status for seen in watched.answers] == ["done"] * 8
    assert max(seen.answer.retries for seen in watched.answers) == 1
    placed = [each.vm for seen in watched.answers for each in seen.answer.placements]
    assert placed == [f"t/{i}" for i in range(4)]
    assert column(watched.tables, "vms")[-1] == 0
    assert not watched.simulation.store.load().vms


def test_a_request_after_one_of_very_many_vms_is_answered_next() -> None:
    """An agent that was answered for so many VMs ends its step early; it has the next one at once."""
    asks = [ask(1, *["small"] * 300), ask(1, "small"), ask(50, "small")]
    assert waits(run(asks, machines(100), until=60)) == [(0.0, 0.0)] * 3


def test_large_requests_have_their_turn_soon_though_nothing_else_comes() -> None:
    """They leave time for small ones between them: until none came for 20 ms, or for 1.5 times as long as one took."""
    asks = [ask(1, *["small"] * 40), ask(1, *["small"] * 40), ask(1, "small"), ask(50, "small")]
    found = run(asks, machines(100), until=60, latency=Latency(commit_ms=6, feed_ms=20))
    assert [queued for queued, _ in waits(found)] == pytest.approx([0.0, 0.015, 0.006, 0.0], abs=A_MICROSECOND)


def test_time_goes_on_while_all_that_waits_in_two_lines_is_held_up_by_what_is_under_way() -> None:
    """The healing of a tenant's VM and another request of that tenant wait for a request of it."""
    slow: dict[str, Any] = {"latency": Latency(commit_ms=1_000), "agents": Agents(pipeline=4)}
    asks = [ask(at, "small", tenant="t") for at in (0, 5.7, 5.8)]
    home = home_of_the_first(simulation(asks[:1], machines(3), until=4, **slow))
    result = fails(simulation(asks, machines(3), until=20, **slow), (5.0, home, 60)).run()
    assert became_of_lost(result) == [1, 1, 0, 0]
    assert statuses(result) == ["placed"] * 4


# -------------------------------------------------------------------------------------------------------------- faults


def test_vms_of_a_machine_that_fails_run_elsewhere_from_then_on_and_still_leave_on_time() -> None:
    asks = [ask(0, "small", stay=8)]
    home = home_of_the_first(simulation(asks, machines(2), until=10))
    watched = Watched.of(fails(simulation(asks, machines(2), until=10), (5, home, 3)))
    result = watched.tables
    assert column(result, "vms") == [1] * 8 + [0] * 3
    assert column(result, "machines_down") == [0] * 5 + [1] * 3 + [0] * 3
    assert len(set(homes(watched))) == 2
    assert [(row["request"], row["time_s"], row["status"]) for row in rows(result)] == [
        (0, 0.0, "placed"),
        (-2, 5.0, "placed"),
    ]
    assert [result.summary[name] for name in ("machine_failures", "vms_displaced", "vms_healed")] == [1, 1, 1]
    assert result.summary["requests"] == 1


def became_of_lost(result: RunResult) -> list[float | None]:
    """VMs that were displaced, and those of them that were healed, got their machine back, or neither."""
    return [result.summary[f"vms_{what}"] for what in ("displaced", "healed", "returned", "unhealed")]


def test_a_vm_that_finds_no_other_machine_waits_until_its_own_is_back() -> None:
    result = fails(simulation([ask(0, "small")], machines(1), until=10), (5, 0, 3)).run()
    assert column(result, "vms") == [1] * 11
    assert column(result, "vms_lost") == [0] * 5 + [1] * 3 + [0] * 3
    assert became_of_lost(result) == [1, 0, 1, 0]
    assert result.summary["healing_mean"] is None


def test_a_vm_whose_time_is_over_while_it_waits_is_released_and_was_never_healed() -> None:
    result = fails(simulation([ask(0, "small", stay=7)], machines(1), until=10), (5, 0, 30)).run()
    assert column(result, "vms") == [1] * 7 + [0] * 4
    assert column(result, "vms_lost") == [0] * 5 + [1] * 2 + [0] * 4
    assert became_of_lost(result) == [1, 0, 0, 1]


def test_a_vm_that_waits_when_the_run_ends_was_never_healed() -> None:
    result = fails(simulation([ask(0, "small")], machines(1), until=10), (5, 0, 30)).run()
    assert became_of_lost(result) == [1, 0, 0, 1]


def test_a_vm_that_finds_no_other_machine_is_healed_under_its_name_once_there_is_room() -> None:
    asks = [ask(0, "whole"), ask(1, "whole", stay=8)]
    home = home_of_the_first(simulation(asks, machines(2), until=2))
    watched = Watched.of(fails(simulation(asks, machines(2), until=15), (5, home, 60)))
    result = watched.tables
    assert column(result, "vms_lost") == [0] * 5 + [1] * 4 + [0] * 7  # from 5 until the other VM leaves at 9
    assert became_of_lost(result) == [1, 1, 0, 0]
    assert result.summary["healing_mean"] == result.summary["healing_p99"] == 4.0
    healed = [
        seen.answer.placements[0] for seen in watched.answers if isinstance(seen.operation, HealVMs) and seen.answer.ok
    ]
    assert [(each.vm, each.machine != homes(watched)[0]) for each in healed] == [("t0/0", True)]
    assert [(row["request"], row["time_s"], row["status"]) for row in rows(result)][-1] == (-2, 9.0, "placed")


def test_a_vm_is_healed_in_time_however_often_others_come_and_go() -> None:
    """The feed takes longer than the time between two commits, so there is always one that has not been heard of."""
    late = Latency(feed_ms=20)
    asks = [ask(0, "whole"), ask(0.5, "whole", stay=6.5)]
    asks += [ask(1 + 0.01 * k, "small", stay=0.005) for k in range(1_000)]
    home = home_of_the_first(simulation(asks[:1], machines(3), until=1, latency=late))
    result = fails(simulation(asks, machines(3), until=11, latency=late), (5, home, 60)).run()
    assert became_of_lost(result) == [1, 1, 0, 0]
    assert result.summary["healing_mean"] == pytest.approx(2.0, abs=1.1)  # room at 7, and a pause between two tries


def test_what_stirs_duties_just_after_something_else_did_is_looked_at_as_soon_as_it_is_heard_of() -> None:
    """The agent with the duties tells of a machine; another one tells of a second, before the first is heard of."""
    asks, both = [ask(0, "whole")], {**MESH, "latency": Latency(feed_ms=20)}
    home = home_of_the_first(simulation(asks, machines(4), until=1, **both))
    made = simulation(asks, machines(4), until=10, **both)
    result = fails(made, (5.0, (home + 1) % 4, 60), (5.01, home, 60)).run()
    assert became_of_lost(result) == [1, 1, 0, 0]
    assert result.summary["healing_mean"] == pytest.approx(0.02, abs=A_MICROSECOND)


def test_a_rack_that_fails_is_one_event_for_its_vms() -> None:
    """None of them is healed onto a machine of the same rack, which is about to fail, too."""
    asks = [ask(0, "whole"), ask(0, "whole")]
    zone = build(TINY, (ClusterPlan(0, 0, (2, 2)),))
    rack = zone.rack_names[int(zone.machines["rack"][home_of_the_first(simulation(asks, zone, until=1))])]
    faults = Faults(outages=(PlannedOutage(at=5, lasts=3, rack=rack),))
    watched = Watched.of(simulation(asks, zone, until=10, faults=faults))
    hit = column(watched.tables, "machines_down")
    assert hit == [0] * 5 + [2] * 3 + [0] * 3
    healed = [
        each.machine
        for seen in watched.answers
        if isinstance(seen.operation, HealVMs)
        for each in seen.answer.placements
    ]
    assert healed
    assert not [
        each for each in healed if zone.rack_names[int(zone.machines["rack"][zone.machine_index[each]])] == rack
    ]
    assert became_of_lost(watched.tables) == [len(healed), len(healed), 0, 0]


def test_a_machine_in_two_outages_is_back_after_both() -> None:
    made = fails(simulation([ask(12, "small")], machines(1), until=12), (2, 0, 5), (4, 0, 6))
    assert column(made.run(), "machines_down") == [0] * 2 + [1] * 8 + [0] * 3


def test_racks_fail_at_random_as_often_as_is_said() -> None:
    zone = build(TINY, (ClusterPlan(0, 0, (3, 3)),))
    result = run([ask(0, "small")], zone, until=2_000, faults=Faults(rack_mtbf=100, repair=1))
    assert 20 * 3 < (result.summary["machine_failures"] or 0) < 60 * 3  # 2 racks, 2,000 s
    assert (result.summary["machine_failures"] or 0) % 3 == 0


@pytest.mark.parametrize(
    ("outage", "problem"),
    [
        ({"rack": "r9"}, "faults.outages.rack: .*r9"),
        ({"cluster": "c9"}, "faults.outages.cluster: .*c9"),
        ({"machine": "m9"}, "faults.outages.machine: .*m9"),
    ],
)
def test_an_outage_of_what_the_zone_does_not_have_is_refused(outage: dict[str, str], problem: str) -> None:
    with pytest.raises(UnknownName, match=problem):
        simulation(
            [ask(1, "small")], machines(1), until=3, faults=Faults(outages=(PlannedOutage(at=1, lasts=1, **outage),))
        )


def test_an_outage_of_nothing_or_of_two_things_is_refused() -> None:
    for what in ({}, {"rack": "r", "cluster": "c"}):
        with pytest.raises(InvalidInput, match=r"faults\.outages: needs a rack, a cluster or a machine"):
            PlannedOutage(at=1, lasts=1, **what)


def test_a_vm_that_gave_way_takes_no_later_one_of_its_name_along() -> None:
    low: dict[str, Any] = {"stay": 10, "tenant": "t", "priority": "low"}
    asks = [ask(0, "whole", **low), ask(2, "whole", stay=3), ask(7, "whole", **low)]
    watched = Watched.of(simulation(asks, machines(1), until=20))
    assert [each.vm for seen in watched.answers for each in seen.answer.placements] == ["t/0", "t1/0", "t/0"]
    # From 7 to 17, though the first of that name had until 10.
    assert column(watched.tables, "vms") == [1] * 5 + [0] * 2 + [1] * 10 + [0] * 4


def test_a_vm_that_gave_way_and_asks_for_it_is_placed_again_under_its_name_and_leaves_in_time() -> None:
    asks = [ask(0, "whole", stay=12, priority="low"), ask(2, "whole", stay=3)]
    watched = Watched.of(simulation(asks, machines(1), until=15, requeue=True))
    result = watched.tables
    assert column(result, "vms_lower") == [1] * 2 + [0] * 3 + [1] * 7 + [0] * 4
    assert column(result, "vms_waiting") == [0] * 2 + [1] * 3 + [0] * 11
    assert [result.summary[name] for name in ("evictions", "vms_requeued")] == [1, 1]
    assert [row["request"] for row in rows(result)] == [0, 1, -3]
    assert [each.vm for seen in watched.answers for each in seen.answer.placements] == ["t0/0", "t1/0", "t0/0"]


def test_a_vm_whose_time_is_over_while_it_waits_for_room_does_not_come_back() -> None:
    asks = [ask(0, "whole", stay=4, priority="low"), ask(2, "whole", stay=8)]
    watched = Watched.of(simulation(asks, machines(1), until=15, requeue=True))
    assert column(watched.tables, "vms_waiting") == [0] * 2 + [1] * 2 + [0] * 12
    assert column(watched.tables, "vms") == [1] * 10 + [0] * 6
    assert not watched.simulation.guests.by_name
    assert watched.tables.summary["vms_requeued"] == 0


@pytest.mark.parametrize(
    ("stay", "healed", "vms"),
    [
        # The machine fails at 5, the store knows at 6, and the VM is elsewhere at 8, which is known at 9.
        (4.0, 0, [0] + [1] * 7 + [0] * 13),  # its time is over at 6, before it is healed: off at 8
        (5.5, 1, [0] + [1] * 9 + [0] * 11),  # at 7.5, while it is being healed: off at 10, after that is known
        (8.0, 1, [0] + [1] * 10 + [0] * 10),  # at 10: off at 11
        (NEVER, 1, [0] + [1] * 20),
    ],
)
def test_a_vm_whose_time_is_over_while_its_machine_is_down_leaves_all_the_same(
    stay: float, healed: int, vms: list[int]
) -> None:
    asks = [ask(0, "small", stay=stay)]
    what: dict[str, Any] = {"until": 20, "latency": SLOW_COMMIT}
    home = home_of_the_first(simulation(asks, machines(2), **what))
    made = fails(simulation(asks, machines(2), **what), (5, home, 60))
    result = made.run()
    assert column(result, "vms") == vms
    assert result.summary["vms_healed"] == healed
    check_invariants(made.store)


def test_a_vm_on_its_way_to_a_machine_that_fails_ends_up_elsewhere() -> None:
    asks = [ask(4.5, "small")]  # decided at 4.5, committed at 5.5, while the machine fails at 5
    what: dict[str, Any] = {"until": 20, "latency": SLOW_COMMIT}
    home = home_of_the_first(simulation(asks, machines(2), **what))
    watched = Watched.of(fails(simulation(asks, machines(2), **what), (5, home, 60)))
    assert len(homes(watched)) == len(set(homes(watched))) == 2
    assert [watched.tables.summary[name] for name in ("vms_displaced", "vms_healed")] == [1, 1]
    assert column(watched.tables, "vms")[-1] == 1


def test_the_store_ends_up_with_the_last_state_of_a_machine_whoever_tells_of_it_first() -> None:
    # Agents take turns, and one of them decides for 800 ms, so that it tells late that the machine is down; the other
    # tells at once that it is repaired.
    asks = [ask(1, "small"), *(ask(1.01, "small") for _ in range(3)), ask(9, "small")]
    latency = Latency(hit_ms=10, miss_ms=800, hit_ratio=0.5)
    made = simulation(asks, machines(0, 1), until=10, latency=latency, agents=Agents(count=2))
    watched = Watched.of(fails(made, (1.015, 0, 0.2), shares=[0.9]))
    told = [p.condition["state"] for c in watched.commits for p in c.proposals if isinstance(p, SetCondition)]
    ready, down = int(MachineState.READY), int(MachineState.DOWN)
    assert told[:2] == [ready, down]
    assert told[-1] == ready
    assert statuses(watched.tables)[-1] == "placed"


MAINTAINED = Faults(maintenance=(Maintenance(at=2, lasts=6, cluster="c0"),))


def test_a_vm_that_has_to_give_way_is_gone_and_counted() -> None:
    asks = [ask(0, "whole", stay=50, priority="low"), ask(10, "whole", stay=5), ask(20, "small", priority="low")]
    result = run(asks, machines(old=1), until=60)
    assert statuses(result) == ["placed"] * 3
    assert result.summary["evictions"] == 1
    lower, highest = column(result, "vms_lower"), column(result, "utilisation_highest")
    assert [lower[at] for at in (5, 12, 21)] == [1, 0, 1]
    assert [highest[at] for at in (5, 12, 21)] == [0.0, 1.0, 0.0]
    assert result.summary["evictions_per_vm_hour"] == pytest.approx(3_600 / 50, rel=0.05)


def test_a_vm_that_has_to_give_way_before_anybody_heard_that_it_runs_is_gone_as_well() -> None:
    asks = [ask(0, "whole", priority="low"), ask(0.4, "whole")]
    slow = Latency(commit_ms=1_000, feed_ms=0)
    watched = Watched.of(simulation(asks, machines(old=1), latency=slow, agents=Agents(count=2), until=20))
    assert statuses(watched.tables) == ["placed"] * 2
    assert watched.tables.summary["evictions"] == 1
    assert [guest.tenant for guest in watched.simulation.guests.by_name.values()] == ["t1"]


def test_a_vm_may_have_to_give_way_while_it_is_being_taken_off() -> None:
    asks = [ask(0, "whole", stay=10, priority="low"), ask(10, "whole")]
    watched = Watched.of(simulation(asks, machines(old=1), latency=Latency(commit_ms=500), until=20))
    assert not [seen for seen in watched.answers if seen.answer.status == "declined"]
    assert [guest.tenant for guest in watched.simulation.guests.by_name.values()] == ["t1"]


def test_maintenance_takes_no_new_vms_keeps_those_it_has_and_ends() -> None:
    asks = [ask(0, "small"), ask(2, "small"), ask(7.9, "small"), ask(8, "small")]
    result = run(asks, machines(2), until=9, faults=MAINTAINED)
    assert statuses(result) == ["placed", "declined", "declined", "placed"]
    assert column(result, "vms") == [1] * 8 + [2] * 2
    assert column(result, "machines_down") == [0] * 10


def test_a_machine_that_is_repaired_during_its_maintenance_is_still_maintained() -> None:
    asks = [ask(3.5, "small"), ask(5, "small"), ask(9, "small")]
    result = fails(simulation(asks, machines(1), until=9, faults=MAINTAINED), (3, 0, 1)).run()
    assert statuses(result) == ["declined", "declined", "placed"]


def test_a_machine_that_is_down_when_its_maintenance_begins_is_maintained_once_it_is_repaired() -> None:
    asks = [ask(5, "small"), ask(9, "small")]
    result = fails(simulation(asks, machines(1), until=9, faults=MAINTAINED), (1, 0, 3)).run()
    assert statuses(result) == ["declined", "placed"]


def test_a_machine_that_fails_during_its_maintenance_is_not_ready_when_that_ends() -> None:
    asks = [ask(9, "small"), ask(14, "small")]
    result = fails(simulation(asks, machines(1), until=15, faults=MAINTAINED), (3, 0, 10)).run()
    assert statuses(result) == ["declined", "placed"]


def test_the_end_of_one_maintenance_does_not_end_another() -> None:
    second = Maintenance(at=4, lasts=8, share=1.0)
    faults = Faults(maintenance=(*MAINTAINED.maintenance, second))
    asks = [ask(9, "small"), ask(12, "small")]
    assert statuses(run(asks, machines(1), until=15, faults=faults)) == ["declined", "placed"]


def test_maintenance_of_a_share_of_the_machines_is_of_so_many() -> None:
    faults = Faults(maintenance=(Maintenance(at=0, lasts=5, share=0.5),))
    asks = [ask(1, "whole") for _ in range(4)] + [ask(6, "whole") for _ in range(2)]
    result = run(asks, machines(4), until=7, faults=faults)
    assert statuses(result) == ["placed", "placed", "declined", "declined", "placed", "placed"]


def test_maintenance_of_an_unknown_cluster_is_refused() -> None:
    faults = Faults(maintenance=(Maintenance(at=2, lasts=6, cluster="c9"),))
    with pytest.raises(UnknownName, match="c9"):
        simulation([ask(1, "small")], machines(1), until=3, faults=faults)


# ------------------------------------------------------------------------------------------------------ what is varied


def test_another_policy_decides_from_its_time_on() -> None:
    asks = [ask(i, "small") for i in range(4)]
    packed = column(run(asks, machines(2), until=4), "empty_machines")
    change = (PolicyChange(at=1.5, policy="spread"),)
    changed = column(run(asks, machines(2), until=4, policy_changes=change), "empty_machines")
    assert packed == [1, 1, 1, 1, 1]
    assert changed == [1, 1, 0, 0, 0]


def test_a_policy_change_to_an_unknown_policy_is_refused_before_the_run() -> None:
    with pytest.raises(InvalidInput, match="sprawl"):
        simulation([ask(1, "small")], machines(1), until=3, policy_changes=(PolicyChange(at=1, policy="sprawl"),))


def test_a_zone_can_be_filled_before_the_beginning() -> None:
    asks = [ask(i, "small", stay=100) for i in range(1, 4)]
    result = run(asks, machines(4), until=5, fill=0.5)  # 8 of 16 cores
    assert column(result, "time_s") == [-1, 0, 1, 2, 3, 4, 5]
    assert column(result, "warm") == [0, 1, 1, 1, 1, 1, 1]
    assert column(result, "vms")[:2] == [8, 8]
    assert column(result, "requests") == [8, 0, 1, 1, 1, 0, 0]
    assert column(result, "cache_hits")[1:] == [0, 0, 1, 1, 1, 0, 0][1:]
    assert [row["request"] for row in rows(result)] == [-1] * 8 + [0, 1, 2]
    assert [result.summary[name] for name in ("requests", "vms_placed", "cache_hit_ratio")] == [3, 3, 1.0]
    assert column(result, "vms_placed", "rates") == [3]


def test_agents_that_fill_a_zone_know_of_each_other_however_late_news_are_afterwards() -> None:
    asks = [ask(i, "wide", stay=100) for i in range(1, 4)]
    what: dict[str, Any] = {"until": 5, "fill": 1.0, "agents": Agents(count=3, top=1)}
    late = run(asks, machines(8), latency=Latency(feed_ms=500), **what)
    assert column(late, "conflicts")[0] == column(late, "gave_up")[0] == 0
    assert column(late, "vms")[0] == 16
    assert column(late, "used_cores")[0] == column(run(asks, machines(8), **what), "used_cores")[0]


def test_vms_that_filled_the_zone_leave_in_time() -> None:
    asks = [ask(i, "small", stay=20) for i in range(1, 4)]
    result = run(asks, machines(4), until=60, fill=0.5)
    assert column(result, "vms")[-1] == 0


def test_time_passes_faster_with_speed_for_arrivals_and_lifetimes() -> None:
    asks = [ask(2, "small", stay=4), ask(6, "small", stay=4)]
    result = run(asks, machines(2), until=6, speed=2)
    assert [row["time_s"] for row in rows(result)] == [1, 3]
    assert column(result, "vms") == [0, 1, 1, 1, 1, 0, 0]  # the one leaves when the other comes


def test_a_run_ends_at_the_last_arrival_unless_told_otherwise() -> None:
    asks = [ask(i, "small") for i in range(6)]
    assert column(run(asks, machines(2)), "time_s")[-1] == 5
    early = run(asks, machines(2), until=3)
    assert (column(early, "time_s")[-1], len(rows(early))) == (3, 4)
    assert column(run(asks, machines(2), until=8), "time_s")[-1] == 8
    assert column(run(asks, machines(2), speed=5), "time_s") == [0, 1]


def test_the_last_sample_is_at_the_end_whatever_its_rounding() -> None:
    for until in np.random.default_rng(1).uniform(4e4, 3e6, 12).tolist():
        times = column(run([ask(0, "small")], machines(1), until=until, sample=None), "time_s")
        assert (len(times), times[-1]) == (501, until)


def test_requests_that_have_no_answer_at_the_end_are_queued() -> None:
    result = run([ask(1, "small"), ask(1, "small")], machines(2), until=4, latency=SLOW_COMMIT)
    assert column(result, "queued") == [0, 2, 2, 1, 1]
    assert len(rows(result)) == 1


def test_departures_are_not_queued_requests() -> None:
    result = run([ask(0, "small", stay=2)], machines(2), until=5, latency=SLOW_COMMIT)
    assert column(result, "queued") == [1, 1, 0, 0, 0, 0]


def test_a_vm_of_an_unknown_type_makes_its_request_invalid() -> None:
    asks = workload([ask(0, "small"), ask(1, "whole")])
    renamed = replace(asks, types=[*asks.types[:-1], WorkloadType("no-such", {})])
    assert statuses(run(renamed, machines(1), until=2)) == ["placed", "invalid"]


# ---------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ({"sample": 0}, "sample: is 0"),
        ({"until": 0}, "until: is 0"),
        ({"bin": 0}, "bin: is 0"),
        ({"bin": 7}, "bin: is 7"),
        ({"bin": 120}, "bin: is 120"),
        ({"bin": "2x"}, "bin: is '2x'"),
        ({"until": -1}, "until: is -1"),
        ({"warm_up": "1 fortnight"}, "warm_up: is '1 fortnight'"),
        ({"seeds": ()}, "seeds: is"),
        ({"seeds": (1, 1)}, "seeds: is"),
        ({"policies": ("fast", "fast")}, "policies: is"),
        ({"zone": ""}, "a zone or a fleet"),
        ({"name": "a/b"}, "name: 'a/b' has '/' in it"),
        ({"agents": Agents(group=0)}, ".group: is 0"),
        ({"agents": Agents(strict=True, pipeline=2)}, ".strict: "),
    ],
)
def test_an_experiment_that_makes_no_sense_is_refused(what: dict[str, Any], problem: str) -> None:
    fields: dict[str, Any] = {"name": "x", "workload": "w", "zone": "z"} | what
    with pytest.raises(InvalidInput, match=re.escape(problem)):
        Experiment(**fields)


@pytest.mark.parametrize("warm_up", [10, "10s", 11])
def test_a_warm_up_that_leaves_nothing_is_refused(warm_up: float | str) -> None:
    with pytest.raises(InvalidInput, match="warm_up"):
        simulation([ask(1, "small")], machines(1), until=10, warm_up=warm_up)


def test_a_priority_that_the_zone_does_not_know_is_refused() -> None:
    asks = workload([ask(0, "small"), ask(1, "small", priority="low")])
    strange = replace(asks, priorities=["gold" if band == "low" else band for band in asks.priorities])
    with pytest.raises(UnknownName, match=r"workload by-hand: priority.*gold"):
        simulation(strange, machines(1), until=2)


def test_what_the_zone_has_down_by_itself_is_neither_counted_nor_repaired_by_an_outage() -> None:
    zone = machines(4)
    zone.machines["state"][0] = MachineState.DOWN
    run = simulation([ask(0.0, "small", stay=50.0), ask(40.0, "small", stay=5.0)], zone)
    run.faults.plan(5.0, [0, 1], 10.0)
    run.run()
    assert run.tracker.down == 0
    assert run.faults.state == [int(MachineState.DOWN), *[int(MachineState.READY)] * 3]


def test_what_the_zone_has_in_quarantine_is_there_again_once_it_is_repaired() -> None:
    zone = machines(2)
    zone.machines["state"][0] = MachineState.QUARANTINED
    maintained = Faults(maintenance=(Maintenance(at=8, lasts=4, cluster=zone.cluster_names[0]),))
    made = fails(simulation([ask(0, "small")], zone, until=20, faults=maintained), (5, 0, 5))
    assert column(made.run(), "machines_down") == [0] * 5 + [1] * 5 + [0] * 11
    assert made.store.load().machines[zone.machine_names[0]].state == MachineState.QUARANTINED
