"""What an error of SQLite means: it may pass by itself, or somebody has to do something."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from roost.model.errors import StoreBroken, StoreUnavailable

DAMAGED = "stop Roost, keep a copy of the file, restore a backup and check it with `roost audit`"
FORBIDDEN = "let this user write the file and its folder, or move them to a disk that can be written"
STRANGE = "open it with the Roost that made it, or restore a backup and check it with `roost audit`"
# What does not pass, by primary result code. The others may: busy, locked, full, an error of the disk, out of memory.
REMEDIES = {
    sqlite3.SQLITE_CORRUPT: DAMAGED,
    sqlite3.SQLITE_NOTADB: DAMAGED,
    sqlite3.SQLITE_FORMAT: DAMAGED,
    sqlite3.SQLITE_READONLY: FORBIDDEN,
    sqlite3.SQLITE_PERM: FORBIDDEN,
    sqlite3.SQLITE_CANTOPEN: FORBIDDEN,
    sqlite3.SQLITE_AUTH: FORBIDDEN,
    sqlite3.SQLITE_ERROR: STRANGE,
    sqlite3.SQLITE_MISMATCH: STRANGE,
    sqlite3.SQLITE_CONSTRAINT: STRANGE,
}


def failure(path: Path, error: Exception, doing: str = "") -> StoreUnavailable:
    """The error to raise for one of SQLite's, or for a row that makes no sense. `doing`: what went wrong with that."""
    problem = f"{path}: {doing}{error}"
    if not isinstance(error, sqlite3.Error) or "decode" in str(error):  # a row that cannot be read
        return StoreBroken(f"{problem}: a row cannot be read", DAMAGED)
    code = getattr(error, "sqlite_errorcode", None)  # the module's own have none: the connection is closed
    remedy = None if code is None else REMEDIES.get(code & 0xFF)
    return StoreBroken(problem, remedy) if remedy else StoreUnavailable(problem)


def is_damage(error: StoreUnavailable) -> bool:
    """Whether a file is no longer to be written, as that might make it worse."""
    return isinstance(error, StoreBroken) and error.remedy == DAMAGED
