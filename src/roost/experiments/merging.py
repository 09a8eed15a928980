"""Commits that merge against commits that refuse what is outdated (Protean, §5.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from roost.experiments.agents import AVOIDANCE, overload_row, run
from roost.experiments.study import (
    Cell,
    CellContext,
    FigureRow,
    FigureValue,
    Findings,
    ReportTable,
    Study,
    distinct,
    figure,
    mean,
    pick,
)
from roost.plotting import PALETTE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER_DROP = 0.25  # Protean §5.3: conflicts fewer, in one of its busiest zones


def merge_cells(quick: bool) -> list[Cell]:
    """Both ways of committing, with and without avoidance."""
    size = {"machines": 500, "fill": 0.3, "rate": 60, "until": 10} if quick else BUSY
    return [
        Cell(
            f"{'strict' if strict else 'merge'}-avoidance-{number}-seed{seed}",
            {"strict": strict, "avoidance": name, "agents": 5, "latency": "paper", "seed": seed, **size},
        )
        for seed in ((1,) if quick else (1, 2, 3))
        for number, name in enumerate(AVOIDANCE)
        for strict in (True, False)
    ]


BUSY = {"machines": 10_000, "fill": 0.6, "rate": 60, "until": 300}


def perform_merge(cell: Cell, context: CellContext) -> list[dict[str, FigureValue]]:
    """One run of a busy zone."""
    until, rate = float(cell["until"]), float(cell["rate"])
    arrival = np.sort(np.random.default_rng(cell["seed"]).random(round(rate * until)) * until)
    result = run(cell, context, arrival, until, strict=cell["strict"], **AVOIDANCE[cell["avoidance"]])
    row = overload_row(cell, result, until)
    commits = "strict" if cell["strict"] else "merge"
    conflicts = result.summary["conflicts"]
    return [row | {"commits": commits, "seed": cell["seed"], "conflicts": conflicts}]


def find_merge(rows: Sequence[FigureRow]) -> Findings:
    """How many conflicts fewer."""
    table, drops = [], {}
    for name in distinct(rows, "avoidance"):
        both = {way: pick(rows, avoidance=name, commits=way) for way in ("strict", "merge")}
        drops[name] = 1 - mean(both["merge"], "conflicts") / (mean(both["strict"], "conflicts") or 1)
        table.append(
            [name, *(figure(both[way], "conflicts", 0) for way in both), f"{drops[name]:.0%}", f"{PAPER_DROP:.0%}"]
        )
    drop = drops["Protean's"]
    verdict = f"merging has {drop:.0%} fewer conflicts than refusing what is outdated (paper: 25 %)"
    headings = ["avoidance", "conflicts, strict", "conflicts, merge", "fewer", "paper"]
    remarks = [
        (
            "Strict: a commit is refused if its machine has changed since it was seen. Merge: it is re-checked on the "
            "machine as it is, and refused only if it no longer fits."
        ),
        "The paper's figure is of one busy zone in production, with whatever avoidance it had.",
    ]
    return Findings(
        drop >= PAPER_DROP, verdict, [ReportTable("Conflicts, by how commits are checked", headings, table)], remarks
    )


def draw_merge(rows: Sequence[FigureRow]) -> Figure:
    """Bars, beside each other."""
    shown, (panel,) = new_figure(1, 1, title="Merging against refusing", width=7, height=3.8)
    names = distinct(rows, "avoidance")
    for i, way in enumerate(("strict", "merge")):
        heights = [mean(pick(rows, avoidance=name, commits=way), "conflict_ratio") * 100 for name in names]
        panel.bar(np.arange(len(names)) + 0.4 * i - 0.2, heights, width=0.38, color=PALETTE[i], label=way)
    panel.set_xticks(range(len(names)), [f"avoidance: {name}" for name in names])
    panel.set_ylabel("conflicts, % of commits")
    panel.legend()
    return shown


PROTEAN_MERGE = Study(
    name="protean-merge",
    title="commits that merge against commits that refuse what is outdated",
    source="Protean (OSDI'20), §5.3",
    question="How many conflicts does it save to re-check a commit on the machine as it is now?",
    cells=merge_cells,
    perform=perform_merge,
    find=find_merge,
    draw=draw_merge,
)
