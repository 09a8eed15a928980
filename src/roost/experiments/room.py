"""Room for growth and healing: thresholds in empty machines, and why not in utilisation (Azure's VM allocator)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import numpy as np

from roost.admission.history import ClusterHistory, ZoneHistory
from roost.admission.thresholds import DAY, HOUR, compute
from roost.experiments.room_findings import TARGETS, draw, find
from roost.experiments.study import (
    Cell,
    Desk,
    Study,
    Value,
)
from roost.model.request import VM, Request
from roost.model.rows import MachineState
from roost.model.synthetic import standard_generations, standard_vm_types
from roost.model.thresholds import Purpose, Thresholds
from roost.model.zone import DEFAULT_BANDS, DEFAULT_RESOURCES, MachineGroup, Zone
from roost.placing.allocator import Allocator
from roost.placing.books import RunningVM
from roost.rules.policy import Policy

if TYPE_CHECKING:
    pass

GENERATION, WHOLE = "gen4", "Full-gen4"
TYPES = {"D1": 0.30, "D2": 0.30, "D3": 0.20, "D4": 0.13, "D14": 0.05, WHOLE: 0.02}  # and how many of the VMs are it
RACK = 10  # machines
LIFE_DAYS = 4.0  # of a VM, on average
GROWTH = 0.12  # scale-outs a day for each machine, on average; some days have several times more
BUSY = 0.5  # how much days differ: sigma of a lognormal factor
FAILURES = 0.02  # a day for each machine: far more than usual, so that there is something to count
RACK_FAILURES = 0.01  # a day for each rack
REPAIR_HOURS = 12.0
SAMPLE_DAYS = 0.1
TRIED = 12  # machines of a sample that are tried to be healed from
OVERLOAD = 1.4  # what new deployments would use, over what there is: thresholds alone hold them back

HEALING = (0, 2, 4, 8, 12)  # machines between scale-outs' threshold and healing's
GROWING = (0, 1, 2, 4, 8, 16)  # machines between new deployments' threshold and scale-outs'
LOADS = (0.4, 0.55, 0.7, 0.85)
POLICIES = ("fast", "spread")  # one packs, the other spreads out


def cells(quick: bool) -> list[Cell]:
    """Buffers for healing, buffers for growth, thresholds from history, and states without thresholds."""
    size = {"machines": 40, "days": 6.0, "warm_up": 2.0} if quick else {"machines": 200, "days": 320.0, "warm_up": 20.0}
    seeds = (1,) if quick else (1, 2, 3)
    found = []
    for seed in seeds:
        common: dict[str, Any] = {"seed": seed, **size}
        for spare in HEALING[::2] if quick else HEALING:
            kept = {"kind": "healing", "new": spare + 1, "scale_out": spare}
            found.append(Cell(f"healing-{spare}-seed{seed}", {**kept, **common}))
        for spare in GROWING[::3] if quick else GROWING:
            kept = {"kind": "growth", "new": spare + 2, "scale_out": 2}
            found.append(Cell(f"growth-{spare}-seed{seed}", {**kept, **common}))
        found.append(Cell(f"history-seed{seed}", {"kind": "history", **common}))
        for policy in POLICIES:
            for load in LOADS[1:3] if quick else LOADS:
                short = common | {"days": min(60.0, size["days"])}
                label = f"state-{policy}-{load}-seed{seed}"
                found.append(Cell(label, {"kind": "state", "policy": policy, "load": load, **short}))
    return found


# ---------------------------------------------------------------------------------------------------- a cluster's life


def cluster(machines: int) -> Zone:
    """One cluster of a synthetic zone's hardware."""
    return Zone(
        name=f"cluster-{machines}",
        resources=DEFAULT_RESOURCES,
        bands=DEFAULT_BANDS,
        generations=standard_generations(),
        vm_types=standard_vm_types(),
        groups=[
            MachineGroup(
                datacenter="dc1",
                cluster="c",
                rack=f"r{first // RACK:02d}",
                generation=GENERATION,
                names=[f"m{first + i:03d}" for i in range(min(RACK, machines - first))],
                update_domains=list(range(min(RACK, machines - first))),
            )
            for first in range(0, machines, RACK)
        ],
        conflicts=(("disk-heavy", "latency-critical"), ("licensed", "licensed")),
    )


@dataclass
class Tally:
    """What happened after the warm-up."""

    asked: dict[Purpose, int] = field(default_factory=lambda: dict.fromkeys(Purpose, 0))
    failed: dict[Purpose, int] = field(default_factory=lambda: dict.fromkeys(Purpose, 0))
    used: list[float] = field(default_factory=list)  # utilisation, at each sample
    empty: list[int] = field(default_factory=list)
    bad_days: set[int] = field(default_factory=set)  # on which a scale-out failed

    def rate(self, purpose: Purpose) -> float:
        """Failed, of those asked."""
        return self.failed[purpose] / max(1, self.asked[purpose])


class Life:
    """A cluster in which tenants come, grow and leave, and machines fail and are repaired. Times are days."""

    def __init__(self, machines: int, policy: str, seed: int, load: float = OVERLOAD, growth: float = GROWTH) -> None:
        self.allocator = Allocator(cluster(machines), Policy.named(policy), seed)
        # Busy days and failures are the same whatever the thresholds: cells of a seed are compared on the same past.
        self.draw, self._busy, self._broken = (np.random.default_rng([seed, stream]) for stream in (7, 8, 9))
        self.machines, self.now = machines, 0.0
        self.tally = Tally()
        self.history = ClusterHistory(cluster="c", generation=GENERATION, machines=machines, outages=[], growth=[])
        self._events: list[tuple[float, int, str, Any]] = []
        self._count = 0
        self._tenants: list[tuple[str, VM]] = []  # some of them gone
        self._names = list(TYPES)
        self._weights = np.array(list(TYPES.values()))
        zone = self.allocator.zone
        generation = zone.generation_index[GENERATION]
        self.capacity = zone.machines["capacity"][0].astype(float)
        self._demand = {name: zone.demand[zone.vm_type(name), generation] for name in TYPES}
        cores = sum(share * float(self._demand[name][0]) for name, share in TYPES.items())
        self._new_rate = load * machines * float(self.capacity[0]) / (2.0 * cores * LIFE_DAYS)  # two VMs each
        self._growth_rate = growth * machines
        self._at(0.0, "new")
        self._at(0.0, "day")
        self._at(SAMPLE_DAYS, "sample")
        self._racks = machines // RACK
        self._at(self._broken.exponential(1 / (FAILURES * machines)), "fail")
        self._at(self._broken.exponential(1 / (RACK_FAILURES * self._racks)), "fail_rack")

    def _at(self, when: float, what: str, about: Any = None) -> None:
        self._count += 1
        heappush(self._events, (when, self._count, what, about))

    @property
    def events(self) -> int:
        """How many there were, or will be."""
        return self._count

    def run(self, until: float) -> None:
        """Let everything happen up to a day."""
        while self._events[0][0] < until:
            self.now, _, what, about = heappop(self._events)
            getattr(self, f"_{what}")(about)

    # What happens. Tenants have one to three VMs of one type.

    def _new(self, _: None) -> None:
        vm = VM(self._names[int(self.draw.choice(len(self._names), p=self._weights))])
        tenant = f"t{self._count}"
        if self._ask(tenant, vm, int(self.draw.integers(1, 4)), Purpose.NEW):
            self._tenants.append((tenant, vm))
        self._at(self.now + self.draw.exponential(1 / self._new_rate), "new")

    def _day(self, _: None) -> None:
        """How many grow today: some days are busy."""
        busy = self._busy.lognormal(-(BUSY**2) / 2, BUSY)
        for when in self._busy.uniform(self.now, self.now + 1, self._busy.poisson(self._growth_rate * busy)):
            self._at(float(when), "grow")
        self._at(self.now + 1, "day")

    def _grow(self, _: None) -> None:
        while self._tenants:
            i = int(self.draw.integers(len(self._tenants)))
            tenant, vm = self._tenants[i]
            if tenant in self.allocator.tenants:
                if self._ask(tenant, vm, int(self.draw.integers(1, 4)), Purpose.SCALE_OUT):
                    return
                self.tally.bad_days.add(int(self.now))
                return
            self._tenants[i] = self._tenants[-1]
            self._tenants.pop()

    def _ask(self, tenant: str, vm: VM, count: int, purpose: Purpose) -> bool:
        decision = self.allocator.allocate(Request(tenant, (vm,) * count))
        assert decision.purpose == purpose
        self.tally.asked[purpose] += 1
        self.tally.failed[purpose] += not decision.ok
        for placement in decision.placements:
            self._at(self.now + self.draw.exponential(LIFE_DAYS), "leave", placement.vm)
        if decision.ok and purpose is Purpose.SCALE_OUT:
            share = float((self._demand[vm.type] / self.capacity).max())
            self.history.growth.append((self.now * DAY, [share] * count))
        return decision.ok

    def _leave(self, vm: str) -> None:
        if vm in self.allocator.vms:  # else it was not healed
            self.allocator.release(vm)

    def _fail(self, _: None) -> None:
        self._go_down([int(self._broken.integers(self.machines))])
        self._at(self.now + self._broken.exponential(1 / (FAILURES * self.machines)), "fail")

    def _fail_rack(self, _: None) -> None:
        first = RACK * int(self._broken.integers(self._racks))
        self._go_down(list(range(first, first + RACK)))
        self._at(self.now + self._broken.exponential(1 / (RACK_FAILURES * self._racks)), "fail_rack")

    def _go_down(self, machines: Sequence[int]) -> None:
        """Machines fail at once; their VMs are placed again under their names, the largest first, or lost."""
        allocator, names = self.allocator, self.allocator.zone.machine_names
        failing = [m for m in machines if allocator.view.machines[m]["state"] == MachineState.READY]
        lost = self._largest_first(each for vms in allocator.running_on(failing).values() for each in vms)
        for each in lost:
            allocator.release(each.name)
        for m in failing:
            allocator.set_machine_state(names[m], "down")
        for each in lost:
            wish = Request(each.tenant, [VM(each.vm.type, each.name)])
            self.tally.asked[Purpose.HEALING] += 1
            self.tally.failed[Purpose.HEALING] += not allocator.allocate(wish, purpose=Purpose.HEALING).ok
        hours = self._broken.exponential(REPAIR_HOURS)
        self.history.outages.extend([(self.now * DAY, self.now * DAY + hours * HOUR)] * len(failing))
        self._at(self.now + hours / 24, "repair", [names[m] for m in failing])

    def _repair(self, machines: Sequence[str]) -> None:
        for machine in machines:
            self.allocator.set_machine_state(machine, "ready")

    def _largest_first(self, vms: Iterable[RunningVM]) -> list[RunningVM]:
        return sorted(vms, key=lambda each: (-int(self._demand[each.vm.type][0]), each.name))

    def _sample(self, _: None) -> None:
        self.tally.used.append(self.allocator.usage().utilisation)
        self.tally.empty.append(int(self.allocator.view.clusters[0]["empty"][0]))
        self._at(self.now + SAMPLE_DAYS, "sample")

    # What could happen.

    def heals(self, machine: int) -> bool:
        """Whether all VMs of a machine would find another one, if it failed. Nothing stays changed."""
        allocator = self.allocator
        view, engine = allocator.view, allocator.engine
        lost = self._largest_first(allocator.running_on([machine])[machine])
        before = view.attempt()
        try:
            for each in lost:
                view.remove(machine, each.shape)
            view.set_state(machine, MachineState.DOWN)
            shapes = [allocator.shape(each.vm, each.tenant, purpose=Purpose.HEALING) for each in lost]
            return all(engine.assign(shape).machine >= 0 for shape in shapes)
        finally:
            view.rewind(before)

    def hosts(self, vm_type: str) -> bool:
        """Whether one more VM of a type would fit. Nothing stays changed."""
        view = self.allocator.view
        before = view.attempt()
        try:
            return self.allocator.engine.assign(self.allocator.shapes.of(VM(vm_type), 0)).machine >= 0
        finally:
            view.rewind(before)


# ------------------------------------------------------------------------------------------------------------- a cell


def perform(cell: Cell, desk: Desk) -> list[dict[str, Value]]:
    """One life, or the states of one."""
    if cell["kind"] == "state":
        return _states(cell, desk)
    life = Life(cell["machines"], "fast", cell["seed"])
    if cell["kind"] == "history":
        return [_from_history(cell, life, desk)]
    life.allocator.set_thresholds("c", Thresholds(new=cell["new"], scale_out=cell["scale_out"]))
    _live(life, cell["warm_up"], desk, 0.1)
    life.tally = Tally()
    _live(life, cell["days"], desk, 1.0)
    return [{"kind": cell["kind"], "new": cell["new"], "scale_out": cell["scale_out"], **_measured(cell, life)}]


def _live(life: Life, until: float, desk: Desk, share: float) -> None:
    start = life.now
    for day in np.arange(start, until, 1.0)[1:]:
        life.run(float(day))
        desk.tell(share * float(day - start) / (until - start), life.events)
    life.run(until)


def _measured(cell: Cell, life: Life) -> dict[str, Value]:
    tally, days = life.tally, cell["days"] - cell["warm_up"]
    return {
        "seed": cell["seed"],
        "utilisation": float(np.mean(tally.used)),
        "empty": float(np.mean(tally.empty)),
        "scale_outs": tally.asked[Purpose.SCALE_OUT],
        "scale_out_failures": tally.rate(Purpose.SCALE_OUT),
        "bad_days": len(tally.bad_days) / days,
        "healings": tally.asked[Purpose.HEALING],
        "healing_failures": tally.rate(Purpose.HEALING),
        "new_refused": tally.rate(Purpose.NEW),
    }


def _from_history(cell: Cell, life: Life, desk: Desk) -> dict[str, Value]:
    """First with much to spare, so that the past is that of demand; then with the thresholds that it asks for."""
    spare = cell["machines"] // 4
    life.allocator.set_thresholds("c", Thresholds(new=spare, scale_out=spare // 4))
    _live(life, cell["warm_up"], desk, 0.1)
    half = (cell["warm_up"] + cell["days"]) / 2
    since = life.now
    life.history.outages.clear()
    life.history.growth.clear()
    _live(life, half, desk, 0.5)
    past = ZoneHistory(since=since * DAY, until=half * DAY, clusters=[life.history])
    (found,) = compute(past, TARGETS)
    life.allocator.set_thresholds("c", found.thresholds)
    _live(life, half + cell["warm_up"], desk, 0.6)  # until it is as full as it may be
    life.tally = Tally()
    began = life.now
    _live(life, half + cell["days"], desk, 1.0)
    measured = _measured(cell, life) | {"bad_days": len(life.tally.bad_days) / (life.now - began)}
    kept = found.thresholds
    return {"kind": "history", "new": kept.new, "scale_out": kept.scale_out, **measured}


def _states(cell: Cell, desk: Desk) -> list[dict[str, Value]]:
    """A cluster without thresholds, looked at once a day: how full, how many empty, what could be healed and hosted."""
    life = Life(cell["machines"], cell["policy"], cell["seed"], cell["load"])
    _live(life, cell["warm_up"], desk, 0.2)
    rows: list[dict[str, Value]] = []
    for day in np.arange(cell["warm_up"] + 1, cell["days"], 1.0):
        life.run(float(day))
        desk.tell(float(day) / cell["days"], life.events)
        machines = life.allocator.view.machines
        in_use = np.flatnonzero((machines["vms"] > 0) & (machines["state"] == MachineState.READY))
        tried = life.draw.choice(in_use, min(TRIED, len(in_use)), replace=False).tolist()
        rows.append(
            {
                "kind": "state",
                "policy": cell["policy"],
                "load": cell["load"],
                "seed": cell["seed"],
                "utilisation": life.allocator.usage().utilisation,
                "empty": int(life.allocator.view.clusters[0]["empty"][0]),
                "healable": sum(life.heals(m) for m in tried) / max(1, len(tried)),
                "hosts": int(life.hosts(WHOLE)),
            }
        )
    return rows


SLIDES_THRESHOLDS = Study(
    name="slides-thresholds",
    title="thresholds in empty machines",
    source="Azure's VM allocator internals (slides): buffers, setting the thresholds, utilisation against empty nodes",
    question="Do empty machines tell what utilisation does not, and what do thresholds bring and cost?",
    cells=cells,
    perform=perform,
    find=find,
    draw=draw,
)
