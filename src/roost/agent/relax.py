"""The least change that would make a request fit: drop a constraint, give up a pin, or free VMs on one machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from roost.agent.gang import Trial
from roost.agent.rehearsal import Rehearsal
from roost.model.request import UNCONSTRAINED, Constraints, Request
from roost.model.rows import MachineState

if TYPE_CHECKING:
    from roost.agent.allocator import Allocator, RunningVM

MACHINES_TRIED = 200  # of those nearest to having room
MOST_FREED = 4  # VMs on one machine
GROUPS_TRIED = 8  # of each number of VMs


@dataclass(frozen=True, slots=True)
class Relaxation:
    """One change after which the request fits. `str()` completes the sentence 'it would fit if you …'."""

    kind: Literal["constraint", "pin", "free"]
    text: str
    vms: tuple[str, ...] = ()
    machine: str | None = None

    def __str__(self) -> str:
        return self.text


def relaxations(allocator: Allocator, rehearsal: Rehearsal, request: Request, failed: Trial) -> tuple[Relaxation, ...]:
    """Changes that were tried out and made the request fit, least first; each is the least of its kind."""
    tenant = allocator.tenants.get(request.tenant)
    constraints = tenant.constraints if tenant else (request.constraints or UNCONSTRAINED)
    number = tenant.number if tenant else 0

    def fits(wanted: Request, under: Constraints) -> bool:
        return rehearsal.try_out(wanted, number, under, failed.homes).failed_vm is None

    found = []
    for name, value in constraints.named.items():
        if fits(request, msgspec.structs.replace(constraints, **{name: "" if name == "colocate" else 0})):
            found.append(Relaxation("constraint", f"drop the constraint {name} = {value}"))
    for pin in ("generation", "cluster", "datacenter"):
        if not any(getattr(vm, pin) for vm in request.vms):
            continue
        anywhere = tuple(msgspec.structs.replace(vm, **{pin: ""}) for vm in request.vms)
        if fits(msgspec.structs.replace(request, vms=anywhere), constraints):
            pinned = sorted({getattr(vm, pin) for vm in request.vms} - {""})
            found.append(Relaxation("pin", f"take any {pin}, not only {', '.join(pinned)}"))
    for machine, vms in _groups_to_free(allocator, failed):
        with rehearsal.without((machine, vm.shape) for vm in vms):
            if fits(request, constraints):
                name = allocator.zone.machine_names[machine]
                listed = ", ".join(f"{vm.name} ({vm.vm.type})" for vm in vms)
                found.append(Relaxation("free", f"free {listed} on {name}", tuple(vm.name for vm in vms), name))
                break
    return tuple(found)


def _groups_to_free(allocator: Allocator, failed: Trial) -> Iterator[tuple[int, tuple[RunningVM, ...]]]:
    """VMs on one machine whose release would make room for the VM that failed: fewest first, then smallest."""
    assert failed.failed_vm is not None
    vm = failed.shapes[failed.failed_vm].row[0]
    machines = allocator.view.machines
    generation = machines["generation"]
    demand = vm["demand"][generation].astype(np.int64)
    missing = np.maximum(0, demand - machines["free"][:, -1])
    possible = vm["supported"][generation].astype(bool) & (demand <= machines["capacity"]).all(axis=1)
    rows = np.flatnonzero(possible & (machines["state"] == MachineState.READY) & (machines["vms"] > 0))
    share = (missing[rows] / np.maximum(1, machines["capacity"][rows])).max(axis=1)
    nearest = rows[np.argsort(share, kind="stable")][:MACHINES_TRIED]
    running = allocator.running_on(int(m) for m in nearest)
    for count in range(1, MOST_FREED + 1):
        options = []
        for machine, vms in running.items():
            held = [v.shape.row["demand"][0][generation[machine]].astype(np.int64) for v in vms]
            for group in combinations(range(len(vms)), count):
                gained = sum(held[i] for i in group)
                if (gained >= missing[machine]).all():
                    options.append((int(gained[0]), machine, group))
        for _, machine, group in sorted(options)[:GROUPS_TRIED]:
            yield machine, tuple(running[machine][i] for i in group)
