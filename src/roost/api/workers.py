"""Several processes that serve at one port: started together, restarted when one dies, stopped together.

    start ─▶ loading ─▶ serving ─▶ dead ─▶ at once ─▶ loading …
                └─▶ cannot ─▶ after a pause, longer each time ─▶ loading …

Each listens on a socket of its own at the same address (SO_REUSEPORT), so the system spreads connections over them.
Settings and the policy are read here, once for all: whoever is started later has what the others have, whatever has
become of the files.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType

import structlog
from prometheus_client.multiprocess import mark_process_dead

from roost.api import logs
from roost.api.metrics import SHARED
from roost.api.server import SettingsSource, listen, renewed, run
from roost.model.errors import RoostError
from roost.rules.policy import PolicySource
from roost.settings import Settings

CANNOT = 2  # exit code of a worker that would fail again
LOOK_SECONDS = 0.5  # between looks at workers, if none has anything to tell
PAUSE_SECONDS, LONGEST_PAUSE = 1.0, 60.0  # before a worker that did not come to serve is started again; it doubles
SETTLE_SECONDS = 5.0  # beyond draining, before workers that do not stop are killed

log = structlog.get_logger()


@dataclass
class WorkerProcess:
    """One process."""

    process: BaseProcess
    line: Connection  # to it: settings, and how many of its like are missing; from it: what it does, that it serves
    started: float
    served: bool = False


class Workers:
    """The processes, and what becomes of them."""

    def __init__(
        self,
        settings: Settings,
        origin: SettingsSource,
        policy: PolicySource,
        bound: socket.socket,
        tell: Callable[[str], None] = lambda _: None,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        """`bound` only keeps the port; the workers listen.

        `ready` is called once, when all of them serve, or all that can; until then `tell` hears what they are doing.
        """
        self._settings, self._origin, self._policy = settings, origin, policy
        self._tell_doing, self._ready, self._announced = tell, ready, False
        self._host, self._port = bound.getsockname()[:2]
        self._spawn = multiprocessing.get_context("spawn")
        self._workers: dict[int, WorkerProcess] = {}  # by place
        self._due: dict[int, float] = {}  # by place: when to start the next one
        self._failed: dict[int, int] = {}  # by place: starts in a row that led to nothing
        self._hopeless: set[int] = set()  # places where none ever served, and the last one could not
        self._served = self._stopping = self._reloading = False
        os.environ[SHARED] = self._folder = tempfile.mkdtemp(prefix="roost-metrics-")

    def run(self) -> int:
        """Until told to stop; the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGHUP, self._reload_soon)
        places = range(self._settings.server.workers)
        try:
            for place in places:
                self._begin(place)
            while not self._stopping:
                self._look()
                if len(self._hopeless) == len(places):  # the first start: nobody relies on it yet
                    return CANNOT
        finally:
            self._end()
            shutil.rmtree(self._folder, ignore_errors=True)
        return 0

    def _look(self) -> None:
        """Wait for something to happen, and see to it."""
        alive = self._workers.values()
        wait([each for worker in alive for each in (worker.process.sentinel, worker.line)], timeout=LOOK_SECONDS)
        if self._reloading:
            self._reloading = False
            self._reload()
        for place, worker in list(self._workers.items()):
            self._hear(place, worker)
            if not worker.process.is_alive():
                self._bury(place, worker)
        self._announce()
        for place, at in list(self._due.items()):
            if at <= time.monotonic() and not self._stopping:
                del self._due[place]
                self._begin(place)

    def _begin(self, place: int) -> None:
        mine, its = self._spawn.Pipe()
        arguments = (self._settings, self._policy, self._host, self._port, place, os.getpid(), its)
        process = self._spawn.Process(target=_work, args=arguments, name=f"roost-worker-{place}")
        process.start()
        its.close()
        self._workers[place] = WorkerProcess(process, mine, time.monotonic())

    def _hear(self, place: int, worker: WorkerProcess) -> None:
        """A worker says what it is doing, or that it serves."""
        with contextlib.suppress(EOFError, OSError):  # it is dead, which is seen elsewhere
            while worker.line.poll():
                said = worker.line.recv()
                if isinstance(said, str):
                    if not self._announced:
                        self._tell_doing(f"worker {place + 1}: {said}")
                    continue
                worker.served = self._served = True
                self._hopeless.clear()
                self._failed.pop(place, None)
                self._tell(len(self._failed))

    def _announce(self) -> None:
        """Say that all serve, once they do; those that cannot keep nobody waiting."""
        serving = sum(worker.served for worker in self._workers.values())
        if not self._announced and serving and serving + len(self._failed) >= self._settings.server.workers:
            self._announced = True
            self._ready()

    def _bury(self, place: int, worker: WorkerProcess) -> None:
        """A worker ended: another one takes its place, at once if it had served, else after a while."""
        worker.process.join()
        worker.line.close()
        del self._workers[place]
        mark_process_dead(worker.process.pid)  # type: ignore[no-untyped-call]
        if self._stopping:
            return
        code, pause = worker.process.exitcode, 0.0
        if not worker.served:
            self._failed[place] = self._failed.get(place, 0) + 1
            pause = min(LONGEST_PAUSE, PAUSE_SECONDS * 2 ** (self._failed[place] - 1))
            self._tell(len(self._failed))
            if code == CANNOT and not self._served:
                self._hopeless.add(place)
        elif time.monotonic() - worker.started < PAUSE_SECONDS:
            pause = PAUSE_SECONDS
        log.error("a worker died", worker=place, exit_code=code, again_in=pause)
        self._due[place] = time.monotonic() + pause

    def _reload(self) -> None:
        """Settings anew: for those that serve, and for those that will."""
        if (fresh := renewed(self._settings, self._origin)) is not None:
            self._settings = fresh
            logs.set_up(fresh.log)
            self._tell(fresh)

    def _tell(self, what: Settings | int) -> None:
        for worker in self._workers.values():
            with contextlib.suppress(OSError):  # it is dead, which is seen elsewhere
                worker.line.send(what)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        self._terminate()

    def _reload_soon(self, _number: int, _frame: FrameType | None) -> None:
        self._reloading = True

    def _terminate(self) -> None:
        for worker in list(self._workers.values()):
            if worker.process.pid and worker.process.is_alive():
                os.kill(worker.process.pid, signal.SIGTERM)

    def _end(self) -> None:
        self._stopping = True
        self._terminate()
        deadline = time.monotonic() + self._settings.server.drain_seconds + SETTLE_SECONDS
        for worker in self._workers.values():
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


def _work(
    settings: Settings, policy: PolicySource, host: str, port: int, place: int, parent: int, line: Connection
) -> None:
    """The life of one worker."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # whoever started this reads settings for all
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; whoever started this passes it on
    ready: Callable[[], None] = lambda: line.send(True)  # noqa: E731
    try:
        bound = listen(host, port, shared=True)
        run(settings, None, bound, policy=policy, place=place, parent=parent, line=line, tell=line.send, ready=ready)
    except RoostError as error:
        log.error("cannot serve", worker=place, detail=str(error))
        sys.exit(CANNOT)
