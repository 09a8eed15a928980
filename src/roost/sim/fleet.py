"""The zone that an experiment runs on: one that is described, or a fleet that suits the workload."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from roost.model.errors import InvalidInput
from roost.model.synthetic import MACHINES_PER_RACK, UPDATE_DOMAINS
from roost.model.zone import DEFAULT_BANDS, DEFAULT_RESOURCES, Generation, MachineGroup, VMType, Zone
from roost.sim.experiment import Experiment, Fleet, seconds
from roost.traces.offering import offer_types, type_on
from roost.traces.standing import mean_share_left
from roost.traces.workload import ANY, Workload, WorkloadType
from roost.wiring import find_zone

CLUSTERS = 8  # of a small fleet; a large one has as many as keep a cluster below the following
LARGEST_CLUSTER = 1_000
ANYTHING = "fleet"  # the generation of machines whose VM types take the same everywhere


def zone_for(experiment: Experiment, workload: Workload) -> Zone:
    """The zone of an experiment; every VM type of the workload is known there."""
    if experiment.fleet is not None:
        machines = experiment.fleet.machines or _machines_for(experiment.fleet, experiment, workload)
        return _fleet_zone(experiment.fleet, machines, workload)
    zone = find_zone(experiment.zone)
    offer_types(zone, workload)
    return zone


def _fleet_zone(fleet: Fleet, machines: int, workload: Workload) -> Zone:
    """Equal machines in racks and clusters; of several generations, as many of each, if VM types differ by them."""
    unknown = [r for r in workload.resources if r not in {known.name for known in DEFAULT_RESOURCES}]
    if unknown:
        raise InvalidInput("fleet", f"has no {unknown[0]}, which the workload asks for", "give a zone file")
    kinds = [workload.types[t] for t in np.unique(workload.type).tolist()]  # that are asked for
    generations = _generations(fleet, workload, kinds)
    per_generation = np.array_split(np.arange(machines), len(generations))
    groups: list[MachineGroup] = []
    for generation, share in zip(generations, per_generation, strict=True):
        groups += _racks(generation.name, len(share), len(groups))
    return Zone(
        name=f"fleet-{machines}",
        resources=DEFAULT_RESOURCES,
        bands=DEFAULT_BANDS,
        generations=generations,
        vm_types=[_vm_type(workload, kind, generations) for kind in kinds],
        groups=groups,
    )


def _generations(fleet: Fleet, workload: Workload, kinds: Sequence[WorkloadType]) -> list[Generation]:
    """One of which every VM takes the same, or all that these types tell apart."""
    names = sorted({name for kind in kinds for name in kind.demand if name != ANY}) or [ANYTHING]
    asked = set(workload.resources)
    units = {r.name: getattr(fleet, r.name) if r.name in asked else 0 for r in DEFAULT_RESOURCES}
    capacity = tuple(r.amount(units[r.name], f"fleet.{r.name}") for r in DEFAULT_RESOURCES)
    return [Generation(name, capacity) for name in names]


def _vm_type(workload: Workload, kind: WorkloadType, generations: list[Generation]) -> VMType:
    if not kind.demand:
        problem = f"the workload does not say what VM type {kind.name} takes"
        raise InvalidInput("fleet", problem, "give a zone that knows it")
    found = type_on(DEFAULT_RESOURCES, generations, workload, kind, kind.name)
    if not found.demand:
        sizes = " or ".join(_size(workload, units) for units in kind.demand.values())
        raise InvalidInput("fleet", f"no machine is large enough for a {kind.name} ({sizes})", "give larger machines")
    return found


def _size(workload: Workload, units: Sequence[float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in zip(workload.resources, units, strict=True) if amount)


def _machines_for(fleet: Fleet, experiment: Experiment, workload: Workload) -> int:
    """As many as have the utilisation, on the average from the warm-up to the end, if everything is placed."""
    assert fleet.utilisation is not None
    since = seconds(experiment.warm_up, "warm_up") * experiment.speed
    until = experiment.ends(workload) * experiment.speed
    if until <= since:
        raise InvalidInput("warm_up", "leaves nothing of the workload", "make it shorter")
    wanted = fleet.utilisation
    if experiment.fill:
        wanted -= experiment.fill * mean_share_left(workload, since, until)
    if wanted <= 0:
        problem = "is less than what fills the zone takes by itself"
        raise InvalidInput("fleet.utilisation", problem, "fill it less, or ask for more")
    return max(1, math.ceil(mean_in_use(workload, "cores", since, until) / wanted / fleet.cores))


def mean_in_use(workload: Workload, resource: str, since: float, until: float) -> float:
    """What VMs take of a resource on the average over time, from one moment to another."""
    start = workload.arrival_of_vms
    present = np.minimum(start + workload.lifetime, until) - np.maximum(start, since)
    return float((workload.amounts(resource) * np.maximum(present, 0.0)).sum() / (until - since))


def _racks(generation: str, machines: int, before: int) -> list[MachineGroup]:
    """Racks of machines in clusters of about the same size. `before`: racks that there are already."""
    clusters = max(min(CLUSTERS, machines // MACHINES_PER_RACK), math.ceil(machines / LARGEST_CLUSTER), 1)
    groups = []
    for c, members in enumerate(np.array_split(np.arange(machines), clusters)):
        name = f"{generation}-c{c:02d}"
        for r, start in enumerate(range(0, len(members), MACHINES_PER_RACK)):
            size = min(MACHINES_PER_RACK, len(members) - start)
            groups.append(
                MachineGroup(
                    datacenter="dc1",
                    cluster=name,
                    rack=f"{name}-r{r:02d}",
                    generation=generation,
                    names=[f"{name}-r{r:02d}-m{i:02d}" for i in range(size)],
                    update_domains=[(before + start + i) % UPDATE_DOMAINS for i in range(size)],
                )
            )
    return groups
