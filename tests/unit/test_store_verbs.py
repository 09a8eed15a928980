"""A store verb is its own module and one line of the table: nothing else in a store knows which verbs there are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from roost.model.change import ConditionChange
from roost.model.errors import UnknownName
from roost.store.audit import audit
from roost.store.contract import Committed, Conflict, Outcome, Record, Recorded, Rejected, Replayed, Store
from roost.store.memory import MemoryStore
from roost.store.settle.rows import Names
from roost.store.settle.settling import LostRace, Settling
from roost.store.settle.table import VERBS
from roost.store.settle.verb import StoreVerb
from roost.store.sqlite import SqliteStore
from tests.contract.tiny import CATALOGUE, MACHINES, add, condition, decline, followed, place, recheck_of

RECHECK = recheck_of(MACHINES)
SEALS = "seal"  # a kind of entries in the registry


class Certify(Recorded, frozen=True, kw_only=True):
    """Somebody has looked at a machine: it is as good as new, and carries a seal that no other machine has."""

    request: bytes = b"{}"
    record: Record = Record(agent="a", by="mechanic", at=5.0)
    machine: str
    seal: str


def needs(proposal: Certify, names: Names) -> None:
    names.machines.add(proposal.machine)
    names.registry.add((SEALS, proposal.seal))


def settle(proposal: Certify, settling: Settling) -> Outcome:
    name, place_ = proposal.machine, (SEALS, proposal.seal)
    row = settling.facts.machines.get(name)
    if row is None:
        raise UnknownName("machine", "machine", name, None)
    if place_ in settling.facts.registry:
        raise LostRace("registry", f"seal {proposal.seal} is in use", (name,))
    versions: dict[str, int] = {}
    change = ConditionChange(name, "health", row.health, 100)
    settling.touch(name, versions).health = 100
    settling.tested.set_condition(name, "health", 100)
    settling.decide(proposal, versions[name])
    settling.enter(proposal, conditions=(change,), registered=(settling.change_entry(place_, name),), versions=versions)
    return Committed(versions)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERBS, Certify, StoreVerb("Seal a machine that is as good as new.", needs, settle))


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store = MemoryStore(CATALOGUE)
    if request.param == "sqlite":
        made = SqliteStore(tmp_path / "zone.db", create=CATALOGUE)
    with closing(made):
        made.commit([add("add", *MACHINES), condition("ill", "m1", health=0)], RECHECK)
        yield made


def test_it_is_committed_and_in_the_feed(store: Store) -> None:
    before = store.load()
    machine = store.machine("m1")
    assert machine
    (outcome,) = store.commit([Certify(key="k", machine="m1", seal="s1")], RECHECK)
    assert outcome == Committed({"m1": machine.version + 1})
    (entry,) = [entry for _, entry in store.changes(before.revision).after(before.revision)]
    assert (entry.key, entry.by, entry.at) == ("k", "mechanic", 5.0)
    assert entry.conditions == (ConditionChange("m1", "health", 0, 100),)
    healthy = store.machine("m1")
    assert healthy
    assert healthy.health == 100
    assert store.registry(SEALS) == {"s1": "m1"}
    assert not list(followed(store, before).differences(store.load()))


def test_the_audit_finds_nothing_wrong_with_it(store: Store) -> None:
    store.commit([Certify(key="k", machine="m1", seal="s1")], RECHECK)
    assert audit(store).findings == ()


def test_its_key_is_answered_as_the_first_time(store: Store) -> None:
    proposal = Certify(key="k", machine="m1", seal="s1")
    store.commit([proposal], RECHECK)
    revision = store.load().revision
    (outcome,) = store.commit([proposal], RECHECK)
    assert isinstance(outcome, Replayed)
    assert outcome.decided.record.by == "mechanic"
    (outcome,) = store.commit([msgspec.structs.replace(proposal, request=b'{"other":1}')], RECHECK)
    assert isinstance(outcome, Rejected)
    assert store.load().revision == revision


def test_it_shares_a_group_with_other_verbs(store: Store) -> None:
    """Each on what those before it left: the machine is healthy for the VM that follows, and its seal is taken."""
    outcomes = store.commit(
        [
            place("k1", "t", {"a": "m1"}),
            Certify(key="k2", machine="m1", seal="s1"),
            place("k3", "t", {"a": "m1"}),
            Certify(key="k4", machine="m2", seal="s1"),
            Certify(key="k5", machine="m99", seal="s2"),
            decline("k6"),
        ],
        RECHECK,
    )
    assert [type(outcome) for outcome in outcomes] == [Conflict, Committed, Committed, Conflict, Rejected, Committed]
    lost = outcomes[3]
    assert isinstance(lost, Conflict)
    assert (lost.reason, [row.spec.name for row in lost.machines]) == ("registry", ["m2"])
    assert audit(store).clean


def test_every_verb_says_what_it_is() -> None:
    assert all(verb.summary.endswith(".") for verb in VERBS.values())
