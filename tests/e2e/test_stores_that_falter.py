"""A service whose store is cut off, hangs, is full or is damaged: who asks is told in time, and nothing is lost."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import psycopg
import pytest

from roost.bench.postgres import ThrowawayPostgres
from roost.model.zone import Zone
from roost.wiring import open_store
from tests.e2e.serving import ROOST, Serving, serving
from tests.e2e.talking import audit, eventually, make_store, problem

NOTICED = 5.0  # seconds until a store that hangs is known to
AT_ONCE = 1.0  # seconds that a refusal may take
DRAIN = 2.0  # seconds to finish what is in flight
LATE = 8.0  # seconds that a process may take on a busy machine, beyond what it may drain for


@pytest.fixture(scope="module")
def server() -> Iterator[ThrowawayPostgres]:
    """A database server."""
    with ThrowawayPostgres() as server:
        yield server


@pytest.fixture(scope="module")
def database(server: ThrowawayPostgres, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database with the tiny zone."""
    return make_store(server.create_database("zone"), tmp_path_factory.mktemp("falter"))


@pytest.fixture
def service(database: str) -> Iterator[Serving]:
    """A service on it."""
    with serving(database, "--set", f"server.drain_seconds={DRAIN}") as service:
        yield service


def create(service: Serving, key: str, timeout: float = 60.0) -> httpx.Response:
    """Ask for a tenant named like the key."""
    body = {"tenant": key, "vms": [{"type": "D2"}]}
    return httpx.post(f"{service.url}/v1/tenants", json=body, headers={"Idempotency-Key": key}, timeout=timeout)


def get(service: Serving, path: str, timeout: float = 60.0) -> httpx.Response:
    """Ask for something."""
    return httpx.get(f"{service.url}{path}", timeout=timeout)


def tenants(url: str) -> list[str]:
    """Who has VMs."""
    with closing(open_store(url, read_only=True)) as store:
        return [name for name, _ in store.tenants()]


# ----------------------------------------------------------------------------------------------------------- cut off


def cut_and_ask(service: Serving, database: str) -> None:
    """Whatever connections were used for, and while they are used: the server closes them, and nobody is refused."""
    with psycopg.connect(database, autocommit=True) as other:
        cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'roost'"
        over, answers = threading.Event(), list[httpx.Response]()

        def keep_looking() -> None:
            while not over.is_set():
                answers.append(get(service, "/readyz"))
                answers.append(get(service, "/v1/tenants"))

        looking = threading.Thread(target=keep_looking)
        looking.start()
        try:
            for i in range(6):
                other.execute(cut)
                answers.append(create(service, f"t{i}"))
                other.execute(cut)
                answers.append(get(service, f"/v1/tenants/t{i}"))
                answers.append(get(service, f"/v1/decisions/t{i}"))
        finally:
            over.set()
            looking.join()
        assert {answer.status_code for answer in answers} == {200, 201}, [a.text for a in answers if a.is_error]
        assert "the store went away" not in service.stderr


# --------------------------------------------------------------------------------------------------------------- hung


class Frozen:
    """A server that hangs, and what was asked just then."""

    def __init__(self, server: ThrowawayPostgres, service: Serving, pool: ThreadPoolExecutor) -> None:
        self.server, self.service = server, service
        create(service, "before")
        server.freeze()
        self.since = time.monotonic()
        self.sent: list[Future[httpx.Response]] = [
            pool.submit(create, service, "sent"),
            pool.submit(get, service, "/v1/tenants/before"),
            pool.submit(get, service, "/v1/tenants"),
            pool.submit(get, service, "/v1/policies/results?since=0"),
        ]

    @property
    def seconds(self) -> float:
        """For how long it has been."""
        return time.monotonic() - self.since

    def is_noticed(self) -> None:
        """It is told in time, and refused at once from then on; what was sent before is answered."""
        while get(self.service, "/readyz", timeout=AT_ONCE).status_code == 200:
            assert self.seconds < NOTICED
            time.sleep(0.05)
        said = problem(get(self.service, "/readyz"), "roost.store_unavailable").detail
        assert "not answered" in said or "no answer" in said
        asked = time.monotonic()
        problem(create(self.service, "later"), "roost.store_unavailable")
        problem(get(self.service, "/v1/tenants/before"), "roost.store_unavailable")
        assert time.monotonic() - asked < AT_ONCE
        for answer in self.sent:
            problem(answer.result(), "roost.store_unavailable")
        assert "same Idempotency-Key" in self.sent[0].result().json()["detail"]
        assert self.seconds < NOTICED + AT_ONCE


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Those who ask."""
    with ThreadPoolExecutor(8) as pool:
        yield pool


def freeze_and_go_on(frozen: Frozen, seconds: float) -> None:
    """Nothing is lost or doubled by a server that hangs for a while."""
    service = frozen.service
    try:
        frozen.is_noticed()
        while frozen.seconds < seconds:
            assert get(service, "/readyz", timeout=AT_ONCE).status_code == 503
            time.sleep(0.2)
    finally:
        frozen.server.thaw()
    eventually(service.is_ready, 10)
    assert get(service, "/v1/tenants/before").status_code == 200
    for key in ("sent", "later", "sent", "later"):
        assert create(service, key).status_code == 201
    assert get(service, "/v1/policies/results?since=0").status_code == 200


def stop_while_frozen(frozen: Frozen) -> None:
    """A process ends in time though its database says nothing."""
    service = frozen.service
    try:
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(DRAIN + LATE) == 0
        answered = [answer.result() for answer in frozen.sent if not answer.exception()]
        assert [answer.text for answer in answered if answer.status_code != 503] == []
        assert "Traceback" not in service.stderr
    finally:
        frozen.server.thaw()


def test_a_service_is_not_troubled_by_connections_that_are_cut_and_survives_a_database_that_hangs(
    server: ThrowawayPostgres, database: str, service: Serving, pool: ThreadPoolExecutor
) -> None:
    cut_and_ask(service, database)
    freeze_and_go_on(Frozen(server, service, pool), 0.0)
    stop_while_frozen(Frozen(server, service, pool))
    audit(database)
    assert tenants(database) == ["before", "later", "sent", *(f"t{i}" for i in range(6))]


@pytest.mark.deep
def test_a_database_that_hangs_for_long_is_away_all_the_time(
    server: ThrowawayPostgres, database: str, service: Serving, pool: ThreadPoolExecutor
) -> None:
    freeze_and_go_on(Frozen(server, service, pool), 45.0)
    audit(database)
    assert {"before", "later", "sent"} <= set(tenants(database))


# --------------------------------------------------------------------------------------------------------------- full


def test_a_full_disk_keeps_nobody_from_reading_and_work_goes_on_when_there_is_room(tmp_path: Path) -> None:
    url = make_store(str(tmp_path / "zone.db"), tmp_path)
    with serving(url) as service:
        assert create(service, "before").status_code == 201
        full = Path(f"{url}-wal").stat().st_size
        limits = resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (full, resource.RLIM_INFINITY))
        refused = create(service, "during")
        for _ in range(3):
            said = problem(refused, "roost.store_unavailable")
            assert "zone.db: " in said.detail
            for path in ("/v1/tenants/before", "/v1/tenants", "/v1/decisions/before", "/v1/zone"):
                assert get(service, path).status_code == 200
            assert "but not written" in problem(get(service, "/readyz"), "roost.store_unavailable").detail
            refused = create(service, "during")
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, limits)
        eventually(service.is_ready, 10)
        assert create(service, "during").status_code == 201
        assert service.stop() == 0
        assert "Traceback" not in service.stderr
    audit(url)
    assert tenants(url) == ["before", "during"]


# ------------------------------------------------------------------------------------------------------------ damaged


def test_a_damaged_file_ends_the_service_and_says_what_to_do(tmp_path: Path) -> None:
    url = str(tmp_path / "zone.db")
    open_store(url, create=Zone.synthetic(2_000)).close()
    size = Path(url).stat().st_size
    with Path(url).open("r+b") as file:  # in the middle: at first sight it is a store like any other
        file.seek(size // 2)
        file.write(os.urandom(size // 4))
    command = [ROOST, "serve", "--store", url, "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2, done.stderr
    assert f"{url}: " in done.stderr
    assert "restore a backup" in done.stderr
    assert "Traceback" not in done.stderr
