"""Agents with outdated copies cannot pass a threshold together: what speaks of sums holds at the commit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from roost.agent.agent import Agent
from roost.agent.past import recall
from roost.agent.verbs.place import PlaceVMs
from roost.engine.recheck import CompiledRecheck as EngineRecheck
from roost.model.change import PlacedVM
from roost.model.inventory import zone_of
from roost.model.registry import THRESHOLD
from roost.model.request import VM, Request
from roost.model.thresholds import PURPOSES, PurposeName, Thresholds
from roost.rules.policy import Policy
from roost.store.contract import Conflict, Place, Proposal, Record, Store
from roost.store.ledger import MachineRow
from roost.store.memory import MemoryStore
from roost.store.recheck import CommitRows, Recheck
from tests.contract.conftest import Home, in_postgres
from tests.contract.tiny import (
    CATALOGUE,
    MACHINES,
    RULES,
    WHOLE,
    Meanwhile,
    add,
    condition,
    is_sound,
    machine,
    move,
    names,
    place,
    recheck_of,
    register,
    release,
    remove,
    unchanged,
)
from tests.property.interleaved import HeldCourier

POLICY = Policy.default()
SPOT = VM("whole", priority="spot")
ALONE = VM("small", priority="spot", isolated=True)  # not of the highest band, but it has its machine for itself


def keep(key: str, new: int = 0, scale_out: int = 0, healing: int = 0, cluster: str = "c1") -> Proposal:
    """A cluster keeps so many empty machines."""
    kept = Thresholds(new=new, scale_out=scale_out, healing=healing)
    return register(key, cluster, msgspec.json.encode(kept).decode(), kind=THRESHOLD)


def take(key: str, on: str, spec: VM = WHOLE, purpose: PurposeName = "new", tenant: str = "") -> Place:
    """A VM for a tenant of its own, or another, decided by somebody who knows nothing of what others do."""
    record = Record(agent="a", purpose=purpose)
    return place(key, tenant or f"t{key}", {f"v{key}": on}, spec, record=record)


def commit(store: Store, recheck: Recheck, *group: Proposal) -> list[str]:
    """What came of proposals that are committed one by one, as if by several agents."""
    return [name for each in group for name in names(store.commit([each], recheck))]


# ---------------------------------------------------------------------------------------------------- who may take what


@pytest.mark.parametrize("purpose", PURPOSES)
@pytest.mark.parametrize("together", [False, True], ids=["one by one", "in one group"])
def test_what_a_purpose_may_not_take_stays(
    store: Store, recheck: Recheck, purpose: PurposeName, together: bool
) -> None:
    store.commit([keep("k", 2, 2, 2)], recheck)
    group = [take(str(i), f"m{i}", purpose=purpose) for i in range(1, 5)]
    groups = [group] if together else [[each] for each in group]
    outcomes = [outcome for each in groups for outcome in store.commit(each, recheck)]
    assert names(outcomes) == ["committed", "committed", "threshold", "threshold"]
    lost = outcomes[2]
    assert isinstance(lost, Conflict)
    words = {"new": "new deployments", "scale_out": "scale-outs", "healing": "healing"}[purpose]
    assert lost.detail == f"cluster c1 keeps 2 of its empty machines from {words}, and has 2 by now"


def test_each_purpose_goes_on_until_its_own_threshold(store: Store, recheck: Recheck) -> None:
    store.commit([keep("k", 3, 2, 1)], recheck)
    assert commit(store, recheck, take("1", "m1"), take("2", "m2")) == ["committed", "threshold"]
    assert commit(store, recheck, take("3", "m2", purpose="scale_out")) == ["committed"]
    assert commit(store, recheck, take("4", "m3", purpose="scale_out"), take("5", "m3")) == ["threshold"] * 2
    assert commit(store, recheck, take("6", "m3", purpose="healing")) == ["committed"]
    with unchanged(store):
        assert commit(store, recheck, take("7", "m4", purpose="healing")) == ["threshold"]


def test_healing_without_a_threshold_takes_the_last_machine(store: Store, recheck: Recheck) -> None:
    store.commit([keep("k", 4, 4)], recheck)
    group = [take(str(i), f"m{i}", purpose="healing") for i in range(1, 5)]
    assert commit(store, recheck, *group) == ["committed"] * 4


def test_a_move_counts_as_healing_and_frees_what_it_leaves(store: Store, recheck: Recheck) -> None:
    store.commit([take("1", "m1"), keep("k", 3, 3, 3)], recheck)
    runs = PlacedVM("v1", WHOLE, "m1")
    assert commit(store, recheck, move("2", "t1", runs, "m2", hold=True)) == ["threshold"], "both would be taken"
    assert commit(store, recheck, move("3", "t1", runs, "m2")) == ["committed"], "as many are empty as before"
    store.commit([keep("l", 3, 3, 2)], recheck)
    there = PlacedVM("v1", WHOLE, "m2")
    assert commit(store, recheck, move("4", "t1", there, "m3", hold=True)) == ["committed"]
    store.commit([keep("m", 4, 4, 4)], recheck)
    assert commit(store, recheck, move("5", "t1", there, "m3", held=True)) == ["committed"], "it takes nothing more"


def test_a_move_that_is_held_back_leaves_its_target_as_it_was(store: Store, recheck: Recheck) -> None:
    store.commit([take("1", "m1"), keep("k", 3, 3, 3)], recheck)
    runs = PlacedVM("v1", WHOLE, "m1")
    group = [move("2", "t1", runs, "m2", hold=True), take("3", "m5"), move("4", "t1", runs, "m2")]
    assert names(store.commit(group, recheck)) == ["threshold", "committed", "committed"]


def test_a_move_to_a_machine_that_comes_with_the_same_group_is_too_early(store: Store, recheck: Recheck) -> None:
    """Its cluster was not counted, as nothing in it could be taken."""
    store.commit([take("1", "m1"), keep("k", 1, 1, 1), keep("l", 1, 1, 1, cluster="c2")], recheck)
    new = machine("m9", "c2", "new")
    group = [add("2", new), take("3", "m2"), move("4", "t1", PlacedVM("v1", WHOLE, "m1"), "m9")]
    assert names(store.commit(group, recheck)) == ["committed", "committed", "room"]
    is_sound(store)


def test_what_goes_where_others_run_is_not_held_back_by_what_is_empty(store: Store, recheck: Recheck) -> None:
    store.commit([take("1", "m1", VM("small")), keep("k", 4)], recheck)
    assert commit(store, recheck, take("2", "m1", VM("small")), take("3", "m2")) == ["committed", "threshold"]


def test_lower_bands_may_run_in_what_is_kept_and_those_in_isolation_take_it(store: Store, recheck: Recheck) -> None:
    store.commit([keep("k", 3)], recheck)
    assert commit(store, recheck, *(take(str(i), f"m{i}", SPOT) for i in (1, 2))) == ["committed"] * 2
    assert commit(store, recheck, take("3", "m3", ALONE)) == ["committed"]
    assert commit(store, recheck, take("4", "m4")) == ["threshold"], "three are empty: one is its tenant's alone"
    store.commit([release("5", "t3", {"v3": "m3"}, ALONE)], recheck)
    assert commit(store, recheck, take("6", "m4"), take("7", "m3")) == ["committed", "threshold"]


def test_a_request_is_held_to_it_as_a_whole(store: Store, recheck: Recheck) -> None:
    store.commit([keep("k", 2)], recheck)
    three = place("1", "t", {"a": "m1", "b": "m2", "c": "m3"}, WHOLE)
    two = place("2", "t", {"a": "m1", "b": "m2"}, WHOLE)
    with unchanged(store):
        assert commit(store, recheck, three) == ["threshold"]
    assert commit(store, recheck, two) == ["committed"]


def test_clusters_are_counted_by_themselves(store: Store, recheck: Recheck) -> None:
    store.commit([keep("k", 3), keep("l", 1, cluster="c2")], recheck)
    both = place("1", "t", {"a": "m1", "b": "m5", "c": "m6"}, WHOLE)
    assert commit(store, recheck, both, take("2", "m2"), take("3", "m7")) == ["committed", "threshold", "committed"]
    assert commit(store, recheck, take("4", "m8")) == ["threshold"]


# --------------------------------------------------------------------------------------- what happens in the same group


def test_machines_that_become_empty_in_the_group_can_be_taken(store: Store, recheck: Recheck) -> None:
    store.commit([take("1", "m1"), keep("k", 3)], recheck)
    group = [take("2", "m2"), release("3", "t1", {"v1": "m1"}, WHOLE), take("4", "m1"), take("5", "m2")]
    assert names(store.commit(group, recheck)) == ["threshold", "committed", "committed", "threshold"]


def test_machines_that_go_down_or_away_in_the_group_are_not_there_to_be_kept(store: Store, recheck: Recheck) -> None:
    store.commit([keep("k", 2), keep("l", 2, cluster="c2")], recheck)
    group = [condition("1", "m4", state=2), take("2", "m1"), take("3", "m2")]
    assert names(store.commit(group, recheck)) == ["committed", "committed", "threshold"]
    group = [remove("4", "m8"), take("5", "m5"), take("6", "m6")]
    assert names(store.commit(group, recheck)) == ["committed", "committed", "threshold"]
    group = [condition("7", "m4", state=0), take("8", "m2")]
    assert names(store.commit(group, recheck)) == ["committed", "committed"]
    assert names(store.commit([add("9", machine("m9")), take("10", "m3")], recheck)) == ["committed", "committed"]


def test_victims_and_what_leaves_a_failed_machine_are_counted(store: Store, recheck: Recheck) -> None:
    store.commit([take("1", "m1", purpose="new"), condition("2", "m1", state=2), keep("k", 3, 3, 3)], recheck)
    lost = PlacedVM("v1", WHOLE, "m1")
    again = place("3", "t1", {"v1": "m2"}, WHOLE, leaving=[lost], record=Record(agent="a", purpose="healing"))
    assert commit(store, recheck, again) == ["threshold"], "the machine that it leaves is down"
    store.commit([keep("l", 3, 3, 2)], recheck)
    assert commit(store, recheck, again) == ["committed"]


# ------------------------------------------------------------------------------------------------ what is kept, and how


def test_what_is_kept_is_what_the_registry_says_by_now(store: Store, recheck: Recheck) -> None:
    assert commit(store, recheck, take("1", "m1")) == ["committed"]
    group = [take("2", "m2"), keep("k", 2), take("3", "m3"), keep("l", 1), take("4", "m3"), take("5", "m4")]
    assert names(store.commit(group, recheck)) == [
        "committed", "committed", "threshold", "committed", "committed", "threshold",
    ]  # fmt: skip
    store.commit([register("m", "c1", None, kind=THRESHOLD)], recheck)
    assert commit(store, recheck, take("6", "m4")) == ["committed"]


def test_a_dry_run_says_the_same_and_writes_nothing(store: Store, recheck: Recheck) -> None:
    store.commit([keep("k", 3)], recheck)
    with unchanged(store):
        assert names(store.commit([take("1", "m1"), take("2", "m2")], recheck, dry=True)) == ["committed", "threshold"]


def two_policies() -> EngineRecheck:
    """Tenants that begin with x are decided by a policy that knows no thresholds."""
    kept = tuple(bound for bound in RULES.cluster_validators if bound.rule.name != "keeps_empty_machines")
    careless = replace(RULES, cluster_validators=kept)
    zone = zone_of(CATALOGUE, MACHINES)
    return EngineRecheck(zone, RULES, careless, arm_of=lambda tenant: int(tenant.startswith("x")))


def test_a_policy_without_the_rule_is_not_held_to_it(store: Store) -> None:
    recheck = two_policies()
    store.commit([keep("k", 3)], recheck)
    group = [take("1", "m1"), take("2", "m2"), take("3", "m2", tenant="x"), take("4", "m3", tenant="xx")]
    assert names(store.commit(group, recheck)) == ["committed", "threshold", "committed", "committed"]
    assert commit(store, recheck, take("5", "m4")) == ["threshold"]


# ----------------------------------------------------------------------------------------------------- at the same time


class Pausing:
    """The rows of a commit, of which the first test takes a while: all is locked and counted by then."""

    def __init__(self, tested: CommitRows, happens: Callable[[], None]) -> None:
        self._tested, self._happens = tested, happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tested, name)

    def place(self, machine: str, vm: VM, tenant: str) -> str | None:
        """As ever, after what happens meanwhile."""
        self._happens()
        return self._tested.place(machine, vm, tenant)


class Counting(Meanwhile):
    """A re-check during which something else happens after the sums were counted."""

    def on(self, rows: Sequence[MachineRow]) -> CommitRows:
        """The usual one, which pauses."""
        paused: Any = Pausing(self.recheck.on(rows), self.happens)
        return paused  # type: ignore[no-any-return]


@in_postgres
def test_commits_that_would_take_the_same_last_machine_wait_for_each_other(
    store: Store, home: Home, recheck: Recheck
) -> None:
    """The other one begins when this one has counted, and cannot count before this one is committed."""
    store.commit([keep("k", 3)], recheck)
    other, found = home.another(), list[str]()
    late = threading.Thread(target=lambda: found.extend(commit(other, recheck, take("2", "m2"))))
    assert commit(store, Counting(recheck, late.start), take("1", "m1")) == ["committed"]
    late.join()
    assert found == ["threshold"]


@in_postgres
def test_commits_that_take_nothing_that_is_kept_wait_for_nobody(store: Store, home: Home, recheck: Recheck) -> None:
    """While one is being settled that holds its cluster's lock, others commit in the same cluster."""
    store.commit([take("0", "m4", VM("small")), keep("k", 2, cluster="c2"), keep("l", 1)], recheck)
    other, found = home.another(), list[str]()
    free = [take("2", "m4", VM("small")), take("3", "m3", SPOT), take("4", "m2", purpose="healing")]
    late = threading.Thread(target=lambda: found.extend(commit(other, recheck, *free)))

    def meanwhile() -> None:
        late.start()
        late.join(10)
        assert found == ["committed"] * 3

    assert commit(store, Counting(recheck, meanwhile), take("1", "m1")) == ["committed"]


# ----------------------------------------------------------------------------------------------------- what agents make


def test_an_agent_that_comes_too_late_hears_of_it_and_declines_with_the_reason(store: Store, recheck: Recheck) -> None:
    store.commit([keep("k", 3)], recheck)
    slow = HeldCourier(store)
    agent = Agent(store, slow, POLICY, "late")
    ticket = agent.submit(PlaceVMs(Request("late", (msgspec.structs.replace(WHOLE, cluster="c1"),))), "late")
    agent.step()  # decides before it has heard of anything
    (proposal,) = slow.out[0].proposals
    assert isinstance(proposal, Place)
    another = next(name for name in ("m1", "m2") if name != proposal.placed[0].machine)
    assert commit(store, recheck, take("1", another)) == ["committed"]
    for _ in range(4):
        slow.commit()
        agent.step()
    assert ticket.answer is not None
    assert (ticket.answer.status, ticket.answer.retries) == ("declined", 1)
    assert (agent.counters.conflicts, agent.counters.reasons) == (1, {"threshold": 1})
    told = recall(store, "late", lambda _: POLICY).explanation
    assert told.failure == "threshold"
    assert "4 cluster keeps its empty machines from new deployments" in told.summary
    is_sound(store)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["alone", "beside another cluster's"])
def test_a_threshold_that_comes_back_with_the_group_holds_for_the_rest_of_it(elsewhere: bool) -> None:
    """An entry that lifted what the zone file says is removed: from then on that counts, also for the same group."""
    kept = {"c1": Thresholds(new=4), "c2": Thresholds(new=1)}
    catalogue = msgspec.structs.replace(CATALOGUE, thresholds=kept)
    recheck, store = recheck_of(MACHINES, catalogue), MemoryStore(catalogue)
    store.commit([add("first", *MACHINES), keep("lift", 0)], recheck)
    group: list[Proposal] = [register("back", "c1", None, kind=THRESHOLD), take("1", "m1")]
    if elsewhere:
        group.insert(1, take("2", "m5"))
    assert names(store.commit(group, recheck))[-1] == "threshold"
