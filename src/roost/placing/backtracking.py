"""Every way to place a few VMs together, for when placing one after the other found no machine for one of them.

A depth-first search over the rows: each VM on each machine that every hard rule allows, whichever comes first, the
best machines first. What no rule can tell apart is tried once: machines alike in all their rows, in racks alike in all
their machines. So a small request is declined only if it cannot be placed, unless the search is cut short.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from roost.engine.capacity import amounts_fit
from roost.engine.huge_pages import copy_of
from roost.engine.selection import Engine, Judgement
from roost.engine.shape import Shape
from roost.engine.steps import Steps
from roost.engine.view import View
from roost.placing.search import Search
from roost.placing.seating import Part, Seating

# A request that may be placed in every way has no more VMs than this; and these, times the kinds of them, times the
# machines of the zone, are no more than that: to place all once, every machine judged before each, takes milliseconds.
MOST_VMS, MOST_JUDGED = 16, 40_000
REFUSED = 0  # the verdict on a machine that is not to have a VM now, whatever the rules say: as if the first refused it
JUDGED = 100  # machines that are judged in the time that placing a VM takes


class Step(NamedTuple):
    """A VM of the request on a machine."""

    vm: int  # its index in the request
    machine: int
    rung: int  # of `Terms.rungs`, the one it is held to


class OutOfTurn(Exception):
    """The turn is over, and not all was tried."""


class _Kind(NamedTuple):
    """VMs of the request that are all the same."""

    shape: Shape
    part: Part
    vms: tuple[int, ...]

    @property
    def priority(self) -> int:
        return self.shape.traits["priority"]


def is_small(engine: Engine, shapes: Sequence[Shape]) -> bool:
    """Whether VMs of these shapes may be tried in every way."""
    size = len(shapes) * len({id(shape) for shape in shapes}) * len(engine.view.machines)
    return len(shapes) <= MOST_VMS and size <= MOST_JUDGED


def seeking(
    engine: Engine, shapes: Sequence[Shape], order: Sequence[int], seating: Seating, search: Search
) -> Steps[tuple[Step, ...]]:
    """Where all VMs of a request can be, in an order in which every rule lets them come; empty if there is no way.

    Nothing stays placed. Raises OutOfTurn once the search's turn is over.
    """
    tree = _Tree(engine, shapes, order, seating, search)
    try:
        return (yield from tree.descend())
    finally:
        tree.climb_back()
        engine.desk.close()


class _Tree:
    """The ways to place some VMs: where the search is, and where it need not go."""

    def __init__(
        self, engine: Engine, shapes: Sequence[Shape], order: Sequence[int], seating: Seating, search: Search
    ) -> None:
        alike: dict[tuple[int, str], list[int]] = {}
        for i in order:
            alike.setdefault((id(shapes[i]), seating.part_of(i).terms.set), []).append(i)
        self.engine, self.view, self.search = engine, engine.view, search
        self.kinds = [_Kind(shapes[vms[0]], seating.part_of(vms[0]), tuple(vms)) for vms in alike.values()]
        self.left = [len(kind.vms) for kind in self.kinds]
        self.path: list[tuple[int, Step]] = []  # the kind of each VM that is placed, and where
        self._labels: Labels | None = None
        self._cost = 1 + len(self.view.machines) * len(self.kinds) // JUDGED
        self._known = len(search.dead)

    def descend(self) -> Steps[tuple[Step, ...]]:
        """The way down from here to where all VMs are placed."""
        if not any(self.left):
            return tuple(step for _, step in self.path)
        if self.search.spend(self._cost) and len(self.search.dead) > self._known:  # else it would never get anywhere
            raise OutOfTurn
        yield
        for kind, machine, rung in self._branches():
            self._place(kind, machine, rung)
            state = self._state()
            if state not in self.search.dead:
                if found := (yield from self.descend()):
                    return found
                self.search.dead.add(state)
            self._take_back()
        return ()

    def climb_back(self) -> None:
        """Take back all that is placed."""
        while self.path:
            self._take_back()

    def _place(self, kind: int, machine: int, rung: int) -> None:
        each = self.kinds[kind]
        vm = each.vms[len(each.vms) - self.left[kind]]
        self.view.suppose(machine, each.shape, 1)
        self.left[kind] -= 1
        self.path.append((kind, Step(vm, machine, rung)))

    def _take_back(self) -> None:
        kind, step = self.path.pop()
        self.left[kind] += 1
        self.view.suppose(step.machine, self.kinds[kind].shape, -1)

    def _branches(self) -> Iterator[tuple[int, int, int]]:
        """A VM of which kind may come next, where, and held to which rung: of the kind with the fewest choices first.

        None if VMs of any kind have too little room left, whatever their tenant wants: more there will not be. VMs of
        a higher priority come first: what gives way to them must not be of the request itself.
        """
        choices = []
        highest = min(kind.priority for kind, left in zip(self.kinds, self.left, strict=True) if left)
        for k, kind in enumerate(self.kinds):
            if self.left[k]:
                found = self._choices(k, kind)
                if found is None:
                    return
                if kind.priority == highest:
                    choices.append((len(found), k, found))
        for _, k, found in sorted(choices, key=lambda each: each[0]):
            for machine, rung in found:
                yield k, machine, rung

    def _choices(self, k: int, kind: _Kind) -> list[tuple[int, int]] | None:
        """The machines that may have a VM of a kind, best first, one of those alike; None: too few ever will."""
        found: dict[int, tuple[int, int]] = {}  # by label
        for rung, judged in self._judged(kind):
            if rung == 0 and not self._enough(k, kind, judged.verdicts):
                return None
            valid = np.flatnonzero(judged.verdicts < 0)
            clusters = judged.cluster_keys[self.view.machines["cluster"][valid]]
            valid = valid[np.lexsort((judged.keys[valid], clusters))]
            labels = self._known_labels().now(step.machine for _, step in self.path)[valid]
            first = np.sort(np.unique(labels, return_index=True)[1])
            for label, machine in zip(labels[first].tolist(), valid[first].tolist(), strict=True):
                found.setdefault(label, (machine, rung))
        return list(found.values())

    def _judged(self, kind: _Kind) -> Iterator[tuple[int, Judgement]]:
        """What the rules say of every machine, by each rung of what the VM is held to."""
        own = kind.part.terms.set
        here = [step.machine for other, step in self.path if self.kinds[other].part.terms.set == own]
        left = sum(n for n, other in zip(self.left, self.kinds, strict=True) if other.part.terms.set == own)
        for rung, constraints in enumerate(kind.part.terms.rungs):
            self.engine.desk.open(constraints, (*kind.part.homes, *here), left)
            judged = self.engine.judge(self.view, kind.shape, self.engine.desk)
            judged.verdicts[self.engine.desk.aside] = REFUSED
            if self.engine.sparing:
                judged.verdicts[judged.keys >= self.engine.rules.last_resort] = REFUSED
            yield rung, judged

    def _enough(self, k: int, kind: _Kind, verdicts: NDArray[np.int16]) -> bool:
        """Whether the VMs of a kind have room in sum, on machines that only their tenant's rules keep them from."""
        rules = self.engine.rules
        rows = self.view.machines[(verdicts < 0) | (verdicts >= len(rules.cluster_validators) + len(rules.validators))]
        return int(amounts_fit(self.engine, kind.shape, rows).sum()) >= self.left[k]

    def _state(self) -> Hashable:
        """What is placed, the same for all that no rule can tell apart: kinds of VMs on machines in racks."""
        labels, racks = self._known_labels(), self.view.machines["rack"]
        on: dict[int, list[int]] = {}
        for kind, step in self.path:
            on.setdefault(step.machine, []).append(kind)
        in_racks: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        for machine, kinds in on.items():
            seen = int(labels.machines[machine]), tuple(sorted(kinds))
            in_racks.setdefault(int(racks[machine]), []).append(seen)
        alike = Counter((int(labels.racks[rack]), tuple(sorted(held))) for rack, held in in_racks.items())
        return frozenset(alike.items())

    def _known_labels(self) -> Labels:
        if self._labels is None:
            assert not self.path, "labels are of machines as they were before"
            self._labels = Labels(self.view, [home for kind in self.kinds for home in kind.part.homes])
        return self._labels


class Labels:
    """A number for each machine and rack, the same for those that no rule can tell apart before a request is placed."""

    def __init__(self, view: View, homes: Sequence[int]) -> None:
        """`homes`: where the tenant has VMs, so that these machines and their racks are like no others."""
        rows = copy_of(view.machines)  # not NumPy's own: that leaves what is between the fields as it was in memory
        self._rack = rows["rack"].copy()
        rows["rack"] = 0
        words = rows.view(np.uint64).reshape(len(rows), -1)
        weights = np.random.default_rng(0).integers(1, 2**63, words.shape[1], dtype=np.uint64)
        self.machines = _mixed((words * weights).sum(axis=1))
        self.machines[homes] = _mixed(np.array(homes, np.uint64) + self.machines[homes])
        self.racks = np.zeros(len(view.racks), np.uint64)
        np.add.at(self.racks, self._rack, self.machines)
        self.machines = _mixed(self.machines + self.racks[self._rack])

    def now(self, touched: Iterable[int]) -> NDArray[np.uint64]:
        """Of machines, once VMs are on some: a rack with one of them is like no other, nor are its machines."""
        racks = np.unique(self._rack[list(touched)])
        if not len(racks):
            return self.machines
        labels = self.machines.copy()
        own = np.flatnonzero(np.isin(self._rack, racks))
        labels[own] = _mixed(own.astype(np.uint64))
        return labels


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Numbers of which sums tell them apart."""
    mixed = (numbers ^ (numbers >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
    return mixed ^ (mixed >> np.uint64(29))
