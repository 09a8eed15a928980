"""A zone at one moment as a document: who runs what where, to be kept, sent, and asked questions about.

What machines hold is not written down: it is added up again from the VMs, so a document cannot contradict itself.
Tokens are left out: whoever may read where VMs are need not learn who may change it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from roost.model.change import PlacedVM
from roost.model.errors import InvalidInput
from roost.model.inventory import Catalogue, MachineSpec
from roost.model.registry import in_snapshots
from roost.model.request import VM
from roost.model.rows import MachineState
from roost.store.ledger import ClusterRow, Ledger, TenantRow, VMRow


class MachineNow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a machine is, and how it is."""

    spec: MachineSpec
    state: int
    health: int
    failures: int
    versions_behind: int
    version: int = 0


class VMNow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A VM; `spec` is the place of what it asked for among `Snapshot.specs`."""

    name: str
    tenant: str
    machine: str
    spec: int
    since: float = 0.0


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A ledger, written down."""

    form: Literal["roost snapshot 1"] = "roost snapshot 1"
    revision: int
    catalogue: Catalogue
    clusters: dict[str, ClusterRow]
    machines: list[MachineNow]
    tenants: dict[str, TenantRow]
    specs: list[VM]
    vms: list[VMNow]
    registry: list[tuple[str, str, str]] = []  # kind, name, value


def snapshot_of(ledger: Ledger) -> Snapshot:
    """What a ledger holds."""
    specs: dict[bytes, int] = {}
    known: dict[int, int] = {}  # many VMs share one object
    kept: list[VM] = []
    vms = []
    for name, row in ledger.vms.items():
        at = known.get(id(row.spec))
        if at is None:
            at = specs.setdefault(msgspec.json.encode(row.spec), len(kept))
            if at == len(kept):
                kept.append(row.spec)
            known[id(row.spec)] = at
        vms.append(VMNow(name, row.tenant, row.machine, at, row.since))
    return Snapshot(
        revision=ledger.revision,
        catalogue=ledger.catalogue,
        clusters=ledger.clusters,
        machines=[
            MachineNow(row.spec, row.state, row.health, row.failures, row.versions_behind, row.version)
            for row in ledger.machines.values()
        ],
        tenants=ledger.tenants,
        specs=kept,
        vms=vms,
        registry=[(kind, name, value) for (kind, name), value in ledger.registry.items() if in_snapshots(kind)],
    )


def ledger_of(snapshot: Snapshot) -> Ledger:
    """The ledger that was written down; one that contradicts itself is refused."""
    catalogue = snapshot.catalogue
    for generation in catalogue.generations:
        if len(generation.capacity) != len(catalogue.resources):
            problem = f"has {len(generation.capacity)} resources, and the zone {len(catalogue.resources)}"
            raise InvalidInput("snapshot", f"generation {generation.name} {problem}", "take it again")
    ledger = Ledger(catalogue, snapshot.revision)
    for machine in snapshot.machines:
        _check_machine(machine, catalogue)
        row = ledger.machines[machine.spec.name] = ledger.accounts.new_row(machine.spec)
        row.state, row.health, row.version = machine.state, machine.health, machine.version
        row.failures, row.versions_behind = machine.failures, machine.versions_behind
    ledger.clusters = dict(snapshot.clusters)
    ledger.tenants = dict(snapshot.tenants)
    put = ledger.accounts.put
    try:
        for vm in snapshot.vms:
            if vm.spec < 0:
                raise InvalidInput("snapshot", f"VM {vm.name} has spec {vm.spec}", "take it again")
            spec = snapshot.specs[vm.spec]
            ledger.vms[vm.name] = VMRow(vm.tenant, PlacedVM(vm.name, spec, vm.machine, vm.since))
            put(ledger.machines[vm.machine], spec, vm.tenant, 1)
    except LookupError as error:
        raise InvalidInput("snapshot", f"a VM speaks of {error}, which is not in it", "take it again") from None
    ledger.registry = {(kind, name): value for kind, name, value in snapshot.registry}
    if found := next(ledger.check_invariants(), None):
        raise InvalidInput("snapshot", found.what, "take it again")
    return ledger


def _check_machine(machine: MachineNow, catalogue: Catalogue) -> None:
    """What nothing later would notice, or only by failing."""
    spec, problem = machine.spec, ""
    if spec.generation not in {generation.name for generation in catalogue.generations}:
        problem = f"is of generation {spec.generation}, which is not in it"
    elif len(spec.capacity) != len(catalogue.resources):
        problem = f"has {len(spec.capacity)} resources, and the zone {len(catalogue.resources)}"
    elif machine.state not in tuple(MachineState):
        problem = f"is in state {machine.state}, and there are {len(MachineState)} from 0 on"
    if problem:
        raise InvalidInput("snapshot", f"machine {spec.name} {problem}", "take it again")


def encode_snapshot(ledger: Ledger) -> bytes:
    """A ledger as JSON."""
    return msgspec.json.encode(snapshot_of(ledger))


def decode_snapshot(text: bytes, where: str = "snapshot") -> Ledger:
    """The ledger in a JSON document."""
    try:
        return ledger_of(msgspec.json.decode(text, type=Snapshot))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidInput(where, str(error), "give what `roost whatif snapshot` wrote") from None
