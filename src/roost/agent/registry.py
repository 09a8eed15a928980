"""The zone's registry as a copy of a store knows it: by kind, so that nobody looks through what is not theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

EntryName = tuple[str, str]  # kind and name
NONE: Mapping[str, str] = {}


class Registry(Mapping[EntryName, str]):
    """Values by kind and name. Whoever reads a kind sees by its mark whether there is anything new to read."""

    def __init__(self, entries: Mapping[EntryName, str]) -> None:
        self._kinds: dict[str, dict[str, str]] = {}
        self._changes: Counter[str] = Counter()  # of each kind
        for place, value in entries.items():
            self.set(place, value)

    def set(self, place: EntryName, value: str | None) -> None:
        """An entry has another value, or is gone."""
        kind, name = place
        self._changes[kind] += 1
        if value is None:
            self._kinds.get(kind, {}).pop(name, None)
        else:
            self._kinds.setdefault(kind, {})[name] = value

    def of(self, kind: str) -> Mapping[str, str]:
        """The entries of a kind, by name."""
        return self._kinds.get(kind, NONE)

    def only(self, *kinds: str) -> dict[EntryName, str]:
        """The entries of some kinds."""
        return {(kind, name): value for kind in kinds for name, value in self.of(kind).items()}

    def mark(self, *kinds: str) -> tuple[int, ...]:
        """How often these kinds have changed: if it is the same as before, there is nothing new to read."""
        return tuple(map(self._changes.__getitem__, kinds))

    def __getitem__(self, place: EntryName) -> str:
        return self._kinds.get(place[0], NONE)[place[1]]

    def __iter__(self) -> Iterator[EntryName]:
        return ((kind, name) for kind, entries in self._kinds.items() for name in entries)

    def __len__(self) -> int:
        return sum(map(len, self._kinds.values()))
