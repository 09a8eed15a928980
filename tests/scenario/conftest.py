"""One PostgreSQL for all scenarios, and a database of its own for each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from roost.bench.postgres import ThrowawayPostgres
from tests.scenario.overlapping import Database

_names = itertools.count()


@pytest.fixture(scope="session")
def server() -> Iterator[ThrowawayPostgres]:
    """A real server."""
    with ThrowawayPostgres() as server:
        yield server


@pytest.fixture
def database(server: ThrowawayPostgres) -> Iterator[Database]:
    """A zone of a few machines, empty so far."""
    with Database(server.create_database(f"scenario{next(_names)}")) as database:
        yield database
