"""A study: a question that a document answered with a table or a figure, asked again with Roost.

cells ──▶ perform each, on all cores ──▶ rows (tidy data) ──▶ tables with the published values beside ours, a
                                                              plot, and a line: does the shape hold?
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roost.sim.statistics import estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FigureValue = float | int | str | None
FigureRow = Mapping[str, FigureValue]


@dataclass(frozen=True)
class Cell:
    """One part of a study, done by itself: settings that can be written down, its seed among them."""

    label: str  # also the name of its file
    settings: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.settings[name]


@dataclass(frozen=True)
class CellContext:
    """What a cell has while it is performed: where to keep what an interruption must not lose, whom to tell."""

    checkpoint: Path
    tell: Callable[[float, int], None]  # share done, operations


@dataclass(frozen=True)
class ReportTable:
    """Figures for people."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Findings:
    """What a study found."""

    holds: bool  # the shape of the published result
    verdict: str  # in a line
    tables: Sequence[ReportTable]
    remarks: Sequence[str] = ()  # what one should know to read them


@dataclass(frozen=True)
class Study:
    """A named experiment."""

    name: str
    title: str
    source: str  # which document, which part of it
    question: str
    cells: Callable[[bool], Sequence[Cell]]  # of the quick form, or of the whole
    perform: Callable[[Cell, CellContext], list[dict[str, FigureValue]]]
    find: Callable[[Sequence[FigureRow]], Findings]
    draw: Callable[[Sequence[FigureRow]], Figure]
    alone: Callable[[Cell], bool] = lambda _: False  # whether nothing may run beside a cell: it measures time


def pick(rows: Sequence[FigureRow], **wanted: FigureValue) -> list[FigureRow]:
    """The rows with these values."""
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def numbers(rows: Sequence[FigureRow], name: str) -> list[float]:
    """A column, without what was not measured."""
    return [float(value) for row in rows if (value := row.get(name)) is not None]


def mean(rows: Sequence[FigureRow], name: str) -> float:
    """Of a column."""
    return estimate(numbers(rows, name)).mean


def figure(rows: Sequence[FigureRow], name: str, digits: int = 1, scale: float = 1.0) -> str:
    """A column's mean with its interval over the rows: `87.3 ± 0.4`."""
    values = [scale * value for value in numbers(rows, name)]
    if not values:
        return "–"
    found = estimate(values)
    margin = f" ± {found.margin:,.{digits}f}" if found.margin is not None else ""
    return f"{found.mean:,.{digits}f}{margin}"


def beyond_chance(rows: Sequence[FigureRow], name: str) -> bool:
    """Whether it is more than nothing, over the seeds; of one seed nobody knows."""
    found = estimate(numbers(rows, name))
    return found.mean - (found.margin or 0.0) > 0


def distinct(rows: Sequence[FigureRow], name: str) -> list[Any]:
    """The values of a column, each once, as they first come."""
    return list(dict.fromkeys(row[name] for row in rows if row.get(name) is not None))


def rises(values: Sequence[float]) -> bool:
    """Whether each is at least the one before."""
    return all(a <= b for a, b in pairwise(values))
