"""`roost demo`: the service doing its main job, on a made-up zone, in a minute."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roost.cli.output import console, errors

if TYPE_CHECKING:
    from roost.client import Client

START_SECONDS = 180.0
USUAL_PORT = 7117


def demo(
    machines: Annotated[int, typer.Option(help="Size of the made-up zone.", min=100, max=200_000)] = 20_000,
    fill: Annotated[float, typer.Option(help="Fill it to this share of all cores.", min=0.05, max=0.95)] = 0.6,
    seconds: Annotated[float, typer.Option(help="Then let tenants come and go for this long.", min=1.0)] = 12.0,
    policy: Annotated[str, typer.Option(help="A shipped policy (see `roost policy list`) or a file.")] = "default",
    seed: Annotated[int, typer.Option(help="Of the zone and of the workload.", min=0)] = 1,
    stay: Annotated[
        bool | None, typer.Option("--stay/--leave", help="Go on serving afterwards; the default on a terminal.")
    ] = None,
) -> None:
    """Start the service on a new zone, play a workload against its HTTP API, and explain a decision.

    Everything is real: the service with its embedded store (SQLite, durable), in a folder that is removed at the end.

    \b
      roost demo
      roost demo --machines 100000 --fill 0.4
      roost demo --policy dense --stay
    """
    import asyncio

    from roost.cli.play import play
    from roost.client import Client
    from roost.traces.generate import requests
    from roost.wiring import find_zone

    out = console()
    zone = f"synthetic:{machines}"
    described = find_zone(zone, seed)
    out.print(repr(described), style="bold", highlight=False, soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="roost-demo-") as folder, _service(Path(folder), zone, policy) as url:
        _suggest(url)
        asyncio.run(play(url, requests(described, seed), fill, seconds, seed, out))
        with Client(url) as client:
            _explain(client)
        if stay if stay is not None else sys.stdout.isatty():
            out.print(f"\nStill serving at {url}; Ctrl-C ends it.", highlight=False)
            with suppress(KeyboardInterrupt):
                signal.pause()


@contextmanager
def _service(folder: Path, zone: str, policy: str) -> Iterator[str]:
    """`roost serve` as a process of its own, by its address."""
    from roost.api.server import listen
    from roost.client import Client, ServiceProblem, ServiceUnreachable
    from roost.model.errors import InvalidInput, StoreUnavailable

    try:
        probe = listen("127.0.0.1", USUAL_PORT)
    except InvalidInput:  # somebody else has it
        probe = listen("127.0.0.1", 0)
    port = probe.getsockname()[1]
    probe.close()
    url, log = f"http://127.0.0.1:{port}", folder / "log"
    script = "from roost.cli.main import main; main()"
    options = ["--store", str(folder / "zone.db"), "--zone", zone, "--policy", policy, "--port", str(port)]
    with log.open("wb") as stream:
        service = subprocess.Popen(
            [sys.executable, "-c", script, "serve", *options],
            stderr=stream,
            env={**os.environ, "ROOST_LOG_REQUESTS": "failed"},
            start_new_session=True,  # Ctrl-C is for this process, which then ends that one
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        with errors().status("Starting the service (the first time it compiles the rules) …"), Client(url) as client:
            while True:
                try:
                    client.ready()
                    break
                except (ServiceUnreachable, ServiceProblem):
                    if service.poll() is not None or time.monotonic() > deadline:
                        said = log.read_text().strip()[-1_000:]
                        raise StoreUnavailable(f"the service did not start: {said}") from None
                    time.sleep(0.2)
        yield url
    finally:
        service.terminate()
        service.wait()


def _suggest(url: str) -> None:
    """Commands to try in another terminal."""
    where = "" if url.endswith(f":{USUAL_PORT}") else f" --url {url}"
    out = console()
    out.print("The service is up. In another terminal, try:", highlight=False)
    for command in (
        f"roost capacity D4{where}",
        f"roost tenant create shop --vm D4=3 --min-fault-domains 3{where}",
        f"roost why-not c003-r00-m00 --tenant shop --vm D4{where}",
    ):
        out.print(f"  {_program()} {command.removeprefix('roost ')}", style="bold", highlight=False, soft_wrap=True)
    out.print()


def _program() -> str:
    """How this very command is called from a shell."""
    called = Path(sys.argv[0])
    if called.name != "roost":
        return "roost"
    with suppress(ValueError):
        return str(called.resolve().relative_to(Path.cwd()))
    return "roost"


def _explain(client: Client) -> None:
    from roost.client import ServiceProblem
    from roost.model.request import Constraints
    from roost.wire.tenants import VMWish

    out = console()
    wish = [VMWish(type="D4", count=3)]
    try:
        placed = client.create_tenant("acme", wish, Constraints(min_fault_domains=3, max_per_machine=1))
        out.print("\n[bold]One decision explained[/bold]: three D4 in three fault domains")
        for each in placed.vms:
            out.print(f"  {each.vm} → {each.machine}", highlight=False)
        found = client.explain_decision(placed.decision)
        out.print(found.text, markup=False, highlight=False, soft_wrap=True)
    except ServiceProblem as problem:
        out.print(str(problem), markup=False, highlight=False)
    out.print("\n[bold]And one refusal[/bold]: a whole gen6 machine for each of 700 VMs")
    refusal = client.explain("giant", [VMWish(type="Full-gen6", count=700)])
    out.print(refusal.text, markup=False, highlight=False, soft_wrap=True)
