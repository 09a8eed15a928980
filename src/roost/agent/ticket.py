"""An operation on its way through an agent: who asks, how far it has come, and its answer."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import msgspec

from roost.agent.operation import Answer, Operation
from roost.model.errors import InvalidInput
from roost.placing.decision import Decision
from roost.placing.search import Search
from roost.store.contract import Premise

LONGEST_WHOLE_KEY = 250  # a key that somebody chose, and before it the namespace that it is in

_encode = msgspec.json.Encoder().encode


class Ticket(msgspec.Struct, eq=False):
    """An operation on its way."""

    key: str
    operation: Operation
    request: bytes
    submitted: float
    tenant: str  # whose turn it takes; empty: nobody's
    vms: int  # that it is about, as far as the copy knew when it came
    premise: Premise  # what whoever asks was told
    done: Callable[[Answer], None] | None = None
    by: str = ""  # who asks
    duty: bool = False  # the agent asks for it itself
    dry: bool = False  # nothing of it is to be done
    answer: Answer | None = None
    retries: int = 0
    started: float = 0.0  # the last try
    decided: float = 0.0
    decision: Decision | None = None
    round: int = 0  # that it was last decided in
    position: int = 0  # in that round
    refusal: str = ""  # why a move is declined
    # The store has not done it before, the copy has all that was committed until it said so, and nothing that was done
    # under the same key since then.
    asked: bool = False
    asking: bool = False  # it is being asked just now
    generation: int = 0  # of what it changed, once it is committed
    search: Search | None = None  # for a way to place several VMs, if it takes several turns

    @property
    def unfinished(self) -> bool:
        """Whether the search has more to try, and may."""
        return self.search is not None and self.search.goes_on


class Unfinished(Exception):
    """A request has used up its turn: others come first, then it goes on."""


def new_ticket(
    operation: Operation,
    key: str,
    done: Callable[[Answer], None] | None,
    by: str,
    submitted: float,
    tenant: str,
    vms: int,
) -> Ticket:
    """A ticket for an operation; a key is made up when it is empty."""
    if not isinstance(key, str) or len(key) > LONGEST_WHOLE_KEY:
        raise InvalidInput("key", f"is {key!r}", f"use a text of up to {LONGEST_WHOLE_KEY} characters")
    key, request = key or uuid.uuid4().hex, _encode(operation)
    if "\0" in key or b"\\u0000" in request:
        raise InvalidInput("operation", "has a NUL character in a text", "leave it out")
    return Ticket(key, operation, request, submitted, tenant, vms, operation.premise, done, by)
