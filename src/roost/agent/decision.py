"""What came of a request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from roost.agent.gang import Trial
from roost.engine.explain import Explanation
from roost.engine.selection import Engine
from roost.model.request import Constraints, Placement, Request


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """All VMs of a request placed, or none and why. Explained on demand, as of the revision it was made at."""

    request: Request
    constraints: Constraints  # those in force: the request's, or the tenant's
    placements: tuple[Placement, ...]
    trial: Trial
    before: int  # the view's revision when the decision began and when it was done
    after: int
    engine: Engine = field(repr=False)  # what decided: its rules are the ones to explain by
    _explain: Callable[[Decision], Explanation] = field(repr=False)

    @property
    def ok(self) -> bool:
        """Whether the request was placed."""
        return self.trial.failed_vm is None

    @property
    def explanation(self) -> Explanation:
        """Why: the funnel of rules, the candidates and what decided, or why nothing fits. `str()` renders it."""
        return self._explain(self)
