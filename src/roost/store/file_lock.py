"""One writer of a file at a time, whatever names the file goes by."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

from roost.model.errors import InUse, InvalidInput

MODE = 0o600  # of a new file; SQLite gives what it writes beside it the same
_guard = threading.Lock()
_held: set[tuple[int, int]] = set()  # what this process has locked: device and inode


class FileLock:
    """Keeps others from writing the same file; the system lets go of it when the process ends.

    The lock is on the file itself, so that a link to it leads to the same lock. It is of another kind than SQLite's
    own, which a process loses as soon as it closes any descriptor of the file: so the file is not opened where this
    process has locked it already, and the lock is released after all connections are closed.
    """

    def __init__(self, path: Path, *, new: bool = False) -> None:
        """`new`: make the file if there is none."""
        with _guard:
            if path.exists() and _identity(path.stat()) in _held:
                raise _taken(path)
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if new else 0), MODE)
            except OSError as error:
                remedy = "let this user write the file and its folder, or choose another place"
                raise InvalidInput("store", f"{path} cannot be written: {error.strerror}", remedy) from None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                raise _taken(path) from None
            self._descriptor, self._identity = descriptor, _identity(os.fstat(descriptor))
            _held.add(self._identity)

    def release(self) -> None:
        """Let others write."""
        with _guard:
            _held.discard(self._identity)
            os.close(self._descriptor)


def _identity(found: os.stat_result) -> tuple[int, int]:
    """Which file it is, whatever it is called."""
    return found.st_dev, found.st_ino


def _taken(path: Path) -> InUse:
    return InUse("store", f"another process has {path} open", "stop it, or use PostgreSQL for several processes")
