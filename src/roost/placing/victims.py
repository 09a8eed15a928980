"""Who gives way: VMs of lower priority whose room a placement needs, at the least cost, and none but those needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from roost.engine.ruleset import EvictionTerms
from roost.engine.selection import Prices as AllPrices
from roost.engine.shape import Shape
from roost.engine.view import View
from roost.model.errors import InvariantBroken
from roost.model.request import HOLD, hold_of
from roost.model.spans import DAY
from roost.placing.books import RunningVM
from roost.placing.zone_copy import ZoneCopy

DIGITS = 9  # of prices that are compared
LEAST = 1e-9  # that a VM costs: for nothing, one of a higher band could go instead of a lower one
FULL_AGE = 7 * DAY  # after which a VM counts as old
STEPS = 5_000  # of the search for the cheapest; then the best found so far is taken
MOST_KEPT = 200_000  # prices
WORK = 400  # VMs that are looked at for the prices of one VM; after that only prices that are known count
STEPS_OF_A_PRICE = 20  # of the search for the cheapest, for each VM that could go: a price may be a little too high
FORGET = 3_600.0  # seconds after which VMs have aged so much that a price is worked out again


# By band, the highest that can give way first, and compared in that order: the lowest go first, however many it takes.
Cost = tuple[float, ...]
_NOTHING: Cost = ()


class MustWait(Exception):
    """What holds the room is on its way to somewhere, so nobody knows yet who would have to go."""


class VictimSet(msgspec.Struct, frozen=True, gc=False):
    """VMs that would go together, what they free on the machine in question, and what that costs."""

    vms: tuple[RunningVM, ...]
    amounts: tuple[int, ...]
    cost: Cost


def never(_vm: RunningVM) -> bool:
    """Every VM may give way."""
    return False


def room_on(copy: ZoneCopy, machines: Iterable[int]) -> dict[int, np.ndarray]:
    """What nobody holds of some machines, by resource; below zero where others have to give way."""
    rows = copy.view.machines
    return {machine: rows[machine]["free"][-1].astype(np.int64) for machine in machines}


def victims_of(
    copy: ZoneCopy,
    places: Iterable[tuple[int, Shape]],
    room: Mapping[int, np.ndarray],
    terms: EvictionTerms,
    at: float,
    fixed: Callable[[RunningVM], bool],
) -> tuple[RunningVM, ...]:
    """Who has to go for VMs on these machines, which leave that room."""
    bands: dict[int, int] = {}
    for machine, shape in places:
        band = shape.traits["priority"]
        bands[machine] = min(band, bands.get(machine, band))
    return choose_victims(copy, room, bands, terms, at, fixed)


def choose_victims(
    copy: ZoneCopy,
    room: Mapping[int, np.ndarray],
    bands: Mapping[int, int],
    terms: EvictionTerms,
    at: float,
    fixed: Callable[[RunningVM], bool] = never,
) -> tuple[RunningVM, ...]:
    """The VMs that must go so that no machine holds more than it has. Those that are `fixed` cannot be asked to.

    `room`: by machine, what is left of it with all that came, below zero if that is too much; `bands`: the highest
    priority that came. Raises MustWait if those that can be asked do not free enough: then something under way has the
    room.
    """
    chosen: dict[str, RunningVM] = {}
    for machine, left in room.items():
        short = np.maximum(0, -left - _freed(copy, machine, chosen.values())).tolist()
        if not any(short):
            continue
        candidates = _candidates(copy, machine, bands[machine], terms, at, fixed, chosen)
        found = cheapest(short, candidates)
        if found is None:
            if fixed is never:
                raise InvariantBroken(f"machine {copy.zone.machine_names[machine]} is over capacity")
            raise MustWait
        chosen.update((vm.name, vm) for candidate in found for vm in candidate.vms)
    return tuple(_without_spare(copy, chosen, room))


class Price(NamedTuple):
    """What it costs that VMs give way on a machine, and which."""

    cost: Cost
    vms: tuple[RunningVM, ...]
    revision: int = 0  # of the machine
    at: float = 0.0


class EvictionPrices:
    """What it costs on each machine that others give way to one more VM, by the terms of a policy.

    A price holds until something changes on the machine, so it is kept; the age of VMs may be out by an hour.
    """

    def __init__(self, copy: ZoneCopy, terms: EvictionTerms) -> None:
        self._copy, self._terms = copy, terms
        self._kept: dict[tuple[tuple[int, ...], int, int], Price] = {}

    def at(self, at: float, fixed: Callable[[RunningVM], bool], view: View | None = None) -> AllPrices:
        """The prices at a time, if those that are `fixed` cannot be asked. `view`: another one than the copy's."""
        rows, keeps = view or self._copy.view, view is None

        def prices(shape: Shape, machines: Sequence[int]) -> list[Cost | None]:
            band, found, work = shape.traits["priority"], list[Cost | None](), WORK
            if len(self._kept) > MOST_KEPT:
                self._kept.clear()
            generations, revisions = rows.machines["generation"][machines], rows.links["revision"][machines]
            for machine, generation, revision in zip(machines, generations.tolist(), revisions.tolist(), strict=True):
                key = (shape.amounts[generation], band, machine)
                price = self._kept.get(key) if keeps else None
                if (
                    price is None
                    or price.revision != revision
                    or abs(at - price.at) > FORGET
                    or any(map(fixed, price.vms))
                ):
                    price = None
                    if work > 0:
                        candidates = _candidates(self._copy, machine, band, self._terms, at, fixed, {})
                        work -= 1 + len(candidates)
                        price = _price(rows, key, candidates)
                        if price is not None and keeps and self._lasts(machine, band, candidates, rows):
                            self._kept[key] = price._replace(revision=revision, at=at)
                found.append(None if price is None else price.cost)
            return found

        return prices

    def _lasts(self, machine: int, band: int, candidates: Sequence[VictimSet], view: View) -> bool:
        """Whether a price stays as it is as long as the machine does: it is about single VMs there, and all of them."""
        tenants, there = self._copy.tenants, self._copy.giving_way(machine)
        whole = len(candidates) == sum(vm.shape.traits["priority"] > band for vm in there)
        alone = not any(tenants[vm.tenant].constraints.evict_together for each in candidates for vm in each.vms)
        return whole and alone and bool((view.machines[machine]["free"][-1] >= 0).all())


def _price(view: View, wish: tuple[tuple[int, ...], int, int], candidates: Sequence[VictimSet]) -> Price | None:
    """What it costs that some of the candidates give way to a VM that wants these amounts, of a band, on a machine.

    None if they do not free enough.
    """
    amounts, _, machine = wish
    room, steps = view.machines[machine]["free"][-1].tolist(), STEPS_OF_A_PRICE * len(candidates)
    found = cheapest([max(0, need - has) for need, has in zip(amounts, room, strict=True)], candidates, steps)
    if found is None:
        return None
    cost = _total(each.cost for each in found)
    if min(room) < 0:  # for others of the request somebody has to go already
        gone = cheapest([max(0, -has) for has in room], candidates, steps) or []
        cost = tuple(now - before for now, before in zip(cost, _total(each.cost for each in gone), strict=True))
    cost = tuple(round(each, DIGITS) for each in cost)  # the same VMs cost the same, in whatever order they are added
    return Price(cost, tuple(vm for each in found for vm in each.vms))


def _freed(copy: ZoneCopy, machine: int, gone: Iterable[RunningVM]) -> np.ndarray:
    return np.array(_amounts(copy, machine, gone), np.int64)


def _amounts(copy: ZoneCopy, machine: int, vms: Iterable[RunningVM]) -> tuple[int, ...]:
    """What VMs take of a machine, by resource."""
    generation, total = int(copy.zone.machines[machine]["generation"]), [0] * len(copy.zone.resources)
    for vm in vms:
        if vm.machine == machine:
            total = [has + more for has, more in zip(total, vm.shape.amounts[generation], strict=True)]
    return tuple(total)


def _candidates(
    copy: ZoneCopy,
    machine: int,
    band: int,
    terms: EvictionTerms,
    at: float,
    fixed: Callable[[RunningVM], bool],
    chosen: Mapping[str, RunningVM],
) -> list[VictimSet]:
    """The VMs of lower priority than a band on a machine, each with those that would have to go with it."""
    found: list[VictimSet] = []
    seen: set[str] = set(chosen)
    for vm in copy.giving_way(machine):
        if vm.name in seen or vm.shape.traits["priority"] <= band:
            continue
        group = going_with(copy, vm, band)
        seen.update(each.name for each in group)
        if any(map(fixed, group)):
            continue
        amounts = _amounts(copy, machine, group)
        found.append(VictimSet(group, amounts, _total(_cost(copy, each, terms, at) for each in group)))
    return found


def going_with(copy: ZoneCopy, vm: RunningVM, band: int = 0) -> tuple[RunningVM, ...]:
    """A VM and those that have to go with it: room held for it, and the tenant's others if it wants that.

    `band`: those of this one, and above, stay.
    """
    tenant = copy.tenants[vm.tenant]
    if tenant.constraints.evict_together:
        return tuple(each for each in tenant.vms.values() if each.shape.traits["priority"] > band)
    hold = tenant.vms.get(hold_of(vm.name))
    return (vm, hold) if hold is not None else (vm,)


def _cost(copy: ZoneCopy, vm: RunningVM, terms: EvictionTerms, at: float) -> Cost:
    """What it costs that a VM gives way."""
    row = copy.zone.machines[vm.machine]
    takes, capacity = vm.shape.amounts[int(row["generation"])], row["capacity"].tolist()
    share = max(amount / max(1, whole) for amount, whole in zip(takes, capacity, strict=True))
    old = min(1.0, max(0.0, at - vm.since) / FULL_AGE) if vm.since else 1.0
    plain = terms.number * (not vm.name.endswith(HOLD)) + terms.size * share + terms.age * old
    cost = max(LEAST, plain * terms.types.get(vm.vm.type, 1.0))
    return tuple(cost if band == vm.shape.traits["priority"] else 0.0 for band in range(1, len(copy.zone.bands)))


def _total(costs: Iterable[Cost]) -> Cost:
    return tuple(map(sum, zip(*costs, strict=True)))


def _per(cost: Cost, gain: float) -> Cost:
    return tuple(each / gain for each in cost)


def _lower(cost: Cost, other: Cost) -> Cost:
    return tuple(map(min, cost, other)) if other else cost


def cheapest(short: Sequence[int], candidates: Sequence[VictimSet], most: int = STEPS) -> list[VictimSet] | None:
    """The candidates that free what is short of each resource at the least cost; None if all together do not.

    Exact unless the search takes more than `most` steps; then what is found is still no more than needed.
    """
    count = len(short)
    wanted = [r for r in range(count) if short[r] > 0]
    useful = [c for c in candidates if any(c.amounts[r] > 0 for r in wanted)]
    if any(sum(c.amounts[r] for c in useful) < short[r] for r in wanted):
        return None
    best = _greedy(short, wanted, useful)
    lowest = _total(c.cost for c in best)
    useful.sort(key=lambda c: _per(c.cost, sum(min(1.0, c.amounts[r] / short[r]) for r in wanted)))
    # What all from each place on free together: where that does not suffice, nothing further on can help. And what one
    # unit of each resource costs there at least, in each band: so much must be paid for what is still short.
    rest, least = [[0] * count for _ in range(len(useful) + 1)], [[_NOTHING] * count for _ in range(len(useful) + 1)]
    for i in range(len(useful) - 1, -1, -1):
        amounts, cost = useful[i].amounts, useful[i].cost
        rest[i] = [more + own for more, own in zip(rest[i + 1], amounts, strict=True)]
        least[i] = [
            _lower(_per(cost, own), further) if own > 0 else further
            for own, further in zip(amounts, least[i + 1], strict=True)
        ]
    steps = 0

    def search(i: int, left: list[int], cost: Cost, taken: list[VictimSet]) -> None:
        nonlocal best, lowest, steps
        steps += 1
        if cost >= lowest or steps > most:
            return
        if all(left[r] <= 0 for r in wanted):
            best, lowest = list(taken), cost
            return
        if i == len(useful) or any(rest[i][r] < left[r] for r in wanted):
            return
        to_pay = [tuple(left[r] * each for each in least[i][r]) for r in wanted if left[r] > 0]
        if tuple(paid + max(more) for paid, more in zip(cost, zip(*to_pay, strict=True), strict=True)) >= lowest:
            return
        each = useful[i]
        taken.append(each)
        less = [has - own for has, own in zip(left, each.amounts, strict=True)]
        search(i + 1, less, _total((cost, each.cost)), taken)
        taken.pop()
        search(i + 1, left, cost, taken)

    search(0, list(short), (0.0,) * len(lowest), [])
    return best


def _greedy(short: Sequence[int], wanted: Sequence[int], candidates: Sequence[VictimSet]) -> list[VictimSet]:
    """Enough candidates, by what a share of the shortage costs; then without those that the others make needless."""
    left, taken, rest = list(short), list[VictimSet](), list(candidates)
    while any(left[r] > 0 for r in wanted):
        open_ = [r for r in wanted if left[r] > 0]
        gains = [sum(min(c.amounts[r], left[r]) / short[r] for r in open_) for c in rest]
        at = min((i for i in range(len(rest)) if gains[i] > 0), key=lambda i: _per(rest[i].cost, gains[i]))
        each = rest.pop(at)
        taken.append(each)
        left = [has - own for has, own in zip(left, each.amounts, strict=True)]
    for each in sorted(taken, key=lambda c: c.cost, reverse=True):
        if all(left[r] + each.amounts[r] <= 0 for r in wanted):
            taken.remove(each)
            left = [has + own for has, own in zip(left, each.amounts, strict=True)]
    return taken


def _without_spare(copy: ZoneCopy, chosen: Mapping[str, RunningVM], room: Mapping[int, np.ndarray]) -> list[RunningVM]:
    """Without those that can stay after all, as VMs that go with others have freed their machines, too."""
    victims = dict(chosen)
    for name, vm in sorted(chosen.items(), key=lambda item: item[0].endswith(HOLD)):
        if name not in victims or (name.endswith(HOLD) and name.removesuffix(HOLD) in victims):
            continue  # it stays with others, or goes with its VM
        group = [vm]
        if copy.tenants[vm.tenant].constraints.evict_together:
            group = [each for each in victims.values() if each.tenant == vm.tenant]
        if _can_stay(copy, group, victims.values(), room):
            for each in group:
                del victims[each.name]
    return list(victims.values())


def _can_stay(
    copy: ZoneCopy, group: Sequence[RunningVM], victims: Iterable[RunningVM], room: Mapping[int, np.ndarray]
) -> bool:
    """Whether there is room for all of a group, if the other victims go."""
    return not any(
        (room[machine] + _freed(copy, machine, victims) < _freed(copy, machine, group)).any()
        for machine in {each.machine for each in group} & room.keys()
    )
