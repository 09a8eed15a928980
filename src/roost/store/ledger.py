"""The state of a zone by name: what the tables of a store hold, and what the change feed adds up to.

Entries can be applied and undone, so any revision that the feed reaches can be rebuilt from any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import add, gt, sub
from typing import Any, Literal

import msgspec

from roost.model.change import Entry, PlacedVM
from roost.model.errors import InvariantBroken
from roost.model.inventory import Catalogue, MachineSpec
from roost.model.request import VM, Constraints
from roost.model.rows import MachineState

STARTING = {"state": 0, "health": 100, "failures": 0, "versions_behind": 0}  # the condition of a new machine


class MachineRow(msgspec.Struct, gc=False):
    """A machine as the store holds it: what it is, what is used of it, and how it is."""

    spec: MachineSpec
    used: list[int]  # by band, then resource: what VMs of that very band take
    classes: list[int]  # VMs of each anti-colocation class
    vms: int = 0
    owner: str = ""  # the tenant that holds it in isolation
    state: int = STARTING["state"]
    health: int = STARTING["health"]
    failures: int = STARTING["failures"]
    versions_behind: int = STARTING["versions_behind"]
    version: int = 0  # grows by one with every entry that touches the machine

    def copy(self) -> MachineRow:
        """One that can change without this one noticing."""
        return MachineRow(
            self.spec, self.used.copy(), self.classes.copy(), self.vms, self.owner, self.state, self.health,
            self.failures, self.versions_behind, self.version,
        )  # fmt: skip

    def taken(self, resources: int) -> list[int]:
        """What VMs of all bands take together, by resource."""
        used = self.used
        taken = used[:resources]
        for at in range(resources, len(used), resources):
            taken = list(map(add, taken, used[at : at + resources]))
        return taken

    def is_empty(self, resources: int) -> bool:
        """Whether it is ready and runs no VM of the highest band, nor any that has it for itself."""
        return self.state == MachineState.READY and not self.owner and not any(self.used[:resources])


class TenantRow(msgspec.Struct, frozen=True, gc=False):
    """A tenant that has VMs."""

    constraints: Constraints
    stamp: int  # another one after every entry of the tenant; never the same again
    vms: int


class VMRow(msgspec.Struct, frozen=True, gc=False):
    """A VM that runs: as it was placed, and whose it is."""

    tenant: str
    placed: PlacedVM

    @property
    def machine(self) -> str:
        """Where it runs."""
        return self.placed.machine

    @property
    def spec(self) -> VM:
        """What was asked for."""
        return self.placed.spec

    @property
    def since(self) -> float:
        """When it was first placed; 0: nobody wrote that down."""
        return self.placed.since


class ClusterRow(msgspec.Struct, frozen=True, gc=False):
    """A cluster that has machines."""

    datacenter: str
    generation: str
    machines: int
    quarantined: bool = False


Check = Literal["sums", "capacity", "tenants", "clusters", "columns", "feed"]
HOLDINGS = ("used", "vms", "owner", "classes")  # what a row says its VMs add up to


class Finding(msgspec.Struct, frozen=True):
    """Something that contradicts something else."""

    check: Check
    what: str
    repairable: bool = False


class Accounts:
    """How one VM more or less, or another entry, changes rows. The only place that knows."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.resources, self.bands = len(catalogue.resources), len(catalogue.bands)
        self._demand = catalogue.demand
        self._band = {"": 0} | {name: i for i, name in enumerate(catalogue.bands)}
        self._class = {name: i for i, name in enumerate(catalogue.classes)}

    def new_row(self, spec: MachineSpec) -> MachineRow:
        """An empty machine."""
        return MachineRow(spec, [0] * (self.bands * self.resources), [0] * len(self._class))

    def put(self, row: MachineRow, vm: VM, tenant: str, sign: int) -> None:
        """Put a VM on a machine (sign 1) or take it off (sign -1)."""
        at = self._band[vm.priority] * self.resources
        used = row.used
        for amount in self._demand[vm.type, row.spec.generation]:
            used[at] += sign * amount
            at += 1
        row.vms += sign
        if not row.vms:
            row.owner = ""
        elif sign > 0 and vm.isolated:
            row.owner = tenant
        if vm.colocation:
            row.classes[self._class[vm.colocation]] += sign

    def lacks_room(self, row: MachineRow, vm: VM) -> bool:
        """Whether a machine has less that nobody holds than one more VM takes."""
        resources, used = self.resources, row.used
        total = map(add, self._demand[vm.type, row.spec.generation], used)
        for at in range(resources, len(used), resources):
            total = map(add, total, used[at : at + resources])
        return any(map(gt, total, row.spec.capacity))

    def room(self, row: MachineRow) -> list[int]:
        """What nobody holds of a machine, by resource."""
        return list(map(sub, row.spec.capacity, row.taken(self.resources)))

    def demand(self, vm: VM, row: MachineRow) -> tuple[int, ...]:
        """What a VM takes of a machine, by resource."""
        return self._demand[vm.type, row.spec.generation]

    def band(self, vm: VM) -> int:
        """Of a VM's priority: 0 is the highest."""
        return self._band[vm.priority]


class Ledger:
    """All machines, tenants, VMs, clusters and the registry of a zone at one revision."""

    def __init__(self, catalogue: Catalogue, revision: int = 0) -> None:
        self.catalogue, self.revision = catalogue, revision
        self.accounts = Accounts(catalogue)
        self.machines: dict[str, MachineRow] = {}
        self.tenants: dict[str, TenantRow] = {}
        self.vms: dict[str, VMRow] = {}
        self.clusters: dict[str, ClusterRow] = {}
        self.registry: dict[tuple[str, str], str] = {}  # by kind and name

    def copy(self) -> Ledger:
        """One that can change without this one noticing."""
        twin = Ledger(self.catalogue, self.revision)
        twin.machines = {name: row.copy() for name, row in self.machines.items()}
        twin.tenants, twin.vms, twin.clusters = self.tenants.copy(), self.vms.copy(), self.clusters.copy()
        twin.registry = self.registry.copy()
        return twin

    def apply(self, entry: Entry) -> None:
        """Go one revision forward."""
        for spec in entry.added:
            self._add(spec)
        for change in entry.conditions:
            setattr(self.machines[change.machine], change.field, change.after)
        for shut in entry.quarantines:
            self._quarantine(shut.cluster, shut.after)
        for gone in entry.released:
            self._release(gone, entry.tenant)
        for placed in entry.placed:
            self._place(placed, entry.tenant)
        for spec in entry.removed:
            self._remove(spec)
        for each in entry.registered:
            self._register(each.kind, each.name, each.after)
        self._retell(entry, entry.after, len(entry.placed) - len(entry.released))
        for machine, version in entry.versions.items():
            if machine in self.machines:
                self.machines[machine].version = version
        self.revision += 1

    def undo(self, entry: Entry) -> None:
        """Go one revision back, over the entry that led here."""
        for spec in entry.removed:
            self._add(spec)
        for placed in entry.placed:
            self._release(placed, entry.tenant)
        for gone in entry.released:
            self._place(gone, entry.tenant)
        for shut in entry.quarantines:
            self._quarantine(shut.cluster, shut.before)
        for change in entry.conditions:
            setattr(self.machines[change.machine], change.field, change.before)
        for spec in entry.added:
            self._remove(spec)
        for each in reversed(entry.registered):
            self._register(each.kind, each.name, each.before)
        self._retell(entry, entry.before, len(entry.released) - len(entry.placed))
        for machine, version in entry.versions.items():
            if machine in self.machines:
                self.machines[machine].version = version - 1
        self.revision -= 1

    def _add(self, spec: MachineSpec) -> None:
        if spec.name in self.machines:
            raise InvariantBroken(f"machine {spec.name} is added twice")
        self.machines[spec.name] = self.accounts.new_row(spec)
        cluster = self.clusters.get(spec.cluster) or ClusterRow(spec.datacenter, spec.generation, 0)
        self.clusters[spec.cluster] = msgspec.structs.replace(cluster, machines=cluster.machines + 1)

    def _remove(self, spec: MachineSpec) -> None:
        if self.machines.pop(spec.name).vms:
            raise InvariantBroken(f"machine {spec.name} is removed with VMs on it")
        cluster = self.clusters[spec.cluster]
        if cluster.machines > 1:
            self.clusters[spec.cluster] = msgspec.structs.replace(cluster, machines=cluster.machines - 1)
        else:
            del self.clusters[spec.cluster]

    def _quarantine(self, name: str, quarantined: bool) -> None:
        self.clusters[name] = msgspec.structs.replace(self.clusters[name], quarantined=quarantined)

    def _register(self, kind: str, name: str, value: str | None) -> None:
        if value is None:
            del self.registry[kind, name]
        else:
            self.registry[kind, name] = value

    def _place(self, placed: PlacedVM, tenant: str) -> None:
        if placed.vm in self.vms:
            raise InvariantBroken(f"VM {placed.vm} is placed twice")
        self.vms[placed.vm] = VMRow(tenant, placed)
        self.accounts.put(self.machines[placed.machine], placed.spec, tenant, 1)

    def _release(self, placed: PlacedVM, tenant: str) -> None:
        if self.vms.pop(placed.vm, None) != VMRow(tenant, placed):
            raise InvariantBroken(f"VM {placed.vm} is released from {placed.machine}, where it is not")
        self.accounts.put(self.machines[placed.machine], placed.spec, tenant, -1)

    def _retell(self, entry: Entry, stamp: int, more: int) -> None:
        """What the entry says of its tenant."""
        if not entry.tenant:
            return
        if not stamp:
            del self.tenants[entry.tenant]
            return
        known = self.tenants.get(entry.tenant)
        self.tenants[entry.tenant] = TenantRow(entry.constraints, stamp, (known.vms if known else 0) + more)

    # ---------------------------------------------------------------------------------------------- looking

    def differences(self, other: Ledger) -> Iterator[str]:
        """What differs, one sentence each; `other` is the one to be doubted."""
        mine: dict[Any, object]
        theirs: dict[Any, object]
        for kind, mine, theirs in (  # type: ignore[assignment]
            ("machine", self.machines, other.machines),
            ("tenant", self.tenants, other.tenants),
            ("VM", self.vms, other.vms),
            ("cluster", self.clusters, other.clusters),
            ("registry entry", self.registry, other.registry),
        ):
            for name in mine.keys() | theirs.keys():
                if name not in theirs:
                    yield f"{kind} {name} is missing"
                elif name not in mine:
                    yield f"{kind} {name} should not be there"
                elif mine[name] != theirs[name]:
                    yield f"{kind} {name} is {_differing(theirs[name], mine[name])}"

    def added_up(self) -> tuple[dict[str, MachineRow], dict[str, int]]:
        """What each machine holds and each tenant has, by the VMs."""
        fresh = {name: self.accounts.new_row(row.spec) for name, row in self.machines.items()}
        members: dict[str, int] = {}
        for vm in self.vms.values():
            members[vm.tenant] = members.get(vm.tenant, 0) + 1
            if (row := fresh.get(vm.machine)) and (vm.spec.type, row.spec.generation) in self.catalogue.demand:
                self.accounts.put(row, vm.spec, vm.tenant, 1)
        return fresh, members

    def check_invariants(self) -> Iterator[Finding]:
        """What contradicts itself: sums, capacities, tenants, clusters."""
        fresh, members = self.added_up()
        for name, vm in self.vms.items():
            if vm.tenant not in self.tenants:
                yield Finding("tenants", f"VM {name} is of tenant {vm.tenant}, which is not there")
            if vm.machine not in fresh:
                yield Finding("sums", f"VM {name} is on machine {vm.machine}, which is not there")
            elif (vm.spec.type, fresh[vm.machine].spec.generation) not in self.catalogue.demand:
                yield Finding("capacity", f"VM {name} of type {vm.spec.type} cannot run on machine {vm.machine}")
        for name, tenant in self.tenants.items():
            if tenant.vms != members.get(name, 0) or not tenant.vms:
                counted = f"tenant {name} counts {tenant.vms} VMs and has {members.get(name, 0)}"
                yield Finding("tenants", counted, repairable=True)
        for name, row in self.machines.items():
            taken = fresh[name].taken(self.accounts.resources)
            over = False
            for resource, amount, capacity in zip(self.catalogue.resources, taken, row.spec.capacity, strict=True):
                if amount > capacity:
                    over = True
                    yield Finding(
                        "capacity", f"machine {name} is over capacity: {amount} of {capacity} {resource.name}"
                    )
            for field in HOLDINGS:
                if (said := getattr(row, field)) != (sum_ := getattr(fresh[name], field)):
                    what = f"machine {name}: {field} is {said!r}, its VMs add up to {sum_!r}"
                    yield Finding("sums", what, repairable=not over)
        sizes: dict[str, int] = {}
        for row in self.machines.values():
            sizes[row.spec.cluster] = sizes.get(row.spec.cluster, 0) + 1
        for name in sorted(sizes.keys() | self.clusters.keys()):
            counted_ = self.clusters[name].machines if name in self.clusters else 0
            if counted_ != sizes.get(name, 0):
                yield Finding("clusters", f"cluster {name} counts {counted_} machines and has {sizes.get(name, 0)}")


def _differing(is_: object, should_be: object) -> str:
    """The fields in which two rows differ."""
    if not isinstance(is_, msgspec.Struct):
        return f"{is_!r} instead of {should_be!r}"
    differ = [f for f in is_.__struct_fields__ if getattr(is_, f) != getattr(should_be, f)]
    return ", ".join(f"{f} {getattr(is_, f)!r} instead of {getattr(should_be, f)!r}" for f in differ)


def replayed(catalogue: Catalogue, entries: Iterable[Entry]) -> Ledger:
    """What a feed adds up to from nothing."""
    ledger = Ledger(catalogue)
    for entry in entries:
        ledger.apply(entry)
    return ledger
