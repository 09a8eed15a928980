"""Tables as lines of text, in which what people copy stays whole.

A terminal that is too narrow costs, in this order: the space between columns, headings on one line, sentences on one
line. Names, keys, times and numbers are never broken; if nothing else helps, lines are too long.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest

SENTENCE = 4  # words: a key has fewer, or stands in the first column
NARROWEST = 16  # columns that a sentence gets
GAPS = (2, 1)  # spaces between columns


def lines_of(
    headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], width: int | None
) -> Iterator[str]:
    """The heading and the rows below it.

    `right`: columns that stand to the right; `width`: columns of the terminal, None if nobody looks at one.
    """
    rooms = [max((_room(row[i]) for row in rows), default=0) for i in range(len(headings))]
    words = [max(map(len, heading.split()), default=0) for heading in headings]
    whole = [max(pair) for pair in zip(rooms, map(len, headings), strict=True)]
    gap = next((gap for gap in GAPS if _fits(whole, gap, width)), 0)
    if not gap:
        gap, prose = GAPS[-1], [_is_prose(rows, i) for i in range(len(headings))]
        whole = _narrowed([max(pair) for pair in zip(rooms, words, strict=True)], prose, gap, width or 0)
        rows = [[_broken(cell, room) for cell, room in zip(row, whole, strict=True)] for row in rows]
    form = (" " * gap).join(f"{{:{'>' if side else '<'}{room}}}" for side, room in zip(right, whole, strict=True))
    tall = [_broken(heading, room) for heading, room in zip(headings, whole, strict=True)]
    height = max(heading.count("\n") for heading in tall)
    for row in ([("\n" * (height - heading.count("\n"))) + heading for heading in tall], *rows):
        yield from _lines(row, form)


def _room(cell: str) -> int:
    return max(map(len, cell.split("\n"))) if "\n" in cell else len(cell)


def _fits(widths: Sequence[int], gap: int, width: int | None) -> bool:
    return width is None or sum(widths) + gap * (len(widths) - 1) <= width


def _is_prose(rows: Sequence[Sequence[str]], column: int) -> bool:
    return column > 0 and any(len(row[column].split()) >= SENTENCE for row in rows)


def _narrowed(widths: list[int], prose: Sequence[bool], gap: int, width: int) -> list[int]:
    """Sentences share what the rest leaves them, and get something at least."""
    left = width - sum(room for room, is_prose in zip(widths, prose, strict=True) if not is_prose)
    share = max(NARROWEST, (left - gap * (len(widths) - 1)) // max(1, sum(prose)))
    return [min(room, share) if is_prose else room for room, is_prose in zip(widths, prose, strict=True)]


def _broken(cell: str, room: int) -> str:
    if _room(cell) <= room:
        return cell
    parts = (textwrap.wrap(part, room, break_long_words=False, break_on_hyphens=False) for part in cell.split("\n"))
    return "\n".join(line for some in parts for line in some)


def _lines(row: Sequence[str], form: str) -> Iterator[str]:
    if not any("\n" in cell for cell in row):
        yield form.format(*row).rstrip()
        return
    for parts in zip_longest(*(cell.split("\n") for cell in row), fillvalue=""):
        yield form.format(*parts).rstrip()
