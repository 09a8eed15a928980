"""Names and numbers are sorted and written as people do, and unknown names lead to something that helps."""

from __future__ import annotations

import pytest

from roost.model.errors import DESTRUCTIVE, UnknownName, nearest
from roost.model.readable import as_counted, plain


def test_names_are_sorted_as_people_count() -> None:
    names = ["m10", "m2", "c1-r10-m1", "c1-r2-m1", "web/10", "web/9", "7", "b", "", "m02"]
    assert sorted(names, key=as_counted) == [
        "",
        "7",
        "b",
        "c1-r2-m1",
        "c1-r10-m1",
        "m02",
        "m2",
        "m10",
        "web/9",
        "web/10",
    ]


@pytest.mark.parametrize(
    ("number", "words"),
    [(20_000.0, "20000"), (2e9, "2000000000"), (0.5, "0.5"), (96, "96"), (0.0, "0"), (1 / 3, "0.333333"),
     (1e-3, "0.001"), (-4.25, "-4.25"), (123_456.7, "123457")],
)  # fmt: skip
def test_numbers_are_written_as_people_write_them(number: float, words: str) -> None:
    assert plain(number) == words


@pytest.mark.parametrize("word", ["cordon", "dwn", "donw", "delte", "remov", "rm", "evit", "downn"])
def test_nobody_is_led_to_what_destroys(word: str) -> None:
    known = {*DESTRUCTIVE, "ready", "draining", "quarantined"}
    assert not DESTRUCTIVE & set(nearest(word, known))
    assert "did you mean" not in str(UnknownName("state", "machine state", "dwn", ("ready", "draining", "down")))


def test_of_many_names_the_near_ones_are_told_or_where_to_see_them() -> None:
    machines = [f"c{c:03}-m{m:02}" for c in range(50) for m in range(100)]
    assert str(UnknownName("machine", "machine", "c007-m4", machines)).endswith(
        "did you mean c007-m49, c007-m48, c007-m47"
    )
    told = str(UnknownName("machine", "machine", "foo", machines))
    assert told.endswith(
        "there are 5,000, such as c000-m00, c000-m01, c000-m02, c000-m03; see them with `roost machine list`"
    )
    assert str(UnknownName("vm", "VM type", "X", ["D10", "D2"])).endswith("known are D2, D10")
