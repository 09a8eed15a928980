"""Two policies at work side by side: each tenant has one, whoever decides, for ever."""

from __future__ import annotations

import pytest

from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.engine.ruleset import PolicySplit
from roost.model.errors import InvalidInput
from roost.model.request import VM, Request
from roost.model.zone import Zone
from roost.placing.allocator import Allocator
from roost.rules.policy import Policy
from roost.wiring import open_agent, open_store

DENSE, SPREAD = Policy.named("dense"), Policy.named("spread")
TENANTS = [f"tenant-{i}" for i in range(2_000)]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_the_share_of_tenants_is_as_wished(share: float) -> None:
    split = PolicySplit(DENSE, SPREAD, share)
    found = sum(split.arm_of(tenant) for tenant in TENANTS) / len(TENANTS)
    assert found == pytest.approx(share, abs=0.03)
    assert [split.arm_of(tenant) for tenant in TENANTS] == [
        PolicySplit(DENSE, SPREAD, share).arm_of(tenant) for tenant in TENANTS
    ]


def test_tenants_that_a_smaller_share_had_are_among_those_of_a_larger_one() -> None:
    few, many = PolicySplit(DENSE, SPREAD, 0.1), PolicySplit(DENSE, SPREAD, 0.3)
    assert all(many.arm_of(tenant) for tenant in TENANTS if few.arm_of(tenant))


def test_a_share_out_of_range_is_refused() -> None:
    with pytest.raises(InvalidInput, match="share"):
        PolicySplit(DENSE, SPREAD, 1.5)


def test_each_policy_decides_for_its_tenants_and_explains_itself() -> None:
    allocator = Allocator(Zone.synthetic(300), PolicySplit(DENSE, SPREAD, 0.5), seed=1)
    homes: tuple[list[int], list[int]] = [], []
    for tenant in TENANTS[:300]:
        decision = allocator.allocate(Request(tenant, [VM("A1")]))
        homes[allocator.split.arm_of(tenant)].append(decision.trial.machines[0])
        rules = {stage.rule for stage in decision.explanation.funnel}
        assert ("emptiest" in rules) == (allocator.arm_of(tenant).policy is SPREAD)
    allocator.check_invariants()
    packed, spread = (len(set(machines)) / len(machines) for machines in homes)
    assert packed < 0.2 < 0.5 < spread, "one fills machines up, the other takes empty ones"


def test_policies_are_switched_under_way_and_every_commit_is_checked_by_its_own() -> None:
    store = open_store("memory:", create=Zone.synthetic(100))
    agent = open_agent(store, DENSE)
    agent.run(*(agent.submit(PlaceVMs(Request(tenant, [VM("A1")]))) for tenant in TENANTS[:50]))
    agent.switch(PolicySplit(DENSE, SPREAD, 0.5))
    answers = agent.run(*(agent.submit(PlaceVMs(Request(tenant, [VM("A1")]))) for tenant in TENANTS[50:150]))
    assert all(answer.ok for answer in answers)
    agent.run(*(agent.submit(ReleaseVMs(tenant)) for tenant in TENANTS[:150:2]))
    agent.check_invariants()
    recorded = {store.decided(answer.key).record.policy.split()[0] for answer in answers}  # type: ignore[union-attr]
    assert recorded == {"dense", "spread"}
    results = {each.policy.split()[0]: each for each in store.policy_results(0.0)}
    assert results["dense"].requests + results["spread"].requests == 150
    agent.close()
