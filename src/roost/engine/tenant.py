"""Where the VMs of the tenant being served are, for its rules."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from roost.engine.tenant_row import COLOCATE, TENANT_TYPE
from roost.engine.view import View
from roost.model.request import ON_PLACES, UNCONSTRAINED, Constraints

NOWHERE: NDArray[np.int64] = np.empty(0, np.int64)


class TenantDesk:
    """Where the VMs of the tenant being served are. One desk serves one tenant at a time; opening it clears it.

    Of a tenant with availability sets it serves one set at a time, and knows of no VMs but those of the set.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        domains = int(view.machines["update_domain"].max()) + 1
        self.row = np.zeros(1, TENANT_TYPE)
        self.counts = np.zeros(len(view.machines) + len(view.racks) + 2 * len(view.clusters) + domains, np.int32)
        self.homes = np.zeros(64, np.int32)
        self.constrained = False
        self._refused: list[int] = []
        self._aside = NOWHERE

    def open(self, constraints: Constraints, homes: Sequence[int], wanted: int) -> None:
        """Serve a tenant with VMs on `homes` that wants `wanted` more."""
        self.close()
        self.constrained = constraints != UNCONSTRAINED or len(self._aside) > 0
        if not self.constrained:
            return
        if len(homes) + wanted > len(self.homes):
            self.homes = np.zeros(2 * (len(homes) + wanted), np.int32)
        for field, value in constraints.named.items():
            self.row[field] = COLOCATE[str(value)] if field == "colocate" else value
        self.seat(homes, wanted)
        self.counts[self._aside] = -1

    def hold_to(self, constraints: Constraints) -> None:
        """Serve the same tenant, which has constraints, by others from now on."""
        for field in ON_PLACES:
            value = getattr(constraints, field)
            self.row[field] = COLOCATE[value] if field == "colocate" else value

    def seat(self, homes: Sequence[int], wanted: int) -> None:
        """The tenant has VMs on `homes`, besides those it had, and wants `wanted` more."""
        view, new = self.view, np.array(homes, np.int64)
        self.row["remaining"] = wanted
        if len(new):
            view.kernel.seat(view.machines, view.racks, view.clusters, self.row, self.counts, self.homes, new)

    def unit_of(self, machine: int, colocate: str) -> int:
        """The unit of a co-location that holds a machine, by its place among the counts."""
        return self.first_unit(colocate) + int(self.view.machines[machine][colocate])

    def first_unit(self, colocate: str) -> int:
        """Where the units of a co-location begin among the counts."""
        machines, racks, clusters = len(self.view.machines), len(self.view.racks), len(self.view.clusters)
        return {"rack": machines, "cluster": machines + racks, "datacenter": machines + racks + clusters}[colocate]

    def refuse(self, units: Sequence[int]) -> None:
        """Rule out units (see `unit_of`) for the tenant's first VM: a count below zero says "tried, too small"."""
        self._refused = list(units)
        self.counts[self._refused] = -1

    @property
    def aside(self) -> NDArray[np.int64]:
        """Machines that nobody gets."""
        return self._aside

    def set_aside(self, machines: NDArray[np.int64]) -> None:
        """Whoever comes to the desk from now on gets none of these machines, whatever its rules say."""
        self.close()
        self._aside = machines

    def close(self) -> None:
        """Forget the tenant."""
        if self.constrained:
            view = self.view
            self.counts[self._refused] = 0
            self.counts[self._aside] = 0
            view.kernel.leave(view.machines, view.racks, view.clusters, self.row, self.counts, self.homes)
            self._refused.clear()
            self.row[:] = np.zeros(1, TENANT_TYPE)
            self.constrained = False
