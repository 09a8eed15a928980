"""A zone offers what a workload asks for: VM types that it does not know, as the workload says what they take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roost.model.errors import InvalidInput
from roost.model.rows import cluster_type
from roost.model.zone import INT32_MAX, Generation, Resource, VMType, Zone
from roost.traces.workload import ANY, Workload, WorkloadType

BY_TYPE = ("supports", "demands", "per_demand", "takes")  # of each VM type, in a cluster's row


def offer_types(zone: Zone, workload: Workload) -> list[str]:
    """Let the zone offer the types of the workload that it lacks, before anything runs on it; their names.

    A type that the zone knows is as the zone has it. One that no hardware is large enough for is offered nowhere.
    """
    asked = np.unique(workload.type).tolist()
    missing = [workload.types[t] for t in asked if workload.types[t].name not in zone.vm_type_index]
    if not missing:
        return []
    added = [_vm_type(zone, workload, each) for each in missing]
    demand = np.full((len(added), len(zone.generations), len(zone.resources)), INT32_MAX, np.int32)
    supported = np.zeros((len(added), len(zone.generations)), np.int8)
    for t, vm_type in enumerate(added):
        for generation, amounts in vm_type.demand.items():
            demand[t, zone.generation_index[generation]] = amounts
            supported[t, zone.generation_index[generation]] = 1
    zone.vm_types = (*zone.vm_types, *added)
    zone.vm_type_index = {vm_type.name: i for i, vm_type in enumerate(zone.vm_types)}
    zone.demand, zone.supported = np.concatenate((zone.demand, demand)), np.concatenate((zone.supported, supported))
    _widen(zone, supported)
    return [vm_type.name for vm_type in added]


def _vm_type(zone: Zone, workload: Workload, kind: WorkloadType) -> VMType:
    """On each generation that is large enough, what it takes there, in the zone's smallest units."""
    where = f"workload {workload.name}: VM type {kind.name}"
    if not kind.demand:
        zone.vm_type(kind.name, where)  # says which the zone knows
    known = {resource.name for resource in zone.resources}
    if unknown := [name for name in workload.resources if name not in known]:
        raise InvalidInput(where, f"takes {unknown[0]}, which zone {zone.name} does not have", "use a zone that has it")
    return type_on(zone.resources, zone.generations, workload, kind, where)


def type_on(
    resources: Sequence[Resource], generations: Sequence[Generation], workload: Workload, kind: WorkloadType, where: str
) -> VMType:
    """A VM type of a workload on the generations that are large enough."""
    demand = {}
    for generation in generations:
        units = kind.demand.get(generation.name, kind.demand.get(ANY))
        if units is None:
            continue
        by_name = dict(zip(workload.resources, units, strict=True))
        amounts = tuple(r.amount(by_name.get(r.name, 0), f"{where}: {r.name}") for r in resources)
        if all(a <= c for a, c in zip(amounts, generation.capacity, strict=True)):
            demand[generation.name] = amounts
    return VMType(kind.name, "", demand)


def _widen(zone: Zone, supported: np.ndarray) -> None:
    """The rows of clusters tell of more types; every cluster of a generation that runs them takes them."""
    old = zone.clusters
    zone.clusters = np.zeros(len(old), cluster_type(len(zone.bands), len(zone.resources), len(zone.vm_types)))
    for field in old.dtype.names or ():
        if field not in BY_TYPE:
            zone.clusters[field] = old[field]
    zone.note_demands()
    more = supported[:, old["generation"]].T
    zone.clusters["supports"] = np.concatenate((old["supports"], more), axis=1)
