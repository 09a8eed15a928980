"""What several seeds tell: a mean with its interval, and whether two variants differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from statistics import fmean, stdev
from typing import Literal

CONFIDENCE = 0.95  # of every interval
NOISE = 1e-9  # what differs by less, by itself or as a share, differs by rounding


class Verdict(StrEnum):
    """How a variant compares with another, as it is told to people."""

    BETTER = "better"
    WORSE = "worse"
    HIGHER = "higher"  # of a measure of which neither more nor less is better
    LOWER = "lower"
    SAME = "the same"  # with every seed
    UNCLEAR = "no clear difference"
    UNKNOWN = "too few seeds to tell it from chance"


@dataclass(frozen=True)
class Estimate:
    """A mean, and how far the true one may lie to either side."""

    mean: float
    margin: float | None  # half the interval; None: one value tells nothing of it
    n: int


@dataclass(frozen=True)
class Comparison:
    """What changes from one variant to another, with the same seeds."""

    difference: Estimate
    verdict: Verdict


def estimate(values: Sequence[float]) -> Estimate:
    """Of the mean that ever more seeds would give."""
    n = len(values)
    margin = t_quantile(n - 1) * stdev(values) / math.sqrt(n) if n > 1 else None
    return Estimate(fmean(values), margin, n)


def compare(
    base: Mapping[int, float], other: Mapping[int, float], better: Literal["higher", "lower", ""]
) -> Comparison | None:
    """By the differences seed by seed: what a seed does to both cancels out. None: they share no seed."""
    seeds = sorted(base.keys() & other.keys())
    if not seeds:
        return None
    differences = [other[seed] - base[seed] for seed in seeds]
    found = estimate(differences)
    same = all(math.isclose(base[seed], other[seed], rel_tol=NOISE, abs_tol=NOISE) for seed in seeds)
    return Comparison(found, _verdict(found, better, same=same))


def _verdict(difference: Estimate, better: Literal["higher", "lower", ""], *, same: bool) -> Verdict:
    if same:
        return Verdict.SAME
    if difference.margin is None:
        return Verdict.UNKNOWN
    if abs(difference.mean) <= difference.margin:  # the interval holds 0
        return Verdict.UNCLEAR
    grew = difference.mean > 0
    if not better:
        return Verdict.HIGHER if grew else Verdict.LOWER
    return Verdict.BETTER if grew == (better == "higher") else Verdict.WORSE


@cache
def t_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """Student's t: what it exceeds, to either side, only with the probability that is left."""
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        if _within(middle, freedom) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(high)


def _within(angle: float, freedom: int) -> float:
    """The probability that |t| is below √freedom · tan(angle): a finite sum (Abramowitz and Stegun, 26.7.3 and 4)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom, 2):
        term *= (k - 1) / k * cosine**2
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
