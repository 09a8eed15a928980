"""The analysis of workloads, on cases that were worked out by hand, and its figures."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from roost import InvalidInput
from roost.model.spans import DAY, HOUR
from roost.plotting import save, svg
from roost.traces.analysis import (
    FIRST,
    analyse,
    busiest_seconds_of,
    core_shares,
    lifetime_distribution,
    requests_by_hour,
    reuse_distances,
    reuse_shares,
    tenant_sizes,
    type_shares,
)
from roost.traces.figures import draw, duration
from roost.traces.generate import WorkloadShape, generate
from roost.traces.workload import ANY, Workload, WorkloadType


def small(
    kinds: str = "aabca", sizes: tuple[int, ...] = (1, 3, 1), arrival: tuple[float, ...] = (0.0, 10.0, 20.0)
) -> Workload:
    """VMs of types a (1 core), b (6 cores) and c (24 cores); the last stays."""
    types = [WorkloadType(n, {ANY: (cores,)}) for n, cores in (("a", 1.0), ("b", 6.0), ("c", 24.0))]
    lifetime = np.arange(1.0, len(kinds) + 1)
    lifetime[-1:] = np.inf
    return Workload(
        name="small",
        types=types,
        resources=["cores"],
        arrival=np.array(arrival),
        first=np.cumsum((0, *sizes)),
        type=np.array(["abc".index(k) for k in kinds], np.int32),
        lifetime=lifetime,
        tenants=[f"t{i}" for i in range(len(sizes))],
        priority=np.zeros(len(kinds), np.int8),
        source="a test",
    )


def test_reuse_distance_counts_the_other_types_since() -> None:
    assert reuse_distances(small("aabca")).tolist() == [FIRST, 0, FIRST, FIRST, 2]
    assert reuse_shares(small("aabca")).tolist() == [0.5, 0.0, 0.5]
    assert reuse_distances(small("abbba")).tolist() == [FIRST, FIRST, 0, 0, 1]


def test_types_and_cores_are_told_by_share() -> None:
    assert type_shares(small()) == {"a": 0.6, "b": 0.2, "c": 0.2}
    assert core_shares(small()) == {"1": 0.6, "2": 0.0, "4": 0.0, "8": 0.2, "10–19": 0.0, "≥ 20": 0.2}
    assert analyse(small()).mean_cores == pytest.approx(33 / 5)


def test_types_without_a_demand_have_no_cores() -> None:
    bare = replace(small(), types=[WorkloadType(n) for n in "abc"])
    found = analyse(bare)
    assert found.core_shares == {}
    assert found.type_cores == {}
    assert found.mean_cores == 0.0
    assert analyse(replace(small(), resources=["memory"])).core_shares == {}


def test_sizes_are_shares_of_requests() -> None:
    assert tenant_sizes(small()) == {1: pytest.approx(2 / 3), 3: pytest.approx(1 / 3)}
    assert analyse(small()).share_of_sizes(2) == pytest.approx(1 / 3)


def test_hours_are_averaged_over_the_weeks() -> None:
    # Two full weeks; in the first hour 4 requests the first week, 2 the second.
    arrival = np.sort(np.concatenate((np.arange(14 * 24) * HOUR + 1, [2, 3, 4], [7 * DAY + 2], [14 * DAY - 1])))
    busy = small("a" * len(arrival), (1,) * len(arrival), tuple(arrival))
    mean, std = requests_by_hour(busy)
    assert mean[0] == 3.0
    assert std[0] == 1.0
    assert mean[1] == 1.0
    assert std[1] == 0.0


def test_hours_of_days_that_a_workload_does_not_have_are_unknown() -> None:
    mean, _ = requests_by_hour(small("aaa", (1, 1, 1), (0.0, 1.0, 2 * HOUR - 1)))
    assert mean[:2].tolist() == [2.0, 1.0]
    assert np.isnan(mean[2:]).all()


def test_the_busiest_second_of_the_busiest_day() -> None:
    arrival = (0.5, DAY + 299.1, DAY + 299.2, DAY + 299.9, DAY + 300.0)
    day, seconds = busiest_seconds_of(small("aaaaa", (1,) * 5, arrival))
    assert day == 1
    assert seconds[:3].tolist() == [3, 1, 0]
    assert len(seconds) == 288


def test_the_distribution_of_lifetimes_leaves_out_those_that_stay() -> None:
    at, shares = lifetime_distribution(small())
    assert shares[0] == 0.2  # one of five has ended after a second
    assert shares[-1] == 0.8
    assert at[-1] == 4.0
    found = analyse(small())
    assert found.stays == 0.2
    assert found.lifetime_quantiles[0.5] == 3.0
    assert np.isinf(found.lifetime_quantiles[0.99])
    assert found.facts["lifetime_quantiles_s"]["0.99"] is None  # type: ignore[index]


def test_an_empty_workload_is_refused() -> None:
    with pytest.raises(InvalidInput, match="is empty"):
        analyse(small("", (), ()))


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(1.0, "1.0 seconds"), (90, "90 seconds"), (588, "9.8 minutes"), (7_200, "2.0 hours"), (np.inf, "for ever")],
)
def test_durations_are_said_as_people_do(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_the_figures_of_any_workload_are_drawn_and_come_out_the_same(tmp_path: Path) -> None:
    generated = generate(WorkloadShape(days=10, requests_per_day=500), seed=1)
    one, two = (svg(draw(analyse(generated))) for _ in range(2))
    assert one == two
    for panel in (
        "VM types",
        "Cores of a VM",
        "Reuse distance",
        "Tenants",
        "over a week",
        "Busiest second",
        "Lifetimes",
    ):
        assert panel in one
    save(draw(analyse(replace(small(), types=[WorkloadType(n) for n in "abc"]))), tmp_path / "small.png")
    assert (tmp_path / "small.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InvalidInput, match=r"\.svg or \.png"):
        save(draw(analyse(small())), tmp_path / "small.bmp")
