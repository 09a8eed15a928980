"""A walk's hold on the zone: while it has it, no other walk begins.

It is held again by a thread for as long as the walk lives. Another may take over when the service has heard nothing for
`seconds`; so whoever could not say that it goes on for half of that asks before it does anything more.
"""

from __future__ import annotations

import getpass
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from uuid import uuid4

from roost.client.client import Client
from roost.client.errors import ServiceProblem
from roost.model.errors import RoostError
from roost.wire.maintenance import WalkHold

SECONDS = 60.0  # without a word, after which another walk may take over
BEATS = 4  # in that time
TAKEN = "roost.conflict"


def who() -> str:
    """Who walks, and where, for people."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        name = str(os.getuid())
    return f"{name} at {socket.gethostname()}, process {os.getpid()}"


class Lease:
    """Had from `with` on until its end, unless somebody else took over.

    `left`: machines that another, from which this one took over, had taken out of use.
    """

    def __init__(
        self,
        client: Client,
        *,
        take_over: bool = False,
        seconds: float = SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._take_over, self._seconds, self._clock = client, take_over, seconds, clock
        self._walk, self._owner = uuid4().hex, who()
        self._domain: int | None = None
        self._lost: ServiceProblem | None = None
        self._ending, self._in_order = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._go_on, name="roost-walk", daemon=True)
        self.left: set[str] = set()

    def __enter__(self) -> Lease:
        self._held = self._clock()
        self.left = set(self._hold(take_over=self._take_over))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join()
        with suppress(RoostError):  # then it ends by itself
            self._client.end_walk(self._walk)

    def check(self) -> None:
        """Raise unless the zone is still this walk's."""
        if self._lost is None and self._clock() - self._held > self._seconds / 2:
            self._hold()
        if self._lost is not None:
            raise self._lost

    def tell(self, domain: int, machines: Sequence[str]) -> None:
        """It is in a domain, and these machines are, or are about to be, out of use, beside those that another left."""
        self._domain = domain
        self._hold(machines=tuple(sorted({*machines, *self.left})))

    def settled(self, machines: Iterable[str]) -> None:
        """These are no longer as another has left them."""
        self.left.difference_update(machines)

    def _go_on(self) -> None:
        while not self._ending.wait(self._seconds / BEATS) and self._lost is None:
            with suppress(RoostError):  # the next time will do
                self._hold()

    def _hold(self, machines: tuple[str, ...] | None = None, *, take_over: bool = False) -> Sequence[str]:
        with self._in_order:
            began = self._clock()
            hold = WalkHold(
                walk=self._walk,
                owner=self._owner,
                seconds=self._seconds,
                domain=self._domain,
                machines=machines,
                take_over=take_over,
            )
            try:
                found = self._client.hold_walk(hold).machines
            except ServiceProblem as problem:
                if problem.code == TAKEN and self._thread.is_alive():
                    self._lost = problem
                raise
            self._held = began
            return found
