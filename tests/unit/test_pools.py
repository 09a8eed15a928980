"""Bounded caches let go of the least recently used, and of what nobody used for long."""

from roost.engine.pools import Pool


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def filled(clock: Clock, *keys: str, capacity: int = 3, dropped: list[str] | None = None) -> Pool[str]:
    pool: Pool[str] = Pool(capacity, 10.0, clock, None if dropped is None else dropped.append)
    for key in keys:
        pool.make_room()
        pool.put(key, key.upper())
    return pool


def test_the_least_recently_used_makes_room() -> None:
    dropped: list[str] = []
    pool = filled(Clock(), "a", "b", "c", dropped=dropped)
    assert pool.get("a") == "A"
    pool.make_room()
    pool.put("d", "D")
    assert dropped == ["B"]
    assert pool.keys() == ["c", "a", "d"]


def test_what_nobody_used_for_long_goes_even_if_there_is_room() -> None:
    clock = Clock()
    pool = filled(clock, "a", "b")
    clock.now = 6.0
    pool.get("b")
    clock.now = 11.0
    pool.expire()
    assert pool.keys() == ["b"]
    assert pool.stats.evictions == 1


def test_hits_and_misses_are_counted_and_a_peek_is_neither() -> None:
    pool = filled(Clock(), "a")
    assert pool.get("a") == "A"
    assert pool.get("z") is None
    assert pool.peek("a") == "A"
    assert (pool.stats.requests, pool.stats.hits, pool.stats.misses, pool.stats.hit_ratio) == (2, 1, 1, 0.5)


def test_the_newest_come_first_when_idle_time_is_used() -> None:
    pool = filled(Clock(), "a", "b", "c")
    pool.get("a")
    assert list(pool.newest_first()) == ["A", "C", "B"]
