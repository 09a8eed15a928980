"""How far a plan was carried out: a line for each step, on the disk before the next one begins."""

from __future__ import annotations

import fcntl
import os
import uuid
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import msgspec

from roost.model.errors import InvalidInput

Reached = Literal["begun", "held", "copied", "finished", "gone", "cancelled", "skipped"]
FAILED: tuple[Reached, ...] = ("cancelled", "skipped")  # the VM is still where it was
ENDS: tuple[Reached, ...] = ("finished", "gone", *FAILED)  # nothing is left to do of the move


class ProgressLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was reached of a move; the first line of a file names the plan, and the file itself, instead."""

    plan: str = ""
    nonce: str = ""
    number: int = 0
    reached: Reached | None = None
    detail: str = ""


class Progress:
    """The progress file of a plan. One process at a time has it."""

    def __init__(self, path: str | Path, plan: str) -> None:
        """Begin, or go on where another process stopped."""
        self.path = Path(path)
        self.nonce = ""  # of this file, and no other one of the same plan
        self.reached: dict[int, ProgressLine] = {}  # by move: the last line
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise InvalidInput(str(path), f"cannot be written: {error.strerror}") from None
        try:
            self._begin(plan)
        except BaseException:
            os.close(self._file)
            raise

    def _begin(self, plan: str) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidInput(str(self.path), "another process carries this plan out", "let it finish") from None
        text = self.path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):  # the last line was being written when the process died: its step is done again
            os.ftruncate(self._file, len(whole))
        try:
            lines = [msgspec.json.decode(line, type=ProgressLine) for line in whole.splitlines()]
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidInput(str(self.path), f"is no progress of a plan: {error}", "move it away") from None
        if not lines:
            lines = [ProgressLine(plan=plan, nonce=uuid.uuid4().hex[:12])]
            self._write(lines[0])
        elif lines[0].plan != plan:
            raise InvalidInput(str(self.path), f"belongs to plan {lines[0].plan}, not {plan}", "move it away")
        self.nonce = lines[0].nonce
        self.reached = {line.number: line for line in lines[1:]}

    def state(self, number: int) -> Reached | None:
        """How far a move has got; None: it has not begun."""
        line = self.reached.get(number)
        return line.reached if line else None

    def ended(self, number: int) -> bool:
        """Whether nothing is left to do of a move."""
        return self.state(number) in ENDS

    def note(self, number: int, reached: Reached, detail: str = "") -> None:
        """A move has got so far. On the disk when this returns."""
        line = ProgressLine(number=number, reached=reached, detail=detail)
        self._write(line)
        self.reached[number] = line

    def _write(self, line: ProgressLine) -> None:
        os.write(self._file, msgspec.json.encode(line) + b"\n")
        os.fsync(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._file)
