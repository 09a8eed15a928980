"""Zone files: hardware, VM types and clusters from YAML, single machines from a CSV or Parquet list.

Everything is checked before a `Zone` is made of it. A mistake names its file, line (or row) and field, and all mistakes
are told at once, without those that only follow from others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from roost.model.availability import USUAL_DOMAINS, MostDomains
from roost.model.errors import InvalidInput, UnknownName
from roost.model.listed_machines import DATACENTER, UPDATE_DOMAINS, read_listed
from roost.model.machine_list import COLUMNS, INT16_MAX, MOST_MACHINES
from roost.model.synthetic import standard_generations, standard_vm_types
from roost.model.thresholds import PURPOSES, Thresholds
from roost.model.yaml_file import PathStep, YamlFile
from roost.model.zone import (
    DEFAULT_BANDS,
    DEFAULT_RESOURCES,
    MOST_FEATURES,
    Generation,
    MachineGroup,
    Resource,
    VMType,
    Zone,
)

MOST_GENERATIONS = 127
STANDARD = "standard"  # in place of generations or VM types: those that come with Roost

T = TypeVar("T")
Name = Annotated[str, Meta(min_length=1)]
MachineCount = Annotated[int, Meta(ge=1, le=MOST_MACHINES)]
At = tuple[PathStep, ...]
# By name, None for one that is described wrong: what is said of it elsewhere is no further mistake.
Resources = dict[str, Resource | None]
Generations = dict[str, Generation | None]


class _Availability(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fault_domains: MachineCount = USUAL_DOMAINS.fault_domains
    update_domains: MachineCount = USUAL_DOMAINS.update_domains


class _ZoneFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    racks: MachineCount
    machines_per_rack: MachineCount
    datacenter: Name = DATACENTER
    update_domains: Annotated[int, Meta(ge=1, le=INT16_MAX)] = UPDATE_DOMAINS
    features: list[Name] = []
    excludes: list[str] = []
    thresholds: dict[str, Any] | None = None


def load_zone(path: str | Path) -> Zone:
    """The zone that a YAML file describes, with the machines of the list it may point to."""
    file = YamlFile(path)
    head = file.fields(file.data, _ZoneFile)
    _check_names(file, head)
    resources = _resources(file, head)
    generations = _generations(file, head, resources)
    vm_types = _vm_types(file, head, resources, generations)
    clusters = _clusters(file, head, generations, vm_types)
    groups = [rack for cluster in clusters.values() for rack in _racks(cluster)]
    features, asked = _hardware_features(file, head, generations, clusters), _asked_features(file, vm_types)
    listed, clear = None, not file.mistakes  # hardware that is not described right may have any feature
    if name := head.get("machines"):
        with file.mistakes.noted():
            listed = read_listed(file, name, resources, generations, groups)
    if listed is not None:
        features |= listed.features(features, asked, strict=clear)
        groups += listed.racks
    if not groups and not file.mistakes:
        file.note((), "describes no machines", "give it `clusters`, or a list of `machines`")
    if clear:
        _check_features(file, features, asked, strict=head.get("vm_types") != STANDARD)
    thresholds = _thresholds(file, head, clusters, groups)
    file.mistakes.tell()
    try:
        zone = Zone(
            name=head["name"],
            resources=_all(resources),
            bands=head.get("bands", DEFAULT_BANDS),
            generations=_all(generations),
            vm_types=_all(vm_types),
            groups=groups,
            conflicts=head.get("anti_colocation", []),
            excluded={cluster.name: cluster.excludes for cluster in clusters.values()},
            thresholds=thresholds,
            availability=MostDomains(**msgspec.structs.asdict(head.get("availability", _Availability()))),
        )
    except InvalidInput as error:
        raise file.mistake((error.where,), error.problem, error.remedy) from None
    if listed is not None:
        listed.describe(zone)
    return zone


def _all(named: Mapping[str, T | None]) -> list[T]:
    """What is right of what was named: all of it, once mistakes were told."""
    return [each for each in named.values() if each is not None]


def _check_names(file: YamlFile, head: Mapping[str, Any]) -> None:
    """Names that the rest of the file, or somebody later, is to call things by."""
    for section in ("resources", "generations", "vm_types"):
        if isinstance(named := head.get(section), dict):
            for name in named:
                file.note_name((section, name), name)
    lists: list[tuple[At, Sequence[str]]] = [((field,), head.get(field, ())) for field in ("bands", "features")]
    lists += [(("anti_colocation", i), pair) for i, pair in enumerate(head.get("anti_colocation", ()))]
    for at, names in lists:
        _note_names(file, at, names)
    bands = head.get("bands", ())
    _note_repeats(file, bands, [("bands", i) for i in range(len(bands))])


def _note_names(file: YamlFile, at: At, names: Sequence[str]) -> None:
    for i, name in enumerate(names):
        file.note_name((*at, i), name)


# ------------------------------------------------------------------------------------------------------------ hardware


def _resources(file: YamlFile, head: Mapping[str, Any]) -> Resources:
    """The usual ones that the file says nothing about, then those it describes; None for one that it has wrong."""
    usual = {resource.name: resource for resource in DEFAULT_RESOURCES}
    given: dict[str, Any] = head.get("resources", {})
    found: Resources = {name: resource for name, resource in usual.items() if name not in given}
    for name, entry in given.items():
        at = ("resources", name)
        if name in COLUMNS:
            file.note(at, "is a field of machines already", "give it another name")
        if entry is None and name in usual:
            continue
        described = file.checked(entry, _Resource, at)
        found[name] = None if described is None else Resource(name, described.unit, described.per_unit)
    if not found:
        file.note(("resources",), "leaves none of the usual five, and adds none", "keep one, or describe one")
    return found


def _generations(file: YamlFile, head: Mapping[str, Any], resources: Resources) -> Generations:
    given = head.get("generations", {})
    if isinstance(given, str):
        _check_standard(file, "generations", given)
        if tuple(resources.values()) != DEFAULT_RESOURCES:
            problem = "the standard ones know nothing of your `resources`"
            file.note(("generations",), problem, "describe generations of your own")
            return {generation.name: None for generation in standard_generations()}
        return {generation.name: generation for generation in standard_generations()}
    if "generations" in head and not 1 <= len(given) <= MOST_GENERATIONS:
        file.note(("generations",), f"there are {len(given)}", f"describe 1 to {MOST_GENERATIONS}")
    return {name: _generation(file, name, entry, resources) for name, entry in given.items()}


def _generation(file: YamlFile, name: str, given: Any, resources: Resources) -> Generation | None:
    at, before = ("generations", name), len(file.mistakes)
    entry: Mapping[str, Any] = {}
    features: Sequence[str] = ()
    with file.mistakes.noted():
        entry = file.convert(given, dict[str, Any], at)
        features = file.convert(entry.get("features", []), list[Name], (*at, "features"))
    _note_names(file, (*at, "features"), features)
    amounts = _amounts(file, {key: entry[key] for key in entry if key != "features"}, at, resources)
    if len(file.mistakes) > before:
        return None
    if not any(amounts.values()):
        file.note(at, "has nothing that a VM could use", f"give it {', '.join(resources)}")
    return Generation(name, tuple(amounts.values()), tuple(features))


def _amounts(file: YamlFile, given: Mapping[str, Any], at: At, resources: Resources) -> dict[str, int]:
    """An amount of every resource in the smallest unit, 0 of those that are not given or wrong."""
    found = dict.fromkeys(resources, 0)
    for name, value in given.items():
        with file.mistakes.noted():
            if name not in resources:
                raise UnknownName(file.where((*at, name)), "resource", name, resources)
            if (resource := resources[name]) is not None:
                found[name] = resource.amount(value, file.where((*at, name)))
    return found


def _check_standard(file: YamlFile, key: str, value: str) -> None:
    if value != STANDARD:
        file.note((key,), f"is {value!r}", f"write `{key}: {STANDARD}`, or a mapping of names to your own")


def _note_repeats(file: YamlFile, names: Sequence[str], places: Sequence[At]) -> None:
    seen: set[str] = set()
    for name, at in zip(names, places, strict=True):
        if name in seen:
            file.note(at, f"{name!r} is there twice", "names must differ: rename or remove one")
        seen.add(name)


# ------------------------------------------------------------------------------------------------------------ VM types


def _vm_types(
    file: YamlFile, head: Mapping[str, Any], resources: Resources, generations: Generations
) -> dict[str, VMType | None]:
    given = head.get("vm_types", {})
    if isinstance(given, str):
        _check_standard(file, "vm_types", given)
        if head.get("generations", STANDARD) != STANDARD:
            problem = "the standard ones run on the standard generations only"
            file.note(("vm_types",), problem, "describe VM types of your own")
        return {vm_type.name: vm_type for vm_type in standard_vm_types()}
    if "vm_types" in head and not given:
        file.note(("vm_types",), "is empty", f"describe at least one, or write `vm_types: {STANDARD}`")
    found: dict[str, VMType | None] = {}
    for name, entry in given.items():
        at, found[name] = ("vm_types", name), None
        if (described := file.checked(entry, _VMType, at)) is not None:
            _note_names(file, (*at, "requires"), described.requires)
            demand = _demand(file, at, described, resources, generations)
            found[name] = VMType(name, described.family or name, demand, tuple(described.requires))
    return found


def _demand(
    file: YamlFile, at: At, entry: _VMType, resources: Resources, generations: Generations
) -> dict[str, tuple[int, ...]]:
    """What a VM takes of each resource, on each generation that the type runs on."""
    before = len(file.mistakes)
    usual = _amounts(file, entry.demand, (*at, "demand"), resources)
    if not entry.on:
        file.note((*at, "on"), "names no generation: it could never run", f"list some of {', '.join(generations)}")
    demand = {}
    for i, name in enumerate(entry.on):
        here: At = (*at, "on", i if isinstance(entry.on, list) else name)
        override = entry.on[name] if isinstance(entry.on, dict) else None
        with file.mistakes.noted():
            if name not in generations:
                raise UnknownName(file.where(here), "generation", name, generations)
            own = {} if override is None else file.convert(override, dict[str, Any], here)
            amounts = {**usual, **{r: a for r, a in _amounts(file, own, here, resources).items() if r in own}}
            places = {r: (*(here if r in own else (*at, "demand")), r) for r in resources}
            if len(file.mistakes) == before:  # else there is no telling how much it takes
                _check_size(file, amounts, places, resources, generations[name])
            demand[name] = tuple(amounts.values())
    return demand


def _check_size(
    file: YamlFile,
    amounts: Mapping[str, int],
    places: Mapping[str, At],
    resources: Resources,
    generation: Generation | None,
) -> None:
    """A VM asks for something, and for no more than a machine of a generation has."""
    if generation is None:
        return
    if not any(amounts.values()):
        at = next(iter(places.values()))[:-1]
        raise file.mistake(at, f"asks for nothing on {generation.name}", "give an amount of some resource")
    for resource, has in zip(resources.values(), generation.capacity, strict=True):
        if resource is not None and (wants := amounts[resource.name]) > has:
            asked, there = (f"{resource.said(amount)} {resource.unit}" for amount in (wants, has))
            problem = f"asks for {asked}, but {generation.name} has {there}"
            raise file.mistake(places[resource.name], problem, f"ask for less, or take {generation.name} out of `on`")


# ------------------------------------------------------------------------------------------------------------ clusters


def _clusters(
    file: YamlFile, head: Mapping[str, Any], generations: Generations, vm_types: Mapping[str, VMType | None]
) -> dict[int, _Cluster]:
    """Those that are right, by where they stand in the file."""
    found: dict[int, _Cluster] = {}
    machines = 0
    for i, entry in enumerate(head.get("clusters", [])):
        at = ("clusters", i)
        if (cluster := file.checked(entry, _Cluster, at)) is None:
            continue
        found[i] = cluster
        file.note_name((*at, "name"), cluster.name)
        file.note_name((*at, "datacenter"), cluster.datacenter)
        _note_names(file, (*at, "features"), cluster.features)
        with file.mistakes.noted():
            if cluster.generation not in generations:
                raise UnknownName(file.where((*at, "generation")), "generation", cluster.generation, generations)
        for j, name in enumerate(cluster.excludes):
            with file.mistakes.noted():
                if name not in vm_types:
                    raise UnknownName(file.where((*at, "excludes", j)), "VM type", name, vm_types)
        machines += cluster.racks * cluster.machines_per_rack
        if machines > MOST_MACHINES:
            problem = f"brings the zone to {machines:,} machines"
            file.note((*at, "racks"), problem, f"a zone has at most {MOST_MACHINES:,}")
            del found[i]  # before all of them get names
            break
    _note_repeats(file, [cluster.name for cluster in found.values()], [("clusters", i, "name") for i in found])
    return found


def _thresholds(
    file: YamlFile, head: Mapping[str, Any], clusters: Mapping[int, _Cluster], groups: Sequence[MachineGroup]
) -> dict[str, Thresholds]:
    """What each cluster keeps: its own thresholds, else those of the zone, which are for listed clusters, too."""
    own: dict[str, tuple[At, dict[str, Any]]] = {
        c.name: (("clusters", i, "thresholds"), c.thresholds) for i, c in clusters.items() if c.thresholds is not None
    }
    sizes: dict[str, int] = {}
    for group in groups:
        sizes[group.cluster] = sizes.get(group.cluster, 0) + len(group.names)
    found = {}
    for name, machines in sizes.items():
        at, given = own.get(name, (("thresholds",), head.get("thresholds", {})))
        with file.mistakes.noted():
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
    file: YamlFile, head: Mapping[str, Any], generations: Generations, clusters: Mapping[int, _Cluster]
) -> dict[str, str]:
    """Each feature that the file says hardware has, and where it says so first."""
    lists: list[tuple[At, Sequence[str]]] = [(("features",), head.get("features", ()))]
    lists += [(("generations", g.name, "features"), g.features) for g in _all(generations)]
    lists += [(("clusters", i, "features"), c.features) for i, c in clusters.items()]
    return _first_named(file, lists)


def _asked_features(file: YamlFile, vm_types: Mapping[str, VMType | None]) -> dict[str, str]:
    """Each feature that a VM type requires, and where it is first required."""
    return _first_named(file, [(("vm_types", t.name, "requires"), t.requires) for t in _all(vm_types)])


def _first_named(file: YamlFile, lists: Iterable[tuple[At, Sequence[str]]]) -> dict[str, str]:
    named: dict[str, str] = {}
    for at, names in lists:
        for i, name in enumerate(names):
            named.setdefault(name, file.where((*at, i)))
    return named


def _check_features(file: YamlFile, hardware: Mapping[str, str], asked: Mapping[str, str], strict: bool) -> None:
    """Unless the types are the standard ones, what they require must exist."""
    for name, where in asked.items():
        if strict and name not in hardware:
            file.mistakes.note(UnknownName(where, "hardware feature", name, hardware))
    named = {**hardware, **{name: where for name, where in asked.items() if name not in hardware}}
    if len(named) > MOST_FEATURES:
        where, problem = list(named.values())[MOST_FEATURES], f"the zone names {len(named)} hardware features"
        file.mistakes.note(InvalidInput(where, problem, f"{MOST_FEATURES} is the most"))
