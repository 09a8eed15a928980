"""The verbs: all that can be asked of an agent. A new one is a module beside this one, and a line here."""

from __future__ import annotations

from typing import Any, Union

import msgspec

from roost.agent.operation import Operation
from roost.agent.verbs.cluster import CLUSTER, SetCluster
from roost.agent.verbs.entry import ENTRY, SetEntry
from roost.agent.verbs.evict import EVICT, EvictVMs
from roost.agent.verbs.failures import FAILURES, CountFailures
from roost.agent.verbs.heal import HEAL, HealVMs
from roost.agent.verbs.machine import MACHINE, SetMachine
from roost.agent.verbs.machines import ADD_MACHINES, REMOVE_MACHINES, AddMachines, RemoveMachines
from roost.agent.verbs.move import MOVE, MoveVM
from roost.agent.verbs.place import PLACE, PlaceVMs
from roost.agent.verbs.release import RELEASE, ReleaseVMs
from roost.agent.verbs.verb import AnyVerb

VERBS: dict[type[Operation], AnyVerb] = {
    PlaceVMs: PLACE,  # VMs of a tenant get machines: it is created, or scaled out
    HealVMs: HEAL,  # VMs whose machines are not ready get others, all of them or none
    ReleaseVMs: RELEASE,  # VMs of a tenant are taken away: it is scaled in, or deleted
    EvictVMs: EVICT,  # VMs have to go though nobody needs their room; those that want to be placed again wait
    MoveVM: MOVE,  # a VM goes to another machine, at once or in steps
    SetMachine: MACHINE,  # a machine is in another state, or healthier, or less so
    CountFailures: FAILURES,  # a machine's failures weigh less by now
    SetCluster: CLUSTER,  # a cluster is quarantined, or no longer
    AddMachines: ADD_MACHINES,  # the zone has more machines
    RemoveMachines: REMOVE_MACHINES,  # the zone has fewer
    SetEntry: ENTRY,  # what all around the store agree on is something else: a policy, a token, a threshold
}


def verb_of(operation: Operation) -> AnyVerb:
    """The verb of an operation."""
    return VERBS[type(operation)]


def read_operation(given: bytes) -> Operation:
    """An operation from its JSON form."""
    operation: Operation = msgspec.json.decode(given, type=_any())
    return operation


def convert_operation(given: dict[str, Any]) -> Operation:
    """An operation from the values of its JSON form; raises msgspec's ValidationError."""
    operation: Operation = msgspec.convert(given, _any())
    return operation


def _any() -> Any:
    """All operations of the table as one type, told apart by `do`."""
    return Union[tuple(VERBS)]  # noqa: UP007 - of what is in the table when it is asked
