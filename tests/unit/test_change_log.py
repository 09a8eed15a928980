"""The feed for those outside: what came last is read once, however many follow."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from roost.api.changes import ChangeLog
from roost.api.tokens import ANYBODY
from roost.model.change import Entry
from roost.store.feed import Feed, FeedRow


class Service:
    """As much of a service as the log needs; counts how often its store is read."""

    def __init__(self) -> None:
        self.last = self.reads = 0
        self.agent = SimpleNamespace(replica=SimpleNamespace(revision=0))

    def changes(self, since: int, limit: int) -> Feed:
        """The feed: one entry a row."""
        rows = [_row(number) for number in range(since + 1, self.last + 1)]
        return Feed(rows[:limit])

    async def read(self, look: Any) -> Any:
        """Read the store."""
        self.reads += 1
        return look(self)


def _row(number: int) -> FeedRow:
    return FeedRow(number, number, "a", 1, [Entry(key=f"k{number}", tenant="t")])


def test_readers_at_the_end_share_what_was_read_whoever_read_from_the_beginning() -> None:
    async def follow() -> None:
        service = Service()
        log = ChangeLog(service)  # type: ignore[arg-type]
        service.last = 100
        first = await log.page(0, 3, ANYBODY)
        assert [each.revision for each in first.items] == [1, 2, 3]
        at = [100] * 50
        service.reads = 0
        for _ in range(5):
            service.last += 1
            for reader in range(50):
                page = await log.page(at[reader], 10, ANYBODY)
                assert [each.revision for each in page.items] == [service.last]
                at[reader] = page.revision
        assert service.reads == 5

    asyncio.run(follow())


def test_no_reader_misses_a_change_however_far_it_is_behind() -> None:
    async def follow() -> None:
        service = Service()
        log = ChangeLog(service)  # type: ignore[arg-type]
        service.last, since, seen = 3_000, 0, list[int]()
        while since < service.last:
            page = await log.page(since, 7, ANYBODY)
            seen += [each.revision for each in page.items]
            since = page.revision
            if since % 50 == 0:
                service.last += 3
                await log.page(service.last - 1, 5, ANYBODY)
        assert seen == list(range(1, service.last + 1))

    asyncio.run(follow())
