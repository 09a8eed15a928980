"""All that is wrong with what somebody gave, told at once instead of one by one."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from roost.model.errors import InvalidInput, Mistaken


class Mistakes:
    """Notes what is wrong while the rest is looked at. Each thing is noted once."""

    def __init__(self) -> None:
        self._found: dict[str, InvalidInput] = {}

    def __len__(self) -> int:
        return len(self._found)

    def note(self, mistake: InvalidInput) -> None:
        """One more, unless it was noted before."""
        self._found.setdefault(str(mistake), mistake)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note what is raised within, and go on after it."""
        try:
            yield
        except InvalidInput as mistake:
            self.note(mistake)

    def tell(self) -> None:
        """Raise what was noted, if anything was: in the order of files and lines."""
        found = sorted(self._found.values(), key=lambda mistake: _by_line(mistake.where))
        if len(found) == 1:
            raise found[0]
        if found:
            raise Mistaken(found)


def _by_line(where: str) -> list[str | int]:
    """Line 9 stands before line 10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(?<=:)(\d+)", where)]
