"""A real `roost serve` for tests, in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOST = str(Path(sys.executable).with_name("roost"))
SERVES = re.compile(r"^Roost serves .* at (https?://\S+)$", re.MULTILINE)
LISTENS = re.compile(r'"event":"starting".*"url":"(https?://[^"]+)"|"url":"(https?://[^"]+)".*"event":"starting"')
PATIENCE = 300.0  # seconds: the first start on a machine compiles the rules


class Serving:
    """A service that runs: where it is, its process, and what it has said."""

    def __init__(self, process: subprocess.Popen[bytes], said: Path) -> None:
        self.process, self._said, self.url = process, said, ""

    @property
    def stderr(self) -> str:
        """What it has said so far."""
        return self._said.read_text(errors="replace")

    def stop(self) -> int:
        """Let it drain and end; returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def is_ready(self) -> bool:
        """Whether it can be given work."""
        try:
            return httpx.get(f"{self.url}/readyz", verify=False, timeout=5).status_code == 200
        except httpx.TransportError:
            return False


@contextmanager
def serving(
    store_url: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    ready: bool = True,
    program: Sequence[str] = (ROOST,),
) -> Iterator[Serving]:
    """`roost serve` on a store, at a free port unless `arguments` say otherwise, until the block ends.

    `ready`: wait until it says that it serves, not only until it listens. `program`: `roost`, or what runs it changed.
    """
    port = () if "--port" in arguments else ("--port", "0")
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "stderr"
        with said.open("wb") as file:
            process = subprocess.Popen(
                [*program, "serve", "--store", store_url, *port, *arguments],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, env={**os.environ, "COLUMNS": "200", **(env or {})},
            )  # fmt: skip
        service = Serving(process, said)
        try:
            _wait(service, ready)
            yield service
        finally:
            service.stop()


def _wait(service: Serving, ready: bool) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if service.process.poll() is not None:
            break
        if found := SERVES.search(service.stderr) if ready else LISTENS.search(service.stderr):
            service.url = found[1] or found[2]
            return
        time.sleep(0.05)
    raise AssertionError(f"the service does not serve:\n{service.stderr}")
