"""The study on waste: its zone, its policies, and what it makes of rows."""

from __future__ import annotations

import pytest

from roost.experiments import waste
from roost.experiments.study import FigureRow, Findings
from roost.rules.policy import Policy
from roost.traces.type_mix import zone_mix


def test_cores_and_memory_of_the_even_zone_run_out_together() -> None:
    zone = waste.even_zone(1_000)
    mix = zone_mix(zone, "zone1")
    asked = [sum(weight * t.demand[""][r] for weight, t in zip(mix.weights, mix.types, strict=True)) for r in (0, 1)]
    assert len(zone.machines) == 1_000
    assert len(zone.clusters) == 5
    cores, memory = waste.EVEN_MACHINE
    assert memory / cores == pytest.approx(asked[1] / asked[0], rel=0.01)


@pytest.mark.parametrize("name", waste.INSTEAD)
def test_baselines_differ_from_the_default_policy_only_in_how_a_machine_is_chosen(name: str) -> None:
    own, default = waste.policy_of(name).rules, Policy.default().rules
    assert [each.rule.name for each in own.preferences] == {
        "best fit": ["best_fit"],
        "best fit on cores": ["best_fit"],
        "random": [],
        "worst fit": ["emptiest"],
    }[name]
    for part in ("validators", "cluster_validators", "cluster_preferences", "tenant_rules", "top_clusters"):
        assert getattr(own, part) == getattr(default, part)


def test_shipped_policies_are_taken_as_they_are() -> None:
    assert [waste.policy_of(name).name for name in waste.SHIPPED] == ["default", "dense"]


def test_the_default_policy_is_tried_without_buckets_of_best_fit() -> None:
    own = {each.rule.name: each.buckets for each in waste.policy_of(waste.UNBUCKETED).rules.preferences}
    default = {each.rule.name: each.buckets for each in Policy.default().rules.preferences}
    assert own == default | {"best_fit": None}


def rows(zone: str, **levels: float) -> list[FigureRow]:
    """Three seeds of each policy at such a level of waste; a baseline that is not named wastes a half."""
    usual = {"default": 0.2, **dict.fromkeys(waste.BASELINES, 0.5)} | {
        k.replace("_", " "): v for k, v in levels.items()
    }
    common: FigureRow = {"zone": zone, "in_use": 0.8, "utilisation": 0.7, "fulfilment": 1.0}
    return [
        {
            **common,
            "policy": policy,
            "seed": seed,
            "waste": level + seed / 1e4,
            "waste_cores": level,
            "waste_memory": 0.3,
        }
        for seed in (1, 2, 3)
        for policy, level in usual.items()
    ]


def saved_by_default(found: Findings) -> list[str]:
    """What the second table says of all resources."""
    return next(list(row) for row in found.tables[1].rows if row[:2] == ["default", "all resources"])


def test_a_saving_is_a_share_of_what_the_baseline_wastes() -> None:
    found = waste.find(rows("even", random=0.4))
    assert saved_by_default(found)[2].startswith("50.0")
    assert saved_by_default(found)[3].startswith("60.0")
    assert "50 ± 0 % (random), 60 ± 0 % (worst fit)" in found.verdict


def test_forty_per_cent_are_asked_for_only_where_all_resources_are_scarce() -> None:
    assert waste.find(rows("even")).holds
    found = waste.find(rows("even", random=0.25))
    assert not found.holds
    assert "missed where cores and memory run out together: 40% less than random" in found.verdict
    assert waste.find(rows("synthetic", random=0.25)).holds


def test_best_fit_over_several_resources_has_to_beat_best_fit_on_cores_where_both_are_scarce() -> None:
    found = waste.find(rows("even", best_fit_on_cores=0.2))
    assert not found.holds
    assert "less waste than best fit on cores, beyond chance" in found.verdict
    assert waste.find(rows("synthetic", best_fit_on_cores=0.2)).holds


def test_one_zone_that_fails_is_enough() -> None:
    assert not waste.find([*rows("even"), *rows("synthetic", random=0.1)]).holds


def test_a_zone_may_lack_resources_that_another_has() -> None:
    more = [{**row, "waste_disk": 0.9} for row in rows("synthetic")]
    found = waste.find([*rows("even"), *more])
    assert "disk" not in found.tables[0].headings
    assert "disk" in found.tables[2].headings
