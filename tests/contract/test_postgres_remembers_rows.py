"""A connection to PostgreSQL remembers the rows that its commits wrote, and never mistakes them for what is there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import pytest
from psycopg import errors

from roost.engine import recheck
from roost.model.columns import Holding
from roost.model.request import VM
from roost.model.zone import Zone
from roost.store.contract import Conflict
from roost.store.postgres import PostgresStore
from roost.store.postgres_trip import Rows, Trip
from tests.contract.tiny import CATALOGUE, MACHINES, add, names, place, recheck_of, release

ALONE, LOUD, SHY = VM("small", isolated=True), VM("small", colocation="loud"), VM("small", colocation="shy")


def stamp_of(store: PostgresStore, tenant: str) -> int:
    """What a tenant is at by now."""
    return store.load().tenants[tenant].stamp


def test_what_it_wrote_is_not_made_again_and_what_others_wrote_is(
    new_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    rows_of = recheck.rows_of

    def counting(zone: Zone, holdings: Sequence[Holding], numbers: recheck.TenantNumbers) -> object:
        made.extend(holding.spec.name for holding in holdings)
        return rows_of(zone, holdings, numbers)

    with closing(PostgresStore(new_database, create=CATALOGUE)) as store, closing(PostgresStore(new_database)) as other:
        mine, theirs = recheck_of(MACHINES), recheck_of(MACHINES)
        assert names(store.commit([add("new", *MACHINES)], mine)) == ["committed"]
        assert names(store.commit([place("a", "t", {"t/0": "m1", "t/1": "m2"}, LOUD)], mine)) == ["committed"]
        monkeypatch.setattr(recheck, "rows_of", counting)
        stamp = stamp_of(store, "t")
        assert names(store.commit([place("b", "t", {"t/2": "m1"}, stamp=stamp)], mine)) == ["committed"]
        assert made == []
        assert names(other.commit([release("c", "t", {"t/0": "m1"}, LOUD)], theirs)) == ["committed"]
        assert names(other.commit([place("d", "u", {"u/0": "m1"}, SHY)], theirs)) == ["committed"]
        made.clear()
        outcomes = store.commit([place("e", "v", {"v/0": "m1"}, LOUD), place("f", "v", {"v/0": "m2"}, LOUD)], mine)
        assert made == ["m1"]
        assert isinstance(outcomes[0], Conflict), "loud beside shy"
        assert names(outcomes[1:]) == ["committed"]


def test_what_was_not_kept_is_not_believed(new_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that fails at its very end is done again, on rows as they are."""
    with closing(PostgresStore(new_database, create=CATALOGUE)) as store:
        mine = recheck_of(MACHINES)
        assert names(store.commit([add("new", *MACHINES)], mine)) == ["committed"]
        assert names(store.commit([place("a", "t", {"t/0": "m1"})], mine)) == ["committed"]
        go, left = Trip.go, [1]

        def failing(trip: Trip) -> list[Rows]:
            if any(statement == "COMMIT" for statement, _ in trip._statements) and left:
                left.clear()
                raise errors.SerializationFailure("somebody was first")
            return go(trip)

        monkeypatch.setattr(Trip, "go", failing)
        assert names(store.commit([place("b", "u", {"u/0": "m2"}, ALONE)], mine)) == ["committed"]
        assert not left
        stamp = stamp_of(store, "u")
        assert names(store.commit([place("c", "u", {"u/1": "m2"}, ALONE, stamp=stamp)], mine)) == ["committed"]
        assert isinstance(store.commit([place("d", "v", {"v/0": "m2"})], mine)[0], Conflict)
