"""Names and numbers as people sort and write them."""

from __future__ import annotations

import re
from functools import lru_cache

DIGITS = re.compile(r"(\d+)", re.ASCII)


def as_counted(name: str) -> tuple[tuple[str | int, ...], str]:
    """To sort names by: m2 comes before m10. Texts and numbers take turns, so that like is compared with like."""
    parts = DIGITS.split(name)
    return tuple(int(part) if i % 2 else part for i, part in enumerate(parts)), name


@lru_cache(maxsize=10_000)  # the machines of a table have the same amounts again and again
def plain(number: float, digits: int = 6) -> str:
    """A number as people write it: 20000 and 0.5, neither 2e+04 nor 20000.0; so many digits of it count."""
    if number == 0 or abs(number) >= 10**digits:
        return f"{number:.0f}"
    text = f"{float(f'{number:.{digits}g}'):.12f}"
    return text.rstrip("0").rstrip(".")
