"""The VMs on each machine. All of a zone are taken over at once; they are looked up when their machine is asked for."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection

    from roost.placing.books import RunningVM

There = dict[int, "RunningVM"]  # by identity: for a while two tenants may have VMs of the same name


class ByMachine:
    """VMs by the row of their machine, in the order in which they came."""

    def __init__(self) -> None:
        self._there: dict[int, There] = {}
        # Of machines that nobody has asked for: VMs in the order of machines, and where those of each begin.
        self._stock: list[Any] = []
        self._begins = [0]

    def stock(self, vms: Collection[RunningVM]) -> None:
        """Take over all these; there are none so far."""
        machines = np.fromiter(map(attrgetter("machine"), vms), np.int64, len(vms))
        # Sorted with their places, VMs of a machine stay in order; that is faster than a sort that keeps the order.
        order = np.sort(machines * len(vms) + np.arange(len(vms))) % max(len(vms), 1)
        self._stock = np.fromiter(vms, object, len(vms))[order].tolist()
        self._begins = [0, *np.cumsum(np.bincount(machines)).tolist()]

    def on(self, machine: int) -> There:
        """Those on a machine. Whoever changes it changes what is there."""
        if (there := self._there.get(machine)) is None:
            begins = self._begins
            here = slice(begins[machine], begins[machine + 1]) if machine + 1 < len(begins) else slice(0)
            there = self._there[machine] = {id(vm): vm for vm in self._stock[here]}
            self._stock[here] = [None] * len(there)  # one that is struck is not to be kept here
        return there
