"""Several processes that serve at one port: started together, restarted when one dies, stopped together.

Each listens on a socket of its own at the same address (SO_REUSEPORT), so the system spreads connections over them.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from types import FrameType

import structlog
from prometheus_client.multiprocess import mark_process_dead

from roost.api.metrics import SHARED
from roost.api.server import Origin, listen, run
from roost.model.errors import RoostError
from roost.settings import Settings

CANNOT = 2  # exit code of a worker that would fail again
PAUSE_SECONDS = 1.0  # before a worker that died is started again
SETTLE_SECONDS = 5.0  # beyond draining, before workers that do not stop are killed

log = structlog.get_logger()


class Workers:
    """The processes, and what becomes of them."""

    def __init__(self, settings: Settings, origin: Origin, bound: socket.socket) -> None:
        """`bound` only keeps the port; the workers listen."""
        self._settings, self._origin = settings, origin
        self._host, self._port = bound.getsockname()[:2]
        self._spawn = multiprocessing.get_context("spawn")
        self._workers: dict[int, BaseProcess] = {}  # by place
        self._started: dict[int, float] = {}
        self._stopping = False
        os.environ[SHARED] = self._folder = tempfile.mkdtemp(prefix="roost-metrics-")

    def run(self) -> int:
        """Until told to stop; the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGHUP, self._pass_on)
        code = 0
        try:
            for place in range(self._settings.server.workers):
                self._begin(place)
            while self._workers and not self._stopping:
                wait([worker.sentinel for worker in self._workers.values()], timeout=1.0)
                code = max(code, self._bury())
        finally:
            self._end()
            shutil.rmtree(self._folder, ignore_errors=True)
        return code

    def _begin(self, place: int) -> None:
        arguments = (self._settings, self._origin, self._host, self._port, place, os.getpid())
        worker = self._spawn.Process(target=_work, args=arguments, name=f"roost-worker-{place}")
        worker.start()
        self._workers[place], self._started[place] = worker, time.monotonic()

    def _bury(self) -> int:
        """Look for workers that ended, and start them again, unless that makes no sense; returns an exit code."""
        for place, worker in list(self._workers.items()):
            if worker.is_alive():
                continue
            worker.join()
            del self._workers[place]
            mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
            if self._stopping:
                continue
            if worker.exitcode == CANNOT:
                self._stop(signal.SIGTERM, None)
                return CANNOT
            log.error("a worker died", worker=place, exit_code=worker.exitcode)
            if time.monotonic() - self._started[place] < PAUSE_SECONDS:
                time.sleep(PAUSE_SECONDS)
            if not self._stopping:  # by a signal, meanwhile
                self._begin(place)
        return 0

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        self._signal(signal.SIGTERM)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._signal(signal.Signals(number))

    def _signal(self, number: signal.Signals) -> None:
        for worker in self._workers.values():
            if worker.pid and worker.is_alive():
                os.kill(worker.pid, number)

    def _end(self) -> None:
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + self._settings.server.drain_seconds + SETTLE_SECONDS
        for worker in self._workers.values():
            worker.join(max(0.0, deadline - time.monotonic()))
            if worker.is_alive():
                worker.kill()
                worker.join()


def _work(settings: Settings, origin: Origin, host: str, port: int, place: int, parent: int) -> None:
    """The life of one worker."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it can be heeded
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; whoever started this passes it on
    try:
        run(settings, origin, listen(host, port, shared=True), place=place, parent=parent)
    except RoostError as error:
        log.error("cannot serve", detail=str(error))
        sys.exit(CANNOT)
