"""What came of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from roost.engine.explain import Explanation, WhyNot
from roost.engine.selection import Engine
from roost.engine.steps import Steps, finish
from roost.model.availability import Short, Spread
from roost.model.request import Constraints, Placement, Request
from roost.model.thresholds import Purpose
from roost.placing.gang import Trial

if TYPE_CHECKING:
    from roost.placing.allocator import Allocator
    from roost.placing.books import RunningVM


class Decision(msgspec.Struct, frozen=True, eq=False, gc=False):
    """All VMs of a request placed, or none and why. Explained on demand, as of the revision it was made at."""

    request: Request
    constraints: Constraints  # those in force: the request's, or the tenant's
    placements: tuple[Placement, ...]
    trial: Trial
    before: int  # the view's revision when the decision began and when it was done
    after: int
    engine: Engine  # what decided: its rules are the ones to explain by
    allocator: Allocator
    victims: tuple[RunningVM, ...] = ()  # what gives way

    @property
    def ok(self) -> bool:
        """Whether the request was placed."""
        return bool(self.placements)

    @property
    def short(self) -> tuple[Short, ...]:
        """What best effort could not reach."""
        machines = self.allocator.zone.machines
        return self.trial.short(machines["rack"], machines["update_domain"]) if self.ok else ()

    @property
    def spread(self) -> tuple[Spread, ...]:
        """How the tenant's VMs lie now, of those that are held to any terms."""
        machines = self.allocator.zone.machines
        return self.trial.spread(machines["rack"], machines["update_domain"]) if self.ok else ()

    @property
    def purpose(self) -> Purpose:
        """What the request was for: it says which empty machines were kept from it."""
        return self.trial.purpose

    def __repr__(self) -> str:
        return f"Decision(request={self.request!r}, placements={self.placements!r})"

    @property
    def explanation(self) -> Explanation:
        """Why: the funnel of rules, the candidates and what decided, or why nothing fits. `str()` renders it."""
        return self.explain()

    def explain(self, vm: int | None = None) -> Explanation:
        """The same of a VM of the request by its index; of the one that failed, else of the first, if not said."""
        return finish(self.explaining(vm))

    def explaining(self, vm: int | None = None, *, remedied: bool = True) -> Steps[Explanation]:
        """The same a step at a time; not `remedied`: without what would make a refused request fit."""
        return self.allocator.explaining_past(self, vm, remedied=remedied)

    def why_not(self, machine: str, vm: int | None = None) -> WhyNot:
        """Why a machine did not get a VM of the request (the first, or the one that failed, unless `vm` says which)."""
        return self.allocator.why_not_past(self, machine, vm)
