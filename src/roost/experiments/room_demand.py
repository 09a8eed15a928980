"""One cluster, and what is asked of it in the study of room for growth and healing: tenants come, grow and leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np

from roost.model.request import VM, Request
from roost.model.spans import DAY
from roost.model.synthetic import standard_generations, standard_vm_types
from roost.model.thresholds import Thresholds
from roost.model.zone import DEFAULT_BANDS, DEFAULT_RESOURCES, MachineGroup, Zone
from roost.traces.workload import Workload, WorkloadType

CLUSTER, GENERATION, WHOLE = "c", "gen4", "Full-gen4"
TYPES = {"D1": 0.30, "D2": 0.30, "D3": 0.20, "D4": 0.13, "D14": 0.05, WHOLE: 0.02}  # and how many of the VMs are it
RACK = 10  # machines
LIFE_DAYS = 4.0  # of a VM, on average
GROWTH = 0.12  # scale-outs a day for each machine, on average; some days have several times more
BUSY = 0.5  # how much days differ: sigma of a lognormal factor
OVERLOAD = 1.4  # what new deployments would use, over what there is: thresholds alone hold them back
GROWING = "growing"  # in place of the tenant of a request: whoever grows is drawn when it is time


class Span(msgspec.Struct, frozen=True):
    """How much is simulated, and from what seed."""

    machines: int
    days: float
    warm_up: float  # days, of these
    seed: int


def make_cluster(machines: int, kept: Thresholds) -> Zone:
    """One cluster of a synthetic zone's hardware, that keeps some machines empty."""
    return Zone(
        name=f"cluster-{machines}",
        resources=DEFAULT_RESOURCES,
        bands=DEFAULT_BANDS,
        generations=standard_generations(),
        vm_types=standard_vm_types(),
        groups=[
            MachineGroup(
                datacenter="dc1",
                cluster=CLUSTER,
                rack=f"r{first // RACK:02d}",
                generation=GENERATION,
                names=[f"m{first + i:03d}" for i in range(min(RACK, machines - first))],
                update_domains=list(range(min(RACK, machines - first))),
            )
            for first in range(0, machines, RACK)
        ],
        conflicts=(("disk-heavy", "latency-critical"), ("licensed", "licensed")),
        thresholds={CLUSTER: kept},
    )


@dataclass(frozen=True)
class GrowingWorkload(Workload):
    """Who grows is not known beforehand: it has to have been let in, and to run still."""

    grows: Callable[[int], tuple[str, VM]] | None = None  # by the number of a request: whose it is, and for what

    def request(self, number: int) -> Request:
        """A new tenant's, as ever; or one of somebody that runs by then."""
        request = super().request(number)
        if self.grows is None or request.tenant != GROWING:
            return request
        tenant, vm = self.grows(number)
        return Request(tenant, (vm,) * len(request.vms))


def draw_demand(span: Span, zone: Zone, load: float, grows: Callable[[int], tuple[str, VM]]) -> GrowingWorkload:
    """Tenants of one to three VMs of one type, and, from the second day on, as many VMs more of some of them.

    What is drawn is the same whatever the thresholds: cells of a seed are compared on the same days.
    """
    draw, busy = (np.random.default_rng([span.seed, stream]) for stream in (7, 8))
    new = draw.uniform(0, span.days, draw.poisson(_new_a_day(zone, load) * span.days))
    days = np.arange(1, int(np.ceil(span.days)))
    factors = busy.lognormal(-(BUSY**2) / 2, BUSY, len(days))  # some days are busy
    growth = np.repeat(days, busy.poisson(GROWTH * span.machines * factors)).astype(float)
    growth += busy.uniform(0, 1, len(growth))
    arrival = np.concatenate([new, growth])
    order = np.argsort(arrival, kind="stable")
    sizes = np.concatenate([draw.integers(1, 4, len(new)), busy.integers(1, 4, len(growth))])[order]
    types = draw.choice(len(TYPES), len(order), p=list(TYPES.values())).astype(np.int32)
    return GrowingWorkload(
        name="growing",
        types=[WorkloadType(name) for name in TYPES],
        resources=[],
        arrival=arrival[order] * DAY,
        first=np.concatenate([[0], np.cumsum(sizes)]),
        type=np.repeat(types, sizes),
        lifetime=draw.exponential(LIFE_DAYS * DAY, int(sizes.sum())),
        tenants=[f"t{number}" if came < len(new) else GROWING for number, came in enumerate(order.tolist())],
        priority=np.zeros(int(sizes.sum()), np.int8),
        grows=grows,
    )


def _new_a_day(zone: Zone, load: float) -> float:
    """Requests of two VMs, on the average, that would use a share of the cluster if all of them were placed."""
    demand = zone.demand[:, zone.generation_index[GENERATION], zone.cores_at]
    cores = sum(share * float(demand[zone.vm_type(name)]) for name, share in TYPES.items())
    return load * float(zone.machines["capacity"][:, zone.cores_at].sum()) / (2.0 * cores * LIFE_DAYS)
