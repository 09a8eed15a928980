"""A copy of a zone: its rows, the books of who runs what, and how its machines are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roost.engine.invariants import check_rows
from roost.engine.view import View
from roost.model.errors import UnknownName
from roost.model.rows import MachineState
from roost.placing.books import Books


@dataclass(frozen=True, slots=True)
class Usage:
    """How full a zone is, by its first resource (cores)."""

    machines: int
    empty_machines: int
    vms: int
    tenants: int
    utilisation: float  # of all cores
    packing_density: float  # of the cores of machines in use


class ZoneCopy(Books):
    """Rows and books of a zone, which change together."""

    def __init__(self, view: View) -> None:
        super().__init__()
        self.zone, self.view = view.zone, view

    def release(self, vm: str) -> None:
        """Take a VM off its machine. A tenant without VMs is forgotten."""
        running = self.vms.get(vm)
        if running is None:
            raise UnknownName("vm", "running VM", vm, self.vms)
        self.view.remove(running.machine, running.shape)
        self.strike(running)

    def usage(self) -> Usage:
        """How full the zone is."""
        machines, clusters = self.view.machines, self.view.clusters
        used = int(clusters["used"][:, -1, 0].sum())
        busy = machines["vms"] > 0
        return Usage(
            machines=len(machines),
            empty_machines=int((~busy).sum()),
            vms=len(self.vms),
            tenants=len(self.tenants),
            utilisation=used / int(clusters["capacity"][:, 0].sum()),
            packing_density=used / max(1, int(machines["capacity"][busy, 0].sum())),
        )

    def machine_states(self) -> dict[str, int]:
        """How many machines are in each state."""
        counts = np.bincount(self.view.machines["state"], minlength=len(MachineState)).tolist()
        return {state.name.lower(): counts[state] for state in MachineState}

    def check_invariants(self) -> None:
        """Raise unless the rows are exactly what the running VMs make of the zone."""
        staying = (vm for vm in self.vms.values() if self.leaving.get(vm.name) is not vm)
        check_rows(self.view, ((vm.machine, vm.shape) for vm in staying))
