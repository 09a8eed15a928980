"""Conflicts and throughput, with avoidance on and off (Protean, Fig. 14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from roost.experiments.agents import AVOIDANCE, MODELS, measures_time, overload_row, run
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
    numbers,
    pick,
    rises,
)
from roost.plotting import DASHES, PALETTE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def conflict_cells(quick: bool) -> list[Cell]:
    """Ever more agents under more than they can do, with each way of avoiding conflicts."""
    counts = (1, 4) if quick else (1, 2, 5, 10, 20, 40)
    size = {"machines": 500, "fill": 0.3, "rate": 150, "until": 8} if quick else FULL_LOAD
    found = [
        Cell(
            f"paper-{number}-{count}-agents",
            {"agents": count, "avoidance": name, "latency": "paper", "seed": 1, **size},
        )
        for number, name in enumerate(AVOIDANCE)
        for count in counts
    ]
    own = (1, 2) if quick else (1, 2, 4, 8)
    measured = {**size, "rate": 300 if quick else 40_000, "until": 4 if quick else 3}
    return found + [
        Cell(
            f"measured-{count}-agents",
            {"agents": count, "avoidance": "Roost's", "latency": "measured", "seed": 1, **measured},
        )
        for count in own
    ]


FULL_LOAD = {"machines": 25_000, "fill": 0.3, "rate": 2_000, "until": 20}


def perform_conflicts(cell: Cell, context: CellContext) -> list[dict[str, FigureValue]]:
    """One run: requests come faster than they can be placed."""
    until, rate = float(cell["until"]), float(cell["rate"])
    arrival = np.sort(np.random.default_rng(cell["seed"]).random(round(rate * until)) * until)
    result = run(cell, context, arrival, until, **AVOIDANCE[cell["avoidance"]])
    return [overload_row(cell, result, until)]


LITTLE = 0.2  # of the commits


def find_conflicts(rows: Sequence[FigureRow]) -> Findings:
    """Throughput and conflicts, by agents and avoidance."""
    paper = pick(rows, latency="paper")
    counts = distinct(paper, "agents")
    speed = [mean(pick(paper, agents=n, avoidance="Protean's"), "throughput") for n in counts]
    most = counts[-1]
    off, on, ours = (
        mean(pick(paper, agents=most, avoidance=name), "conflicts_per_s_p99")
        for name in ("off", "Protean's", "Roost's")
    )
    faster = mean(pick(paper, agents=most, avoidance="Protean's"), "throughput") / mean(
        pick(paper, agents=most, avoidance="off"), "throughput"
    )
    table = [
        [
            MODELS[str(row["latency"])], str(row["avoidance"]), str(row["agents"]), figure([row], "rate", 0),
            figure([row], "throughput", 0),
            figure([row], "conflicts_per_s_p99", 0), figure([row], "conflict_ratio", 1, 100),
            figure([row], "rejected", 2, 100),
        ]
        for row in rows
    ]  # fmt: skip
    lost_off, lost_on, lost_ours = (
        mean(pick(paper, agents=most, avoidance=name), "conflict_ratio") for name in ("off", "Protean's", "Roost's")
    )
    verdict = (
        f"throughput rises with the agents ({speed[0]:,.0f} requests a second with {counts[0]}, {speed[-1]:,.0f} with "
        f"{most}); with {most} agents the 99th percentile of conflicts a second is {on:,.0f} with Protean's avoidance "
        f"and {ours:,.0f} with Roost's, {off:,.0f} without (throughput with Protean's: {faster:.1f}×); of the commits "
        f"{lost_off:.0%} lose a race without avoidance, {lost_on:.0%} with Protean's and {lost_ours:.0%} with Roost's "
        "(paper: little effect on conflicts)"
    )
    headings = [
        "latencies", "avoidance", "agents", "asked per second", "placed per second", "conflicts/s, p99",
        "conflicts, % of commits", "rejected, %",
    ]  # fmt: skip
    below = _below(paper, counts, "Protean's") and _below(paper, counts, "Roost's")
    holds = rises(speed) and below and lost_on <= LITTLE
    remarks = [
        (
            "Requests come faster than these agents can place them, so throughput is what the agents can do. The paper "
            "shows curves without their numbers: throughput rises substantially with the agents, with little effect on "
            f"conflicts. Little is read as: at most {LITTLE:.0%} of the commits of the most agents lose a race."
        ),
        (
            "With our own latencies a decision takes as long as it really takes on this machine; the simulated agents "
            "do not share its cores."
        ),
    ]
    return Findings(holds, verdict, [ReportTable("Conflicts and throughput", headings, table)], remarks)


def _below(rows: Sequence[FigureRow], counts: Sequence[int], avoidance: str) -> bool:
    """Whether conflicts are fewer with avoidance for all numbers of agents, and grow less than without."""
    on, off = (
        [mean(pick(rows, agents=n, avoidance=name), "conflicts_per_s_p99") for n in counts if n > 1]
        for name in (avoidance, "off")
    )
    return all(a < b for a, b in zip(on, off, strict=True)) and on[-1] - on[0] < off[-1] - off[0]


def draw_conflicts(rows: Sequence[FigureRow]) -> Figure:
    """Two panels with the paper's latencies, one with ours."""
    shown, panels = new_figure(1, 3, title="Conflicts and throughput, by agents", height=4.0)
    paper, own = pick(rows, latency="paper"), pick(rows, latency="measured")
    for i, name in enumerate(AVOIDANCE):
        mine = pick(paper, avoidance=name)
        at = numbers(mine, "agents")
        style: dict[str, Any] = {
            "color": PALETTE[i],
            "marker": "o",
            "linestyle": DASHES[i],
            "label": f"avoidance: {name}",
        }
        panels[0].plot(at, numbers(mine, "conflicts_per_s_p99"), **style)
        panels[1].plot(at, numbers(mine, "throughput"), **style)
    at = numbers(own, "agents")
    panels[2].plot(at, numbers(own, "throughput"), color=PALETTE[2], marker="o", label="placed a second")
    panels[2].plot(at, numbers(own, "conflicts_per_s_p99"), color=PALETTE[1], marker="s", label="conflicts/s, p99")
    titles = ("conflicts a second, p99 (paper's latencies)", "placed a second (paper's latencies)", "our own latencies")
    for panel, title in zip(panels, titles, strict=True):
        panel.set_title(title)
        panel.set_xlabel("agents")
        panel.set_ylim(bottom=0)
        panel.legend()
    return shown


PROTEAN_FIG14 = Study(
    name="protean-fig14",
    title="conflicts and throughput, with avoidance on and off",
    source="Protean (OSDI'20), §6.2, Fig. 14",
    question="What do more agents bring in throughput, and cost in conflicts?",
    cells=conflict_cells,
    perform=perform_conflicts,
    find=find_conflicts,
    draw=draw_conflicts,
    alone=measures_time,
)
