"""What a policy in the shadow costs the HTTP service: requests a second with it and without, in turns."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from roost.bench.load import Load, LoadReport
from roost.bench.reporting import ReportProgress
from roost.bench.service import BATCH, BATCH_CONNECTIONS, CONNECTIONS, CREATE, MANY, WARM_UP_SECONDS, generate, serve
from roost.client import Client

CASES = {"single": (CREATE, 0), "batch": (MANY, BATCH)}  # path, requests in each


def bench_shadow(
    machines: int,
    seconds: float,
    repeats: int,
    policy: str = "dense",
    progress: ReportProgress = lambda _t, _s: None,
) -> dict[str, Any]:
    """For each turn and case a service on SQLite, with a zone that is empty and does not get full.

    What comes first in one turn comes last in the next.
    """
    found: dict[tuple[str, bool], list[LoadReport]] = {}
    changed: dict[str, float] = {}
    steps, done = repeats * len(CASES) * 2, 0
    for turn, name in ((turn, name) for turn in range(repeats) for name in CASES):
        with (
            tempfile.TemporaryDirectory(prefix="roost-bench-") as folder,
            serve(str(Path(folder) / "zone.db"), f"synthetic:{machines}", 1) as port,
            Client(f"http://127.0.0.1:{port}") as client,
        ):
            for shadow in (False, True) if turn % 2 == 0 else (True, False):
                progress(f"{name}, {'with' if shadow else 'without'}", done / steps)
                _set_shadow(client, policy if shadow else "")
                generate(_load(port, name, WARM_UP_SECONDS))  # what is asked for first is evaluated in full
                found.setdefault((name, shadow), []).append(generate(_load(port, name, seconds)))
                if shadow:
                    seen = client.policy_differences()
                    changed[name] = round(seen.changed / max(1, seen.decisions), 2)
                done += 1
    return {"rows": [_row(name, found[name, False], found[name, True], changed[name]) for name in CASES]}


def _load(port: int, name: str, seconds: float) -> Load:
    path, batch = CASES[name]
    connections = BATCH_CONNECTIONS if batch else CONNECTIONS
    return Load(port=port, path=path, seconds=seconds, connections=connections, batch=batch)


def _set_shadow(client: Client, policy: str) -> None:
    if policy:
        client.shadow_policy(policy)
    else:
        client.end_shadow()


def _row(name: str, without: list[LoadReport], with_: list[LoadReport], changed: float) -> dict[str, Any]:
    """Medians, and that of the ratios turn by turn: what the machine does meanwhile hits both of a turn."""
    ratios = [after.rate / before.rate for before, after in zip(without, with_, strict=True)]
    per_request = CASES[name][1] or 1
    return {
        "what": name,
        "vms_per_second": round(statistics.median(report.rate for report in without) * per_request),
        "with_shadow": round(statistics.median(report.rate for report in with_) * per_request),
        "ratio": round(statistics.median(ratios), 3),
        "lowest_ratio": round(min(ratios), 3),
        "decisions_changed": changed,
    }
