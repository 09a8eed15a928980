"""Two priorities in one zone (the allocator slides: metrics, balancing them, the multi-priority engine).

Regular VMs are those of the Azure sample; beside them comes a steady demand for spot VMs of the same types. Spot VMs
are evicted for regular ones, and do not come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from roost.experiments.simulated import changed, simulate
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
from roost.model.spans import HOUR
from roost.plotting import PALETTE, new_figure
from roost.rules.policy import Policy
from roost.sim.experiment import Experiment, Fleet
from roost.sim.fleet import zone_for
from roost.sim.result import RunResult
from roost.sim.statistics import estimate
from roost.traces.assembly import assemble
from roost.traces.sources import find_workload
from roost.traces.window import cut
from roost.traces.workload import Workload
from roost.wiring import find_policy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPOT = "spot"
NO_SPOT, BEST_FIT, SAFEST = "no spot", "best fit", "safest"
# What is changed in the default policy: the share of the machines, the best ones, of which that is chosen where the
# cheapest have to go (the slides' "top X %"); or VMs give way even if there is room elsewhere.
AT_ONCE = "at once"
AMONG = {"best alone": "0.0", "3 %": "0.03", "30 %": "0.3", "100 %": "1.0"}
AS_IT_IS = "10 %"  # as the default policy has it
CHOICES = (*AMONG, AT_ONCE)
WITHOUT_SAFEST = (r"    - \{rule: safest, .*\n", "")
WITHOUT_SPARING = (r"    - \{rule: nobody_gives_way, .*\n", "")
SHARE = r"among: 0\.1\b"
GAIN, CUT = 0.08, 0.25  # points of utilisation and share of the evictions that are asked for
ACCEPTED = 0.001  # what counts as noise at most, however far apart the seeds are
SMALL = {"machines": 600, "hours": 4, "warm_up_hours": 1}
FULL = {"machines": 3_000, "hours": 84, "warm_up_hours": 24}
DEMAND = {"spot": 0.3, "spot_hours": 6.0}  # of the zone's cores, by VMs that would run so long on the average


def cells(quick: bool) -> list[Cell]:
    """What the highest priority has alone; what comes of spot VMs; and how much evictions count against packing."""
    common = {**DEMAND, **(SMALL if quick else FULL)}
    kinds = [("gain", name) for name in (NO_SPOT, BEST_FIT, SAFEST)]
    kinds += [("balance", name) for name in (("3 %",) if quick else CHOICES)]
    return [
        Cell(
            f"{kind}-{name.replace(' %', '').replace(' ', '-')}-seed{seed}",
            {"kind": kind, "policy": name, "seed": seed, **common},
        )
        for kind, name in kinds
        for seed in ((1, 2, 3) if kind == "gain" and not quick else (1,))
    ]


def policy_of(name: str) -> Policy:
    """The default policy: as it is, without the safety score, or with another balance of packing and evictions."""
    if name == BEST_FIT:
        return changed("default", *WITHOUT_SAFEST)
    if name == AT_ONCE:
        return changed("default", *WITHOUT_SPARING)
    if name in AMONG:
        return changed("default", SHARE, f"among: {AMONG[name]}")
    return find_policy("default")


def with_spot(regular: Workload, cores: float, hours: float, seed: int) -> Workload:
    """Beside a workload, single spot VMs that would take so many cores if none were evicted or declined.

    They are of its types, as often as VMs of it are, come at any time, and run for so many hours on the average.
    """
    rng, lasts = np.random.default_rng([seed, 7]), hours * HOUR
    count = round(cores / (float(regular.amounts("cores").mean()) * lasts) * regular.span)
    leaders = np.repeat(regular.first[:-1], regular.sizes)
    by_vm = np.repeat(np.arange(regular.requests), regular.sizes).tolist()
    return assemble(
        f"{regular.name} and spot",
        types=regular.types,
        resources=regular.resources,
        request=np.concatenate((leaders, regular.vms + np.arange(count))),
        time=np.concatenate((regular.arrival_of_vms, rng.random(count) * regular.span)),
        tenant=[*(regular.tenants[number] for number in by_vm), *(f"spot-{i}" for i in range(count))],
        type=np.concatenate((regular.type, rng.choice(regular.type, count))).astype(np.int64),
        lifetime=np.concatenate((regular.lifetime, rng.exponential(lasts, count))),
        priority=np.repeat([0, 1], [regular.vms, count]),
        priorities=("", SPOT),
        source=f"{regular.source}; spot VMs generated, seed {seed}",
    )


def perform(cell: Cell, context: CellContext) -> list[dict[str, FigureValue]]:
    """One run."""
    policy, workload = cell["policy"], cut(find_workload("azure-2017"), end=cell["hours"] * HOUR)
    experiment = Experiment(
        name="priorities",
        workload="azure-2017",
        fleet=Fleet(machines=cell["machines"]),
        warm_up=f"{cell['warm_up_hours']}h",
        foresight="10m",
    )
    zone = zone_for(experiment, workload)
    if policy != NO_SPOT:
        workload = with_spot(workload, cell["spot"] * zone.cores, cell["spot_hours"], cell["seed"])
    result = simulate(experiment, policy, cell["seed"], context, policy_of, on=(workload, zone))
    return [{**{name: cell[name] for name in ("kind", "policy", "seed")}, **measures(result, workload)}]


def measures(result: RunResult, workload: Workload) -> dict[str, FigureValue]:
    """What a run comes to, for each priority."""
    found, warm_up = result.summary, float(result.facts["warm_up_s"])
    answered = result.requests.filter((result.requests["request"] >= 0) & (result.requests["time_s"] >= warm_up))
    number, vms = answered["request"].to_numpy(), answered["vms"].to_numpy()
    spot, placed = workload.priority[workload.first[number]] > 0, (answered["status"] == "placed").to_numpy()
    regular, rate = ~spot, found["evictions_per_vm_hour"]
    return {
        "acceptance": float(placed[regular].mean()),
        "fulfilment": float(vms[regular & placed].sum() / vms[regular].sum()),
        **{name: found[name] for name in ("utilisation", "utilisation_highest", "density_highest", "evictions")},
        "spot_acceptance": float(placed[spot].mean()) if spot.any() else None,
        "spot_vms": int((spot & placed).sum()),
        "evictions_per_hour": rate,  # that a spot VM runs
        "survival_hours": 1.0 / rate if rate else None,
    }


def find(rows: Sequence[FigureRow]) -> Findings:
    """What spot VMs bring, and what they cost whom."""
    gain = pick(rows, kind="gain")
    alone, unaware, safe = (pick(gain, policy=name) for name in (NO_SPOT, BEST_FIT, SAFEST))
    gained = _difference(safe, alone, "utilisation")
    rates = (numbers(own, "evictions_per_hour") for own in (safe, unaware))
    saved = [1 - a / b if b else 0.0 for a, b in zip(*rates, strict=True)]  # where nobody has to go, nothing is saved
    missed = [
        *([] if _unhurt(safe, alone, "acceptance", ACCEPTED) else ["acceptance of regular VMs unchanged"]),
        *([f"{100 * GAIN:.0f} points of utilisation"] if min(gained) < GAIN else []),
        *([f"{CUT:.0%} fewer evictions"] if np.mean(saved) < CUT else []),
    ]
    verdict = (
        f"utilisation rises from {mean(alone, 'utilisation'):.1%} to {mean(safe, 'utilisation'):.1%}, while "
        f"{mean(safe, 'acceptance'):.2%} of the regular requests are accepted ({mean(alone, 'acceptance'):.2%} without "
        f"spot VMs), at a density of {mean(safe, 'density_highest'):.1%} ({mean(alone, 'density_highest'):.1%}); the "
        f"safety score saves {np.mean(saved):.0%} of the evictions for each hour that spot VMs run"
    )
    return Findings(not missed, "; missed: ".join([verdict, *missed]), _tables(rows), REMARKS)


def _difference(rows: Sequence[FigureRow], base: Sequence[FigureRow], name: str) -> list[float]:
    """Seed by seed: the regular requests are the same."""
    return [a - b for a, b in zip(numbers(rows, name), numbers(base, name), strict=True)]


def _unhurt(rows: Sequence[FigureRow], base: Sequence[FigureRow], name: str, most: float) -> bool:
    """Whether it is not lower by more than the least that could matter, or by no more than chance explains."""
    change = estimate(_difference(rows, base, name))
    return change.mean >= -most or change.mean + (change.margin or 0.0) >= 0


def _tables(rows: Sequence[FigureRow]) -> list[ReportTable]:
    columns = {
        "regular accepted %": ("acceptance", 3, 100.0),
        "regular VMs placed %": ("fulfilment", 2, 100.0),
        "regular density %": ("density_highest", 2, 100.0),
        "regular utilisation %": ("utilisation_highest", 1, 100.0),
        "utilisation %": ("utilisation", 1, 100.0),
    }
    spot = {
        "spot accepted %": ("spot_acceptance", 1, 100.0),
        "evictions": ("evictions", 0, 1.0),
        "in 100 hours of a spot VM": ("evictions_per_hour", 2, 100.0),
        "hours until an eviction": ("survival_hours", 1, 1.0),
    }

    def table(
        title: str, first: str, own: Sequence[FigureRow], shown: dict[str, tuple[str, int, float]]
    ) -> ReportTable:
        lines = [
            [name, *(figure(pick(own, policy=name), *how) for how in shown.values())]
            for name in distinct(own, "policy")
        ]
        return ReportTable(title, [first, *shown], lines)

    of_both = ("regular accepted %", "regular density %", "utilisation %", *list(spot)[1:])
    gain = pick(rows, kind="gain")
    return [
        table("Two priorities", "spot VMs placed by", gain, columns),
        table("What becomes of spot VMs", "spot VMs placed by", gain, spot),
        table(
            "Packing against evictions",
            "cheapest of the best",
            _balance(rows),
            {n: (columns | spot)[n] for n in of_both},
        ),
    ]


def _balance(rows: Sequence[FigureRow]) -> list[FigureRow]:
    """What was tried of it, and the default policy, in order."""
    as_it_is = [{**row, "policy": AS_IT_IS} for row in pick(rows, kind="gain", policy=SAFEST)]
    tried = pick(rows, kind="balance")
    found = [
        [*pick(as_it_is, policy=name), *pick(tried, policy=name)] for name in (*CHOICES[:2], AS_IT_IS, *CHOICES[2:])
    ]
    return [row for some in found for row in some]


REMARKS = (
    (
        "Regular VMs are those of the Azure sample, on machines of 16 cores and 128 GiB. Spot VMs are generated: "
        "single ones of the same types, that come at any time and would run for six hours on the average; they would "
        "take 30 % of the cores if none were evicted or declined. An evicted VM does not come back."
    ),
    (
        "`best fit`: the default policy without `safest`. `safest`: the default policy. Regular VMs are placed by "
        "the same rules in all three."
    ),
    (
        "Cheapest of the best: where a regular VM finds no machine with room for it, the share of the machines, those "
        "that it packs best, of which the one is taken where those who have to go cost least (the slides' top X %); "
        "`10 %` is what the default policy has. `at once`: the same share, but VMs give way also while there is room "
        "elsewhere: the default policy without `nobody_gives_way`. All of these with `safest`."
    ),
    (
        "The shape holds if regular VMs are accepted as without spot VMs (no lower than chance explains over the "
        "seeds, or by at most 0.1 points), utilisation rises by at least 8 points with every seed, and the safety "
        "score saves at least a quarter of the evictions for each hour that spot VMs run. Density is told, not asked "
        "for: regular VMs go where nobody has to give way, so they are on more machines than by themselves."
    ),
    (
        "Hours until an eviction: the hours that all spot VMs ran, over the evictions. How well the score foresees how "
        "long single machines stay as they are is tested by brute force (tests/scenario/test_safety_scores.py)."
    ),
    "±: where the mean lies with 95 % confidence, over the seeds.",
)


def draw(rows: Sequence[FigureRow]) -> Figure:
    """Utilisation by priority, evictions, and packing against evictions."""
    shown, (used, evicted, balance) = new_figure(1, 3, title="Two priorities in one zone", height=4.4)
    gain = pick(rows, kind="gain")
    names = distinct(gain, "policy")
    levels = {name: pick(gain, policy=name) for name in names}
    regular = [100 * mean(own, "utilisation_highest") for own in levels.values()]
    total = [100 * mean(own, "utilisation") for own in levels.values()]
    used.bar(names, regular, color=PALETTE[0], label="regular")
    used.bar(names, np.subtract(total, regular), bottom=regular, color=PALETTE[1], label="spot")
    used.set_title("utilisation, %")
    used.set_ylim(0, 100)
    used.legend(loc="lower right")
    _bars(evicted, {name: numbers(levels[name], "evictions_per_hour") for name in names if name != NO_SPOT})
    evicted.set_title("evictions in 100 hours of a spot VM")
    compared = _balance(rows)
    for i, name in enumerate(distinct(compared, "policy")):
        own = pick(compared, policy=name)
        at = 100 * mean(own, "evictions_per_hour"), 100 * mean(own, "density_highest")
        balance.scatter(*at, s=26, color=PALETTE[2 if name == AT_ONCE else 0])
        balance.annotate(name, at, xytext=(5, 4 if i % 2 else -10), textcoords="offset points", fontsize=8)
    balance.set_title("density of regular VMs, %")
    balance.set_xlabel("evictions in 100 hours of a spot VM")
    balance.margins(x=0.2, y=0.15)
    return shown


def _bars(panel: Axes, values: dict[str, list[float]]) -> None:
    found = [estimate([100 * each for each in some]) for some in values.values()]
    heights, margins = [each.mean for each in found], [each.margin or 0.0 for each in found]
    panel.bar(list(values), heights, yerr=margins, color=PALETTE[1], width=0.5, error_kw={"linewidth": 1})


SLIDES_MULTIPRIORITY = Study(
    name="slides-multipriority",
    title="two priorities in one zone",
    source='the slides "Azure\'s VM Allocator Internals", on multi-priority allocation',
    question="What do VMs of low priority add, what do they cost the others, and where do they last?",
    cells=cells,
    perform=perform,
    find=find,
    draw=draw,
)
