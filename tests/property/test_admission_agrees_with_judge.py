"""Asked about one machine, the hard rules say what they say of all machines at once, compiled."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from roost.agent.allocator import Allocator
from roost.engine.admission import refusal
from roost.model.request import VM, Constraints, Request
from roost.model.thresholds import Thresholds
from roost.model.zone import Zone
from roost.rules.policy import Policy
from tests.property.effort import examples

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
        allocator.set_machine_state(name, draw.choice(["down", "draining", "quarantined"]))
        allocator.set_machine_health(draw.choice(ZONE.machine_names), draw.randrange(100))
    allocator.quarantine_cluster(draw.choice(ZONE.cluster_names))
    allocator.set_thresholds(draw.choice(ZONE.cluster_names), Thresholds(new=9, scale_out=5))
    return allocator


@settings(max_examples=examples(10))
@given(seed=st.integers(0, 2**16))
def test_one_machine_is_judged_as_all_are(seed: int) -> None:
    draw = random.Random(seed)
    allocator = crowded(draw)
    engine, rules = allocator.engine, allocator.engine.rules
    everything = (*rules.cluster_validators, *rules.validators, *rules.tenant_rules)
    for name in draw.sample(sorted(allocator.tenants), 6):
        tenant = allocator.tenants[name]
        shape = allocator.shape(draw.choice(list(tenant.vms.values())).vm, name)
        engine.desk.open(tenant.constraints, [vm.machine for vm in tenant.vms.values()], 1)
        judged = engine.judge(engine.view, shape, engine.desk)
        for machine, (verdict, detail) in enumerate(zip(judged.verdicts, judged.details, strict=True)):
            bound = everything[verdict] if verdict >= 0 else None
            said = f"{bound.reason(ZONE, int(detail))} ({bound.rule.name})" if bound else None
            assert refusal(engine, shape, machine) == said
        engine.desk.close()
