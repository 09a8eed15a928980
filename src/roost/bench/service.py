"""How many requests a second the HTTP service answers, durably, against what the same server does with an echo."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import msgspec

from roost.bench.echo import PATH as ECHO
from roost.bench.load import Load, LoadReport
from roost.bench.postgres import ThrowawayPostgres
from roost.bench.reporting import ReportProgress
from roost.model.errors import StoreUnavailable

CONNECTIONS, BATCH, BATCH_CONNECTIONS = 64, 100, 8
START_SECONDS = 120.0
WARM_UP_SECONDS = 1.0
SAME = "echo of the same server"
CREATE, MANY = "/v1/tenants", "/v1/batch"


def bench_service(
    machines: int, seconds: float, repeats: int, progress: ReportProgress = lambda _t, _s: None
) -> dict[str, Any]:
    """All figures, each the median of `repeats` measurements; those that are compared take turns."""
    zone = f"synthetic:{machines}"
    steps, done = repeats * 11, count()
    found: dict[str, list[LoadReport]] = {}

    def measure(name: str, port: int, path: str, batch: int = 0) -> None:
        progress(name, min(0.99, next(done) / steps))
        connections = BATCH_CONNECTIONS if batch else CONNECTIONS
        load = Load(port=port, path=path, seconds=seconds, connections=connections, batch=batch)
        found.setdefault(name, []).append(generate(load))

    with ThrowawayPostgres() as database, tempfile.TemporaryDirectory(prefix="roost-bench-") as folder:
        for turn in range(repeats):
            # One at a time: each has the machine to itself. The echo runs beside, in the same process as the first.
            with serve_with_echo("bare") as port:
                measure("echo without framework", port, "/")
            with serve_with_echo("framework") as port:
                measure("echo of the framework alone", port, ECHO)
            with serve_with_echo(str(Path(folder) / f"{turn}.db"), zone) as port:
                generate(Load(port=port, path=ECHO, seconds=WARM_UP_SECONDS))
                generate(Load(port=port, path=CREATE, seconds=WARM_UP_SECONDS))
                measure(SAME, port, ECHO)
                measure("sqlite single", port, CREATE)
                measure(SAME, port, ECHO)
                measure("sqlite batch", port, MANY, BATCH)
            for workers in (1, 2):
                url = database.create_database(f"turn{turn}workers{workers}")
                with serve(url, zone, workers) as port:
                    generate(Load(port=port, path=CREATE, seconds=WARM_UP_SECONDS))
                    measure(f"postgres single, workers: {workers}", port, CREATE)
                    measure(f"postgres batch, workers: {workers}", port, MANY, BATCH)
    return _summary(found)


def _summary(found: dict[str, list[LoadReport]]) -> dict[str, Any]:
    rates = {name: statistics.median(report.rate for report in reports) for name, reports in found.items()}
    rows = []
    for name, reports in found.items():
        per_request = BATCH if "batch" in name else 1
        rows.append(
            {
                "what": name,
                "requests_per_second": round(rates[name]),
                "vms_per_second": 0 if "echo" in name else round(rates[name] * per_request),
                "of_the_echo": round(rates[name] / rates[SAME], 2),
                "p50_ms": round(statistics.median(report.p50_ms for report in reports), 1),
                "p99_ms": round(statistics.median(report.p99_ms for report in reports), 1),
                "statuses": _statuses(reports),
            }
        )
    return {"rows": rows}


def _statuses(reports: list[LoadReport]) -> str:
    sums: dict[str, int] = {}
    for report in reports:
        for status, number in report.statuses.items():
            sums[status] = sums.get(status, 0) + number
    return ", ".join(f"{status}: {number:,}" for status, number in sorted(sums.items()))


def generate(load: Load) -> LoadReport:
    """What comes of a load, by a process of its own."""
    arguments = [sys.executable, "-m", "roost.bench.load", msgspec.json.encode(load).decode()]
    done = subprocess.run(arguments, stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(done.stdout, type=LoadReport)


@contextmanager
def serve_with_echo(*arguments: str) -> Iterator[int]:
    """A server of `roost.bench.echo`, by its port."""
    command = [sys.executable, "-m", "roost.bench.echo", *arguments]
    with tempfile.TemporaryFile() as log, _process(command, log, subprocess.PIPE) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        if not line:
            log.seek(0)
            raise StoreUnavailable(f"the server did not start: {log.read().decode()[-500:]}")
        yield int(line)


@contextmanager
def serve(url: str, zone: str, workers: int) -> Iterator[int]:
    """The service on a store, by its port."""
    from roost.api.server import listen

    probe = listen("127.0.0.1", 0)
    port = int(probe.getsockname()[1])
    probe.close()
    script = "from roost.cli.main import main; main()"
    options = ["--store", url, "--zone", zone, "--port", str(port), "--workers", str(workers)]
    with tempfile.TemporaryFile() as log, _process([sys.executable, "-c", script, "serve", *options], log) as server:
        deadline, ready = time.monotonic() + START_SECONDS, 0
        while ready < 3 * workers:  # several times in a row: each worker must be
            try:
                ready = ready + 1 if httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200 else 0
            except httpx.TransportError:
                ready = 0
            if not ready:
                time.sleep(0.1)
            if server.poll() is not None or time.monotonic() > deadline:
                log.seek(0)
                raise StoreUnavailable(f"the service did not start: {log.read().decode()[-500:]}")
        yield port


@contextmanager
def _process(command: list[str], log: Any, stdout: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "ROOST_LOG_FORMAT": "json"}
    with subprocess.Popen(command, stderr=log, stdout=stdout, env=environment) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
