"""One to many agents and a spike in demand (Protean, Fig. 13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from roost.experiments.agents import MODELS, agents_in_words, measures_time, per_second, run
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
)
from roost.plotting import PALETTE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

QUIET_RATE, SPIKE_RATE = 5.0, 220.0  # requests a second, before and after; in the spike
SPIKE_FROM, SPIKE_SECONDS = 30.0, 20.0


def spike_cells(quick: bool) -> list[Cell]:
    """Ever more agents; with the paper's latencies, and with ours."""
    counts = {"paper": (1, 5), "measured": (1,)} if quick else {"paper": (1, 2, 3, 5, 8), "measured": (1, 2, 5)}
    size = {"machines": 500, "fill": 0.3, "until": 60} if quick else {"machines": 25_000, "fill": 0.3, "until": 200}
    scale = 0.4 if quick else 1.0
    return [
        Cell(f"{latency}-{count}-agents", {"agents": count, "latency": latency, "seed": 1, "scale": scale, **size})
        for latency, each in counts.items()
        for count in each
    ]


def spike_arrivals(scale: float, until: float, seed: int) -> NDArray[np.float64]:
    """A quiet stretch, a spike, and quiet again."""
    rng = np.random.default_rng(seed)
    quiet = rng.random(rng.poisson(QUIET_RATE * until)) * until
    spike = SPIKE_FROM + rng.random(round(scale * SPIKE_RATE * SPIKE_SECONDS)) * SPIKE_SECONDS
    return np.sort(np.concatenate((quiet, spike)))


def perform_spike(cell: Cell, context: CellContext) -> list[dict[str, FigureValue]]:
    """One run: what came and what was placed in each second, and when the spike was cleared."""
    until = float(cell["until"])
    arrival = spike_arrivals(cell["scale"], until, cell["seed"])
    result = run(cell, context, arrival, until, favourites=False)
    key: dict[str, FigureValue] = {"agents": cell["agents"], "latency": cell["latency"]}
    came = np.bincount(arrival.astype(np.int64), minlength=int(until))[: int(until)]
    placed = per_second(result, until)
    rows = [
        {**key, "what": "second", "time_s": s, "arrived": a, "placed": p}
        for s, (a, p) in enumerate(zip(came.tolist(), placed.tolist(), strict=True))
    ]
    requests = result.requests.filter(result.requests["request"] >= 0)
    spiky = (requests["time_s"] >= SPIKE_FROM) & (requests["time_s"] < SPIKE_FROM + SPIKE_SECONDS)
    answers = (requests["time_s"] + requests["latency_s"]).filter(spiky)
    unanswered = int(((arrival >= SPIKE_FROM) & (arrival < SPIKE_FROM + SPIKE_SECONDS)).sum()) - len(answers)
    summary: dict[str, FigureValue] = {
        **key,
        "what": "run",
        "cleared_s": (until if unanswered else float(answers.to_numpy().max())) - SPIKE_FROM,
        "unanswered": unanswered,
        "peak_per_s": int(placed.max()),
        "latency_p99_s": result.summary["latency_p99"],
        "latency_mean_s": result.summary["latency_mean"],
        "conflicts": result.summary["conflicts"],
    }
    return [*rows, summary]


def find_spike(rows: Sequence[FigureRow]) -> Findings:
    """How long it took, by agents."""
    table, factors = [], {}
    for latency in distinct(rows, "latency"):
        runs = pick(rows, what="run", latency=latency)
        alone = mean(pick(runs, agents=1), "cleared_s")
        for each in sorted(runs, key=lambda row: row["agents"] or 0):
            took = mean([each], "cleared_s")
            factors[latency, each["agents"]] = alone / took
            table.append(
                [
                    MODELS[latency], str(each["agents"]), f"{took:,.1f}", f"{alone / took:.1f}×",
                    figure([each], "peak_per_s", 0), figure([each], "latency_mean_s", 3),
                    figure([each], "latency_p99_s", 3), figure([each], "conflicts", 0),
                ]
            )  # fmt: skip
    alone = mean(pick(rows, what="run", latency="paper", agents=1), "cleared_s")
    gain = factors["paper", 5]
    cannot = alone > 2 * SPIKE_SECONDS
    ours = mean(pick(rows, what="run", latency="measured", agents=1), "cleared_s")
    verdict = (
        f"with the paper's latencies one agent needs {alone:,.0f} s for a spike of {SPIKE_SECONDS:.0f} s, five clear "
        f"it {gain:.1f} times sooner (paper: more than 3 times); with our own latencies one agent needs {ours:,.1f} s"
    )
    headings = [
        "latencies", "agents", "cleared after, s", "sooner than one", "most placed in a second", "mean latency, s",
        "p99 latency, s", "conflicts",
    ]  # fmt: skip
    remarks = [
        (
            "Cleared: from the spike's beginning until the last of its requests is answered; a run that ends before "
            "counts with its end, so its factor is too small."
        ),
        (
            "The paper says neither how high its spike was nor how long a commit took: ours are in the settings and in "
            "docs/simulate.md (5 ms for a commit, 20 ms until the others know)."
        ),
    ]
    return Findings(cannot and gain >= 3, verdict, [ReportTable("The spike, by agents", headings, table)], remarks)


def draw_spike(rows: Sequence[FigureRow]) -> Figure:
    """What came as bars, what was placed as lines."""
    models = distinct(rows, "latency")
    shown, panels = new_figure(1, len(models), title="A spike, and ever more agents", height=4.2, sharey=True)
    for panel, latency in zip(panels, models, strict=True):
        seconds = pick(rows, what="second", latency=latency)
        counts = distinct(seconds, "agents")
        for i, count in enumerate(counts):
            one = pick(seconds, agents=count)
            at = numbers(one, "time_s")
            if i == 0:
                panel.bar(at, numbers(one, "arrived"), width=1.0, color="#dddddd", label="requests")
            panel.plot(at, numbers(one, "placed"), color=PALETTE[i], label=agents_in_words(count), linewidth=1.3)
        cleared = [mean([row], "cleared_s") for row in pick(rows, what="run", latency=latency)]
        panel.set_xlim(SPIKE_FROM - 10, SPIKE_FROM + max(cleared) + 15)
        panel.set_title(MODELS[latency])
        panel.set_xlabel("seconds")
        panel.legend()
    panels[0].set_ylabel("requests a second")
    return shown


PROTEAN_FIG13 = Study(
    name="protean-fig13",
    title="agents and a spike in demand",
    source="Protean (OSDI'20), §6.2, Fig. 13",
    question="How long do one to many agents need for a spike?",
    cells=spike_cells,
    perform=perform_spike,
    find=find_spike,
    draw=draw_spike,
    alone=measures_time,
)
