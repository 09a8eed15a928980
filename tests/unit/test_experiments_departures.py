"""What a machine can take once VMs have left: by hand, against trying every case, and against chance itself."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.experiments.departures import Node, Size, fits, free_later, room, some_room

HALF = Fraction(1, 2)
sizes = st.tuples(st.integers(0, 4), st.integers(0, 4))


def some_room_by_cases(nodes: list[Node], vm: Size, leaving: Fraction) -> Fraction:
    """Every set of VMs that may leave, one after the other."""
    total = Fraction(0)
    present = [(number, each) for number, node in enumerate(nodes) for each in node.vms]
    for left in product((False, True), repeat=len(present)):
        likely, free = Fraction(1), [list(node.free) for node in nodes]
        for (number, each), leaves in zip(present, left, strict=True):
            likely *= leaving if leaves else 1 - leaving
            if leaves:
                free[number] = [a + b for a, b in zip(free[number], each, strict=True)]
        if any(fits(tuple(each), vm) for each in free):
            total += likely
    return total


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    """As large as its VMs and a little more."""
    vms = tuple(draw(st.lists(sizes, max_size=3)))
    spare = draw(sizes)
    return Node(tuple(sum(each) for each in zip(spare, *vms, strict=True)), vms)


@given(st.lists(nodes(), min_size=1, max_size=3), sizes, st.fractions(0, 1, max_denominator=10))
def test_trying_every_case_gives_the_same_fraction(some: list[Node], vm: Size, leaving: Fraction) -> None:
    found = some_room(room(free_later(node, leaving), vm) for node in some)
    assert found == some_room_by_cases(some, vm, leaving)


def test_chance_itself_gives_about_the_same() -> None:
    some = [Node((8, 8), ((2, 4), (4, 2), (1, 1))), Node((8, 4), ((4, 2), (3, 1)))]
    vm, leaving, rng = (5, 3), Fraction(3, 10), np.random.default_rng(1)
    draws, hits = 20_000, 0
    for _ in range(draws):
        stay = [[each for each in node.vms if rng.random() >= leaving] for node in some]
        hits += any(Node(node.capacity, tuple(vms)).fits(vm) for node, vms in zip(some, stay, strict=True))
    expected = some_room(room(free_later(node, leaving), vm) for node in some)
    assert hits / draws == pytest.approx(float(expected), abs=0.015)


def test_what_may_be_free_is_told_with_how_likely_it_is() -> None:
    later = free_later(Node((4, 8), ((1, 2), (1, 2))), Fraction(1, 4))
    assert later == {(2, 4): Fraction(9, 16), (3, 6): Fraction(6, 16), (4, 8): Fraction(1, 16)}
    assert sum(later.values()) == 1


def test_a_vm_needs_room_in_every_resource() -> None:
    later = free_later(Node((4, 4), ((3, 1), (1, 3))), HALF)
    assert room(later, (3, 1)) == HALF
    assert room(later, (3, 3)) == Fraction(1, 4)
    assert room(later, (5, 0)) == 0


def test_an_empty_machine_is_sure_to_have_what_it_has() -> None:
    assert Node((4, 4)).free == (4, 4)
    assert room(free_later(Node((4, 4)), HALF), (4, 4)) == 1


def test_no_machine_has_no_room() -> None:
    assert some_room([]) == 0
