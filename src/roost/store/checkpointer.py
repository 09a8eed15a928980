"""Moving what SQLite's log holds to its place in the file, beside the commits instead of within them.

SQLite does it in the commit that makes the log too long, which then takes a tenth of a second and more. Here a thread
does the bulk of it every second; once the log is long, the next commit moves the little that came meanwhile, and the
log begins anew.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable

PAUSE_SECONDS = 1.0
LONG = 16_000  # pages in the log, after which it should begin anew
TOO_LONG = 100_000  # pages, after which a commit moves all of it, whatever the thread does
MOVE = "PRAGMA wal_checkpoint(PASSIVE)"  # waits for nobody


class Checkpointer:
    """Looks after the log of one file."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        """Of `connect` come connections to the file; the thread begins with the first commit."""
        self._connect = connect
        self._closing, self._written = threading.Event(), False
        self._thread: threading.Thread | None = None
        self._finish = False  # the next commit is to move the rest

    def committed(self, writer: sqlite3.Connection) -> None:
        """Something was committed; called by whoever may write."""
        self._written = True
        if self._finish:
            self._finish = False
            writer.execute(MOVE)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="roost-checkpointer", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(PAUSE_SECONDS):
            if self._written:
                self._written = False
                with contextlib.suppress(sqlite3.Error), contextlib.closing(self._connect()) as connection:
                    _, pages, _ = connection.execute(MOVE).fetchone()
                    self._finish = pages > LONG
