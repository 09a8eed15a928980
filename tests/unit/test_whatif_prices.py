"""Shadow prices and stranding: against bases tried one by one, and against machines looked at one by one."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from roost.model.errors import InvalidInput
from roost.model.stranded import Stranding
from roost.model.zone import Zone
from roost.rules.policy import SHIPPED, Policy
from roost.whatif.linear import maximise
from roost.whatif.prices import hand_set, shadow_prices, with_weights
from roost.whatif.stranding import NOTHING, mean_demand, report_stranding

MIX = {0: 5, 13: 10, 14: 10, 20: 3}


def best_corner(c: NDArray[np.float64], a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """The best of all corners, each tried."""
    rows, columns = a.shape
    table = np.hstack([a, np.eye(rows)])
    worth = np.concatenate([c, np.zeros(rows)])
    best = 0.0
    for basis in map(list, combinations(range(columns + rows), rows)):
        try:
            x = np.linalg.solve(table[:, basis], b)
        except np.linalg.LinAlgError:
            continue
        if (x >= -1e-9).all():
            best = max(best, float(worth[basis] @ x))
    return best


@pytest.mark.parametrize("seed", range(30))
def test_the_simplex_method_finds_the_best_corner_and_prices_that_prove_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 5, (4, 5)).astype(float)
    a[0] += 1.0  # so that there is a bound
    b, c = rng.integers(0, 9, 4).astype(float), rng.integers(-2, 6, 5).astype(float)
    found = maximise(c, a, b)
    assert found.value == pytest.approx(best_corner(c, a, b))
    assert (a @ found.x <= b + 1e-9).all()
    assert (found.x >= -1e-9).all()
    assert c @ found.x == pytest.approx(found.value)
    # Prices of the rows under which nothing is worth making, and all of b is worth what is made: nothing is better.
    assert (found.prices @ a >= c - 1e-9).all()
    assert found.prices @ b == pytest.approx(found.value)


def worn(zone: Zone, seed: int, scarce: str = "") -> NDArray[np.void]:
    """Machine rows with something on most of them; there is little of the scarce resource."""
    rng, rows = np.random.default_rng(seed), zone.machines.copy()
    rows["vms"] = rng.integers(0, 4, len(rows))
    left = np.where(rows["vms"][:, None] > 0, rng.random(rows["capacity"].shape), 1.0)
    free = (left * rows["capacity"]).astype(np.int32)
    if scarce:
        free[:, [r.name for r in zone.resources].index(scarce)] //= 20
    rows["free"] = free[:, None, :]
    return rows


def test_what_is_plentiful_costs_nothing_and_what_is_short_costs_most() -> None:
    zone = Zone.synthetic(200)
    plenty = worn(zone, 1)
    plenty["free"] = plenty["capacity"][:, None, :]
    free = shadow_prices(zone, plenty, MIX).weights
    assert free == {"cores": 1.0, "memory": 0.0, "disk": 0.0, "ssd": 0.0, "nic": 0.0}
    short = shadow_prices(zone, worn(zone, 1, "memory"), MIX)
    assert short.weights["memory"] == max(short.weights.values()) > 1.0


def test_no_more_fit_than_the_prices_say() -> None:
    """Weak duality, with whole VMs put on machine by machine."""
    zone = Zone.synthetic(100)
    rows = worn(zone, 3)
    most = shadow_prices(zone, rows, MIX).more
    free = rows["free"][:, -1].astype(np.int64).copy()
    placed = 0
    while True:
        for t, count in MIX.items():
            for _ in range(count):
                demand = zone.demand[t][rows["generation"]]
                fits = np.flatnonzero((free >= demand).all(axis=1) & (zone.supported[t][rows["generation"]] > 0))
                if not len(fits):
                    assert 0 < placed <= most
                    return
                free[fits[0]] -= demand[fits[0]]
                placed += 1


def test_a_full_zone_has_no_prices() -> None:
    zone = Zone.synthetic(100)
    rows = zone.machines.copy()
    rows["free"] = 0
    with pytest.raises(InvalidInput, match="no ready machine has anything free"):
        shadow_prices(zone, rows, MIX)


def test_a_policy_with_other_weights_is_the_same_policy_otherwise() -> None:
    text = (SHIPPED / "default.yaml").read_text()
    weights = {"cores": 1.0, "memory": 2.5}
    priced = Policy.parse(with_weights(text, weights, "priced"))
    default = Policy.named("default")
    assert (priced.name, hand_set(with_weights(text, weights, "x"))) == ("priced", weights)
    assert [str(b.rule.name) for b in priced.rules.preferences] == [str(b.rule.name) for b in default.rules.preferences]
    assert [b.buckets for b in priced.rules.preferences] == [b.buckets for b in default.rules.preferences]
    assert hand_set(text)["memory"] == 0.8
    with pytest.raises(InvalidInput, match="has no rule best_fit"):
        with_weights((SHIPPED / "spread.yaml").read_text(), weights, "x")


def test_stranding_is_what_each_machine_says_for_itself() -> None:
    zone = Zone.synthetic(200)
    rows = worn(zone, 4, "memory")
    found = report_stranding(zone, rows, MIX, worst=len(rows))
    mean, names = mean_demand(zone, MIX), [r.name for r in zone.resources]
    everything = rows["capacity"].sum(axis=0)
    by_name = {each.machine: each for each in found.worst}
    beside, stranded, bound = np.zeros(len(names)), np.zeros(len(names)), dict.fromkeys([*names, NOTHING], 0)
    for m, row in enumerate(rows):
        if not row["vms"]:
            assert zone.machine_names[m] not in by_name
            continue
        one, free = by_name[zone.machine_names[m]], row["free"][-1]
        fits = {names[r]: free[r] / mean[row["generation"], r] for r in range(len(names)) if mean[row["generation"], r]}
        binding = min(fits, key=lambda name: fits[name])
        assert fits[one.binding] == fits[binding]
        bound[one.binding] += 1
        left = np.array([0 if n == one.binding else free[r] for r, n in enumerate(names)], float)
        for r, name in enumerate(names):
            if name in fits and name != one.binding:
                left[r] -= fits[binding] * mean[row["generation"], r]
        beside += left
        useless = not any(
            zone.supported[t, row["generation"]] and (free >= zone.demand[t, row["generation"]]).all() for t in MIX
        )
        assert one.stranded == useless
        stranded += free * useless
    assert found.bound_by == {name: count for name, count in bound.items() if count}
    for r, name in enumerate(names):
        assert found.beside[name] == pytest.approx(beside[r] / everything[r])
        assert found.stranded[name] == pytest.approx(stranded[r] / everything[r])
    assert [each.lost for each in found.worst] == sorted((each.lost for each in found.worst), reverse=True)


def test_types_that_run_nowhere_strand_nothing_they_could_not_use() -> None:
    zone = Zone.synthetic(100)
    everything = Stranding(zone, range(len(zone.vm_types)))
    free = zone.machines["capacity"].astype(np.int64)
    assert not everything.useless(free, zone.machines["generation"]).any()
    assert everything.useless(np.zeros_like(free), zone.machines["generation"]).all()
