"""More than the service can do: it says so at once, stays small, and is itself again when the load ends."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from roost.api.problems import Refused
from roost.api.reading import SLOW_WAITING
from roost.api.service import Service
from roost.settings import LimitsSection, Settings
from tests.e2e.serving import Serving, serving
from tests.e2e.talking import audit, connected, events, eventually

QUEUED, CONNECTIONS = 50, 240
CLIENTS = 220  # several times what may be queued
SECONDS = 3.0
MOST_GROWTH = 150 * 2**20  # bytes
HEAD = re.compile(rb"HTTP/1\.1 (\d+) .*?\r\n\r\n", re.DOTALL)
LENGTH = re.compile(rb"content-length: (\d+)")
_numbers = itertools.count()


@dataclass
class Load:
    """What came of a load."""

    statuses: Counter[int] = field(default_factory=Counter)
    slowest: float = 0.0
    hurried: int = 0  # refusals that did not say when to come back
    largest: int = 0  # bytes of memory

    @property
    def refused(self) -> int:
        """How many were told to come back."""
        return self.statuses[503] + self.statuses[429]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A service with little patience."""
    store = str(tmp_path_factory.mktemp("overload") / "zone.db")
    limits = {
        "limits.queued_requests": QUEUED, "limits.connections": CONNECTIONS, "server.drain_seconds": 2,
        "log.requests": "failed", "log.level": "error",
    }  # fmt: skip
    settings = [part for name, value in limits.items() for part in ("--set", f"{name}={value}")]
    with serving(store, "--zone", "synthetic:1000", *settings) as service:
        yield service
        assert '"a bug"' not in service.stderr
    audit(store)


def memory(service: Serving) -> int:
    """What the service holds, in bytes."""
    pages = Path(f"/proc/{service.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def create() -> bytes:
    """A request for a tenant of one small VM."""
    body = b'{"tenant":"t%d","vms":[{"type":"A1"}]}' % next(_numbers)
    head = (
        b"POST /v1/tenants HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    return head % len(body) + body


async def _ask_on(service: Serving, load: Load, until: float) -> None:
    """One after another, on a connection of its own, and on another one when that is closed."""
    parts = urlsplit(service.url)
    while time.monotonic() < until:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            while time.monotonic() < until:
                started = time.monotonic()
                writer.write(create())
                head = await reader.readuntil(b"\r\n\r\n")
                found, length = HEAD.match(head), LENGTH.search(head)
                assert found
                assert length
                await reader.readexactly(int(length[1]))
                load.statuses[int(found[1])] += 1
                load.slowest = max(load.slowest, time.monotonic() - started)
                if found[1] in (b"503", b"429"):
                    load.hurried += b"retry-after: " not in head
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # refused at the door
        finally:
            writer.close()


async def _watch(service: Serving, load: Load, until: float) -> None:
    while time.monotonic() < until:
        load.largest = max(load.largest, memory(service))
        await asyncio.sleep(0.05)


def overload(service: Serving, clients: int = CLIENTS, seconds: float = SECONDS) -> Load:
    """Many ask at once, for some time."""
    load = Load()

    async def ask() -> None:
        until = time.monotonic() + seconds
        await asyncio.gather(_watch(service, load, until), *(_ask_on(service, load, until) for _ in range(clients)))

    asyncio.run(ask())
    return load


def created_within(service: Serving, seconds: float) -> None:
    """A tenant is created as if nothing had been."""

    def made() -> bool:
        body = {"tenant": f"after-{next(_numbers)}", "vms": [{"type": "A1"}]}
        return httpx.post(f"{service.url}/v1/tenants", json=body, timeout=seconds).status_code == 201

    eventually(made, seconds)


def test_what_is_too_much_is_refused_at_once_and_memory_stays_bounded(service: Serving) -> None:
    created_within(service, 10)
    before = memory(service)
    load = overload(service)
    assert load.statuses[201] > 100  # it goes on working
    assert load.refused > 100, load
    assert set(load.statuses) <= {201, 503, 429}
    assert load.hurried == 0
    assert load.slowest < 5, load
    assert load.largest - before < MOST_GROWTH, (before, load)
    created_within(service, 5)
    assert httpx.get(f"{service.url}/readyz").status_code == 200
    again = overload(service, seconds=1.5)
    assert again.largest - load.largest < MOST_GROWTH / 3  # it does not grow from time to time


def test_more_connections_than_allowed_are_turned_away_and_the_others_served(service: Serving) -> None:
    with ExitStack() as stack:
        lines = [stack.enter_context(connected(service.url)) for _ in range(CONNECTIONS + 20)]
        lines[0].sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert lines[0].recv(100).startswith(b"HTTP/1.1 200 ")
        turned_away = 0
        for line in lines[CONNECTIONS:]:
            raw = line.recv(4_096)
            turned_away += b"HTTP/1.1 503 " in raw and b"retry-after: " in raw and b"roost.overloaded" in raw
        assert turned_away == 20
    created_within(service, 5)


def test_who_never_reads_holds_nobody_up_and_costs_little(service: Serving) -> None:
    stream = b"GET /v1/changes/stream?since=1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    lists = b"GET /v1/machines?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100
    created_within(service, 5)
    before = memory(service)
    with ExitStack() as stack:
        for i in range(40):
            line = stack.enter_context(connected(service.url))
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            line.sendall(lists if i < 4 else stream)
        created_within(service, 5)
        load = overload(service, clients=40, seconds=2.0)
        assert load.statuses[201] > 100, load
        assert load.slowest < 5
        assert load.largest - before < MOST_GROWTH
        start = httpx.get(f"{service.url}/v1/zone").json()["revision"]
        created_within(service, 5)
        with httpx.stream("GET", f"{service.url}/v1/changes/stream", params={"since": start}) as reading:
            assert next(events(reading))[2]["placed"]
        started = time.monotonic()
        assert service.stop() == 0  # though they still do not read
        assert time.monotonic() - started < 8


def test_copies_of_the_zone_are_made_one_at_a_time_and_may_take_longer_than_other_answers() -> None:
    begun, go_on = [], threading.Event()

    def look(store: Any) -> bool:
        begun.append(store)
        return go_on.wait(10)

    async def ask() -> None:
        service = Service(Settings(limits=LimitsSection(request_seconds=0.1)))
        service.ready, service.watch.store = True, None  # type: ignore[assignment]
        asked = [asyncio.create_task(service.read_slowly(look)) for _ in range(SLOW_WAITING)]
        await asyncio.sleep(0.2)  # longer than other answers may take
        assert len(begun) == 1
        with pytest.raises(Refused, match="wait for a copy of the zone"):
            await service.read_slowly(look)
        go_on.set()
        assert all(await asyncio.gather(*asked))

    asyncio.run(ask())
