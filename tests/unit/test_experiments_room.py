"""The study of room for growth and healing: what a cluster's life is made of, and how it is counted."""

from __future__ import annotations

from collections import Counter

import pytest

from roost.agent.verbs.place import PlaceVMs
from roost.experiments.room import heals
from roost.experiments.room_demand import GROWING, WHOLE, Span, make_cluster
from roost.experiments.room_life import AT_ONCE, Life
from roost.experiments.study import FigureValue
from roost.model.request import VM, Request
from roost.model.thresholds import Thresholds
from roost.rules.policy import Policy
from roost.wiring import open_agent, open_store

SPAN = Span(machines=40, days=8.0, warm_up=2.0, seed=1)
FAST = Policy.named("fast")


def lived(kept: Thresholds, load: float) -> tuple[Life, dict[str, FigureValue]]:
    """A life to its end, and what came of it."""
    life = Life(SPAN, "fast", kept, load)
    return life, life.measured(life.run(lambda share, done: None))


@pytest.fixture(scope="module")
def crowded() -> tuple[Life, dict[str, FigureValue]]:
    """Twice as much is asked for as there is, and nothing is kept."""
    return lived(Thresholds(), 2.0)


@pytest.fixture(scope="module")
def careful() -> tuple[Life, dict[str, FigureValue]]:
    """The same, and much is kept."""
    return lived(Thresholds(new=16, scale_out=12), 2.0)


def test_tenants_that_grow_are_there_and_their_requests_are_decided_as_scale_outs(
    careful: tuple[Life, dict[str, FigureValue]],
) -> None:
    life, _ = careful
    decided = Counter(each.record.purpose for each in life.simulation.store.decisions(100_000))
    growing = [each for each in life.simulation.workload.tenants if each == GROWING]
    assert 0 < decided["scale_out"] == len(growing)


def test_demand_and_failures_of_a_seed_are_the_same_whatever_is_kept(
    crowded: tuple[Life, dict[str, FigureValue]], careful: tuple[Life, dict[str, FigureValue]]
) -> None:
    (one, of_one), (other, of_other) = crowded, careful
    (past,), (other_past,) = one.history().clusters, other.history().clusters
    assert past.outages == other_past.outages
    assert len(past.outages) > 0
    assert of_one["scale_outs"] == of_other["scale_outs"]
    assert one.simulation.workload.arrival.tolist() == other.simulation.workload.arrival.tolist()


def test_a_vm_that_has_to_wait_is_a_failed_healing_though_it_is_healed_later(
    crowded: tuple[Life, dict[str, FigureValue]], careful: tuple[Life, dict[str, FigureValue]]
) -> None:
    (life, figures), (_, kept) = crowded, careful
    faults = life.simulation.tracker.faults
    waited = [seconds for seconds in faults.seconds if seconds > AT_ONCE]
    assert len(waited) > 0
    assert figures["healings"] == faults.displaced
    assert figures["healing_failures"] == (faults.displaced - faults.healed + len(waited)) / faults.displaced
    assert figures["never_healed"] == (faults.displaced - faults.healed - faults.returned) / faults.displaced
    assert kept["healing_failures"] == 0.0, "where machines are kept for it, all are healed at once"


def test_the_past_has_what_grew_and_when_machines_were_down_after_the_warm_up(
    careful: tuple[Life, dict[str, FigureValue]],
) -> None:
    life, figures = careful
    history = life.history()
    (past,) = history.clusters
    assert all(history.since <= began < ended <= history.until for began, ended in past.outages)
    assert len(past.growth) == round(
        float(figures["scale_outs"] or 0) * (1 - float(figures["scale_out_failures"] or 0))
    )
    assert all(0 < share <= 1 for _, shares in past.growth for share in shares)


@pytest.mark.parametrize(("whole", "healed"), [(1, True), (2, False)])
def test_a_failure_can_be_healed_if_another_machine_is_empty(whole: int, healed: bool) -> None:
    store = open_store("memory:", create=make_cluster(2, Thresholds()))
    agent = open_agent(store, FAST)
    agent.run(agent.submit(PlaceVMs(Request("t", (VM(WHOLE),) * whole))))
    ledger = store.load()
    (machine, *_) = [vm.machine for vm in ledger.vms.values()]
    assert heals(ledger, FAST, machine) is healed
    assert [vm.machine for vm in ledger.vms.values()].count(machine) == 1, "it was tried on a copy"
