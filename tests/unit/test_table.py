"""Tables keep whole what people copy, however narrow the terminal is."""

from __future__ import annotations

import time

from roost.cli.table import lines_of

KEY = "66084fabbdfb852d2b07aa975"
HEADINGS = ("key", "when", "what was done", "machines free")


def _table(*rows: tuple[str, ...], width: int | None = 80) -> list[str]:
    return list(lines_of(HEADINGS, rows, (False, False, False, True), width))


def test_a_table_that_fits_has_a_line_for_each_row_and_numbers_to_the_right() -> None:
    assert _table((KEY, "2026-11-18 04:04:50", "moved", "7")) == [
        "key                        when                 what was done  machines free",
        f"{KEY}  2026-11-18 04:04:50  moved                      7",
    ]


def test_what_is_copied_stays_whole_and_sentences_are_broken_between_words() -> None:
    what = f"placed 12 VMs of a-tenant-with-a-long-name/0 on {KEY} by chance"
    for width in (200, 100, 80, 60, 20):
        lines = _table((KEY, "2026-11-18 04:04:50", what, "7"), width=width)
        told = "\n".join(lines)
        for whole in (KEY, "2026-11-18 04:04:50", "a-tenant-with-a-long-name/0"):
            assert whole in told, (width, told)
    assert all(len(line) <= 100 for line in _table((KEY, "2026-11-18 04:04:50", what, "7"), width=100))


def test_headings_are_broken_before_lines_are_too_long() -> None:
    lines = _table((KEY, "2026-11-18 04:04:50", "moved", "7"), width=64)
    assert [line.split() for line in lines[:3]] == [["what"], ["was", "machines"], ["key", "when", "done", "free"]]
    assert all(len(line) <= 64 for line in lines)


def test_nobody_at_a_terminal_means_no_line_is_broken() -> None:
    what = "a sentence of many words " * 20
    assert len(_table((KEY, "now", what.strip(), "7"), width=None)) == 2


def test_a_table_of_no_rows_has_its_heading() -> None:
    assert list(lines_of(("vm", "type"), [], (False, False), 80)) == ["vm  type"]


def test_twenty_thousand_rows_take_less_than_a_second() -> None:
    rows = [(f"c{i:05}", "ready", *("10/24",) * 8) for i in range(20_000)]
    started = time.perf_counter()
    assert len(list(lines_of([f"column {i}" for i in range(10)], rows, [False] * 10, 80))) == 20_002
    assert time.perf_counter() - started < 1.0
