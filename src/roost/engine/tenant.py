"""Where one tenant's VMs are, in the form tenant rules read it."""

from collections.abc import Sequence

import numpy as np

from roost.engine.view import View
from roost.model.request import UNCONSTRAINED, Constraints

COLOCATE = {"": 0, "rack": 1, "cluster": 2, "datacenter": 3}

TENANT_TYPE = np.dtype(
    [
        ("here", np.int32),  # the tenant's VMs in this machine's unit of the rule's domain
        ("placed", np.int32),  # its VMs so far, anywhere
        ("remaining", np.int32),  # VMs of the request still to place, this one included
        ("racks", np.int32),  # distinct racks it is in
        ("least_in_rack", np.int32),  # fewest and most of its VMs in any rack it is in
        ("most_in_rack", np.int32),
        ("update_domains", np.int32),
        ("least_in_update_domain", np.int32),
        ("most_in_update_domain", np.int32),
        ("min_fault_domains", np.int32),  # its constraints, 0 for none
        ("max_fault_domains", np.int32),
        ("fault_domain_skew", np.int32),
        ("min_update_domains", np.int32),
        ("update_domain_skew", np.int32),
        ("max_per_machine", np.int32),
        ("max_per_rack", np.int32),
        ("colocate", np.int32),  # see COLOCATE
    ],
    align=True,
)


class TenantDesk:
    """Where the VMs of the tenant being served are. One desk serves one tenant at a time; opening it clears it."""

    def __init__(self, view: View) -> None:
        self.view = view
        domains = int(view.machines["update_domain"].max()) + 1
        self.row = np.zeros(1, TENANT_TYPE)
        self.counts = np.zeros(len(view.machines) + len(view.racks) + 2 * len(view.clusters) + domains, np.int32)
        self.homes = np.zeros(64, np.int32)
        self.constrained = False
        self._refused: list[int] = []

    def open(self, constraints: Constraints, homes: Sequence[int], wanted: int) -> None:
        """Serve a tenant with VMs on `homes` that wants `wanted` more."""
        self.close()
        self.constrained = constraints != UNCONSTRAINED
        if not self.constrained:
            return
        if len(homes) + wanted > len(self.homes):
            self.homes = np.zeros(2 * (len(homes) + wanted), np.int32)
        for field, value in constraints.named.items():
            self.row[field] = COLOCATE[str(value)] if field == "colocate" else value
        self.row["remaining"] = wanted
        for machine in homes:
            self.seat(machine)

    def seat(self, machine: int) -> None:
        """Count one more of its VMs, on this machine."""
        view = self.view
        view.kernel.seat(view.machines, view.racks, view.clusters, self.row, self.counts, self.homes, machine)

    def refuse_unit(self, machine: int) -> None:
        """Never again, while the desk is open, start in the unit of the colocation domain that holds this machine."""
        view, level = self.view, int(self.row["colocate"][0])
        row, racks_at = view.machines[machine], len(view.machines)
        clusters_at = racks_at + len(view.racks)
        unit = {
            COLOCATE["rack"]: racks_at + int(row["rack"]),
            COLOCATE["cluster"]: clusters_at + int(row["cluster"]),
            COLOCATE["datacenter"]: clusters_at + len(view.clusters) + int(row["datacenter"]),
        }[level]
        self._refused.append(unit)

    def restart(self, homes: Sequence[int], wanted: int) -> None:
        """Begin the same request again, without the units that were refused."""
        self._leave()
        self.row["remaining"] = wanted
        for machine in homes:
            self.seat(machine)
        self.counts[self._refused] = -1

    def close(self) -> None:
        """Forget the tenant."""
        if self.constrained:
            self._leave()
            self._refused.clear()
            self.row[:] = np.zeros(1, TENANT_TYPE)
            self.constrained = False

    def _leave(self) -> None:
        view = self.view
        self.counts[self._refused] = 0
        view.kernel.leave(view.machines, view.racks, view.clusters, self.row, self.counts, self.homes)
