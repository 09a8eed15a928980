"""Conflict avoidance: as often as commits are lost, an agent draws among many."""

import pytest

from roost.agent.avoidance import Avoidance
from roost.engine.choice import BEST, AmongBest, Choice, Favourite
from roost.model.errors import InvalidInput


def choices(avoidance: Avoidance, count: int) -> list[Choice]:
    """How so many VMs are placed, one after another."""
    found = []
    for _ in range(count):
        found.append(avoidance.draw())
        avoidance.next_lot()
    return found


def test_without_conflicts_only_the_best_is_good_enough() -> None:
    avoidance = Avoidance(top=100, window=50)
    for _ in range(200):
        avoidance.note(conflict=False)
    assert avoidance.ratio == 0.0
    assert set(choices(avoidance, 1_000)) == {BEST}


def test_the_chance_of_a_random_draw_is_the_share_of_conflicts_in_the_window() -> None:
    avoidance = Avoidance(top=100, window=50, seed=1, favourites=False)
    for i in range(500):
        avoidance.note(conflict=i % 5 == 0)
    assert avoidance.ratio == pytest.approx(0.2)
    drawn = choices(avoidance, 20_000)
    assert set(drawn) == {BEST, AmongBest(100)}
    assert drawn.count(AmongBest(100)) / len(drawn) == pytest.approx(0.2, abs=0.015)


def test_an_agent_keeps_to_its_own_machines_ten_times_as_often_as_it_loses() -> None:
    avoidance = Avoidance(top=100, window=50, seed=1)
    for i in range(500):
        avoidance.note(conflict=i % 50 == 0)
    assert avoidance.ratio == pytest.approx(0.02)
    drawn = choices(avoidance, 20_000)
    assert set(drawn) == {BEST, Favourite(100)}
    assert drawn.count(Favourite(100)) / len(drawn) == pytest.approx(0.2, abs=0.015)


def test_an_agent_that_loses_often_keeps_to_its_own_machines_always() -> None:
    avoidance = Avoidance(top=100, window=50)
    for i in range(50):
        avoidance.note(conflict=i % 5 == 0)
    assert set(choices(avoidance, 1_000)) == {Favourite(100)}


@pytest.mark.parametrize("favourites", [True, False])
def test_avoidance_that_is_off_never_avoids(favourites: bool) -> None:
    avoidance = Avoidance(top=1, favourites=favourites)
    for _ in range(50):
        avoidance.note(conflict=True)
    assert set(choices(avoidance, 1_000)) == {BEST}


def test_what_left_the_window_is_forgotten() -> None:
    avoidance = Avoidance(window=50)
    for conflict in (True, False):
        for _ in range(50):
            avoidance.note(conflict)
    assert avoidance.ratio == 0.0


def test_only_sensible_settings_are_taken() -> None:
    for top, window in ((0, 50), (1_001, 50), (100, 0)):
        with pytest.raises(InvalidInput):
            Avoidance(top=top, window=window)


def test_a_lot_is_the_same_until_something_was_placed_by_it_and_goes_on_where_another_agent_stopped() -> None:
    avoidance, other = Avoidance(seed=1, favourites=False), Avoidance(seed=2, favourites=False)
    for i in range(50):
        avoidance.note(conflict=i % 2 == 0)
    before = avoidance.memory()
    assert len({avoidance.draw() for _ in range(100)}) == 1
    assert avoidance.memory() == before
    other.recall(before)
    assert choices(other, 100) == choices(avoidance, 100)
