"""Changes as they arrive: server-sent events become values here, and whoever lost the stream goes on where it was."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import httpx
import msgspec

from roost.client.call import Call
from roost.client.calls import stream_changes
from roost.client.connection import FIRST_PAUSE, LONGEST_PAUSE, Attempts, unreachable
from roost.client.errors import ServiceProblem
from roost.wire.changes import ChangeView
from roost.wire.problems import Problem

SILENCE = httpx.Timeout(10.0, read=30.0)  # seconds; the service gives a sign of life every ten
PATIENCE = 60.0  # seconds without a service, before a reader that had one gives up

_change = msgspec.json.Decoder(ChangeView).decode
_problem = msgspec.json.Decoder(Problem).decode


class Following:
    """One reader of the feed: how far it is, what came in, and whether to connect again. Does no I/O."""

    def __init__(
        self, since: int | None, retries: int, where: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.revision = since
        self._where, self._clock, self._rest = where, clock, b""
        self._attempts = Attempts(stream_changes(since), retries, where)
        self._alive: float | None = None  # when something came last
        self._pause = FIRST_PAUSE

    @property
    def call(self) -> Call[bytes]:
        """The call that goes on from here."""
        self._rest = b""
        return stream_changes(self.revision)

    def take(self, chunk: bytes) -> Iterator[ChangeView]:
        """The changes in the next bytes; what is not whole yet is kept. Raises what the service says went wrong."""
        self._alive, self._pause = self._clock(), FIRST_PAUSE
        *events, self._rest = (self._rest + chunk).split(b"\n\n")
        for event in events:
            fields = dict(_field(line) for line in event.split(b"\n") if line and not line.startswith(b":"))
            kind, data = fields.get(b"event", b""), fields.get(b"data", b"")
            if kind == b"problem":
                raise ServiceProblem(_problem(data))
            if number := fields.get(b"id"):
                self.revision = int(number)
            if kind == b"change":
                yield _change(data)

    def pause(self, error: httpx.TransportError | ServiceProblem | None) -> float:
        """Seconds before connecting again, after an error or after the stream just ended; raises to give up."""
        if self._alive is None and error is not None:
            return self._attempts.pause(error)
        if isinstance(error, ServiceProblem) and not error.retryable:
            raise error
        if error is not None and self._clock() - (self._alive or 0.0) > PATIENCE:
            raise error if isinstance(error, ServiceProblem) else unreachable(error, self._where)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return self._pause


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name, value.removeprefix(b" ")
