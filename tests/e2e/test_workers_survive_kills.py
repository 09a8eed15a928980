"""Four workers on a PostgreSQL: nothing is lost or doubled, and nothing is over capacity, whoever is killed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from roost.bench.postgres import ThrowawayPostgres
from roost.model.zone import Zone
from roost.wiring import open_store
from tests.e2e.crashing import Drive, Fleet, clients_of, is_exact
from tests.e2e.nursery import Nursery
from tests.property.effort import examples

WORKERS, MACHINES, FULL = 4, 200, 0.9
KILLS, OUTAGE = examples(24), 6  # every sixth time, the server is killed as well
SEED = 1


@pytest.fixture
def server() -> Iterator[ThrowawayPostgres]:
    """A server that survives a power cut."""
    with ThrowawayPostgres() as server:
        yield server


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    """Where workers start quickly."""
    with Nursery(f"synthetic:{MACHINES}") as nursery:
        yield nursery


def test_workers_and_their_postgres_are_killed_and_every_answer_holds(
    server: ThrowawayPostgres, nursery: Nursery, tmp_path: Path
) -> None:
    """On a full zone: tenants come, grow, shrink and go, machines go down, and clients ask again with the same key."""
    rng = random.Random(SEED)
    with closing(open_store(server.url, create=Zone.synthetic(MACHINES))) as store:
        clients = clients_of(store.load(), WORKERS, SEED)
    fleet = Fleet(server.url, WORKERS, tmp_path, nursery.launch)
    try:
        drive = Drive(fleet, clients, SEED, full=FULL)
        drive.fill(window=60)
        for number in range(1, KILLS + 1):
            drive.work(rng.randint(20, 120))
            drive.work_until(lambda: bool(fleet.working()))
            if outage := number % OUTAGE == 0:
                server.kill()
            fleet.kill(rng.choice(fleet.working()))
            if outage:  # the next worker finds no server
                given_up = len(fleet.gave_up)
                drive.work_until(lambda least=given_up: len(fleet.gave_up) > least)  # type: ignore[misc]
                server.start()
        drive.work(300)
        drive.drain()
        drive.ask_again(200)
        fleet.close()
    finally:
        fleet.kill_all()
    is_exact(drive)
    assert all("PostgreSQL cannot be used" in words for words in fleet.gave_up)
    assert drive.utilisation > FULL - 0.1, "it was about as full as wanted"
    assert drive.counts["retries"] > 100, "workers got in each other's way"
    assert drive.counts["asked again after a death"] > KILLS
    assert drive.counts["replayed"] > 200
