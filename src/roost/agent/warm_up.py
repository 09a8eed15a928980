"""Compiling a policy before it is needed, so that nobody waits for it later."""

from __future__ import annotations

import numpy as np

from roost.agent.replica import holdings_of
from roost.engine.choice import BEST, AmongBest
from roost.engine.recheck import CompiledRecheck
from roost.engine.ruleset import RulePolicy
from roost.engine.shape import vm_row_type
from roost.engine.view import View
from roost.model.inventory import zone_of
from roost.model.request import VM, Request
from roost.model.rows import MachineState
from roost.model.zone import Zone
from roost.placing.allocator import Allocator
from roost.store.columns import ZoneColumns

WHO = "warm-up"


def sample_of(loaded: ZoneColumns) -> Zone:
    """A machine of each cluster: what is compiled for this is what the whole zone needs."""
    one_each = {spec.cluster: spec for spec in loaded.machines.spec}
    return zone_of(loaded.catalogue, one_each.values())


def warm_up(zone: Zone, policy: RulePolicy, *, looking: bool = False) -> None:
    """Compile all that deciding and re-checking by a policy needs; one that does not work raises.

    `looking`: and all that comparing it with another one needs.

    Works on a copy, so it may run in another thread than an agent that decides on the same zone.
    """
    allocator = Allocator(zone, policy)
    smallest = min((t for t in zone.vm_types if t.demand), key=lambda t: min(t.demand.values()))
    wish = VM(smallest.name)
    for choice in (BEST, AmongBest(2)):
        for placement in allocator.allocate(Request(WHO, (wish,)), choice).placements:
            allocator.release(placement.vm)
    _change_everything(allocator.view)
    if looking:
        allocator.engine.look(allocator.shape(wish, WHO))
    tested = CompiledRecheck(zone, policy.rules).on(holdings_of(allocator, [0], [0]))
    if tested.place(zone.machine_names[0], wish, WHO) is None:
        tested.remove(zone.machine_names[0], wish, WHO)


def _change_everything(view: View) -> None:
    """All kinds of changes that a copy may hear of, to what is so already."""
    machine = view.machines[0]
    view.set_state(0, MachineState(machine["state"]))
    view.set_field(0, "health", int(machine["health"]))
    view.set_quarantine(0, bool(view.clusters[0]["quarantined"]))
    nobody = np.zeros(0, np.int64)
    view.place_many(nobody, nobody, nobody, np.zeros(1, vm_row_type(view.zone)))
    view.adopt(0, view.machines[:1].copy())
