"""What an agent has taken on and not answered yet.

queued in lines ──▶ in a round, under way ──▶ answered
     ▲    │                  │      └───────▶ committed, to be answered when the feed has brought it
     │    ▼                  │
     │  held: something of its tenant is under way, or what it needs is not clear yet
     └───────────────────────┘ lost a race
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from roost.agent.context import Context
from roost.agent.lines import Lines
from roost.agent.ticket import Ticket

LARGE = 32  # VMs of an operation, above which it takes turns with smaller ones


class UnderWay:
    """The tickets of an agent, by how far they have come."""

    def __init__(self, context: Context) -> None:
        self.lines = Lines(context.clock, context.settings.group)
        self.held: deque[Ticket] = deque()  # wait for their tenant, or for the feed
        self.rounds: dict[int, list[Ticket]] = {}  # sent to the store
        self.unfed: dict[int, list[Ticket]] = {}  # by round: committed, to be answered when the copy has it
        self._busy: set[str] = set()  # tenants with something in a round
        self.asked: dict[str, list[Ticket]] = {}  # by key: those that the store has said it has not done

    def __iter__(self) -> Iterator[Ticket]:
        """Those that wait to be decided."""
        yield from self.lines
        yield from self.held

    def __len__(self) -> int:
        """How many wait to be decided."""
        return len(self.lines) + len(self.held)

    @property
    def idle(self) -> bool:
        """Nothing waits or is under way."""
        return not (self.lines or self.held or self.rounds or self.unfed)

    def queue(self, ticket: Ticket, *, first: bool = False) -> None:
        """Let an operation wait for its turn; `first`: it has waited before."""
        self.lines.join(ticket, large=ticket.vms > LARGE or ticket.unfinished, first=first)

    def must_wait(self, ticket: Ticket) -> bool:
        """Whether something of the same tenant is under way."""
        return ticket.tenant in self._busy

    def release_held(self) -> None:
        """Look at what waited again, before what came later."""
        for ticket in reversed(self.held):
            self.queue(ticket, first=True)
        self.held.clear()

    def decided(self, ticket: Ticket) -> None:
        """It is part of a round: what else is asked for its tenant waits."""
        if ticket.tenant:
            self._busy.add(ticket.tenant)

    def returned(self, round_: int) -> Sequence[Ticket]:
        """The tickets of a round that the store has answered: their tenants are free again."""
        tickets = self.rounds.pop(round_)
        self.lines.answered(round_)
        for ticket in tickets:
            self._busy.discard(ticket.tenant)
        return tickets

    # The store is asked before it is said that something makes no sense: it may have been done before.

    def note_asked(self, ticket: Ticket) -> None:
        """The store has not done it before, or is about to say so; from now on the feed is watched for its key."""
        ticket.asked = True
        self.asked.setdefault(ticket.key, []).append(ticket)

    def forget_asked(self, key: str) -> None:
        """Something was done under a key: whoever waits here with the same one has to ask the store again."""
        for ticket in self.asked.pop(key, ()):
            ticket.asked = False
