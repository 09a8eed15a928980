"""What a larger zone costs: the latency of a decision, and the memory of an agent (Protean, Figs. 11 and 12)."""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import takewhile
from pathlib import Path
from statistics import fmean, linear_regression, median
from typing import TYPE_CHECKING, Any

import numpy as np

from roost.engine.selection import Engine
from roost.engine.shape import Shape
from roost.experiments.driven import Drive, prepare, undisturbed
from roost.experiments.study import (
    Cell,
    CellContext,
    FigureRow,
    FigureValue,
    Findings,
    ReportTable,
    Study,
    distinct,
    mean,
    numbers,
    pick,
)
from roost.model.zone import Zone
from roost.placing.allocator import Allocator
from roost.plotting import PALETTE, QUIET, new_figure
from roost.rules.policy import Policy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
QUICK_SIZES = (500, 2_000)
COMMON = {"utilisation": 0.75, "varied": 0.25, "seed": 1}
SECONDS_AN_HOUR = 3_600
MB = 1_000_000


def _cells(quick: bool, settings: Mapping[str, Any]) -> list[Cell]:
    sizes = QUICK_SIZES if quick else SIZES
    return [Cell(f"machines-{n}", {"machines": n, **COMMON, **settings}) for n in sizes]


def exponent(rows: Sequence[FigureRow], name: str) -> float:
    """By which power of the machines a column grows: the slope of the line through the logarithms.

    One size tells nothing of it: not a number.
    """
    known = [row for row in rows if row.get(name)]
    if len(known) < 2:
        return math.nan
    x, y = ([math.log(value) for value in numbers(known, column)] for column in ("machines", name))
    return linear_regression(x, y).slope


# ---------------------------------------------------------------------------------------------------------- latency

CASES = ("hit", "miss", "baseline")
FLAT = 0.3  # the highest exponent of what is nearly flat
STEEP = 0.8  # the lowest of what grows about linearly
ABOVE = 10  # times that the baseline is above a hit, in the largest zone


def cells_of_latency(quick: bool) -> list[Cell]:
    """Each size of zone."""
    return _cells(quick, {"requests": 400, "from_scratch": 10} if quick else {"requests": 6_000, "from_scratch": 60})


def perform_latency(cell: Cell, context: CellContext) -> list[dict[str, FigureValue]]:
    """Requests for one VM as they come, and then some judged from scratch."""
    times: dict[str, list[float]] = {case: [] for case in CASES}
    with undisturbed():
        scene = prepare(cell["machines"], cell["utilisation"], cell["seed"])
        drive = Drive(scene, cell["varied"], cell["seed"])
        context.tell(0.5, 0)
        for _, outcome in zip(range(cell["requests"]), drive.run(), strict=False):
            if outcome.vms == 1:
                times["hit" if outcome.hit else "miss"].append(outcome.ms)
        context.tell(0.9, cell["requests"])
        for number in range(cell["from_scratch"]):
            request = drive.request(number)  # as those at the beginning
            shape = drive.allocator.shape(request.vms[0], request.tenant)
            started = time.perf_counter_ns()
            best_from_scratch(drive.allocator.engine, shape)
            times["baseline"].append((time.perf_counter_ns() - started) / 1e6)
    return [
        {
            "machines": cell["machines"], "case": case, "n": len(found),
            "median_ms": median(found) if found else None, "mean_ms": fmean(found) if found else None,
        }
        for case, found in times.items()
    ]  # fmt: skip


def best_from_scratch(engine: Engine, shape: Shape) -> int:
    """Without caches and cluster selection: every rule on every machine, then one of the best; -1 if there is none."""
    judged = engine.judge(engine.view, shape, engine.desk)
    valid = np.flatnonzero(judged.verdicts < 0)
    return int(valid[np.argmin(judged.keys[valid])]) if len(valid) else -1


def find_latency(rows: Sequence[FigureRow]) -> Findings:
    """Whether only the baseline grows with the zone."""
    powers = {case: exponent(pick(rows, case=case), "median_ms") for case in CASES}
    largest = max(distinct(rows, "machines"))
    hit, miss, baseline = (mean(pick(rows, case=case, machines=largest), "median_ms") for case in CASES)
    holds = powers["baseline"] >= STEEP and powers["hit"] <= FLAT and baseline >= ABOVE * hit
    verdict = (
        f"with {largest:,} machines a hit takes {hit:.3f} ms, a miss {miss:.3f} ms, the baseline {baseline:.2f} ms, "
        f"{baseline / hit:,.0f} times a hit (paper: about 1,000 ms in larger zones; about 20 ms on average with "
        "caches); as powers of the machines they grow by "
        f"{powers['hit']:.2f}, {powers['miss']:.2f} and {powers['baseline']:.2f}"
    )
    table = [
        [f"{n:,}", *(_figure(pick(rows, machines=n, case=case)) for case in CASES), _times(rows, n)]
        for n in distinct(rows, "machines")
    ]
    table.append(["paper, large zone", "14 (as simulated)", "70–80", "about 1,000", "–"])
    headings = ["machines", "hit, median ms", "miss, median ms", "baseline, median ms", "baseline over hit"]
    return Findings(holds, verdict, [ReportTable("Latency of a decision", headings, table)], REMARKS_LATENCY)


def _figure(rows: Sequence[FigureRow]) -> str:
    found = numbers(rows, "median_ms")
    return f"{found[0]:.3f}" if found else "–"


def _times(rows: Sequence[FigureRow], machines: int) -> str:
    hit, baseline = (mean(pick(rows, machines=machines, case=case), "median_ms") for case in ("hit", "baseline"))
    return f"{baseline / hit:,.1f}"


REMARKS_LATENCY = (
    "The paper shows its curves without numbers: beside ours stands what its text says of large zones.",
    (
        "Baseline: every rule on every machine of every cluster, without caches and without choosing clusters, by the "
        "same compiled rules; so it shows what caches bring, not what a compiler brings. It leaves out the checks and "
        "books of a request, which are part of the other two."
    ),
    (
        "A miss looks at the best clusters only (12 that have a valid machine): in a zone of fewer it looks at "
        "everything, as the baseline does; in a larger one it hardly grows."
    ),
)


def draw_latency(rows: Sequence[FigureRow]) -> Figure:
    """Three lines over the machines."""
    shown, panels = new_figure(1, 1, title="Latency against the size of the zone", width=8, height=4.6)
    panel = panels[0]
    for case, colour in zip(CASES, PALETTE, strict=False):
        own = [row for row in pick(rows, case=case) if row["median_ms"] is not None]
        panel.plot(numbers(own, "machines"), numbers(own, "median_ms"), color=colour, marker="o", label=case)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_title("median, ms")
    panel.set_xlabel("machines")
    panel.legend()
    return shown


# ----------------------------------------------------------------------------------------------------------- memory

PAPER_EXPONENT = 0.73
MEASURES = {"engine_mb": "the engine's own count", "resident_mb": "resident memory"}


def cells_of_memory(quick: bool) -> list[Cell]:
    """Each size of zone."""
    return _cells(quick, {"hours": 0.5 if quick else 2.0})


def perform_memory(cell: Cell, context: CellContext) -> list[dict[str, FigureValue]]:
    """In a new process: one that was used before has memory left over, in which the next zone hides."""
    context.tell(0.1, 0)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:
        return [apart.submit(measure_memory, dict(cell.settings)).result()]


def measure_memory(settings: Mapping[str, Any]) -> dict[str, FigureValue]:
    """What an agent takes that has served requests for a while."""
    Allocator(Zone.synthetic(100), Policy.named("default"))  # the code, which takes as much in any zone
    scene = prepare(settings["machines"], settings["utilisation"], settings["seed"])
    before = _resident()
    drive = Drive(scene, settings["varied"], settings["seed"])
    until = settings["hours"] * SECONDS_AN_HOUR
    requests = sum(1 for _ in takewhile(lambda outcome: outcome.at < until, drive.run(idle=False)))
    resident, allocator = _resident() - before, drive.allocator
    memory = allocator.stats().memory
    return {
        "machines": settings["machines"],
        "requests": requests,
        "vms": len(allocator.vms),
        "evaluations": len(allocator.engine.evaluations),
        "engine_mb": sum(memory.values()) / MB,
        "evaluations_mb": memory["evaluations"] / MB,
        "resident_mb": resident / MB,
    }


def _resident() -> int:
    """Bytes that this process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def find_memory(rows: Sequence[FigureRow]) -> Findings:
    """Whether memory grows more slowly than the zone."""
    powers = {name: exponent(rows, name) for name in MEASURES}
    holds = max(powers.values()) < (PAPER_EXPONENT + 1) / 2
    largest = max(rows, key=lambda row: float(row["machines"] or 0))
    verdict = (
        f"memory grows with the power of {powers['engine_mb']:.2f} of the machines by the engine's own count, and of "
        f"{powers['resident_mb']:.2f} by what is resident (paper: {PAPER_EXPONENT}; linear is 1); with "
        f"{largest['machines']:,} machines it is {largest['engine_mb']:,.0f} MB and {largest['resident_mb']:,.0f} MB"
    )
    headings = [
        "machines", "VMs", "evaluations kept", "evaluations, MB", "engine's own count, MB", "resident, MB",
        "resident per 1,000 machines, MB",
    ]  # fmt: skip
    table = [
        [
            f"{row['machines']:,}", f"{row['vms']:,}", f"{row['evaluations']:,}", f"{row['evaluations_mb']:,.2f}",
            f"{row['engine_mb']:,.2f}", f"{row['resident_mb']:,.1f}",
            f"{1_000 * mean([row], 'resident_mb') / mean([row], 'machines'):,.1f}",
        ]
        for row in rows
    ]  # fmt: skip
    table.append(
        ["exponent", "", "", f"{exponent(rows, 'evaluations_mb'):.2f}", *(f"{p:.2f}" for p in powers.values()), ""]
    )
    table.append(["paper", "", "", "", "", f"{PAPER_EXPONENT}", ""])
    return Findings(holds, verdict, [ReportTable("Memory of an agent", headings, table)], REMARKS_MEMORY)


REMARKS_MEMORY = (
    "The paper gives the exponent of a fitted line, over the zones of a month, and no sizes in its text.",
    (
        "The engine counts rows, journal, evaluations, rankings and columns. Resident: by how much the process grew, "
        "so with the books of what runs, and with memory that came in large pages; without code, workload and the "
        "description of the zone. Each zone has a process of its own."
    ),
    (
        "Why it is not as the paper's: rows, journal and columns have an entry for each machine, and the books one for "
        "each VM that runs, so they are linear. An evaluation has an entry for each machine of the clusters that were "
        "looked at, and a larger zone is asked for more kinds of VM within the hour for which they are kept: so the "
        "evaluations grow faster than the zone, until as many are kept as may be (256)."
    ),
)


def draw_memory(rows: Sequence[FigureRow]) -> Figure:
    """Both measures over the machines, with the lines that fit them."""
    shown, panels = new_figure(1, 1, title="Memory against the size of the zone", width=8, height=4.6)
    panel = panels[0]
    machines = numbers(rows, "machines")
    for (name, title), colour in zip(MEASURES.items(), PALETTE, strict=False):
        label = f"{title}: x^{exponent(rows, name):.2f}"
        panel.plot(machines, numbers(rows, name), color=colour, marker="o", label=label)
    middle = len(machines) // 2
    level = numbers(rows, "resident_mb")[middle] / machines[middle] ** PAPER_EXPONENT
    slope = [level * n**PAPER_EXPONENT for n in machines]
    panel.plot(machines, slope, color=QUIET, linestyle="--", label=f"as steep as the paper's: x^{PAPER_EXPONENT}")
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_title("MB")
    panel.set_xlabel("machines")
    panel.legend()
    return shown


PROTEAN_FIG11 = Study(
    name="protean-fig11",
    title="latency against the size of the zone",
    source="Protean (OSDI'20), §6.2, Fig. 11",
    question="How does the time of a decision grow with the zone, with a hit, with a miss, and without caches?",
    cells=cells_of_latency,
    perform=perform_latency,
    find=find_latency,
    draw=draw_latency,
    alone=lambda _: True,
)
PROTEAN_FIG12 = Study(
    name="protean-fig12",
    title="memory against the size of the zone",
    source="Protean (OSDI'20), §6.2, Fig. 12",
    question="How does the memory of an agent grow with the zone?",
    cells=cells_of_memory,
    perform=perform_memory,
    find=find_memory,
    draw=draw_memory,
)
