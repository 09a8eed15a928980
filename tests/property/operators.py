"""What operators change on a copy of a zone that no store stands behind."""

from __future__ import annotations

from roost.model.rows import MachineState
from roost.model.thresholds import Thresholds
from roost.placing.allocator import Allocator


def set_machine_state(allocator: Allocator, machine: str, state: str) -> None:
    """Make a machine ready, draining, down or quarantined. What runs on it stays."""
    allocator.view.set_state(allocator.zone.machine(machine), MachineState[state.upper()])


def set_machine_health(allocator: Allocator, machine: str, health: int) -> None:
    """Say how healthy a machine is: 100 is perfect, 0 is broken."""
    allocator.view.set_field(allocator.zone.machine(machine), "health", health)


def quarantine_cluster(allocator: Allocator, cluster: str, quarantined: bool = True) -> None:
    """Take a cluster out of use for new VMs, or back."""
    allocator.view.set_quarantine(allocator.zone.cluster(cluster), quarantined)


def set_thresholds(allocator: Allocator, cluster: str, thresholds: Thresholds) -> None:
    """Keep other numbers of empty machines in a cluster."""
    c = allocator.zone.cluster(cluster)
    thresholds.check_size(cluster, int(allocator.zone.clusters[c]["machines"]))
    allocator.view.set_thresholds(c, thresholds)
