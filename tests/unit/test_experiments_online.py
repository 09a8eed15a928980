"""The study on departures: the slides' example to the last digit, and what the choices are in general."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from roost.experiments import online
from roost.experiments.departures import Node
from roost.experiments.online import AWARE, AWARE_OF_ANY, CHOICES, DRAWN, EXACT, Situation, outlook, work_out
from roost.experiments.study import FigureRow


def test_the_slides_figures_are_the_nodes_with_room_on_the_average() -> None:
    assert work_out(DRAWN).expected == (Fraction(6, 16), Fraction(9, 16))
    assert work_out(DRAWN).probability == (Fraction(11, 32), Fraction(17, 32))


def test_they_are_probabilities_if_one_node_is_too_small() -> None:
    assert work_out(EXACT).probability == (Fraction(6, 16), Fraction(9, 16))
    assert not Node(EXACT.nodes[1].capacity).fits(EXACT.later)


def test_the_drawing_asks_for_a_vm_that_fits_nowhere_yet() -> None:
    for state in (DRAWN, EXACT):
        assert state.options == [0, 1]
        assert not any(node.fits(state.later) for node in state.nodes)


def test_random_states_leave_a_choice_and_refuse_the_later_vm() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        state = online.draw_state(rng, 3)
        assert len(state.options) > 1
        assert not any(node.fits(state.later) for node in state.nodes)
        assert all(min(node.free) >= 0 for node in state.nodes)


def test_fits_look_at_what_is_free_and_awareness_at_who_may_leave() -> None:
    # Node 1 is fuller, by four VMs that would all have to leave; on Node 2 it is one.
    small, large = (2, 4), (6, 12)
    state = Situation((Node((16, 32), (small,) * 4), Node((16, 32), (large,))), new=small, later=(16, 32))
    likely = outlook(state, Fraction(1, 2))
    assert {name: choose(state, likely) for name, choose in CHOICES.items()} == {
        "best fit": 0,
        "worst fit": 1,
        AWARE: 0,
        AWARE_OF_ANY: 0,
    }
    # As full, but by one VM: here it is best fit that takes the wrong node.
    state = Situation((Node((16, 32), ((8, 16),)), Node((16, 32), (small,) * 3)), new=small, later=(16, 32))
    likely = outlook(state, Fraction(1, 2))
    assert CHOICES["best fit"](state, likely) == 0
    assert CHOICES[AWARE](state, likely) == 1


def rows(aware: float) -> list[FigureRow]:
    """Two seeds, with awareness at so much, best fit at a half."""
    values = {"best fit": 0.5, "worst fit": 0.3, AWARE: 0.7, AWARE_OF_ANY: aware}
    return [
        {"nodes": 2, "leaving": 0.5, "choice": name, "seed": seed, "probability": value + seed / 1000, "best": 0.9}
        for seed in (1, 2)
        for name, value in values.items()
    ]


@pytest.mark.parametrize(("aware", "holds"), [(0.6, True), (0.5, False)])
def test_awareness_has_to_beat_both_fits_without_knowing_what_comes(aware: float, holds: bool) -> None:
    found = online.find(rows(aware))
    assert found.holds is holds
    assert "are reproduced" in found.verdict
    assert found.tables[0].rows[1][1:] == ["6/16", "9/16"]
