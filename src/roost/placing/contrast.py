"""Two policies on one decision: would another one have decided otherwise, and which rule makes the difference?

Ties are drawn by lot, so another machine alone is no difference. A decision is changed if the machine that was chosen
is not among those that the other policy finds best for the VM on the very same state: it refuses the machine, looks at
other clusters first, or prefers another machine; or if one of the two places the VM and the other does not.

The other policy only looks (`Engine.look`): it places nothing and draws nothing, so whoever decides never notices.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple

import msgspec

from roost.engine.funnel import deciding, scores
from roost.engine.ruleset import BoundRule, PolicySplit, RulePolicy, RuleSet
from roost.engine.selection import Engine, Look
from roost.engine.shape import MOST_KNOWN, Shape
from roost.model.errors import InvalidInput
from roost.model.request import UNCONSTRAINED
from roost.placing.arms import Arm, Arms
from roost.placing.decision import Decision

MachineVerdict = Literal["refused", "cluster", "preferred", "tied"]
DifferenceKind = Literal["preferred", "cluster", "refused", "declined", "placed", "invalid"]
KINDS: dict[DifferenceKind, str] = {
    "preferred": "the other policy prefers another machine",
    "cluster": "the other policy looks at other clusters first",
    "refused": "the other policy refuses the machine",
    "declined": "the other policy finds no machine",
    "placed": "only the other policy finds a machine",
    "invalid": "the other policy has no rule for what is asked",
}
LATEST = 20  # differences that are kept with an explanation
EXPLAINED_A_SECOND = 5  # at most: an explanation takes as long as some ten decisions
MOST_TIME = 0.07  # of the time, that a shadow may take: under load it looks at fewer decisions


class Difference(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A VM for which the other policy would have decided otherwise: the first of its request, in the order of placing.

    The VMs before it are where they were placed.
    """

    at: float  # when it was decided, in seconds of whoever watches
    tenant: str
    vm: int  # its index in the request
    vm_type: str
    kind: DifferenceKind
    rule: str  # what makes the difference: of the other policy; of the one that decided, if that found no machine
    machine: str  # that it got; empty: none
    other_machine: str  # one of those that the other policy finds best; empty: none
    kept_by: str = ""  # the rule of the policy that decided which speaks against that; empty: it would do as well
    text: str = ""  # the same in a sentence, if it was to be explained


class Opinion(NamedTuple):
    """What a policy says of a machine that it would not choose."""

    verdict: MachineVerdict
    rule: BoundRule | None = None
    number: int = -1  # of the rule among its kind

    @property
    def name(self) -> str:
        """Of the rule."""
        return self.rule.rule.name if self.rule else ""


TIED = Opinion("tied")


def opinion(rules: RuleSet, found: Look) -> Opinion:
    """Why the machine that was compared is not among the best; `TIED` if it is."""
    if found.verdict >= 0:
        return Opinion("refused", (*rules.cluster_validators, *rules.validators, *rules.tenant_rules)[found.verdict])
    if not found.selected and found.cluster_key > found.last_cluster_key:
        by = deciding(rules.cluster_shifts, found.last_cluster_key, found.cluster_key)
        assert by is not None
        return Opinion("cluster", rules.cluster_preferences[by], by)
    if found.other_key <= found.key:  # below: in a cluster that only a lot kept out
        return TIED
    by = deciding(rules.shifts, found.key, found.other_key)
    assert by is not None
    return Opinion("preferred", rules.preferences[by], by)


class Contrast:
    """Another policy beside those that decide, on the same copy of the zone."""

    def __init__(
        self, allocator: Arms, policy: RulePolicy, seed: int | None = None, *, both_sides: bool = True
    ) -> None:
        """`seed`: of whoever decides, if not the allocator's: ties between clusters must fall alike.

        Not `both_sides`: what speaks against the other policy's machine is only looked for if it is to be explained.
        """
        self.both_sides = both_sides
        self.allocator, self.arm = allocator, allocator.arm_for(policy, seed)
        self.decided_by: Arm | None = None  # if by none of the allocator's own
        self._twins: dict[tuple[Shape, Shape], Shape] = {}

    def compare(self, decision: Decision, explain: Callable[[Difference], bool], at: float = 0.0) -> Difference | None:
        """What the other policy would have decided otherwise. Only just after the decision, before anything else.

        `explain`: whether a difference is worth a sentence, which takes longer.
        """
        try:
            self.arm.check_enforced(decision.constraints)
            shapes = self._shapes(decision)
        except InvalidInput as error:
            return self._invalid(decision, error, at)
        comparison = _Comparison(self, decision, shapes, explain, at)
        return comparison.of_vm(0) if _is_simple(decision) else comparison.of_gang()

    def glance(self, decision: Decision) -> tuple[DifferenceKind, str] | None:
        """Kind and rule of the difference, if there is one, of a decision on one VM that any tenant may ask for."""
        try:
            (shape,), held = self._shapes(decision), decision.trial.machines[0]
        except InvalidInput:
            return "invalid", ""
        engine = self.arm.engine
        found = engine.look(shape, held, held)
        if found.agrees(held) or (against := opinion(engine.rules, found)) is TIED:
            return None
        return _kind(held, found, against), against.name

    def _shapes(self, decision: Decision) -> tuple[Shape, ...]:
        """What the VMs ask for, as the other policy reads it. Ties between clusters fall alike for both policies."""
        shapes = self.allocator.shapes_of(decision.request, self.arm, decision.purpose)
        if self.arm.engine.rules.cluster_traits == decision.engine.rules.cluster_traits:
            return shapes
        return tuple(self._twin(*pair) for pair in zip(decision.trial.shapes, shapes, strict=True))

    def _twin(self, own: Shape, other: Shape) -> Shape:
        if (twin := self._twins.get((own, other))) is None:
            if len(self._twins) >= MOST_KNOWN:
                self._twins.clear()
            twin = replace(other, cluster_key=(*other.cluster_key, *own.lots), lots=own.lots)
            self._twins[own, other] = twin
        return twin

    def _invalid(self, decision: Decision, error: InvalidInput, at: float) -> Difference:
        names, trial = self.allocator.zone.machine_names, decision.trial
        return Difference(
            at=at,
            tenant=decision.request.tenant,
            vm=trial.order[0],
            vm_type=decision.request.vms[trial.order[0]].type,
            kind="invalid",
            rule="",
            machine=names[trial.machines[0]] if decision.ok else "",
            other_machine="",
            text=f"{self.arm.policy.name} has no rule for it: {error}",
        )


def _is_simple(decision: Decision) -> bool:
    return len(decision.trial.shapes) == 1 and decision.constraints == UNCONSTRAINED


def _kind(held: int, found: Look, against: Opinion) -> DifferenceKind:
    if held < 0:
        return "placed"
    assert against.verdict != "tied"
    return "declined" if found.machine < 0 else against.verdict


class _Comparison:
    """One decision, as the other policy sees it."""

    def __init__(
        self,
        contrast: Contrast,
        decision: Decision,
        shapes: tuple[Shape, ...],
        explain: Callable[[Difference], bool],
        at: float,
    ) -> None:
        self.contrast, self.decision, self.shapes, self.explain, self.at = contrast, decision, shapes, explain, at
        self.engine, self.trial, self.view = contrast.arm.engine, decision.trial, contrast.allocator.view

    def of_gang(self) -> Difference | None:
        """VM by VM, each with those before it in place: take the others off, and put them on again one by one."""
        trial, view, ok = self.trial, self.view, self.decision.ok
        placed = trial.places
        in_place = len(placed) if ok else 0
        constrained = self.decision.constraints != UNCONSTRAINED
        try:
            while in_place > 1:
                in_place -= 1
                view.suppose(*placed[in_place], -1)
            for at in range(len(placed) + (not ok)):
                if constrained:
                    self._seat(self.engine, at)
                if in_place <= at < len(placed):
                    view.suppose(*placed[at], 1)
                    in_place += 1
                if found := self.of_vm(at):
                    return found
            return None
        finally:
            self.engine.desk.close()
            for machine, shape in placed[in_place:] if ok else ():
                view.suppose(machine, shape, 1)
            for machine, shape in reversed(placed[:in_place]) if not ok else ():
                view.suppose(machine, shape, -1)

    def _seat(self, engine: Engine, at: int) -> None:
        """Let the tenant, with the first so many VMs of the request, come to a policy's desk."""
        seat = self.trial.seat(at)
        engine.desk.open(seat.constraints, seat.homes, seat.remaining)
        if self.trial.refused and not seat.terms.set and not seat.homes:
            engine.desk.refuse(self.trial.refused)

    def of_vm(self, at: int) -> Difference | None:
        """The VM at a place in the order, which is on its machine, if it has one, with those before it."""
        machines = self.trial.machines
        held = machines[at] if at < len(machines) else -1
        return self.of_look(at, held, self.engine.look(self.shapes[self.trial.order[at]], held, held))

    def of_look(self, at: int, held: int, found: Look) -> Difference | None:
        """The same, once it was looked at."""
        if found.agrees(held):
            return None
        vm, against = self.trial.order[at], opinion(self.engine.rules, found) if held >= 0 else TIED
        return None if against is TIED and held >= 0 else self._difference(at, vm, held, found, against)

    def _difference(self, at: int, vm: int, held: int, found: Look, against: Opinion) -> Difference:
        request, names = self.decision.request, self.contrast.allocator.zone.machine_names
        difference = Difference(
            at=self.at,
            tenant=request.tenant,
            vm=vm,
            vm_type=request.vms[vm].type,
            kind=_kind(held, found, against),
            rule=against.name,
            machine=names[held] if held >= 0 else "",
            other_machine=names[found.machine] if found.machine >= 0 else "",
        )
        back = None
        if found.machine >= 0 and (self.contrast.both_sides or held < 0):
            difference, back = self._with_other_side(difference, at, held, found)
        if not self.explain(difference):
            return difference
        if found.machine >= 0 and back is None:
            difference, back = self._with_other_side(difference, at, held, found)
        return msgspec.structs.replace(difference, text=self._sentence(difference, held, found, back))

    def _with_other_side(self, difference: Difference, at: int, held: int, found: Look) -> tuple[Difference, Look]:
        """What the policy that decided says of the machine that the other one finds best."""
        engine = self.decision.engine
        if self.decision.constraints != UNCONSTRAINED:
            self._seat(engine, at)
        back = engine.look(self.trial.shapes[difference.vm], held, found.machine)
        engine.desk.close()
        kept = opinion(engine.rules, back).name
        rule = kept if held < 0 else difference.rule
        return msgspec.structs.replace(difference, rule=rule, kept_by=kept), back

    def _sentence(self, difference: Difference, held: int, found: Look, back: Look | None) -> str:
        """Both sides in words, on the zone as it was before the VM was there."""
        shape, engine = self.trial.shapes[difference.vm], self.decision.engine
        ours, theirs = self._name_of(engine), self.contrast.arm.policy.name
        if held >= 0:
            self.view.suppose(held, shape, -1)
        try:
            other = self._says(theirs, self.engine, difference.vm, found, held) if held >= 0 else ""
            own = self._says(ours, engine, difference.vm, back, found.machine) if back else ""
        finally:
            if held >= 0:
                self.view.suppose(held, shape, 1)
        if difference.kind == "placed":
            return f"{theirs} would use {difference.other_machine}; {ours} finds no machine: {own}"
        if difference.kind == "declined":
            return f"{theirs} finds no machine: {other}"
        return f"{other}; {own}"

    def _name_of(self, engine: Engine) -> str:
        """The policy of an engine that decides."""
        arms = (self.contrast.decided_by, *self.contrast.allocator.arms)
        return next(arm.policy.name for arm in arms if arm is not None and arm.engine is engine)

    def _says(self, policy: str, engine: Engine, vm: int, found: Look, machine: int) -> str:
        """What a policy says of a machine for a VM, in words."""
        zone, view, said = self.view.zone, self.view, opinion(engine.rules, found)
        name = zone.machine_names[machine]
        best = zone.machine_names[found.machine] if found.machine >= 0 else ""
        if said.verdict == "refused":
            assert said.rule is not None
            reason = said.rule.reason(zone, found.detail, self.trial.seating.part_of(vm).terms.set)
            return f"{policy} refuses {name} by {said.name} ({reason})"
        if said.verdict == "cluster":
            cluster = zone.cluster_names[int(view.machines[machine]["cluster"])]
            return f"{policy} looks at better clusters than that of {name}, {cluster}, by {said.name}"
        if said.verdict == "preferred":
            shape = (self.shapes if engine is self.engine else self.trial.shapes)[vm]
            better, worse = (scores(engine, view, shape, m)[said.number] for m in (found.machine, machine))
            return f"{policy} prefers {best} to {name} by {said.name} ({better:.3f} against {worse:.3f})"
        return f"to {policy} {name} is as good"


class Shadow:
    """A policy that decides beside the one in force, on all it decides or a share of the tenants, and counts.

    It takes no more than a share of the time: when more is decided than it can look at, it looks at some, by lot.
    A policy that does not work is heard no more: `stopped` is told why. Nothing of it hurts whoever decides.
    """

    def __init__(
        self,
        policy: RulePolicy,
        share: float = 1.0,
        *,
        stopped: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.policy, self.share, self.problem = policy, share, ""
        self._split = PolicySplit(policy, policy, share)
        self._stopped, self._clock, self._now = stopped, clock, now
        self._contrast: Contrast | None = None
        self.began = now()
        self._explained, self._second, self._spent, self._odds = 0, 0, 0.0, 1.0
        self._lots = random.Random(0)
        self.decisions = self.skipped = 0  # that it looked at; that it had no time for
        self.changed: Counter[tuple[DifferenceKind, str]] = Counter()  # by kind and rule
        self.latest: deque[Difference] = deque(maxlen=LATEST)

    def join(self, allocator: Arms) -> None:
        """Get ready to look at what an allocator decides; raises if the policy does not work."""
        if self._contrast is None or self._contrast.allocator is not allocator:
            self._contrast = Contrast(allocator, self.policy, both_sides=False)

    def look(self, decision: Decision) -> None:
        """A decision was made, just now."""
        if self.problem or (self.share < 1.0 and not self._split.arm_of(decision.request.tenant)):
            return
        started = self._clock()
        if int(started) != self._second:
            self._next_second(started)
        if self._odds < 1.0 and self._lots.random() >= self._odds:
            self.skipped += 1
            return
        try:
            self.join(decision.allocator)  # another one after the copy was loaded anew
            assert self._contrast is not None
            found = self._compare(self._contrast, decision)
        except Exception as error:  # whatever a faulty rule does
            self.problem = str(error) or repr(error)
            self._stopped(self.problem)
            return
        self.decisions += 1
        if found is not None:
            self.changed[found] += 1
        self._spent += self._clock() - started

    def _next_second(self, now: float) -> None:
        """Look at as many as there is time for, by what those of the second before took."""
        allowed = MOST_TIME * max(1.0, now - self._second)
        self._odds = min(1.0, self._odds * allowed / self._spent) if self._spent else 1.0
        self._second, self._explained, self._spent = int(now), 0, 0.0

    def _compare(self, contrast: Contrast, decision: Decision) -> tuple[DifferenceKind, str] | None:
        """Kind and rule of a difference; some are explained, which takes longer."""
        due = self._explained < EXPLAINED_A_SECOND
        if not due and decision.ok and _is_simple(decision):
            return contrast.glance(decision)
        found = contrast.compare(decision, lambda _: due, self._now())
        if found is None:
            return None
        if found.text:
            self._explained += 1
            self.latest.append(found)
        return found.kind, found.rule
