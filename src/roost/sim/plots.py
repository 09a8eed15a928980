"""Plots of runs: what happened over time, and how long requests took; a colour for each variant."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from roost.plotting import new_figure, styled, svg
from roost.sim.comparison import label, variants
from roost.sim.panels import Distribution, LinePanel
from roost.sim.result import RunResult

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Values = Callable[[pl.DataFrame], Floats]

WIDTH, HEIGHT = 9.6, 2.7  # inches of a row of panels


@dataclass(frozen=True)
class Plot:
    """A figure for a page."""

    title: str
    caption: str  # how to read it
    svg: str  # an element


@dataclass(frozen=True)
class Sheet:
    """What is drawn together."""

    title: str
    panels: Sequence[LinePanel | Distribution]
    hint: str = ""  # what holds for all of it


def plots(results: Sequence[RunResult]) -> tuple[list[Plot], list[str]]:
    """Those that have something to show, and the titles of those that have not."""
    found = [list(runs.values()) for runs in variants(results).values()]
    drawn: list[Plot] = []
    empty: list[str] = []
    for sheet in sheets(results):
        panels = [panel for panel in sheet.panels if panel.shows(found)]
        if panels:
            caption = " ".join(filter(None, [*(panel.reading for panel in panels), sheet.hint]))
            drawn.append(Plot(sheet.title, caption, _draw(panels, found, prefix=f"p{len(drawn)}")))
        else:
            empty.append(sheet.title)
    return drawn, empty


def sheets(results: Sequence[RunResult]) -> list[Sheet]:
    """All there can be; which resources the zone has is known from the runs."""
    columns = dict.fromkeys(column for result in results for column in result.timeline.columns)
    stranded = [column for column in columns if column.startswith("stranded_")]
    others = [column for column in columns if column.startswith("used_") and column != "used_cores"]
    decisions = ("cache_hits", "cache_misses")
    return [
        Sheet(
            "Utilisation and density",
            (
                LinePanel(
                    "Utilisation", "Utilisation: cores allocated, of all cores.", _column("utilisation"), share=True
                ),
                LinePanel(
                    "Packing density",
                    "Density: of the cores of machines that run something. The closer the two, the fewer stand empty.",
                    _column("density"),
                    share=True,
                ),
                *(_in_use(column) for column in others),
            ),
        ),
        Sheet(
            "Empty machines",
            (
                LinePanel(
                    "Empty machines",
                    "Machines that run nothing are room for large VMs and for failures.",
                    _column("empty_machines"),
                ),
                LinePanel("VMs that run", "The VMs are those of all machines.", _column("vms")),
                LinePanel(
                    "Machines down",
                    "Down: failed and not repaired.",
                    _column("machines_down"),
                ),
            ),
        ),
        Sheet(
            "Acceptance and declines",
            (
                LinePanel(
                    "Acceptance",
                    "Acceptance: requests placed, of those answered at the time.",
                    _ratio("placed", "requests"),
                    _column("requests"),
                    share=True,
                    dull=1.0,
                ),
                LinePanel(
                    "Requests not placed, added up",
                    "Declined or given up since the warm-up: where the line is flat, nobody was turned away.",
                    _turned_away,
                ),
            ),
        ),
        Sheet(
            "Stranded resources",
            [
                LinePanel(f"Stranded {name.removeprefix('stranded_')}", "", _column(name), share=True)
                for name in stranded
            ],
            "Left over on machines in use that are too full for every VM type asked for, of all there is of the "
            "resource; the lower the better.",
        ),
        Sheet(
            "Conflicts and retries",
            (
                LinePanel(
                    "Conflicts per minute",
                    "Conflicts: commits that lost a race.",
                    _rate("conflicts", 60.0),
                    table="rates",
                ),
                LinePanel(
                    "Retries per minute", "Retries: tries after the first.", _rate("retries", 60.0), table="rates"
                ),
            ),
            "The lower the better.",
        ),
        Sheet(
            "Queueing delay and latency",
            (
                Distribution("Queueing delay", "Queueing: until the last try began.", "queued_s"),
                Distribution("Latency", "Latency: until the answer.", "latency_s"),
            ),
            "Upwards, the share of requests that took no longer than the time below: the further left, the better. A "
            "curve that starts above 0 starts with requests that did not wait.",
        ),
        Sheet(
            "Throughput",
            (
                LinePanel(
                    "Requests per second",
                    "Requests that arrived (grey area) and that were placed (lines): where a line runs below the area, "
                    "they wait or are declined.",
                    _rate("placed", 1.0),
                    table="rates",
                    backdrop=_rate("arrivals", 1.0),
                ),
                LinePanel("Requests waiting", "Waiting: or being decided.", _column("queued")),
            ),
        ),
        Sheet(
            "Caches",
            (
                LinePanel(
                    "Cache hits",
                    "Hits: decisions that found their evaluation cached.",
                    _ratio("cache_hits", *decisions),
                    _column(*decisions),
                    share=True,
                ),
                LinePanel(
                    "Updates per decision",
                    "Updates: machines looked at to bring caches up to date.",
                    _ratio("updated", *decisions),
                    _column(*decisions),
                ),
            ),
            "Many hits and few updates make quick decisions.",
        ),
    ]


def _in_use(column: str) -> LinePanel:
    """Of a resource that is not cores, for which utilisation stands."""
    name = column.removeprefix("used_")
    return LinePanel(f"{label(name)} in use", f"{label(name)} in use: of all {name}.", _column(column), share=True)


def _column(*names: str) -> Values:
    """The sum of the columns; one that a table lacks has nothing to tell."""

    def values(table: pl.DataFrame) -> Floats:
        if not set(names) <= set(table.columns):
            return np.full(len(table), np.nan)
        total: Floats = np.sum([table[name].to_numpy().astype(np.float64) for name in names], axis=0)
        return total

    return values


def _ratio(part: str, *whole: str) -> Values:
    def values(table: pl.DataFrame) -> Floats:
        of = _column(*whole)(table)
        ratio: Floats = np.divide(_column(part)(table), of, out=np.full(len(of), np.nan), where=of > 0)
        return ratio

    return values


def _rate(name: str, seconds: float) -> Values:
    """How many in so many seconds, whatever the width of the bins."""

    def values(table: pl.DataFrame) -> Floats:
        time = table["time_s"].to_numpy()
        width = float(time[1] - time[0]) if len(time) > 1 else seconds
        return _column(name)(table) * (seconds / width)

    return values


def _turned_away(table: pl.DataFrame) -> Floats:
    """Since the first sample after the warm-up: what that counts itself came before."""
    turned_away, warm = _column("declined", "gave_up")(table), _column("warm")(table)
    return np.cumsum(turned_away * np.concatenate((warm[:1], warm[:-1])))


# ------------------------------------------------------------------------------------------------------------- drawing


def _draw(panels: Sequence[LinePanel | Distribution], found: Sequence[Sequence[RunResult]], prefix: str) -> str:
    columns = len(panels) if len(panels) <= 3 else 2
    rows = -(-len(panels) // columns)
    figure, axes = new_figure(rows, columns, width=WIDTH, height=HEIGHT * rows)
    figure.patch.set_visible(False)  # the page shines through
    figure.set_layout_engine("constrained", wspace=0.08, hspace=0.1)
    with styled():
        for panel, panel_axes in zip(panels, axes, strict=False):
            panel_axes.set_facecolor("none")
            panel_axes.set_title(panel.title, fontsize=10, parse_math=False)
            panel.draw(panel_axes, found)
        for spare in axes[len(panels) :]:
            spare.set_axis_off()
    return _compact(svg(figure), prefix)


def _compact(text: str, prefix: str) -> str:
    """Tenths of a point are fine enough, fonts are the page's, and names within the figure are no other figure's."""
    for needless in (
        r"<metadata>.*?</metadata>",
        r"<style.*?</style>",
        r"font-family:[^;]*; ?",
        r' xmlns(:xlink)?="[^"]*"',
    ):
        text = re.sub(needless, "", text, flags=re.DOTALL)
    text = text.replace("xlink:href", "href")
    used = set(re.findall(r'(?:href="|url\()#([\w-]+)', text))
    text = re.sub(r' id="([\w.-]+)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in used else "", text)
    text = re.sub(r'((?:href="|url\()#)', rf"\g<1>{prefix}-", text)
    text = re.sub(r'(?<= )(d|x|y|transform)="[^"]*"', lambda m: re.sub(r"-?\d+\.\d+", _tenths, m[0]), text)
    text = re.sub(r"(?<=\d)\s*\nL ", " ", text)  # after a point, a point is a line to it
    return re.sub(r"\s*\n\s*", "\n", text)


def _tenths(number: re.Match[str]) -> str:
    return f"{float(number[0]):z.1f}".removesuffix(".0")
