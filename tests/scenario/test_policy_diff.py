"""Two policies on a handful of requests, of which one can see by hand which must change and by which rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.machines import AddMachines
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.model.errors import InvalidInput
from roost.model.inventory import machine_specs
from roost.model.request import VM, Request
from roost.model.zone import Zone
from roost.placing.contrast import Difference, Shadow
from roost.rules.policy import SHIPPED, Policy
from roost.sim.diff import Diff
from roost.sim.diff_history import StoreHistory, diff_history
from roost.sim.diff_report import page
from roost.sim.differences import DifferenceLog, PolicyDifferences
from roost.sim.simulation import Simulation
from roost.store.contract import Store
from roost.wiring import find_policy, open_agent, open_store
from tests.property.zones import TINY, ClusterPlan, build, policy
from tests.scenario.simulated import ask, experiment, machines, workload
from tests.scenario.test_engine_corner_cases import FAULTY

FAST, SPREAD = Policy.named("fast"), Policy.named("spread")
# On three empty machines of 4 cores in one rack. `fast` fills machines up, `spread` takes the emptiest, and leaves a
# tenth of the cores alone.
ASKED = [
    "small",  # all machines are alike to both
    "small",  # fast: beside the first; spread: anywhere else
    "whole",  # needs an empty machine: both are alike
    "whole",  # there is one left
    "small",  # the 11th of 12 cores, which spread keeps back; there is one machine that has room
    "small",  # and so the 12th
    "small",  # nobody has room
]
CHANGED = [
    (2, "preferred", "emptiest", "non_empty"),
    (5, "declined", "below_limit", ""),
    (6, "declined", "below_limit", ""),
]


def told(rows: Sequence[Difference]) -> list[tuple[Any, ...]]:
    return [(row.at, row.kind, row.rule, row.kept_by) for row in rows]


def test_exactly_the_decisions_that_must_change_are_found_with_their_rules(tmp_path: Path) -> None:
    asks = [ask(at, kind) for at, kind in enumerate(ASKED, 1)]
    log = DifferenceLog(SPREAD)
    made = Simulation(experiment(), "fast", 1, workload(asks), machines(3), find_policy, shadow=log)
    log.clock = made.clock
    result = made.run()
    assert log.decisions == len(ASKED)
    assert told(log.rows) == CHANGED
    first, second, _ = log.rows
    assert first.other_machine != first.machine
    assert first.text == (
        f"spread prefers {first.other_machine} to {first.machine} by emptiest (0.194 against 0.389); "
        f"fast prefers {first.machine} to {first.other_machine} by non_empty (0.000 against 1.000)"
    )
    assert (second.machine, second.other_machine) == (first.machine, "")
    why = "(cluster at its utilisation limit for new deployments)"
    assert second.text == f"spread finds no machine: spread refuses {first.machine} by below_limit {why}"
    refused, preferred = log.found.groups()
    assert (refused.decisions, refused.types, preferred.decisions) == (2, {"small": 2}, 1)
    log.save(tmp_path)
    assert PolicyDifferences.load(tmp_path) == log.found
    report = page(Diff("fast", "spread", "by-hand", log.found, [result]))
    assert (
        "Of 7 decisions 3 change (42.9%). spread would decline 2 that fast placed, and place 0 it declined." in report
    )
    assert "| declined | below_limit | 2 | 28.6% | small 2 |" in report


def test_a_policy_changes_nothing_of_its_own(tmp_path: Path) -> None:
    log = DifferenceLog(FAST)
    asks = [ask(at, *kinds) for at, kinds in enumerate((("small",), ("wide", "small"), ("whole",), ("tall",) * 5), 1)]
    made = Simulation(experiment(), "fast", 1, workload(asks), machines(2, 3), find_policy, shadow=log)
    made.run()
    assert (log.decisions, log.rows) == (4, [])


# ------------------------------------------------------------------------------------------------------------- history


@pytest.fixture
def store() -> Store:
    """Where `fast` decided the same requests, and a machine was drained and taken back at the end."""
    store = open_store("memory:", create=machines(3))
    agent = open_agent(store, FAST, seed=1)
    for at, kind in enumerate(ASKED, 1):
        agent.run(agent.submit(PlaceVMs(Request(f"t{at}", [VM(kind)]))))
    agent.run(agent.submit(SetMachine("c0r0m0", state="draining")), agent.submit(ReleaseVMs("t1")))
    agent.close()
    return store


@pytest.mark.parametrize("first", [FAST, None], ids=["fast", "recorded"])
def test_the_history_of_a_store_is_compared_like_a_workload(store: Store, first: Policy | None) -> None:
    history = StoreHistory(store)
    assert str(history) == "6 placements of revisions 2 to 9", "what was declined is not in the feed"
    diff = diff_history(history, first, SPREAD, seeds=3, policy_of=lambda recorded: find_policy(recorded.split()[0]))
    found = diff.differences
    assert found.decisions == 6
    assert [row[1:] for row in told(found.rows)] == [row[1:] for row in CHANGED]
    assert [row.tenant for row in found.rows] == ["t2", "t5", "t6"]
    if first is None:
        assert "fast prefers" in found.rows[0].text
    table = diff.measures()
    assert table.variants == (diff.first, "spread")
    figures = {row.measure.name: [estimate.mean for estimate in row.estimates if estimate] for row in table.rows}
    assert figures["declined"] == [0.0, 1.0], "where spread decides, only one machine stays whole"
    assert figures["fulfilment"] == [1.0, pytest.approx(5 / 6)]
    assert figures["density"][0] > figures["density"][1]
    assert "conflicts" not in figures


def test_history_begins_after_the_machines_last_changed_and_where_it_is_told_to(store: Store) -> None:
    assert str(StoreHistory(store, since=4)) == "3 placements of revisions 5 to 9"
    with pytest.raises(InvalidInput, match="nothing was placed"):
        StoreHistory(store, since=8)
    with pytest.raises(InvalidInput, match="the feed goes from"):
        StoreHistory(store, since=99)


# -------------------------------------------------------------------------------------------------------- in the shadow


def _watched(shadow: Callable[[], Shadow | None]) -> tuple[list[Any], Shadow | None]:
    """Placements of an agent whose policy is switched, and whose zone gets another machine under way."""
    zone = machines(3, 4)
    store = open_store("memory:", create=zone)
    agent = open_agent(store, FAST, seed=5)
    agent.context.shadow = seen = shadow()
    answers = []

    def place(first: int, last: int) -> None:
        for i in range(first, last):
            answers.extend(agent.run(agent.submit(PlaceVMs(Request(f"t{i}", [VM("small")] * (1 + i % 3))))))

    place(0, 5)
    agent.switch(SPREAD)
    place(5, 8)
    agent.switch(FAST)
    spare = machine_specs(build(TINY, (ClusterPlan(0, 0, (3, 1)),)), [3])
    agent.run(agent.submit(AddMachines(tuple(spare))))
    place(8, 14)
    assert agent.counters.reloads == 1
    agent.check_invariants()
    agent.close()
    return [(answer.status, [p.machine for p in answer.placements]) for answer in answers], seen


def test_whoever_is_watched_decides_the_same() -> None:
    alone, _ = _watched(lambda: None)
    watched, shadow = _watched(lambda: Shadow(SPREAD, clock=float))
    assert watched == alone
    assert shadow is not None
    assert shadow.decisions == len(alone) == 14
    assert 0 < shadow.changed.total() < 14, "what spread decides itself is no difference"
    assert {kind for kind, _ in shadow.changed} == {"preferred"}
    assert 0 < len(shadow.latest) <= shadow.changed.total()
    assert shadow.problem == ""


def test_a_shadow_looks_at_a_share_of_the_tenants() -> None:
    _, shadow = _watched(lambda: Shadow(SPREAD, 0.5, clock=float))
    assert shadow is not None
    assert 0 < shadow.decisions < 14


def test_a_faulty_policy_in_the_shadow_is_switched_off_and_hurts_nobody() -> None:
    said: list[str] = []
    alone, _ = _watched(lambda: None)
    watched, shadow = _watched(lambda: Shadow(policy(FAULTY), stopped=said.append))
    assert watched == alone
    assert shadow is not None
    assert len(said) == 1
    assert "faulty_when_used" in said[0]
    assert shadow.problem == said[0]


def test_requests_that_the_shadow_has_no_rule_for_are_differences_and_do_not_end_it() -> None:
    unaware = (
        (SHIPPED / "fast.yaml")
        .read_text()
        .replace("    - respects_isolation\n", "")
        .replace("name: fast", "name: unaware")
    )
    shadow = Shadow(Policy.parse(unaware), clock=float)
    store = open_store("memory:", create=Zone.synthetic(100))
    agent = open_agent(store, FAST, seed=1)
    agent.context.shadow = shadow
    for i in range(12):  # more than are explained in a second
        agent.run(agent.submit(PlaceVMs(Request(f"t{i}", [VM("A1", isolated=True)]))))
    agent.close()
    assert shadow.problem == ""
    assert shadow.decisions == shadow.changed["invalid", ""] == 12


def test_a_shadow_that_takes_too_long_looks_at_fewer_decisions() -> None:
    now = 0.0

    def slow() -> float:
        nonlocal now
        now += 0.005  # that pass between two looks at the clock: a look takes as long
        return now

    shadow = Shadow(SPREAD, clock=slow)
    store = open_store("memory:", create=Zone.synthetic(100))
    agent = open_agent(store, FAST, seed=1)
    agent.context.shadow = shadow
    asked = 0
    while now < 30:
        agent.run(agent.submit(PlaceVMs(Request(f"t{asked}", [VM("A1")]))))
        asked += 1
    agent.close()
    assert shadow.decisions + shadow.skipped == asked
    assert shadow.skipped > shadow.decisions
    assert 0.04 < shadow.decisions * 0.005 / now < 0.12, "of the time"


def test_only_some_differences_are_explained_each_second() -> None:
    now = 0.0
    shadow = Shadow(SPREAD, clock=lambda: now)
    store = open_store("memory:", create=Zone.synthetic(100))
    agent = open_agent(store, FAST, seed=1)
    agent.context.shadow = shadow
    for i in range(20):
        agent.run(agent.submit(PlaceVMs(Request(f"t{i}", [VM("A1")]))))
        now += i == 15
    assert shadow.changed.total() > 15
    assert 5 < len(shadow.latest) < 12
    agent.close()
