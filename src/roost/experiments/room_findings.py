"""What the study of room for growth and healing finds: whether empty machines tell what utilisation does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from roost.admission.thresholds import Targets
from roost.experiments.study import FigureRow, Findings, ReportTable, figure, mean, numbers, pick, rises
from roost.plotting import DASHES, PALETTE, QUIET, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


TARGETS = Targets(healing=0.01, scale_out=0.05, window_hours=24.0)


def find(rows: Sequence[FigureRow]) -> Findings:
    """Whether empty machines tell what utilisation does not, and failures fall as thresholds rise."""
    healing, growth = (_sweep(rows, kind) for kind in ("healing", "growth"))
    without, having = _by_emptiness(pick(rows, kind="state"))
    history = pick(rows, kind="history")
    fall = (
        _falls(healing, "healing_failures") and _falls(growth, "scale_out_failures") and _falls(growth, "utilisation")
    )
    tells = mean(having, "healable") > 0.999 and mean(having, "hosts") == 1.0 and mean(without, "hosts") == 0.0
    tells &= mean(without, "healable") < 0.999 and _overlap(without, having) > 0
    kept = mean(history, "bad_days") <= TARGETS.scale_out and mean(history, "healing_failures") <= TARGETS.healing
    failed, unhealed = (_ends(growth, "scale_out_failures"), _ends(healing, "healing_failures"))
    verdict = (
        f"with an empty machine {mean(having, 'healable'):.1%} of the single failures can be healed, without one "
        f"{mean(without, 'healable'):.1%}, at utilisations that overlap by {_overlap(without, having):.0%}; "
        f"failed scale-outs fall from {failed[0]:.1%} to {failed[1]:.1%}, failed healings from {unhealed[0]:.2%} to "
        f"{unhealed[1]:.2%}; with thresholds from history {mean(history, 'bad_days'):.1%} of the days have a failed "
        f"scale-out (target {TARGETS.scale_out:.0%}), and {mean(history, 'healing_failures'):.2%} of the healings fail "
        f"(target {TARGETS.healing:.0%})"
    )
    return Findings(fall and tells and kept, verdict, _tables(without, having, healing, growth, history), REMARKS)


REMARKS = [
    (
        "The paper (slides) draws failure rates and utilisation against thresholds, without numbers; its example, "
        "two thirds used with and without an empty machine, is a test (tests/scenario/test_empty_machines.py)."
    ),
    (
        "The shape: the more empty machines are kept, the fewer failures and the less utilisation; with one, every "
        "single failure can be healed and a VM of any size hosted, without one not, whatever the utilisation."
    ),
    (
        "A single cluster of equal machines; new deployments ask for more than there is, so that only thresholds hold "
        "them back. Failures are exaggerated, those of racks included. States are of clusters without thresholds, "
        "filled to different degrees by a policy that packs and one that spreads out."
    ),
    (
        "All of it is simulated, with the service's own agent and duties. A scale-out fails as a whole, if one of its "
        "VMs finds no machine. A healing is of one VM, and fails if the VM does not run elsewhere within a minute: "
        "then it waits, and is healed later or gets its machine back. Those that are never healed left, or the run "
        "ended, while they waited."
    ),
    "Whether a single failure can be healed is tried on a copy of the cluster, by the service's healer.",
]


def _sweep(rows: Sequence[FigureRow], kind: str) -> dict[int, list[FigureRow]]:
    """The rows of a sweep, by the machines of the buffer that it varies."""
    found: dict[int, list[FigureRow]] = {}
    for row in pick(rows, kind=kind):
        new, scale_out = int(row["new"] or 0), int(row["scale_out"] or 0)
        found.setdefault(scale_out if kind == "healing" else new - scale_out, []).append(row)
    return dict(sorted(found.items()))


def _falls(sweep: dict[int, list[FigureRow]], name: str) -> bool:
    means = [mean(some, name) for some in sweep.values()]
    return rises(means[::-1]) and means[0] > means[-1]


def _ends(sweep: dict[int, list[FigureRow]], name: str) -> tuple[float, float]:
    """With the smallest and with the largest buffer."""
    first, *_, last = sweep.values()
    return mean(first, name), mean(last, name)


def _by_emptiness(states: Sequence[FigureRow]) -> tuple[list[FigureRow], list[FigureRow]]:
    """Those without an empty machine, and those that have one."""
    return [row for row in states if row["empty"] == 0], [row for row in states if row["empty"] != 0]


def _overlap(without: Sequence[FigureRow], having: Sequence[FigureRow]) -> float:
    """How far the utilisation of those with an empty machine reaches into that of those without."""
    return max(numbers(having, "utilisation"), default=0.0) - min(numbers(without, "utilisation"), default=1.0)


def _tables(
    without: Sequence[FigureRow],
    having: Sequence[FigureRow],
    healing: dict[int, list[FigureRow]],
    growth: dict[int, list[FigureRow]],
    history: Sequence[FigureRow],
) -> list[ReportTable]:
    states = [
        [
            name, f"{len(some):,}", f"{min(used, default=0):.0%} to {max(used, default=0):.0%}",
            f"{mean(some, 'healable'):.1%}", f"{mean(some, 'hosts'):.1%}",
        ]
        for name, some in (("none", without), ("some", having))
        for used in [numbers(some, "utilisation")]
    ]  # fmt: skip
    swept = [
        "utilisation %",
        "empty machines",
        "scale-outs failed %",
        "days with one %",
        "healings failed %",
        "never healed %",
    ]

    def measured(some: Sequence[FigureRow]) -> list[str]:
        return [
            figure(some, "utilisation", 1, 100), figure(some, "empty", 1), figure(some, "scale_out_failures", 2, 100),
            figure(some, "bad_days", 1, 100), figure(some, "healing_failures", 3, 100),
            figure(some, "never_healed", 3, 100),
        ]  # fmt: skip

    def by_size(sweep: dict[int, list[FigureRow]]) -> list[list[str]]:
        return [[str(spare), *measured(some)] for spare, some in sweep.items()]

    computed = [[figure(history, "new", 1), figure(history, "scale_out", 1), *measured(history)]]
    seen = ["empty machines", "states", "utilisation", "failures that can be healed", "room for a whole machine"]
    return [
        ReportTable("Utilisation against empty machines", seen, states),
        ReportTable("Machines kept for growth, and 2 for healing", ["machines", *swept], by_size(growth)),
        ReportTable("Machines kept for healing, and 1 for growth", ["machines", *swept], by_size(healing)),
        ReportTable("Thresholds from history", ["new", "scale-out", *swept], computed),
    ]


def draw(rows: Sequence[FigureRow]) -> Figure:
    """What utilisation tells, what thresholds bring, and what they cost."""
    shown, (states, growth, healing, cost) = new_figure(2, 2, title="Room for growth and healing", height=8.0)
    without, having = _by_emptiness(pick(rows, kind="state"))
    for some, colour, name in ((having, PALETTE[0], "some empty machines"), (without, PALETTE[1], "none")):
        used, healed = ([100 * value for value in numbers(some, column)] for column in ("utilisation", "healable"))
        states.scatter(used, healed, s=14, color=colour, label=name, alpha=0.6)
    states.set_title("single failures that can be healed, %")
    states.set_xlabel("utilisation, %")
    states.legend(loc="lower left")
    _lines(growth, _sweep(rows, "growth"), {"scale_out_failures": "scale-outs", "bad_days": "days with one"})
    growth.set_title("failed scale-outs, %")
    growth.set_xlabel("empty machines kept for growth")
    _lines(healing, _sweep(rows, "healing"), {"healing_failures": "healings"})
    healing.set_title("failed healings, %")
    healing.set_xlabel("empty machines kept for healing")
    for i, kind in enumerate(("growth", "healing", "history")):
        own = pick(rows, kind=kind)
        used = [100 * each for each in numbers(own, "utilisation")]
        cost.scatter(numbers(own, "new"), used, s=22, color=PALETTE[i], marker="os^"[i], label=kind)
    cost.set_title("utilisation, %")
    cost.set_xlabel("empty machines at which new deployments stop")
    cost.legend()
    return shown


def _lines(panel: Axes, sweep: dict[int, list[FigureRow]], columns: dict[str, str]) -> None:
    for i, (name, label) in enumerate(columns.items()):
        heights = [100 * mean(some, name) for some in sweep.values()]
        panel.plot(list(sweep), heights, color=PALETTE[i], linestyle=DASHES[i], marker="o", label=label)
    panel.set_ylim(bottom=0)
    panel.axhline(0, color=QUIET, linewidth=0.8)
    if len(columns) > 1:
        panel.legend()
