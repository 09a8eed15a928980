"""A store verb is its own module and one line of the table: nothing else in a store knows which verbs there are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from roost.model.errors import InvariantBroken
from roost.model.registry import THRESHOLD
from roost.model.thresholds import Thresholds
from roost.store.audit import audit
from roost.store.contract import Committed, Conflict, Outcome, Proposal, Record, Rejected, Replayed, Store
from roost.store.memory import MemoryStore
from roost.store.settle import table
from roost.store.settle.settling import Settling
from roost.store.sqlite import SqliteStore
from tests.contract.tiny import (
    CATALOGUE,
    MACHINES,
    SMALL,
    WHOLE,
    add,
    asked,
    decline,
    followed,
    is_sound,
    names,
    place,
    placed,
    recheck_of,
    register,
    unchanged,
)  # fmt: skip
from tests.unit.claiming import CLAIMED, STORE_CLAIM, Claim, enter_tables

RECHECK = recheck_of(MACHINES)


def claim(key: str, what: str, on: str, tenant: str = "t", whole: bool = False) -> Claim:
    """A VM for a tenant, on a machine."""
    record, where = Record(agent="a", by="somebody", at=5.0), placed({f"v{key}": on}, WHOLE if whole else SMALL)
    return Claim(key=key, request=asked(key), record=record, tenant=tenant, claim=what, placed=where)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    enter_tables(monkeypatch)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store = MemoryStore(CATALOGUE)
    if request.param == "sqlite":
        made = SqliteStore(tmp_path / "zone.db", create=CATALOGUE)
    with closing(made):
        made.commit([add("add", *MACHINES)], RECHECK)
        yield made


def test_it_is_committed_and_in_the_feed(store: Store) -> None:
    before = store.load()
    (outcome,) = store.commit([claim("k", "c1", "m1")], RECHECK)
    assert isinstance(outcome, Committed)
    (entry,) = [entry for _, entry in store.changes(before.revision).after(before.revision)]
    assert (entry.key, entry.by, entry.at, entry.placed) == ("k", "somebody", 5.0, placed({"vk": "m1"}))
    assert store.registry(CLAIMED) == {"c1": "t"}
    assert not list(followed(store, before).differences(store.load()))


def test_the_audit_finds_nothing_wrong_with_it(store: Store) -> None:
    store.commit([claim("k", "c1", "m1")], RECHECK)
    assert audit(store).findings == ()


def test_its_key_is_answered_as_the_first_time(store: Store) -> None:
    proposal = claim("k", "c1", "m1")
    store.commit([proposal], RECHECK)
    with unchanged(store):
        (outcome,) = store.commit([proposal], RECHECK)
        assert isinstance(outcome, Replayed)
        assert (outcome.decided.record.by, outcome.decided.placed) == ("somebody", proposal.placed)
        (outcome,) = store.commit([msgspec.structs.replace(proposal, request=b'{"other":1}')], RECHECK)
        assert isinstance(outcome, Rejected)


def test_it_shares_a_group_with_other_verbs(store: Store) -> None:
    """Each on what those before it left: a machine is full, a claim is used."""
    outcomes = store.commit(
        [
            claim("k1", "c1", "m1", whole=True),
            place("k2", "u", {"a": "m1"}),
            place("k3", "u", {"a": "m2"}),
            claim("k4", "c1", "m2"),
            claim("k5", "c2", "m2", whole=True),
            decline("k6"),
        ],
        RECHECK,
    )
    assert names(outcomes) == ["committed", "room", "committed", CLAIMED, "room", "committed"]
    lost = outcomes[4]
    assert isinstance(lost, Conflict)
    assert ([row.spec.name for row in lost.machines], lost.behind) == (["m2"], False)
    is_sound(store)


@pytest.mark.parametrize("together", [False, True])
def test_thresholds_hold_it_without_having_heard_of_it(store: Store, together: bool) -> None:
    kept = msgspec.json.encode(Thresholds(new=2)).decode()
    store.commit([register("keep", "c1", kept, kind=THRESHOLD)], RECHECK)
    group: list[Proposal] = [claim(str(i), f"c{i}", f"m{i}", tenant=f"t{i}") for i in range(1, 5)]
    outcomes = [
        each for part in ([group] if together else [[one] for one in group]) for each in store.commit(part, RECHECK)
    ]
    assert names(outcomes) == ["committed", "committed", "threshold", "threshold"]
    assert names(store.commit([place("5", "u", {"a": "m3"}), claim("6", "c5", "m1")], RECHECK)) == [
        "threshold",
        "committed",
    ]
    is_sound(store)


def test_a_verb_cannot_put_vms_where_it_has_not_asked(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it does it: nothing gets into the feed that checks of sums were not shown."""

    def careless(proposal: Claim, settling: Settling) -> Outcome:
        monkeypatch.setattr(settling, "admit", lambda _: None)
        return STORE_CLAIM.settle(proposal, settling)

    monkeypatch.setitem(table.VERBS, Claim, msgspec.structs.replace(STORE_CLAIM, settle=careless))
    with unchanged(store), pytest.raises(InvariantBroken, match="Claim puts VMs on machines that it has not asked for"):
        store.commit([claim("k", "c1", "m1")], RECHECK)


def test_every_verb_says_what_it_is() -> None:
    assert all(verb.summary.endswith(".") for verb in table.VERBS.values())
