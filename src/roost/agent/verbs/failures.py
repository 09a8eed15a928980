"""Count the failures of a machine again."""

from __future__ import annotations

from roost.agent.context import Context
from roost.agent.operation import Operation
from roost.agent.ticket import Ticket
from roost.agent.verbs.verb import Verb
from roost.store import contract as store
from roost.store.contract import Proposal


class CountFailures(Operation, frozen=True, tag="count_failures"):
    """Count the failures of a machine again, as of now: they weigh less as time goes by."""

    machine: str


def _decide(context: Context, operation: CountFailures, ticket: Ticket) -> Proposal:
    return store.SetCondition(machine=operation.machine, condition={}, **context.common(ticket))


FAILURES = Verb(_decide, CountFailures("c000-r00-m00"))
