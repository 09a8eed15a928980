"""What came of a request."""

from __future__ import annotations

import msgspec

from roost.engine.explain import Explanation, WhyNot, explaining, why_not
from roost.engine.selection import Engine
from roost.engine.steps import Steps, finish
from roost.engine.view import View
from roost.model.availability import Short, Spread
from roost.model.errors import InvalidInput
from roost.model.request import Constraints, Placement, Request
from roost.model.thresholds import Purpose
from roost.placing.arms import Arm, Arms
from roost.placing.books import RunningVM
from roost.placing.explaining import giving_way, number_of, subject_of
from roost.placing.gang import Trial
from roost.placing.rehearsal import Rehearsal
from roost.placing.remedy import seeking_remedies


class Decision(msgspec.Struct, frozen=True, eq=False, gc=False):
    """All VMs of a request placed, or none and why. Explained on demand, as of the revision it was made at."""

    request: Request
    constraints: Constraints  # those in force: the request's, or the tenant's
    placements: tuple[Placement, ...]
    trial: Trial
    before: int  # the view's revision when the decision began and when it was done
    after: int
    arm: Arm  # what decided: its rules are the ones to explain by
    allocator: Arms  # on which it was decided
    running: tuple[RunningVM, ...] = ()  # the VMs of the request as they are in the books
    victims: tuple[RunningVM, ...] = ()  # what gives way
    short: tuple[Short, ...] = ()  # what best effort could not reach
    spread: tuple[Spread, ...] = ()  # how the tenant's VMs lie now, of those that are held to any terms

    @property
    def ok(self) -> bool:
        """Whether the request was placed."""
        return bool(self.placements)

    @property
    def engine(self) -> Engine:
        """What chose the machines."""
        return self.arm.engine

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
        allocator, request, trial = self.allocator, self.request, self.trial
        subject, arm, past = subject_of(request, trial, vm), allocator.arm_of(request.tenant), self._past()
        found = giving_way((yield from explaining(self.engine, past, subject)), subject, self.victims)
        if self.ok or not remedied or self.engine is not arm.engine:
            return found
        rehearsal = Rehearsal(arm.engine, arm.shapes, past, self.after)  # nothing was placed, so all is the same
        number = number_of(allocator, request)
        sought = seeking_remedies(allocator, rehearsal, request, self.constraints, number, trial)
        return found.with_remedies((yield from sought))

    def why_not(self, machine: str, vm: int | None = None) -> WhyNot:
        """Why a machine did not get a VM of the request (the first, or the one that failed, unless `vm` says which)."""
        subject = subject_of(self.request, self.trial, vm)
        return why_not(self.engine, self._past(), subject, self.allocator.zone.machine(machine))

    def _past(self) -> View:
        """The zone as it was when the decision began."""
        view = self.allocator.view
        if not view.reaches(self.before):
            problem = f"revision {self.before} is too long ago to rebuild"
            raise InvalidInput("decision", problem, "explain decisions sooner")
        return view.at(self.before)
