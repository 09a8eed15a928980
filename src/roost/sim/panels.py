"""One panel of a plot: a line over time, or a distribution, for each variant, with what its seeds differ by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from roost.plotting import DASHES, PALETTE
from roost.sim.formats import brief, time_unit
from roost.sim.result import RunResult

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Values = Callable[[pl.DataFrame], Floats]  # by row of a table; NaN: nothing to tell
    Runs = Sequence[RunResult]  # of one variant, by seed

BINS = 200  # of a line over time: two pixels each
LEVELS = np.concatenate([np.linspace(0, 0.98, 99), np.linspace(0.98, 1, 61)[1:]])  # of a distribution: fine in its tail
MARKS = (0.0, 0.5, 0.9, 0.99)  # of its levels, those that are labelled
SHORTEST = 1e-4  # seconds; what is shorter stands at the left edge
SHADE, BACKDROP = "#999999", "#bbbbbb"  # of the warm-up; of what is no variant's


@dataclass(frozen=True)
class LinePanel:
    """A panel with time from left to right."""

    title: str
    reading: str  # how to read it
    value: Values
    weight: Values | None = None  # how much a row counts where several become one point; all the same if None
    table: str = "timeline"
    share: bool = False
    dull: float = 0.0  # a line that stays there has nothing to show
    backdrop: Values | None = None  # an area behind the lines, whatever the variant

    def shows(self, found: Sequence[Runs]) -> bool:
        """Is there anything but what is dull, and time for it?"""
        tables = [getattr(run, self.table) for runs in found for run in runs]
        known = (np.nan_to_num(self.value(table), nan=self.dull) for table in tables if len(table) > 1)
        return any((values != self.dull).any() for values in known)

    def draw(self, axes: Axes, found: Sequence[Runs]) -> None:
        """A line for each variant, with a band about it; the warm-up is shaded."""
        tables = [[getattr(run, self.table) for run in runs] for runs in found]
        times = [table["time_s"].to_numpy() for each in tables for table in each if len(table)]
        edges = np.linspace(min(t[0] for t in times), max(t[-1] for t in times), min(BINS, max(map(len, times))) + 1)
        unit, name = time_unit(edges[-1] - edges[0])
        if self.backdrop:
            x, mean, _, _ = _curve([table for each in tables for table in each], edges, self.backdrop, None)
            axes.fill_between(x / unit, mean, color=BACKDROP, linewidth=0, alpha=0.6)
        warm = max(_warm_from(run) for runs in found for run in runs)
        lowest, highest = np.inf, -np.inf
        for number, each in enumerate(tables):
            x, mean, low, high = _curve(each, edges, self.value, self.weight)
            if not len(x):
                continue
            shade, dash = colour(number)
            if (low < high).any():
                axes.fill_between(x / unit, low, high, color=shade, linewidth=0, alpha=0.2)
            axes.plot(x / unit, mean, color=shade, linestyle=dash, linewidth=1.4)
            counted = x >= min(warm, x[-1])
            lowest, highest = min(lowest, low[counted].min()), max(highest, high[counted].max())
        if warm > edges[0]:
            axes.axvspan(edges[0] / unit, min(warm, edges[-1]) / unit, color=SHADE, alpha=0.16, linewidth=0)
        axes.set_xlim(edges[0] / unit, edges[-1] / unit)
        axes.set_xlabel(name)
        self._scale(axes, float(lowest), float(highest))

    def _scale(self, axes: Axes, lowest: float, highest: float) -> None:
        """The warm-up may leave the panel. Shares fill it, as small differences matter; counts start at 0."""
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        axes.yaxis.set_major_locator(MaxNLocator(5, integer=highest > 5 and not self.share))
        if not self.share:
            axes.set_ylim(0, highest * 1.08 or 1.0)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}" if y >= 1_000 else f"{y:g}"))
            return
        room = max(0.08 * (highest - lowest), 0.002)
        axes.set_ylim(max(0.0, lowest - room) if lowest >= 0 else None, min(1.0, highest) + room)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y * 100:.4g} %" if y <= 1 else ""))


@dataclass(frozen=True)
class Distribution:
    """A panel with the share of requests that took no longer than so many seconds."""

    title: str
    reading: str
    column: str  # of the requests

    def shows(self, found: Sequence[Runs]) -> bool:
        """Did any request take any time?"""
        return any(self._seconds(run).any() for runs in found for run in runs)

    def draw(self, axes: Axes, found: Sequence[Runs]) -> None:
        """A curve for each variant, with a band about it; time is logarithmic."""
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        shortest, longest = np.inf, 0.0
        for number, runs in enumerate(found):
            seconds = [values for run in runs if len(values := self._seconds(run))]
            if not seconds:
                continue
            curves = np.maximum([np.quantile(values, LEVELS) for values in seconds], SHORTEST)
            shade, dash = colour(number)
            if len(curves) > 1:
                axes.fill_betweenx(LEVELS, curves.min(0), curves.max(0), color=shade, linewidth=0, alpha=0.2)
            axes.plot(curves.mean(0), LEVELS, color=shade, linestyle=dash, linewidth=1.4)
            shortest, longest = min(shortest, curves.min()), max(longest, curves.max())
        axes.set_xscale("log")
        left, right = max(SHORTEST, shortest / 1.2), max(longest * 1.2, 10 * shortest)
        axes.set_xlim(left, right)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if right < 100 * left else (1,), numticks=9))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: brief(x)))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_ylim(0, 1.02)
        axes.set_yticks(MARKS, [f"{mark:.0%}".replace("%", " %") for mark in MARKS])

    def _seconds(self, run: RunResult) -> Floats:
        """Of the requests of the workload that came after the warm-up."""
        table = run.requests
        counted = (table["request"].to_numpy() >= 0) & (table["time_s"].to_numpy() >= _warm_from(run))
        seconds = table[self.column].to_numpy()[counted].astype(np.float64)
        return seconds[np.isfinite(seconds)]


def colour(variant: int) -> tuple[str, str]:
    """Of a variant, by its number: its colour, and the dash of its lines."""
    return PALETTE[variant % len(PALETTE)], DASHES[variant // len(PALETTE) % len(DASHES)]


def _warm_from(run: RunResult) -> float:
    """When the warm-up was over."""
    return float(run.facts.get("warm_up_s", 0.0))


def _curve(
    tables: Sequence[pl.DataFrame], edges: Floats, value: Values, weight: Values | None
) -> tuple[Floats, Floats, Floats, Floats]:
    """Times, means, and what they lie between: the runs' means if there are several, else the values of the run."""
    curves = [binned(table, edges, value, weight) for table in tables]
    time, mean, low, high = (np.array(rows) for rows in zip(*curves, strict=True))
    if len(tables) > 1:
        low = high = mean
    told = ~np.isnan(mean).all(0)
    means = mean[:, told]
    known = ~np.isnan(means)
    average = np.where(known, means, 0).sum(0) / known.sum(0)
    return np.fmax.reduce(time[:, told]), average, np.fmin.reduce(low[:, told]), np.fmax.reduce(high[:, told])


def binned(
    table: pl.DataFrame, edges: Floats, value: Values, weight: Values | None
) -> tuple[Floats, Floats, Floats, Floats]:
    """By bin: the time, mean, lowest and highest of its rows; NaN where there is none."""
    bins = len(edges) - 1
    time, values = table["time_s"].to_numpy(), value(table)
    told = np.isfinite(values)
    time, values = time[told], values[told]
    at = np.clip(np.searchsorted(edges, time, "right") - 1, 0, bins - 1)
    weights = weight(table)[told] if weight else np.ones(len(values))
    low, high = np.full(bins, np.nan), np.full(bins, np.nan)
    np.fmin.at(low, at, values)
    np.fmax.at(high, at, values)
    rows, weighed = np.bincount(at, minlength=bins), np.bincount(at, weights, bins)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.bincount(at, time, bins) / rows, np.bincount(at, weights * values, bins) / weighed, low, high
