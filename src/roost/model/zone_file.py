"""Zone files: hardware, VM types and clusters from YAML, single machines from a CSV or Parquet list.

Everything is checked before a `Zone` is made of it, and a mistake names its file, line (or row) and field.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from roost.model.availability import USUAL_DOMAINS, MostDomains
from roost.model.errors import InvalidInput, UnknownName
from roost.model.machine_list import (
    COLUMNS,
    INT16_MAX,
    MOST_MACHINES,
    NUMBER_COLUMNS,
    MachineList,
    looked_up,
    numbered,
    read_machine_list,
)
from roost.model.rows import MachineState
from roost.model.synthetic import standard_generations, standard_vm_types
from roost.model.thresholds import PURPOSES, Thresholds
from roost.model.yaml_file import Step, YamlFile
from roost.model.zone import (
    CONDITION,
    DEFAULT_BANDS,
    DEFAULT_RESOURCES,
    INT32_MAX,
    MOST_FEATURES,
    Generation,
    MachineGroup,
    Resource,
    VMType,
    Zone,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_GENERATIONS = 127
STANDARD = "standard"  # in place of generations or VM types: those that come with Roost
DATACENTER, UPDATE_DOMAINS = "dc1", 20  # unless the file says otherwise

STATES = {state.name.lower(): int(state) for state in MachineState}

Name = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=1, le=MOST_MACHINES)]
At = tuple[Step, ...]


class _Availability(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fault_domains: Count = USUAL_DOMAINS.fault_domains
    update_domains: Count = USUAL_DOMAINS.update_domains


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    generations: str | dict[str, Any]
    vm_types: str | dict[str, Any]
    resources: dict[str, Any] = {}
    bands: Annotated[tuple[Name, ...], Meta(min_length=1)] = DEFAULT_BANDS
    features: list[Name] = []
    anti_colocation: list[tuple[Name, Name]] = []
    thresholds: dict[str, Any] = {}
    availability: _Availability = _Availability()
    clusters: list[Any] = []
    machines: str = ""


class _Resource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    unit: Name
    per_unit: Annotated[int, Meta(ge=1, le=1_000_000)] = 1


class _VMType(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    demand: dict[str, Any]
    on: list[str] | dict[str, Any]
    family: str = ""
    requires: list[Name] = []


class _Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    generation: str
    racks: Count
    machines_per_rack: Count
    datacenter: Name = DATACENTER
    update_domains: Annotated[int, Meta(ge=1, le=INT16_MAX)] = UPDATE_DOMAINS
    features: list[Name] = []
    excludes: list[str] = []
    thresholds: dict[str, Any] | None = None


def load_zone(path: str | Path) -> Zone:
    """The zone that a YAML file describes, with the machines of the list it may point to."""
    file = YamlFile(path)
    head = file.convert(file.data, _File)
    _refuse_repeats(file, head.bands, [("bands", i) for i in range(len(head.bands))])
    resources = _resources(file)
    generations = _generations(file, head, resources)
    vm_types = _vm_types(file, head, resources, generations)
    clusters = _clusters(file, head, generations, vm_types)
    groups = [rack for cluster in clusters for rack in _racks(cluster)]
    features, asked = _hardware_features(file, head, generations, clusters), _asked_features(file, vm_types)
    if head.machines:
        table = read_machine_list(file, head.machines, resources)
        _check_names(table, groups)
        features |= _listed_features(table, features, asked)
        listed, order = _listed_racks(table, generations)
        groups += listed
    if not groups:
        raise file.mistake((), "describes no machines", "give it `clusters`, or a list of `machines`")
    _check_features(features, asked, strict=head.vm_types != STANDARD)
    thresholds = _thresholds(file, head, clusters, groups)
    try:
        zone = Zone(
            name=head.name,
            resources=resources,
            bands=head.bands,
            generations=generations,
            vm_types=vm_types,
            groups=groups,
            conflicts=head.anti_colocation,
            excluded={cluster.name: cluster.excludes for cluster in clusters},
            thresholds=thresholds,
            availability=MostDomains(**msgspec.structs.asdict(head.availability)),
        )
    except InvalidInput as error:
        raise file.mistake((error.where,), error.problem, error.remedy) from None
    if head.machines:
        _describe(zone, table, order)
    return zone


# ------------------------------------------------------------------------------------------------------------ hardware


def _resources(file: YamlFile) -> tuple[Resource, ...]:
    if "resources" not in file.data:
        return DEFAULT_RESOURCES
    resources = tuple(Resource(name, r.unit, r.per_unit) for name, r in file.section("resources", _Resource).items())
    if not resources:
        raise file.mistake(("resources",), "is empty", "name at least one, or leave it out for the usual five")
    for name in (r.name for r in resources):
        if name in COLUMNS:
            raise file.mistake(("resources", name), "is a field of machines already", "give it another name")
    return resources


def _generations(file: YamlFile, head: _File, resources: Sequence[Resource]) -> list[Generation]:
    if isinstance(head.generations, str):
        _check_standard(file, "generations", head.generations)
        if tuple(resources) != DEFAULT_RESOURCES:
            problem = "the standard ones know nothing of your `resources`"
            raise file.mistake(("generations",), problem, "describe generations of your own")
        return standard_generations()
    if not 1 <= len(head.generations) <= MOST_GENERATIONS:
        raise file.mistake(("generations",), f"there are {len(head.generations)}", f"describe 1 to {MOST_GENERATIONS}")
    entries = file.section("generations", dict[str, Any])
    return [_generation(file, name, entry, resources) for name, entry in entries.items()]


def _generation(file: YamlFile, name: str, entry: Mapping[str, Any], resources: Sequence[Resource]) -> Generation:
    at = ("generations", name)
    features = file.convert(entry.get("features", []), list[Name], (*at, "features"))
    amounts = _amounts(file, {key: entry[key] for key in entry if key != "features"}, at, resources)
    if not any(amounts.values()):
        raise file.mistake(at, "has nothing that a VM could use", f"give it {', '.join(r.name for r in resources)}")
    return Generation(name, tuple(amounts.values()), tuple(features))


def _amounts(file: YamlFile, given: Mapping[str, Any], at: At, resources: Sequence[Resource]) -> dict[str, int]:
    """An amount of every resource in the smallest unit, 0 of those that are not given."""
    names = [resource.name for resource in resources]
    for name in given:
        if name not in names:
            raise UnknownName(file.where((*at, name)), "resource", name, names)
    return {r.name: r.amount(given[r.name], file.where((*at, r.name))) if r.name in given else 0 for r in resources}


def _check_standard(file: YamlFile, key: str, value: str) -> None:
    if value != STANDARD:
        raise file.mistake((key,), f"is {value!r}", f"write `{key}: {STANDARD}`, or a mapping of names to your own")


def _refuse_repeats(file: YamlFile, names: Sequence[str], places: Sequence[At]) -> None:
    seen: set[str] = set()
    for name, at in zip(names, places, strict=True):
        if name in seen:
            raise file.mistake(at, f"{name!r} is there twice", "names must differ: rename or remove one")
        seen.add(name)


# ------------------------------------------------------------------------------------------------------------ VM types


def _vm_types(
    file: YamlFile, head: _File, resources: Sequence[Resource], generations: Sequence[Generation]
) -> list[VMType]:
    if isinstance(head.vm_types, str):
        _check_standard(file, "vm_types", head.vm_types)
        if head.generations != STANDARD:
            problem = "the standard ones run on the standard generations only"
            raise file.mistake(("vm_types",), problem, "describe VM types of your own")
        return standard_vm_types()
    if not head.vm_types:
        raise file.mistake(("vm_types",), "is empty", f"describe at least one, or write `vm_types: {STANDARD}`")
    types = []
    for name, entry in file.section("vm_types", _VMType).items():
        demand = _demand(file, ("vm_types", name), entry, resources, generations)
        types.append(VMType(name, entry.family or name, demand, tuple(entry.requires)))
    return types


def _demand(
    file: YamlFile, at: At, entry: _VMType, resources: Sequence[Resource], generations: Sequence[Generation]
) -> dict[str, tuple[int, ...]]:
    """What a VM takes of each resource, on each generation that the type runs on."""
    known = {generation.name: generation for generation in generations}
    usual = _amounts(file, entry.demand, (*at, "demand"), resources)
    if not entry.on:
        raise file.mistake((*at, "on"), "names no generation: it could never run", f"list some of {', '.join(known)}")
    demand = {}
    for i, name in enumerate(entry.on):
        here: At = (*at, "on", i if isinstance(entry.on, list) else name)
        if name not in known:
            raise UnknownName(file.where(here), "generation", name, known)
        override = entry.on[name] if isinstance(entry.on, dict) else None
        own = {} if override is None else file.convert(override, dict[str, Any], here)
        amounts = {**usual, **{r: a for r, a in _amounts(file, own, here, resources).items() if r in own}}
        if not any(amounts.values()):
            raise file.mistake((*at, "demand"), f"asks for nothing on {name}", "give an amount of some resource")
        for resource, has in zip(resources, known[name].capacity, strict=True):
            if (wants := amounts[resource.name]) > has:
                place = here if resource.name in own else (*at, "demand")
                problem = f"asks for {_in_units(wants, resource)}, but {name} has {_in_units(has, resource)}"
                raise file.mistake((*place, resource.name), problem, f"ask for less, or take {name} out of `on`")
        demand[name] = tuple(amounts.values())
    return demand


def _in_units(amount: int, resource: Resource) -> str:
    return f"{amount / resource.per_unit:,.10g} {resource.unit}"


# ------------------------------------------------------------------------------------------------------------ clusters


def _clusters(
    file: YamlFile, head: _File, generations: Sequence[Generation], vm_types: Sequence[VMType]
) -> list[_Cluster]:
    clusters = [file.convert(entry, _Cluster, ("clusters", i)) for i, entry in enumerate(head.clusters)]
    _refuse_repeats(file, [c.name for c in clusters], [("clusters", i, "name") for i in range(len(clusters))])
    hardware, types = [g.name for g in generations], [t.name for t in vm_types]
    machines = 0
    for i, cluster in enumerate(clusters):
        if cluster.generation not in hardware:
            where = file.where(("clusters", i, "generation"))
            raise UnknownName(where, "generation", cluster.generation, hardware)
        for j, name in enumerate(cluster.excludes):
            if name not in types:
                raise UnknownName(file.where(("clusters", i, "excludes", j)), "VM type", name, types)
        machines += cluster.racks * cluster.machines_per_rack
        if machines > MOST_MACHINES:
            problem = f"brings the zone to {machines:,} machines"
            raise file.mistake(("clusters", i, "racks"), problem, f"a zone has at most {MOST_MACHINES:,}")
    return clusters


def _thresholds(
    file: YamlFile, head: _File, clusters: Sequence[_Cluster], groups: Sequence[MachineGroup]
) -> dict[str, Thresholds]:
    """What each cluster keeps: its own thresholds, else those of the zone, which are for listed clusters, too."""
    own: dict[str, tuple[At, dict[str, Any]]] = {
        c.name: (("clusters", i, "thresholds"), c.thresholds)
        for i, c in enumerate(clusters)
        if c.thresholds is not None
    }
    sizes: dict[str, int] = {}
    for group in groups:
        sizes[group.cluster] = sizes.get(group.cluster, 0) + len(group.names)
    found = {}
    for name, machines in sizes.items():
        at, given = own.get(name, (("thresholds",), head.thresholds))
        for field in given:
            if field not in PURPOSES:
                raise UnknownName(file.where((*at, field)), "threshold", field, PURPOSES)
        try:
            found[name] = Thresholds(**given)
            found[name].check_size(name, machines)
        except InvalidInput as error:
            raise file.mistake((*at, error.where.partition(".")[2]), error.problem, error.remedy) from None
    return found


def _racks(cluster: _Cluster) -> Iterator[MachineGroup]:
    size = cluster.machines_per_rack
    for rack in range(cluster.racks):
        name = f"{cluster.name}-r{rack:02d}"
        yield MachineGroup(
            datacenter=cluster.datacenter,
            cluster=cluster.name,
            rack=name,
            generation=cluster.generation,
            names=[f"{name}-m{i:02d}" for i in range(size)],
            update_domains=[i % cluster.update_domains for i in range(rack * size, (rack + 1) * size)],
            features=tuple(cluster.features),
        )


# ------------------------------------------------------------------------------------------------------------ features


def _hardware_features(
    file: YamlFile, head: _File, generations: Sequence[Generation], clusters: Sequence[_Cluster]
) -> dict[str, str]:
    """Each feature that the file says hardware has, and where it says so first."""
    lists: list[tuple[At, Sequence[str]]] = [(("features",), head.features)]
    lists += [(("generations", g.name, "features"), g.features) for g in generations]
    lists += [(("clusters", i, "features"), c.features) for i, c in enumerate(clusters)]
    return _first_named(file, lists)


def _asked_features(file: YamlFile, vm_types: Sequence[VMType]) -> dict[str, str]:
    """Each feature that a VM type requires, and where it is first required."""
    return _first_named(file, [(("vm_types", t.name, "requires"), t.requires) for t in vm_types])


def _first_named(file: YamlFile, lists: Iterable[tuple[At, Sequence[str]]]) -> dict[str, str]:
    named: dict[str, str] = {}
    for at, names in lists:
        for i, name in enumerate(names):
            named.setdefault(name, file.where((*at, i)))
    return named


def _check_features(hardware: Mapping[str, str], asked: Mapping[str, str], strict: bool) -> None:
    """Unless the types are the standard ones, what they require must exist."""
    for name, where in asked.items():
        if strict and name not in hardware:
            raise UnknownName(where, "hardware feature", name, hardware)
    named = {**hardware, **{name: where for name, where in asked.items() if name not in hardware}}
    if len(named) > MOST_FEATURES:
        where = list(named.values())[MOST_FEATURES]
        raise InvalidInput(where, f"the zone names {len(named)} hardware features", f"{MOST_FEATURES} is the most")


# ------------------------------------------------------------------------------------------- from a list of machines


def _check_names(table: MachineList, others: Sequence[MachineGroup]) -> None:
    """A machine is described once, and a cluster is either described by the zone file or listed."""
    names, clusters = table.names("name"), table.names("cluster")
    taken = {name for group in others for name in group.names}
    if (spare := MOST_MACHINES - len(taken)) < len(names):
        raise InvalidInput(
            table.where(spare, "name"), "is one too many", f"a zone has at most {MOST_MACHINES:,} machines"
        )
    described = {group.cluster for group in others}
    for cluster in dict.fromkeys(clusters):
        if cluster in described:
            where = table.where(clusters.index(cluster), "cluster")
            raise InvalidInput(where, f"the zone file describes {cluster} already", "list it or describe it, not both")
    for row, name in enumerate(names):
        if name in taken:
            raise InvalidInput(table.where(row, "name"), f"there is a machine {name} already", "names must differ")
        taken.add(name)


def _listed_racks(
    table: MachineList, generations: Sequence[Generation]
) -> tuple[list[MachineGroup], NDArray[np.int64]]:
    """The racks of a list, and its rows in their order: clusters, and racks within them, as they first appear."""
    table.choices("generation", "generation", {g.name: i for i, g in enumerate(generations)})
    hardware, datacenters = _one_per_cluster(table, "generation"), _one_per_cluster(table, "datacenter", DATACENTER)
    names, clusters, features = table.names("name"), table.names("cluster"), table.cells("features")
    places = list(zip(clusters, table.names("rack"), strict=True))
    cluster, rack = looked_up(clusters, numbered(clusters)), looked_up(places, numbered(places))
    order = np.lexsort((rack, cluster))
    domains, rows = _update_domains(table, order, cluster[order]), order.tolist()
    groups = []
    for start, end in pairwise(np.flatnonzero(np.diff(rack[order], prepend=-1, append=-1)).tolist()):
        first, machines = rows[start], rows[start:end]
        groups.append(
            MachineGroup(
                datacenter=datacenters[first],
                cluster=clusters[first],
                rack=places[first][1],
                generation=hardware[first],
                names=[names[row] for row in machines],
                update_domains=domains[start:end],
                features=tuple(f for cell in {features[row]: None for row in machines} for f in _split(cell)),
            )
        )
    return groups, order


def _one_per_cluster(table: MachineList, column: str, default: str = "") -> Sequence[str]:
    """A column of names in which the machines of a cluster agree."""
    clusters, names = table.names("cluster"), table.names(column, default)
    first = dict(zip(reversed(clusters), reversed(names), strict=True))
    for row, (cluster, name) in enumerate(zip(clusters, names, strict=True)):
        if name != first[cluster]:
            problem = f"is {name}, but cluster {cluster} has machines of {first[cluster]} too"
            raise InvalidInput(table.where(row, column), problem, f"a cluster is of one {column}: split it")
    return names


def _update_domains(table: MachineList, order: NDArray[np.int64], cluster: NDArray[np.int64]) -> list[int]:
    """Where none is given, the machines of a cluster take turns."""
    turns = (np.arange(len(order)) - np.searchsorted(cluster, cluster)) % UPDATE_DOMAINS
    given = _whole_numbers(table, "update_domain", -1)[order]
    domains: list[int] = np.where(given < 0, turns, given).tolist()
    return domains


def _whole_numbers(table: MachineList, column: str, default: int) -> NDArray[np.int64]:
    highest = NUMBER_COLUMNS[column]
    values = table.amounts(column, highest, f"use a whole number from 0 to {highest:,}", whole=True)
    return np.where(np.isnan(values), default, values).astype(np.int64)


def _listed_features(table: MachineList, described: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
    """Each feature that only the list says a machine has, and where it says so first."""
    cells = table.cells("features")
    named: dict[str, str] = {}
    for cell in dict.fromkeys(cells):
        where = table.where(cells.index(cell), "features")
        for name in _split(cell):
            if name not in described and name not in asked:
                raise UnknownName(where, "hardware feature", name, {*described, *asked})
            if name not in described:
                named.setdefault(name, where)
    return named


def _split(features: str) -> list[str]:
    return [name.strip() for name in features.split("|") if name.strip()]


def _describe(zone: Zone, table: MachineList, order: NDArray[np.int64]) -> None:
    """Give the machines of a list, the last ones of the zone, their own capacity, features and condition."""
    these = slice(len(zone.machines) - len(order), None)
    capacity, features = zone.machines["capacity"].copy(), zone.machines["features"].copy()
    for r, resource in enumerate(zone.resources):
        highest = INT32_MAX // resource.per_unit
        given = table.amounts(resource.name, highest, f"give it in {resource.unit}, from 0 to {highest:,}")[order]
        own = np.ceil(np.round(given * resource.per_unit, 6))
        capacity[these, r] = np.where(np.isnan(own), capacity[these, r], own)
    cells = table.cells("features")
    extra = looked_up(cells, {cell: zone.feature_bits(_split(cell)) for cell in dict.fromkeys(cells)})[order]
    usual = np.array([zone.feature_bits(generation.features) for generation in zone.generations])
    features[these] = usual[zone.machines["generation"][these]] | extra
    condition = {field: zone.machines[field].copy() for field in CONDITION}
    condition["state"][these] = table.choices("state", "state of a machine", STATES, "ready")[order]
    for field, default in (("health", 100), ("failures", 0), ("versions_behind", 0)):
        condition[field][these] = _whole_numbers(table, field, default)[order]
    zone.set_capacity(capacity)
    zone.set_features(features)
    zone.set_condition(**condition)
