"""How soon the VMs of a rack that fails run elsewhere; and what comes of the outages of a real system."""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from roost.agent.agent import Agent
from roost.agent.courier import InlineCourier
from roost.agent.verbs.entry import SetEntry
from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.place import PlaceVMs
from roost.bench.reporting import ReportProgress
from roost.duties.healing import KEY, Healer, lost_vms
from roost.engine.tenant import TenantDesk
from roost.model.errors import InvalidInput
from roost.model.registry import THRESHOLD
from roost.model.request import VM, Constraints, Request
from roost.model.rows import MachineState
from roost.model.thresholds import Purpose, Thresholds
from roost.model.zone import Zone
from roost.placing.books import RunningVM
from roost.placing.seating import seating
from roost.rules.policy import Policy
from roost.store.audit import check_invariants
from roost.store.contract import Store
from roost.store.history import entries_between
from roost.traces.outages import Outage
from roost.wiring import calm_collector, open_store

TYPES = {"D1": 4, "D2": 4, "D3": 2, "A2": 4, "A3": 2, "D4": 1}  # how often each comes
AT_ONCE = 20  # requests, while a zone is filled: few enough not to fill it by much more than was asked for
SPOT = 0.1  # share of the requests
SPREAD = 0.2  # share of the requests for several VMs: they must be in two racks
KEPT = Thresholds(new=4, scale_out=2)  # in every cluster


class Site:
    """A zone that keeps empty machines in every cluster, with an agent that heals."""

    def __init__(self, zone: Zone, store: Store, seed: int = 1) -> None:
        self.zone, self.store, self.now = zone, store, 1.0
        self.agent = Agent(store, InlineCourier(store), Policy.default(), "bench", now=lambda: self.now)
        self.healer = Healer(self.agent, lambda: self.now, lambda: self.now)
        self._draw, self._tenants = random.Random(seed), 0
        kept = msgspec.json.encode(KEPT).decode()
        self.do(*(SetEntry(THRESHOLD, cluster, kept) for cluster in zone.cluster_names))

    @property
    def full(self) -> float:
        """The share of the cores that is used."""
        return self.agent.allocator.usage().utilisation

    @property
    def fewest_empty(self) -> int:
        """The empty machines of the cluster that has fewest."""
        return int(self.agent.allocator.view.clusters["empty"][:, 0].min())

    def do(self, *operations: SetEntry | SetMachine) -> None:
        """What an operator asks for; all of it is done."""
        for answer in self.agent.run(*map(self.agent.submit, operations)):
            if not answer.ok:
                raise InvalidInput("machines", answer.detail)

    def fill(self, share: float, tell: Callable[[float], None]) -> None:
        """Place VMs until so much of the cores is used."""
        while (full := self.full) < share:
            tell(full / share)
            tickets = [self.agent.submit(PlaceVMs(self._request())) for _ in range(AT_ONCE)]
            if not any(answer.ok for answer in self.agent.run(*tickets)):
                raise InvalidInput("full", f"is {share}", f"the zone takes no more than {full:.2f}")

    def _request(self) -> Request:
        self._tenants += 1
        kind = self._draw.choices(list(TYPES), list(TYPES.values()))[0]
        priority = self.zone.bands[-1] if self._draw.random() < SPOT else ""
        number = self._draw.choice((1, 1, 2, 3))
        spread = number > 1 and self._draw.random() < SPREAD
        constraints = Constraints(min_fault_domains=2) if spread else None
        return Request(f"tenant-{self._tenants}", (VM(kind, priority=priority),) * number, constraints)

    def set(self, state: Any, machines: Sequence[int]) -> None:
        """Machines go down, or come back: one event."""
        self.do(*(SetMachine(self.zone.machine_names[m], state=state) for m in machines))

    def heal(self) -> None:
        """Until nothing is under way."""
        self.healer.step(self.now)
        while not self.agent.idle:
            self.agent.step()

    def could_be_healed(self) -> int:
        """VMs that are lost though a machine would have them."""
        return sum(map(self._has_room, lost_vms(self.agent.allocator)))

    def _has_room(self, vm: RunningVM) -> bool:
        """Whether a machine may have a VM that is healed, beside the others of its tenant: all are judged anew."""
        allocator = self.agent.allocator
        view, tenant = allocator.view, allocator.tenants[vm.tenant]
        part = seating(tenant.constraints, (vm.vm,), tenant.vms.values(), (vm,)).part_of(0)
        desk, shape = TenantDesk(view), allocator.shape(vm.vm, vm.tenant, purpose=Purpose.HEALING)
        desk.open(part.terms.rungs[-1], part.homes, 1)
        before = view.attempt()
        try:
            view.remove(vm.machine, vm.shape)
            judged = allocator.arm_of(vm.tenant).engine.judge(view, shape, desk)
        finally:
            view.rewind(before)
        return bool((judged.verdicts < 0).any())


def healed_twice(store: Store) -> int:
    """VMs that healing placed more than once for one outage of their machine, as the feed tells it."""
    on: dict[str, set[str]] = {}  # by machine: its VMs
    lost: dict[str, int] = {}  # by VM: the revision at which a machine that had it went down last
    placed: Counter[tuple[str, int]] = Counter()  # by VM and outage
    for revision, entry in entries_between(store, 0, store.head()[0]):
        healing = entry.key.startswith(KEY)
        for each in entry.released:
            on[each.machine].discard(each.vm)
        for each in entry.placed:
            on.setdefault(each.machine, set()).add(each.vm)
            if healing:
                placed[each.vm, lost.get(each.vm, 0)] += 1
        for change in entry.conditions:
            if change.field == "state" and change.after == MachineState.DOWN:
                lost.update(dict.fromkeys(on.get(change.machine, ()), revision))
    return len({vm for (vm, _), times in placed.items() if times > 1})


def bench_heal(
    machines: int,
    full: float,
    repeats: int,
    outages: Sequence[Outage] = (),
    progress: ReportProgress = lambda _t, _s: None,
) -> list[dict[str, Any]]:
    """A rack on an embedded store, several times; then the outages, if there are any."""
    zone = Zone.synthetic(machines, seed=1)
    rows = [_racks(zone, full, repeats, progress)]
    if outages:
        rows.append(_replay(zone, full, outages, progress))
    return rows


def _racks(zone: Zone, full: float, repeats: int, progress: ReportProgress) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="roost-bench-") as folder:
        site = Site(zone, open_store(str(Path(folder) / "zone.db"), create=zone))
        site.fill(full, lambda share: progress("filling a zone", share))
        calm_collector()
        racks = _whole_racks(zone)
        seconds, vms, left = [], [], []
        for turn in range(repeats):
            rack = racks[turn * 5 % len(racks)]
            site.set("down", rack)
            lost = len(lost_vms(site.agent.allocator))
            started = time.perf_counter()
            site.heal()
            seconds.append(time.perf_counter() - started)
            left.append(len(lost_vms(site.agent.allocator)))
            vms.append(lost - left[-1])
            site.set("ready", rack)
            site.now += 3_600.0
            site.heal()
            progress("failing racks", (turn + 1) / repeats)
        check_invariants(site.store)
        site.agent.close()
        site.store.close()
    return {
        "what": f"a rack of {len(racks[0])} machines of {len(zone.machines):,}, {full:.0%} full, SQLite",
        "failures": repeats,
        "vms_healed": int(np.median(vms)),
        "most_that_waited": max(left),
        "seconds": round(float(np.median(seconds)), 3),
        "slowest_seconds": round(max(seconds), 3),
    }


def _whole_racks(zone: Zone) -> list[list[int]]:
    """The machines of each rack that has as many as any."""
    racks = zone.machines["rack"]
    sizes = np.bincount(racks)
    return [np.flatnonzero(racks == rack).tolist() for rack in np.flatnonzero(sizes == sizes.max())]


def _replay(zone: Zone, full: float, outages: Sequence[Outage], progress: ReportProgress) -> dict[str, Any]:
    site = Site(zone, open_store("memory:", create=zone))
    site.fill(full, lambda share: progress("filling a zone", share))
    began_at, before = site.full, set(site.agent.allocator.vms)
    events = sorted([(each.start, 1, each.node) for each in outages] + [(each.end, 0, each.node) for each in outages])
    down: dict[int, int] = {}  # outages may overlap
    waited = missed = 0
    fewest = site.fewest_empty
    seconds = []
    for done, (at, fails, node) in enumerate(events):
        machine = node % len(zone.machines)
        site.now = 1.0 + at
        down[machine] = down.get(machine, 0) + (1 if fails else -1)
        if fails and down[machine] == 1:
            site.set("down", [machine])
        elif not fails and not down[machine]:
            site.set("ready", [machine])
        started = time.perf_counter()
        site.heal()
        if fails:
            seconds.append(time.perf_counter() - started)
            fewest = min(fewest, site.fewest_empty)
            if site.healer.waiting:
                waited += 1
                missed += site.could_be_healed()
        if done % 50 == 0:
            progress("replaying outages", done / len(events))
    check_invariants(site.store)
    after = set(site.store.load().vms)
    evicted = {
        each.vm
        for row in site.store.changes(0, 10**9).rows
        for entry in row.entries
        if entry.eviction
        for each in entry.released
    }
    counts = site.healer.counts
    site.agent.close()
    return {
        "what": f"{len(outages):,} outages on {len(zone.machines):,} machines, {full:.0%} full",
        "utilisation_at_first": round(began_at, 3),
        "thresholds": f"new {KEPT.new}, scale-out {KEPT.scale_out}, in every cluster",
        "fewest_empty_machines_of_a_cluster": fewest,
        "failures": len(outages),
        "vms_healed": counts.healed,
        "healed_twice": healed_twice(site.store),
        "seconds": round(float(np.median(seconds)), 4),
        "slowest_seconds": round(max(seconds), 3),
        "outages_after_which_some_waited": waited,
        "waited_though_a_machine_had_room": missed,
        "gave_way": len(before - after),
        "lost": len(before - after - evicted),
        "flapping_machines_quarantined": counts.quarantined,
    }
