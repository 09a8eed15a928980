"""What every store promises, tried on each: in memory, in SQLite, in PostgreSQL."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import msgspec
import psycopg
import pytest

from roost.engine.recheck import CompiledRecheck as EngineRecheck
from roost.model.availability import AvailabilitySet, Short
from roost.model.change import PlacedVM
from roost.model.errors import InvalidInput, InvariantBroken, StoreUnavailable
from roost.model.inventory import zone_of
from roost.model.request import VM, Constraints
from roost.model.spans import DAY
from roost.rules.policy import Policy
from roost.store import postgres, sqlite
from roost.store.contract import (
    LARGEST_GROUP,
    Committed,
    Conflict,
    Decided,
    Mending,
    Outcome,
    Proposal,
    Record,
    Rejected,
    Replayed,
    Round,
    SetCondition,
    Store,
)
from roost.store.ledger import Ledger, TenantRow, VMRow, replayed
from roost.store.postgres import PostgresStore
from roost.store.postgres_line import Hearing
from roost.store.recheck import Recheck
from roost.store.sqlite import SqliteStore
from tests.contract.conftest import Home, Homes, in_postgres, in_sqlite, that_last
from tests.contract.tiny import (
    BIG,
    CATALOGUE,
    EVERY_KIND,
    MACHINES,
    PAIRS,
    SMALL,
    WHOLE,
    Agreeable,
    Meanwhile,
    Stumbling,
    add,
    ask,
    condition,
    decline,
    followed,
    head,
    history,
    is_sound,
    machine,
    names,
    place,
    placed,
    quarantine,
    recheck_of,
    register,
    release,
    remove,
    same,
    unchanged,
)

LOWER = [0] * 6  # what the three lower bands use of two resources, if nothing


def stamp_of(store: Store, tenant: str) -> int:
    """The tenant's stamp as of now."""
    return head(store).tenants[tenant].stamp


# ------------------------------------------------------------------------------------------------------------- placing


def test_what_is_committed_is_there(store: Store, recheck: Recheck) -> None:
    (outcome,) = store.commit([place("k", "t", {"a": "m1", "b": "m1", "c": "m5"}, SMALL)], recheck)
    ledger = head(store)
    assert ledger.revision == 2
    assert outcome == Committed({"m1": 1, "m5": 1}, ledger.tenants["t"].stamp)
    assert ledger.vms == {
        name: VMRow("t", PlacedVM(name, SMALL, on)) for name, on in (("a", "m1"), ("b", "m1"), ("c", "m5"))
    }
    assert (ledger.machines["m1"].used, ledger.machines["m1"].vms) == ([2, 2, *LOWER], 2)
    assert (ledger.machines["m5"].used, ledger.machines["m5"].vms) == ([1, 1, *LOWER], 1)
    assert ledger.tenants["t"].vms == 3


def test_all_vms_are_placed_or_none(store: Store, recheck: Recheck) -> None:
    with unchanged(store):
        (outcome,) = store.commit([place("k", "t", {"a": "m1", "b": "m2", "c": "m2"}, BIG)], recheck)
        assert names([outcome]) == ["room"]
        assert store.decided("k") is None


def test_each_vm_is_tested_on_what_those_before_it_left(store: Store, recheck: Recheck) -> None:
    """Either fits alone, on the same machine they do not."""
    assert names(store.commit([place("k1", "t", {"a": "m1", "b": "m1"}, BIG)], recheck)) == ["room"]
    assert names(store.commit([place("k2", "t", {"a": "m1", "b": "m2"}, BIG)], recheck)) == ["committed"]


def test_each_proposal_is_tested_on_what_those_before_it_left(store: Store, recheck: Recheck) -> None:
    group = [place("k1", "t", {"a": "m1"}, BIG), place("k2", "u", {"b": "m1"}, BIG), place("k3", "v", {"c": "m1"})]
    assert names(store.commit(group, recheck)) == ["committed", "room", "committed"]
    assert head(store).machines["m1"].used == [4, 7, *LOWER]


def test_what_is_released_makes_room_for_its_neighbours(store: Store, recheck: Recheck) -> None:
    store.commit([place("k1", "t", {"a": "m1"}, WHOLE)], recheck)
    group = [
        place("k2", "u", {"b": "m1"}, WHOLE),
        release("k3", "t", {"a": "m1"}, WHOLE),
        place("k4", "v", {"c": "m1"}, WHOLE),
    ]
    assert names(store.commit(group, recheck)) == ["room", "committed", "committed"]


def test_a_name_that_was_released_is_free_for_its_neighbours(store: Store, recheck: Recheck) -> None:
    store.commit([place("k1", "t", {"a": "m1"})], recheck)
    group = [release("k2", "t", {"a": "m1"}), place("k3", "u", {"a": "m2"}, BIG)]
    assert names(store.commit(group, recheck)) == ["committed", "committed"]
    assert head(store).vms == {"a": VMRow("u", PlacedVM("a", BIG, "m2"))}


def test_a_vm_may_come_and_go_within_a_group(store: Store, recheck: Recheck) -> None:
    group = [place("k1", "t", {"a": "m1"}), release("k2", "t", {"a": "m1"})]
    assert names(store.commit(group, recheck)) == ["committed", "committed"]
    ledger = head(store)
    assert (ledger.revision, ledger.vms, ledger.tenants) == (3, {}, {})


def test_a_tenant_may_go_and_come_back_within_a_group(store: Store, recheck: Recheck) -> None:
    store.commit([place("k1", "t", {"a": "m1"})], recheck)
    group = [release("k2", "t", {"a": "m1"}), place("k3", "t", {"b": "m1"}, constraints=PAIRS)]
    assert names(store.commit(group, recheck)) == ["committed", "committed"]
    assert head(store).tenants["t"].constraints == PAIRS


def test_a_neighbours_condition_counts(store: Store, recheck: Recheck) -> None:
    group = [
        condition("k1", "m1", state=1),
        place("k2", "t", {"a": "m1"}),
        condition("k3", "m1", state=0),
        place("k4", "u", {"b": "m1"}),
    ]
    assert names(store.commit(group, recheck)) == ["committed", "room", "committed", "committed"]


def test_a_lower_band_holds_what_it_has(store: Store, recheck: Recheck) -> None:
    spot = VM("big", priority="spot")
    group = [place("k1", "t", {"a": "m1"}, spot), place("k2", "u", {"b": "m1"}, BIG), place("k3", "u", {"c": "m1"})]
    assert names(store.commit(group, recheck)) == ["committed", "room", "committed"]
    assert head(store).machines["m1"].used == [1, 1, 3, 6, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("first", "second", "other", "reason"),
    [
        (VM("small", isolated=True), SMALL, "u", "isolation"),
        (VM("small", isolated=True), VM("small", isolated=True), "u", "isolation"),
        (SMALL, VM("small", isolated=True), "u", "isolation"),
        (VM("small", isolated=True), VM("small", isolated=True), "t", ""),
        (VM("small", colocation="loud"), VM("small", colocation="shy"), "t", "anti-colocation"),
        (VM("small", colocation="single"), VM("small", colocation="single"), "u", "anti-colocation"),
        (VM("small", colocation="loud"), VM("small", colocation="loud"), "u", ""),
        (WHOLE, SMALL, "t", "insufficient cores"),
        (SMALL, VM("modern"), "t", "insufficient cores"),
        (SMALL, VM("huge"), "t", "no VM type is called 'huge'"),
    ],
)
def test_what_may_not_share_a_machine_does_not(
    store: Store, recheck: Recheck, first: VM, second: VM, other: str, reason: str
) -> None:
    outcomes = store.commit([place("k1", "t", {"a": "m1"}, first), place("k2", other, {"b": "m1"}, second)], recheck)
    assert names(outcomes) == ["committed", "room" if reason else "committed"]
    if isinstance(outcomes[1], Conflict):
        assert outcomes[1].detail.startswith("machine m1: ")
        assert reason in outcomes[1].detail


def test_what_a_lost_proposal_tried_leaves_no_trace_on_its_neighbours(store: Store, recheck: Recheck) -> None:
    """It isolated a machine and filled another, before its last VM did not fit."""
    tried = (
        PlacedVM("a", VM("small", isolated=True), "m1"),
        PlacedVM("b", VM("whole", colocation="loud"), "m2"),
        PlacedVM("c", VM("modern"), "m3"),
    )
    group = [
        place("k1", "t", tried),
        place("k2", "u", {"d": "m1"}),
        place("k3", "u", {"e": "m2"}, VM("whole", colocation="shy")),
    ]
    assert names(store.commit(group, recheck)) == ["room", "committed", "committed"]


def test_a_name_is_taken_once(store: Store, recheck: Recheck) -> None:
    group = [place("k1", "t", {"a": "m1"}), place("k2", "u", {"a": "m2"}), place("k3", "v", {"b": "m2"})]
    assert names(store.commit(group, recheck)) == ["committed", "name", "committed"]
    (outcome,) = store.commit([place("k4", "u", {"c": "m3", "b": "m3"})], recheck)
    assert isinstance(outcome, Conflict)
    assert (outcome.reason, outcome.detail) == ("name", "a VM b runs already")
    twice = (PlacedVM("d", SMALL, "m1"), PlacedVM("d", SMALL, "m2"))
    assert names(store.commit([place("k5", "u", twice)], recheck)) == ["name"]
    assert head(store).vms.keys() == {"a", "b"}


def test_a_machine_that_is_no_more_is_a_conflict(store: Store, recheck: Recheck) -> None:
    assert names(store.commit([remove("k1", "m2"), place("k2", "t", {"a": "m1", "b": "m2"})], recheck)) == [
        "committed",
        "machine",
    ]
    assert names(store.commit([place("k3", "t", {"a": "m2"})], recheck)) == ["machine"]


def test_a_machine_the_agent_has_not_heard_of_is_a_conflict(store: Store, recheck: Recheck) -> None:
    """The re-check knows no rows for it; the agent will when the feed brings it."""
    (_, outcome) = store.commit([add("k1", machine("m9")), place("k2", "t", {"a": "m9"})], recheck)
    assert isinstance(outcome, Conflict)
    assert "m9" in outcome.detail


def test_a_machine_that_came_back_as_another_is_not_overfilled(store: Store, recheck: Recheck) -> None:
    """The agent believes that m5 is new, where a big VM takes 2 cores; it is old by now, and there it takes 3."""
    store.commit([remove("k1", "m5")], recheck)
    store.commit([add("k2", machine("m5", "c3", "old"))], recheck)
    assert names(store.commit([place("k3", "t", {"a": "m5", "b": "m5"}, BIG)], recheck)) == ["room"]


@pytest.mark.parametrize(
    "proposal",
    [
        place("k", "t", {}),
        place("k", "", {"a": "m1"}),
    ],
    ids=["no VM", "no tenant"],
)
def test_what_makes_no_sense_is_rejected(store: Store, recheck: Recheck, proposal: Proposal) -> None:
    """And its neighbours do not suffer for it."""
    store.commit([place("k1", "u", {"x": "m1"})], recheck)
    outcomes = store.commit([proposal, place("k2", "u", {"y": "m1"})], recheck)
    assert names(outcomes) == ["rejected", "committed"]
    assert head(store).vms.keys() == {"x", "y"}


def test_a_group_has_a_limit(store: Store, recheck: Recheck) -> None:
    assert store.commit([], recheck) == []
    with unchanged(store), pytest.raises(InvalidInput, match="commit at most 1024 together"):
        store.commit([decline(f"k{i}") for i in range(LARGEST_GROUP + 1)], recheck)
    assert names(store.commit([decline(f"k{i}") for i in range(LARGEST_GROUP)], recheck)) == ["committed"] * 1024


# ----------------------------------------------------------------------------------------------------------- conflicts


def test_a_conflict_shows_the_machines_as_they_are_at_the_end_of_the_group(store: Store, recheck: Recheck) -> None:
    outcomes = store.commit(
        [
            place("k1", "t", {"a": "m1", "b": "m2", "c": "m2"}, BIG),
            place("k2", "u", {"d": "m1"}, BIG),
            condition("k3", "m2", health=50),
            place("k4", "v", {"e": "m1"}),
        ],
        recheck,
    )
    assert names(outcomes) == ["room", "committed", "committed", "committed"]
    assert isinstance(outcomes[0], Conflict)
    now = head(store).machines
    assert outcomes[0].machines == (now["m1"], now["m2"])
    assert (now["m1"].version, now["m2"].version) == (2, 1)


def test_what_a_conflict_shows_is_the_agents_own(store: Store, recheck: Recheck) -> None:
    """An agent writes on these rows."""
    (outcome,) = store.commit([place("k", "t", {"a": "m1", "b": "m1"}, BIG)], recheck)
    assert isinstance(outcome, Conflict)
    with unchanged(store):
        outcome.machines[0].used[0] = 99
        outcome.machines[0].vms = 99


def test_what_was_loaded_is_ones_own(store: Store) -> None:
    with unchanged(store):
        ledger = store.load()
        ledger.machines["m1"].used[0] = 99
        ledger.machines.clear()
        ledger.clusters.clear()


def test_a_machine_that_goes_later_in_the_group_is_not_shown(store: Store, recheck: Recheck) -> None:
    (outcome, _) = store.commit([place("k1", "t", {"a": "m1", "b": "m1"}, BIG), remove("k2", "m1")], recheck)
    assert isinstance(outcome, Conflict)
    assert outcome.machines == ()


def test_one_conflict_fails_no_neighbour(store: Store, recheck: Recheck) -> None:
    group: list[Proposal] = [
        place("k1", "t", {"a": "m1"}),
        place("k2", "u", {"a": "m2"}),
        release("k3", "w", {"z": "m1"}),
        condition("k4", "m99", state=0),
        place("k5", "t", {"b": "m1", "c": "m99"}),
        place("k6", "x", {"d": "m1"}),
    ]
    assert names(store.commit(group, recheck)) == ["committed", "name", "gone", "rejected", "machine", "committed"]
    ledger = head(store)
    assert ledger.vms == {"a": VMRow("t", PlacedVM("a", SMALL, "m1")), "d": VMRow("x", PlacedVM("d", SMALL, "m1"))}
    assert ledger.revision == 3


# -------------------------------------------------------------------------------------------------------- merge, strict


def test_what_was_decided_on_an_outdated_machine_and_fits_is_merged(store: Store, recheck: Recheck) -> None:
    store.commit([place("k1", "t", {"a": "m1"})], recheck)
    assert names(store.commit([place("k2", "u", {"b": "m1"}, seen={"m1": 0})], recheck)) == ["committed"]


def test_a_strict_store_refuses_what_was_decided_on_an_outdated_machine(store: Store, recheck: Recheck) -> None:
    store.commit([place("k1", "t", {"a": "m1"})], recheck)
    with unchanged(store):
        outdated = place("k2", "u", {"b": "m2", "c": "m1"}, seen={"m1": 0, "m2": 0})
        (outcome,) = store.commit([outdated], recheck, strict=True)
        assert isinstance(outcome, Conflict)
        assert (outcome.reason, outcome.detail) == ("stale", "machine m1 has changed")
        assert {row.spec.name: row.version for row in outcome.machines} == {"m1": 1, "m2": 0}
    fresh = place("k2", "u", {"b": "m2", "c": "m1"}, seen={"m1": 1, "m2": 0})
    assert names(store.commit([fresh], recheck, strict=True)) == ["committed"]


def test_a_strict_store_refuses_what_says_nothing_of_the_machine(store: Store, recheck: Recheck) -> None:
    assert names(store.commit([place("k", "t", {"a": "m1"})], recheck, strict=True)) == ["stale"]


def test_a_strict_store_still_tests_what_is_up_to_date(store: Store, recheck: Recheck) -> None:
    proposal = place("k", "t", {"a": "m1", "b": "m1"}, BIG, seen={"m1": 0})
    assert names(store.commit([proposal], recheck, strict=True)) == ["room"]


def test_in_a_strict_group_neighbours_do_not_outdate_each_other(store: Store, recheck: Recheck) -> None:
    """An agent decides a group on one view of the zone: what it saw was before the group."""
    group = [
        place("k1", "t", {"a": "m1"}, seen={"m1": 0}),
        place("k2", "u", {"b": "m1"}, seen={"m1": 0}),
        place("k3", "v", {"c": "m1"}, seen={"m1": 1}),
    ]
    assert names(store.commit(group, recheck, strict=True)) == ["committed", "committed", "stale"]


def test_a_strict_store_refuses_an_outdated_tenant(store: Store, recheck: Recheck) -> None:
    store.commit([place("k1", "t", {"a": "m1"})], recheck)
    stamp = stamp_of(store, "t")
    outdated = place("k2", "t", {"b": "m2"}, stamp=0, seen={"m2": 0})
    (outcome,) = store.commit([outdated], recheck, strict=True)
    assert isinstance(outcome, Conflict)
    assert (outcome.reason, outcome.stamp) == ("tenant", stamp)
    fresh = place("k2", "t", {"b": "m2"}, stamp=stamp, seen={"m2": 0})
    assert names(store.commit([fresh], recheck, strict=True)) == ["committed"]


# ------------------------------------------------------------------------------------------------------------- tenants


def test_a_tenant_with_constraints_must_be_as_it_was(store: Store, recheck: Recheck) -> None:
    store.commit([place("k1", "t", {"a": "m1"}, constraints=PAIRS)], recheck)
    first = stamp_of(store, "t")
    store.commit([place("k2", "t", {"b": "m1"}, constraints=PAIRS, stamp=first)], recheck)
    second = stamp_of(store, "t")
    with unchanged(store):
        (outcome,) = store.commit([place("k3", "t", {"c": "m1"}, constraints=PAIRS, stamp=first)], recheck)
        assert isinstance(outcome, Conflict)
        assert (outcome.reason, outcome.stamp) == ("tenant", second)
    assert names(store.commit([place("k3", "t", {"c": "m2"}, constraints=PAIRS, stamp=second)], recheck)) == [
        "committed"
    ]


def test_a_tenant_with_availability_sets_must_be_as_it_was(store: Store, recheck: Recheck) -> None:
    spread = Constraints(sets={"db": AvailabilitySet(fault_domains=2, best_effort=True)})
    store.commit([place("k1", "t", {"a": "m1"}, VM("small", set="db"), constraints=spread)], recheck)
    first = stamp_of(store, "t")
    store.commit([place("k2", "t", {"b": "m2"}, VM("small", set="db"), constraints=spread, stamp=first)], recheck)
    with unchanged(store):
        late = place("k3", "t", {"c": "m1"}, VM("small", set="db"), constraints=spread, stamp=first)
        assert names(store.commit([late], recheck)) == ["tenant"]
    known = store.tenant("t")
    assert known is not None
    assert known.constraints == spread
    assert {row.spec.set for _, row in store.vms()} == {"db"}


def test_a_tenant_without_constraints_may_have_changed(store: Store, recheck: Recheck) -> None:
    group = [place(f"k{i}", "t", {f"v{i}": "m1"}) for i in range(3)]
    assert names(store.commit(group, recheck)) == ["committed"] * 3
    assert head(store).tenants["t"].vms == 3


def test_of_two_that_begin_a_tenant_with_constraints_the_first_wins(store: Store, recheck: Recheck) -> None:
    group = [place(f"k{i}", "t", {f"v{i}": "m1"}, constraints=PAIRS) for i in range(2)]
    assert names(store.commit(group, recheck)) == ["committed", "tenant"]


def test_a_tenant_that_is_gone_is_not_as_it_was(store: Store, recheck: Recheck) -> None:
    store.commit([place("k1", "t", {"a": "m1"}, constraints=PAIRS)], recheck)
    stamp = stamp_of(store, "t")
    store.commit([release("k2", "t", {"a": "m1"})], recheck)
    (outcome,) = store.commit([place("k3", "t", {"b": "m1"}, constraints=PAIRS, stamp=stamp)], recheck)
    assert isinstance(outcome, Conflict)
    assert (outcome.reason, outcome.stamp) == ("tenant", 0)


def test_a_tenant_keeps_its_constraints_while_it_has_vms(store: Store, recheck: Recheck) -> None:
    store.commit([place("k1", "t", {"a": "m1"})], recheck)
    stamp = stamp_of(store, "t")
    group = [place("k2", "t", {"b": "m1"}, constraints=PAIRS, stamp=stamp)]
    assert names(store.commit(group, recheck)) == ["tenant"]
    store.commit([release("k3", "t", {"a": "m1"})], recheck)
    assert names(store.commit([place("k4", "t", {"b": "m1"}, constraints=PAIRS)], recheck)) == ["committed"]
    assert head(store).tenants["t"].constraints == PAIRS


def test_a_stamp_never_comes_back(store: Store, recheck: Recheck) -> None:
    """Whatever else the groups held: who decided on the tenant as it was before is refused."""
    store.commit([decline("x1"), decline("x2"), place("k1", "t", {"a": "m1"}, constraints=PAIRS)], recheck)
    first = stamp_of(store, "t")
    store.commit([decline("x3"), place("k2", "t", {"b": "m2"}, constraints=PAIRS, stamp=first)], recheck)
    assert stamp_of(store, "t") != first
    assert names(store.commit([place("k3", "t", {"c": "m1"}, constraints=PAIRS, stamp=first)], recheck)) == ["tenant"]


def test_every_entry_of_a_tenant_gives_it_another_stamp(store: Store, recheck: Recheck) -> None:
    pattern = random.Random(1)
    for i in range(20):
        noise: list[Proposal] = [decline(f"x{i}-{j}") for j in range(pattern.randrange(4))]
        store.commit([*noise, place(f"p{i}", "t", {"a": "m1"}), release(f"r{i}", "t", {"a": "m1"})], recheck)
    stamps = [entry.after for _, entry in store.changes(1).after(1) if entry.after]
    assert len(set(stamps)) == len(stamps) == 20


# ------------------------------------------------------------------------------------------------------------ releasing


def test_some_of_a_tenants_vms_go_and_the_rest_stays(store: Store, recheck: Recheck) -> None:
    store.commit([place("k1", "t", {"a": "m1", "b": "m1", "c": "m2"})], recheck)
    (outcome,) = store.commit([release("k2", "t", {"a": "m1", "c": "m2"})], recheck)
    ledger = head(store)
    assert outcome == Committed({"m1": 2, "m2": 2}, ledger.tenants["t"].stamp)
    assert ledger.vms == {"b": VMRow("t", PlacedVM("b", SMALL, "m1"))}
    assert ledger.tenants["t"].vms == 1
    assert (ledger.machines["m1"].used, ledger.machines["m2"].used) == ([1, 1, *LOWER], [0, 0, *LOWER])


def test_with_its_last_vm_a_tenant_is_forgotten(store: Store, recheck: Recheck) -> None:
    isolated = VM("small", isolated=True, colocation="single")
    store.commit([place("k1", "t", {"a": "m1"}, isolated)], recheck)
    assert head(store).machines["m1"].owner == "t"
    assert store.commit([release("k2", "t", {"a": "m1"}, isolated)], recheck) == [Committed({"m1": 2})]
    ledger = head(store)
    assert (ledger.tenants, ledger.vms) == ({}, {})
    row = ledger.machines["m1"]
    assert (row.owner, row.classes, row.vms, row.version) == ("", [0, 0, 0], 0, 2)


@pytest.mark.parametrize(
    ("proposal", "reason"),
    [
        (release("k", "nobody", {"a": "m1"}), "gone"),
        (release("k", "t", {"z": "m1"}), "gone"),
        (release("k", "u", {"a": "m1"}), "gone"),
        (release("k", "t", {"a": "m1", "x": "m1"}), "gone"),
        (release("k", "t", placed({"a": "m1"}) * 2), "gone"),
        (release("k", "t", {"a": "m2"}), "tenant"),
        (release("k", "t", {"a": "m99"}), "tenant"),
        (release("k", "t", {"a": "m1"}, BIG), "tenant"),
        (release("k", "t", {"a": "m1"}, stamp=999_999), "tenant"),
    ],
    ids=[
        "an unknown tenant",
        "an unknown VM",
        "a VM of another tenant",
        "one of its own and one of another",
        "the same VM twice",
        "a VM that is elsewhere",
        "a VM on an unknown machine",
        "a VM of another kind",
        "a tenant as it never was",
    ],
)
def test_what_is_not_there_cannot_be_released(store: Store, recheck: Recheck, proposal: Proposal, reason: str) -> None:
    store.commit([place("k1", "t", {"a": "m1", "b": "m1"}), place("k2", "u", {"x": "m1"})], recheck)
    with unchanged(store):
        assert names(store.commit([proposal], recheck)) == [reason]


def test_who_takes_all_of_a_tenant_must_know_all_of_it(store: Store, recheck: Recheck) -> None:
    store.commit([place("k1", "t", {"a": "m1"})], recheck)
    stamp = stamp_of(store, "t")
    store.commit([place("k2", "t", {"b": "m1"})], recheck)
    (outcome,) = store.commit([release("k3", "t", {"a": "m1"}, stamp=stamp)], recheck)
    assert isinstance(outcome, Conflict)
    assert (outcome.reason, outcome.stamp) == ("tenant", stamp_of(store, "t"))
    everything = release("k4", "t", {"a": "m1", "b": "m1"}, stamp=stamp_of(store, "t"))
    assert names(store.commit([everything], recheck)) == ["committed"]


@pytest.mark.parametrize(
    "fields", [{"traits": {"mood": 1}}, {"isolated": True}, {"colocation": "loud"}, {"cluster": "c9"}]
)
def test_what_the_rules_no_longer_know_of_can_be_released_all_the_same(store: Store, fields: dict[str, object]) -> None:
    """Two VMs were placed under another policy; under this one, nobody could ask for the second."""
    text = "name: plain\nmachines: {validators: [has_room, evicts_nobody], preferences: [non_empty]}\n"
    recheck = EngineRecheck(zone_of(CATALOGUE, MACHINES), Policy.parse(text).rules)
    odd = msgspec.convert({"type": "small"} | fields, VM)
    vms = (PlacedVM("a", SMALL, "m1"), PlacedVM("b", odd, "m2"))
    assert names(store.commit([place("k1", "t", vms)], Agreeable())) == ["committed"]
    assert names(store.commit([release("k2", "t", vms)], recheck)) == ["committed"]
    assert head(store).vms == {}


# --------------------------------------------------------------------------------------------------- machines, clusters


def test_a_machines_condition_is_set(store: Store, recheck: Recheck) -> None:
    (outcome,) = store.commit([condition("k1", "m1", state=1, health=40, failures=2, versions_behind=3)], recheck)
    assert outcome == Committed({"m1": 1})
    row = head(store).machines["m1"]
    assert (row.state, row.health, row.failures, row.versions_behind, row.version) == (1, 40, 2, 3, 1)


def test_a_condition_is_told_in_one_piece(store: Store, recheck: Recheck) -> None:
    """A proposal of several fields is one entry."""
    fields = {"state": 1, "health": 3}
    proposal = SetCondition(key="k", request=b"{}", record=Record(), machine="m1", condition=fields)
    store.commit([proposal], recheck)
    ((_, entry),) = store.changes(1).after(1)
    assert [(change.field, change.before, change.after) for change in entry.conditions] == [
        ("state", 0, 1),
        ("health", 100, 3),
    ]
    assert entry.versions == {"m1": 1}


def test_what_a_machine_is_already_is_nothing_new(store: Store, recheck: Recheck) -> None:
    """It is done, but no follower hears of it."""
    outcomes = store.commit([condition("k1", "m1", health=100), quarantine("k2", "c1", False)], recheck)
    assert [outcome.changed for outcome in outcomes if isinstance(outcome, Committed)] == [False, False]
    ledger = head(store)
    assert (ledger.revision, ledger.machines["m1"].version) == (1, 0)
    assert names(store.commit([condition("k1", "m1", health=100)], recheck)) == ["replayed"]


def test_what_is_said_of_a_machine_may_rest_on_its_version(store: Store, recheck: Recheck) -> None:
    store.commit([condition("k1", "m1", health=50)], recheck)
    late, timely = condition("k2", "m1", version=0, health=40), condition("k2", "m1", version=1, health=40)
    with unchanged(store):
        (outcome,) = store.commit([late], recheck)
        assert outcome == Conflict("premise", "machine m1 has changed", (head(store).machines["m1"],), 1)
    assert names(store.commit([timely], recheck)) == ["committed"]


def test_a_cluster_is_quarantined_and_opened(store: Store, recheck: Recheck) -> None:
    assert store.commit([quarantine("k1", "c1")], recheck) == [Committed()]
    assert {name: row.quarantined for name, row in head(store).clusters.items()} == {"c1": True, "c2": False}
    store.commit([quarantine("k2", "c1", False)], recheck)
    assert not head(store).clusters["c1"].quarantined


def test_machines_are_added_in_the_condition_they_are_in(store: Store, recheck: Recheck) -> None:
    specs = (machine("m9", "c3", "new"), machine("m10", "c3", "new"), machine("m11", "c1"))
    assert store.commit([add("k", *specs, conditions={"m9": {"state": 2, "health": 10}})], recheck) == [Committed()]
    ledger = head(store)
    assert [ledger.machines[spec.name].spec for spec in specs] == list(specs)
    assert (ledger.machines["m9"].state, ledger.machines["m9"].health, ledger.machines["m9"].version) == (2, 10, 0)
    assert {name: row.machines for name, row in ledger.clusters.items()} == {"c1": 5, "c2": 4, "c3": 2}
    assert (ledger.clusters["c3"].generation, ledger.clusters["c3"].datacenter) == ("new", "dc1")


def test_a_new_machine_can_be_told_of_in_the_same_group(store: Store, recheck: Recheck) -> None:
    group = [add("k1", machine("m9", "c3")), condition("k2", "m9", health=50), quarantine("k3", "c3")]
    assert names(store.commit(group, recheck)) == ["committed"] * 3
    ledger = head(store)
    assert (ledger.machines["m9"].health, ledger.machines["m9"].version) == (50, 1)
    assert ledger.clusters["c3"].quarantined


def test_a_machine_goes_and_its_cluster_with_the_last(store: Store, recheck: Recheck) -> None:
    store.commit([add("k1", machine("m9", "c3"), machine("m10", "c3")), quarantine("k2", "c3")], recheck)
    store.commit([condition("k3", "m9", health=1, failures=9)], recheck)
    assert store.commit([remove("k4", "m9")], recheck) == [Committed()]
    assert head(store).clusters["c3"].machines == 1
    store.commit([remove("k5", "m10")], recheck)
    ledger = head(store)
    assert ledger.machines.keys() == {spec.name for spec in MACHINES}
    assert ledger.clusters.keys() == {"c1", "c2"}


def test_a_machine_and_a_cluster_that_come_back_are_as_good_as_new(store: Store, recheck: Recheck) -> None:
    store.commit([add("k1", machine("m9", "c3")), condition("k2", "m9", health=1), quarantine("k3", "c3")], recheck)
    store.commit([remove("k4", "m9")], recheck)
    store.commit([add("k5", machine("m9", "c3", "new", datacenter="dc2"))], recheck)
    ledger = head(store)
    assert ledger.machines["m9"].health == 100
    cluster = ledger.clusters["c3"]
    assert (cluster.quarantined, cluster.generation, cluster.datacenter) == (False, "new", "dc2")


def test_a_machine_that_was_emptied_in_the_same_group_can_go(store: Store, recheck: Recheck) -> None:
    store.commit([place("k1", "t", {"a": "m1"})], recheck)
    group = [remove("k2", "m1"), release("k3", "t", {"a": "m1"}), remove("k4", "m1")]
    assert names(store.commit(group, recheck)) == ["rejected", "committed", "committed"]
    assert "m1" not in head(store).machines


def test_a_zone_keeps_its_last_machine(store: Store, recheck: Recheck) -> None:
    every = [spec.name for spec in MACHINES]
    with unchanged(store):
        (outcome,) = store.commit([remove("k1", *every)], recheck)
        assert isinstance(outcome, Rejected)
        assert outcome.error.remedy == "leave at least one"
    group = [remove("k2", *every[:4]), remove("k3", *every[4:]), remove("k4", *every[5:])]
    assert names(store.commit(group, recheck)) == ["committed", "rejected", "committed"]
    assert list(head(store).machines) == ["m5"]


def test_a_machine_replaced_within_a_group_is_replaced_or_refused(store: Store, recheck: Recheck) -> None:
    """Either is fine, but the tables, the feed and the neighbours agree on it."""
    group = [remove("k1", "m1"), add("k2", machine("m1", capacity=(2, 2))), place("k3", "t", {"a": "m1"}, BIG)]
    removed, added, filled = names(store.commit(group, recheck))
    assert removed == "committed"
    assert added in ("committed", "rejected")
    assert filled in ("room", "machine")
    assert ("m1" in head(store).machines) == (added == "committed")


def test_a_machine_that_comes_and_goes_within_a_group_is_gone_or_refused(store: Store, recheck: Recheck) -> None:
    added, removed = names(store.commit([add("k1", machine("m9")), remove("k2", "m9")], recheck))
    assert added == "committed"
    assert removed in ("committed", "rejected")
    assert ("m9" in head(store).machines) == (removed == "rejected")


def test_a_cluster_replaced_within_a_group_is_the_new_one(store: Store, recheck: Recheck) -> None:
    store.commit([add("k1", machine("m9", "c3"))], recheck)
    store.commit([remove("k2", "m9"), add("k3", machine("m10", "c3", "new", datacenter="dc2"))], recheck)
    cluster = head(store).clusters["c3"]
    assert (cluster.generation, cluster.datacenter, cluster.machines) == ("new", "dc2", 1)


BAD: dict[str, tuple[Proposal, str]] = {
    "the condition of an unknown machine": (condition("k", "m99", health=50), "m99"),
    "an unknown condition": (condition("k", "m1", mood=1), "mood"),
    "a good and an unknown condition": (condition("k", "m1", health=5, mood=1), "mood"),
    "a state nobody knows": (condition("k", "m1", state=4), "state"),
    "too much health": (condition("k", "m1", health=101), "health"),
    "fewer than no failures": (condition("k", "m1", failures=-1), "failures"),
    "too many versions behind": (condition("k", "m1", versions_behind=2**15), "versions_behind"),
    "a yes for a number": (condition("k", "m1", health=True), "health"),
    "an unknown cluster": (quarantine("k", "c9"), "c9"),
    "no machine to add": (add("k"), "machines"),
    "a name that is taken": (add("k", machine("m9"), machine("m1")), "m1"),
    "a name given twice": (add("k", machine("m9"), machine("m9")), "m9"),
    "an unknown generation": (add("k", machine("m9", generation="older")), "older"),
    "a cluster of another generation": (add("k", machine("m9", "c1", "new")), "c1"),
    "a cluster in another datacenter": (add("k", machine("m9", datacenter="dc2")), "c1"),
    "a new cluster of two generations": (add("k", machine("m9", "c3"), machine("m10", "c3", "new")), "c3"),
    "too few amounts": (add("k", machine("m9", capacity=(4,))), "capacity"),
    "an amount below nothing": (add("k", machine("m9", capacity=(4, -1))), "capacity"),
    "an amount too large": (add("k", machine("m9", capacity=(4, 2**31))), "capacity"),
    "a machine without a rack": (add("k", machine("m9", rack="")), "rack"),
    "a machine without a cluster": (add("k", machine("m9", cluster="")), "cluster"),
    "a machine without a datacenter": (add("k", machine("m9", cluster="c3", datacenter="")), "datacenter"),
    "an update domain too far": (add("k", machine("m9", update_domain=2**15)), "update_domain"),
    "the condition of a machine that is not added": (add("k", machine("m9"), conditions={"m1": {"health": 1}}), "m1"),
    "a new machine in an impossible condition": (add("k", machine("m9"), conditions={"m9": {"health": -1}}), "health"),
    "no machine to remove": (remove("k"), "machines"),
    "an unknown machine to remove": (remove("k", "m2", "m99"), "m99"),
    "a machine to remove twice": (remove("k", "m2", "m2"), "machines"),
    "a machine that runs VMs": (remove("k", "m2", "m1"), "m1"),
    "an entry without a name": (register("k", "", "1"), "registry"),
    "an entry of no kind": (register("k", "x", "1", kind=""), "registry"),
}


@pytest.mark.parametrize(("proposal", "word"), BAD.values(), ids=BAD)
def test_a_mistake_is_rejected_with_a_word_on_it(store: Store, recheck: Recheck, proposal: Proposal, word: str) -> None:
    """Nothing is changed, no neighbour suffers, and the key is still free."""
    store.commit([place("k1", "t", {"a": "m1"})], recheck)
    with unchanged(store):
        (outcome,) = store.commit([proposal], recheck)
        assert isinstance(outcome, Rejected)
        assert word in str(outcome.error)
        assert outcome.error.remedy
    assert names(store.commit([proposal, place("k2", "t", {"b": "m1"})], recheck)) == ["rejected", "committed"]
    assert names(store.commit([place("k", "t", {"c": "m1"})], recheck)) == ["committed"]


@pytest.mark.parametrize("name", ["the condition of an unknown machine", "an unknown cluster"])
def test_an_unknown_name_is_not_blamed_on_an_empty_zone(store: Store, recheck: Recheck, name: str) -> None:
    (outcome,) = store.commit([BAD[name][0]], recheck)
    assert isinstance(outcome, Rejected)
    assert "none are defined" not in str(outcome.error)


# ---------------------------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize("proposal", EVERY_KIND.values(), ids=EVERY_KIND)
def test_a_key_is_done_once(store: Store, recheck: Recheck, proposal: Proposal) -> None:
    """In the same group or later, and whatever happened since."""
    store.commit([place("k1", "t", {"a": "m1"})], recheck)
    done, again = store.commit([proposal, proposal], recheck)
    decided = store.decided("k")
    assert decided is not None
    assert (decided.key, decided.outcome, decided.request) == ("k", "committed", proposal.request)
    assert isinstance(done, Committed)
    assert again == Replayed(decided)
    store.commit([condition("k2", "m1", health=70), quarantine("k3", "c1", False)], recheck)
    with unchanged(store):
        assert store.commit([proposal], recheck) == [Replayed(decided)]
        assert store.commit([proposal], recheck, strict=True) == [Replayed(decided)]


@that_last
@pytest.mark.parametrize("proposal", EVERY_KIND.values(), ids=EVERY_KIND)
def test_a_key_is_done_once_though_the_store_was_closed(
    store: Store, reopen: Callable[[], Store], recheck: Recheck, proposal: Proposal
) -> None:
    store.commit([place("k1", "t", {"a": "m1"}), proposal], recheck)
    decided, ledger = store.decided("k"), head(store)
    assert decided is not None
    store = reopen()
    assert store.commit([proposal], recheck) == [Replayed(decided)]
    same(ledger, head(store))


def test_what_was_placed_is_told_again_though_it_is_gone(store: Store, recheck: Recheck) -> None:
    first = place("k1", "t", {"a": "m1", "b": "m2"}, record=Record(agent="a", at=12.5, order=(1, 0)))
    (done,) = store.commit([first], recheck)
    assert isinstance(done, Committed)
    store.commit([release("k2", "t", {"a": "m1", "b": "m2"})], recheck)
    (outcome,) = store.commit([first], recheck)
    assert isinstance(outcome, Replayed)
    record = msgspec.structs.replace(first.record, generation=done.stamp)
    assert outcome.decided == Decided(
        key="k1", outcome="committed", request=first.request, record=record, placed=first.placed
    )
    assert head(store).vms == {}


def test_a_key_may_be_placed_elsewhere_the_second_time(store: Store, recheck: Recheck) -> None:
    """The request is the same, only the agent decides anew: it hears where the VM is."""
    store.commit([place("k", "t", {"a": "m1"})], recheck)
    (outcome,) = store.commit([place("k", "t", {"a": "m2"})], recheck)
    assert isinstance(outcome, Replayed)
    assert outcome.decided.placed == placed({"a": "m1"})


def test_a_key_is_for_one_request(store: Store, recheck: Recheck) -> None:
    group = [place("k1", "t", {"a": "m1"}), place("k1", "t", {"b": "m1"}, request=b'{"other":1}'), decline("k2")]
    outcomes = store.commit(group, recheck)
    assert names(outcomes) == ["committed", "rejected", "committed"]
    assert isinstance(outcomes[1], Rejected)
    assert str(outcomes[1].error) == "key: 'k1' was used for another request; use a new key for a new request"
    for key in ("k1", "k2"):
        (outcome,) = store.commit([place(key, "t", {"c": "m1"}, request=b'{"other":2}')], recheck)
        assert isinstance(outcome, Rejected)
    assert head(store).vms.keys() == {"a"}


def test_what_was_declined_may_be_tried_again(store: Store, recheck: Recheck) -> None:
    early, late = Record(agent="a", at=1.0, retries=3), Record(agent="b", at=2.0)
    assert store.commit([decline("k", early)], recheck) == [Committed(changed=False)]
    assert store.decided("k") == Decided(key="k", outcome="declined", request=b'{"asked":"k"}', record=early, placed=())
    assert head(store).revision == 1
    assert store.commit([decline("k", early)], recheck) == [Committed(changed=False)]
    tried = place("k", "t", {"a": "m1"}, record=late)
    assert names(store.commit([tried], recheck)) == ["committed"]
    decided = store.decided("k")
    late = msgspec.structs.replace(late, generation=head(store).tenants["t"].stamp)
    assert decided == Decided(key="k", outcome="committed", request=tried.request, record=late, placed=tried.placed)
    assert store.commit([tried, decline("k", late)], recheck) == [Replayed(decided), Replayed(decided)]


def test_what_was_declined_may_be_tried_again_in_the_same_group(store: Store, recheck: Recheck) -> None:
    group = [decline("k"), place("k", "t", {"a": "m1"}), decline("k")]
    assert names(store.commit(group, recheck)) == ["committed", "committed", "replayed"]


def test_who_only_asks_changes_nothing(store: Store, recheck: Recheck) -> None:
    """And leaves no mark: the key is as free, or as taken, as before."""
    store.commit([place("k1", "t", {"a": "m1"}), decline("k2")], recheck)
    decided = store.decided("k1")
    assert decided is not None
    nothing = Committed(changed=False)
    with unchanged(store):
        group = [ask("k1"), ask("k2"), ask("k3"), ask("k3")]
        assert store.commit(group, recheck) == [Replayed(decided), nothing, nothing, nothing]
        assert names(store.commit([ask("k1", b"{}"), ask("k2", b"{}")], recheck)) == ["rejected", "rejected"]
    assert store.decided("k3") is None
    group = [ask("k3"), place("k3", "t", {"b": "m1"}), ask("k3")]
    assert names(store.commit(group, recheck)) == ["committed", "committed", "replayed"]


def test_a_conflict_leaves_the_key_free(store: Store, recheck: Recheck) -> None:
    group = [place("k", "t", {"a": "m1", "b": "m1"}, BIG), place("k", "t", {"a": "m1", "b": "m2"}, BIG)]
    assert names(store.commit(group, recheck)) == ["room", "committed"]


def test_decisions_are_told_latest_first(store: Store, recheck: Recheck) -> None:
    for i, key in enumerate("abcd"):
        store.commit([decline(key, Record(at=10.0 + i))], recheck)
    assert [decided.key for decided in store.decisions(limit=3)] == ["d", "c", "b"]
    store.commit([place("b", "t", {"a": "m1"}, record=Record(at=20.0))], recheck)
    assert [(decided.key, decided.outcome) for decided in store.decisions(limit=2)] == [
        ("b", "committed"),
        ("d", "declined"),
    ]
    assert store.decided("nothing") is None


def test_old_decisions_are_forgotten_and_their_keys_with_them(home: Home, store: Store, recheck: Recheck) -> None:
    for i in range(4):
        if i == 2:
            home.let_pass(30 * DAY)
        store.commit([place(f"k{i}", f"t{i}", {f"v{i}": "m1"}, record=Record(at=100.0 + i))], recheck)
    ledger = head(store)
    store.trim(1_000)
    assert store.decided("k1") is not None
    store.trim(1_000, decisions_seconds=29 * DAY)
    assert [decided.key for decided in store.decisions()] == ["k3", "k2"]
    assert store.decided("k1") is None
    assert names(store.commit([place("k2", "t2", {"v2": "m1"}), place("k1", "t1", {"v1": "m1"})], recheck)) == [
        "replayed",
        "name",
    ]
    same(ledger, head(store))


@pytest.mark.parametrize("days", [-40, 40])
def test_how_old_a_decision_is_does_not_depend_on_the_clock_of_who_made_it(
    store: Store, recheck: Recheck, days: float
) -> None:
    store.commit([place("k", "t", {"a": "m1"}, record=Record(at=time.time() + days * DAY))], recheck)
    store.trim(1_000, decisions_seconds=30 * DAY)
    assert names(store.commit([place("k", "t", {"a": "m1"})], recheck)) == ["replayed"]
    store.trim(1_000, decisions_seconds=0.0)
    assert store.decided("k") is None


@pytest.mark.parametrize("days", [-40, 40])
def test_a_clock_that_jumps_makes_no_key_old(
    home: Home, store: Store, recheck: Recheck, monkeypatch: pytest.MonkeyPatch, days: float
) -> None:
    """The host's, whether the store stays open or is opened anew. PostgreSQL goes by that of its server."""
    real = time.time
    store.commit([place("k1", "t1", {"a": "m1"})], recheck)
    monkeypatch.setattr(time, "time", lambda: real() + days * DAY)
    store.commit([place("k2", "t2", {"b": "m1"})], recheck)
    store.trim(1_000, decisions_seconds=30 * DAY)
    if home.kind != "memory":
        store = home.reopen()
        store.commit([place("k3", "t3", {"c": "m1"})], recheck)
        store.trim(1_000, decisions_seconds=30 * DAY)
    monkeypatch.undo()
    assert store.decided("k1")
    assert store.decided("k2")


# -------------------------------------------------------------------------------------------------------------- rounds


def test_what_an_agent_saw_is_kept(store: Store, recheck: Recheck) -> None:
    row = head(store).machines["m1"]
    row.used[0], row.vms, row.owner = 1, 1, "t"
    seen = Round(
        agent="a",
        number=7,
        revision=1,
        seed=2**40,
        ahead=((5, 0), (6, 2)),
        adopted=(row,),
        placed=(("t", placed({"a": "m1"}, VM("small", isolated=True, requires=("fast",), traits={"x": -3}))),),
    )
    record = Record(
        agent="a",
        round=7,
        position=1,
        at=1.5,
        policy="p@1",
        found=("m1",),
        refused=(2,),
        rungs=(0, 2),
        short=(Short(set="db", vms=1, fault_domains=2, wanted_fault_domains=3),),
    )
    store.commit([place("k", "t", {"a": "m1"}, record=record)], recheck, round_=seen)
    assert store.round("a", 7) == seen
    assert store.round("a", 8) is None
    assert store.round("b", 7) is None
    decided = store.decided("k")
    assert decided is not None
    assert decided.record == msgspec.structs.replace(record, generation=head(store).tenants["t"].stamp)
    (row_,) = store.changes(1).rows
    assert (row_.agent, row_.round) == ("a", 7)


def test_a_round_is_kept_though_nothing_came_of_it(store: Store, recheck: Recheck) -> None:
    store.commit([decline("k")], recheck, round_=Round(agent="a", number=1, revision=1))
    assert store.round("a", 1) == Round(agent="a", number=1, revision=1)
    assert head(store).revision == 1


def test_rounds_that_can_no_longer_be_rebuilt_are_forgotten(store: Store, recheck: Recheck) -> None:
    for i in range(1, 5):
        seen = Round(agent="a", number=i, revision=i)
        store.commit([condition(f"k{i}", "m1", health=i)], recheck, round_=seen)
    head(store)
    assert store.trim(2) == 3
    assert [store.round("a", i) is not None for i in range(1, 5)] == [False, False, True, True]


def test_a_round_that_is_told_again_is_kept_as_it_was_told_last(store: Store, recheck: Recheck) -> None:
    """An agent that was restarted counts anew; what it saw then is kept as long as the feed reaches it."""
    for i, revision in enumerate((1, 3)):
        group = [condition(f"k{i}-{j}", "m1", health=10 * i + j) for j in range(2)]
        store.commit(group, recheck, round_=Round(agent="a", number=1, revision=revision))
    head(store)
    assert store.trim(2) == 3
    assert store.round("a", 1) == Round(agent="a", number=1, revision=3)


# ---------------------------------------------------------------------------------------------------------------- feed


def test_the_feed_adds_up_to_the_tables(store: Store, recheck: Recheck) -> None:
    history(store, recheck)
    feed = store.changes(0)
    numbered = list(feed.after(0))
    ledger = head(store)
    assert [number for number, _ in numbered] == list(range(1, ledger.revision + 1))
    assert [(row.first, row.last) for row in feed.rows][:4] == [(1, 1), (2, 2), (3, 4), (5, 6)]
    assert [entry.key for _, entry in numbered][:4] == ["first", "h1", "h2", "h3"]
    same(replayed(CATALOGUE, (entry for _, entry in numbered)), ledger)


def test_the_feed_can_be_undone_to_the_beginning(store: Store, recheck: Recheck) -> None:
    """Each revision on the way back is what it was on the way there."""
    history(store, recheck)
    entries = [entry for _, entry in store.changes(0).after(0)]
    ledger = head(store)
    for i in range(len(entries), 0, -1):
        same(replayed(CATALOGUE, entries[:i]), ledger)
        ledger.undo(entries[i - 1])
    same(Ledger(CATALOGUE), ledger)


def test_the_feed_is_read_in_pages(store: Store, recheck: Recheck) -> None:
    history(store, recheck)
    ledger = head(store)
    for limit in (1, 2, 3, 100):
        page = store.changes(0, limit)
        assert len(page.rows) == min(limit, 11)
        assert page.rows[0].first == 1
        same(followed(store, Ledger(CATALOGUE), limit), ledger)


def test_the_feed_is_followed_from_the_middle_of_a_transaction(store: Store, recheck: Recheck) -> None:
    store.commit([condition(f"k{i}", "m1", health=i) for i in range(4)], recheck)
    feed = store.changes(3)
    assert [(row.first, row.last) for row in feed.rows] == [(2, 5)]
    assert [(number, entry.key) for number, entry in feed.after(3)] == [(4, "k2"), (5, "k3")]


def test_beyond_its_end_the_feed_is_empty(store: Store) -> None:
    assert not store.changes(1).rows
    assert not store.changes(1).reload
    assert list(store.changes(99).after(99)) == []


def test_a_revision_once_seen_never_changes(store: Store, recheck: Recheck) -> None:
    store.commit([place("k1", "t", {"z": "m1"})], recheck)
    before = list(store.changes(0).after(0))
    history(store, recheck)
    assert list(store.changes(0).after(0))[: len(before)] == before


def test_what_is_loaded_and_what_follows_fit_together(store: Store, recheck: Recheck) -> None:
    """At any moment: also while nobody has asked for changes yet."""
    loaded = [store.load()]
    for i in range(4):
        store.commit([place(f"p{i}", "t", {f"v{i}": "m1"}), condition(f"c{i}", "m2", health=i)], recheck)
        loaded.append(store.load())
        if i % 2:
            store.changes(0)
    store.commit([add("k1", machine("m9", "c3")), remove("k2", "m3")], recheck)
    loaded.append(store.load())
    ledger = head(store)
    assert ledger.revision == 11
    for each in loaded:
        assert list(each.check_invariants()) == []
        same(followed(store, each), ledger)


# ------------------------------------------------------------------------------------------------------------- trimming


def test_what_was_trimmed_must_be_loaded_anew(store: Store, recheck: Recheck) -> None:
    history(store, recheck)
    last = head(store).revision
    assert store.head() == (last, 0)
    oldest = store.trim(5)
    assert store.head() == (last, oldest)
    assert store.changes(oldest - 1).reload
    assert store.changes(0).reload
    assert not store.changes(oldest).reload
    assert [number for number, _ in store.changes(oldest).after(oldest)] == list(range(oldest + 1, last + 1))


def test_at_least_so_much_is_kept_and_hardly_more(store: Store, recheck: Recheck) -> None:
    """A transaction is kept whole, or not at all."""
    for i in range(6):
        store.commit([condition(f"k{i}-{j}", "m1", health=10 * i + j) for j in range(3)], recheck)
    last = head(store).revision
    assert last == 19
    assert store.trim(1_000) == 0
    assert store.trim(last) == 0
    assert [store.trim(keep) for keep in (16, 10, 9, 8, 1)] == [1, 7, 10, 10, 16]
    assert store.trim(1_000) == 16
    assert store.trim(0) == last
    assert not store.changes(last).rows
    assert not store.changes(last).reload
    assert store.changes(last - 1).reload


def test_a_trimmed_store_goes_on_as_before(store: Store, recheck: Recheck) -> None:
    """Trimming forgets the past, not the present; a follower who has heard all that was trimmed hears the rest."""
    history(store, recheck)
    ledger = head(store)
    store.trim(0)
    same(ledger, head(store))
    proposals = [place("k1", "t9", {"z1": "m7"}), place("k2", "t9", {"z2": "m7"}, BIG)]
    assert names(store.commit(proposals, recheck)) == ["committed", "committed"]
    assert names(store.commit([place("h2", "t1", {"a": "m1", "b": "m2"})], recheck)) == ["replayed"]
    early = store.load()
    same(followed(store, ledger), head(store))
    same(followed(store, early), ledger)
    assert ledger.vms["z2"].machine == "m7"


@that_last
def test_what_was_trimmed_stays_trimmed(store: Store, reopen: Callable[[], Store], recheck: Recheck) -> None:
    history(store, recheck)
    ledger = head(store)
    oldest = store.trim(4)
    store = reopen()
    assert store.changes(oldest - 1).reload
    assert not store.changes(oldest).reload
    same(ledger, store.load())


# -------------------------------------------------------------------------------------------------------------- waiting


def test_who_waits_is_woken(home: Home, store: Store, recheck: Recheck) -> None:
    """Somebody else commits and, as agents do, asks for changes."""
    other = home.another()

    def work() -> None:
        other.commit([condition("k", "m1", health=50)], recheck)
        other.changes(1)

    since = head(store).revision
    worker = threading.Thread(target=work)
    worker.start()
    assert store.wait(since, 30.0)
    worker.join()
    assert [entry.key for _, entry in store.changes(since).after(since)] == ["k"]


def test_who_has_not_heard_everything_does_not_wait(home: Home, store: Store, recheck: Recheck) -> None:
    """Even if nobody has asked for the changes yet."""
    since = head(store).revision
    home.another().commit([condition("k", "m1", health=50)], recheck)
    assert store.wait(since, 0.2)


def test_waiting_is_only_a_hint(store: Store, recheck: Recheck) -> None:
    """It takes nothing away, and ends without news."""
    store.commit([condition("k", "m1", health=50)], recheck)
    last = head(store).revision
    assert store.wait(last - 1, 0.0)
    assert store.wait(last - 1, 0.0)
    assert len(list(store.changes(last - 1).after(last - 1))) == 1
    store.wait(last, 0.01)
    assert not store.wait(last, 0.01)


# --------------------------------------------------------------------------------------------------------------- repair


def test_a_repair_makes_everybody_reload(home: Home, store: Store, recheck: Recheck) -> None:
    history(store, recheck)
    before = head(store)
    assert store.repair(lambda ledger: Mending()) == Mending()
    assert store.changes(before.revision).reload
    assert home.another().changes(before.revision).reload
    after = head(store)
    assert after.revision > before.revision
    assert list(before.differences(after)) == []
    assert not store.changes(after.revision).reload
    store.commit([condition("k", "m1", health=50)], recheck)
    assert [number for number, _ in store.changes(after.revision).after(after.revision)] == [after.revision + 1]
    same(followed(store, after), head(store))


def test_a_repair_overwrites_sums(store: Store, recheck: Recheck) -> None:
    store.commit([place("k1", "t", {"a": "m1", "b": "m2"}), place("k2", "u", {"c": "m1"})], recheck)
    right = head(store)

    def spoil(ledger: Ledger) -> Mending:
        row = ledger.machines["m1"].copy()
        row.used[0], row.vms, row.owner = 3, 9, "somebody"
        tenants = {"t": TenantRow(PAIRS, 5, 77), "u": None, "ghost": TenantRow(PAIRS, 6, 1)}
        return Mending(machines=[row], tenants=tenants)

    store.repair(spoil)
    spoilt = head(store)
    assert (spoilt.machines["m1"].vms, spoilt.machines["m1"].owner, spoilt.tenants["t"].vms) == (9, "somebody", 77)
    assert spoilt.tenants.keys() == {"t", "ghost"}
    assert len(list(spoilt.check_invariants())) > 3
    found: list[str] = []

    def mend(ledger: Ledger) -> Mending:
        found.extend(right.differences(ledger))
        tenants = {"t": right.tenants["t"], "u": right.tenants["u"], "ghost": None}
        return Mending(machines=[right.machines["m1"].copy()], tenants=tenants)

    store.repair(mend)
    assert len(found) == 4
    assert list(right.differences(head(store))) == []


def test_a_repair_sees_all_that_was_committed(store: Store, recheck: Recheck) -> None:
    """Also what no follower has been told of yet; writing down what it sees changes nothing."""
    store.commit([place("k1", "t", {"a": "m1"})], recheck)
    seen: list[set[str]] = []

    def mend(ledger: Ledger) -> Mending:
        seen.append(set(ledger.vms))
        return Mending(machines=list(ledger.machines.values()), tenants=dict(ledger.tenants))

    store.repair(mend)
    assert seen == [{"a"}]
    ledger = head(store)
    assert (ledger.machines["m1"].vms, ledger.tenants["t"].vms) == (1, 1)


def test_the_amounts_that_are_compared_are_those_of_the_rows(store: Store, recheck: Recheck) -> None:
    """Whoever repairs can ask for them meanwhile."""
    history(store, recheck)
    ledger = head(store)
    amounts = {name: (row.taken(2), row.spec.capacity) for name, row in ledger.machines.items()}
    assert store.amounts() == amounts
    assert {tuple(used) for used, _ in amounts.values()} >= {(3, 6), (1, 1), (6, 6), (0, 0)}
    asked: list[object] = []

    def mend(ledger: Ledger) -> Mending:
        asked.append(store.amounts())
        return Mending()

    store.repair(mend)
    assert asked == [amounts]


def test_a_repair_that_gives_up_changes_nothing(store: Store, recheck: Recheck) -> None:
    def give_up(ledger: Ledger) -> Mending:
        raise RuntimeError("too bad")

    store.commit([place("k1", "t", {"a": "m1"})], recheck)
    with unchanged(store):
        with pytest.raises(RuntimeError, match="too bad"):
            store.repair(give_up)
        assert not store.changes(1).reload
    assert names(store.commit([place("k2", "t", {"b": "m1"})], recheck)) == ["committed"]


@that_last
def test_a_repair_that_the_tables_refuse_changes_nothing(store: Store) -> None:
    def overfill(ledger: Ledger) -> Mending:
        row = ledger.machines["m1"].copy()
        row.used[0] = 99
        return Mending(machines=[ledger.machines["m2"], row])

    with unchanged(store):
        with pytest.raises(InvariantBroken):
            store.repair(overfill)
        assert not store.changes(1).reload


# ------------------------------------------------------------------------------------------------------- when it breaks


@that_last
@pytest.mark.parametrize(
    "bad",
    [
        place("k2", "t", {"b": "m1", "c": "m1"}, BIG),
        place("k2", "t", {"b": "m1"}, VM("whole", priority="spot")),
    ],
    ids=["over capacity", "over capacity in another band"],
)
def test_the_tables_themselves_refuse_a_machine_over_capacity(
    store: Store, recheck: Recheck, bad: Proposal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line of defence, if the checks have a bug. A store in memory has no tables: nothing stands behind it.

    Nothing of the group is done then, not even what was right: somebody has to look.
    """
    store.commit([place("k1", "t", {"a": "m1"})], recheck)
    monkeypatch.setattr("roost.store.settle.eviction.check_evicted", lambda *_: None)
    with unchanged(store), pytest.raises(InvariantBroken, match="the database refuses"):
        store.commit([place("k3", "u", {"x": "m2"}), bad], Agreeable())
    assert names(store.commit([place("k3", "u", {"x": "m2"})], recheck)) == ["committed"]


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_transaction_that_breaks_down_leaves_nothing_behind(store: Store, recheck: Recheck, after: int) -> None:
    store.commit([place("k1", "t", {"a": "m1"})], recheck)
    group = [
        release("k2", "t", {"a": "m1"}),
        place("k3", "u", {"b": "m1", "c": "m2"}),
        condition("k4", "m1", health=50),
        place("k5", "v", {"d": "m1", "e": "m2"}),
    ]
    with unchanged(store), pytest.raises(RuntimeError, match="stumbled"):
        store.commit(group, Stumbling(after), round_=Round(agent="a", number=1, revision=1))
    assert store.round("a", 1) is None
    assert names(store.commit(group, recheck)) == ["committed"] * 4


def cut(database: str) -> None:
    """Close every connection of a store, as the server does when they were idle for too long, or another takes over."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'roost' AND datname = current_database()"
        )


USES: dict[str, Callable[[Store], object]] = {
    "head": lambda store: store.head(),
    "load": lambda store: store.load(),
    "changes": lambda store: store.changes(0),
    "wait": lambda store: store.wait(0, 0.01),
    "trim": lambda store: store.trim(1_000),
    "tenant": lambda store: store.tenant("t"),
    "tenants": lambda store: store.tenants(),
    "policy_results": lambda store: store.policy_results(0.0),
    "try_writing": lambda store: store.try_writing(),
    "repair": lambda store: store.repair(lambda _: Mending()),
}


@in_postgres
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_connection_that_was_cut_is_made_anew_and_nobody_notices(
    homes: Homes, store: Store, use: Callable[[Store], object]
) -> None:
    use(store)
    cut(homes.database)
    use(store)


@in_postgres
def test_a_commit_whose_connection_was_cut_is_done_on_another_one(homes: Homes, store: Store, recheck: Recheck) -> None:
    store.commit([place("k1", "t", {"a": "m1"})], recheck)
    cut(homes.database)
    assert names(store.commit([place("k2", "u", {"b": "m1"})], recheck)) == ["committed"]
    in_the_midst = Meanwhile(recheck, lambda: cut(homes.database))
    assert names(store.commit([place("k3", "v", {"c": "m1"})], in_the_midst)) == ["committed"]
    assert head(store).vms.keys() == {"a", "b", "c"}


@in_postgres
def test_a_commit_of_which_nobody_heard_is_not_done_twice(
    homes: Homes, store: Store, recheck: Recheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is cut when it is committed, and before it is known to be."""
    settle = PostgresStore._settle
    answers = [lambda: cut(homes.database), lambda: None]

    def then_cut(self: PostgresStore, connection: Hearing, *arguments: Any, **named: Any) -> list[Outcome]:
        outcomes = settle(self, connection, *arguments, **named)
        answers.pop(0)()
        connection.execute("SELECT 1")
        return outcomes

    monkeypatch.setattr(PostgresStore, "_settle", then_cut)
    assert names(store.commit([place("k", "t", {"a": "m1"})], recheck)) == ["replayed"]
    assert answers == []
    assert [entry.key for _, entry in store.changes(1).after(1)] == ["k"]


@in_postgres
def test_a_server_that_says_nothing_is_given_up_and_used_again_when_it_does(
    homes: Homes, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(postgres.LINES, "lookup", 0.3)
    with closing(PostgresStore(homes.database)) as hasty, psycopg.connect(homes.database) as other:
        assert hasty.decided("first")
        other.execute("LOCK TABLE decisions IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreUnavailable, match=r"no answer for 0\.3 s"):
            hasty.decided("first")
        assert hasty.machine("m1")
        other.rollback()
        assert hasty.decided("first")


@in_postgres
def test_who_waits_for_a_server_gives_up_when_the_store_is_closed(homes: Homes, store: Store) -> None:
    said: list[str] = []
    waiting = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

    def wait() -> None:
        try:
            leaving.decided("first")
        except StoreUnavailable as error:
            said.append(str(error))

    leaving = PostgresStore(homes.database)
    with psycopg.connect(homes.database) as other, psycopg.connect(homes.database, autocommit=True) as watch:
        other.execute("LOCK TABLE decisions IN ACCESS EXCLUSIVE MODE")
        thread = threading.Thread(target=wait)
        thread.start()
        while watch.execute(waiting).fetchone() is None:
            assert thread.is_alive()
        leaving.close()
        thread.join(5)
    assert said == ["PostgreSQL cannot be used: the store is closed"]
    with pytest.raises(StoreUnavailable, match="the store is closed"):
        leaving.head()


@in_sqlite
def test_a_file_that_is_busy_is_unavailable_for_a_while(
    home: Home, store: Store, recheck: Recheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.01)
    store = home.reopen()
    assert isinstance(store, SqliteStore)
    busy = sqlite3.connect(store.path, isolation_level=None)
    busy.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked"):
        store.commit([place("k", "t", {"a": "m1"})], recheck)
    assert store.load().vms == {}
    busy.close()
    assert names(store.commit([place("k", "t", {"a": "m1"})], recheck)) == ["committed"]


@that_last
def test_a_store_opened_anew_is_the_same(store: Store, reopen: Callable[[], Store], recheck: Recheck) -> None:
    """Also if nobody had asked for the last changes when it was closed."""
    history(store, recheck)
    early, decisions = store.load(), store.decisions()
    store = reopen()
    assert store.catalogue == CATALOGUE
    same(early, store.load())
    same(followed(store, early), head(store))
    assert store.decisions() == decisions
    last = head(store).revision
    assert not store.wait(last, 0.0)
    assert names(store.commit([place("k", "t9", {"z": "m7"})], recheck)) == ["committed"]
    assert head(store).revision == last + 1


# ------------------------------------------------------------------------------------------------------ several at once


def test_threads_commit_and_follow_at_once(home: Home, store: Store) -> None:
    """Nothing is lost or done twice, and a follower who never looks away ends up with the tables."""
    stop = threading.Event()
    told: dict[str, bool] = {}

    def work(number: int, mine: Store) -> None:
        recheck, chance = recheck_of(MACHINES), random.Random(number)
        for i in range(12):
            group: list[Proposal] = []
            for j in range(chance.randrange(1, 5)):
                key = f"{number}-{i}-{j}"
                where = {f"{key}-{vm}": f"m{chance.randrange(1, 9)}" for vm in range(chance.randrange(1, 3))}
                group.append(place(key, f"t{chance.randrange(4)}", where))
            group.append(condition(f"{number}-{i}-c", f"m{chance.randrange(1, 9)}", failures=number * 100 + i))
            for proposal, outcome in zip(group, mine.commit(group, recheck), strict=True):
                told[proposal.key] = isinstance(outcome, Committed) and outcome.changed
            if i % 4 == number:
                mine.changes(0)

    def follow(mine: Store, ledger: Ledger) -> None:
        while not stop.is_set():
            followed(mine, ledger)
            mine.wait(ledger.revision, 0.01)

    ledger = store.load()
    follower = threading.Thread(target=follow, args=(home.another(), ledger))
    workers = [threading.Thread(target=work, args=(number, home.another())) for number in range(3)]
    for thread in (follower, *workers):
        thread.start()
    for thread in workers:
        thread.join()
    stop.set()
    follower.join()
    final = head(store)
    same(followed(store, ledger), final)
    keys = [entry.key for _, entry in store.changes(1).after(1)]
    assert sorted(keys) == sorted(key for key, committed in told.items() if committed)
    assert {vm.rpartition("-")[0] for vm in final.vms} == {key for key in keys if not key.endswith("c")}


RACES: dict[str, tuple[Proposal, Proposal, str]] = {
    "the same new machine": (add("k1", machine("m9")), add("k2", machine("m9")), "rejected"),
    "the same new cluster": (add("k1", machine("m9", "c3")), add("k2", machine("m10", "c3")), "committed"),
    "the same new cluster of another generation": (
        add("k1", machine("m9", "c3")),
        add("k2", machine("m10", "c3", "new")),
        "rejected",
    ),
    "a cluster that is closed and grows": (quarantine("k1", "c1"), add("k2", machine("m9")), "committed"),
    "the last machines of a cluster": (remove("k1", "m20"), remove("k2", "m21"), "committed"),
    "the last machine of a cluster and one more": (
        remove("k1", "m20", "m21"),
        add("k2", machine("m22", "c4")),
        "committed",
    ),
    "a machine that is removed": (place("k1", "t", {"a": "m1"}), remove("k2", "m1"), "rejected"),
    "the same new entry": (register("k1", "new", "1"), register("k2", "new", "2"), "committed"),
    "the same new entry, if it is new": (
        register("k1", "new", "1", expected=None),
        register("k2", "new", "2", expected=None),
        "registry",
    ),
    "the same entry": (register("k1", "old", "1"), register("k2", "old", "2"), "committed"),
    "the same entry, as it was": (
        register("k1", "old", "1", expected="0"),
        register("k2", "old", "2", expected="0"),
        "registry",
    ),
    "an entry that is removed": (
        register("k1", "old", None, expected="0"),
        register("k2", "old", "2", expected="0"),
        "registry",
    ),
}


@in_postgres
@pytest.mark.parametrize(("mine", "theirs", "second"), RACES.values(), ids=RACES)
def test_what_changes_the_zone_at_once_is_as_if_one_came_second(
    homes: Homes, home: Home, store: Store, mine: Proposal, theirs: Proposal, second: str
) -> None:
    """Theirs is committed after rows were read for mine and before mine is written, or has to wait for it."""
    recheck, other, told = recheck_of(MACHINES), home.another(), list[Outcome]()
    store.commit([add("f", machine("m20", "c4"), machine("m21", "c4")), register("g", "old", "0")], recheck)
    thread = threading.Thread(target=lambda: told.extend(other.commit([theirs], recheck_of(MACHINES))))

    def meanwhile() -> None:
        thread.start()
        with psycopg.connect(homes.database, autocommit=True) as connection:
            waiting = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            while thread.is_alive() and connection.execute(waiting).fetchone() is None:
                time.sleep(0.001)

    outcomes = store.commit([mine], Meanwhile(recheck, meanwhile))
    thread.join()
    assert sorted(names([*outcomes, *told])) == sorted(["committed", second])
    is_sound(store)
