"""How each rule narrows the zone down to the machines that may be chosen."""

from dataclasses import dataclass
from math import ceil
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from roost.engine.choice import MOST_AMONG
from roost.engine.kernel.codes import INVALID
from roost.engine.rule import Rule
from roost.engine.ruleset import BoundRule, RuleSet
from roost.engine.selection import Engine, Judgement
from roost.engine.shape import Shape
from roost.engine.side_tables import TABLES
from roost.engine.view import View


@dataclass(frozen=True, slots=True)
class Stage:
    """One rule in the funnel: how many entered, how many it kept."""

    rule: str
    kind: Literal["validator", "tenant", "selection", "preference"]
    level: Literal["cluster", "machine"]
    entered: int
    kept: int


def cluster_stages(engine: Engine, view: View, judged: Judgement) -> list[Stage]:
    """The cluster validators, in clusters."""
    left, stages = len(view.clusters), []
    verdicts = judged.verdicts[view.clusters["first"]]
    for i, bound in enumerate(engine.rules.cluster_validators):
        out = int((verdicts == i).sum())
        stages.append(Stage(bound.rule.name, "validator", "cluster", left, left - out))
        left -= out
    return stages


def chosen_clusters(engine: Engine, view: View, shape: Shape, judged: Judgement) -> NDArray[np.int64]:
    """The best clusters that have a valid machine, best first: the same as the kernel chooses."""
    order = np.lexsort((engine.cluster_lots(shape), judged.cluster_keys))
    lowest = np.minimum.reduceat(np.where(judged.verdicts < 0, judged.keys, INVALID), view.clusters["first"])
    feasible = lowest < engine.rules.last_resort
    if not feasible.any():
        feasible = lowest < INVALID
    return order[feasible[order]][: engine.rules.top_clusters]


def overfills(view: View, shape: Shape, machine: int) -> bool:
    """Whether others have to give way on a machine if a VM comes to it."""
    row = view.machines[machine]
    return bool((row["free"][-1] < shape.row["demand"][0][row["generation"]]).any())


def as_good(rules: RuleSet, view: View, shape: Shape, chosen: int, keys: NDArray[np.int64]) -> int:
    """How many machines with the best of these keys counted as good as one another, as others had to give way.

    1 if nobody had to, on the machine that was chosen.
    """
    if not overfills(view, shape, chosen):
        return 1
    best = min(MOST_AMONG, max(1, ceil(rules.evictions.among * len(keys))))
    return min(MOST_AMONG, int((keys <= np.partition(keys, best - 1)[best - 1]).sum()))


def machine_stages(engine: Engine, view: View, judged: Judgement, chosen: NDArray[np.int64]) -> list[Stage]:
    """The machine validators, the tenant's rules, the selection of clusters, and the preferences, in machines."""
    rules = engine.rules
    first = len(rules.cluster_validators)
    counts = np.bincount(judged.verdicts[judged.verdicts >= first], minlength=first + 1)
    left = int(((judged.verdicts < 0) | (judged.verdicts >= first)).sum())
    stages = []
    for i, bound in enumerate((*rules.validators, *rules.tenant_rules), start=first):
        out = int(counts[i]) if i < len(counts) else 0
        kind: Literal["validator", "tenant"] = "tenant" if bound.rule.kind == "tenant" else "validator"
        stages.append(Stage(bound.rule.name, kind, "machine", left, left - out))
        left -= out
    looked_at = np.isin(view.machines["cluster"], chosen)
    keys, others = (judged.keys[(judged.verdicts < 0) & some] for some in (looked_at, ~looked_at))
    sparing = bool((keys < rules.last_resort).any() and (others >= rules.last_resort).any())
    spared = " where nobody gives way" if sparing else ""
    stages.append(Stage(f"best {rules.top_clusters} clusters{spared}", "selection", "machine", left, len(keys)))
    for bound, shift in zip(rules.preferences, rules.shifts, strict=True):
        entered = len(keys)
        if entered:
            buckets = keys >> shift
            keys = keys[buckets == buckets.min()]
        stages.append(Stage(bound.rule.name, "preference", "machine", entered, len(keys)))
    return stages


def deciding(shifts: tuple[int, ...], winner: int, loser: int) -> int | None:
    """The index of the first preference in which two keys differ, None if they are equal."""
    assert winner < INVALID > loser
    differ = winner ^ loser
    for i, shift in enumerate(shifts):
        if differ >> shift:
            return i
    return None


def plain(record: Any) -> SimpleNamespace:
    """A row as plain Python numbers and lists, for running a rule uncompiled."""
    return SimpleNamespace(**{name: record[name].tolist() for name in record.dtype.names})


def beside(rule: Rule, view: View, machine: int, row: Any, vm: Any) -> list[Any]:
    """What a rule is given of a machine besides two rows: its cluster, side tables, derived columns, uncompiled."""
    given = [plain(view.clusters[row.cluster])] if rule.of_cluster else []
    given += [plain(view.tables[TABLES.index(table)][table.place(row, machine)]) for table in rule.reads]
    return given + [fact(need, view, machine, row, vm) for need in rule.needs]


def fact(column: Rule, view: View, machine: int, row: Any, vm: Any) -> float:
    """What a derived column says of a machine, by the same functions, uncompiled."""
    return float(
        column.function(row, vm, *beside(column, view, machine, row, vm), *BoundRule(column).constants(view.zone))
    )


def scores(engine: Engine, view: View, shape: Shape, machine: int) -> list[float]:
    """A machine's score for every preference, by the same functions, uncompiled."""
    vm, row = plain(shape.row[0]), plain(view.machines[machine])
    rack = plain(view.racks[row.rack])
    return [
        float(
            bound.rule.function(
                rack if bound.rule.scope == "rack" else row,
                vm,
                *beside(bound.rule, view, machine, row, vm),
                *bound.constants(view.zone),
            )
        )
        for bound in engine.rules.preferences
    ]
