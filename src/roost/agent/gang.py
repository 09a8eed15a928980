"""All VMs of a request or none: the loop of Protean's Algorithm 1, without the commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from roost.agent.seating import FREE, Part, Seating
from roost.engine.capacity import roomy
from roost.engine.selection import Assignment, Engine
from roost.engine.shape import Shape
from roost.engine.steps import Steps, finish
from roost.engine.tenant import NOWHERE
from roost.model.availability import Short
from roost.model.request import Constraints, Terms
from roost.model.thresholds import Purpose

STEP = 64  # VMs that are placed before others have their turn


class Seat(NamedTuple):
    """How one VM comes to the desk."""

    terms: Terms
    constraints: Constraints  # of the terms, what it was held to
    homes: tuple[int, ...]  # of the VMs that count for it, those placed before it included
    remaining: int  # of these still to place, itself included


class Trial(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One attempt at a request: which machines its VMs found, in the order of placing."""

    order: tuple[int, ...]  # indexes of the request's VMs
    shapes: tuple[Shape, ...]  # by index in the request
    seating: Seating  # where the tenant's VMs were before, and by which terms
    machines: tuple[int, ...]  # shorter than `order` if a VM found none
    refused: tuple[int, ...] = ()  # units (see `TenantDesk.unit_of`) known to be too small; see `closed_units`
    tried: tuple[int, ...] = ()  # of these, those that were tried
    rungs: tuple[int, ...] = ()  # by place in the order: of `Terms.rungs`, the one it was held to; 0 where it ends
    hits: int = 0  # evaluations that were there already
    updated: int = 0  # machines looked at to bring caches up to date
    top: int = 1  # see `Engine.assign`
    aside: NDArray[np.int64] = NOWHERE  # machines that were not to have any

    @property
    def failed_vm(self) -> int | None:
        """Index in the request of the VM that found no machine."""
        return None if len(self.machines) == len(self.order) else self.order[len(self.machines)]

    @property
    def purpose(self) -> Purpose:
        """What the request is for."""
        return Purpose(self.shapes[0].traits["purpose"])

    def seat(self, at: int) -> Seat:
        """How the VM at a place in the order came to the desk."""
        part = self.seating.part_of(self.order[at])
        rung = self.rungs[at] if at < len(self.rungs) else 0
        constraints = part.terms.rungs[rung] if rung else part.terms.constraints
        return Seat(part.terms, constraints, *_counting(self.seating, self.order, self.machines, at))

    def found(self, of_set: str) -> tuple[int, ...]:
        """The machines that VMs of a set found, or those in none."""
        return _found(self.seating, self.order, self.machines, of_set)

    def short(self, racks: NDArray[np.integer], update_domains: NDArray[np.integer]) -> tuple[Short, ...]:
        """What best effort could not reach; `racks`, `update_domains`: of each machine."""
        if not any(self.rungs):
            return ()
        found = []
        for name, part in self.seating.parts.items():
            held = [self.seating.part_of(i) is part for i in self.order]
            against = sum(own and rung > 0 for own, rung in zip(held, self.rungs, strict=False))
            if not against:
                continue
            homes, wanted = [*part.homes, *self.found(name)], part.terms.constraints
            reached = {}
            for field, unit, least in (
                ("fault_domains", racks, wanted.min_fault_domains),
                ("update_domains", update_domains, wanted.min_update_domains),
            ):
                if least:
                    reached[field] = len(set(unit[homes].tolist()))
                    reached[f"wanted_{field}"] = min(least, len(homes))
            found.append(Short(set=name, vms=against, **reached))
        return tuple(found)


def _found(seating: Seating, order: Sequence[int], machines: Sequence[int], of_set: str) -> tuple[int, ...]:
    sets = seating.sets
    return tuple([m for i, m in zip(order, machines, strict=False) if not sets or sets[i] == of_set])


def _counting(seating: Seating, order: Sequence[int], machines: Sequence[int], at: int) -> tuple[tuple[int, ...], int]:
    """Where the VMs are that count for the one at a place in the order, and how many of them are still to place."""
    part, sets = seating.part_of(order[at]), seating.sets
    if not sets:
        return (*part.homes, *machines[:at]), len(order) - at
    own = part.terms.set
    return (*part.homes, *_found(seating, order, machines[:at], own)), sum(sets[i] == own for i in order[at:])


class Search:
    """A search for a place where VMs that must stay together have room, over several turns if it takes that many."""

    def __init__(self, in_turn: int, in_all: int, clock: Callable[[], float], seconds: float) -> None:
        """`in_turn`, `in_all`: VMs that may be placed in vain; `seconds`: that a turn may take."""
        self._in_turn, self._in_all, self._clock, self._seconds = in_turn, in_all, clock, seconds
        self._began, self._before, self._spent = 0.0, 0, 0  # the turn, and VMs placed in vain before it, and in all
        self.tried: tuple[int, ...] = ()  # units (see `TenantDesk.unit_of`) that turned out to be too small
        self.left = 0  # units that may have room and were not tried when the last turn ended

    def begin(self) -> None:
        """Have another turn."""
        self._began, self._before, self.left = self._clock(), self._spent, 0

    def note(self, tried: tuple[int, ...], placed: int) -> bool:
        """So many VMs were placed in the last of these in vain; whether the turn is over."""
        self.tried, self._spent = tried, self._spent + placed
        late = self._clock() - self._began > self._seconds
        return late or self._spent - self._before >= self._in_turn

    @property
    def goes_on(self) -> bool:
        """Whether there is more to try, and another turn to do it in."""
        return self.left > 0 and self._spent < self._in_all


def place_gang(
    engine: Engine,
    shapes: tuple[Shape, ...],
    order: Sequence[int],
    seating: Seating,
    top: int = 1,
    search: Search | None = None,
) -> Trial:
    """Place the VMs one by one, in order. If one finds no machine, nothing stays placed. `top`: see `Engine.assign`.

    VMs that must stay together may start in a place too small for all of them; then the others that have room in sum
    are tried, too, for as long as the `search` allows. The trial returned for a failure is the one that got furthest.
    """
    return finish(placing_gang(engine, shapes, tuple(order), seating, top, search))


def placing_gang(
    engine: Engine,
    shapes: tuple[Shape, ...],
    order: tuple[int, ...],
    seating: Seating,
    top: int = 1,
    search: Search | None = None,
) -> Steps[Trial]:
    """The same a step at a time: for an engine that nobody else uses meanwhile."""
    try:
        tried = search.tried if search else ()
        if search:
            search.begin()
        closed = closed_units(engine, shapes, order, seating, tried)
        trial = furthest = yield from _attempt(engine, shapes, order, seating, closed, tried, top)
        while trial.failed_vm is not None and (unit := _too_small(engine, trial)) is not None:
            assert unit not in trial.refused, "no rule of the policy keeps VMs out of a refused unit"
            tried = (*tried, unit)
            over = search is not None and search.note(tried, len(trial.machines))
            closed = (*trial.refused, unit) if len(tried) > 1 else closed_units(engine, shapes, order, seating, tried)
            left = _units(engine, seating) - len(closed)
            if search and over:
                search.left = left
            if left == 0 or over:
                break
            yield
            trial = yield from _attempt(engine, shapes, order, seating, closed, tried, top)
            furthest = max(furthest, trial, key=lambda t: len(t.machines))
        return trial if trial.failed_vm is None else furthest
    finally:
        engine.desk.close()


def closed_units(
    engine: Engine, shapes: Sequence[Shape], order: Sequence[int], seating: Seating, tried: tuple[int, ...]
) -> tuple[int, ...]:
    """Once VMs that must stay together have been tried somewhere in vain: units in which they need not begin.

    Those that were tried, and those that have too little room for all of them, which is counted, not tried.
    """
    if not tried:
        return ()
    constraints = seating.parts[""].terms.constraints
    colocate = constraints.colocate
    wanted = Counter(shapes[i] for i in order if not seating.sets or not seating.sets[i])
    room = roomy(engine, list(wanted.items()), colocate, constraints)
    first = engine.desk.first_unit(colocate)
    small = np.setdiff1d(np.flatnonzero(~room) + first, tried)
    return (*small.tolist(), *tried)


def _units(engine: Engine, seating: Seating) -> int:
    """How many there are of what VMs must stay together in."""
    colocate = seating.parts[""].terms.constraints.colocate
    return int(engine.view.machines[colocate].max()) + 1


def _too_small(engine: Engine, trial: Trial) -> int | None:
    """The unit in which VMs that must stay together began, if they may begin in another."""
    part = trial.seating.parts.get("")
    if part is None or not part.terms.constraints.colocate or part.homes or part.terms.best_effort:
        return None
    began = trial.found("")
    return engine.desk.unit_of(began[0], part.terms.constraints.colocate) if began else None


def _attempt(
    engine: Engine,
    shapes: tuple[Shape, ...],
    order: tuple[int, ...],
    seating: Seating,
    refused: tuple[int, ...],
    tried: tuple[int, ...],
    top: int,
) -> Steps[Trial]:
    sets, part = seating.sets, seating.part_of(order[0])
    if seating is FREE:
        engine.desk.close()
    else:
        _open(engine, part, *_counting(seating, order, (), 0), refused)
    before = engine.view.attempt()
    machines: list[int] = []
    rungs: list[int] = []
    hits = updated = 0
    whole = False
    try:
        for at, i in enumerate(order, 1):
            if sets and sets[i] != part.terms.set:
                part = seating.part_of(i)
                _open(engine, part, *_counting(seating, order, machines, len(machines)), refused)
            machine, looked, hit, _, _ = engine.assign(shapes[i], top)
            hits += hit
            updated += looked
            if machine < 0 and part.terms.best_effort:
                (machine, looked, _, _, _), rung = _assign_somehow(engine, shapes[i], part.terms, top)
                rungs += [*[0] * (len(machines) - len(rungs)), rung]
                updated += looked
            if machine < 0:
                break
            machines.append(machine)
            if at % STEP == 0:
                yield
        whole = len(machines) == len(order)
    finally:  # a rule's fault or an interrupt leaves no half tenant either
        if whole:
            engine.view.keep()
        else:
            engine.view.rewind(before)
    return Trial(order, shapes, seating, tuple(machines), refused, tried, tuple(rungs), hits, updated, top)


def _open(engine: Engine, part: Part, homes: tuple[int, ...], wanted: int, refused: tuple[int, ...]) -> None:
    """Let VMs that count for one another come to the desk; if there are none yet, not to begin in what was refused."""
    engine.desk.open(part.terms.constraints, homes, wanted)
    if refused and not part.terms.set and not homes:
        engine.desk.refuse(refused)


def _assign_somehow(engine: Engine, shape: Shape, terms: Terms, top: int) -> tuple[Assignment, int]:
    """Place a VM that no machine suits by the terms, by as much of them as possible: where, and by which rung."""
    rungs = terms.rungs
    for rung in range(1, len(rungs)):
        engine.desk.hold_to(rungs[rung])
        found = engine.assign(shape, top)
        if found.machine >= 0:
            engine.desk.hold_to(terms.constraints)
            break
    return found, rung
