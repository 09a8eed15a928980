"""Who runs what where, as a copy of a zone knows it: a tenant, and its VMs on machines."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from roost.engine.recheck import TenantNumbers
from roost.engine.shape import Shape
from roost.model.change import PlacedVM
from roost.model.request import UNCONSTRAINED, VM, Constraints
from roost.placing.by_machine import ByMachine


class RunningVM(msgspec.Struct, frozen=True, gc=False):
    """An entry of the books: a VM as it was placed, whose it is, and its row and shape on this copy."""

    placed: PlacedVM
    tenant: str
    machine: int
    shape: Shape

    @property
    def name(self) -> str:
        """Unique in the zone."""
        return self.placed.vm

    @property
    def vm(self) -> VM:
        """What was asked for."""
        return self.placed.spec

    @property
    def since(self) -> float:
        """When it was first placed, in seconds since 1970; 0: nobody knows."""
        return self.placed.since


class Tenant(msgspec.Struct, eq=False):
    """A tenant and its VMs by name."""

    constraints: Constraints
    vms: dict[str, RunningVM] = {}
    created: int = 0  # VMs ever made, to name the next one
    stamp: int = 0  # the store's, for a tenant that a store knows


class Books:
    """The tenants of a zone and their VMs, by name and by machine. The rows are another matter."""

    def __init__(self) -> None:
        self.vms: dict[str, RunningVM] = {}
        self._by_machine = ByMachine()
        self.note_on = self._by_machine.enter  # a VM is on its machine
        self.reserved: set[str] = set()  # names that VMs had which may come back: none is given to another unasked
        self.leaving: dict[str, RunningVM] = {}  # VMs in the books that are off their machines' rows: they give way
        self.tenants: dict[str, Tenant] = {}
        self.numbers = TenantNumbers()

    def stock(self, tenants: dict[str, Tenant], vms: dict[str, RunningVM]) -> None:
        """Begin with these, by name: all that a zone holds. Only while the books are empty."""
        assert not self.vms, "what is there would be forgotten"
        self.tenants, self.vms = tenants, vms
        self._by_machine.stock(vms.values())
        for name, running in vms.items():
            (tenants.get(running.tenant) or _tenant(tenants, running.tenant)).vms[name] = running

    def enter(self, running: RunningVM, *, named: bool = True) -> None:
        """Write a VM into the books; the rows are another matter. Not `named`: another VM has its name for now."""
        if named:
            self.vms[running.name] = running
        if not self._by_machine.has(running):  # as one has that comes back under its name
            self.note_on(running)
        _tenant(self.tenants, running.tenant).vms[running.name] = running

    def rehouse(self, old: RunningVM, new: RunningVM) -> None:
        """Write a VM into the books where it is now, in the place of where it was; the rows are another matter."""
        self.vms[old.name] = self.tenants[old.tenant].vms[old.name] = new
        self._by_machine.strike(old)
        self.note_on(new)

    def strike(self, running: RunningVM, heir: RunningVM | None = None) -> None:
        """Strike a VM from the books; an heir takes over its name. A tenant without VMs is forgotten."""
        name, tenant = running.name, self.tenants[running.tenant]
        if tenant.vms.get(name) is running:
            del tenant.vms[name]
        self._by_machine.strike(running)
        if heir is not None:
            self.enter(heir)
        elif self.vms.get(name) is running:
            del self.vms[name]
        if not tenant.vms:
            del self.tenants[running.tenant]

    def giving_way(self, machine: int) -> Iterable[RunningVM]:
        """The VMs of a machine that are below the highest band."""
        return [vm for vm in self._by_machine.on(machine) if vm.shape.traits["priority"]]

    def running_on(self, machines: Iterable[int]) -> dict[int, list[RunningVM]]:
        """The VMs on some machines, by machine row, without those that are leaving."""
        leaving, on = self.leaving, self._by_machine.on
        return {m: [vm for vm in on(m) if leaving.get(vm.name) is not vm] for m in machines}


def _tenant(tenants: dict[str, Tenant], name: str) -> Tenant:
    """A tenant that has VMs; until more is known of it, it asks for nothing."""
    if (tenant := tenants.get(name)) is None:
        tenant = tenants[name] = Tenant(UNCONSTRAINED)
    return tenant
