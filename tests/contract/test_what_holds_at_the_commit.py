"""What an agent found of machines, and what clusters keep, is so at the commit; that one is closed, once heard of."""

from __future__ import annotations

import msgspec
import pytest

from roost.agent.agent import Agent
from roost.agent.courier import InlineCourier
from roost.agent.verbs.place import PlaceVMs
from roost.model.inventory import MachineSpec
from roost.model.registry import THRESHOLD
from roost.model.request import VM, Request
from roost.model.thresholds import Thresholds
from roost.rules.policy import Policy
from roost.store.contract import Conflict, Place, Proposal, Store
from roost.store.recheck import Recheck
from tests.contract.tiny import (
    SMALL,
    WHOLE,
    add,
    condition,
    is_sound,
    machine,
    move,
    names,
    place,
    placed,
    quarantine,
    register,
    remove,
    unchanged,
)

FAST = VM("small", requires=("fast",))


def test_a_machine_that_is_not_healthy_enough_by_now_gets_nothing(store: Store, recheck: Recheck) -> None:
    store.commit([place("k1", "t", {"a": "m2"}), condition("k2", "m1", health=29)], recheck)
    (runs,) = placed({"a": "m2"})
    with unchanged(store):
        outcomes = store.commit([place("k3", "u", {"b": "m1"}), move("k4", "t", runs, "m1")], recheck)
    assert names(outcomes) == ["room", "room"]
    for outcome in outcomes:
        assert isinstance(outcome, Conflict)
        assert "machine unhealthy" in outcome.detail
        assert [(row.spec.name, row.health) for row in outcome.machines] == [("m1", 29)]
    store.commit([condition("k5", "m1", health=30)], recheck)
    assert names(store.commit([place("k3", "u", {"b": "m1"})], recheck)) == ["committed"]


def test_what_requires_a_feature_is_not_placed_where_it_is_missing(store: Store, recheck: Recheck) -> None:
    outcomes = store.commit([place("k1", "t", {"a": "m5"}, FAST), place("k2", "t", {"b": "m1"}, FAST)], recheck)
    assert names(outcomes) == ["committed", "room"]
    assert isinstance(outcomes[1], Conflict)
    assert "missing hardware feature" in outcomes[1].detail


@pytest.mark.parametrize(
    "another",
    [
        machine("m8", "c2", "new", features=()),
        machine("m8", "c1", "old"),
        machine("m8", "c2", "new", rack="c2-r9"),
        machine("m8", "c2", "new", update_domain=1),
    ],
    ids=["without its feature", "in another cluster", "in another rack", "in another update domain"],
)
def test_a_machine_that_was_replaced_under_its_name_gets_nothing_from_whoever_has_not_heard_of_it(
    store: Store, recheck: Recheck, another: MachineSpec
) -> None:
    store.commit([remove("k1", "m8")], recheck)
    store.commit([add("k2", another)], recheck)
    with unchanged(store):
        (outcome,) = store.commit([place("k3", "t", {"a": "m8"}, SMALL)], recheck)
    assert isinstance(outcome, Conflict)
    assert "not known here yet" in outcome.detail


def test_the_order_in_which_features_are_named_is_no_matter(store: Store, recheck: Recheck) -> None:
    store.commit([remove("k1", "m8"), remove("k2", "m7")], recheck)
    for features in (("a", "b"), ("b", "a")):
        name = f"m{7 + (features[0] == 'a')}"
        store.commit([add(f"add {name}", machine(name, "c2", "new", features=features))], recheck)
    agent = agent_on(store, "one")
    group = [place("k3", "t", {"a": "m7"}), place("k4", "t", {"b": "m8"})]
    assert names(store.commit(group, agent.recheck)) == ["committed", "committed"]


# ------------------------------------------------------------------------- what is kept by clusters, not by machines


def agent_on(store: Store, name: str) -> Agent:
    """An agent that commits at once."""
    return Agent(store, InlineCourier(store), Policy.default(), name)


def decided(agent: Agent, tenant: str) -> Proposal:
    """What an agent makes of a request for a whole machine of c1, by what it knows."""
    wish = PlaceVMs(Request(tenant, (msgspec.structs.replace(WHOLE, cluster="c1"),)))
    _, proposal = agent.rehearse(wish, f"place {tenant}")
    assert proposal is not None
    return proposal


def test_of_agents_that_decide_at_once_one_takes_the_last_machine_beyond_a_threshold(
    store: Store, recheck: Recheck
) -> None:
    store.commit([register("k", "c1", msgspec.json.encode(Thresholds(new=3)).decode(), kind=THRESHOLD)], recheck)
    agents = [agent_on(store, "one"), agent_on(store, "two"), agent_on(store, "three")]
    group = []
    for number, agent in enumerate(agents, 1):  # each on a machine of its own, as they would if they liked others
        proposal = decided(agent, agent.name)
        assert isinstance(proposal, Place)
        (vm,) = proposal.placed
        there = msgspec.structs.replace(vm, machine=f"m{number}")
        group.append(msgspec.structs.replace(proposal, placed=(there,)))
    outcomes = [outcome for each in group for outcome in store.commit([each], recheck)]
    assert names(outcomes) == ["committed", "threshold", "threshold"], "of four empty machines three are kept"
    for agent in agents:
        agent.step()
        assert type(decided(agent, "late")).__name__ == "Decline"
    is_sound(store)


def test_what_was_decided_before_a_cluster_was_closed_is_committed_and_nothing_after_that_was_heard(
    store: Store, recheck: Recheck
) -> None:
    agent = agent_on(store, "one")
    proposal = decided(agent, "t")
    store.commit([quarantine("k", "c1")], recheck)
    assert names(store.commit([proposal], agent.recheck)) == ["committed"]
    agent.step()
    assert type(decided(agent, "u")).__name__ == "Decline"
