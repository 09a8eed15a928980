"""Generated workloads have the statistics that Protean (OSDI'20, §2.2) reports, within the tolerances stated here."""

import os
import subprocess
import sys
from dataclasses import replace
from itertools import islice, pairwise

import msgspec
import numpy as np
import pytest

from roost import InvalidInput, UnknownName, Zone
from roost.model.scarcity import SCARCITY
from roost.model.spans import DAY, HOUR, MINUTE
from roost.traces.analysis import analyse, core_shares, reuse_shares, type_shares
from roost.traces.generate import WorkloadShape, generate, rate_for, requests
from roost.traces.lifetimes import mean_within
from roost.traces.offering import BY_TYPE, offer_types
from roost.traces.standing import standing_population
from roost.traces.type_mix import CORES, LETTERS, OTHERS, ZONES, protean_mix
from roost.traces.workload import ANY, Workload, WorkloadType

POINT = 0.01  # a percentage point
MANY = 200_000
BUSY = WorkloadShape(days=1, requests_per_day=2_000_000)  # as Protean's busier zones


@pytest.fixture(scope="module", params=ZONES)
def workload(request: pytest.FixtureRequest) -> Workload:
    """Four weeks of one zone or the other."""
    return generate(WorkloadShape(mix=request.param, days=28, requests_per_day=MANY / 28), seed=3)


@pytest.fixture(scope="module")
def busy() -> Workload:
    """A day of a busy zone."""
    return generate(BUSY, seed=1)


def column_of(workload: Workload) -> int:
    return next(i for i, zone in enumerate(ZONES) if zone in workload.name)


def test_types_have_the_shares_of_table_2(workload: Workload) -> None:
    found = type_shares(workload)
    for name, _, *percents in LETTERS.values():
        assert found.get(name, 0.0) == pytest.approx(percents[column_of(workload)] / 100, abs=POINT)


def test_cores_have_the_shares_of_table_3(workload: Workload) -> None:
    for found, percents in zip(core_shares(workload).values(), CORES.values(), strict=True):
        assert found == pytest.approx(percents[column_of(workload)] / 100, abs=POINT)


@pytest.mark.parametrize("zone", ZONES)
def test_types_that_table_2_does_not_list_stay_below_2_percent(zone: str) -> None:
    mix = protean_mix(zone)
    shares = dict(zip((t.name for t in mix.types), mix.weights, strict=True))
    for name in (name for names in OTHERS.values() for name in names):
        assert 0 < shares[name] < 0.02


def test_a_synthetic_zone_knows_the_types_but_for_six_that_carry_what_they_take() -> None:
    zone = Zone.synthetic(100, seed=1)
    mix = protean_mix("zone1")
    assert [t.name for t in mix.types if t.name not in zone.vm_type_index] == [
        "X1-1", "X1-2", "X1-4", "X2-4", "X2-8", "X4-16",
    ]  # fmt: skip
    assert all(t.demand for t in mix.types)
    assert list(mix.resources) == [r.name for r in zone.resources]


def test_a_zone_offers_what_it_lacks_and_keeps_the_rest(workload: Workload) -> None:
    zone, before = Zone.synthetic(300, seed=1), Zone.synthetic(300, seed=1)
    assert offer_types(zone, workload) == ["X1-1", "X1-2", "X1-4", "X2-4", "X2-8", "X4-16"]
    assert offer_types(zone, workload) == []
    old = len(before.vm_types)
    assert zone.vm_types[:old] == before.vm_types
    assert np.array_equal(zone.demand[:old], before.demand)
    for field in before.clusters.dtype.names or ():
        if field not in BY_TYPE:
            assert np.array_equal(zone.clusters[field], before.clusters[field])
    assert np.array_equal(zone.clusters["demands"], zone.demand[:, zone.clusters["generation"]].transpose(1, 0, 2))
    for cluster in zone.clusters:
        whole = zone.generations[cluster["generation"]].capacity
        for t, need in enumerate(cluster["demands"].tolist()):
            amounts = zip(zone.resources, need, whole, strict=True)
            shares = [(SCARCITY.get(resource.name, 0.0), n / c) for resource, n, c in amounts if c]
            takes = sum(w * share for w, share in shares) / sum(w for w, _ in shares)
            assert cluster["takes"][t] == pytest.approx(takes)
            assert cluster["per_demand"][t].tolist() == pytest.approx([1 / n if n else 0 for n in need])
    assert np.array_equal(zone.clusters["supports"][:, :old], before.clusters["supports"])
    assert zone.clusters["supports"][:, old:].all()
    number = zone.vm_type("X2-8")
    assert zone.demand[number, 0].tolist() == [2_000, 8 * 1_024, 80, 0, 500]
    assert zone.supported[number].all()


def test_a_zone_cannot_offer_what_nobody_says_the_size_of(workload: Workload) -> None:
    bare = replace(workload, types=[WorkloadType(f"{t.name}?") for t in workload.types])
    with pytest.raises(UnknownName, match=r"D2\?"):
        offer_types(Zone.synthetic(100, seed=1), replace(bare, type=np.full(1, 9, np.int32)))
    with pytest.raises(InvalidInput, match="takes gpu"):
        offer_types(Zone.synthetic(100, seed=1), replace(workload, resources=["gpu", *workload.resources[1:]]))


def test_a_type_that_no_machine_is_large_enough_for_is_offered_nowhere(workload: Workload) -> None:
    huge = WorkloadType("huge", {ANY: (1_000.0, 1.0, 0.0, 0.0, 0.0)})
    zone = Zone.synthetic(100, seed=1)
    assert offer_types(zone, replace(workload, types=[huge], type=np.zeros(1, np.int32))) == ["huge"]
    assert not zone.clusters["supports"][:, -1].any()


def test_most_requests_repeat_the_type_before_them(workload: Workload) -> None:
    shares = reuse_shares(workload)
    assert 0.80 <= shares[0] <= 0.95
    assert shares[:5].sum() > 0.9
    firsts = workload.type[workload.first[:-1]]  # also if the VMs of a request count once
    assert 0.80 <= np.mean(firsts[1:] == firsts[:-1]) <= 0.95


def test_tenants_are_small_and_a_few_are_huge(workload: Workload) -> None:
    found = analyse(workload)
    assert found.share_of_sizes(1, 1) == pytest.approx(0.94, abs=0.005)
    assert found.share_of_sizes(1, 5) == pytest.approx(0.99, abs=0.003)
    assert 0 < found.share_of_sizes(100) < 0.001
    assert max(found.sizes) >= 200


def test_most_vms_run_for_minutes_some_for_weeks_a_few_for_ever(workload: Workload) -> None:
    found = analyse(workload)
    assert 5 * MINUTE < found.lifetime_quantiles[0.5] < 15 * MINUTE
    assert HOUR < found.lifetime_quantiles[0.9] < DAY
    assert 0.005 < np.mean(workload.lifetime > 7 * DAY) < 0.03
    assert found.stays == pytest.approx(0.003, abs=0.001)


def test_nights_and_weekends_are_quieter(workload: Workload) -> None:
    by_day = analyse(workload).hourly_mean.reshape(7, 24)
    night, afternoon = by_day[:5, 0:5].mean(), by_day[:5, 12:17].mean()
    assert 0.4 < night / afternoon < 0.7
    assert 0.65 < by_day[5:].mean() / by_day[:5].mean() < 0.85


def test_a_busy_zone_sees_more_than_2000_requests_a_second(busy: Workload) -> None:
    assert busy.requests == 2_000_000
    per_second = np.bincount(busy.arrival.astype(np.int64))
    assert 2_000 < per_second.max() < 4_000
    assert np.median(per_second) < 50


def test_spikes_grow_with_the_rate_unless_they_are_set() -> None:
    slow = WorkloadShape(requests_per_day=20_000)
    assert slow.spikes.peak == pytest.approx(BUSY.spikes.peak / 100)
    assert WorkloadShape(spike_peak=50).spikes.peak == 50
    assert WorkloadShape(spikes_per_day=0).spikes.requests == 0


def test_arrivals_rise_and_lie_within_the_days(busy: Workload) -> None:
    assert np.all(np.diff(busy.arrival) >= 0)
    assert busy.arrival[0] >= 0
    assert busy.arrival[-1] <= DAY


def test_a_tenth_is_spot_and_half_of_the_larger_tenants_want_to_be_spread(workload: Workload) -> None:
    assert workload.priorities == ("", "spot")
    assert np.mean(workload.priority[workload.first[:-1]]) == pytest.approx(0.1, abs=0.005)
    several = int((workload.sizes > 1).sum())
    assert len(workload.constraints) / several == pytest.approx(0.5, abs=0.02)
    for number, wanted in islice(workload.constraints.items(), 100):
        assert 2 <= wanted.min_fault_domains <= workload.sizes[number]


def test_a_request_is_what_an_allocator_takes(workload: Workload) -> None:
    number = next(iter(workload.constraints))
    request = workload.request(number)
    assert request.tenant == f"tenant-{number + 1}"
    assert len(request.vms) == workload.sizes[number] > 1
    assert len({vm.type for vm in request.vms}) == 1


def test_the_types_can_be_those_of_a_zone() -> None:
    zone = Zone.synthetic(100, seed=1)
    found = generate(WorkloadShape(days=1, requests_per_day=50_000), seed=2, zone=zone)
    assert {t.name for t in found.types} <= set(zone.vm_type_index)
    for share, percents in zip(core_shares(found).values(), CORES.values(), strict=True):
        assert share == pytest.approx(percents[0] / 100, abs=0.02)


def cores_in_use(workload: Workload, span: float) -> float:
    """Mean over the run."""
    return float(workload.amounts("cores") @ np.minimum(workload.lifetime, span - workload.arrival_of_vms)) / span


@pytest.mark.parametrize("stays", [0.0, 0.003, 0.05])
@pytest.mark.parametrize("filled", [False, True])
def test_the_rate_for_a_utilisation_gives_that_utilisation(stays: float, filled: bool) -> None:
    shape = WorkloadShape(days=10, stays=stays)
    cores = 50_000
    rate = rate_for(shape, cores, 0.6, filled=filled)
    found = generate(msgspec.structs.replace(shape, requests_per_day=rate), seed=4)
    used = cores_in_use(found, shape.span)
    if filled:
        used += cores_in_use(standing_population(found, 0.6 * cores, seed=5), shape.span)
    assert used / cores == pytest.approx(0.6, rel=0.05)


def test_vms_that_only_stay_spend_half_of_a_run_in_it() -> None:
    assert mean_within(1.0, 1_000.0) == pytest.approx(500.0)


def test_a_standing_population_takes_the_cores_asked_for_and_runs_long(workload: Workload) -> None:
    found = standing_population(workload, 30_000, seed=1)
    assert 30_000 - 32 <= found.amounts("cores").sum() <= 30_000
    assert found.span == 0
    assert np.all(found.sizes == 1)
    assert found.tenants[0] == "standing-1"
    assert np.all(np.isfinite(found.lifetime))
    assert np.median(found.lifetime) > 100 * np.median(workload.lifetime)
    again = standing_population(workload, 30_000, seed=1)
    assert np.array_equal(found.type, again.type)
    assert np.array_equal(found.lifetime, again.lifetime)
    assert standing_population(workload, 0, seed=1).vms == 0


def test_a_workload_of_which_nothing_stands_says_so(workload: Workload) -> None:
    gone = msgspec.structs.replace(WorkloadShape(days=0.1), requests_per_day=100)
    found = generate(gone, seed=1)
    found.lifetime[:] = 0
    with pytest.raises(InvalidInput, match="no VM that runs"):
        standing_population(found, 100, seed=1)


DIGEST = """
import hashlib
from roost.traces.generate import WorkloadShape, generate
from roost.traces.standing import standing_population
w = generate(WorkloadShape(days=1, requests_per_day=5_000), seed=9)
h = hashlib.sha256()
for each in (w, standing_population(w, 1_000, seed=2)):
    for column in (each.arrival, each.first, each.type, each.lifetime, each.priority):
        h.update(column.tobytes())
    h.update(repr((list(each.constraints.items()), each.types, each.tenants[3:5])).encode())
print(h.hexdigest())
"""


def test_the_same_seed_gives_the_same_workload_in_every_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_another_seed_gives_another_workload() -> None:
    shape = WorkloadShape(days=1, requests_per_day=1_000)
    assert not np.array_equal(generate(shape, 1).arrival, generate(shape, 2).arrival)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mix", "zone3"), ("days", 0), ("days", "seven"), ("requests_per_day", -1), ("requests_per_day", float("nan")),
        ("stays", 1.5), ("spot", -0.1), ("spread", 2), ("daily", 1.1), ("weekly", True), ("spikes_per_day", -1),
        ("spike_seconds", 0), ("spike_seconds", 1.5), ("spike_peak", 1e9), ("days", 10_000_000),
    ],
)  # fmt: skip
def test_a_shape_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidInput) as refused:
        WorkloadShape(**{field: value})  # type: ignore[arg-type]
    assert refused.value.where == field


def test_spikes_cannot_be_most_of_a_workload() -> None:
    with pytest.raises(InvalidInput, match="would come in spikes"):
        WorkloadShape(requests_per_day=1_000, spike_peak=5_000)


def test_a_shape_with_an_unknown_field_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="per_day"):
        msgspec.convert({"per_day": 3}, WorkloadShape)


def test_the_smallest_workload_has_one_request() -> None:
    found = generate(WorkloadShape(days=0.001, requests_per_day=1), seed=1)
    assert found.requests == 1
    assert analyse(found).requests == 1


@pytest.fixture(scope="module")
def stream() -> list[tuple[str, int, int]]:
    """What the demo and the benchmarks play: type, cores and number of VMs of each request."""
    zone = Zone.synthetic(100, seed=1)
    cores = {t.name: round(max(d[0] for d in t.demand.values()) / 1000) for t in zone.vm_types}
    return [(r.vms[0].type, cores[r.vms[0].type], len(r.vms)) for r in islice(requests(zone, seed=5), 60_000)]


def test_cores_of_the_endless_stream_follow_table_3(stream: list[tuple[str, int, int]]) -> None:
    for cores, percents in CORES.items():
        share = sum(c == cores for _, c, _ in stream) / len(stream)
        assert share == pytest.approx(percents[0] / 100, abs=0.02)


def test_the_endless_stream_repeats_itself(stream: list[tuple[str, int, int]]) -> None:
    assert sum(a[0] == b[0] for a, b in pairwise(stream)) / len(stream) > 0.8


def test_tenants_of_the_endless_stream_are_small_and_a_few_are_huge(stream: list[tuple[str, int, int]]) -> None:
    sizes = [size for _, _, size in stream]
    assert sum(s == 1 for s in sizes) / len(sizes) == pytest.approx(0.94, abs=0.005)
    assert sum(s <= 5 for s in sizes) / len(sizes) == pytest.approx(0.99, abs=0.003)
    assert max(sizes) >= 100


def test_the_same_seed_gives_the_same_stream() -> None:
    zone = Zone.synthetic(100, seed=1)
    assert list(islice(requests(zone, 7), 50)) == list(islice(requests(zone, 7), 50))
