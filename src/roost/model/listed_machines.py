"""Machines that are listed one by one: the racks of a list, and what each machine has of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from roost.model.errors import InvalidInput, UnknownName
from roost.model.machine_list import (
    MOST_MACHINES,
    NUMBER_COLUMNS,
    MachineList,
    looked_up,
    numbered,
    read_machine_list,
)
from roost.model.rows import MachineState
from roost.model.yaml_file import YamlFile
from roost.model.zone import CONDITION, INT32_MAX, MachineGroup, Resource, Zone

if TYPE_CHECKING:
    from numpy.typing import NDArray

DATACENTER, UPDATE_DOMAINS = "dc1", 20  # unless the file says otherwise
STATES = {state.name.lower(): int(state) for state in MachineState}


@dataclass(frozen=True)
class Listed:
    """The machines of a list: rack by rack, and what each has of its own in that order."""

    table: MachineList
    racks: Sequence[MachineGroup]
    order: NDArray[np.int64]  # of the rows
    capacity: Mapping[str, NDArray[np.float64]]  # by resource, in the smallest unit; NaN: as the generation has it
    condition: Mapping[str, NDArray[np.int64]]

    def features(self, described: Mapping[str, str], asked: Mapping[str, str], *, strict: bool) -> dict[str, str]:
        """Each feature that only the list says a machine has, and where it says so first; if strict, a known one."""
        cells = self.table.cells("features")
        named: dict[str, str] = {}
        for cell in dict.fromkeys(cells):
            where = self.table.where(cells.index(cell), "features")
            for name in _split(cell):
                if strict and name not in described and name not in asked:
                    self.table.mistakes.note(UnknownName(where, "hardware feature", name, {*described, *asked}))
                if name not in described:
                    named.setdefault(name, where)
        return named

    def describe(self, zone: Zone) -> None:
        """Give these machines, the last ones of the zone, their own capacity, features and condition."""
        these = slice(len(zone.machines) - len(self.order), None)
        capacity, features = zone.machines["capacity"].copy(), zone.machines["features"].copy()
        for r, resource in enumerate(zone.resources):
            own = self.capacity[resource.name]
            capacity[these, r] = np.where(np.isnan(own), capacity[these, r], own)
        cells = self.table.cells("features")
        extra = looked_up(cells, {cell: zone.feature_bits(_split(cell)) for cell in dict.fromkeys(cells)})[self.order]
        usual = np.array([zone.feature_bits(generation.features) for generation in zone.generations])
        features[these] = usual[zone.machines["generation"][these]] | extra
        condition = {field: zone.machines[field].copy() for field in CONDITION}
        for field, values in self.condition.items():
            condition[field][these] = values
        zone.set_capacity(capacity)
        zone.set_features(features)
        zone.set_condition(**condition)


def read_listed(
    file: YamlFile,
    name: str,
    resources: Mapping[str, Resource | None],
    generations: Collection[str],
    others: Sequence[MachineGroup],
) -> Listed:
    """The list that a zone file points to, beside racks that the file describes. Mistakes are noted with the file's."""
    table = read_machine_list(file, name, resources)
    _check_names(table, others)
    racks, order = _racks(table, generations)
    condition = {"state": table.choices("state", "state of a machine", STATES, "ready")[order]}
    for field, default in (("health", 100), ("failures", 0), ("versions_behind", 0)):
        condition[field] = _whole_numbers(table, field, default)[order]
    capacity = {each.name: _own(table, each)[order] for each in resources.values() if each is not None}
    return Listed(table, racks, order, capacity, condition)


def _check_names(table: MachineList, others: Sequence[MachineGroup]) -> None:
    """A machine is described once, and a cluster is either described by the zone file or listed."""
    names, clusters = table.new_names("name"), table.new_names("cluster")
    taken = {name for group in others for name in group.names}
    if (spare := MOST_MACHINES - len(taken)) < len(names):
        raise InvalidInput(
            table.where(spare, "name"), "is one too many", f"a zone has at most {MOST_MACHINES:,} machines"
        )
    described = {group.cluster for group in others}
    for cluster in dict.fromkeys(clusters):
        if cluster in described:
            problem, row = f"the zone file describes {cluster} already", clusters.index(cluster)
            table.note(row, "cluster", problem, "list it or describe it, not both")
    for row, name in enumerate(names):
        if name and name in taken:
            table.note(row, "name", f"there is a machine {name} already", "names must differ")
        taken.add(name)


def _racks(table: MachineList, generations: Collection[str]) -> tuple[list[MachineGroup], NDArray[np.int64]]:
    """The racks of a list, and its rows in their order: clusters, and racks within them, as they first appear."""
    table.choices("generation", "generation", {name: i for i, name in enumerate(generations)})
    hardware = _one_per_cluster(table, "generation", table.names("generation"))
    datacenters = _one_per_cluster(table, "datacenter", table.new_names("datacenter", DATACENTER))
    names, clusters, features = table.names("name"), table.names("cluster"), table.cells("features")
    places = list(zip(clusters, table.new_names("rack"), strict=True))
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


def _one_per_cluster(table: MachineList, column: str, names: Sequence[str]) -> Sequence[str]:
    """A column of names in which the machines of a cluster agree; each other name is noted once."""
    clusters = table.names("cluster")
    first = dict(zip(reversed(clusters), reversed(names), strict=True))
    told: set[tuple[str, str]] = set()
    for row, (cluster, name) in enumerate(zip(clusters, names, strict=True)):
        if name != first[cluster] and cluster and name and (cluster, name) not in told:
            told.add((cluster, name))
            problem = f"is {name}, but cluster {cluster} has machines of {first[cluster]} too"
            table.note(row, column, problem, f"a cluster is of one {column}: split it")
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


def _own(table: MachineList, resource: Resource) -> NDArray[np.float64]:
    """Each machine's own amount of a resource in the smallest unit, NaN where it has none of its own."""
    highest = INT32_MAX // resource.per_unit
    given = table.amounts(resource.name, highest, f"give it in {resource.unit}, from 0 to {highest:,}")
    return np.ceil(np.round(given * resource.per_unit, 6))


def _split(features: str) -> list[str]:
    return [name.strip() for name in features.split("|") if name.strip()]
