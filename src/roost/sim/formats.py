"""Figures as people read them: 93.1 %, 12,345, 14.2 ms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from roost.sim.statistics import Estimate

MINUS = "\N{MINUS SIGN}"
# Below so many seconds: what to multiply by, and the unit. A time that is written as 1,000 ms is 1 s.
TIMES = (
    (0.9995e-3, 1e6, "\N{MICRO SIGN}s"),
    (0.9995, 1e3, "ms"),
    (120.0, 1.0, "s"),
    (7_200.0, 1 / 60, "min"),
    (math.inf, 1 / 3_600, "h"),
)
FINEST = 4  # decimals of a percentage
FAR = 50  # times so many times apart are written in units of their own
SPANS = ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


@dataclass(frozen=True)
class Scale:
    """How figures that stand in one row are written: all alike, so that they can be compared at a glance."""

    factor: float
    unit: str  # that the figures carry; empty for counts
    decimals: int

    def number(self, value: float, sign: str = "") -> str:
        """Alone, without its unit."""
        text = f"{value * self.factor:{sign}z,.{self.decimals}f}"
        return text.replace("-", MINUS)

    def figure(self, estimate: Estimate) -> str:
        """`87.3 ± 0.4 %`."""
        return _join(self.number(estimate.mean) + self._margin(estimate), self.unit)

    def difference(self, difference: Estimate, base: float) -> str:
        """`+2.1 ± 0.3 points`, or `+31 ± 4 (+12 %)`."""
        if not difference.mean and not difference.margin:
            return self.number(0.0)
        text = self.number(difference.mean, "+") + self._margin(difference)
        if self.unit == "%":
            return f"{text} points"
        return _join(text, self.unit) + (f" ({_relative(difference.mean / base)})" if base else "")

    def change(self, difference: Estimate, base: float) -> str:
        """The same in brief: `+2.1 points`, or `+12 %`."""
        if base and self.unit != "%":
            return _relative(difference.mean / base)
        return _join(self.number(difference.mean, "+"), "points" if self.unit == "%" else self.unit)

    def _margin(self, estimate: Estimate) -> str:
        """Nothing where it is less than the last digit tells."""
        margin = self.number(estimate.margin or 0.0)
        return f" ± {margin}" if margin.strip("0.") else ""


def scale_of(unit: str, estimates: Sequence[Estimate]) -> Scale:
    """Fine enough for what is known of the figures."""
    means = [e.mean for e in estimates]
    largest = max(map(abs, means), default=0.0)
    factor, shown = 1.0, ""
    if unit == "share":
        factor, shown = 100.0, "%"
        decimals = max((_decimals_of_share(m) for m in means), default=1)
    else:
        if unit == "s":
            factor, shown = _unit_of_time(largest)
        whole = unit != "s" and all(m.is_integer() for m in map(float, means))
        decimals = 0 if whole else min(3, _decimals(largest * factor, 3))
    margins = [e.margin * factor for e in estimates if e.margin]
    finer = bool(margins) and max(margins) < 10**-decimals  # they would all be written as 0
    return Scale(factor, shown, decimals + finer)


def far_apart(unit: str, estimates: Sequence[Estimate]) -> bool:
    """Would the unit of the longest time hide what the others are?"""
    means = [abs(e.mean) for e in estimates if e.mean]
    return unit == "s" and bool(means) and max(means) > FAR * min(means)


def figure(value: float, unit: str = "") -> str:
    """One figure, alone."""
    estimate = Estimate(value, None, 1)
    return scale_of(unit, [estimate]).figure(estimate)


def brief(seconds: float) -> str:
    """A round time, for an axis: `10 ms`."""
    factor, unit = _unit_of_time(seconds)
    return f"{seconds * factor:.3g} {unit}"


def time_unit(seconds: float) -> tuple[float, str]:
    """The unit for a span of time: its length in seconds and its name. There are about three of them, or more."""
    return next(((length, name) for length, name in SPANS if seconds > 2.9 * length), SPANS[-1])


def span(seconds: float) -> str:
    """A length of time in words: `30 days`."""
    length, name = time_unit(seconds)
    return f"{seconds / length:,.1f}".removesuffix(".0") + f" {name}"


def _relative(share: float) -> str:
    """What is left of almost nothing is told from nothing: by 99.6 %, not by 100 %."""
    left = (1 + share) * 100
    decimals = min(FINEST, _decimals(left, 1)) if 0 < left < 1 else 0 if abs(share) >= 0.1 else 1
    text = f"{share * 100:+z,.{decimals}f}"
    return f"{text} %".replace("-", MINUS)


def _unit_of_time(seconds: float) -> tuple[float, str]:
    """What to multiply by, and the unit it then is."""
    return next((factor, unit) for limit, factor, unit in TIMES if seconds < limit) if seconds else (1e3, "ms")


def _join(number: str, unit: str) -> str:
    return f"{number} {unit}" if unit else number


def _decimals(value: float, significant: int) -> int:
    """So many that as many digits tell something."""
    rounded = float(f"{value:.{significant}g}")
    return max(0, significant - 1 - math.floor(math.log10(rounded))) if rounded > 0 else 0


def _decimals_of_share(share: float) -> int:
    """So many that 99.987 % is told from 100 %, and 0.013 % from 0."""
    left = min(abs(share), abs(1 - share)) * 100
    return min(FINEST, max(1, _decimals(left, 2))) if left >= 10**-FINEST else 1
