"""The study on priorities: its demand, its policies, and what it makes of rows."""

from __future__ import annotations

import numpy as np
import pytest

from roost.experiments import priorities
from roost.experiments.study import FigureRow
from roost.model.spans import HOUR
from roost.rules.policy import Policy
from roost.traces.sources import find_workload
from roost.traces.window import cut


def test_spot_vms_come_beside_a_workload_that_stays_as_it_is() -> None:
    regular = cut(find_workload("azure-2017"), end=6 * HOUR)
    both = priorities.with_spot(regular, 2_000.0, 2.0, seed=1)
    spot = both.priority > 0
    asked = spot[both.first[:-1]]
    assert [both.request(number) for number in np.flatnonzero(~asked)[:500].tolist()] == [
        regular.request(number) for number in range(500)
    ]
    assert np.array_equal(both.arrival[~asked], regular.arrival)
    assert np.array_equal(both.lifetime[~spot], regular.lifetime)
    assert both.sizes[asked].max() == 1
    # Little's law: so many cores on the average, if all of them ran to their end.
    cores = float((both.amounts("cores") * both.lifetime)[spot].sum()) / regular.span
    assert cores == pytest.approx(2_000, rel=0.05)


def names(policy: str) -> list[str]:
    return [each.rule.name for each in priorities.policy_of(policy).rules.preferences]


def test_policies_differ_only_in_what_is_compared() -> None:
    default = names(priorities.SAFEST)
    assert default == [each.rule.name for each in Policy.default().rules.preferences]
    assert names(priorities.BEST_FIT) == [name for name in default if name != "safest"]
    assert names(priorities.AT_ONCE) == [name for name in default if name != "nobody_gives_way"]
    assert f"{Policy.default().rules.evictions.among:.0%}" == priorities.AS_IT_IS.replace(" ", "")
    for name, among in priorities.AMONG.items():
        assert names(name) == default
        assert priorities.policy_of(name).rules.evictions.among == float(among)


def rows(**changes: float) -> list[FigureRow]:
    """Three seeds for which all is well, but for what is changed of the default policy."""
    common: FigureRow = {"fulfilment": 1.0, "utilisation_highest": 0.6, "spot_acceptance": 0.9, "evictions": 9.0}
    levels: dict[str, dict[str, float]] = {
        priorities.NO_SPOT: {"utilisation": 0.6},
        priorities.BEST_FIT: {"utilisation": 0.8, "evictions_per_hour": 0.1, "survival_hours": 10.0},
        priorities.SAFEST: {"utilisation": 0.8, "evictions_per_hour": 0.05, "survival_hours": 20.0, **changes},
    }
    return [
        {**common, "kind": "gain", "policy": policy, "seed": seed, "acceptance": 0.99, "density_highest": 0.8, **level}
        for seed in (1, 2, 3)
        for policy, level in levels.items()
    ]


def test_the_shape_holds_if_spot_vms_cost_nobody_anything_and_last() -> None:
    found = priorities.find(rows())
    assert found.holds
    assert "saves 50% of the evictions" in found.verdict


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({"acceptance": 0.98}, "acceptance of regular VMs"),
        ({"utilisation": 0.67}, "8 points of utilisation"),
        ({"evictions_per_hour": 0.08}, "25% fewer evictions"),
    ],
)
def test_what_is_missed_is_told(changes: dict[str, float], missed: str) -> None:
    found = priorities.find(rows(**changes))
    assert not found.holds
    assert missed in found.verdict.split("; missed: ", 1)[1]
