"""Statements that go to PostgreSQL together: what is written arrives as it was, and what fails does no harm."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from psycopg import errors

from roost.bench.postgres import ThrowawayPostgres
from roost.store.postgres import PostgresStore
from roost.store.postgres_line import SESSION, Hearing, LockedConnection
from roost.store.postgres_trip import SEPARATOR, Rows, Trip
from tests.contract.tiny import CATALOGUE, MACHINES, add, names, place, recheck_of
from tests.property.effort import examples


@pytest.fixture(scope="module")
def connection(postgres: ThrowawayPostgres) -> Iterator[Hearing]:
    with closing(Hearing.connect(postgres.url, autocommit=True, **SESSION)) as made:  # type: ignore[arg-type]
        yield made


def go(connection: Hearing, *statements: tuple[object, ...]) -> list[Rows]:
    trip = Trip(connection)
    for statement, *values in statements:
        trip.add(str(statement), *values)
    return trip.go()


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@settings(max_examples=examples(60))
@given(texts=st.lists(TEXTS), numbers=st.lists(st.integers(-(2**63), 2**63 - 1)))
@example(texts=[], numbers=[])
@example(texts=["", "NULL", '"', "\\", '{"a": "b\\"c"}', "a,b", " ", "{}"], numbers=[0])
@example(texts=["a", f"b{SEPARATOR}c", 'd"'], numbers=[1])
@example(texts=[SEPARATOR], numbers=[-1])
def test_lists_arrive_as_they_were(connection: Hearing, texts: list[str], numbers: list[int]) -> None:
    read, counted, flags, shares = go(
        connection,
        ("SELECT * FROM unnest(%b::text[])", texts),
        ("SELECT * FROM unnest(%b::bigint[])", numbers),
        ("SELECT * FROM unnest(%b::boolean[])", [number > 0 for number in numbers]),
        ("SELECT * FROM unnest(%b::double precision[])", [number / 7 for number in numbers]),
    )
    assert [text for (text,) in read] == texts
    assert [number for (number,) in counted] == numbers
    assert [flag for (flag,) in flags] == [number > 0 for number in numbers]
    assert [share for (share,) in shares] == [number / 7 for number in numbers]


@pytest.mark.parametrize("value", ["it's", '"', "", "ä", 7, -7, 0.1, True, None])
def test_single_values_arrive_as_they_were(connection: Hearing, value: object) -> None:
    kind = {str: "text", int: "bigint", float: "double precision", bool: "boolean"}.get(type(value), "text")
    assert go(connection, (f"SELECT %s::{kind}", value)) == [[(value,)]]


def test_what_follows_a_failure_is_not_done_and_the_connection_goes_on(connection: Hearing) -> None:
    go(connection, ("CREATE TEMPORARY TABLE few (number INTEGER PRIMARY KEY)",))
    insert = "INSERT INTO few VALUES (%s)"
    with pytest.raises(errors.UniqueViolation):
        go(connection, (insert, 1), (insert, 1), ("INSERT INTO few VALUES (2), (%s)", 3))
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert go(connection, ("SELECT number FROM few",)) == [[]]
    assert go(connection, ("INSERT INTO few VALUES (2), (%s)", 3), ("SELECT count(*) FROM few",)) == [[], [(2,)]]
    with pytest.raises(errors.SyntaxError):
        go(connection, ("SELEKT 1",))
    assert go(connection, ("SELECT 1",)) == [[(1,)]]


def test_what_fails_only_when_all_is_to_be_kept_is_told_as_it_is(connection: Hearing) -> None:
    go(connection, ("CREATE TEMPORARY TABLE late (number INTEGER UNIQUE DEFERRABLE INITIALLY DEFERRED)",))
    insert = "INSERT INTO late VALUES (%s)"
    with pytest.raises(errors.UniqueViolation):
        go(connection, (insert, 1), (insert, 1))
    assert go(connection, (insert, 1), ("SELECT number FROM late",)) == [[], [(1,)]]


def test_what_cannot_be_written_is_refused_and_the_connection_goes_on(connection: Hearing) -> None:
    for value in ("a\0b", ["a\0b"]):
        with pytest.raises(psycopg.DataError):
            go(connection, ("SELECT %s::text", value))
    with pytest.raises(AssertionError):
        go(connection, ("SELECT %s::bytea", b"ab"))
    assert go(connection, ("SELECT 5 %% 3, %s::text", "a%b")) == [[(2, "a%b")]]


def test_a_schema_that_another_process_changed_is_noticed_by_nobody(new_database: str) -> None:
    with closing(PostgresStore(new_database, create=CATALOGUE)) as store:
        recheck = recheck_of(MACHINES)
        assert names(store.commit([add("new", *MACHINES)], recheck)) == ["committed"]
        assert names(store.commit([place("k", "t", {"t/0": "m1"})], recheck, dry=True)) == ["committed"]
        with psycopg.connect(new_database, autocommit=True) as other:
            other.execute("ALTER TABLE tenants ALTER vms TYPE bigint")
        assert names(store.commit([place("k", "t", {"t/0": "m1"})], recheck)) == ["committed"]
        assert names(store.commit([place("l", "u", {"u/0": "m1"})], recheck, dry=True)) == ["committed"]


def test_hints_that_came_while_nobody_listened_are_one(new_database: str) -> None:
    with closing(PostgresStore(new_database, create=CATALOGUE)) as store:
        store.commit([add("new", *MACHINES)], recheck_of(MACHINES))
        last = store.changes(0).rows[-1].last
        while store.wait(last, 0.05):
            pass
        with psycopg.connect(new_database, autocommit=True) as other:
            for number in range(50):  # else the server makes one of them
                other.execute("SELECT pg_notify('roost_changes', %s)", (str(number),))
        assert store.wait(last, 5.0)
        assert sum(store.wait(last, 0.05) for _ in range(20)) <= 1


def test_a_statement_is_prepared_once(connection: Hearing) -> None:
    for _ in range(3):
        go(connection, ("SELECT 'twice'",), ("SELECT 'twice'",))
    ((known,),) = go(connection, ("SELECT count(*) FROM pg_prepared_statements WHERE statement = 'SELECT ''twice'''",))[
        0
    ]
    assert known == 1


def test_a_server_that_has_forgotten_what_was_prepared_is_told_again(new_database: str) -> None:
    """As a pool of connections between does to others' sessions."""
    with closing(PostgresStore(new_database, create=CATALOGUE)) as store:
        recheck = recheck_of(MACHINES)
        assert names(store.commit([add("new", *MACHINES)], recheck)) == ["committed"]
        store._use("commit", lambda connection: connection.execute("DEALLOCATE ALL"))
        assert names(store.commit([place("k", "t", {"t/0": "m1"})], recheck)) == ["committed"]


def test_a_cut_line_is_made_anew(postgres: ThrowawayPostgres) -> None:
    line = LockedConnection(postgres.url, 10.0, threading.Event())
    (pid,) = line.use(lambda connection: go(connection, ("SELECT pg_backend_pid()",)))[0][0]
    with psycopg.connect(postgres.url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s)", (pid,))
    assert line.use(lambda connection: go(connection, ("SELECT pg_backend_pid()",)))[0][0] != (pid,)
    line.close()
