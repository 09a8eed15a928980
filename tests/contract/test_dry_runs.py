"""A dry commit says what would come of a group, and leaves no trace."""

from __future__ import annotations

import threading
from contextlib import closing

import psycopg
import pytest

from roost.model.errors import InvalidInput
from roost.model.request import VM
from roost.store.contract import LARGEST_GROUP, Outcome, Proposal, Rejected, Round, Store
from roost.store.recheck import Recheck
from roost.store.sqlite import SqliteStore
from tests.contract.conftest import Homes, in_postgres, in_sqlite
from tests.contract.tiny import (
    BIG,
    EVERY_KIND,
    Stumbling,
    add,
    ask,
    condition,
    decline,
    head,
    machine,
    names,
    place,
    quarantine,
    register,
    release,
    remove,
    unchanged,
)

SEEN = Round(agent="a", number=7, revision=1)
GROUPS: dict[str, list[Proposal]] = {name: [proposal] for name, proposal in EVERY_KIND.items()} | {
    "decline": [decline("k")],
    "ask": [ask("k"), ask("k1"), ask("k1", b"{}")],
    "what was done before": [place("k1", "t", {"a": "m1"})],
    "what makes no sense": [place("k", "", {"b": "m1"}), condition("k", "m99", health=5), remove("k", "m1")],
    "what has no room": [place("k", "u", {"b": "m1", "c": "m1"}, BIG)],
    "what was taken": [place("k", "u", {"a": "m2"}), register("k", "x", "1", expected="0"), release("k", "u", {})],
    "what rests on its neighbours": [
        release("k2", "t", {"a": "m1"}),
        place("k3", "u", {"a": "m1"}, VM("whole")),
        place("k4", "u", {"b": "m1"}),
        remove("k5", "m2"),
        place("k6", "v", {"c": "m2"}),
        register("k7", "x", "1"),
        register("k8", "x", "2", expected="1"),
        quarantine("k9", "c2"),
        add("k10", machine("m9", "c3"), conditions={"m9": {"health": 5}}),
        condition("k11", "m9", state=1),
        decline("k12"),
        place("k12", "w", {"d": "m3"}),
        place("k12", "w", {"d": "m3"}),
    ],
}


def told(outcomes: list[Outcome]) -> list[object]:
    """Outcomes as they compare: errors by their words."""
    return [str(outcome.error) if isinstance(outcome, Rejected) else outcome for outcome in outcomes]


@pytest.mark.parametrize("strict", [False, True], ids=["merge", "strict"])
@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_a_dry_commit_says_what_comes_of_a_group_and_changes_nothing(
    store: Store, recheck: Recheck, group: list[Proposal], strict: bool
) -> None:
    store.commit([place("k1", "t", {"a": "m1"})], recheck)
    with unchanged(store):
        before, decided = store.head(), [store.decided(proposal.key) for proposal in group]
        said = told(store.commit(group, recheck, strict=strict, round_=SEEN, dry=True))
        assert told(store.commit(group, recheck, strict=strict, round_=SEEN, dry=True)) == said
        assert [store.decided(proposal.key) for proposal in group] == decided
        assert store.round("a", 7) is None
        assert not store.changes(2).rows
        assert store.registry("quota") == {}
        assert store.head() == before
    assert told(store.commit(group, recheck, strict=strict, round_=SEEN)) == said


def test_a_dry_commit_sees_what_was_committed_last(store: Store, recheck: Recheck) -> None:
    """Also what the feed has no revision for yet."""
    store.commit([place("k1", "t", {"a": "m1"}, VM("whole"))], recheck)
    assert names(store.commit([place("k2", "u", {"b": "m1"})], recheck, dry=True)) == ["room"]
    store.commit([release("k3", "t", {"a": "m1"}, VM("whole"))], recheck)
    assert names(store.commit([place("k2", "u", {"b": "m1"})], recheck, dry=True)) == ["committed"]


def test_a_dry_commit_has_the_same_limit(store: Store, recheck: Recheck) -> None:
    with pytest.raises(InvalidInput, match="commit at most 1024 together"):
        store.commit([decline(f"k{i}") for i in range(LARGEST_GROUP + 1)], recheck, dry=True)


def test_a_dry_commit_that_breaks_down_leaves_nothing_behind(store: Store, recheck: Recheck) -> None:
    group = [place("k", "t", {"a": "m1"})]
    with unchanged(store), pytest.raises(RuntimeError, match="stumbled"):
        store.commit(group, Stumbling(0), dry=True)
    assert names(store.commit(group, recheck, dry=True)) == ["committed"]


@in_sqlite
def test_who_may_only_read_may_still_ask_what_would_be(store: Store, recheck: Recheck) -> None:
    assert isinstance(store, SqliteStore)
    with closing(SqliteStore(store.path, read_only=True)) as reader:
        assert names(reader.commit([place("k", "t", {"a": "m1"})], recheck, dry=True)) == ["committed"]


@in_postgres
def test_a_dry_commit_waits_for_nobody(homes: Homes, store: Store, recheck: Recheck) -> None:
    with psycopg.connect(homes.database) as other:
        other.execute("SELECT FROM machines FOR UPDATE")
        other.execute("LOCK TABLE clusters IN SHARE ROW EXCLUSIVE MODE")
        said: list[str] = []
        group = [place("k1", "t", {"a": "m1"}), add("k2", machine("m9"))]
        thread = threading.Thread(target=lambda: said.extend(names(store.commit(group, recheck, dry=True))))
        thread.start()
        thread.join(20.0)
        assert said == ["committed", "committed"]
        other.rollback()
    assert head(store).revision == 1
