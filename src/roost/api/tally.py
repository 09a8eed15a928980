"""What happens thousands of times a second is counted here, and told to Prometheus now and then.

To tell it costs a lock and, with several workers, a write to a file they share: some microseconds, as much as a small
step of a request. So these count in plain numbers; whoever measures pours them out.
"""

from __future__ import annotations

from bisect import bisect_left

from prometheus_client import Counter, Histogram


class Tally:
    """How often something happened, beside its counter."""

    __slots__ = ("_count", "_counter")

    def __init__(self, counter: Counter) -> None:
        self._counter, self._count = counter, 0

    def add(self, count: int = 1) -> None:
        """So many more."""
        self._count += count

    def pour(self) -> None:
        """Tell it."""
        if self._count:
            count, self._count = self._count, 0
            self._counter.inc(count)


class TimeTally:
    """How long something took, each time, beside its histogram."""

    __slots__ = ("_bounds", "_counts", "_histogram", "_sum")

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._bounds: list[float] = histogram._upper_bounds
        self._counts, self._sum = [0] * len(self._bounds), 0.0

    def note(self, seconds: float) -> None:
        """It took so long."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def pour(self) -> None:
        """Tell it."""
        if any(self._counts):
            for bucket, count in zip(self._histogram._buckets, self._counts, strict=True):
                if count:
                    bucket.inc(count)
            self._histogram._sum.inc(self._sum)
            self._counts, self._sum = [0] * len(self._bounds), 0.0
