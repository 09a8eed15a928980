"""A worker of the service that tells how it does, and the other end: what the bench knows of it.

`python -m roost.bench.scale_worker '{"url": …}'` serves what a worker of `roost serve` does, on a socket of its own at
a shared port, and besides a route that makes the service known to whoever counts here. It prints a line once it serves;
then it answers each line that it reads with a line of JSON: what its agent has counted so far.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec
from litestar import get
from litestar.types import Scope

from roost.api.metrics import SHARED
from roost.api.routes.common import asking_of, may
from roost.api.server import listen, run
from roost.api.service import Service
from roost.bench import stages
from roost.bench.accounting import cpu_of, resident
from roost.model.errors import StoreUnavailable
from roost.settings import load

MEET = "/bench/meet"


class ScaleOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is to serve, and where."""

    url: str
    port: int
    place: int
    timed: bool  # whether it has timers around its stages


class AgentCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent has done since it began, and how far it is behind."""

    placed_vms: int
    commits: int  # attempts to place
    conflicts: int
    rounds: int
    lag: int
    stages: Mapping[str, float] = {}  # seconds of computing; none without timers


class WorkerReading(msgspec.Struct, frozen=True, kw_only=True):
    """A worker at one moment."""

    counted: AgentCounts
    cpu: float  # seconds
    resident: int  # bytes


# ------------------------------------------------------------------------------------------------------- in the worker


def _serve(order: ScaleOrder) -> None:
    met: list[Service] = []

    @get(MEET, **may("read"))
    async def meet(scope: Scope) -> int:
        """Which process answers; from now on it counts."""
        met[:] = [asking_of(scope).service]
        return os.getpid()

    if order.timed:
        stages.install()
    threading.Thread(target=_answer, args=(met, order.timed)).start()
    settings = load(None, os.environ, {"store.url": order.url, "server.port": order.port}).settings
    bound = listen("127.0.0.1", order.port, shared=True)
    run(settings, None, bound, place=order.place, parent=os.getppid(), ready=lambda: _say(b""), more=[meet])


def _answer(met: list[Service], timed: bool) -> None:
    """Tell what has been counted, for each line that comes."""
    for _ in sys.stdin:
        _say(msgspec.json.encode(_counted(met[0], stages.taken() if timed else {})))


def _counted(service: Service, taken: Mapping[str, float]) -> AgentCounts:
    found = service.agent.counters
    return AgentCounts(
        placed_vms=found.placed_vms,
        commits=found.commits,
        conflicts=found.conflicts,
        rounds=found.rounds,
        lag=service.lag,
        stages=taken,
    )


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


# -------------------------------------------------------------------------------------------------------- in the bench


class ScaleWorker:
    """A process that serves, with a line to it."""

    def __init__(self, url: str, port: int, place: int, metrics: Path | None, *, timed: bool) -> None:
        """`metrics`: where several workers share theirs."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        order = ScaleOrder(url=url, port=port, place=place, timed=timed)
        environment = {**os.environ, "ROOST_LOG_FORMAT": "json", **({SHARED: str(metrics)} if metrics else {})}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "roost.bench.scale_worker", msgspec.json.encode(order).decode()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=environment,
        )  # fmt: skip

    def ask(self) -> AgentCounts:
        """What it has counted."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the log says why
        return msgspec.json.decode(self.hear(), type=AgentCounts)

    def hear(self) -> bytes:
        """The next line that it says."""
        assert self.process.stdout is not None
        if not (line := self.process.stdout.readline()):
            self._log.seek(0)
            raise StoreUnavailable(f"a worker ended: {self._log.read().decode()[-500:]}")
        return line

    def read(self) -> WorkerReading:
        """How it does."""
        process = self.process.pid
        return WorkerReading(counted=self.ask(), cpu=cpu_of(process), resident=resident(process))

    def __enter__(self) -> ScaleWorker:
        return self

    def __exit__(self, *_: object) -> None:
        with self._log, self.process:  # which closes the lines to it, and waits
            self.process.terminate()


if __name__ == "__main__":
    _serve(msgspec.json.decode(sys.argv[1], type=ScaleOrder))
