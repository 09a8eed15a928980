"""Runs that never ran: results with plausible tables, for whatever shows results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from roost.model.spans import DAY
from roost.sim.result import RunResult

# What each variant adds to the density, and multiplies conflicts and latencies by.
CHARACTER = {"default": (0.0, 1.0), "dense": (0.022, 1.35), "spread": (-0.05, 0.7)}


def made_up(
    name: str = "default", seed: int = 1, *, days: float = 5, requests: int = 20_000, **changes: Any
) -> RunResult:
    """A zone of 3,000 machines that is filled on the first day and has days and nights; `changes` replace fields."""
    denser, busier = CHARACTER.get(name, (0.0, 1.0))
    draw = np.random.default_rng((seed, len(name)))
    timeline = _timeline(draw, days, denser, busier)
    rates = _rates(draw, days, busier)
    asked = _requests(draw, days, requests, busier)
    warm = timeline.filter(pl.col("warm") == 1)
    answered = asked.filter(pl.col("time_s") >= DAY / 2)
    summary: dict[str, float | None] = {
        "density": _mean(warm["density"]),
        "utilisation": _mean(warm["utilisation"]),
        "peak_utilisation": float(warm["utilisation"].to_numpy().max()),
        "empty_machines": _mean(warm["empty_machines"]),
        "requests": _total(warm, "requests"),
        "acceptance": _total(warm, "placed") / _total(warm, "requests"),
        "fulfilment": _total(warm, "vms_placed") / _total(warm, "vms_asked"),
        "declined": _total(warm, "declined"),
        "conflicts": _total(warm, "conflicts"),
        "conflicts_per_minute_p99": float(np.quantile(rates["conflicts"], 0.99)),
        "latency_mean": _mean(answered["latency_s"]),
        "latency_p99": float(np.quantile(answered["latency_s"], 0.99)),
        "queueing_p99": float(np.quantile(answered["queued_s"], 0.99)),
        "cache_hit_ratio": _total(warm, "cache_hits") / _total(warm, "cache_hits", "cache_misses"),
        "vms_healed": None,
        "stranded_cores": _mean(warm["stranded_cores"]),
        "stranded_memory": _mean(warm["stranded_memory"]),
    }
    result = RunResult(
        name=name,
        seed=seed,
        experiment={
            "name": "azure",
            "workload": "azure-2017",
            "fleet": {"machines": 3_000, "cores": 48, "memory": 384},
            "policies": list(CHARACTER),
            "seeds": [1, 2, 3],
            "latency": "paper",
            "agents": {"count": 4},
            "warm_up": "12h",
        },
        facts={
            "workload": "azure-2017",
            "source": "Azure Public Dataset V1, Microsoft, CC-BY 4.0",
            "requests": requests,
            "vms": int(asked["vms"].sum()),
            "skipped": {},
            "machines": 3_000,
            "cores": 144_000.0,
            "span_s": days * DAY,
            "warm_up_s": DAY / 2,
            "repeatable": True,
        },
        summary=summary,
        timeline=timeline,
        rates=rates,
        requests=asked,
        timing={"load_s": 0.4, "run_s": 31.4 + seed, "operations": 518_318, "vms_placed": 259_159},
    )
    return replace(result, **changes)


def _timeline(draw: np.random.Generator, days: float, denser: float, busier: float) -> pl.DataFrame:
    time = np.arange(-DAY / 4, days * DAY, 300.0)
    n = len(time)
    full = 0.8 * np.clip((time + DAY / 4) / (DAY / 4), 0.001, 1.0)
    utilisation = full + 0.04 * np.sin(2 * np.pi * time / DAY) * (full > 0.5) + draw.normal(0, 0.002, n)
    density = np.clip(utilisation + 0.06 + denser + draw.normal(0, 0.002, n), 0, 1)
    asked = draw.poisson(40 * (1.2 + np.sin(2 * np.pi * time / DAY)))
    declined = draw.binomial(asked, np.where(utilisation > 0.83, 0.02, 0.0))
    gave_up = draw.binomial(asked - declined, 0.0005)
    placed = asked - declined - gave_up
    hits = draw.binomial(asked, 0.9)
    return pl.DataFrame(
        {
            "time_s": time,
            "warm": (time >= DAY / 2).astype(np.int64),
            "utilisation": utilisation,
            "density": density,
            "empty_machines": (3_000 * (1 - utilisation / density)).astype(np.int64),
            "machines_down": np.zeros(n, np.int64),
            "vms": (30_000 * utilisation).astype(np.int64),
            "requests": asked,
            "placed": placed,
            "declined": declined,
            "gave_up": gave_up,
            "vms_asked": asked * 2,
            "vms_placed": placed * 2,
            "queued": draw.poisson(0.3 * busier, n),
            "conflicts": draw.poisson(3 * busier, n),
            "retries": draw.poisson(3 * busier, n),
            "cache_hits": hits,
            "cache_misses": asked - hits,
            "updated": hits * 50 + (asked - hits) * 2_000,
            "used_cores": utilisation,
            "used_memory": utilisation * 0.8,
            "stranded_cores": 0.02 - denser / 4 + draw.normal(0, 0.001, n),
            "stranded_memory": 0.05 - denser / 2 + draw.normal(0, 0.002, n),
        }
    )


def _rates(draw: np.random.Generator, days: float, busier: float) -> pl.DataFrame:
    time = np.arange(0, days * DAY, 60.0)
    arrivals = draw.poisson(8 * (1.2 + np.sin(2 * np.pi * time / DAY)))
    placed = draw.binomial(arrivals, 0.995)
    return pl.DataFrame(
        {
            "time_s": time,
            "warm": (time >= DAY / 2).astype(np.int64),
            "arrivals": arrivals,
            "placed": placed,
            "vms_placed": placed * 2,
            "conflicts": draw.poisson(0.6 * busier, len(time)),
            "retries": draw.poisson(0.6 * busier, len(time)),
        }
    )


def _requests(draw: np.random.Generator, days: float, n: int, busier: float) -> pl.DataFrame:
    queued = np.where(draw.random(n) < 0.4, 0.0, draw.lognormal(-5.5, 1.3, n) * busier)
    latency = queued + np.where(draw.random(n) < 0.9, 0.014, 0.088) + 0.004 + draw.exponential(0.003, n)
    return pl.DataFrame(
        {
            "request": np.arange(n),
            "time_s": np.sort(draw.random(n) * days * DAY),
            "vms": draw.geometric(0.8, n),
            "status": np.where(draw.random(n) < 0.99, "placed", "declined"),
            "agent": draw.integers(0, 4, n),
            "queued_s": queued,
            "latency_s": latency,
            "retries": draw.poisson(0.02, n),
        }
    )


def _total(table: pl.DataFrame, *columns: str) -> float:
    return float(sum(table[column].to_numpy().sum() for column in columns))


def _mean(column: pl.Series) -> float:
    return float(column.to_numpy().mean())
