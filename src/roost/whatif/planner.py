"""Which VMs to move where, so that machines that run little run nothing.

Machines are emptied one after another, those first that free most cores for each VM moved. The VMs of a machine are
placed again by the policy's own engine, on a scratch copy where empty machines and those to be emptied take nothing:
there is no second opinion on what fits. A machine whose VMs do not all find room stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import msgspec
import numpy as np

from roost.agent.replica import Replica
from roost.engine.ruleset import PolicySplit, RulePolicy
from roost.engine.shape import Shape
from roost.model.errors import InvalidInput, UnknownName
from roost.model.request import HOLD, UNCONSTRAINED, hold_of
from roost.model.rows import MachineState
from roost.model.thresholds import Purpose
from roost.placing.allocator import Allocator
from roost.placing.books import RunningVM
from roost.placing.gang import place_gang
from roost.placing.order import placing_order
from roost.placing.seating import seating
from roost.store.columns import ZoneColumns
from roost.store.ledger import Ledger
from roost.whatif.measures import measure, type_mix
from roost.whatif.plan import Plan, PlannedMove, PlanTerms, plan_id

SHORTLIST = 1.25  # times the budget: machines with so many VMs are to be emptied, and so take nothing themselves
NEAREST = 6  # machines to make room on, at most, for one VM
EJECTIONS = 12  # VMs to try to move away for it, at most
HOPELESS = 3  # times in a row that a kind of VM found no room, before nobody is asked to make some
TURNS = 3  # for a machine whose VMs find no room

PINNED = "runs VMs that may not move"
ROOM = "its VMs find no room elsewhere"
BUDGET = "runs more VMs than the budget has left"
COST = "frees too little for what it costs"
TAKING = "takes VMs of others"
DOWN = "is down"


def plan_moves(ledger: Ledger, policy: RulePolicy | PolicySplit, terms: PlanTerms, seed: int = 0) -> Plan:
    """The moves that make a zone denser within these terms. Same arguments, same plan; the ledger is not changed."""
    plan = _plan(ledger, policy, terms, seed, SHORTLIST)
    if ROOM in plan.left:  # where room is short, machines that are only going to be emptied may be missing as targets
        plan = max(plan, _plan(ledger, policy, terms, seed, 0.0), key=lambda each: each.gain)
    return plan


def _plan(ledger: Ledger, policy: RulePolicy | PolicySplit, terms: PlanTerms, seed: int, shortlist: float) -> Plan:
    allocator = Replica(ZoneColumns.of(ledger), policy, seed).allocator
    _check_names(allocator, terms)
    types = type_mix(allocator.zone, (vm.spec for vm in ledger.vms.values()))
    before = measure(allocator, types)
    planner = _Planner(allocator, terms)
    moves = tuple(planner.moves(shortlist))
    zone = ledger.catalogue.name
    return Plan(
        id=plan_id(zone, ledger.revision, moves),
        zone=zone,
        revision=ledger.revision,
        policy=allocator.arms[0].recorded,
        terms=terms,
        before=before,
        after=measure(allocator, types),
        left=planner.left,
        moves=moves,
    )


def _check_names(allocator: Allocator, terms: PlanTerms) -> None:
    zone = allocator.zone
    for name in terms.types:
        zone.vm_type(name, "types")
    for name in terms.priorities:
        if name not in zone.bands:
            raise UnknownName("priorities", "priority band", name, zone.bands)
    for pattern in terms.tenants:
        if not any(fnmatchcase(tenant, pattern) for tenant in allocator.tenants):
            raise InvalidInput("tenants", f"no tenant is called like {pattern!r}", "check the pattern")


class _Step(msgspec.Struct, frozen=True, eq=False):
    """A VM before and after it is moved."""

    old: RunningVM
    new: RunningVM


class _Planner:
    """One plan in the making, on a scratch copy of a zone."""

    def __init__(self, allocator: Allocator, terms: PlanTerms) -> None:
        self.allocator, self.view, self.zone, self.terms = allocator, allocator.view, allocator.zone, terms
        self.left: dict[str, int] = {}
        self._budget = terms.budget
        self._residents: list[list[str]] = [[] for _ in self.zone.machine_names]
        for vm in allocator.vms.values():
            self._residents[vm.machine].append(vm.name)
        self._movable = {name: self._may_move(vm) for name, vm in allocator.vms.items()}
        self._settled: set[int] = set()  # machines that have given or taken a VM, and so are not to be emptied
        self._moved: set[str] = set()
        self._ejected: dict[int, list[int]] = {}  # by machine: the moves that made room on it
        self._failing: Counter[tuple[int, ...]] = Counter()  # by kind of VM: how often in a row it found no room
        self._last: dict[str, int] = {}  # the latest move of each tenant that has constraints
        cores = self.zone.cores_at
        rows = self.view.machines
        self._capacity = rows["capacity"][:, cores].astype(np.int64)
        up = rows["state"] != MachineState.DOWN
        self._used = int((self._capacity - rows["free"][:, -1, cores])[up].sum())
        self._in_use = int(self._capacity[up & (rows["vms"] > 0)].sum())
        self._number = 0

    # ---------------------------------------------------------------------------------------------- choosing

    def _may_move(self, vm: RunningVM) -> bool:
        terms = self.terms
        if vm.name.endswith(HOLD) or hold_of(vm.name) in self.allocator.vms:  # it is being moved already
            return False
        if vm.vm.isolated and not terms.isolated:
            return False
        if terms.types and vm.vm.type not in terms.types:
            return False
        if terms.priorities and (vm.vm.priority or self.zone.bands[0]) not in terms.priorities:
            return False
        return not terms.tenants or self._is_named(vm.tenant)

    def _is_named(self, tenant: str) -> bool:
        return any(fnmatchcase(tenant, pattern) for pattern in self.terms.tenants)

    def _leave(self, why: str) -> None:
        self.left[why] = self.left.get(why, 0) + 1

    def _candidates(self) -> list[int]:
        """The machines that could be emptied, those first that free most cores for each VM."""
        rows = self.view.machines
        found = []
        for machine in np.flatnonzero(rows["vms"] > 0).tolist():
            if rows[machine]["state"] == MachineState.DOWN:
                self._leave(DOWN)
            elif not all(self._movable[name] for name in self._residents[machine]):
                self._leave(PINNED)
            else:
                found.append(machine)
        return sorted(found, key=lambda m: (-self._worth(m), m))

    def _worth(self, machine: int) -> float:
        """Cores that it would free, for each VM on it."""
        cores = self._capacity[machine] / self.zone.resources[self.zone.cores_at].per_unit
        return float(cores) / len(self._residents[machine])

    def moves(self, shortlist: float) -> Iterator[PlannedMove]:
        """Empty machine after machine; those that found no room get another turn, when others stay as they are.

        `shortlist`: machines with so many times the VMs of the budget take nothing, because they are to be emptied.
        """
        rows, view = self.view.machines, self.view
        empty = view.clusters["empty"].copy()
        for machine in np.flatnonzero((rows["vms"] == 0) & (rows["state"] == MachineState.READY)).tolist():
            view.set_state(machine, MachineState.DRAINING)
        view.clusters["empty"] = empty  # they are only closed to this plan: to thresholds they are as empty as ever
        candidates = self._candidates()
        shut = self._shortlist(candidates, shortlist)
        states = {machine: MachineState(int(rows[machine]["state"])) for machine in shut}
        for machine in shut:
            view.set_state(machine, MachineState.DRAINING)
        for turn in range(1, TURNS + 1):
            crowded = []
            for machine in candidates:
                why, steps = self._empty(machine)
                if not why:
                    yield from self._told(machine, steps)
                    continue
                if machine in states:  # it may take VMs after all
                    view.set_state(machine, states.pop(machine))
                if why == ROOM and turn < TURNS:
                    crowded.append(machine)
                else:
                    self._leave(why)
            candidates = crowded

    def _shortlist(self, candidates: Sequence[int], times: float) -> list[int]:
        """Those of them that the budget may reach."""
        found, vms = [], 0
        for machine in candidates:
            if vms >= times * self._budget or self._worth(machine) < self.terms.cost:
                break
            vms += len(self._residents[machine])
            found.append(machine)
        return found

    # ---------------------------------------------------------------------------------------------- emptying

    def _empty(self, machine: int) -> tuple[str, list[_Step]]:
        """Move all VMs of a machine elsewhere; else why not, and nothing is moved."""
        names = self._residents[machine]
        if machine in self._settled:
            return TAKING, []
        if self._worth(machine) < self.terms.cost:
            return COST, []
        if len(names) > self._budget:
            return BUDGET, []
        state, revision = MachineState(int(self.view.machines[machine]["state"])), self.view.revision
        self.view.set_state(machine, MachineState.DRAINING)
        steps: list[_Step] = []
        why = self._move_all([self.allocator.vms[name] for name in names], steps)
        if not why and len(steps) * self.terms.cost > self._worth(machine) * len(names):
            why = COST
        if why:
            for step in reversed(steps):
                self._book(step.new, step.old)
            self.view.rewind(revision)
            assert self.view.machines[machine]["state"] == state
            return why, []
        return "", steps

    def _move_all(self, vms: Sequence[RunningVM], steps: list[_Step]) -> str:
        """Move VMs, those first that found no room lately, then the hardest to place; says what stands against it."""
        shapes = []
        for vm in vms:
            if (shape := self._shape(vm)) is None:
                return PINNED
            shapes.append(shape)
        failing = self._failing
        order = sorted(placing_order(self.zone, shapes), key=lambda i: -failing[shapes[i].machine_key])
        for done, i in enumerate(order):
            key = shapes[i].machine_key
            if not self._move(vms[i], shapes[i], steps):
                spare = self._budget > len(vms) + len(steps) - done and failing[key] < HOPELESS
                if not (spare and self._make_room(vms[i], shapes[i], steps)):
                    failing[key] += 1
                    return ROOM
            failing[key] = 0
        return ""

    def _shape(self, vm: RunningVM) -> Shape | None:
        """All that a VM asks of its machine, or None if the policy does not know what it asks for."""
        try:
            return self.allocator.shape(vm.vm, vm.tenant, purpose=Purpose.HEALING)  # it is admitted already
        except InvalidInput:
            return None

    def _move(self, vm: RunningVM, shape: Shape, steps: list[_Step]) -> bool:
        """Put a VM where the policy wants it, if anywhere; it holds its own place until then."""
        tenant = self.allocator.tenants[vm.tenant]
        # Nothing is moved at the cost of what tenants ask for, not even as best effort.
        beside = seating(tenant.constraints, (vm.vm,), tenant.vms.values(), (vm,)).strictly()
        engine = self.allocator.arm_of(vm.tenant).engine
        trial = place_gang(engine, (shape,), (0,), beside)
        if not trial.machines:
            return False
        if (self.view.machines[trial.machines[0]]["free"][-1] < 0).any():  # a move makes nobody give way
            self.view.remove(trial.machines[0], shape)
            return False
        self.view.remove(vm.machine, vm.shape)
        machine = trial.machines[0]
        placed = msgspec.structs.replace(vm.placed, machine=self.zone.machine_names[machine], since=0.0)
        step = _Step(vm, RunningVM(placed, vm.tenant, machine, shape))
        self._book(step.old, step.new)
        steps.append(step)
        return True

    def _book(self, old: RunningVM, new: RunningVM) -> None:
        self.allocator.rehouse(old, new)

    # --------------------------------------------------------------------------------------------- making room

    def _make_room(self, vm: RunningVM, shape: Shape, steps: list[_Step]) -> bool:
        """Move one smaller VM away from a machine that lacks little, so that this one fits there."""
        for machine, other in self._in_the_way(shape):
            revision = self.view.revision
            state = MachineState(int(self.view.machines[machine]["state"]))
            self.view.set_state(machine, MachineState.DRAINING)
            other_shape = self._shape(other)
            tried = len(steps)
            if other_shape is not None and self._move(other, other_shape, steps):
                self.view.set_state(machine, state)
                if self._move(vm, shape, steps):
                    return True
            for step in reversed(steps[tried:]):
                self._book(step.new, step.old)
            del steps[tried:]
            self.view.rewind(revision)
        return False

    def _in_the_way(self, shape: Shape) -> Iterator[tuple[int, RunningVM]]:
        """VMs without which a shape might fit on their machine: a guess, the engine decides. Nearest first."""
        rows, cores = self.view.machines, self.zone.cores_at
        demand = shape.row["demand"][0][rows["generation"]].astype(np.int64)
        free, capacity = rows["free"][:, -1].astype(np.int64), rows["capacity"]
        lacking = np.maximum(demand - free, 0)
        possible = (rows["state"] == MachineState.READY) & (demand <= capacity).all(axis=1) & lacking.any(axis=1)
        possible &= rows["vms"] > 1  # else that machine would be empty instead
        shares = (lacking / np.maximum(capacity, 1)).sum(axis=1)
        nearest = np.flatnonzero(possible)
        nearest = nearest[np.argsort(shares[nearest], kind="stable")][:NEAREST]
        tried = 0
        for machine in nearest.tolist():
            others = []
            for name in self._residents[machine]:
                other = self.allocator.vms[name]
                taken = other.shape.row["demand"][0][rows[machine]["generation"]]
                may = self._movable[name] and name not in self._moved and other.machine == machine
                if may and not other.vm.isolated and (lacking[machine] <= taken).all():
                    others.append((int(taken[cores]), name))
            for size, name in sorted(others):
                if tried == EJECTIONS or size >= demand[machine][cores]:
                    break
                tried += 1
                yield machine, self.allocator.vms[name]

    # ------------------------------------------------------------------------------------------------- telling

    def _told(self, machine: int, steps: Sequence[_Step]) -> Iterator[PlannedMove]:
        """Moves that are settled, with what each must wait for and what it brings."""
        self._budget -= len(steps)
        staying = len(self._residents[machine])
        per_core = self.zone.resources[self.zone.cores_at].per_unit
        for step in steps:
            self._number += 1
            old, new = step.old, step.new
            after = set(self._ejected.get(new.machine, ()))
            if self.allocator.tenants[old.tenant].constraints != UNCONSTRAINED:
                after |= {self._last[old.tenant]} if old.tenant in self._last else set()
                self._last[old.tenant] = self._number
            if old.machine != machine:
                self._ejected.setdefault(old.machine, []).append(self._number)
                self._settled.add(old.machine)
            self._settled.add(new.machine)
            self._moved.add(old.name)
            density = self._used / self._in_use
            self._used += self._cores_of(new) - self._cores_of(old)
            staying -= old.machine == machine
            emptied = old.machine == machine and not staying
            self._in_use -= int(self._capacity[machine]) if emptied else 0
            yield PlannedMove(
                number=self._number,
                tenant=old.tenant,
                vm=old.name,
                type=old.vm.type,
                source=self.zone.machine_names[old.machine],
                target=self.zone.machine_names[new.machine],
                gain=100 * (self._used / max(1, self._in_use) - density),
                frees=int(self._capacity[machine]) / per_core if emptied else 0.0,
                empties=self.zone.machine_names[machine],
                after=tuple(sorted(after)),
            )

    def _cores_of(self, vm: RunningVM) -> int:
        generation = self.view.machines[vm.machine]["generation"]
        return int(vm.shape.row["demand"][0][generation][self.zone.cores_at])
