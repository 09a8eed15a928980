"""All VMs of a request or none: the loop of Protean's Algorithm 1, without the commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from roost.engine.capacity import roomiest_racks, roomy
from roost.engine.choice import BEST, Choice
from roost.engine.selection import Assignment, Engine
from roost.engine.shape import Shape
from roost.engine.steps import Steps, finish
from roost.engine.tenant import NOWHERE
from roost.engine.view import View
from roost.model.availability import Short, Spread
from roost.model.request import UNCONSTRAINED, Constraints, Terms
from roost.model.thresholds import Purpose
from roost.placing.backtracking import OutOfTurn, is_small, seeking
from roost.placing.search import Search
from roost.placing.seating import FREE, Part, Seating

STEP = 64  # VMs that are placed before others have their turn
RETRIES = 3  # of a request too large for every way to be tried
SPARING = (
    500  # VMs that may be placed in vain to find a way in which nobody gives way, once there is one in which some do
)


class Seat(NamedTuple):
    """What the tenant's rules are told of one VM of a request: what it is held to, and where those beside it are."""

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
    failed_vm: int | None = None  # index in the request of the VM that found no machine
    refused: tuple[int, ...] = ()  # units (see `TenantDesk.unit_of`) known to be too small; see `closed_units`
    tried: tuple[int, ...] = ()  # of these, those that were tried
    rungs: tuple[int, ...] = ()  # by place in the order: of `Terms.rungs`, the one it was held to; 0 where it ends
    hits: int = 0  # evaluations that were there already
    updated: int = 0  # machines looked at to bring caches up to date
    choice: Choice = BEST  # how its machines were chosen
    aside: NDArray[np.int64] = NOWHERE  # machines that were not to have any
    sought: bool = False  # not each VM by itself got the best machine: only so all of them found one
    overfills: bool = False  # VMs of lower priority have to give way

    @property
    def places(self) -> list[tuple[int, Shape]]:
        """Machines, and what was placed there."""
        return [(machine, self.shapes[i]) for i, machine in zip(self.order, self.machines, strict=False)]

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

    def spread(self, racks: NDArray[np.integer], update_domains: NDArray[np.integer]) -> tuple[Spread, ...]:
        """How VMs that are held to any terms lie now; `racks`, `update_domains`: of each machine."""
        found = []
        for name, part in self.seating.parts.items():
            if part.terms.constraints == UNCONSTRAINED:
                continue
            homes = [*part.homes, *self.found(name)]
            in_racks, in_domains = Counter(racks[homes].tolist()), Counter(update_domains[homes].tolist())
            found.append(
                Spread(
                    set=name,
                    vms=len(homes),
                    fault_domains=len(in_racks),
                    most_in_fault_domain=max(in_racks.values()),
                    update_domains=len(in_domains),
                    most_in_update_domain=max(in_domains.values()),
                    most_on_machine=max(Counter(homes).values()),
                )
            )
        return tuple(found)

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


def place_gang(
    engine: Engine,
    shapes: tuple[Shape, ...],
    order: Sequence[int],
    seating: Seating,
    choice: Choice = BEST,
    search: Search | None = None,
) -> Trial:
    """Place the VMs one by one, in order. If one finds no machine, nothing stays placed.

    VMs that must stay together may start in a place too small for all of them; then the others that have room in sum
    are tried, too. If that is in vain, other ways are sought. All of it for as long as the `search` allows. The trial
    returned for a failure is the one that got furthest, each VM by itself.

    If others have to give way, VMs that come together may find other machines on which nobody has to, though not each
    its best by itself: that is tried, too, if the policy spares others first. And a `choice`
    among several is not a reason to make anybody give way: if nobody has to for the very best, these are taken.
    """
    order = tuple(order)
    if search and search.tried:
        return finish(placing_gang(engine, shapes, order, seating, choice, search))
    if search:
        search.begin()
    try:
        first = finish(_attempt(engine, shapes, order, seating, (), (), choice))
    except BaseException:
        engine.desk.close()
        raise
    if first.failed_vm is not None or engine.view.perhaps_overfilled:
        return finish(placing_gang(engine, shapes, order, seating, choice, search, first))
    if engine.desk.constrained:
        engine.desk.close()
    return first  # as nearly always


def placing_gang(
    engine: Engine,
    shapes: tuple[Shape, ...],
    order: tuple[int, ...],
    seating: Seating,
    choice: Choice = BEST,
    search: Search | None = None,
    first: Trial | None = None,
) -> Steps[Trial]:
    """The same a step at a time: for an engine that nobody else uses meanwhile. `first`: what came of the first try."""
    view = engine.view
    trial = yield from _placing(engine, shapes, order, seating, choice, search, first)
    if not trial.overfills or len(order) == 1 or (choice == BEST and not engine.rules.spares_first):
        return trial
    _at_once(view, view.remove, trial.places)
    with engine.sparing_others():
        spares = yield from _placing(engine, shapes, order, seating, BEST, Search(in_turn=SPARING))
    if spares.failed_vm is None:
        if not spares.overfills:
            return spares
        _at_once(view, view.remove, spares.places)
    _at_once(view, view.place, trial.places)
    return trial


def _placing(
    engine: Engine,
    shapes: tuple[Shape, ...],
    order: tuple[int, ...],
    seating: Seating,
    choice: Choice,
    search: Search | None,
    first: Trial | None = None,
) -> Steps[Trial]:
    """Place the VMs one by one, and if that is in vain in another way."""
    try:
        if search and first is None:
            search.begin()
        trial = yield from _placing_one_by_one(engine, shapes, order, seating, choice, search, first)
        if trial.failed_vm is not None and len(order) > 1 and not (search and search.left):
            yield
            trial = (yield from _placing_otherwise(engine, trial, search or Search())) or trial
    finally:
        engine.desk.close()
    if trial.failed_vm is None and engine.view.overfilled(trial.machines):
        return msgspec.structs.replace(trial, overfills=True)
    return trial


def _at_once(view: View, change: Callable[[int, Shape], None], places: Iterable[tuple[int, Shape]]) -> None:
    """Put all of some VMs on the machines that were found for them, or take them off."""
    before = view.attempt()
    try:
        for machine, shape in places:
            change(machine, shape)
    except BaseException:  # an interrupt leaves no half tenant either
        view.rewind(before)
        raise
    view.keep()


def _placing_one_by_one(
    engine: Engine,
    shapes: tuple[Shape, ...],
    order: tuple[int, ...],
    seating: Seating,
    choice: Choice,
    search: Search | None,
    first: Trial | None,
) -> Steps[Trial]:
    """The best machine for each VM in its turn, in one unit after another if they must stay together."""
    tried = search.tried if search else ()
    if first is None:
        closed = closed_units(engine, shapes, order, seating, tried)
        first = yield from _attempt(engine, shapes, order, seating, closed, tried, choice)
    trial = furthest = first
    while trial.failed_vm is not None and (unit := _too_small(engine, trial)) is not None:
        if unit in trial.refused:  # a rule of one's own does not keep VMs out of a refused unit
            break
        tried = (*tried, unit)
        over = search is not None and search.note(tried, len(trial.machines))
        closed = (*trial.refused, unit) if len(tried) > 1 else closed_units(engine, shapes, order, seating, tried)
        left = _units(engine, seating) - len(closed)
        if search and over:
            search.left = left
        if left == 0 or over:
            break
        yield
        trial = yield from _attempt(engine, shapes, order, seating, closed, tried, choice)
        furthest = max(furthest, trial, key=lambda t: len(t.machines))
    return trial if trial.failed_vm is None else furthest


def _placing_otherwise(engine: Engine, failed: Trial, search: Search) -> Steps[Trial | None]:
    """A request that found no machine for one of its VMs, each by itself, in a way that suits all of them together."""
    if is_small(engine, failed.shapes):
        return (yield from _placing_as_sought(engine, failed, search))
    order, orders = failed.order, {failed.order}
    racks = _few_racks(engine, failed)
    while not search.spend(len(failed.machines)) and len(orders) <= RETRIES:
        order = _with_first(failed, order)
        if order in orders and not racks:
            return None
        orders.add(order)
        yield
        trial = yield from _attempt(engine, failed.shapes, order, failed.seating, racks, (), failed.choice)
        if trial.failed_vm is None:
            return msgspec.structs.replace(trial, refused=(), sought=True)
        failed, racks = trial, ()
    return None


def _placing_as_sought(engine: Engine, failed: Trial, search: Search) -> Steps[Trial | None]:
    """Place VMs where a search over every way finds room for them, if it does."""
    view, shapes = engine.view, failed.shapes
    try:
        steps = yield from seeking(engine, shapes, failed.order, failed.seating, search)
    except OutOfTurn:
        search.cut = True
        return None
    if not steps:
        return None
    _at_once(view, view.place, [(step.machine, shapes[step.vm]) for step in steps])
    view.note_overfilled()
    order, machines, rungs = zip(*steps, strict=True)
    found = {"order": order, "machines": machines, "failed_vm": None, "rungs": rungs if any(rungs) else ()}
    return msgspec.structs.replace(failed, **found, refused=(), tried=(), sought=True)


def _with_first(failed: Trial, order: tuple[int, ...]) -> tuple[int, ...]:
    """The order in which VMs like the one that found no machine come before others of their priority."""
    assert failed.failed_vm is not None
    first = failed.shapes[failed.failed_vm]
    return tuple(sorted(order, key=lambda i: (failed.shapes[i].traits["priority"], failed.shapes[i] is not first)))


def _few_racks(engine: Engine, failed: Trial) -> tuple[int, ...]:
    """All racks but those with most room, as units to keep out of, if VMs must be in few racks and are in none yet."""
    part = failed.seating.parts.get("")
    if part is None or part.homes or part.terms.constraints.max_fault_domains < 2:
        return ()
    wanted = _together(failed.shapes, failed.order, failed.seating)
    best = roomiest_racks(engine, wanted, part.terms.constraints)
    others = np.setdiff1d(np.arange(len(engine.view.racks)), best)
    return tuple((others + engine.desk.first_unit("rack")).tolist())


def _together(shapes: Sequence[Shape], order: Sequence[int], seating: Seating) -> list[tuple[Shape, int]]:
    """The VMs in no set: how many of each shape."""
    return list(Counter(shapes[i] for i in order if not seating.sets or not seating.sets[i]).items())


def closed_units(
    engine: Engine, shapes: Sequence[Shape], order: Sequence[int], seating: Seating, tried: tuple[int, ...]
) -> tuple[int, ...]:
    """The racks (clusters, datacenters) in which VMs that must stay together need not be tried, after a first failure.

    Those are the ones that were tried already, and the ones that have too little room for all of the VMs by count.
    """
    if not tried:
        return ()
    constraints = seating.parts[""].terms.constraints
    room = roomy(engine, _together(shapes, order, seating), constraints.unit, constraints)
    first = engine.desk.first_unit(constraints.unit)
    small = np.setdiff1d(np.flatnonzero(~room) + first, tried)
    return (*small.tolist(), *tried)


def _units(engine: Engine, seating: Seating) -> int:
    """How many there are of what VMs must stay together in."""
    return int(engine.view.machines[seating.parts[""].terms.constraints.unit].max()) + 1


def _too_small(engine: Engine, trial: Trial) -> int | None:
    """The unit in which VMs that must stay together began, if they may begin in another."""
    part = trial.seating.parts.get("")
    if part is None or not part.terms.constraints.unit or part.homes or part.terms.best_effort:
        return None
    began = trial.found("")
    return engine.desk.unit_of(began[0], part.terms.constraints.unit) if began else None


def _attempt(
    engine: Engine,
    shapes: tuple[Shape, ...],
    order: tuple[int, ...],
    seating: Seating,
    refused: tuple[int, ...],
    tried: tuple[int, ...],
    choice: Choice,
) -> Steps[Trial]:
    sets, part = seating.sets, seating.part_of(order[0])
    if seating is FREE:
        if engine.desk.constrained:
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
            found = engine.assign(shapes[i], choice)
            hits += found.hit
            updated += found.updated
            if found.machine < 0 and part.terms.best_effort:
                found, rung = _assign_somehow(engine, shapes[i], part.terms, choice)
                rungs += [*[0] * (len(machines) - len(rungs)), rung]
                updated += found.updated
            if found.machine < 0:
                break
            machines.append(found.machine)
            if at % STEP == 0:
                yield
        whole = len(machines) == len(order)
    finally:  # a rule's fault or an interrupt leaves no half tenant either
        if whole:
            engine.view.keep()
        else:
            engine.view.rewind(before)
    failed = None if whole else order[len(machines)]
    return Trial(order, shapes, seating, tuple(machines), failed, refused, tried, tuple(rungs), hits, updated, choice)


def _open(engine: Engine, part: Part, homes: tuple[int, ...], wanted: int, refused: tuple[int, ...]) -> None:
    """Let VMs that count for one another come to the desk; if there are none yet, not to begin in what was refused."""
    engine.desk.open(part.terms.constraints, homes, wanted)
    if refused and not part.terms.set and not homes:
        engine.desk.refuse(refused)


def _assign_somehow(engine: Engine, shape: Shape, terms: Terms, choice: Choice) -> tuple[Assignment, int]:
    """Place a VM that no machine suits by the terms, by as much of them as possible: where, and by which rung."""
    rungs = terms.rungs
    for rung in range(1, len(rungs)):
        engine.desk.hold_to(rungs[rung])
        found = engine.assign(shape, choice)
        if found.machine >= 0:
            engine.desk.hold_to(terms.constraints)
            break
    return found, rung
