"""`roost demo`: Roost doing its main job, on a made-up zone, in a minute."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Annotated

import typer

from roost.cli.output import console, errors, progress

if TYPE_CHECKING:
    from rich.table import Table

    from roost.agent.allocator import Allocator


LEAVING = 0.4  # how likely a VM leaves after each request, then another, and so on


def demo(
    machines: Annotated[int, typer.Option(help="Size of the made-up zone, 100 to 200,000.")] = 20_000,
    fill: Annotated[float, typer.Option(help="Stop at this share of all cores.", min=0.05, max=0.95)] = 0.85,
    policy: Annotated[str, typer.Option(help="A shipped policy (see `roost policy list`) or a file.")] = "default",
    seed: Annotated[int, typer.Option(help="Same seed, same run.")] = 1,
) -> None:
    """Fill a zone with VMs that come and go, report how well and how fast, and explain a decision.

    \b
      roost demo
      roost demo --machines 100000
      roost demo --policy dense --fill 0.9
    """
    from roost.agent.allocator import Allocator
    from roost.model.zone import Zone
    from roost.wiring import find_policy

    chosen = find_policy(policy)
    zone = Zone.synthetic(machines, seed)
    with errors().status("Compiling the rules (once; later starts load them from disk) …"):
        allocator = Allocator(zone, chosen, seed)
    out = console()
    out.print(repr(zone), style="bold", highlight=False, soft_wrap=True)
    out.print(f"policy {chosen.name}: {chosen.description}", highlight=False)
    placed, refused, latencies = _fill(allocator, fill, seed)
    out.print(_report(allocator, placed, refused, latencies))
    _explain(allocator)


def _fill(allocator: Allocator, fill: float, seed: int) -> tuple[int, int, list[float]]:
    from roost.traces.generate import requests

    clusters = allocator.view.clusters
    capacity = int(clusters["capacity"][:, 0].sum())
    placed = refused = 0
    latencies: list[float] = []
    running: list[str] = []
    rng = random.Random(seed)
    clock = time.perf_counter
    with progress("placing VMs") as report:
        for number, request in enumerate(requests(allocator.zone, seed)):
            started = clock()
            decision = allocator.allocate(request)
            latencies.append((clock() - started) / len(request.vms))
            if decision.ok:
                placed += 1
                running += (placement.vm for placement in decision.placements)
            else:
                refused += 1
            while running and rng.random() < LEAVING:
                at = rng.randrange(len(running))
                running[at], running[-1] = running[-1], running[at]
                allocator.release(running.pop())
            if number % 500 == 0:
                full = int(clusters["used"][:, 0].sum()) / capacity
                report(f"placed {len(allocator.vms):,} VMs", full / fill)
                if full >= fill or refused > placed:
                    return placed, refused, latencies
    raise AssertionError("the workload never ends")


def _report(allocator: Allocator, placed: int, refused: int, latencies: list[float]) -> Table:
    import numpy as np
    from rich.table import Table

    usage, times = allocator.usage(), np.array(latencies) * 1e6
    evaluation = allocator.engine.evaluations.stats
    table = Table(show_header=False, box=None, pad_edge=False)
    rows = [
        ("VMs running", f"{len(allocator.vms):,} of {len(allocator.tenants):,} tenants"),
        ("requests", f"{placed:,} placed, {refused:,} refused"),
        ("utilisation", f"{usage.utilisation:.1%} of all cores"),
        ("packing density", f"{usage.packing_density:.1%} of the cores of machines in use"),
        ("empty machines", f"{usage.empty_machines:,}"),
        (
            "time per VM",
            f"mean {times.mean():.1f} µs, median {np.median(times):.1f} µs, p99 {np.percentile(times, 99):.0f} µs",
        ),
        ("evaluation cache", f"{evaluation.hit_ratio:.2%} hits"),
        ("machines updated", f"{evaluation.updated_per_hit:.1f} per hit, {evaluation.updated_per_miss:,.0f} per miss"),
        ("memory of the agent", f"{sum(allocator.engine.memory().values()) / 1e6:.1f} MB"),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def _explain(allocator: Allocator) -> None:
    from roost.model.request import VM, Constraints, Request

    out = console()
    request = Request("acme", (VM("D4"),) * 3, Constraints(min_fault_domains=3, max_per_machine=1))
    decision = allocator.allocate(request)
    out.print("\n[bold]One decision explained[/bold]: three D4 in three fault domains")
    for placement in decision.placements:
        out.print(f"  {placement.vm} → {placement.machine}", highlight=False)
    out.print(str(decision.explanation), markup=False, highlight=False, soft_wrap=True)
    out.print("\n[bold]And one refusal[/bold]: a whole gen6 machine for each of 700 VMs")
    refusal = allocator.explain(Request("giant", (VM("Full-gen6"),) * 700))
    out.print(str(refusal), markup=False, highlight=False, soft_wrap=True)
