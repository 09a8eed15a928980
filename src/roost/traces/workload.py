"""A workload: who asks for which VMs when, and how long they stay. Whatever its source, it has this one form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from roost.model.request import VM, Constraints, Request

if TYPE_CHECKING:
    from numpy.typing import NDArray

ANY = ""  # in the demand of a type: on hardware of every generation


@dataclass(frozen=True)
class WorkloadType:
    """A size of VM that a workload asks for. Without a demand, the zone has to know it by name."""

    name: str
    demand: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # by generation, or ANY: of each resource


@dataclass(frozen=True)
class Workload:
    """Requests in the order of their arrival, and the VMs of each; one entry of the columns per VM.

    Times are in seconds from the beginning of the workload.
    """

    name: str
    types: Sequence[WorkloadType]
    resources: Sequence[str]  # that the demands are of, in the units people write them in: cores, memory in GiB, …
    arrival: NDArray[np.float64]  # by request, never falling
    first: NDArray[np.int64]  # by request, the number of its first VM; one more at the end
    type: NDArray[np.int32]  # by VM, which of `types`
    lifetime: NDArray[np.float64]  # by VM; infinite: it stays
    tenants: Sequence[str]  # by request
    priority: NDArray[np.int8]  # by VM, which of `priorities`
    priorities: Sequence[str] = ("",)  # bands of the zone; empty: its highest
    constraints: Mapping[int, Constraints] = field(default_factory=dict)  # by request, of those that have any
    requeue: bool = False  # VMs that had to give way are to be placed again
    source: str = ""  # where it comes from, whom to name
    skipped: Mapping[str, int] = field(default_factory=dict)  # rows that were left out when it was read, by reason
    notice: str = ""  # what else was done to it then, and whoever uses it should know

    @property
    def requests(self) -> int:
        """How many there are."""
        return len(self.arrival)

    @property
    def vms(self) -> int:
        """How many are asked for."""
        return len(self.type)

    @property
    def span(self) -> float:
        """Seconds from the beginning to the last arrival."""
        return float(self.arrival[-1]) if len(self.arrival) else 0.0

    @property
    def sizes(self) -> NDArray[np.int64]:
        """VMs of each request."""
        return np.diff(self.first)

    @cached_property
    def arrival_of_vms(self) -> NDArray[np.float64]:
        """When each VM is asked for."""
        return np.repeat(self.arrival, self.sizes)

    def amounts(self, resource: str) -> NDArray[np.float64]:
        """What each VM takes of a resource: the most it takes on any hardware."""
        at = self.resources.index(resource)
        largest = [max((d[at] for d in t.demand.values()), default=0.0) for t in self.types]
        return np.array(largest, np.float64)[self.type]

    def request(self, number: int) -> Request:
        """A request as an allocator takes it."""
        first, kind, kinds = self.first, self._kind_of_vms, self._kinds
        low, high = first.item(number), first.item(number + 1)
        if high == low + 1:  # as nearly always
            vms: tuple[VM, ...] = (kinds[kind.item(low)],)
        else:
            vms = tuple([kinds[each] for each in kind[low:high].tolist()])
        return Request(self.tenants[number], vms, self.constraints.get(number))

    @cached_property
    def _kinds(self) -> list[VM]:
        """The VMs that differ: of each type, one for each priority."""
        return [
            VM(kind.name, priority=priority, requeue=self.requeue)
            for kind in self.types
            for priority in self.priorities
        ]

    @cached_property
    def _kind_of_vms(self) -> NDArray[np.int32]:
        """Which of these each VM is."""
        found: NDArray[np.int32] = self.type * np.int32(len(self.priorities)) + self.priority
        return found
