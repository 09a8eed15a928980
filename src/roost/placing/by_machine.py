"""The VMs on each machine, in the order in which they came."""

from __future__ import annotations

from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from roost.placing.books import RunningVM


class ByMachine:
    """VMs by the row of their machine. For a while two may have one name, so identity tells them apart."""

    def __init__(self) -> None:
        self._there: defaultdict[int, list[Any]] = defaultdict(list)

    def stock(self, vms: Collection[RunningVM]) -> None:
        """Take over all these; there are none so far."""
        machines = np.fromiter(map(attrgetter("machine"), vms), np.int64, len(vms))
        # Sorted with their places, VMs of a machine stay in order; that is faster than a sort that keeps the order.
        order = np.sort(machines * len(vms) + np.arange(len(vms))) % max(len(vms), 1)
        by_machine = np.fromiter(vms, object, len(vms))[order].tolist()
        ends = np.cumsum(np.bincount(machines)).tolist()
        for machine, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
            if begin < end:
                self._there[machine] = by_machine[begin:end]

    def has(self, vm: RunningVM) -> bool:
        """Whether it is on its machine."""
        return any(each is vm for each in self.on(vm.machine))

    def enter(self, vm: RunningVM) -> None:
        """It is on its machine from now on; it was not before."""
        self._there[vm.machine].append(vm)

    def strike(self, vm: RunningVM) -> None:
        """It is on its machine no longer, if it was."""
        there = self._there[vm.machine]
        for place, each in enumerate(there):
            if each is vm:
                del there[place]
                return

    def on(self, machine: int) -> Sequence[RunningVM]:
        """Those on a machine."""
        return self._there.get(machine, ())
