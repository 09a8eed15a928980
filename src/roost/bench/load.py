"""A load generator: connections that each send a request, wait for its answer, and send the next.

Or an open load: requests are due at so many a second, whatever becomes of those before, and an answer took as long as
it came after its request was due.

Plain protocols on an event loop, because on a small machine whoever asks must cost much less than whoever answers. Run
as a process of its own: `python -m roost.bench.load '{"port": …}'` prints a `LoadReport` as JSON.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections import Counter, deque
from typing import cast

import msgspec
import numpy as np
import uvloop

STATUS = slice(9, 12)  # in the first line of a response
END_OF_HEADERS, LENGTH = b"\r\n\r\n", b"content-length:"
# VMs of 1, 2, 4, 8 and 16 cores, as often as in Protean's Table 3 (zone 1).
TYPES = {b"D1": 17.1, b"D2": 37.4, b"D3": 32.0, b"D4": 8.9, b"D14": 4.3}
TURNS = 10_000  # requests, after which the types come again in the same order
ENDING_SECONDS = 10.0  # to wait for the last answers


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask for."""

    port: int
    path: str
    seconds: float
    connections: int = 64
    batch: int = 0  # requests in a body; 0: a single one, not in a batch
    rate: float = 0.0  # requests that are due a second; 0: as fast as they are answered
    token: str = ""


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    requests: int  # that were answered
    offered: int
    seconds: float
    statuses: dict[str, int]
    mean_ms: float
    p50_ms: float
    p99_ms: float
    worst_ms: float

    @property
    def rate(self) -> float:
        """Answers a second."""
        return self.requests / self.seconds


class _Run:
    def __init__(self, load: Load) -> None:
        self.load, self.number, self.prefix = load, 0, f"b{os.getpid()}x{time.time_ns() // 1_000_000 % 10_000_000}"
        self.latencies: list[float] = []
        self.statuses: Counter[bytes] = Counter()
        self._types = random.Random(1).choices(list(TYPES), list(TYPES.values()), k=TURNS)
        self.start = time.perf_counter()
        self.end = self.start + load.seconds
        self.open = 0
        self.due: deque[float] = deque()  # when, of requests that found no idle connection
        self.idle: list[_Connection] = []
        token = f"Authorization: Bearer {load.token}\r\n" if load.token else ""
        self._head = (
            f"POST {load.path} HTTP/1.1\r\nHost: localhost\r\n{token}Content-Type: application/json\r\n".encode()
        )

    def _wish(self) -> bytes:
        self.number += 1
        return b'{"tenant":"%s-%07d","vms":[{"type":"%s"}]}' % (
            self.prefix.encode(),
            self.number,
            self._types[self.number % TURNS],
        )

    def request(self) -> bytes:
        """The next one."""
        if self.load.batch:
            body = b'{"requests":[%s]}' % b",".join(self._wish() for _ in range(self.load.batch))
        else:
            body = self._wish()
        return b"%sContent-Length: %d\r\n\r\n%s" % (self._head, len(body), body)


class _Connection(asyncio.Protocol):
    def __init__(self, run: _Run) -> None:
        self._run, self._received, self._sent = run, b"", 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._run.open += 1
        self._next(time.perf_counter())

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._run.open -= 1

    def _next(self, now: float) -> None:
        """Send the next request, if there is one."""
        run = self._run
        if run.load.rate:
            if run.due:
                self.send(run.due.popleft())
            elif now < run.end:
                run.idle.append(self)
            else:
                self._transport.close()
        elif now < run.end:
            self.send(now)
        else:
            self._transport.close()

    def send(self, due: float) -> None:
        """Send a request that was due then."""
        self._sent = due
        self._transport.write(self._run.request())

    def close(self) -> None:
        """There is nothing more to send."""
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        received = self._received = self._received + data if self._received else data
        end = received.find(END_OF_HEADERS)
        if end < 0:
            return
        head = received[:end].lower()
        at = head.find(LENGTH) + len(LENGTH)
        whole = end + len(END_OF_HEADERS) + int(head[at : at + 12].split(b"\r", 1)[0])
        if len(received) < whole:
            return
        run, now = self._run, time.perf_counter()
        run.latencies.append(now - self._sent)
        run.statuses[received[STATUS]] += 1
        self._received = received[whole:]
        self._next(now)


async def _offer(run: _Run) -> None:
    """Let requests be due, at random times as they would come from many who know nothing of each other."""
    lots, due = random.Random(2), run.start
    while (due := due + lots.expovariate(run.load.rate)) < run.end:
        if (early := due - time.perf_counter()) > 0:
            await asyncio.sleep(early)
        if run.idle:
            run.idle.pop().send(due)
        else:
            run.due.append(due)
    await asyncio.sleep(max(0.0, run.end - time.perf_counter()))  # who is answered until then is idle, too
    for connection in run.idle:
        connection.close()


async def _measure(load: Load) -> LoadReport:
    run, loop = _Run(load), asyncio.get_running_loop()
    started = time.perf_counter()
    for _ in range(load.connections):
        await loop.create_connection(lambda: _Connection(run), "127.0.0.1", load.port)
    if load.rate:
        await _offer(run)
    while run.open and time.perf_counter() < run.end + ENDING_SECONDS:
        await asyncio.sleep(0.01)
    seconds, times = time.perf_counter() - started, np.array(run.latencies or [0.0]) * 1e3
    return LoadReport(
        requests=len(run.latencies),
        offered=run.number // max(1, load.batch) + len(run.due),
        seconds=seconds,
        statuses={status.decode(): number for status, number in run.statuses.items()},
        mean_ms=float(times.mean()),
        p50_ms=float(np.percentile(times, 50)),
        p99_ms=float(np.percentile(times, 99)),
        worst_ms=float(times.max()),
    )


if __name__ == "__main__":
    wanted = msgspec.json.decode(sys.argv[1], type=Load)
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(_measure(wanted))))
