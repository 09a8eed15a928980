"""Transactions end in another order than they began, and followers read at any moment: nobody misses anything.

A transaction gets its number while it runs and is seen only when it ends. Whoever went by these numbers would pass over
one that ends late; the feed gives its revisions to what has ended, so that it cannot happen.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from contextlib import ExitStack

from roost.model.change import ENTRIES
from roost.store.contract import Committed, Place, Proposal
from roost.store.ledger import Ledger, replayed
from tests.scenario.overlapping import (
    CATALOGUE,
    MACHINES,
    PATIENCE,
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


# --------------------------------------------------------------------------------------- ending in the wrong order


def test_a_transaction_that_ends_late_is_missed_by_no_follower(database: Database) -> None:
    early, slow = Follower(database.store).catch_up(), Follower(database.new_store(), limit=1).catch_up()
    meanwhile = Follower(database.new_store())
    with database.held_up("late"):
        late = database.start(place("late", M0))
        database.wait_for_waiting(1)
        number = database.last_number()
        assert kinds(database.commit(place("soon", M1))) == [Committed]
        assert database.last_number() > number, "it began later"
        loaded = [Follower(database.new_store(), database.store.load())]
        assert meanwhile.catch_up().keys == ["machines", "soon"]
        loaded.append(Follower(database.new_store(), database.store.load()))
        assert kinds(database.commit(place("next", M1))) == [Committed]
        assert early.catch_up().keys == ["machines", "soon", "next"]
        assert slow.read() == 1
        assert not late.done()
    assert kinds(late.result(PATIENCE)) == [Committed]
    loaded.append(Follower(database.new_store(), database.store.load()))
    assert kinds(database.commit(place("after", M0))) == [Committed]
    whole = ["machines", "soon", "next", "late", "after"]
    for follower in (early, slow, meanwhile):
        assert follower.catch_up().keys == whole
        assert differences(follower.ledger, database.store.load()) == []
    for follower in loaded:
        start = follower.ledger.revision
        assert follower.catch_up().keys == whole[start:]
        assert differences(follower.ledger, database.store.load()) == []


def test_while_somebody_numbers_changes_nobody_waits_and_what_is_loaded_fits_the_feed(database: Database) -> None:
    """What is committed then has no revision yet: it is in the tables, not in the feed, and not in what is loaded."""
    early = Follower(database.store).catch_up()
    first = place("first", M0)
    with database.numbering():
        assert kinds(database.commit(first)) == [Committed]
        assert kinds(database.commit(place("second", M0), release("third", first))) == [Committed] * 2
        loaded = Follower(database.new_store(), database.store.load())
        assert differences(loaded.ledger, early.ledger) == []
        assert early.read() == loaded.read() == 0
        assert kinds(database.commit(place("fourth", M1))) == [Committed]
        assert database.waiting() == 0
    for follower in (early, loaded):
        assert follower.catch_up().keys[-4:] == ["first", "second", "third", "fourth"]
        assert differences(follower.ledger, database.store.load()) == []


def test_whatever_order_transactions_end_in_all_followers_agree_on_one(database: Database) -> None:
    """Four overlap each time, and somebody reads, and somebody loads, after each of them ends."""
    followers = [Follower(database.new_store()) for _ in range(3)]
    ended: list[str] = []
    for round_, order in enumerate(itertools.permutations(range(4))):
        keys = [f"{round_}-{i}" for i in range(4)]
        with ExitStack() as still_held:
            holds = [ExitStack() for _ in keys]
            running = []
            for i, key in enumerate(keys):
                still_held.enter_context(holds[i])
                holds[i].enter_context(database.held_up(key))
                running.append(database.start(place(key, MACHINES[i], tenant=f"t{i}")))
                database.wait_for_waiting(i + 1)  # so they are numbered in the order of their keys
            for turn, i in enumerate(order):
                holds[i].close()
                assert kinds(running[i].result(PATIENCE)) == [Committed]
                ended.append(keys[i])
                loaded = Follower(database.store, database.store.load())
                followers[turn % 3].catch_up()
                assert differences(loaded.catch_up().ledger, database.store.load()) == []
        gone = [release(f"{key}-gone", place(key, MACHINES[i], tenant=f"t{i}")) for i, key in enumerate(keys)]
        assert kinds(database.commit(*gone)) == [Committed] * 4
        ended += [proposal.key for proposal in gone]
    for follower in followers:
        assert follower.catch_up().keys == ["machines", *ended]
        assert differences(follower.ledger, database.store.load()) == []


def test_a_follower_that_went_by_the_numbers_of_transactions_would_miss_one(database: Database) -> None:
    """The naive design, shown to fail: `number > last seen` passes over a transaction that ends late, for good.

    Should this test ever fail, then numbers have become as good as revisions, and the inbox is needless.
    """
    seen: list[str] = []
    last = 0

    def follow_naively() -> None:
        nonlocal last
        for number, entries in database.inbox():
            if number > last:
                seen.extend(entry.key for entry in ENTRIES.decode(entries))
                last = number

    follow_naively()
    with database.held_up("late"):
        late = database.start(place("late", M0))
        database.wait_for_waiting(1)
        database.commit(place("soon", M1))
        follow_naively()
    assert kinds(late.result(PATIENCE)) == [Committed]
    database.commit(place("after", M1))
    follow_naively()
    assert seen == ["machines", "soon", "after"], "the naive follower misses it"
    numbers = {entry.key: number for number, text in database.inbox() for entry in ENTRIES.decode(text)}
    assert numbers["late"] < numbers["soon"] < numbers["after"], "it is there, but behind what was read already"
    assert sorted(Follower(database.store).catch_up().keys) == sorted(numbers), "the feed has it"


# --------------------------------------------------------------------------------- following what a change rests on


def test_a_change_follows_those_it_rests_on_however_many_commit_and_follow(database: Database) -> None:
    """A few machines and tenants, many hands; followers contend for numbering, and somebody loads all the time."""
    done = threading.Event()
    loaded: list[Ledger] = []

    def work(hand: int) -> list[str]:
        store, rules, rng = database.new_store(), recheck(), random.Random(hand)
        mine: list[Place] = []
        committed: list[str] = []
        for i in range(140):
            key = f"{hand}-{i}"
            group: list[Proposal] = []
            if mine and rng.random() < 0.45:
                group.append(release(f"{key}-gone", mine.pop(rng.randrange(len(mine)))))
            if not group or rng.random() < 0.3:
                machines = rng.choices(MACHINES[:3], k=rng.randint(1, 2))
                group.append(place(key, *machines, tenant=f"t{rng.randrange(4)}"))
            for proposal, outcome in zip(group, store.commit(group, rules), strict=True):
                if isinstance(outcome, Committed):
                    committed.append(proposal.key)
                    mine += [proposal] if isinstance(proposal, Place) else []
                else:
                    assert isinstance(proposal, Place), "what was placed can be released"
        return committed

    def follow(limit: int) -> Follower:
        follower = Follower(database.new_store(), limit=limit)
        while not done.is_set():
            follower.read()
        return follower

    def load() -> None:
        store = database.new_store()
        while not done.is_set():
            loaded.append(store.load())

    following = [database.run(lambda limit=limit: follow(limit)) for limit in (1, 7, 1_000)]  # type: ignore[misc]
    loading = database.run(load)
    hands = [database.run(lambda hand=hand: work(hand)) for hand in range(4)]  # type: ignore[misc]
    try:
        committed = [key for hand in hands for key in hand.result(4 * PATIENCE)]
    finally:
        done.set()
    followers = [each.result(PATIENCE) for each in following]
    loading.result(PATIENCE)
    for follower in followers:  # one by one: while another numbers changes, a follower may see none
        follower.catch_up()

    first, *others = followers
    assert all(other.seen == first.seen for other in others)
    assert Counter(first.keys) == Counter(["machines", *committed]), "each commit once, and nothing else"
    assert len(committed) > 300
    assert stale_versions([entry for _, entry in first.seen]) == []
    assert differences(replayed(CATALOGUE, (entry for _, entry in first.seen)), database.store.load()) == []
    ledger, entries = Ledger(CATALOGUE), iter(first.seen)
    for each in loaded:  # in the order they were loaded, so revisions only grow
        while ledger.revision < each.revision:
            ledger.apply(next(entries)[1])
        assert differences(ledger, each) == []


def test_a_tenant_that_came_and_went_before_it_came_again_does_so_in_the_feed(database: Database) -> None:
    """A commit that found no such tenant rests on its having gone, though there was no row to lock."""
    gate = Gate()
    again = database.start_at(gate, place("again", M0, tenant="t"))
    came = place("came", M1, tenant="t")
    assert kinds(database.commit(came)) == [Committed]
    assert kinds(database.commit(release("went", came))) == [Committed]
    gate.open()
    assert kinds(again.result(PATIENCE)) == [Committed]
    follower = Follower(database.store).catch_up()
    assert follower.keys == ["machines", "came", "went", "again"]
    assert differences(follower.ledger, database.store.load()) == []


def test_a_name_of_a_vm_that_is_used_again_is_so_in_the_feed(database: Database) -> None:
    """The same with the name of a VM: before it can be given again, it must be given back."""
    gate = Gate()
    again = database.start_at(gate, place("again", M0, name="vm"))
    first = place("first", M1, name="vm")
    assert kinds(database.commit(first)) == [Committed]
    assert kinds(database.commit(release("gone", first))) == [Committed]
    gate.open()
    assert kinds(again.result(PATIENCE)) == [Committed]
    follower = Follower(database.store).catch_up()
    assert follower.keys == ["machines", "first", "gone", "again"]
    assert differences(follower.ledger, database.store.load()) == []
