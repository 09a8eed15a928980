"""An allocator under test, an oracle that checks its every choice, and a twin that must decide the same.

The twin has the same zone, policy and seed, but caches of the usual size; it never refreshes them, never explains and
knows no time. Whatever the caches do, and whoever asks for explanations, decisions must not depend on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from roost.engine.choice import BEST, AmongBest, Choice
from roost.engine.selection import Assignment, CacheLimits
from roost.engine.shape import Shape
from roost.model.request import VM, Constraints, Request
from roost.model.rows import MachineState
from roost.model.thresholds import Purpose, Thresholds
from roost.model.zone import Zone
from roost.placing.allocator import Allocator
from roost.placing.books import RunningVM
from roost.placing.decision import Decision
from roost.placing.order import placing_order
from roost.rules.policy import Policy
from tests.oracle.plain import FREE, JOURNAL, Answer, PlainAllocator, Wish, ladder
from tests.property.operators import quarantine_cluster, set_machine_health, set_machine_state, set_thresholds

SMALL = CacheLimits(evaluations=2, rankings=2, columns=2, max_idle=100.0)


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Attempt:
    """One pass over the VMs of a request, as the oracle saw it."""

    answers: tuple[Answer, ...]  # in the order of placing
    machines: tuple[int, ...]
    refused: frozenset[int]  # units it was not allowed to start in
    rungs: tuple[int, ...]  # how far down the ladder each VM was held to its terms
    overfills: bool  # others have to give way


@dataclass(frozen=True)
class Checked:
    """A decision that the oracle agrees with, and how it came about."""

    decision: Decision
    attempts: tuple[Attempt, ...]

    @property
    def final(self) -> Attempt:
        """The attempt that the decision tells of: the one that worked, or the first that got furthest."""
        if self.decision.ok:
            return self.attempts[-1]
        return max(self.attempts, key=lambda a: len(a.machines))


class World:
    """Does everything to an allocator and its twin, and checks it."""

    def __init__(self, zone: Zone, policy: Policy, seed: int = 0, limits: CacheLimits | None = SMALL) -> None:
        self.zone, self.seed, self.clock = zone, seed, Clock()
        self.first_policy = policy
        self.allocator = Allocator(zone, policy, seed, limits=limits, clock=self.clock)
        self.twin = Allocator(zone, policy, seed, clock=lambda: 0.0)
        self.oracle = PlainAllocator(zone, policy.rules)
        self.constraints: dict[str, Constraints] = {}  # of tenants, as they were last
        self.history: list[Callable[[Allocator], Any]] = []
        self._assigned: list[Assignment] = []
        self._listen()

    def _listen(self) -> None:
        """Note every choice that the engine makes."""
        engine = self.allocator.engine
        choose = engine.assign

        def assign(shape: Shape, choice: Choice = BEST) -> Assignment:
            self._assigned.append(choose(shape, choice))
            return self._assigned[-1]

        engine.assign = assign  # type: ignore[method-assign]

    def replayed(self) -> Allocator:
        """Another allocator to which the same was done, from the beginning."""
        other = Allocator(self.zone, self.first_policy, self.seed, clock=lambda: 0.0)
        for step in self.history:
            step(other)
        return other

    def both(self, step: Callable[[Allocator], Any]) -> None:
        """Do the same to the allocator and its twin."""
        self.history.append(step)
        step(self.allocator)
        step(self.twin)

    # -------------------------------------------------------------------------------------------- placing

    def allocate(self, request: Request, *, healing: bool = False) -> Checked:
        """Place a request, and check every choice on the way, what stays, and that the twin does the same."""
        said = Purpose.HEALING if healing else None
        known = self.allocator.tenants.get(request.tenant)
        constraints = known.constraints if known else wished(request.constraints or FREE, request.vms)
        before = self.rows()
        self._assigned.clear()
        decision = self.allocator.allocate(request, purpose=said)
        asked = request
        self.history.append(lambda allocator: allocator.allocate(asked, purpose=said))
        request = replace_vms(request, constraints)
        grows = any(resident.tenant == request.tenant for resident in self.oracle.residents.values())
        assert decision.purpose == (said or (Purpose.SCALE_OUT if grows else Purpose.NEW))
        attempts = self._check_attempts(request, constraints, decision)
        checked = Checked(decision, attempts)
        assert decision.constraints == constraints
        assert decision.trial.machines == checked.final.machines
        against = [i for i, rung in zip(decision.trial.order, checked.final.rungs, strict=False) if rung]
        short = Counter(request.vms[i].set for i in against if decision.ok)
        assert {each.set: each.vms for each in decision.short} == short
        same = self.twin.allocate(asked, purpose=said)
        assert (decision.ok, decision.placements, decision.trial.machines, names_of(decision.victims)) == (
            same.ok,
            same.placements,
            same.trial.machines,
            names_of(same.victims),
        ), "the twin decided otherwise"
        if decision.ok:
            self._keep(request, decision)
        else:
            assert decision.placements == ()
            assert changed(before, self.rows()) == [], "a refused request left a trace"
        return checked

    def _keep(self, request: Request, decision: Decision) -> None:
        self.constraints[request.tenant] = decision.constraints
        assert len(decision.placements) == len(request.vms)
        for vm, placement in zip(request.vms, decision.placements, strict=True):
            assert placement.type == vm.type
            self.oracle.place(placement.vm, vm, request.tenant, self.zone.machine(placement.machine))
        self._check_victims(request, decision)
        by_order = [self.zone.machine(decision.placements[i].machine) for i in decision.trial.order]
        assert by_order == list(decision.trial.machines)

    def _check_victims(self, request: Request, decision: Decision) -> None:
        """Those that give way are of lower priority than what came to their machine, and none could have stayed; or
        they go together, and one of them is such a one.
        """
        names = names_of(decision.victims)
        assert len(set(names)) == len(names)
        gone = {name: self.oracle.residents[name] for name in names}
        for name in names:
            self.oracle.remove(name)
        assert self.oracle.over_capacity() == []
        arrived: dict[int, int] = {}  # by machine, the highest band that came there
        for vm, placement in zip(request.vms, decision.placements, strict=True):
            machine, band = self.zone.machine(placement.machine), self.oracle.priority(vm)
            arrived[machine] = min(band, arrived.get(machine, band))
        new = {placement.vm for placement in decision.placements}
        for name, resident in gone.items():
            together = self.constraints[resident.tenant].evict_together
            group = {n: r for n, r in gone.items() if n == name or (together and r.tenant == resident.tenant)}
            bands = [
                arrived[r.machine]
                for r in group.values()
                if self.oracle.priority(r.vm) > arrived.get(r.machine, len(self.zone.bands))
            ]
            assert bands, f"{name} had to leave, although nothing above it came to its machine"
            assert self.oracle.priority(resident.vm) > min(bands)
            self.oracle.residents |= group
            assert self.oracle.over_capacity() != [], f"{name} could have stayed"
            for each in group:
                self.oracle.remove(each)
            left = [r for n, r in self.oracle.residents.items() if r.tenant == resident.tenant and n not in new]
            if together:
                assert any(all(self.oracle.priority(r.vm) <= band for r in left) for band in bands), "not all went"

    def _check_attempts(self, request: Request, constraints: Constraints, decision: Decision) -> tuple[Attempt, ...]:
        """Go through the engine's choices one by one, and whether it was right to try again.

        Where each VM by itself found none, all of them may have been placed in a way that was sought. And where others
        have to give way to several VMs, a way was looked for in which nobody has to.
        """
        order = self._order(request, decision)
        assert sorted(order) == list(range(len(request.vms)))
        assigned, trial = list(self._assigned), decision.trial
        attempts = self._check_pass(request, constraints, decision, order, assigned)
        whole = len(attempts[-1].machines) == len(order)
        spares = self.oracle.rules.preferences[0].rule.spares and len(order) > 1
        if assigned:
            assert spares, "the engine went on choosing"
            assert attempts[-1].overfills or not whole, "the engine went on choosing"
            sparing = self._check_pass(request, constraints, decision, order, assigned, sparing=True)
            assert assigned == [], "the engine went on choosing"
            assert decision.ok
            if len(sparing[-1].machines) == len(order):
                assert not decision.victims
                return tuple(sparing)
            assert trial.sought or whole
        else:
            assert not (spares and attempts[-1].overfills), "nobody looked for a way in which all can stay"
        if trial.sought:
            attempts.append(self._check_sought(request, constraints, decision))
            assert not whole or (spares and not attempts[-1].overfills)
        assert decision.ok == (whole or trial.sought)
        return tuple(attempts)

    def _check_pass(
        self,
        request: Request,
        constraints: Constraints,
        decision: Decision,
        order: Sequence[int],
        assigned: list[Assignment],
        *,
        sparing: bool = False,
    ) -> list[Attempt]:
        """Take the choices of attempts in one unit of colocation after another; those too small are out afterwards.

        `sparing`: nobody was to give way.
        """
        unit, attempts, refused, small = constraints.unit, list[Attempt](), frozenset[int](), frozenset[int]()
        together = unit and not constraints.best_effort and not self.oracle.homes(request.tenant)
        while True:
            attempt = self._check_attempt(request, constraints, decision, order, assigned, refused, sparing)
            attempts.append(attempt)
            del assigned[: sum(rung + 1 for rung in attempt.rungs)]
            whole = len(attempt.machines) == len(order)
            began = [m for i, m in zip(order, attempt.machines, strict=False) if not request.vms[i].set]
            if whole or not (together and began):
                break
            refused |= {self.unit(began[0], unit)}
            if len(attempts) == 1:
                small = self._too_small(request, constraints, order, decision.purpose)
                refused |= small
            if refused >= set(self.zone.machines[unit].tolist()):
                break
        for number in sorted(small)[:2]:
            assert not self._fit_somehow(request, constraints, decision, order, number), f"{unit} {number} had room"
        return attempts

    def _order(self, request: Request, decision: Decision) -> tuple[int, ...]:
        """In which order each VM by itself was placed."""
        if not decision.trial.sought:
            return decision.trial.order
        return tuple(placing_order(self.zone, decision.trial.shapes, decision.trial.seating.sets))

    def _check_sought(self, request: Request, constraints: Constraints, decision: Decision) -> Attempt:
        """Go through VMs that were placed so that all have room: each where all rules let it, though not the best."""
        trial, answers = decision.trial, []
        for at, (i, machine) in enumerate(zip(trial.order, trial.machines, strict=True)):
            rung = trial.rungs[at] if trial.rungs else 0
            wish = [*self.wishes(request, constraints, trial.order, at)][rung]
            answers.append(self.answer(replace(wish, purpose=decision.purpose)))
            failure = answers[-1].failures[machine]
            assert failure is None, f"{self.zone.machine_names[machine]} was chosen against {failure}"
            self.oracle.place(f"sought {at}", request.vms[i], request.tenant, machine)
        overfills = bool(self.oracle.over_capacity())
        for at in range(len(trial.machines)):
            self.oracle.remove(f"sought {at}")
        rungs = trial.rungs or (0,) * len(trial.machines)
        return Attempt(tuple(answers), trial.machines, frozenset(), rungs, overfills)

    def _too_small(
        self, request: Request, constraints: Constraints, order: Sequence[int], purpose: Purpose
    ) -> frozenset[int]:
        """The units of colocation whose machines have too little room for the VMs, whoever gets which."""
        together = [request.vms[i] for i in order if not request.vms[i].set]
        kinds: dict[Any, tuple[Wish, int]] = {}
        for vm in together:
            pins = vm.datacenter, vm.cluster, vm.generation
            own = tuple(sorted(vm.traits.items()))
            kind = vm.type, vm.priority, vm.isolated, vm.colocation, vm.requires, pins, own
            wish, number = kinds.get(kind, (Wish(vm, request.tenant, purpose=purpose), 0))
            kinds[kind] = wish, number + 1
        return self.oracle.too_small(list(kinds.values()), constraints)

    def _fit_somehow(
        self, request: Request, constraints: Constraints, decision: Decision, order: Sequence[int], unit: int
    ) -> bool:
        """Whether all VMs find a machine if those that stay together do so in a unit; each takes the first valid."""
        others = frozenset(self.zone.machines[constraints.unit].tolist()) - {unit}
        names: list[str] = []
        for at, i in enumerate(order):
            *_, wish = self.wishes(request, constraints, order, at)
            valid = self.answer(replace(wish, refused=others, purpose=decision.purpose)).valid
            if not valid:
                break
            names.append(f"somehow {at}")
            self.oracle.place(names[-1], request.vms[i], request.tenant, valid[0])
        for name in names:
            self.oracle.remove(name)
        return len(names) == len(request.vms)

    def _check_attempt(
        self,
        request: Request,
        constraints: Constraints,
        decision: Decision,
        order: Sequence[int],
        assigned: Sequence[Assignment],
        refused: frozenset[int],
        sparing: bool,
    ) -> Attempt:
        answers, machines, rungs = [], [], []
        choices = iter(assigned)
        for at, i in enumerate(order):
            wishes = [*self.wishes(request, constraints, order, at)]
            for rung in range(len(wishes)):
                wish = replace(wishes[rung], refused=refused, purpose=decision.purpose)
                answer, choice = self.answer(wish), next(choices)
                own = [f"attempt {earlier}" for earlier in range(at)]
                self._check_choice(wish, answer, choice, constraints, own, sparing)
                if choice.machine >= 0:
                    break
            answers.append(answer)
            rungs.append(rung)
            if choice.machine < 0 and not sparing:
                self._check_nobody_below_is_in_the_way(wish)
            if choice.machine < 0:
                break
            machines.append(choice.machine)
            self.oracle.place(f"attempt {at}", request.vms[i], request.tenant, choice.machine)
        overfills = len(machines) == len(order) and bool(self.oracle.over_capacity())
        for at in range(len(machines)):
            self.oracle.remove(f"attempt {at}")
        return Attempt(tuple(answers), tuple(machines), refused, tuple(rungs), overfills)

    def wishes(self, request: Request, constraints: Constraints, order: Sequence[int], at: int) -> Iterator[Wish]:
        """What is asked for a VM of a request in its turn: by all of its terms, or, as best effort, by less of them."""
        vm = request.vms[order[at]]
        remaining = sum(request.vms[i].set == vm.set for i in order[at:])
        for held_to in ladder(constraints, vm.set):
            yield Wish(vm, request.tenant, held_to, remaining)

    def _check_choice(
        self,
        wish: Wish,
        answer: Answer,
        assigned: Assignment,
        constraints: Constraints,
        own: Sequence[str],
        sparing: bool,
    ) -> None:
        names, m = self.zone.machine_names, assigned.machine
        if m < 0:
            if not (sparing and answer.best <= answer.overfilling):
                assert answer.valid == [], f"refused, although {names[answer.valid[0]]} is valid"
            return
        assert answer.failures[m] is None, f"{names[m]} was chosen against a rule"
        assert assigned.clusters == len(answer.chosen)
        if sparing:
            assert m not in answer.overfilling
        fair = assigned.tied >= len(answer.best) if constraints.on_places else assigned.tied == len(answer.best)
        if m in answer.overfilling or (answer.best & answer.overfilling and not (m in answer.best and fair)):
            self._check_cheapest(wish, answer, assigned, own)
            return
        assert m in answer.best, f"{names[m]} was chosen, best are {[names[b] for b in sorted(answer.best)]}"
        assert fair

    def _check_cheapest(self, wish: Wish, answer: Answer, assigned: Assignment, own: Sequence[str]) -> None:
        """Where others have to give way: of the machines that count as good, one where that costs least."""
        assert assigned.machine in answer.as_good
        together = [tenant for tenant, wanted in self.constraints.items() if wanted.evict_together]
        prices = {m: self.oracle.price(wish, m, together, own) for m in answer.as_good}
        if None in prices.values():
            return
        costs = {m: (price, answer.keys[m]) for m, price in prices.items()}
        least = [m for m in costs if costs[m] == min(costs.values())]
        assert assigned.machine in least, f"{costs[assigned.machine]} is not the least of {sorted(costs.values())}"
        assert assigned.tied == len(least)

    def _check_nobody_below_is_in_the_way(self, wish: Wish) -> None:
        """A VM never waits while VMs of lower priority hold what it needs."""
        if not any(bound.rule.spares for bound in self.oracle.rules.validators):
            assert self.oracle.waits_in_vain(wish) == [], "it waits for what lower bands hold"

    def answer(self, wish: Wish) -> Answer:
        """The oracle's answer; ties between clusters fall as the engine says they do."""
        shape = self.allocator.shapes.of(wish.vm, 0, purpose=wish.purpose)
        return self.oracle.answer(wish, self.allocator.engine.cluster_lots(shape).tolist())

    def unit(self, machine: int, domain: str) -> int:
        """The unit of a domain that holds a machine."""
        return int(self.zone.machines[machine][domain])

    # ------------------------------------------------------------------------------------------- changing

    def release(self, name: str) -> None:
        """Take a VM away."""
        self.both(lambda a: a.release(name))
        self.oracle.remove(name)

    def set_state(self, machine: int, state: MachineState) -> None:
        """An operator changes a machine's state."""
        self.both(lambda a: set_machine_state(a, self.zone.machine_names[machine], state.name.lower()))
        self.oracle.states[machine] = int(state)

    def set_health(self, machine: int, health: int) -> None:
        """An operator says how healthy a machine is."""
        self.both(lambda a: set_machine_health(a, self.zone.machine_names[machine], health))
        self.oracle.healths[machine] = health

    def quarantine(self, cluster: int, quarantined: bool) -> None:
        """An operator closes a cluster, or opens it."""
        self.both(lambda a: quarantine_cluster(a, self.zone.cluster_names[cluster], quarantined))
        (self.oracle.quarantined.add if quarantined else self.oracle.quarantined.discard)(cluster)

    def set_thresholds(self, cluster: int, thresholds: Thresholds) -> None:
        """An operator has a cluster keep other numbers of empty machines."""
        self.both(lambda a: set_thresholds(a, self.zone.cluster_names[cluster], thresholds))
        self.oracle.thresholds[cluster] = thresholds

    def switch_policy(self, policy: Policy) -> None:
        """Decide by other rules from now on."""
        self.both(lambda a: a.switch_policy(policy))
        self.oracle.rules = policy.rules
        self._listen()

    def draw_top(self, wish: Wish, top: int) -> None:
        """Draw among the best few, for nobody: the VM is taken away at once."""
        homes = tuple(self.oracle.homes(wish.tenant, wish.vm.set))
        answer = self.answer(wish)

        def draw(allocator: Allocator) -> Assignment:
            engine = allocator.engine
            shape = allocator.shape(wish.vm, wish.tenant, purpose=wish.purpose)
            engine.desk.open(wish.constraints, homes, wish.remaining)
            assigned = engine.assign(shape, AmongBest(top))
            engine.desk.close()
            if assigned.machine >= 0:
                allocator.view.remove(assigned.machine, shape)
            return assigned

        self.history.append(draw)
        mine, twins = draw(self.allocator), draw(self.twin)
        assert (mine.machine, mine.tied) == (twins.machine, twins.tied)
        sure, border = answer.top(top)
        if mine.machine < 0:
            assert answer.valid == []
        else:
            assert mine.machine in sure | border
            assert mine.tied >= min(top, len(answer.candidates))
            assert mine.tied <= top

    # ------------------------------------------------------------------------------------------- checking

    def rows(self) -> list[NDArray[np.void]]:
        """A copy of the allocator's rows."""
        view = self.allocator.view
        return [view.machines.copy(), view.racks.copy(), view.clusters.copy()]

    def check(self) -> None:
        """The rows are what the VMs make of them, by the oracle's sums and by the allocator's own."""
        view = self.allocator.view
        assert self.oracle.disagreements(view.machines, view.racks, view.clusters) == []
        assert self.oracle.over_capacity() == []
        self.allocator.check_invariants()
        assert changed(self.rows(), [self.twin.view.machines, self.twin.view.racks, self.twin.view.clusters]) == []
        assert set(self.allocator.vms) == set(self.oracle.residents)
        assert set(self.allocator.tenants) == {r.tenant for r in self.oracle.residents.values()}


def wished(constraints: Constraints, vms: Sequence[VM]) -> Constraints:
    """The constraints of a tenant that begins with these VMs: what all of them ask for is for later ones, too."""
    alike = {pin: {getattr(vm, pin) for vm in vms} for pin in ("datacenter", "cluster", "generation")}
    pins = {pin: named.pop() for pin, named in alike.items() if len(named) == 1 and named not in ({""}, {"*"})}
    return msgspec.structs.replace(constraints, **pins)


def replace_vms(request: Request, constraints: Constraints) -> Request:
    """The request with VMs that ask for what their tenant wants, where they do not ask for anything else.

    VMs that name a datacenter or a cluster ask for another place.
    """
    vms = []
    for vm in request.vms:
        named = any(place not in ("", "*") for place in (vm.datacenter, vm.cluster))
        own = {
            "datacenter": vm.datacenter or ("" if named else constraints.datacenter),
            "cluster": vm.cluster or ("" if named else constraints.cluster),
            "generation": vm.generation or constraints.generation,
        }
        vms.append(msgspec.structs.replace(vm, **own))
    return msgspec.structs.replace(request, vms=tuple(vms))


def names_of(vms: Sequence[RunningVM]) -> list[str]:
    """What VMs are called."""
    return [vm.name for vm in vms]


def changed(before: Sequence[NDArray[np.void]], after: Sequence[NDArray[np.void]]) -> list[str]:
    """The fields that differ, the journal aside: it may only grow."""
    return [
        name
        for old, new in zip(before, after, strict=True)
        for name in old.dtype.names or ()
        if name not in JOURNAL and not np.array_equal(old[name], new[name])
    ]
