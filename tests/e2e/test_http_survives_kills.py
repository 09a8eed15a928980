"""The HTTP service, killed again and again: nothing is lost, doubled or half, and nothing is over capacity."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from roost.bench.postgres import ThrowawayPostgres
from roost.model.zone import Zone
from roost.wiring import open_store
from tests.e2e.crashing import Drive, clients_of, is_exact
from tests.e2e.http_fleet import HttpFleet, processes_of
from tests.e2e.nursery import Fosterling, Nursery
from tests.e2e.serving import serving
from tests.property.effort import examples

WORKERS, LANES, MACHINES, FULL = 4, 4, 200, 0.9
KILLS, OUTAGE = examples(9), 3  # every third time, the database is killed as well
ONE_PROCESS_KILLS = examples(24)
SEED = 3


@pytest.fixture
def server() -> Iterator[ThrowawayPostgres]:
    """A database server that survives a power cut."""
    with ThrowawayPostgres() as server:
        yield server


def test_workers_at_one_port_and_their_postgres_are_killed_and_every_answer_holds(server: ThrowawayPostgres) -> None:
    """Four workers at one port: whichever dies is started again, and whatever was answered holds."""
    rng = random.Random(SEED)
    with closing(open_store(server.url, create=Zone.synthetic(MACHINES))) as store:
        ledger = store.load()
    clients = clients_of(ledger, LANES, SEED)
    with serving(server.url, "--workers", str(WORKERS), "--set", "store.patience_seconds=1") as service:
        fleet = HttpFleet(server.url, service.url, LANES, ledger.catalogue)
        fleet.clients = clients
        try:
            drive = Drive(fleet, clients, SEED, full=FULL)  # type: ignore[arg-type]
            drive.fill(window=60)
            killed = set()
            for number in range(1, KILLS + 1):
                drive.work(rng.randint(20, 120))
                drive.work_until(lambda: len(processes_of(service.process.pid)) > WORKERS - 2)
                victim = rng.choice(processes_of(service.process.pid))
                if outage := number % OUTAGE == 0:
                    server.kill()
                os.kill(victim, signal.SIGKILL)
                killed.add(victim)
                drive.work(rng.randint(5, 20))
                if outage:
                    server.start()
            drive.work(300)
            drive.drain()
            drive.ask_again(200)
        finally:
            fleet.close()
        assert service.stop() == 0
        said = service.stderr
    is_exact(drive)
    assert len(killed) == KILLS, "each of them was another process"
    assert said.count("a worker died") == KILLS
    assert "Traceback" not in said
    assert drive.utilisation > FULL - 0.1, "it was about as full as wanted"
    assert drive.counts["retries"] > 20, "workers got in each other's way"
    assert drive.counts["replayed"] > 200


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    """Where processes start quickly."""
    with Nursery(f"synthetic:{MACHINES // 2}") as nursery:
        yield nursery


def _start(nursery: Nursery, path: str, port: int, log: Path) -> Fosterling:
    nothing, said = os.open(os.devnull, os.O_RDWR), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        return nursery.launch(["serve", "--store", path, "--port", str(port)], nothing, said, said)
    finally:
        os.close(nothing)
        os.close(said)


def test_the_embedded_service_is_killed_at_random_moments_and_every_answer_holds(
    nursery: Nursery, tmp_path: Path
) -> None:
    """One process and a file, as `roost serve` does without any set-up; something starts it again whenever it dies."""
    rng = random.Random(SEED)
    path, log = str(tmp_path / "zone.db"), tmp_path / "log"
    with closing(open_store(path, create=Zone.synthetic(MACHINES // 2))) as store:
        ledger = store.load()
    clients = clients_of(ledger, 2, SEED)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = _start(nursery, path, port, log)
    fleet = HttpFleet(path, f"http://127.0.0.1:{port}", 2, ledger.catalogue)
    fleet.clients = clients
    try:
        drive = Drive(fleet, clients, SEED, full=FULL)  # type: ignore[arg-type]
        drive.fill(window=60)
        for _ in range(ONE_PROCESS_KILLS):
            drive.work_until(lambda before=drive.counts["done"]: drive.counts["done"] > before + rng.randint(1, 40))  # type: ignore[misc]
            time.sleep(rng.uniform(0.0, 0.01))  # the moment is meant to be random
            process.kill()
            assert process.wait() == -signal.SIGKILL
            process = _start(nursery, path, port, log)
        drive.work_until(lambda before=drive.counts["done"]: drive.counts["done"] > before + 100)  # type: ignore[misc]
        drive.drain()
        drive.ask_again(100)
    finally:
        fleet.close()
        process.kill()
        process.wait()
    is_exact(drive)
    assert "Traceback" not in log.read_text()
    assert drive.utilisation > FULL - 0.1, "it was about as full as wanted"
    assert drive.counts["unavailable"] > ONE_PROCESS_KILLS
    assert drive.counts["replayed"] > 100
