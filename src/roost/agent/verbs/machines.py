"""Add machines to the zone, and remove them."""

from __future__ import annotations

from collections.abc import Mapping

from roost.agent.context import Context
from roost.agent.operation import Operation
from roost.agent.ticket import Ticket
from roost.agent.verbs.verb import Verb
from roost.model.errors import InvalidInput
from roost.model.inventory import MachineSpec
from roost.model.names import check_new_name
from roost.model.zone import MOST_FEATURES, Zone
from roost.store import contract as store
from roost.store.contract import Proposal


class AddMachines(Operation, frozen=True, tag="add_machines"):
    """Add machines, and with them racks and clusters."""

    machines: tuple[MachineSpec, ...]
    conditions: Mapping[str, Mapping[str, int]] = {}


class RemoveMachines(Operation, frozen=True, tag="remove_machines"):
    """Remove machines that run nothing, or a whole cluster of them."""

    machines: tuple[str, ...] = ()
    cluster: str = ""


def _decide_adding(context: Context, operation: AddMachines, ticket: Ticket) -> Proposal:
    known = set(context.allocator.zone.features)
    known.update(feature for machine in operation.machines for feature in machine.features)
    if len(known) > MOST_FEATURES:
        raise InvalidInput("add_machines", f"brings the zone to {len(known)} features", f"at most {MOST_FEATURES}")
    return store.Commission(machines=operation.machines, conditions=operation.conditions, **context.common(ticket))


def _check_added(operation: AddMachines) -> None:
    """What comes into the zone can be asked for by its name."""
    for i, machine in enumerate(operation.machines):
        for field in ("name", "datacenter", "cluster", "rack"):
            check_new_name(f"machines[{i}].{field}", getattr(machine, field))
        for feature in machine.features:
            check_new_name(f"machines[{i}].features", feature)


def _decide_removing(context: Context, operation: RemoveMachines, ticket: Ticket) -> Proposal:
    return store.Decommission(machines=_removed(context.allocator.zone, operation), **context.common(ticket))


def _removed(zone: Zone, operation: RemoveMachines) -> tuple[str, ...]:
    if not operation.cluster:
        return operation.machines
    if operation.machines:
        raise InvalidInput("remove_machines", "names machines and a cluster", "name one or the other")
    row = zone.clusters[zone.cluster(operation.cluster)]
    return zone.machine_names[int(row["first"]) : int(row["first"] + row["machines"])]


_MACHINE = MachineSpec("c000-r00-m90", "dc1", "c000", "c000-r00", "gen3", 3, (), (10_000, 98_304, 4_000, 0, 10_000))
ADD_MACHINES = Verb(_decide_adding, AddMachines((_MACHINE,)), check=_check_added)
REMOVE_MACHINES = Verb(_decide_removing, RemoveMachines(("c000-r00-m00",)))
