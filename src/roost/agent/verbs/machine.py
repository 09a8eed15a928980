"""Say how a machine is."""

from __future__ import annotations

from typing import Literal

from roost.agent.context import Context
from roost.agent.operation import Operation
from roost.agent.ticket import Ticket
from roost.agent.verbs.verb import Verb, check_generation
from roost.model.errors import InvalidInput
from roost.model.rows import MachineState
from roost.store import contract as store
from roost.store.contract import Committed, Proposal


class SetMachine(Operation, frozen=True, tag="machine"):
    """Say how a machine is."""

    machine: str
    state: Literal["ready", "draining", "down", "quarantined", ""] = ""
    health: int | None = None
    failures: int | None = None
    versions_behind: int | None = None
    generation: int | None = None  # the machine must have this one


def _decide(context: Context, operation: SetMachine, ticket: Ticket) -> Proposal:
    if operation.generation is not None:
        machine = context.allocator.zone.machine(operation.machine)
        _check_generation(operation, context.replica.seen(machine))
    return store.SetCondition(
        machine=operation.machine,
        condition=_condition(operation),
        version=operation.generation,
        **context.common(ticket),
    )


def _check_generation(operation: SetMachine, now: int) -> None:
    check_generation(f"machine {operation.machine}", operation.generation, now)


def _generation(operation: SetMachine, outcome: Committed) -> int:
    """The machine's."""
    return outcome.versions.get(operation.machine, 0)


def _condition(operation: SetMachine) -> dict[str, int]:
    condition = {"state": int(MachineState[operation.state.upper()])} if operation.state else {}
    for name in ("health", "failures", "versions_behind"):
        if (value := getattr(operation, name)) is not None:
            condition[name] = value
    if not condition:
        raise InvalidInput("machine", "nothing is said of it", "give state, health, failures or versions_behind")
    return condition


MACHINE = Verb(_decide, SetMachine("c000-r00-m00", "down"), check_generation=_check_generation, generation=_generation)
