"""One worker on an SQLite file, killed again and again: nothing is lost or doubled, and nothing is over capacity."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from roost.model.zone import Zone
from roost.wiring import open_store
from tests.e2e.crashing import Drive, Fleet, clients_of, is_exact
from tests.e2e.nursery import Nursery
from tests.property.effort import examples

MACHINES, FULL = 100, 0.9
KILLS = examples(70)
AT_ONCE = 0.2  # of them, before the worker may have answered anything
SEED = 2


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    """Where workers start quickly."""
    with Nursery(f"synthetic:{MACHINES}") as nursery:
        yield nursery


def test_a_worker_is_killed_at_random_moments_and_every_answer_holds(nursery: Nursery, tmp_path: Path) -> None:
    """On a full zone: tenants come, grow, shrink and go, machines go down, and clients ask again with the same key."""
    rng = random.Random(SEED)
    path = str(tmp_path / "zone.db")
    with closing(open_store(path, create=Zone.synthetic(MACHINES))) as store:
        clients = clients_of(store.load(), 2, SEED)
    fleet = Fleet(path, 1, tmp_path, nursery.launch)
    try:
        drive = Drive(fleet, clients, SEED, full=FULL)
        drive.fill(window=60)
        for _ in range(KILLS):
            (worker,) = fleet.workers
            if rng.random() < AT_ONCE:
                time.sleep(rng.uniform(0.0, 0.15))  # the moment is meant to be random
            else:
                drive.work(rng.randint(1, 30))
                time.sleep(rng.uniform(0.0, 0.01))
            fleet.kill(worker)
            drive.work_until(lambda dead=worker: dead not in fleet.workers)  # type: ignore[misc]
        drive.work(100)
        drive.drain()
        drive.ask_again(100)
        fleet.close()
    finally:
        fleet.kill_all()
    is_exact(drive)
    assert fleet.gave_up == []
    assert drive.utilisation > FULL - 0.05
    assert drive.counts["asked again after a death"] > KILLS
    assert drive.counts["replayed"] > 100
