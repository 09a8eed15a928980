"""When a trace begins: times of day and of other units are told from seconds since its beginning."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from roost.model.errors import InvalidInput
from roost.model.spans import DAY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from roost.traces.reading import Table

YEAR = 365 * DAY
LONGEST = 3 * YEAR  # of a workload; whoever simulates a longer one holds its every minute in memory
UNIX = 1e8  # seconds: since 1973, and longer than any workload
FINER = {"milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}  # than a second, since 1970
TOO_LATE = 1e11  # as seconds since 1970, the year 5138


@dataclass(frozen=True)
class Times:
    """When each row is, in seconds from the beginning; and what was done to make it so, if anything."""

    seconds: NDArray[np.float64]
    notice: str = ""


def from_beginning(table: Table, column: str) -> Times:
    """A column of checked numbers as times from the beginning: those since 1970 count from the first one."""
    times = table.floats(column)
    first, last = float(times.min()), float(times.max())
    if first >= TOO_LATE:
        unit, parts = next(
            ((unit, parts) for unit, parts in FINER.items() if first / parts < TOO_LATE), ("something else", 0.0)
        )
        told = f"is {first:.15g}: as {unit} since 1970 that is {_date(first / parts)}" if parts else f"is {first:.15g}"
        raise _refused(table, column, int(times.argmin()), told, f"divide it by {parts:,.0f}" if parts else "")
    begin = first if first >= UNIX else 0.0
    if last - begin > LONGEST:
        years = f"{(last - begin) / YEAR:,.3g} years after the beginning"
        told = f"is {last:.15g}, {years}; {LONGEST / YEAR:g} are the most"
        raise _refused(table, column, int(times.argmax()), told, "if these are milliseconds, divide by 1,000")
    if not begin:
        return Times(times)
    taken = f"times start at {first:.15g}: taken as Unix seconds ({_date(first)}), counted from the first one"
    return Times(times - begin, f"{table.path}: {taken}; the last comes {(last - first) / DAY:,.3g} days later")


def _refused(table: Table, column: str, row: int, problem: str, remedy: str) -> InvalidInput:
    wanted = "give seconds from the beginning of the workload, or since 1970"
    return InvalidInput(table.where(row, column), problem, f"{wanted}: {remedy}" if remedy else wanted)


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
