"""A connection to PostgreSQL for one purpose: made when it is needed, and anew when it broke."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import psycopg
from psycopg import errors

from roost.model.errors import StoreUnavailable
from roost.store.remembered_rechecks import RememberedRechecks

T = TypeVar("T")

SESSION = {
    "application_name": "roost",
    "client_encoding": "UTF8",
    # Durable before acknowledged, whatever the server's default; and a frozen worker must not hold locks for long.
    "options": "-c synchronous_commit=on -c idle_in_transaction_session_timeout=10000 -c jit=off",
    "connect_timeout": "5",
    # A host that vanished without a word is noticed.
    "tcp_user_timeout": "10000",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
}
# Another transaction was faster: with what it wrote, the same proposals come out differently.
RACES = (errors.UniqueViolation, errors.DeadlockDetected, errors.SerializationFailure)
# What says something of the work, and nothing of the connection.
OF_THE_WORK = (*RACES, psycopg.IntegrityError, psycopg.DataError, errors.LockNotAvailable)
# The server has closed the connection: it was idle for too long, it was told to, or another server has taken over.
CUTS = 2  # connections that may be closed under one piece of work, before the store is said to be away
# Or it has forgotten what was prepared on it, or that answers otherwise since the schema was changed.
CUT = (
    psycopg.OperationalError, psycopg.InterfaceError, errors.ReadOnlySqlTransaction, errors.InvalidSqlStatementName,
    errors.FeatureNotSupported,
)  # fmt: skip


class Silent(psycopg.OperationalError):
    """The server said nothing for too long, or nobody waits for it any more."""


class Hearing(psycopg.Connection[tuple[Any, ...]]):
    """A connection that is given up when the server says nothing for so many seconds, or when `over` is set.

    A server that hangs keeps its connections, and what waits for an answer on one would wait for ever.
    """

    seconds: float = math.inf
    over = threading.Event()  # of those that nobody told of another one, never
    names = 0  # that were given to statements

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # By statement, the name under which the server has it prepared, and those that are just being prepared.
        self.prepared: dict[str, bytes] = {}
        self.named: dict[str, bytes] = {}
        # Rows as they were written by it, by their versions. A database that was restored has others, and another line.
        self.rechecks = RememberedRechecks()

    def wait(self, gen: Generator[Any, Any, T], *arguments: Any, **named: Any) -> T:
        """What psycopg waits for everything by: it asks ten times a second whether to go on."""
        return super().wait(self._while_heard(gen), *arguments, **named)

    def _while_heard(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        until = time.monotonic() + self.seconds
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    until = time.monotonic() + self.seconds
                elif self.over.is_set() or time.monotonic() > until:
                    self.close()  # nobody knows what it would say next
                    raise Silent("the store is closed" if self.over.is_set() else f"no answer for {self.seconds:g} s")
                wanted = gen.send(ready)
        except StopIteration as done:
            result: T = done.value
            return result


class LockedConnection:
    """One connection and its lock."""

    def __init__(self, url: str, seconds: float, over: threading.Event) -> None:
        """`seconds`: how long the server may say nothing; `over`: set when nobody is to wait any more."""
        self._url, self._seconds, self._over = url, seconds, over
        self._lock = threading.Lock()
        self._connection: Hearing | None = None

    def use(self, work: Callable[[Hearing], T], seconds: float | None = None) -> T:
        """What comes of some work on the connection.

        It is done again, on a fresh connection, if this one turns out to be cut: so it has to be such that it may be
        repeated, even if it was done before. `seconds`: of silence, instead of the usual.
        """
        seconds = self._seconds if seconds is None else seconds
        if not self._lock.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
            raise StoreUnavailable("PostgreSQL cannot be used: others wait for an answer already")
        try:
            for _ in range(CUTS):
                connection = self._connected()
                try:
                    return self._do(work, connection, seconds)
                except CUT as error:
                    if isinstance(error, (Silent, *OF_THE_WORK)):
                        raise
            return self._do(work, self._connected(), seconds)
        except psycopg.Error as error:  # whatever it is: gone, read-only after a failover, without rights
            if isinstance(error, OF_THE_WORK):
                raise
            raise StoreUnavailable(f"PostgreSQL cannot be used: {said(error)}") from error
        finally:
            self._lock.release()

    def _connected(self) -> Hearing:
        if self._connection is None or self._connection.closed:
            if self._over.is_set():
                raise Silent("the store is closed")
            made = Hearing.connect(self._url, autocommit=True, prepare_threshold=0, **SESSION)  # type: ignore[arg-type]
            made.over = self._over
            self._connection = made
        return self._connection

    @staticmethod
    def _do(work: Callable[[Hearing], T], connection: Hearing, seconds: float) -> T:
        connection.seconds = seconds
        try:
            return work(connection)
        except psycopg.Error as error:
            if not isinstance(error, OF_THE_WORK):
                connection.close()
            raise

    def close(self) -> None:
        """Let go of the connection, once nobody uses it."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()


def said(error: psycopg.Error) -> str:
    """What is wrong, in a line."""
    return str(error).strip().partition("\n")[0]
