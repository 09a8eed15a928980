"""How long a new user waits for a policy to be compiled: all that deciding by it needs, the re-check included.

Seconds of one core, by processes that begin with an empty cache of kernels: for the first policy, for another one in
the same process and in a new one (both for zones of the same shape), and for one that was compiled before.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from statistics import median
from typing import Any

import msgspec

from roost.bench.reporting import ReportProgress

COMPILE = """
import sys, time
from roost.agent.warm_up import warm_up
from roost.model.zone import Zone
from roost.rules.policy import Policy
zone, taken = Zone.synthetic(100, seed=1), []
for name in sys.argv[1:]:
    started = time.process_time()
    warm_up(zone, Policy.named(name))
    taken.append(time.process_time() - started)
print(taken)
"""


def bench_compile(
    policy: str, further: str, repeats: int, progress: ReportProgress = lambda _t, _s: None
) -> dict[str, Any]:
    """Medians over some repeats."""
    found: dict[str, list[float]] = {"first": [], "further": [], "further_in_a_new_process": [], "known": []}
    for i in range(repeats):
        progress("compiling", i / repeats)
        with tempfile.TemporaryDirectory() as folder:
            found["first"] += _taken(folder, policy)
            found["further_in_a_new_process"] += _taken(folder, further)
            found["known"] += _taken(folder, policy)
        with tempfile.TemporaryDirectory() as folder:
            found["further"] += _taken(folder, policy, further)[1:]
    cpu = {name: round(median(taken), 2) for name, taken in found.items()}
    return {"policy": policy, "further": further, "repeats": repeats, "cpu_seconds": cpu}


def _taken(folder: str, *policies: str) -> list[float]:
    """Seconds of one core that a new process takes for each of some policies."""
    environment = {**os.environ, "ROOST_CACHE_DIR": folder}
    command = [sys.executable, "-c", COMPILE, *policies]
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    return msgspec.json.decode(done.stdout, type=list[float])
