"""What caches bring over a day: how often they are hit, and what a hit and a miss take (Protean, Figs. 9 and 10)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby, takewhile
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING

from roost.experiments.driven import DecidedRequest, Drive, prepare, undisturbed
from roost.experiments.study import (
    Cell,
    CellContext,
    FigureRow,
    FigureValue,
    Findings,
    ReportTable,
    Study,
    distinct,
    numbers,
    pick,
)
from roost.plotting import DASHES, PALETTE, QUIET, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HOUR = 3_600
TOP = "evaluation"  # the class of cached objects that every decision asks for first
COLUMN = "column "  # how the names of those below it begin
HIGH = 0.9  # the hit ratio that the paper's simulations assume
SEVERAL = 3  # times that a miss must take longer than a hit
SIZE = {"machines": 20_000, "hours": 25, "warm_up_hours": 1}
QUICK = {"machines": 500, "hours": 4, "warm_up_hours": 1}
COMMON = {"utilisation": 0.75, "seed": 1}
VARIED = 0.25


def cells_of_ratios(quick: bool) -> list[Cell]:
    """A day whose requests differ in type and priority only, and one in which some ask for more."""
    size = QUICK if quick else SIZE
    return [Cell(name, {"varied": varied, **COMMON, **size}) for name, varied in (("plain", 0.0), ("varied", VARIED))]


def cells_of_latency(quick: bool) -> list[Cell]:
    """The varied day."""
    return [Cell("varied", {"varied": VARIED, **COMMON, **(QUICK if quick else SIZE)})]


def _driven(cell: Cell, context: CellContext) -> Iterator[tuple[int, list[DecidedRequest], Drive]]:
    """A day hour by hour: the hour, what was decided in it, and the allocator as it is then."""
    scene = prepare(cell["machines"], cell["utilisation"], cell["seed"])
    drive = Drive(scene, cell["varied"], cell["seed"])
    decided = 0
    day = takewhile(lambda outcome: outcome.at < cell["hours"] * HOUR, drive.run())
    for hour, outcomes in groupby(day, lambda outcome: int(outcome.at // HOUR)):
        found = list(outcomes)
        decided += len(found)
        context.tell(hour / cell["hours"], decided)
        yield hour, found, drive


def perform_ratios(cell: Cell, context: CellContext) -> list[dict[str, FigureValue]]:
    """What each class of cached objects was asked for in each hour."""
    rows: list[dict[str, FigureValue]] = []
    before: dict[str, dict[str, int]] = {}
    for hour, outcomes, drive in _driven(cell, context):
        now = {name: asdict(stats) for name, stats in drive.allocator.engine.cache_stats().items()}
        if hour >= cell["warm_up_hours"]:
            common: dict[str, FigureValue] = {
                "varied": cell["varied"],
                "hour": hour,
                "requests": len(outcomes),
                "requests_hit": sum(outcome.hit for outcome in outcomes),
                "refused": sum(not outcome.ok for outcome in outcomes),
                "allocations": sum(outcome.vms for outcome in outcomes),
                "utilisation": drive.allocator.usage().utilisation,
                "evaluations": len(drive.allocator.engine.evaluations),
            }
            for name, counts in now.items():
                rows.append({**common, "cache": name, **{n: counts[n] - before[name][n] for n in COUNTED}})
        before = now
    return rows


COUNTED = ("hits", "misses", "evictions", "updated_on_hit", "updated_on_miss", "updated_idle")


def _sum(rows: Sequence[FigureRow], name: str) -> float:
    return sum(numbers(rows, name))


def _ratio(rows: Sequence[FigureRow]) -> float:
    """Of hits; of a class that nobody asked for, it is 1."""
    asked = _sum(rows, "hits") + _sum(rows, "misses")
    return _sum(rows, "hits") / asked if asked else 1.0


def _asked(rows: Sequence[FigureRow]) -> float:
    """How often a class is asked for, as a share of the allocations."""
    return (_sum(rows, "hits") + _sum(rows, "misses")) / (_sum(rows, "allocations") or 1)


def find_ratios(rows: Sequence[FigureRow]) -> Findings:
    """Whether the highest class is hit most, and the lower ones are asked less."""
    varied = pick(rows, varied=max(distinct(rows, "varied")))
    ratios = {name: _ratio(pick(varied, cache=name)) for name in distinct(varied, "cache")}
    lower = [name for name in ratios if name.startswith(COLUMN)]
    top = pick(varied, cache=TOP)
    worst = min(_ratio([row]) for row in top)
    highest = ratios[TOP] > max(ratio for name, ratio in ratios.items() if name != TOP)
    asked = max(_asked(pick(varied, cache=name)) for name in lower)
    kept = _sum(top, "updated_idle") / ((_sum(top, "updated_idle") + _sum(top, "updated_on_hit")) or 1)
    verdict = (
        f"evaluations are hit by {ratios[TOP]:.1%} of the VMs, {worst:.1%} in the worst hour (paper: 90 % in its "
        f"simulations); what lies below is asked for by {asked:.1%} of the VMs, evaluations by all (paper: the same "
        f"order); the highest class {'has' if highest else 'does not have'} the highest ratio: columns are hit by "
        f"{min(ratios[name] for name in lower):.1%} (paper: NodeResources by about 20 %); "
        f"{kept:.0%} of catching up is done in idle time (paper: 80–96 % of all updates)"
    )
    holds = highest and asked < 1 and worst >= HIGH
    return Findings(holds, verdict, [_table_of_classes(rows), _table_of_updates(rows)], REMARKS_RATIOS)


def _table_of_classes(rows: Sequence[FigureRow]) -> ReportTable:
    headings = [
        "requests", "cache", "hit ratio %", "lowest hour %", "highest hour %", "paper, %", "asked for, % of VMs",
        "paper, % of allocations",
    ]  # fmt: skip
    table = []
    for varied in distinct(rows, "varied"):
        for name in distinct(rows, "cache"):
            own = pick(rows, varied=varied, cache=name)
            hours = [_ratio([row]) for row in own]
            ratios = [f"{100 * each:.2f}" for each in (_ratio(own), min(hours), max(hours))]
            asked = f"{100 * _asked(own):.1f}"
            table.append([_described(varied), name, *ratios, *_paper(name)[:1], asked, *_paper(name)[1:]])
    return ReportTable("Classes of cached objects, over the day", headings, table)


def _paper(name: str) -> tuple[str, str]:
    """Hit ratio and how often it is asked for, as far as the text gives them."""
    if name == TOP:
        return "90 (RuleEvaluation, as simulated)", "100"
    return ("about 20 (NodeResources)", "0.16") if name.startswith(COLUMN) else ("–", "–")


def _table_of_updates(rows: Sequence[FigureRow]) -> ReportTable:
    headings = ["", *(_described(varied) for varied in distinct(rows, "varied")), "paper (about 30,000 machines)"]
    of = [pick(rows, varied=varied, cache=TOP) for varied in distinct(rows, "varied")]
    table = [
        [
            "requests whose VMs all hit, %",
            *(f"{100 * _part(r, 'requests_hit', 'requests'):.2f}" for r in of),
            "90 (as simulated)",
        ],
        ["machines updated per hit", *(f"{_part(r, 'updated_on_hit', 'hits'):,.1f}" for r in of), "about 50"],
        ["machines updated per miss", *(f"{_part(r, 'updated_on_miss', 'misses'):,.0f}" for r in of), "about 2,000"],
        ["updates in idle time, % of all", *(_idle(r, "updated_on_hit", "updated_on_miss") for r in of), "80–96"],
        ["… of those that catch up", *(_idle(r, "updated_on_hit") for r in of), "–"],
        ["evaluations kept, at most", *(f"{max(numbers(r, 'evaluations')):,.0f}" for r in of), "–"],
        ["requests refused", *(f"{_sum(r, 'refused'):,.0f}" for r in of), "–"],
    ]
    return ReportTable("What evaluations cost", headings, table)


def _part(rows: Sequence[FigureRow], name: str, whole: str) -> float:
    return _sum(rows, name) / (_sum(rows, whole) or 1)


def _idle(rows: Sequence[FigureRow], *others: str) -> str:
    idle = _sum(rows, "updated_idle")
    return f"{100 * idle / (idle + sum(_sum(rows, name) for name in others) or 1):.0f}"


def _described(varied: float) -> str:
    return f"{100 * varied:.0f} % ask for more" if varied else "type and priority"


REMARKS_RATIOS = (
    (
        "The paper shows its curves without numbers; beside ours stands what its text says. Its cached rules (BestFit, "
        "FdEmptyNodes) have no counterpart: here rules are compiled, and only derived columns are kept below an "
        "evaluation."
    ),
    (
        "How varied requests are decides how often an evaluation is there already, and the paper does not tell: it has "
        "tens of traits, our workload two. So a share of the requests asks for hardware features or an "
        "anti-colocation class besides; this share is chosen, and the level of the hit ratio with it."
    ),
    (
        "A lower class is asked for when an evaluation is new or out of date; mostly by the second and further VMs of "
        "a request, as the one before has just changed a machine. `failure_risk` depends on no trait: it is made once, "
        "so nearly all who ask find it. `danger` depends on type and priority, so whoever is the first of his kind "
        "does not find it, like the paper's lower classes, which depend on traits that may be new, too. Tables in "
        "which `danger` is missing were measured before the default policy had it."
    ),
    (
        "A miss computes every machine of the clusters that are looked at (12 with a valid machine, about 1,000 "
        "machines each). The paper has fewer, 6.6 % of the machines, and puts it down to the choice of clusters and to "
        "updates in the background. Making an evaluation counts among all updates, not among those that catch up."
    ),
    "Idle time: whenever no request came for 20 ms, everything is brought up to date.",
)


def draw_ratios(rows: Sequence[FigureRow]) -> Figure:
    """Hit ratios hour by hour, and how often each class is asked for."""
    shown, panels = new_figure(1, 2, title="Hits of caches over a day", height=4.4, width_ratios=(2, 1))
    varied, plain = (pick(rows, varied=which(distinct(rows, "varied"))) for which in (max, min))
    for name, colour in zip(distinct(rows, "cache"), PALETTE, strict=False):
        _draw_hours(panels[0], pick(varied, cache=name), colour, name)
    if plain != varied:
        _draw_hours(panels[0], pick(plain, cache=TOP), PALETTE[0], f"{TOP}, {_described(0)} only", DASHES[1])
    panels[0].axhline(100 * HIGH, color=QUIET, linestyle=":", label=f"{TOP}, paper's simulations")
    panels[0].set_title("hit ratio, %")
    panels[0].set_xlabel("hour")
    shown.legend(loc="outside lower center", ncols=5)
    _draw_asked(panels[1], varied)
    return shown


def _draw_hours(panel: Axes, rows: Sequence[FigureRow], colour: str, label: str, dash: str = DASHES[0]) -> None:
    ratios = [100 * _ratio([row]) for row in rows]
    panel.plot(numbers(rows, "hour"), ratios, color=colour, linestyle=dash, label=label)


def _draw_asked(panel: Axes, rows: Sequence[FigureRow]) -> None:
    names = distinct(rows, "cache")
    shares = [100 * _asked(pick(rows, cache=name)) for name in names]
    bars = panel.bar([name.replace(" ", "\n") for name in names], shares, color=PALETTE[: len(names)])
    panel.bar_label(bars, fmt="%.1f")
    panel.set_title("asked for, % of VMs (varied)")


# ---------------------------------------------------------------------------------------------------------- latency


def perform_latency(cell: Cell, context: CellContext) -> list[dict[str, FigureValue]]:
    """How long requests for one VM take in each hour: those that hit, those that miss, and all."""
    rows: list[dict[str, FigureValue]] = []
    with undisturbed():
        for hour, outcomes, _ in _driven(cell, context):
            if hour < cell["warm_up_hours"]:
                continue
            single = [outcome for outcome in outcomes if outcome.vms == 1]
            for case, hits in CASES.items():
                times = [outcome.ms for outcome in single if outcome.hit in hits]
                rows.append({"hour": hour, "case": case, "n": len(times), **_summed_up(times)})
    return rows


CASES = {"hit": (True,), "miss": (False,), "all": (True, False)}


def _summed_up(times: Sequence[float]) -> dict[str, FigureValue]:
    return {
        "mean_ms": fmean(times) if times else None,
        "deviation_ms": stdev(times) if len(times) > 1 else None,
        "median_ms": median(times) if times else None,
    }


def find_latency(rows: Sequence[FigureRow]) -> Findings:
    """Whether a miss takes several times as long as a hit."""
    of = {case: pick(rows, case=case) for case in CASES}
    hit, miss, overall = (_mean(of[case]) for case in CASES)
    hours = [hour for hour in distinct(rows, "hour") if pick(of["miss"], hour=hour)[0]["n"]]
    slower = sum(_mean(pick(of["miss"], hour=h)) > _mean(pick(of["hit"], hour=h)) for h in hours)
    ratio = miss / hit
    verdict = (
        f"a miss takes {ratio:.1f} times as long as a hit (paper: {PAPER_MISS / PAPER_HIT:.1f} times in its "
        f"simulations), {miss:.3f} ms against {hit:.3f} ms (paper: 70–80 ms, and about 20 ms on average over all), and "
        f"longer in {slower} of {len(hours)} hours with a miss; {overall:.3f} ms on average over all"
    )
    table = [
        [
            case, f"{_sum(r, 'n'):,.0f}", f"{_mean(r):.3f}", f"{_mean(r, 'deviation_ms'):.3f}",
            f"{_mean(r, 'median_ms'):.3f}", PAPER_LATENCY[case],
        ]
        for case, r in of.items()
    ]  # fmt: skip
    headings = ["", "requests", "mean, ms", "standard deviation", "median", "paper, mean, ms"]
    tables = [
        ReportTable("Requests for one VM, over the day; means over the hours", headings, table),
        _table_of_hours(of),
    ]
    return Findings(ratio >= SEVERAL and slower == len(hours) > 0, verdict, tables, REMARKS_LATENCY)


PAPER_HIT, PAPER_MISS = 14, 88  # ms, as its simulations assume
PAPER_LATENCY = {"hit": "14 (as simulated)", "miss": "70–80 (88 as simulated)", "all": "about 20"}


def _mean(rows: Sequence[FigureRow], name: str = "mean_ms") -> float:
    """Over hours, each as heavy as it has requests; not a number if there are none."""
    known = [row for row in rows if row.get(name) is not None]
    weights = _sum(known, "n")
    return sum(a * b for a, b in zip(numbers(known, name), numbers(known, "n"), strict=True)) / (
        weights or float("nan")
    )


def _table_of_hours(of: dict[str, list[FigureRow]]) -> ReportTable:
    table = []
    for hit, miss in zip(of["hit"], of["miss"], strict=True):
        table.append([str(hit["hour"]), *_cells(hit), *_cells(miss)])
    headings = ["hour", "hits", "mean ± deviation, ms", "misses", "mean ± deviation, ms"]
    return ReportTable("Hour by hour", headings, table)


def _cells(row: FigureRow) -> tuple[str, str]:
    mean, deviation = ("–" if row[name] is None else f"{row[name]:.3f}" for name in ("mean_ms", "deviation_ms"))
    return f"{row['n']:,}", f"{mean} ± {deviation}"


REMARKS_LATENCY = (
    (
        "Measured around `Allocator.allocate`: checks, choice, books; no commit to a store, no HTTP. The paper's "
        "includes what it does besides, such as tracking and putting out how each allocation came about."
    ),
    "While it is measured, Python does not look for garbage; the service keeps that short, too.",
    "How many requests miss is chosen by how varied they are (see protean-fig9), and the mean over all with it.",
)


def draw_latency(rows: Sequence[FigureRow]) -> Figure:
    """Mean and standard deviation, hour by hour."""
    shown, panels = new_figure(1, 1, title="How long a decision takes over a day", height=4.2)
    panel = panels[0]
    for aside, (case, colour) in enumerate(zip(CASES, PALETTE, strict=False)):
        own = [row for row in pick(rows, case=case) if row["n"]]
        hours, means = [hour + aside / 8 for hour in numbers(own, "hour")], numbers(own, "mean_ms")
        spread = [float(row["deviation_ms"] or 0) for row in own]
        panel.errorbar(hours, means, yerr=_bars(means, spread), color=colour, marker="o", capsize=3, label=case)
    panel.set_yscale("log")
    panel.set_title("requests for one VM: mean and standard deviation, ms")
    panel.set_xlabel("hour")
    panel.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return shown


def _bars(means: Sequence[float], spread: Sequence[float]) -> tuple[list[float], list[float]]:
    """To either side; downwards not to zero, which a logarithmic axis does not have."""
    return [min(s, 0.9 * m) for m, s in zip(means, spread, strict=True)], list(spread)


PROTEAN_FIG9 = Study(
    name="protean-fig9",
    title="hits of caches over a day",
    source="Protean (OSDI'20), §6.2, Fig. 9",
    question="How often is each class of cached objects asked for, how often is it hit, and what does that cost?",
    cells=cells_of_ratios,
    perform=perform_ratios,
    find=find_ratios,
    draw=draw_ratios,
)
PROTEAN_FIG10 = Study(
    name="protean-fig10",
    title="latency of hits and misses over a day",
    source="Protean (OSDI'20), §6.2, Fig. 10",
    question="How much longer does a decision take whose evaluation is not there yet?",
    cells=cells_of_latency,
    perform=perform_latency,
    find=find_latency,
    draw=draw_latency,
    alone=lambda _: True,
)
