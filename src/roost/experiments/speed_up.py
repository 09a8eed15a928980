"""Time sped up to 1,000 times (Protean, Fig. 15)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from roost.experiments.agents import AVOIDANCE, MODELS, agents_in_words, measures_time, overload_row, run
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
    rises,
)
from roost.plotting import PALETTE, QUIET, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BASE_RATE = 14.0  # requests a second of the trace at its own speed


def speed_cells(quick: bool) -> list[Cell]:
    """The same requests, ever faster, for ever more agents."""
    plan: dict[tuple[str, str], dict[int, tuple[int, ...]]]
    if quick:
        plan = {("paper", "Protean's"): {4: (1, 30)}, ("measured", "Roost's"): {1: (30,)}}
        size = {"machines": 500, "requests": 600}
    else:
        plan = {
            ("paper", "Protean's"): {
                10: (10, 100, 1_000), 50: (10, 100, 300, 1_000), 150: (100, 300, 1_000), 350: (300, 1_000),
            },
            ("paper", "Roost's"): {150: (300, 1_000), 350: (300, 1_000), 500: (1_000,)},
            ("measured", "Roost's"): {1: (100, 1_000), 2: (1_000,), 5: (1_000,)},
        }  # fmt: skip
        size = {"machines": 10_000, "requests": 10_000}
    return [
        Cell(
            f"{latency}-{avoidance[:-2].lower()}-{count}-agents-{speed}x",
            {"agents": count, "speed": speed, "latency": latency, "avoidance": avoidance, "seed": 1, **size},
        )
        for (latency, avoidance), each in plan.items()
        for count, speeds in each.items()
        for speed in speeds
    ]


def perform_speed(cell: Cell, context: CellContext) -> list[dict[str, FigureValue]]:
    """One run."""
    rate, count = BASE_RATE * cell["speed"], cell["requests"]
    until = count / rate
    arrival = np.sort(np.random.default_rng(cell["seed"]).random(count) * until)
    # What is still under way when the last request arrives is given a moment.
    settings = {**cell.settings, "rate": rate}
    result = run(cell, context, arrival, until + GRACE_SECONDS, **AVOIDANCE[cell["avoidance"]], pipeline=2)
    requests = result.requests.filter(result.requests["status"] == "placed")
    answers = np.sort((requests["time_s"] + requests["latency_s"]).to_numpy())
    row = overload_row(Cell(cell.label, settings), result, until + GRACE_SECONDS)
    # Of the middle of what was placed: beginning and end are not full.
    low, high = answers[len(answers) // 10], answers[9 * len(answers) // 10]
    row |= {"speed": cell["speed"], "throughput": float(0.8 * len(answers) / (high - low))}
    return [row | {"latency_mean_s": result.summary["latency_mean"], "left": count - (result.summary["requests"] or 0)}]


GRACE_SECONDS = 20.0


def find_speed(rows: Sequence[FigureRow]) -> Findings:
    """What is reached."""
    paper, own = pick(rows, latency="paper"), pick(rows, latency="measured")
    best = max(paper, key=lambda row: row["throughput"] or 0)
    most = max(own, key=lambda row: row["throughput"] or 0)
    protean = pick(paper, avoidance="Protean's")
    fastest = pick(protean, speed=max(distinct(protean, "speed")))
    ratios = [mean([row], "conflict_ratio") for row in sorted(fastest, key=lambda row: row["agents"] or 0)]
    top = mean([best], "throughput")
    verdict = (
        f"with the paper's latencies {top:,.0f} requests a second were placed ({best['agents']} agents with "
        f"{best['avoidance']} avoidance, {best['speed']}×; paper: over 10,000) at "
        f"{mean([best], 'conflict_ratio'):.0%} conflicts and {mean([best], 'rejected'):.1%} rejected; with our own "
        f"latencies {mean([most], 'throughput'):,.0f} by {agents_in_words(most['agents'])}, of "
        f"{mean([most], 'rate'):,.0f} that came"
    )
    table = [
        [
            MODELS[str(row["latency"])], str(row["avoidance"]), str(row["agents"]), f"{row['speed']}×",
            figure([row], "rate", 0),
            figure([row], "throughput", 0), figure([row], "conflicts_per_s_p99", 0),
            figure([row], "conflict_ratio", 1, 100), figure([row], "rejected", 2, 100), figure([row], "left", 0),
        ]
        for row in rows
    ]  # fmt: skip
    headings = [
        "latencies", "avoidance", "agents", "speed", "asked per second", "placed per second", "conflicts/s, p99",
        "conflicts, % of commits", "rejected, %", "unanswered",
    ]  # fmt: skip
    remarks = [
        (
            f"A trace of {BASE_RATE:.0f} requests a second at its own speed. Sped up, requests come and VMs leave "
            f"sooner by the same factor; at 1,000× the whole trace lasts less than a second. Placed per second: over "
            f"the middle four fifths of what was placed. Unanswered: {GRACE_SECONDS:.0f} s after the last arrival."
        ),
        (
            "With a mean of 21.4 ms for a decision, as in the paper's model, one agent decides 47 requests a second at "
            "the most: 10,000 a second need over 214 agents. The paper does not say how many it had."
        ),
    ]
    return Findings(top > 10_000 and rises(ratios), verdict, [ReportTable("Time sped up", headings, table)], remarks)


def draw_speed(rows: Sequence[FigureRow]) -> Figure:
    """Throughput, conflicts and rejections over what is asked for."""
    shown, panels = new_figure(1, 3, title="Time sped up", height=4.0)
    for panel, (title, column, scale) in zip(
        panels,
        (
            ("placed a second", "throughput", 1),
            ("conflicts, % of commits", "conflict_ratio", 100),
            ("rejected, %", "rejected", 100),
        ),
        strict=True,
    ):
        _by_speed(panel, rows, column, scale)
        panel.set_title(title)
        panel.set_xlabel("requests asked for a second")
        panel.set_xscale("log")
    panels[0].set_yscale("log")
    panels[0].axhline(10_000, color=QUIET, linestyle=":", linewidth=1)
    panels[0].annotate("10,000 (paper)", (0.02, 10_000), xycoords=("axes fraction", "data"), va="bottom", color=QUIET)
    panels[2].legend(fontsize=7, loc="upper left")
    return shown


def _by_speed(panel: Axes, rows: Sequence[FigureRow], column: str, scale: float) -> None:
    lines = dict.fromkeys((row["latency"], row["avoidance"], row["agents"]) for row in rows)
    colours = {count: PALETTE[i % len(PALETTE)] for i, count in enumerate(distinct(rows, "agents"))}
    for latency, avoidance, count in lines:
        mine = pick(rows, latency=latency, avoidance=avoidance, agents=count)
        style = (":", "s", "our latencies") if latency == "measured" else DRAWN[str(avoidance)]
        panel.plot(
            [mean([row], "rate") for row in mine],
            [scale * mean([row], column) for row in mine],
            color=colours[count],
            linestyle=style[0],
            marker=style[1],
            label=f"{agents_in_words(count)}, {style[2]}",
        )


DRAWN = {"Protean's": ("-", "o", "Protean's avoidance"), "Roost's": ("--", "^", "Roost's avoidance")}

PROTEAN_FIG15 = Study(
    name="protean-fig15",
    title="time sped up to 1,000 times",
    source="Protean (OSDI'20), §6.2, Fig. 15",
    question="How far does throughput go when the same requests come ever faster?",
    cells=speed_cells,
    perform=perform_speed,
    find=find_speed,
    draw=draw_speed,
    alone=measures_time,
)
