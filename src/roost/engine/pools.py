"""Bounded caches: least recently used goes first, and what nobody has used for long goes too."""

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, TypeVar

V = TypeVar("V")
_value, _tick, _used = attrgetter("value"), attrgetter("tick"), attrgetter("used")


@dataclass(slots=True)
class PoolStats:
    """What one class of cached objects was asked for, and what it cost."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    updated_on_hit: int = 0  # machines looked at to bring an object up to date
    updated_on_miss: int = 0
    updated_idle: int = 0

    @property
    def requests(self) -> int:
        """How often an object of this class was wanted."""
        return self.hits + self.misses

    @property
    def hit_ratio(self) -> float:
        """Share of requests that found their object."""
        return self.hits / self.requests if self.requests else 0.0


class _Entry(Generic[V]):
    __slots__ = ("tick", "used", "value")

    def __init__(self, value: V, used: float, tick: int) -> None:
        self.value, self.used, self.tick = value, used, tick


class Pool(Generic[V]):
    """A bounded cache of objects by key. `dropped` is called with each object that leaves.

    A use only stamps its entry; the least recently used is looked for when room is needed, which is rare.
    """

    def __init__(
        self,
        capacity: int,
        max_idle: float,
        clock: Callable[[], float],
        dropped: Callable[[V], None] | None = None,
    ) -> None:
        self.capacity, self.max_idle, self.stats = capacity, max_idle, PoolStats()
        self._clock, self._dropped = clock, dropped
        self._entries: dict[Hashable, _Entry[V]] = {}
        self._ticks = 0
        self._oldest = -math.inf  # nothing has been unused for longer

    def get(self, key: Hashable) -> V | None:
        """The object of a key, now the most recently used; None counts as a miss."""
        entry = self._entries.get(key)
        if entry is None:
            self.stats.misses += 1
            return None
        self.stats.hits += 1
        self._ticks = entry.tick = self._ticks + 1
        entry.used = self._clock()
        return entry.value

    def find(self, key: Hashable) -> V | None:
        """The same, without being counted."""
        if (entry := self._entries.get(key)) is None:
            return None
        self._ticks = entry.tick = self._ticks + 1
        entry.used = self._clock()
        return entry.value

    def make_room(self) -> None:
        """Let go of the least recently used if there is no room for one more."""
        while len(self._entries) >= self.capacity:
            self.discard(min(self._entries, key=lambda key: self._entries[key].tick))

    def put(self, key: Hashable, value: V) -> None:
        """Keep an object. Call `make_room` first."""
        self._ticks += 1
        self._entries[key] = _Entry(value, self._clock(), self._ticks)

    def peek(self, key: Hashable) -> V | None:
        """The object of a key, without using it."""
        entry = self._entries.get(key)
        return entry.value if entry else None

    def expire(self) -> None:
        """Let go of what has not been used for `max_idle`."""
        oldest_allowed = self._clock() - self.max_idle
        if oldest_allowed <= self._oldest:  # when all were looked at, none was as old as that
            return
        for key in [key for key, entry in self._entries.items() if entry.used < oldest_allowed]:
            self.discard(key)
        self._oldest = min(map(_used, self._entries.values()), default=oldest_allowed)

    def discard(self, key: Hashable) -> None:
        """Let go of one object, if it is there."""
        if (entry := self._entries.pop(key, None)) is None:
            return
        self.stats.evictions += 1
        if self._dropped:
            self._dropped(entry.value)

    def newest_first(self) -> Iterator[V]:
        """All objects, most recently used first."""
        return map(_value, sorted(self._entries.values(), key=_tick, reverse=True))

    def keys(self) -> list[Hashable]:
        """The keys, least recently used first."""
        return sorted(self._entries, key=lambda key: self._entries[key].tick)

    def __len__(self) -> int:
        return len(self._entries)
