"""Set an entry of the zone's registry."""

from __future__ import annotations

from roost.agent.context import Context
from roost.agent.operation import Operation
from roost.agent.ticket import Ticket
from roost.agent.verbs.verb import Verb
from roost.model.errors import InvalidInput, Taken
from roost.model.names import check_new_name
from roost.model.registry import THRESHOLD, check_entry
from roost.store import contract as store
from roost.store.contract import Conflict, Proposal


class SetEntry(Operation, frozen=True, tag="entry"):
    """Set an entry of the zone's registry: a policy, which of them is in force, a token. No value: remove it."""

    kind: str
    name: str
    value: str | None = None
    new: bool = False  # there must be none of this name yet
    instead_of: str | None = None  # if given, it must be the present value


def _decide(context: Context, operation: SetEntry, ticket: Ticket) -> Proposal:
    if operation.value is not None:
        check_entry(context.allocator.zone, operation.kind, operation.name, operation.value)
    return store.Register(
        kind=operation.kind,
        name=operation.name,
        value=operation.value,
        expected=operation.instead_of,
        guarded=operation.new or operation.instead_of is not None,
        **context.common(ticket),
    )


def _check(operation: SetEntry) -> None:
    """What is there already can go, whatever it is called."""
    if operation.value is not None:
        check_new_name("name", operation.name)


def _hopeless(conflict: Conflict) -> InvalidInput | None:
    """Somebody was faster: it has another value by now, and who asks is to know it first."""
    return Taken("name", conflict.detail, "choose another") if conflict.reason == "registry" else None


ENTRY = Verb(_decide, SetEntry(THRESHOLD, "c000", '{"new":2}'), check=_check, hopeless=_hopeless)
