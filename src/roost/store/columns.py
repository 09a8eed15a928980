"""All of a zone in columns, as a store reads it. Rows of Python are made of it for those that change them: a `Ledger`.

An agent makes its copy of the columns themselves: of a hundred thousand machines and six hundred thousand VMs, the rows
alone would take as long as all the rest of its start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roost.model.change import Entry, PlacedVM
from roost.model.columns import Columns, MachineColumns
from roost.model.inventory import Catalogue
from roost.model.request import VM, Constraints
from roost.store.ledger import ClusterRow, Ledger, MachineRow, TenantRow, VMRow


class TenantColumns(Columns, frozen=True, eq=False):
    """The tenants that have VMs."""

    name: list[str]
    constraints: list[Constraints]
    stamp: list[int]
    vms: list[int]


class VMColumns(Columns, frozen=True, eq=False):
    """The VMs that run. Those that ask for the same share what they ask for."""

    name: list[str]
    tenant: list[str]
    machine: list[str]
    spec: list[VM]
    since: list[float]


@dataclass(frozen=True, slots=True)
class ZoneColumns:
    """All machines, tenants, VMs, clusters and the registry of a zone at one revision."""

    catalogue: Catalogue
    revision: int
    machines: MachineColumns
    tenants: TenantColumns
    vms: VMColumns
    clusters: Mapping[str, ClusterRow]
    registry: Mapping[tuple[str, str], str]  # by kind and name

    @classmethod
    def of(cls, ledger: Ledger) -> ZoneColumns:
        """What a ledger holds."""
        tenants, vms = ledger.tenants, ledger.vms
        placed = [vm.placed for vm in vms.values()]
        return cls(
            ledger.catalogue,
            ledger.revision,
            MachineColumns.of(list(ledger.machines.values())),
            TenantColumns(
                list(tenants),
                [tenant.constraints for tenant in tenants.values()],
                [tenant.stamp for tenant in tenants.values()],
                [tenant.vms for tenant in tenants.values()],
            ),
            VMColumns(
                list(vms),
                [vm.tenant for vm in vms.values()],
                [vm.machine for vm in placed],
                [vm.spec for vm in placed],
                [vm.since for vm in placed],
            ),
            ledger.clusters,
            ledger.registry,
        )

    def ledger(self) -> Ledger:
        """The same in rows, which can change."""
        ledger = Ledger(self.catalogue, self.revision)
        machines, tenants, vms = self.machines, self.tenants, self.vms
        spec, used, classes, *others = machines.lists
        rows = map(MachineRow, spec, map(list, used), map(list, classes), *others)
        ledger.machines = {row.spec.name: row for row in rows}
        theirs = map(TenantRow, tenants.constraints, tenants.stamp, tenants.vms)
        ledger.tenants = dict(zip(tenants.name, theirs, strict=True))
        placed = map(PlacedVM, vms.name, vms.spec, vms.machine, vms.since)
        ledger.vms = dict(zip(vms.name, map(VMRow, vms.tenant, placed), strict=True))
        ledger.clusters, ledger.registry = dict(self.clusters), dict(self.registry)
        return ledger

    def before(self, entries: Sequence[Entry]) -> ZoneColumns:
        """The zone as it was before its last entries. Rows are made of those alone that they speak of."""
        if not entries:
            return self
        machines, tenants, vms = _spoken_of(entries)
        theirs, machines_left = self.machines.parted((spec.name for spec in self.machines.spec), machines)
        some, tenants_left = self.tenants.parted(self.tenants.name, tenants)
        those, vms_left = self.vms.parted(self.vms.name, vms)
        part = ZoneColumns(self.catalogue, self.revision, theirs, some, those, self.clusters, self.registry)
        ledger = part.ledger()
        for entry in reversed(entries):
            ledger.undo(entry)
        part = ZoneColumns.of(ledger)
        return ZoneColumns(
            self.catalogue,
            part.revision,
            machines_left.joined(part.machines),
            tenants_left.joined(part.tenants),
            vms_left.joined(part.vms),
            part.clusters,
            part.registry,
        )


def _spoken_of(entries: Sequence[Entry]) -> tuple[set[str], set[str], set[str]]:
    """The names of the machines, tenants and VMs whose rows some entries change."""
    machines, tenants, vms = set[str](), set[str](), set[str]()
    for entry in entries:
        machines.update(entry.versions, (spec.name for spec in (*entry.added, *entry.removed)))
        tenants.add(entry.tenant)
        vms.update(each.vm for each in (*entry.placed, *entry.released))
    return machines, tenants, vms
