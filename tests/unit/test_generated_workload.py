"""The generated workload has the statistics that Protean reports."""

from itertools import islice, pairwise

import pytest

from roost import Zone
from roost.traces.generate import CORE_SHARES, requests

SAMPLE = 60_000


@pytest.fixture(scope="module")
def sample() -> list[tuple[str, int, int]]:
    """Type, cores and number of VMs of each request."""
    zone = Zone.synthetic(100, seed=1)
    cores = {t.name: round(max(d[0] for d in t.demand.values()) / 1000) for t in zone.vm_types}
    return [(r.vms[0].type, cores[r.vms[0].type], len(r.vms)) for r in islice(requests(zone, seed=5), SAMPLE)]


def test_cores_follow_table_3(sample: list[tuple[str, int, int]]) -> None:
    for cores, percent in CORE_SHARES.items():
        share = sum(c == cores for _, c, _ in sample) / SAMPLE
        assert share == pytest.approx(percent / 100, abs=0.02)


def test_most_requests_ask_for_the_type_asked_for_last(sample: list[tuple[str, int, int]]) -> None:
    repeats = sum(a[0] == b[0] for a, b in pairwise(sample)) / SAMPLE
    assert repeats > 0.8


def test_tenants_are_small_and_a_few_are_huge(sample: list[tuple[str, int, int]]) -> None:
    sizes = [size for _, _, size in sample]
    assert sum(s == 1 for s in sizes) / SAMPLE == pytest.approx(0.94, abs=0.005)
    assert sum(s <= 5 for s in sizes) / SAMPLE == pytest.approx(0.99, abs=0.003)
    assert max(sizes) >= 100


def test_the_same_seed_gives_the_same_requests() -> None:
    zone = Zone.synthetic(100, seed=1)
    assert list(islice(requests(zone, 7), 50)) == list(islice(requests(zone, 7), 50))
