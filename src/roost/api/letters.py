"""A token that is made on the file of a store while a service has it open: a letter beside the file.

    roost token create --store ─▶ FILE.letters/NAME ─▶ the service: into the registry, and the letter is gone

Only one process writes an SQLite file, so whoever lost every token could else make one only by stopping the service. A
letter counts if it is the service's own user's, or root's: they could as well change the file. It holds what the
registry keeps of a token, so no secret.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import structlog

from roost.api.service import Service
from roost.model.errors import RoostError
from roost.model.keys import new_key
from roost.model.registry import TOKEN
from roost.model.stored import StoredToken
from roost.settings import POSTGRES
from roost.wire.tokens import NewToken

LOOK_SECONDS = 0.5  # between looks for letters
WAIT_SECONDS = 10.0  # for a service to take one
LARGEST = 10_000  # bytes

log = structlog.get_logger()


def _folder(store: str) -> Path:
    """Beside the file itself, whatever links lead to it."""
    return Path(f"{Path(store).resolve()}.letters")


def folder_of(store: str) -> Path | None:
    """Where letters for a store lie; there are none for what several processes can write."""
    return None if store.startswith(POSTGRES) or "://" in store or store == "memory:" else _folder(store)


# -------------------------------------------------------------------------------------------------------------- leaving


def leave(store: str, name: str, kept: str) -> bool:
    """Leave a token for the service that has a store open; whether somebody took the letter."""
    folder, owner = _folder(store), Path(store).stat()
    folder.mkdir(mode=0o700, exist_ok=True)
    letter, draft = folder / name, folder / f".{name}.{os.getpid()}"
    draft.touch(mode=0o600)
    draft.write_text(kept)
    if os.geteuid() == 0:  # the service may not be root
        for path in (folder, draft):
            os.chown(path, owner.st_uid, owner.st_gid)
    draft.rename(letter)  # whole, or not there
    until = time.monotonic() + WAIT_SECONDS
    while letter.exists() and time.monotonic() < until:
        time.sleep(LOOK_SECONDS / 10)
    taken = not letter.exists()
    letter.unlink(missing_ok=True)
    return taken


# --------------------------------------------------------------------------------------------------------------- taking


async def take(service: Service, folder: Path) -> None:
    """Make the tokens that letters ask for."""
    for letter in _trusted(folder):
        try:
            kept = letter.read_text()
            known = msgspec.json.decode(kept, type=StoredToken)
            msgspec.convert({"name": letter.name, "scopes": known.scopes}, NewToken)  # as it could be asked for
            ticket = await service.enter(TOKEN, letter.name, kept, new_key(), "roost token", new=True)
            log.info("a token was made on the store", token=letter.name, status=ticket.answer and ticket.answer.status)
        except (OSError, ValueError, RoostError) as error:
            log.error("a letter cannot be used", letter=str(letter), detail=str(error))
        letter.unlink(missing_ok=True)


def _trusted(folder: Path) -> Iterator[Path]:
    """The letters of those who could write the store themselves."""
    if not folder.is_dir() or not _is_ours(folder.lstat()):
        return
    for letter in sorted(folder.iterdir()):
        found = letter.lstat()
        if stat.S_ISREG(found.st_mode) and _is_ours(found) and found.st_size <= LARGEST and letter.name[0] != ".":
            yield letter


def _is_ours(found: os.stat_result) -> bool:
    return found.st_uid in (0, os.geteuid())
