"""What is told to others for a while, where all of them are in one process."""

from __future__ import annotations

import threading
import time

from roost.store.contract import Note


class Notes:
    """The notes of a store that is one process's own."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], tuple[float, bytes]] = {}
        self._lock = threading.Lock()

    def exchange(self, kind: str, name: str, value: bytes, keep: float) -> dict[str, Note]:
        """Tell something, and hear what others told."""
        now = time.monotonic()
        with self._lock:
            self._told[kind, name] = now, value
            for place in [p for p, (at, _) in self._told.items() if p[0] == kind and now - at > keep]:
                del self._told[place]
            return {
                other: Note(now - at, told)
                for (of, other), (at, told) in self._told.items()
                if of == kind and other != name
            }
