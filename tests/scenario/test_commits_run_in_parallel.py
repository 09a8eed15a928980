"""Commits to different machines do not wait for each other; commits to the same one do, and see what it left."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from roost.model.change import PlacedVM
from roost.model.request import Constraints
from roost.store.contract import (
    Commission,
    Committed,
    Conflict,
    Decline,
    Place,
    Proposal,
    Rejected,
    Release,
    Replayed,
)
from tests.scenario.overlapping import (
    MACHINES,
    PATIENCE,
    RECORD,
    SMALL,
    SPECS,
    WHOLE,
    Database,
    Follower,
    Gate,
    differences,
    kinds,
    place,
    recheck,
    release,
    stale_versions,
)

M0, M1, M2, M3, *_ = MACHINES


def consistent(database: Database) -> Follower:
    """A follower that has read all, after a look at whether the tables and the feed agree."""
    follower = Follower(database.store).catch_up()
    assert differences(follower.ledger, database.store.load()) == []
    assert stale_versions([entry for _, entry in follower.seen]) == []
    return follower


# ------------------------------------------------------------------------------------------------- who waits for whom


def test_a_commit_to_other_machines_does_not_wait(database: Database) -> None:
    with database.held_up("slow"):
        slow = database.start(place("slow", M0, M1))
        database.wait_for_waiting(1)
        for i, machine in enumerate((M2, M3, M2)):
            assert kinds(database.start(place(f"quick-{i}", machine)).result(PATIENCE)) == [Committed]
        assert database.waiting() == 1
        assert not slow.done()
    assert kinds(slow.result(PATIENCE)) == [Committed]
    consistent(database)


def test_a_commit_to_the_same_machine_waits_and_is_settled_on_what_the_first_left(database: Database) -> None:
    with database.held_up("first"):
        first = database.start(place("first", M0, M1))
        database.wait_for_waiting(1)
        whole = database.start(place("whole", M1, M2, vm=WHOLE))
        database.wait_for_waiting(2)
        small = database.start(place("small", M0))
        database.wait_for_waiting(3)
        assert kinds(database.start(place("other", M3)).result(PATIENCE)) == [Committed]
        assert not whole.done()
        assert not small.done()
    assert [o.versions for o in first.result(PATIENCE) if isinstance(o, Committed)] == [{M0: 1, M1: 1}]
    assert [o.versions for o in small.result(PATIENCE) if isinstance(o, Committed)] == [{M0: 2}]
    (lost,) = whole.result(PATIENCE)
    assert isinstance(lost, Conflict)
    assert (lost.reason, lost.detail) == ("room", f"machine {M1}: insufficient cores")
    shown = {row.spec.name: row for row in lost.machines}
    assert (shown[M1].vms, shown[M1].version) == (1, 1), "as the first left it"
    assert (shown[M2].vms, shown[M2].version) == (0, 0), "nothing of it was done"
    consistent(database)


def test_a_strict_commit_that_waited_is_refused_though_it_would_fit(database: Database) -> None:
    with database.held_up("first"):
        first = database.start(place("first", M0))
        database.wait_for_waiting(1)
        strict = database.start(msgspec.structs.replace(place("strict", M0), seen={M0: 0}), strict=True)
        database.wait_for_waiting(2)
    assert kinds(first.result(PATIENCE)) == [Committed]
    (lost,) = strict.result(PATIENCE)
    assert isinstance(lost, Conflict)
    assert lost.reason == "stale"
    assert consistent(database).keys == ["machines", "first"]


def test_commits_for_the_same_tenant_wait_for_each_other_on_whatever_machines(database: Database) -> None:
    database.commit(place("begin", M2, tenant="t"))
    with database.held_up("first"):
        first = database.start(place("first", M0, tenant="t"))
        database.wait_for_waiting(1)
        second = database.start(place("second", M1, tenant="t"))
        database.wait_for_waiting(2)
    assert kinds(first.result(PATIENCE)) == kinds(second.result(PATIENCE)) == [Committed]
    assert consistent(database).ledger.tenants["t"].vms == 3


def test_two_commits_may_begin_the_same_tenant(database: Database) -> None:
    with database.held_up("first"):
        first = database.start(place("first", M0, tenant="t"))
        database.wait_for_waiting(1)
        second = database.start(place("second", M1, tenant="t"))
        database.wait_for_waiting(2)
    assert kinds(first.result(PATIENCE)) == kinds(second.result(PATIENCE)) == [Committed]
    assert consistent(database).ledger.tenants["t"].vms == 2


def test_only_one_of_two_commits_begins_a_tenant_with_constraints(database: Database) -> None:
    """The second was decided without the first's VMs in sight, so it may break a constraint."""
    apart = Constraints(max_per_rack=1)
    with database.held_up("first"):
        first = database.start(place("first", M0, tenant="t", constraints=apart))
        database.wait_for_waiting(1)
        second = database.start(place("second", M1, tenant="t", constraints=apart))
        database.wait_for_waiting(2)
    assert kinds(first.result(PATIENCE)) == [Committed]
    (lost,) = second.result(PATIENCE)
    assert isinstance(lost, Conflict)
    ledger = consistent(database).ledger
    assert (lost.reason, lost.stamp) == ("tenant", ledger.tenants["t"].stamp)
    assert ledger.tenants["t"].vms == 1


def test_only_one_of_two_commits_gets_the_name_of_a_vm(database: Database) -> None:
    with database.held_up("first"):
        first = database.start(place("first", M0, name="vm"))
        database.wait_for_waiting(1)
        second = database.start(place("second", M1, name="vm"))
        database.wait_for_waiting(2)
    assert kinds(first.result(PATIENCE)) == [Committed]
    (lost,) = second.result(PATIENCE)
    assert isinstance(lost, Conflict)
    assert (lost.reason, lost.detail) == ("name", "a VM vm runs already")
    assert consistent(database).ledger.vms["vm"].machine == M0


def test_machines_added_to_the_same_new_cluster_at_once_are_all_counted(database: Database) -> None:
    """Neither commit finds a row of the cluster that it could lock."""

    def add(name: str) -> Commission:
        spec = msgspec.structs.replace(SPECS[0], name=name, cluster="new", rack="new")
        return Commission(key=f"add-{name}", request=b"{}", record=RECORD, machines=(spec,))

    gate = Gate()
    first = database.start_at(gate, add("a"))
    second = database.start(add("b"))
    database.wait_for_waiting(1)
    gate.open()
    assert kinds(first.result(PATIENCE)) == kinds(second.result(PATIENCE)) == [Committed]
    assert consistent(database).ledger.clusters["new"].machines == 2


# ----------------------------------------------------------------------------------------------------------- deadlocks


@pytest.mark.parametrize("shared", ["machines and tenants", "tenants alone"])
def test_groups_that_overlap_in_any_order_all_come_to_an_end(database: Database, shared: str) -> None:
    """Each group names machines and tenants in a random order, so that locks taken as named would deadlock."""
    begun = [place(f"begin-{n}", MACHINES[n], tenant=f"t{n}") for n in range(6)]  # so that there are rows to lock
    assert kinds(database.commit(*begun)) == [Committed] * 6

    def work(hand: int) -> Counter[str]:
        store, rules, rng = database.new_store(), recheck(), random.Random(hand)
        machines = MACHINES if shared == "machines and tenants" else (MACHINES[hand],)
        mine: dict[str, list[PlacedVM]] = {}
        came: Counter[str] = Counter()
        for i in range(80):
            group: list[Proposal] = []
            tenants = rng.sample(range(6), 3)
            for tenant in (f"t{n}" for n in tenants):
                key = f"{hand}-{i}-{tenant}"
                if mine.get(tenant) and rng.random() < 0.5:
                    gone = tuple(rng.sample(mine[tenant], rng.randint(1, len(mine[tenant]))))
                    group.append(Release(key=key, request=b"", record=RECORD, tenant=tenant, released=gone))
                else:
                    group.append(
                        place(key, *rng.sample(machines, rng.randint(1, min(3, len(machines)))), tenant=tenant)
                    )
            for proposal, outcome in zip(group, store.commit(group, rules), strict=True):
                came[type(outcome).__name__] += 1
                if isinstance(outcome, Committed) and isinstance(proposal, Place):
                    mine.setdefault(proposal.tenant, []).extend(proposal.placed)
                elif isinstance(outcome, Committed) and isinstance(proposal, Release):
                    mine[proposal.tenant] = [each for each in mine[proposal.tenant] if each not in proposal.released]
        return came

    hands = [database.run(lambda hand=hand: work(hand)) for hand in range(6)]  # type: ignore[misc]
    came = sum((hand.result(4 * PATIENCE) for hand in hands), Counter[str]())
    assert came["Committed"] > 300
    assert came["Conflict"] > 10, "machines were full at times"
    assert came.keys() == {"Committed", "Conflict"}
    assert len(consistent(database).seen) == 1 + len(begun) + came["Committed"]


# ------------------------------------------------------------------------------------------------------- the same key


def test_a_key_given_to_two_stores_at_once_is_done_once_and_both_hear_the_same(database: Database) -> None:
    proposals = [place("key", machine, tenant="t", asked="the same") for machine in (M0, M1)]
    with database.held_up("key"):
        running = []
        for i, proposal in enumerate(proposals):
            running.append(database.start(proposal))
            database.wait_for_waiting(i + 1)
    outcomes = [future.result(PATIENCE)[0] for future in running]
    (done,) = (i for i, outcome in enumerate(outcomes) if isinstance(outcome, Committed))
    replay = outcomes[1 - done]
    assert isinstance(replay, Replayed)
    assert replay.decided.placed == proposals[done].placed
    assert replay.decided == database.store.decided("key")
    follower = consistent(database)
    assert follower.keys == ["machines", "key"]
    assert {name: vm.machine for name, vm in follower.ledger.vms.items()} == {"key/0": (M0, M1)[done]}


def test_a_key_given_to_two_stores_for_different_requests_is_done_once_and_refused_once(database: Database) -> None:
    with database.held_up("key"):
        running = [database.start(place("key", machine, asked=machine)) for machine in (M0, M1)]
        database.wait_for_waiting(2)
    outcomes = [future.result(PATIENCE)[0] for future in running]
    assert Counter(kinds(outcomes)) == {Committed: 1, Rejected: 1}
    assert consistent(database).keys == ["machines", "key"]


def test_keys_that_every_store_is_given_are_each_done_once(database: Database) -> None:
    """As when clients repeat requests to several agents: each store has all keys, in an order of its own."""
    keys = [f"k{i}" for i in range(25)]

    def work(hand: int) -> dict[str, str | tuple[PlacedVM, ...]]:
        """What it heard: its own placement was committed, or that of another was."""
        store, rules = database.new_store(), recheck()
        heard: dict[str, str | tuple[PlacedVM, ...]] = {}
        for key in random.Random(hand).sample(keys, len(keys)):
            proposal = place(key, MACHINES[hand], tenant=f"t{hand % 2}", asked="the same")
            (outcome,) = store.commit([proposal], rules)
            if isinstance(outcome, Replayed):
                heard[key] = outcome.decided.placed
            else:
                heard[key] = kinds([outcome])[0].__name__
        return heard

    hands = [database.run(lambda hand=hand: work(hand)) for hand in range(4)]  # type: ignore[misc]
    heard = [hand.result(PATIENCE) for hand in hands]
    follower = consistent(database)
    placed = {entry.key: entry.placed for _, entry in follower.seen[1:]}
    done = [key for hand in heard for key, answer in hand.items() if answer == "Committed"]
    assert sorted(done) == sorted(placed) == sorted(follower.keys[1:])
    for hand in heard:
        for key, answer in hand.items():
            assert answer in (placed.get(key), "Committed", "Conflict"), "what it heard is what was done"
    assert {name: vm.spec for name, vm in follower.ledger.vms.items()} == {f"{key}/0": SMALL for key in done}
    assert len(done) == len(keys), "forty cores are enough for all"


def test_a_declined_key_that_two_stores_try_again_is_done_once(database: Database) -> None:
    database.commit(Decline(key="key", request=b"the same", record=RECORD))
    gate = Gate()
    first = database.start_at(gate, place("key", M0, asked="the same"))
    assert kinds(database.commit(place("key", M1, asked="the same"))) == [Committed]
    gate.open()
    assert kinds(first.result(PATIENCE)) == [Replayed]
    assert consistent(database).keys == ["machines", "key"]


def test_what_was_released_meanwhile_is_not_released_twice(database: Database) -> None:
    there = place("there", M0, M1)
    database.commit(there)
    with database.held_up("first"):
        first = database.start(release("first", there))
        database.wait_for_waiting(1)
        second = database.start(release("second", there))
        database.wait_for_waiting(2)
    assert kinds(first.result(PATIENCE)) == [Committed]
    (lost,) = second.result(PATIENCE)
    assert isinstance(lost, Conflict)
    assert lost.reason == "gone"
    assert consistent(database).ledger.vms == {}
