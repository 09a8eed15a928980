"""VMs that are placed together, where the best machine for each leaves none for another: another way is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest

from roost.agent.agent import Agent
from roost.agent.courier import InlineCourier
from roost.agent.past import recall
from roost.agent.verbs import placing
from roost.agent.verbs.place import PlaceVMs
from roost.model.request import VM, Constraints, Request
from roost.placing.allocator import Allocator
from roost.placing.decision import Decision
from roost.placing.search import Search
from roost.wiring import open_store
from tests.property.zones import MIDDLE, STANDARD, TINY, ClusterPlan, build, policy

OLD, NEW = 0, 1
MIXED = build(STANDARD, (ClusterPlan(1, 0, (2,)), ClusterPlan(2, 0, (2,))))
ANYWHERE, ONLY_NEW = VM("A10"), VM("D13")  # the second runs in one of the two clusters
APART = Constraints(min_fault_domains=2)
# Each machine may have VMs of one class only: two of one, or two of the other.
TWO = build(TINY, (ClusterPlan(NEW, 0, (1, 1)),))
LOUD, SHY = VM("wide", colocation="loud"), VM("small", colocation="shy")
PUZZLE = Request("t", (TALL := VM("tall", colocation="shy"), LOUD, LOUD, TALL))


def racks_of(allocator: Allocator, tenant: str) -> Counter[int]:
    """How many VMs a tenant has in each rack."""
    racks = allocator.zone.machines["rack"]
    return Counter(int(racks[vm.machine]) for vm in allocator.tenants[tenant].vms.values())


@pytest.mark.parametrize("vms", [(ANYWHERE, ONLY_NEW), (ONLY_NEW, ANYWHERE)], ids=["easy first", "hard first"])
def test_two_types_over_two_racks_are_placed_whichever_comes_first_and_whatever_the_seed(vms: tuple[VM, ...]) -> None:
    for seed in range(50):
        allocator = Allocator(MIXED, policy("fast"), seed)
        assert allocator.allocate(Request("t", vms, APART)).ok
        assert len(racks_of(allocator, "t")) == 2


@pytest.mark.parametrize("constraints", [Constraints(colocate="rack"), Constraints(max_fault_domains=1)], ids=str)
def test_one_fault_domain_at_most_fits_wherever_one_rack_does(constraints: Constraints) -> None:
    for seed in range(10):
        allocator = Allocator(build(TINY, (ClusterPlan(OLD, 0, (1, 1, 2, 1, 5)),)), policy(MIDDLE), seed)
        assert allocator.allocate(Request("t", (VM("small"),) * 20, constraints)).ok, seed
        assert set(racks_of(allocator, "t")) == {4}


def test_a_large_gang_that_may_be_in_few_racks_finds_those_with_room() -> None:
    allocator = Allocator(build(TINY, (ClusterPlan(OLD, 0, (1, 1, 4, 1, 3, 1)),)), policy(MIDDLE))
    assert allocator.allocate(Request("t", (VM("small"),) * 28, Constraints(max_fault_domains=2))).ok
    assert racks_of(allocator, "t") == {2: 16, 4: 12}


def test_a_large_gang_is_tried_in_another_order_before_it_is_declined() -> None:
    zone = build(TINY, (ClusterPlan(OLD, 0, (1, 2, 2)), ClusterPlan(OLD, 0, (2, 4))))
    vms = (LOUD,) * 12 + (SHY,) * 7
    decision = Allocator(zone, policy(MIDDLE)).allocate(Request("t", vms, Constraints(max_per_machine=2)))
    assert decision.ok
    assert decision.trial.sought


def test_vms_that_do_not_go_together_leave_room_for_one_another() -> None:
    for seed in range(20):
        allocator = Allocator(TWO, policy(MIDDLE), seed)
        assert allocator.allocate(PUZZLE).ok
        allocator.check_invariants()


def test_it_is_told_that_a_machine_was_taken_for_the_sake_of_the_others() -> None:
    decision = next(found for found in decisions() if found.trial.sought)
    first = decision.trial.order[0]
    assert "taken so that all VMs of the request find one" in str(decision.explain(first))
    other = next(name for name in TWO.machine_names if name != decision.placements[first].machine)
    assert decision.why_not(other, first).verdict in ("not_sought", "refused")


def decisions() -> Iterator[Decision]:
    """What comes of the same request, by lot."""
    return (Allocator(TWO, policy(MIDDLE), seed).allocate(PUZZLE) for seed in range(20))


@pytest.fixture
def agent() -> Iterator[Agent]:
    """An agent of a zone with two machines, and a seed by which a way has to be sought."""
    seed = next(seed for seed, found in enumerate(decisions()) if found.trial.sought)
    with closing(open_store("memory:", create=TWO)) as store:
        made = Agent(store, InlineCourier(store), policy(MIDDLE), "a", seed=seed)
        with closing(made) as agent:
            yield agent


def test_a_past_decision_tells_that_its_machines_were_sought(agent: Agent) -> None:
    (answer,) = agent.run(agent.submit(PlaceVMs(PUZZLE), "k"))
    assert answer.ok
    past = recall(agent.store, "k", lambda _: policy(MIDDLE))
    assert past.trial.sought
    assert past.placements == answer.placements
    assert "taken so that all VMs of the request find one" in str(past.explanation)


def test_a_search_over_several_turns_gets_further_in_each_and_finds_the_way(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "IN_VAIN", 1)
    (answer,) = agent.run(agent.submit(PlaceVMs(PUZZLE)))
    assert answer.ok


def test_a_search_that_is_cut_short_says_so(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "IN_VAIN", 1)
    monkeypatch.setattr(placing, "IN_ALL", 3)
    (answer,) = agent.run(agent.submit(PlaceVMs(Request("t", (*PUZZLE.vms, SHY)))))
    assert answer.status == "declined"
    assert "cut short: not every way to place them together was tried" in answer.detail


def test_what_a_turn_finds_dead_is_not_tried_again_in_the_next(agent: Agent) -> None:
    search, known = Search(in_turn=1), 0
    request = Request("t", (*PUZZLE.vms, VM("tall", colocation="loud"), SHY))
    assert not agent.allocator.decide(request, search=search).ok
    while search.goes_on:
        assert len(search.dead) > known, "a turn got nowhere"
        known = len(search.dead)
        assert not agent.allocator.decide(request, search=search).ok
    agent.check_invariants()
