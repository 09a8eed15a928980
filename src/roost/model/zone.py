"""A zone: its hardware, what can run on it, and one row for every machine, rack and cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from roost.model.availability import USUAL_DOMAINS, MostDomains
from roost.model.errors import InvalidInput, UnknownName
from roost.model.readable import as_counted
from roost.model.rows import MachineState, cluster_type, machine_type, rack_type
from roost.model.scarcity import SCARCITY
from roost.model.thresholds import Thresholds

if TYPE_CHECKING:
    from numpy.typing import NDArray

INT32_MAX = 2**31 - 1
MOST_FEATURES = 31  # each is a bit of a row


class Resource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A resource that VMs use up. People write amounts in `unit`; rows hold whole multiples of 1/`per_unit` of it."""

    name: str
    unit: str
    per_unit: int

    def amount(self, value: float, where: str) -> int:
        """`value` units as a whole number of the smallest unit, rounded up."""
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value * self.per_unit <= INT32_MAX:
            highest = INT32_MAX // self.per_unit
            raise InvalidInput(where, f"is {value!r}", f"give {self.name} in {self.unit}, from 0 to {highest:,}")
        return int(np.ceil(round(value * self.per_unit, 6)))

    def said(self, amount: int) -> str:
        """So much of the smallest unit, in units as people write them: 8,000 or 0.768."""
        return f"{round(amount / self.per_unit, 3):,.12g}"


DEFAULT_RESOURCES = (
    Resource("cores", "cores", 1000),
    Resource("memory", "GiB", 1024),
    Resource("disk", "GiB", 1),
    Resource("ssd", "GiB", 1),
    Resource("nic", "Gbit/s", 1000),
)
DEFAULT_BANDS = ("regular", "spot")
CONDITION = ("state", "health", "failures", "versions_behind")  # fields of a machine that say how it is


class Generation(msgspec.Struct, frozen=True):
    """A hardware generation: what each of its machines has."""

    name: str
    capacity: tuple[int, ...]
    features: tuple[str, ...] = ()


class VMType(msgspec.Struct, frozen=True):
    """A size of VM on offer. What it takes may differ per generation; it runs on those that are listed."""

    name: str
    family: str
    demand: Mapping[str, tuple[int, ...]]  # generation name -> amount of each resource
    requires: tuple[str, ...] = ()


class MachineGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Machines of one rack, before they become rows."""

    datacenter: str
    cluster: str
    rack: str
    generation: str
    names: Sequence[str]
    update_domains: Sequence[int]
    features: tuple[str, ...] = ()


def sum_up(machines: NDArray[np.void], racks: NDArray[np.void], clusters: NDArray[np.void]) -> None:
    """Give racks and clusters the sums of their machines. Only ready machines count as free or empty."""
    ready = machines["state"] == MachineState.READY
    capacity = machines["capacity"][:, None, :]
    unused = (machines["free"] == capacity).all(axis=2) & (machines["owner"] == 0)[:, None]
    sums = {
        "used": (capacity - machines["free"]).astype(np.int64),
        "free": np.where(ready[:, None, None], machines["free"], 0).astype(np.int64),
        "vms": machines["vms"],
        "empty": (ready[:, None] & unused).astype(np.int32),
    }
    for field, values in sums.items():
        racks[field] = np.add.reduceat(values, racks["first"], axis=0)
        clusters[field] = np.add.reduceat(racks[field], clusters["first_rack"], axis=0)


class Zone:
    """One availability zone, as it is before anything runs on it. Allocators work on their own copy of the rows."""

    def __init__(
        self,
        *,
        name: str,
        resources: Sequence[Resource],
        bands: Sequence[str],
        generations: Sequence[Generation],
        vm_types: Sequence[VMType],
        groups: Sequence[MachineGroup],
        conflicts: Sequence[tuple[str, str]] = (),
        excluded: Mapping[str, Sequence[str]] | None = None,
        thresholds: Mapping[str, Thresholds] | None = None,
        availability: MostDomains = USUAL_DOMAINS,
    ) -> None:
        """`groups` come sorted so that a cluster's racks are adjacent; `excluded` lists VM types a cluster refuses.

        `thresholds`: the empty machines that clusters keep. `availability`: what one availability set may ask for.
        """
        self.name, self.availability = name, availability
        self.eases: dict[tuple[int, ...], tuple[int, int, float]] = {}  # what `placing_order` has worked out of it
        self.resources, self.bands = tuple(resources), tuple(bands)
        self.generations, self.vm_types = tuple(generations), tuple(vm_types)
        named = {f for g in generations for f in g.features} | {f for t in vm_types for f in t.requires}
        self.features = tuple(sorted(named | {f for group in groups for f in group.features}))
        if len(self.features) > MOST_FEATURES:
            raise InvalidInput(
                "features", f"there are {len(self.features)}", f"a zone can name at most {MOST_FEATURES}"
            )
        self.classes = tuple(sorted({c for pair in conflicts for c in pair}))
        self.conflicts = np.zeros((len(self.classes), len(self.classes)), np.int8)
        for a, b in conflicts:
            i, j = self.classes.index(a), self.classes.index(b)
            self.conflicts[i, j] = self.conflicts[j, i] = 1

        self.generation_index = {g.name: i for i, g in enumerate(self.generations)}
        self.vm_type_index = {t.name: i for i, t in enumerate(self.vm_types)}
        # What cannot run on a generation would take more than any machine has.
        self.demand = np.full((len(vm_types), len(generations), len(resources)), INT32_MAX, np.int32)
        self.supported = np.zeros((len(vm_types), len(generations)), np.int8)
        for t, vm_type in enumerate(vm_types):
            for generation, amounts in vm_type.demand.items():
                self.demand[t, self.generation_index[generation]] = amounts
                self.supported[t, self.generation_index[generation]] = 1
        self._lay_out(groups, excluded or {})
        for cluster, kept in (thresholds or {}).items():
            self.clusters["thresholds"][self.cluster_names.index(cluster)] = kept.row

    def _lay_out(self, groups: Sequence[MachineGroup], excluded: Mapping[str, Sequence[str]]) -> None:
        """One row per machine, rack and cluster; a rack's machines and a cluster's racks are adjacent."""
        bands, amounts = len(self.bands), len(self.resources)
        self.datacenters = tuple(dict.fromkeys(g.datacenter for g in groups))
        self.cluster_names = tuple(dict.fromkeys(g.cluster for g in groups))
        self.rack_names = tuple(g.rack for g in groups)
        self.machine_names: tuple[str, ...] = tuple(name for g in groups for name in g.names)
        if len(self.cluster_names) >= 2**15 or not groups:
            raise InvalidInput("clusters", f"there are {len(self.cluster_names)}", "a zone has 1 to 32,767 clusters")
        datacenter_index = {name: i for i, name in enumerate(self.datacenters)}
        cluster_index = {name: i for i, name in enumerate(self.cluster_names)}

        sizes = np.array([len(g.names) for g in groups])
        generation = np.array([self.generation_index[g.generation] for g in groups])
        cluster = np.array([cluster_index[g.cluster] for g in groups])
        capacity = np.array([g.capacity for g in self.generations], np.int32).reshape(-1, amounts)

        self.racks = np.zeros(len(groups), rack_type(bands, amounts))
        self.racks["cluster"], self.racks["machines"], self.racks["empty"] = cluster, sizes, sizes[:, None]
        self.racks["first"] = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        self.racks["capacity"] = capacity[generation].astype(np.int64) * sizes[:, None]
        self.racks["free"] = self.racks["capacity"][:, None, :]

        self.machines = np.zeros(len(self.machine_names), machine_type(bands, amounts, len(self.classes)))
        spread = {
            "rack": np.arange(len(groups)),
            "cluster": cluster,
            "generation": generation,
            "datacenter": np.array([datacenter_index[g.datacenter] for g in groups]),
            "features": np.array([self.feature_bits((*self._hardware(g).features, *g.features)) for g in groups]),
            "capacity": capacity[generation],
        }
        for field, values in spread.items():
            self.machines[field] = np.repeat(values, sizes, axis=0)
        self.machines["free"] = self.machines["capacity"][:, None, :]
        self.machines["update_domain"] = np.concatenate([g.update_domains for g in groups])
        self.machines["health"] = 100

        self.clusters = np.zeros(len(self.cluster_names), cluster_type(bands, amounts, len(self.vm_types)))
        first_rack = np.flatnonzero(np.diff(cluster, prepend=-1))
        if len(first_rack) != len(self.cluster_names):
            raise InvalidInput("clusters", "the racks of a cluster must be adjacent")
        self.clusters["index"] = np.arange(len(self.cluster_names))
        self.clusters["first_rack"], self.clusters["first"] = first_rack, self.racks["first"][first_rack]
        self.clusters["racks"] = np.diff(first_rack, append=len(groups))
        for field in ("machines", "empty", "capacity"):
            self.clusters[field] = np.add.reduceat(self.racks[field], first_rack, axis=0)
        self.clusters["free"] = self.clusters["capacity"][:, None, :]
        for field in ("generation", "datacenter", "features"):
            self.clusters[field] = self.machines[field][self.clusters["first"]]
        for field in ("generation", "datacenter"):
            mixed = np.flatnonzero(self.machines[field] != self.clusters[field][self.machines["cluster"]])
            if len(mixed):
                wrong = self.cluster_names[self.machines["cluster"][mixed[0]]]
                raise InvalidInput(
                    f"cluster {wrong}", f"has machines of several {field}s", f"a cluster is of one {field}: split it"
                )
        self.clusters["supports"] = self.supported[:, self.clusters["generation"]].T
        self.note_demands()
        for name, types in excluded.items():
            for t in types:
                self.clusters["supports"][cluster_index[name], self.vm_type_index[t]] = 0

    def note_demands(self) -> None:
        """Tell the rows of clusters what a VM of each type takes there."""
        clusters, generations = self.clusters, self.clusters["generation"]
        need = self.demand[:, generations].transpose(1, 0, 2)
        capacity = np.array([self.generations[g].capacity for g in generations.tolist()], np.float64)[:, None, :]
        weights = np.array([SCARCITY.get(resource.name, 0.0) for resource in self.resources]) * (capacity > 0)
        clusters["demands"] = need
        clusters["per_demand"] = np.divide(1.0, need, out=np.zeros(need.shape), where=need > 0)
        shares = weights * np.divide(need, capacity, out=np.zeros(need.shape), where=capacity > 0)
        weight = weights.sum(axis=2)
        clusters["takes"] = np.divide(shares.sum(axis=2), weight, out=np.zeros(shares.shape[:2]), where=weight > 0)

    def _hardware(self, group: MachineGroup) -> Generation:
        return self.generations[self.generation_index[group.generation]]

    def set_capacity(self, capacity: NDArray[np.int32]) -> None:
        """Give each machine its own capacity (machine × resource) instead of its generation's."""
        self.machines["capacity"] = capacity
        self.machines["free"] = capacity[:, None, :]
        self.racks["capacity"] = np.add.reduceat(capacity.astype(np.int64), self.racks["first"], axis=0)
        self.clusters["capacity"] = np.add.reduceat(self.racks["capacity"], self.clusters["first_rack"], axis=0)
        sum_up(self.machines, self.racks, self.clusters)

    def set_condition(self, **fields: NDArray[np.integer]) -> None:
        """Say how each machine is: its `state`, `health`, `failures`, `versions_behind`, or some of these."""
        for field in fields:
            if field not in CONDITION:
                raise UnknownName("condition", "condition of a machine", field, CONDITION)
        for field, values in fields.items():
            self.machines[field] = values
        sum_up(self.machines, self.racks, self.clusters)

    def set_features(self, features: NDArray[np.int32]) -> None:
        """Give each machine its own bit set of features; a cluster has those that any of its machines has."""
        self.machines["features"] = features
        self.clusters["features"] = np.bitwise_or.reduceat(features, self.clusters["first"])

    @classmethod
    def synthetic(cls, machines: int = 20_000, seed: int = 0) -> Zone:
        """A made-up zone with Protean's generation mix: clusters of about 1,000 machines, racks of about 40."""
        from roost.model.synthetic import synthetic_zone

        return synthetic_zone(machines, seed)

    @classmethod
    def load(cls, path: str | Path) -> Zone:
        """The zone that a YAML file describes. A mistake is refused with its file and line; nothing is half-loaded."""
        from roost.model.zone_file import load_zone

        return load_zone(path)

    @cached_property
    def machines_as_counted(self) -> npt.NDArray[np.int64]:
        """The rows of machines by name, as people count: m2 before m10."""
        names = self.machine_names
        return np.array(sorted(range(len(names)), key=lambda m: as_counted(names[m])), np.int64)

    @cached_property
    def machine_index(self) -> dict[str, int]:
        """Machine name to row."""
        return {name: i for i, name in enumerate(self.machine_names)}

    @property
    def cores_at(self) -> int:
        """Where cores stand among the resources; the first, if none is called so."""
        return next((i for i, resource in enumerate(self.resources) if resource.name == "cores"), 0)

    @property
    def cores(self) -> float:
        """Of all machines."""
        at = self.cores_at
        return float(self.machines["capacity"][:, at].sum(dtype=np.int64)) / self.resources[at].per_unit

    def machine(self, name: str) -> int:
        """The row of a machine."""
        if (row := self.machine_index.get(name)) is None:
            raise UnknownName("machine", "machine", name, self.machine_names)
        return row

    def cluster(self, name: str) -> int:
        """The row of a cluster."""
        if name not in self.cluster_names:
            raise UnknownName("cluster", "cluster", name, self.cluster_names)
        return self.cluster_names.index(name)

    def vm_type(self, name: str, where: str = "vm.type") -> int:
        """The index of a VM type."""
        if (index := self.vm_type_index.get(name)) is None:
            raise UnknownName(where, "VM type", name, self.vm_type_index)
        return index

    def feature_bits(self, names: Sequence[str], where: str = "features") -> int:
        """A bit set of hardware features."""
        bits = 0
        for name in names:
            if name not in self.features:
                raise UnknownName(where, "hardware feature", name, self.features)
            bits |= 1 << self.features.index(name)
        return bits

    def __repr__(self) -> str:
        return (
            f"Zone({self.name!r}: {len(self.machines):,} machines, {len(self.racks):,} racks, "
            f"{len(self.clusters)} clusters, {len(self.vm_types)} VM types)"
        )
