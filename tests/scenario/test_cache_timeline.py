"""Protean's Table 4 and Figure 8: which objects a stream of requests creates, finds and shares, and when they go.

Two traits, x and y, and two rules: R1 depends on both, R2 on x only. Each has its state in a derived column.
"""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from roost.engine.selection import CacheLimits
from roost.model.request import VM, Request
from roost.placing.allocator import Allocator
from tests.property.world import Clock
from tests.property.zones import TABLE_4, TINY, ClusterPlan, build, policy

ZONE = build(TINY, (ClusterPlan(0, 0, (3, 3)), ClusterPlan(1, 0, (4,))))
X1, X2, Y1, Y2 = 1, 2, 1, 2
R1, R2 = 0, 1  # the order in which the policy's rules need their columns


class Timeline:
    """An allocator that serves one request after the other, and what that did to its caches."""

    def __init__(self, limits: CacheLimits | None = None) -> None:
        self.clock = Clock()
        self.allocator = Allocator(ZONE, policy(TABLE_4), seed=4, limits=limits, clock=self.clock)
        self.engine = self.allocator.engine
        self.served = 0
        traits = self.engine.rules.machine_traits
        assert traits == ("priority", "vm_type", "x", "y")
        assert [column.name for column in self.engine.rules.columns] == ["r1", "r2"]

    def request(self, x: int, y: int) -> dict[str, tuple[int, int]]:
        """Serve req(x, y); returns the hits and misses that it caused, for each class of objects."""
        before = self.counts()
        self.served += 1
        assert self.allocator.allocate(Request(f"t{self.served}", (VM("small", traits={"x": x, "y": y}),))).ok
        self.allocator.check_invariants()
        after = self.counts()
        return {name: (after[name][0] - hits, after[name][1] - misses) for name, (hits, misses) in before.items()}

    def counts(self) -> dict[str, tuple[int, int]]:
        """Hits and misses so far."""
        stats = self.engine.cache_stats()
        assert all(s.requests == s.hits + s.misses for s in stats.values())
        return {
            name: (stats[key].hits, stats[key].misses)
            for name, key in (("Eval", "evaluation"), ("R1", "column r1"), ("R2", "column r2"))
        }

    @property
    def evaluations(self) -> list[Hashable]:
        """The trait values x and y of each evaluation, least recently used first."""
        keys = self.engine.evaluations.keys()
        return [key[2:] for key in keys if isinstance(key, tuple)]

    @property
    def columns(self) -> set[Hashable]:
        """Each rule object: the number of its rule and the values of its traits."""
        return set(self.engine.column_pool.keys())


def test_three_requests_create_hit_and_share_exactly_the_objects_of_table_4() -> None:
    line = Timeline()
    assert (line.evaluations, line.columns) == ([], set())

    assert line.request(X1, Y1) == {"Eval": (0, 1), "R1": (0, 1), "R2": (0, 1)}
    assert line.evaluations == [(X1, Y1)]
    assert line.columns == {(R1, X1, Y1), (R2, X1)}

    assert line.request(X1, Y2) == {"Eval": (0, 1), "R1": (0, 1), "R2": (1, 0)}  # R2(x1) is shared
    assert line.evaluations == [(X1, Y1), (X1, Y2)]
    assert line.columns == {(R1, X1, Y1), (R1, X1, Y2), (R2, X1)}

    # The footnote: Eval(x1, y1) needs updating, so R1(x1, y1) and R2(x1) are requested, and there.
    assert line.request(X1, Y1) == {"Eval": (1, 0), "R1": (1, 0), "R2": (1, 0)}
    assert line.evaluations == [(X1, Y2), (X1, Y1)]
    assert line.columns == {(R1, X1, Y1), (R1, X1, Y2), (R2, X1)}


def test_an_evaluation_that_is_up_to_date_asks_for_no_rule_object() -> None:
    line = Timeline()
    line.request(X1, Y1)
    assert line.allocator.refresh(1) == 1  # the machine that the request changed
    assert line.allocator.refresh(1) == 0
    assert line.request(X1, Y1) == {"Eval": (1, 0), "R1": (0, 0), "R2": (0, 0)}


def test_two_evaluations_share_one_object_for_r2_and_have_their_own_for_r1() -> None:
    line = Timeline()
    line.request(X1, Y1)
    line.request(X1, Y2)
    first, second = map(line.engine.evaluations.peek, line.engine.evaluations.keys())
    assert first is not None
    assert second is not None
    assert first.slots[R2] == second.slots[R2]
    assert first.slots[R1] != second.slots[R1]
    assert first.slots[R1] == line.engine.column_pool.peek((R1, X1, Y1))
    assert second.slots[R1] == line.engine.column_pool.peek((R1, X1, Y2))


def test_another_value_of_x_shares_nothing() -> None:
    line = Timeline()
    line.request(X1, Y1)
    assert line.request(X2, Y1) == {"Eval": (0, 1), "R1": (0, 1), "R2": (0, 1)}
    assert line.columns == {(R1, X1, Y1), (R2, X1), (R1, X2, Y1), (R2, X2)}


def test_the_least_recently_used_evaluation_goes_first_and_its_rule_objects_stay() -> None:
    line = Timeline(CacheLimits(evaluations=2))
    line.request(X1, Y1)
    line.request(X1, Y2)
    line.request(X1, Y1)
    line.request(X2, Y1)
    assert line.evaluations == [(X1, Y1), (X2, Y1)]
    assert line.engine.cache_stats()["evaluation"].evictions == 1
    assert (R1, X1, Y2) in line.columns
    assert line.request(X1, Y2) == {"Eval": (0, 1), "R1": (1, 0), "R2": (1, 0)}


def test_the_least_recently_used_rule_object_goes_first_and_is_made_again_when_wanted() -> None:
    line = Timeline(CacheLimits(columns=4))
    line.request(X1, Y1)
    line.request(X1, Y2)
    line.request(X2, Y1)  # five objects in all, and R2(x1) was used after both R1 objects
    assert line.columns == {(R1, X1, Y2), (R2, X1), (R1, X2, Y1), (R2, X2)}
    assert line.engine.column_pool.stats.evictions == 1
    assert line.evaluations == [(X1, Y1), (X1, Y2), (X2, Y1)]
    line.request(X1, Y1)
    assert line.columns == {(R1, X1, Y1), (R2, X1), (R1, X2, Y1), (R2, X2)}
    assert line.engine.column_pool.stats.misses == 6


def test_an_object_that_is_wanted_once_counts_as_requested_once() -> None:
    line = Timeline(CacheLimits(columns=2))
    line.request(X1, Y1)
    line.request(X2, Y1)  # drives both objects of x1 out
    assert line.request(X1, Y1) == {"Eval": (1, 0), "R1": (0, 1), "R2": (0, 1)}


def test_evictions_of_rule_objects_are_counted_with_their_rule() -> None:
    line = Timeline(CacheLimits(columns=2))
    line.request(X1, Y1)
    line.request(X2, Y1)
    stats = line.engine.cache_stats()
    assert (stats["column r1"].evictions, stats["column r2"].evictions) == (1, 1)


def test_objects_go_when_nobody_has_used_them_for_the_age_that_is_allowed() -> None:
    line = Timeline(CacheLimits(max_idle=10))
    line.request(X1, Y1)
    line.clock.now = 6
    line.request(X1, Y2)
    line.clock.now = 10
    line.allocator.refresh(0)
    assert line.evaluations == [(X1, Y1), (X1, Y2)]
    line.clock.now = 12
    line.allocator.refresh(0)
    assert line.evaluations == [(X1, Y2)]
    assert line.columns == {(R1, X1, Y2), (R2, X1)}
    line.clock.now = 17
    line.allocator.refresh(0)
    assert (line.evaluations, line.columns) == ([], set())
    assert line.request(X1, Y1) == {"Eval": (0, 1), "R1": (0, 1), "R2": (0, 1)}


def test_a_miss_makes_room_by_age_too() -> None:
    line = Timeline(CacheLimits(max_idle=10))
    line.request(X1, Y1)
    line.clock.now = 11
    line.request(X2, Y2)
    assert line.evaluations == [(X2, Y2)]
    assert line.columns == {(R1, X2, Y2), (R2, X2)}


def test_rule_objects_that_an_evaluation_keeps_asking_for_do_not_grow_old() -> None:
    line = Timeline(CacheLimits(max_idle=10))
    for now in range(0, 21, 5):
        line.clock.now = now
        line.request(X1, Y1)
    assert line.counts()["R1"] == (4, 1)  # the footnote: each update requested it
    line.allocator.refresh(0)
    assert line.evaluations == [(X1, Y1)]
    assert line.columns == {(R1, X1, Y1), (R2, X1)}


def test_rule_objects_that_an_evaluation_keeps_asking_for_are_not_the_least_recently_used() -> None:
    line = Timeline(CacheLimits(columns=4))
    line.request(X1, Y1)
    line.request(X2, Y1)
    line.request(X1, Y1)  # requests R1(x1, y1) and R2(x1), so those of x2 are now the older ones
    line.request(X2, Y2)
    assert {(R1, X1, Y1), (R2, X1)} < line.columns


@pytest.mark.parametrize("columns", [1, 2])
def test_rule_objects_of_one_evaluation_never_drive_each_other_out(columns: int) -> None:
    line = Timeline(CacheLimits(columns=columns))
    for x, y in ((X1, Y1), (X1, Y2), (X2, Y2), (X1, Y1)):
        line.request(x, y)
        assert line.columns == {(R1, x, y), (R2, x)}
