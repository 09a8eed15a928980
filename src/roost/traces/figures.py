"""What a workload is like, drawn: the figures and tables of Protean's §2.2 (OSDI'20) on one page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from roost.model.spans import DAY, HOUR, MINUTE, WEEK
from roost.plotting import PALETTE, QUIET, blank_figure, styled
from roost.traces.analysis import CORE_CLASSES, INTERVAL, Analysis
from roost.traces.type_mix import CORES, ZONES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN = PALETTE[:3]
MOST_TYPES = 16  # bars; the rest is one more
LONGEST_DISTANCE = 12  # the last bar is for this and all above
PROTEAN = {"zone1": (ORANGE, "o", "Protean, zone 1"), "zone2": (GREEN, "D", "Protean, zone 2")}
TENANTS_OF_PROTEAN = {1: 0.94, 5: 0.99}
LANDMARKS = {"1 s": 1.0, "1 min": MINUTE, "10 min": 10 * MINUTE, "1 h": HOUR, "6 h": 6 * HOUR, "1 d": DAY, "1 wk": WEEK}
LANDMARKS |= {"30 d": 30 * DAY, "1 yr": 365 * DAY}
SCALES = ((1e6, "M"), (1e3, "k"))


def draw(analysis: Analysis) -> Figure:
    """A page of seven panels."""
    figure = blank_figure(title=_headline(analysis), height=15.0)
    with styled():
        figure.supxlabel(analysis.source, x=0.01, ha="left", size=8, color=QUIET)
        axes = figure.subplot_mosaic(
            [["types", "cores"], ["reuse", "tenants"], ["week", "week"], ["day", "lifetimes"]],
            gridspec_kw={"hspace": 0.06, "wspace": 0.04},
        )
        _types(axes["types"], analysis)
        _cores(axes["cores"], analysis)
        _reuse(axes["reuse"], analysis)
        _tenants(axes["tenants"], analysis)
        _week(axes["week"], analysis)
        _day(axes["day"], analysis)
        _lifetimes(axes["lifetimes"], analysis)
    return figure


def _headline(analysis: Analysis) -> str:
    days = analysis.span / DAY
    long = f"{days:,.1f} days" if days >= 1 else f"{analysis.span / HOUR:,.1f} hours"
    return f"{analysis.name}: {analysis.requests:,} requests for {analysis.vms:,} VMs in {long}"


def _types(axes: Axes, analysis: Analysis) -> None:
    """Table 2."""
    names = list(analysis.type_shares)[:MOST_TYPES]
    shares = [100 * analysis.type_shares[name] for name in names]
    rest = list(analysis.type_shares)[MOST_TYPES:]
    cores = analysis.type_cores
    labels = [f"{name} ({cores[name]:g})" if name in cores else name for name in names]
    colours = [BLUE] * len(names)
    if rest:
        labels.append(f"{len(rest)} others")
        shares.append(100 * sum(analysis.type_shares[name] for name in rest))
        colours.append(QUIET)
    bars = axes.bar(labels, shares, color=colours)
    axes.bar_label(bars, fmt="{:.1f}", padding=2, fontsize=8, color=QUIET)
    axes.tick_params(axis="x", labelrotation=60)
    axes.grid(visible=False, axis="x")
    axes.set(title="VM types" + (" (cores)" if cores else ""), ylabel="VMs, %")
    axes.margins(y=0.12)


def _cores(axes: Axes, analysis: Analysis) -> None:
    """Table 3, and beside it the two zones of the paper."""
    axes.set(title="Cores of a VM", xlabel="cores", ylabel="VMs, %")
    axes.grid(visible=False, axis="x")
    if not analysis.core_shares:
        _remark(axes, "the workload does not tell cores")
        return
    bars = axes.bar(list(CORE_CLASSES), [100 * s for s in analysis.core_shares.values()], color=BLUE)
    axes.bar_label(bars, fmt="{:.1f}", padding=2, fontsize=8, color=QUIET)
    for column, zone in enumerate(ZONES):
        colour, marker, label = PROTEAN[zone]
        percents = [row[column] for row in CORES.values()]
        places = np.arange(len(percents)) + (-0.22, 0.22)[column]
        axes.plot(
            places, percents, marker, color=colour, markeredgecolor="white", markersize=7, label=label, clip_on=False
        )
    axes.legend()
    axes.margins(y=0.12)


def _reuse(axes: Axes, analysis: Analysis) -> None:
    """Fig. 2."""
    shares = 100 * analysis.reuse_shares
    shown = np.zeros(LONGEST_DISTANCE + 1)
    shown[: len(shares)] = shares[: LONGEST_DISTANCE + 1]
    shown[-1] += shares[LONGEST_DISTANCE + 1 :].sum()
    labels = [str(d) for d in range(LONGEST_DISTANCE)] + [f"≥ {LONGEST_DISTANCE}"]
    bars = axes.bar(labels, shown, color=BLUE)
    axes.bar_label(bars, fmt="{:.1f}", padding=2, fontsize=8, color=QUIET)
    axes.grid(visible=False, axis="x")
    axes.set(title="Reuse distance", xlabel="other types since the same type was asked for", ylabel="VMs, %")
    axes.axhline(80, color=ORANGE, linestyle="--", linewidth=1.2, label="Protean: over 80 % at 0")
    axes.legend(loc="center right")
    axes.margins(y=0.12)


def _tenants(axes: Axes, analysis: Analysis) -> None:
    """How many requests ask for so many VMs or more; on a scale that shows the few that are huge."""
    sizes = np.array(list(analysis.sizes))
    at_least = np.cumsum(list(analysis.sizes.values())[::-1])[::-1]
    axes.step(sizes, 100 * at_least, where="pre", color=BLUE)  # up to a size, it is what that size has
    points = {1 + size: 100 * (1 - share) for size, share in TENANTS_OF_PROTEAN.items()}
    label = "Protean: 6 % for 2 or more, 1 % for 6 or more"
    axes.plot(
        list(points), list(points.values()), "o", color=ORANGE, markeredgecolor="white", markersize=8, label=label
    )
    axes.set(xscale="log", yscale="log", xlabel="VMs of a request, at least", ylabel="requests, %")
    axes.set_title(
        f"Tenants: {100 * analysis.share_of_sizes(1, 1):.1f} % ask for one VM, the largest for {sizes[-1]:,}"
    )
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: np.format_float_positional(value, trim="-"))
    axes.legend(loc="upper right")


def _week(axes: Axes, analysis: Analysis) -> None:
    """Fig. 3."""
    days = -(-int(np.isfinite(analysis.hourly_mean).sum()) // 24)
    hours = np.arange(24 * days)
    mean, std = analysis.hourly_mean[hours], analysis.hourly_std[hours]
    axes.fill_between(hours, np.maximum(mean - std, 0), mean + std, step="post", color=BLUE, alpha=0.2, linewidth=0)
    axes.step(hours, mean, where="post", color=BLUE)
    axes.set_xticks(np.arange(days + 1) * 24, [""] * (days + 1))
    axes.set_xticks(np.arange(days) * 24 + 12, [f"day {d + 1}" for d in range(days)], minor=True)
    axes.tick_params(axis="x", which="minor", length=0)
    axes.set(xlim=(0, len(hours)), ylabel="requests an hour")
    axes.set_ylim(bottom=0)
    several = "Requests over a week: mean over the weeks, shaded ± one standard deviation"
    axes.set_title(several if analysis.span > WEEK + DAY else "Requests over the days")
    axes.yaxis.set_major_formatter(lambda value, _: _short(value))


def _day(axes: Axes, analysis: Analysis) -> None:
    """Fig. 4."""
    hours = np.arange(len(analysis.busiest_seconds)) * INTERVAL / HOUR
    axes.fill_between(hours, analysis.busiest_seconds, step="post", color=BLUE, linewidth=0)
    axes.set(xlim=(0, 24), xlabel=f"hour of day {analysis.busiest_day + 1}, the busiest", ylabel="requests a second")
    axes.set_ylim(bottom=0)
    axes.set_title(f"Busiest second of each 5 minutes, up to {analysis.busiest_seconds.max():,}")
    axes.set_xticks(range(0, 25, 4))
    axes.yaxis.set_major_formatter(lambda value, _: _short(value))


def _lifetimes(axes: Axes, analysis: Analysis) -> None:
    """Fig. 5."""
    axes.plot(analysis.lifetime_at, 100 * analysis.lifetime_shares, color=BLUE)
    axes.set(xscale="log", ylim=(0, 101), xlabel="lifetime", ylabel="VMs that have ended by then, %")
    longest = float(analysis.lifetime_at[-1])
    marks = {label: at for label, at in LANDMARKS.items() if at <= max(longest, MINUTE)}
    axes.set_xticks(list(marks.values()), list(marks))
    axes.set_xticks([], minor=True)
    median = analysis.lifetime_quantiles[0.5]
    said = [f"{100 * analysis.stays:.1f} % stay"] if analysis.stays else []
    if np.isfinite(median):
        axes.plot([median], [50], "o", color=ORANGE, markeredgecolor="white", markersize=8)
        said.insert(0, f"half end within {duration(median)}")
    axes.set_title(f"Lifetimes: {', '.join(said)}")


def duration(seconds: float) -> str:
    """As people say it."""
    if np.isinf(seconds):
        return "for ever"
    units = {"days": DAY, "hours": HOUR, "minutes": MINUTE}
    name = next((name for name, unit in units.items() if seconds >= 2 * unit), "seconds")
    number = seconds / units.get(name, 1.0)
    return f"{number:,.{1 if number < 10 else 0}f} {name}"


def _short(value: float) -> str:
    """A number on an axis."""
    for scale, letter in SCALES:
        if abs(value) >= scale:
            return f"{value / scale:g}{letter}"
    return f"{value:g}"


def _remark(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=QUIET)
