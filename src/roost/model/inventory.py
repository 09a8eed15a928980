"""A zone in words: what its hardware and VM types are, and one description for every machine.

`Zone` holds the same as rows, by number. This is the form that is written down, by name, and a zone is built from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter, itemgetter

import msgspec
import numpy as np

from roost.model.availability import USUAL_DOMAINS, MostDomains
from roost.model.errors import InvalidInput, UnknownName
from roost.model.thresholds import Thresholds, of_row
from roost.model.zone import Generation, MachineGroup, Resource, VMType, Zone


class MachineSpec(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a machine is and where it stands."""

    name: str
    datacenter: str
    cluster: str
    rack: str
    generation: str
    update_domain: int
    features: tuple[str, ...]
    capacity: tuple[int, ...]


class Catalogue(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All of a zone but its machines."""

    name: str
    resources: tuple[Resource, ...]
    bands: tuple[str, ...]
    generations: tuple[Generation, ...]
    vm_types: tuple[VMType, ...]
    conflicts: tuple[tuple[str, str], ...] = ()  # anti-colocation classes that keep apart
    excluded: Mapping[str, tuple[str, ...]] = {}  # cluster name -> VM types it refuses
    thresholds: Mapping[str, Thresholds] = {}  # cluster name -> empty machines it keeps
    availability: MostDomains = USUAL_DOMAINS  # what one availability set may ask for

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The anti-colocation classes, in the order in which rows count them."""
        return tuple(sorted({c for pair in self.conflicts for c in pair}))

    @cached_property
    def demand(self) -> dict[tuple[str, str], tuple[int, ...]]:
        """(VM type, generation) -> what it takes there; absent where it cannot run."""
        return {(t.name, g): amounts for t in self.vm_types for g, amounts in t.demand.items()}

    @cached_property
    def generation_names(self) -> tuple[str, ...]:
        """The generations, in order."""
        return tuple(g.name for g in self.generations)


def catalogue_of(zone: Zone) -> Catalogue:
    """What a zone is, without its machines."""
    pairs = zip(*np.nonzero(np.triu(zone.conflicts)), strict=True)
    refused = zone.clusters["supports"] < zone.supported[:, zone.clusters["generation"]].T
    types = [t.name for t in zone.vm_types]
    return Catalogue(
        name=zone.name,
        resources=zone.resources,
        bands=zone.bands,
        generations=zone.generations,
        vm_types=zone.vm_types,
        conflicts=tuple((zone.classes[i], zone.classes[j]) for i, j in pairs),
        excluded={
            zone.cluster_names[c]: tuple(types[t] for t in np.flatnonzero(refused[c]))
            for c in np.flatnonzero(refused.any(axis=1))
        },
        thresholds={
            zone.cluster_names[c]: of_row(zone.clusters["thresholds"][c])
            for c in np.flatnonzero(zone.clusters["thresholds"].any(axis=1))
        },
        availability=zone.availability,
    )


def machine_specs(zone: Zone, machines: Sequence[int] | None = None) -> list[MachineSpec]:
    """A description of these machines (by row) of a zone, or of all."""
    chosen = range(len(zone.machines)) if machines is None else machines
    rows, generations = zone.machines[list(chosen)], zone.generations
    names = [zone.machine_names[m] for m in chosen]
    features = {
        bits: tuple(f for i, f in enumerate(zone.features) if bits >> i & 1)
        for bits in np.unique(rows["features"]).tolist()
    }
    columns = (rows[field].tolist() for field in ("datacenter", "cluster", "rack", "generation", "update_domain"))
    return [
        MachineSpec(
            name,
            zone.datacenters[datacenter],
            zone.cluster_names[cluster],
            zone.rack_names[rack],
            generations[generation].name,
            domain,
            features[bits],
            tuple(capacity),
        )
        for name, datacenter, cluster, rack, generation, domain, bits, capacity in zip(
            names, *columns, rows["features"].tolist(), rows["capacity"].tolist(), strict=True
        )
    ]


def zone_of(catalogue: Catalogue, machines: Iterable[MachineSpec]) -> Zone:
    """The zone with these machines, in the order of their clusters', racks' and own names, however they are given."""
    found: dict[tuple[str, str], list[MachineSpec]] = {}
    for machine in machines:
        found.setdefault((machine.cluster, machine.rack), []).append(machine)
    racks = [sorted(rack, key=attrgetter("name")) for _, rack in sorted(found.items(), key=itemgetter(0))]
    clusters = {cluster for cluster, _ in found}
    if not racks:
        raise InvalidInput("zone", f"{catalogue.name} has no machines", "add some first")
    zone = Zone(
        name=catalogue.name,
        resources=catalogue.resources,
        bands=catalogue.bands,
        generations=catalogue.generations,
        vm_types=catalogue.vm_types,
        groups=[
            MachineGroup(
                datacenter=rack[0].datacenter,
                cluster=rack[0].cluster,
                rack=rack[0].rack,
                generation=rack[0].generation,
                names=[machine.name for machine in rack],
                update_domains=[machine.update_domain for machine in rack],
                features=tuple(dict.fromkeys(f for each in {machine.features for machine in rack} for f in each)),
            )
            for rack in racks
        ],
        conflicts=catalogue.conflicts,
        excluded={name: types for name, types in catalogue.excluded.items() if name in clusters},
        thresholds={name: kept for name, kept in catalogue.thresholds.items() if name in clusters},
        availability=catalogue.availability,
    )
    laid_out = [machine for rack in racks for machine in rack]
    bits = {features: zone.feature_bits(features) for features in {m.features for m in laid_out}}
    zone.set_features(np.array([bits[m.features] for m in laid_out], np.int32))
    zone.set_capacity(np.array([m.capacity for m in laid_out], np.int32))
    return zone


def check_spec(machine: MachineSpec, catalogue: Catalogue) -> None:
    """Refuse a machine that a zone of this catalogue cannot have."""
    where = f"machine {machine.name}"
    for field in ("name", "datacenter", "cluster", "rack"):
        if not getattr(machine, field):
            raise InvalidInput(f"{where}: {field}", "is empty", "give it a name")
    if machine.generation not in catalogue.generation_names:
        raise UnknownName(f"{where}: generation", "generation", machine.generation, catalogue.generation_names)
    if len(machine.capacity) != len(catalogue.resources) or not all(0 <= a < 2**31 for a in machine.capacity):
        names = ", ".join(r.name for r in catalogue.resources)
        raise InvalidInput(f"{where}: capacity", f"is {machine.capacity}", f"give whole amounts of {names}")
    if not 0 <= machine.update_domain < 2**15:
        raise InvalidInput(f"{where}: update_domain", f"is {machine.update_domain}", "use 0 to 32,767")
