"""What an agent decides with: its copy of the zone, its settings, its clocks, and how it avoids conflicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypedDict

from roost.agent.avoidance import Avoidance
from roost.agent.replica import Replica
from roost.agent.settings import AgentSettings
from roost.agent.ticket import Ticket
from roost.engine.explain import Explanation, WhyNot
from roost.engine.steps import Steps
from roost.model.request import Request
from roost.placing.allocator import Allocator
from roost.placing.decision import Decision
from roost.store.contract import Record


class Watcher(Protocol):
    """Looks at decisions."""

    def look(self, decision: Decision) -> None:
        """One was made just now. All must be left as it is."""


class Common(TypedDict):
    """What every proposal says."""

    key: str
    request: bytes
    record: Record


@dataclass(slots=True)
class Context:
    """All that a verb may look at to decide. `replica` is another one once the zone was loaded anew."""

    agent: str  # its name
    settings: AgentSettings
    avoidance: Avoidance
    clock: Callable[[], float]  # to measure how long something takes
    now: Callable[[], float]  # seconds since 1970
    replica: Replica
    shadow: Watcher | None = None  # looks at what is decided as the policy has it

    @property
    def allocator(self) -> Allocator:
        """What decides, on the agent's own copy."""
        return self.replica.allocator

    def explaining(self, request: Request, vm: int | None = None) -> Steps[Explanation]:
        """Why a request would be placed as it would be now, who would give way to it, or why it finds no room."""
        return self.allocator.explaining(request, vm, at=self.now(), fixed=self.replica.unclear)

    def telling_why_not(self, request: Request, machine: str, vm: int | None = None) -> Steps[WhyNot]:
        """Why a machine would not get a VM of a request now."""
        return self.allocator.telling_why_not(request, machine, vm, self.now(), self.replica.unclear)

    def common(self, ticket: Ticket) -> Common:
        """What a proposal for a ticket says besides what it is for."""
        record = Record(
            agent=self.agent,
            round=ticket.round,
            position=ticket.position,
            at=self.now(),
            by=ticket.by,
            retries=ticket.retries,
            waited_us=int((ticket.started - ticket.submitted) * 1e6),
        )
        return {"key": ticket.key, "request": ticket.request, "record": record}
