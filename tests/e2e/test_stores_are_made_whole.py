"""A store whose making is killed or runs out of room is not there, and can be made in the same place."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from roost.bench.postgres import ThrowawayPostgres
from roost.model.errors import NoZone
from roost.wiring import ensure_store, open_store
from tests.e2e.nursery import Nursery
from tests.e2e.serving import ROOST
from tests.property.effort import examples

MACHINES = 6_000  # that takes several additions
ZONE = f"synthetic:{MACHINES}"
KILLS, MANY_KILLS = examples(3), examples(100)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """Where processes start quickly."""
    with Nursery("synthetic:100") as nursery:
        yield nursery


@pytest.fixture
def new_database() -> Iterator[str]:
    """A database with nothing in it."""
    with ThrowawayPostgres() as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
        yield server.create_database("zone")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where there is no store yet."""
    found: str = request.getfixturevalue("new_database") if request.param == "postgres" else str(tmp_path / "zone.db")
    return found


def clear(url: str) -> None:
    """There is no store any more."""
    if url.startswith("postgresql"):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    else:
        for file in Path(url).parent.glob("zone.db*"):
            file.unlink()


def machines(url: str) -> int | None:
    """How many machines a store has; none if there is no store."""
    try:
        with closing(open_store(url)) as store:
            return len(store.load().machines)
    except NoZone:
        return None


def create(nursery: Nursery, url: str, seconds: float | None = None) -> float:
    """Make a store, and be killed after some time; returns how long it took."""
    nothing = os.open(os.devnull, os.O_RDWR)
    started = time.monotonic()
    try:
        process = nursery.launch(["store", "create", url, "--zone", ZONE], nothing, nothing, nothing)
        if seconds is not None:
            time.sleep(seconds)  # the moment is meant to be any
            process.kill()
        process.wait()
    finally:
        os.close(nothing)
    return time.monotonic() - started


def kill_while_making(nursery: Nursery, url: str, times: int) -> None:
    """At moments spread over the time that it takes."""
    took = create(nursery, url)
    assert machines(url) == MACHINES
    for moment in range(1, times + 1):
        if machines(url) is not None:
            clear(url)
        create(nursery, url, took * moment / (times + 1))
        assert machines(url) in (None, MACHINES)
    ensure_store(url, ZONE)
    assert machines(url) == MACHINES


def test_a_store_whose_making_is_killed_is_whole_or_not_there(nursery: Nursery, tmp_path: Path) -> None:
    kill_while_making(nursery, str(tmp_path / "zone.db"), KILLS)


@pytest.mark.deep
def test_a_store_whose_making_is_killed_a_hundred_times_is_whole_or_not_there(nursery: Nursery, url: str) -> None:
    kill_while_making(nursery, url, MANY_KILLS)


def test_a_store_for_which_there_is_no_room_can_be_made_when_there_is(tmp_path: Path) -> None:
    url = str(tmp_path / "zone.db")
    limited = subprocess.run(
        [ROOST, "store", "create", url, "--zone", ZONE], capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000)),
    )  # fmt: skip
    assert limited.returncode == 5, limited.stderr
    assert "Traceback" not in limited.stderr
    assert machines(url) is None
    ensure_store(url, ZONE)
    assert machines(url) == MACHINES
