"""Asked about one machine, the hard rules say what they say of all machines at once, compiled."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from roost.engine.refusal import refusal
from tests.property.crowded import ZONE, crowded
from tests.property.effort import examples


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
