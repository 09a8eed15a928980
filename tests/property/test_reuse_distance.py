"""The quick way to reuse distances agrees with their definition."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from roost.traces.analysis import FIRST, reuse_distances
from roost.traces.workload import Workload, WorkloadType


def by_definition(kinds: list[int]) -> list[int]:
    """For each, how many different types came since the last of its type."""
    found = []
    for i, kind in enumerate(kinds):
        before = [j for j in range(i) if kinds[j] == kind]
        found.append(len(set(kinds[before[-1] + 1 : i])) if before else FIRST)
    return found


@given(st.lists(st.integers(0, 6), max_size=60))
def test_reuse_distances_are_as_defined(kinds: list[int]) -> None:
    workload = Workload(
        name="any",
        types=[WorkloadType(str(i)) for i in range(7)],
        resources=[],
        arrival=np.zeros(len(kinds)),
        first=np.arange(len(kinds) + 1),
        type=np.array(kinds, np.int32),
        lifetime=np.ones(len(kinds)),
        tenants=[""] * len(kinds),
        priority=np.zeros(len(kinds), np.int8),
    )
    assert reuse_distances(workload).tolist() == by_definition(kinds)
