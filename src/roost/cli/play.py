"""A workload played against a service, with a live view of what it does."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from roost.client import AsyncClient, ServiceProblem
from roost.model.request import UNCONSTRAINED, Request
from roost.wire.tenants import BatchItem, VMWish
from roost.wire.zone import ZoneView

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

BATCH, BATCHES = 100, 4  # requests in a call, and calls under way, while the zone is being filled
SINGLE = 12  # requests under way afterwards
LEAVING = 0.45  # how likely a tenant leaves after each request, then another, and so on
LOOK_SECONDS = 0.25  # between looks at the zone
LATELY = 2_000  # requests whose latency is shown
BARS = "▁▂▃▄▅▆▇█"


@dataclass
class Play:
    """What was asked for and what came of it."""

    doing: str = "filling"
    requests: int = 0
    placed_vms: int = 0
    evicted_vms: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=LATELY))  # of single requests
    tenants: list[str] = field(default_factory=list)
    zone: ZoneView | None = None
    history: deque[int] = field(default_factory=lambda: deque(maxlen=40))  # VMs placed between two looks
    started: float = field(default_factory=time.perf_counter)

    @property
    def utilisation(self) -> float:
        """Of all cores."""
        return self.zone.utilisation if self.zone else 0.0


async def play(url: str, requests: Iterator[Request], fill: float, seconds: float, seed: int, console: Console) -> Play:
    """Fill a zone in batches up to a share of its cores; then, for some seconds, tenants come and go one by one."""
    from rich.live import Live

    state, rng = Play(), random.Random(seed)
    async with AsyncClient(url) as client:
        state.zone = await client.get_zone()
        with Live(view(state), console=console, refresh_per_second=8) as live:
            looking = asyncio.create_task(_look(client, state, live))
            try:
                await asyncio.gather(*(_fill(client, state, requests, fill) for _ in range(BATCHES)))
                state.doing = "coming and going"
                end = time.perf_counter() + seconds
                await asyncio.gather(*(_come_and_go(client, state, requests, rng, end) for _ in range(SINGLE)))
                state.doing = "done"
                state.zone = await client.get_zone()
            finally:
                looking.cancel()
                live.update(view(state))
    return state


def _wishes(request: Request) -> tuple[VMWish, ...]:
    first = request.vms[0]  # all VMs of a request are alike
    return (VMWish(type=first.type, count=len(request.vms), priority=first.priority),)


async def _fill(client: AsyncClient, state: Play, requests: Iterator[Request], fill: float) -> None:
    while state.utilisation < fill:
        items = [
            BatchItem(tenant=each.tenant, vms=_wishes(each), constraints=each.constraints or UNCONSTRAINED)
            for each in islice(requests, BATCH)
        ]
        answer = await client.batch(items)
        state.requests += len(items)
        refused = 0
        for item, result in zip(items, answer.results, strict=True):
            if result.placed is not None:
                state.placed_vms += len(result.placed.vms)
                state.evicted_vms += result.placed.evictions
                state.outcomes["placed"] += 1
                state.tenants.append(item.tenant)
            elif result.problem is not None:
                state.outcomes[result.problem.code.removeprefix("roost.")] += 1
                refused += 1
        if refused > BATCH // 2:
            return  # no more than this fits


async def _come_and_go(
    client: AsyncClient, state: Play, requests: Iterator[Request], rng: random.Random, end: float
) -> None:
    while time.perf_counter() < end:
        request = next(requests)
        started = time.perf_counter()
        try:
            placed = await client.create_tenant(request.tenant, _wishes(request), request.constraints or UNCONSTRAINED)
            state.placed_vms += len(placed.vms)
            state.evicted_vms += placed.evictions
            state.outcomes["placed"] += 1
            state.tenants.append(request.tenant)
        except ServiceProblem as problem:
            state.outcomes[problem.code.removeprefix("roost.")] += 1
        state.latencies.append(time.perf_counter() - started)
        state.requests += 1
        while state.tenants and rng.random() < LEAVING:
            at = rng.randrange(len(state.tenants))
            state.tenants[at], state.tenants[-1] = state.tenants[-1], state.tenants[at]
            await _leave(client, state, state.tenants.pop())


async def _leave(client: AsyncClient, state: Play, tenant: str) -> None:
    try:
        await client.delete_tenant(tenant)
        state.outcomes["left"] += 1
    except ServiceProblem as problem:
        if problem.code != "roost.not_found":  # all of its VMs had to give way meanwhile
            raise


async def _look(client: AsyncClient, state: Play, live: object) -> None:
    from rich.live import Live

    assert isinstance(live, Live)
    before = 0
    while True:
        state.zone = await client.get_zone()
        state.history.append(state.placed_vms - before)
        before = state.placed_vms
        live.update(view(state))
        await asyncio.sleep(LOOK_SECONDS)


def view(state: Play) -> Table:
    """What is shown while it plays."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    zone = state.zone
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", min_width=17)
    table.add_column()
    seconds = time.perf_counter() - state.started
    table.add_row("doing", f"{state.doing}, {seconds:.0f} s")
    if zone is not None:
        bar = ProgressBar(total=1.0, completed=zone.utilisation, width=40)
        table.add_row(f"cores {zone.utilisation:6.1%}", bar)
        table.add_row("packing density", f"{zone.packing_density:.1%} of the cores of machines in use")
        table.add_row(
            "VMs", f"{zone.vms:,} of {zone.tenants:,} tenants on {zone.machines - zone.empty_machines:,} machines"
        )
    table.add_row("placed", f"{_bars(state.history)} {_rate(state):,.0f} VMs/s")
    if state.evicted_vms:
        table.add_row("gave way", f"{state.evicted_vms:,} VMs, to others of a higher priority")
    if state.latencies:
        times = sorted(state.latencies)
        middle, high = times[len(times) // 2] * 1e3, times[int(len(times) * 0.99)] * 1e3
        table.add_row("a request takes", f"{middle:.1f} ms, 99 of 100 within {high:.1f} ms (over HTTP, durable)")
    said = ", ".join(f"{number:,} {what.replace('_', ' ')}" for what, number in state.outcomes.most_common())
    table.add_row("requests", f"{state.requests:,}: {said}" if said else "0")
    return table


def _rate(state: Play) -> float:
    lately = list(state.history)[-8:]
    return sum(lately) / (len(lately) * LOOK_SECONDS) if lately else 0.0


def _bars(history: deque[int]) -> str:
    most = max(history, default=0) or 1
    return "".join(BARS[min(7, 8 * each // (most + 1))] for each in history)
