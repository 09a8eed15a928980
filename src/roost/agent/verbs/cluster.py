"""Take a cluster out of use for new VMs, or back."""

from __future__ import annotations

from roost.agent.context import Context
from roost.agent.operation import Operation
from roost.agent.ticket import Ticket
from roost.agent.verbs.verb import Verb
from roost.store import contract as store
from roost.store.contract import Proposal


class SetCluster(Operation, frozen=True, tag="cluster"):
    """Take a cluster out of use for new VMs, or back."""

    cluster: str
    quarantined: bool


def _decide(context: Context, operation: SetCluster, ticket: Ticket) -> Proposal:
    return store.SetQuarantine(cluster=operation.cluster, quarantined=operation.quarantined, **context.common(ticket))


CLUSTER = Verb(_decide, SetCluster("c000", quarantined=True))
