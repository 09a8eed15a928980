"""Runs side by side: every measure of every variant over its seeds, and how the variants differ from the first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from roost.model.errors import InvalidInput
from roost.sim.formats import Scale, far_apart, scale_of
from roost.sim.measures import MEASURES, Measure, measure_of
from roost.sim.result import RunResult
from roost.sim.statistics import Comparison, Estimate, Verdict, compare, estimate

NOTHING = "–"  # in place of a figure that was not measured


@dataclass(frozen=True)
class Row:
    """One measure, over all variants."""

    measure: Measure
    estimates: Sequence[Estimate | None]  # by variant; None: nothing was measured
    comparisons: Sequence[Comparison | None]  # the same, with the first variant; None: there is nothing to compare

    @property
    def zero(self) -> bool:
        """Has it nothing to tell?"""
        return not any(e and (e.mean or e.margin) for e in self.estimates)

    def scale(self, figure: Estimate) -> Scale:
        """How a figure is written: like the others of the row, unless they are too far apart."""
        known = [e for e in self.estimates if e]
        return scale_of(self.measure.unit, [figure] if far_apart(self.measure.unit, known) else known)

    def figures(self) -> list[str]:
        """Of each variant: `87.3 ± 0.4 %`."""
        return [self.scale(e).figure(e) if e else NOTHING for e in self.estimates]

    def differences(self) -> list[str]:
        """Of each variant from the first: `+2.1 ± 0.3 points`; empty where there is nothing to compare."""
        return self._compared(Scale.difference)

    def changes(self) -> list[str]:
        """The same in brief: `+2.1 points`."""
        return self._compared(Scale.change)

    def verdicts(self) -> list[str]:
        """On each variant: `better`; empty where there is none."""
        return [str(c.verdict) if c and c.verdict is not Verdict.UNKNOWN else "" for c in self.comparisons]

    def _compared(self, text: Callable[[Scale, Estimate, float], str]) -> list[str]:
        base = self.estimates[0]
        found = (c.difference if c else None for c in self.comparisons)
        return [text(self.scale(each), each, base.mean) if each and base else "" for each in found]


@dataclass(frozen=True)
class SummaryTable:
    """All measures of all variants."""

    variants: Sequence[str]
    rows: Sequence[Row]

    def headings(self) -> list[str]:
        """Of the columns of `cells`."""
        others = (heading for name in self.variants[1:] for heading in (name, f"against {self.variants[0]}"))
        return ["measure", self.variants[0], *others]

    def cells(self) -> list[list[str]]:
        """For people: a line for each measure."""
        return [[self.label(row), *self._line(row)] for row in self.rows]

    def as_data(self) -> list[dict[str, Any]]:
        """For programs."""
        return [
            {
                "measure": row.measure.name,
                "unit": row.measure.unit,
                "better": row.measure.better,
                "variants": dict(zip(self.variants, row.estimates, strict=True)),
                f"against_{self.variants[0]}": dict(zip(self.variants[1:], row.comparisons[1:], strict=True)),
            }
            for row in self.rows
        ]

    @staticmethod
    def label(row: Row) -> str:
        """The name of a measure as people write it, with the unit where figures do not carry it."""
        name, unit = label(row.measure.name), row.measure.unit
        told = unit in ("share", "s") or unit.lower() in name.lower() or "per minute" in name
        return name if told else f"{name} ({unit})"

    @staticmethod
    def _line(row: Row) -> list[str]:
        figures = row.figures()
        others = zip(figures[1:], row.changes()[1:], row.comparisons[1:], strict=True)
        return [figures[0], *(cell for f, change, c in others for cell in (f, _told(change, c)))]


def _told(change: str, comparison: Comparison | None) -> str:
    """What is different, in brief: `+2.1 points, better`."""
    match comparison.verdict if comparison else Verdict.UNKNOWN:
        case Verdict.UNKNOWN:
            return change
        case Verdict.SAME as verdict:
            return verdict
        case Verdict.UNCLEAR:
            return "unclear"
        case verdict:
            return f"{change}, {verdict}"


def label(name: str) -> str:
    """A measure's name as people write it."""
    words = name.replace("_", " ").replace("vms", "VMs")
    return words[:1].upper() + words[1:]


def variants(results: Sequence[RunResult]) -> dict[str, dict[int, RunResult]]:
    """Runs by name, in the order in which the names come, and by seed."""
    if not results:
        raise InvalidInput("runs", "there are none", "give the folder of a finished run, or of several")
    found: dict[str, dict[int, RunResult]] = {}
    for result in results:
        runs = found.setdefault(result.name, {})
        if result.seed in runs:
            problem = f"two runs are called {result.name!r} and have seed {result.seed}"
            raise InvalidInput("runs", problem, "give each run once, and variants names of their own")
        runs[result.seed] = result
    return {name: dict(sorted(runs.items())) for name, runs in found.items()}


def summary_table(results: Sequence[RunResult]) -> SummaryTable:
    """What came out of the runs. Variants are told apart by name; the first is what the others are compared with."""
    found = variants(results)
    present = {name: None for result in results for name in result.summary}  # a set that keeps its order
    usual = [measure.name for measure in MEASURES if measure.name in present]
    names = usual + [name for name in present if name not in usual]
    rows = []
    for measure in map(measure_of, names):
        values = [_values(runs, measure.name) for runs in found.values()]
        estimates = [estimate(list(v.values())) if v else None for v in values]
        comparisons = [None, *(compare(values[0], other, measure.better) for other in values[1:])]
        rows.append(Row(measure, estimates, comparisons))
    return SummaryTable(tuple(found), rows)


def _values(runs: dict[int, RunResult], name: str) -> dict[int, float]:
    """By seed, where it was measured."""
    measured = ((seed, result.summary.get(name)) for seed, result in runs.items())
    return {seed: value for seed, value in measured if value is not None}
