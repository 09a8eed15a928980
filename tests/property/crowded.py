"""A zone where tenants of every kind run, and not every machine and cluster is well."""

from __future__ import annotations

import random

from roost.model.request import VM, Constraints, Request
from roost.model.thresholds import Thresholds
from roost.model.zone import Zone
from roost.placing.allocator import Allocator
from roost.rules.policy import Policy
from tests.property.operators import quarantine_cluster, set_machine_health, set_machine_state, set_thresholds

ZONE = Zone.synthetic(100, seed=1)
TYPES = ("D1", "D4", "D14", "A4", "G3")
LIMITS = (
    Constraints(),
    Constraints(max_per_machine=1, min_fault_domains=2),
    Constraints(max_per_rack=2, fault_domain_skew=1),
    Constraints(colocate="cluster", update_domain_skew=1),
    Constraints(colocate="datacenter", max_fault_domains=2),
    Constraints(colocate="rack", min_update_domains=2),
)


def crowded(draw: random.Random) -> Allocator:
    """A zone where tenants of every kind run, and not every machine and cluster is well."""
    allocator = Allocator(ZONE, Policy.default(), draw.randrange(100))
    for i in range(30):
        vm = VM(draw.choice(TYPES), priority=draw.choice(["", "spot"]), isolated=draw.random() < 0.2)
        allocator.allocate(Request(f"tenant {i}", (vm,) * draw.randint(1, 4), LIMITS[i % len(LIMITS)]))
    for name in draw.sample(ZONE.machine_names, 10):
        set_machine_state(allocator, name, draw.choice(["down", "draining", "quarantined"]))
        set_machine_health(allocator, draw.choice(ZONE.machine_names), draw.randrange(100))
    quarantine_cluster(allocator, draw.choice(ZONE.cluster_names))
    set_thresholds(allocator, draw.choice(ZONE.cluster_names), Thresholds(new=9, scale_out=5))
    return allocator
