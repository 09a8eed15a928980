"""An agent that is alone and knows all proposes nothing that the store refuses: who gives way is chosen by one opinion.

Else it would try the same again and again, and something of high priority would wait although there is room for it.
"""

from __future__ import annotations

from random import Random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.agent.agent import Agent
from roost.agent.operation import Answer, Operation
from roost.agent.settings import AgentSettings
from roost.agent.verbs.entry import SetEntry
from roost.agent.verbs.move import MoveVM
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.model.registry import THRESHOLD
from roost.model.request import HOLD, VM, Constraints, Request, hold_of
from roost.model.thresholds import Thresholds
from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.store.audit import check_invariants
from roost.wiring import open_store
from tests.property.cramped import BANDS, NAMES, SIZES, ZONE
from tests.property.effort import examples
from tests.property.interleaved import HeldCourier

POLICY = Policy.parse(
    """
name: keeping
clusters: {validators: [keeps_empty_machines]}
machines: {validators: [is_ready, has_room, respects_isolation], preferences: [best_fit]}
tenants: [max_per_machine, min_fault_domains]
"""
)
WISHES = (None, None, Constraints(evict_together=True), Constraints(evict_together=True, max_per_machine=1))
TURNS = 10_000  # far more than any search takes


class Alone:
    """One agent on one store; whatever it does is done before it does the next."""

    def __init__(self) -> None:
        self.store = open_store("memory:", create=ZONE)
        self.courier = HeldCourier(self.store)
        settings_ = AgentSettings(pipeline=1, top=1, retries=0)
        self.agent = Agent(self.store, self.courier, POLICY, "alone", settings=settings_, now=lambda: 1.0)

    def do(self, operation: Operation) -> Answer:
        """Do something to the end; a search that takes long on a busy machine takes more turns."""
        ticket = self.agent.submit(operation)
        for _ in range(TURNS):
            self.agent.step()
            if ticket.answer is not None and self.agent.idle:
                return ticket.answer
            self.courier.commit()
            self.courier.look()
        raise AssertionError(f"no answer after {TURNS} turns")


def wanted(alone: Alone, draw: Random) -> Operation:
    """Something that makes sense."""
    allocator = alone.agent.allocator
    kind, tenants = draw.random(), sorted(allocator.tenants)
    if draw.random() < 0.1:
        return keep(draw, allocator.zone)
    movable = sorted(name for name in allocator.vms if not name.endswith(HOLD) and hold_of(name) not in allocator.vms)
    if kind < 0.1 and tenants:
        return ReleaseVMs(draw.choice(tenants))
    if kind < 0.3 and movable:
        vm = allocator.vms[draw.choice(movable)]
        return MoveVM(vm.tenant, vm.name, draw.choice([name for name in NAMES if name != NAMES[vm.machine]]), "hold")
    tenant, same = f"tenant {draw.randrange(7)}", draw.random() < 0.5
    gang = (any_vm(draw),) * draw.randint(1, 3) if same else tuple(any_vm(draw) for _ in range(draw.randint(1, 4)))
    return PlaceVMs(Request(tenant, gang, None if tenant in tenants else draw.choice(WISHES)))


def keep(draw: Random, zone: Zone) -> Operation:
    """A cluster keeps other numbers of empty machines."""
    cluster = draw.choice(zone.cluster_names)
    most = int(zone.clusters[zone.cluster(cluster)]["machines"])
    new, scale_out, healing = sorted((draw.randint(0, most) for _ in range(3)), reverse=True)
    kept = Thresholds(new=new, scale_out=scale_out, healing=healing)
    return SetEntry(THRESHOLD, cluster, msgspec.json.encode(kept).decode())


def any_vm(draw: Random) -> VM:
    """A VM of any size and band."""
    return VM(draw.choice(tuple(SIZES)), priority=draw.choice(BANDS), isolated=draw.random() < 0.03)


@given(seed=st.integers(0, 2**32), steps=st.integers(10, 40))
@settings(max_examples=examples(60))
def test_a_lone_agent_is_never_refused(seed: int, steps: int) -> None:
    alone, draw = Alone(), Random(seed)
    for _ in range(steps):
        answer = alone.do(wanted(alone, draw))
        assert answer.status in ("done", "declined"), answer
        alone.agent.check_invariants()
    check_invariants(alone.store)
