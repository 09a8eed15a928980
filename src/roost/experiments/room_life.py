"""A cluster's life, simulated: tenants come, grow and leave, machines and racks fail, and the service's duties heal.

draw_demand ─▶ Simulation: agent, store, duties, faults ─▶ requests, samples, healings ─▶ what is counted here
     ▲                       │
     └── who grows: someone that runs when it is time
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from roost.admission.history import ClusterHistory, ZoneHistory
from roost.agent.operation import Answer, Operation
from roost.agent.verbs.machine import SetMachine
from roost.experiments.room_demand import CLUSTER, GENERATION, OVERLOAD, Span, draw_demand, make_cluster
from roost.experiments.study import FigureValue
from roost.model.request import VM
from roost.model.spans import DAY
from roost.model.thresholds import Thresholds
from roost.placing.allocator import Allocator
from roost.sim.experiment import Experiment, Faults
from roost.sim.result import RunResult
from roost.sim.simulation import Progress, Simulation
from roost.wiring import find_policy

if TYPE_CHECKING:
    import polars as pl

# Far more fails than usual, so that there is something to count.
FAULTS = Faults(mtbf="50d", rack_mtbf="100d", repair="12h")
AT_ONCE = 60.0  # seconds after which a VM that is not healed has had to wait


class Life:
    """One run, and what it is asked afterwards."""

    def __init__(
        self,
        span: Span,
        policy: str,
        kept: Thresholds,
        load: float = OVERLOAD,
        every: float = 0.1,
        looked: Callable[[], None] = lambda: None,
    ) -> None:
        """`looked` is called at every sample after the warm-up; `every`: days between two."""
        self._span, self._looked = span, looked
        self._random = np.random.default_rng([span.seed, 9])
        self._grown: dict[int, str] = {}  # by number of a request: the type of VM that somebody asked more of
        self._empty: list[int] = []  # machines, as thresholds count them, at each sample
        self._down: dict[str, float] = {}  # since when, of machines that are
        self._outages: list[tuple[float, float]] = []
        self.zone = make_cluster(span.machines, kept)
        experiment = Experiment(
            name="room",
            workload="growing",
            zone="cluster",
            faults=FAULTS,
            warm_up=span.warm_up * DAY,
            until=span.days * DAY,
            sample=every * DAY,
            checkpoint=0,  # what is counted here would not be in it
        )
        self._workload = draw_demand(span, self.zone, load, self._grow)
        self.simulation = Simulation(
            experiment, policy, span.seed, self._workload, self.zone, find_policy,
            witness=self._hear, onlooker=self._look,
        )  # fmt: skip

    @property
    def allocator(self) -> Allocator:
        """What decides; there is one agent, and it knows of everything at once."""
        return self.simulation.crew.workers[0].agent.allocator

    def run(self, tell: Progress) -> RunResult:
        """To the end."""
        result = self.simulation.run(tell)
        asked = result.requests
        self._asked = asked.filter((asked["request"] >= 0) & (asked["time_s"] >= self._span.warm_up * DAY))
        return result

    # ------------------------------------------------------------------------------------------ while it goes on

    def _grow(self, number: int) -> tuple[str, VM]:
        """Some tenant asks for more of what it has."""
        tenants = self.allocator.tenants
        tenant = list(tenants)[int(self._random.integers(len(tenants)))]
        vm = next(iter(tenants[tenant].vms.values())).vm
        self._grown[number] = vm.type
        return tenant, VM(vm.type)

    def _hear(self, operation: Operation, answer: Answer) -> None:
        """Note when machines are down."""
        now = self.simulation.clock.now
        if isinstance(operation, SetMachine) and answer.ok:
            if operation.state == "down":
                self._down[operation.machine] = now
            else:
                self._outages.append((self._down.pop(operation.machine), now))

    def _look(self) -> None:
        if self.simulation.clock.now >= self._span.warm_up * DAY:
            self._empty.append(self.empty)
            self._looked()

    @property
    def empty(self) -> int:
        """Machines that are empty just now, as thresholds count them: those that are down do not count."""
        return int(self.allocator.view.clusters[0]["empty"][0])

    # ------------------------------------------------------------------------------------------------ afterwards

    def measured(self, result: RunResult) -> dict[str, FigureValue]:
        """What came of it after the warm-up."""
        grew, new = self._requests(growing=True), self._requests(growing=False)
        failed = grew.filter(grew["status"] != "placed")
        faults, days = self.simulation.tracker.faults, self._span.days - self._span.warm_up
        at_once = sum(seconds <= AT_ONCE for seconds in faults.seconds)
        return {
            "seed": self._span.seed,
            "utilisation": result.summary["utilisation"],
            "empty": float(np.mean(self._empty)),
            "scale_outs": len(grew),
            "scale_out_failures": len(failed) / max(1, len(grew)),
            "bad_days": (failed["time_s"] // DAY).n_unique() / days,
            "healings": faults.displaced,
            "healing_failures": (faults.displaced - at_once) / max(1, faults.displaced),
            "never_healed": (faults.displaced - faults.healed - faults.returned) / max(1, faults.displaced),
            "new_refused": int((new["status"] != "placed").sum()) / max(1, len(new)),
        }

    def _requests(self, *, growing: bool) -> pl.DataFrame:
        """Those that were answered after the warm-up: scale-outs, or those of new tenants."""
        return self._asked.filter(self._asked["request"].is_in(list(self._grown)) == growing)

    def history(self) -> ZoneHistory:
        """What a store would remember of it: outages, and how much of machines tenants grew by."""
        since, until = self._span.warm_up * DAY, self._span.days * DAY
        outages = [*self._outages, *((began, until) for began in self._down.values())]
        grew = self._requests(growing=True)
        placed = grew.filter(grew["status"] == "placed")
        cluster = ClusterHistory(
            cluster=CLUSTER,
            generation=GENERATION,
            machines=self._span.machines,
            outages=[(max(since, began), ended) for began, ended in outages if ended > since],
            growth=[
                (at, [self._share(self._grown[number])] * vms)
                for number, at, vms in placed.select("request", "time_s", "vms").iter_rows()
            ],
        )
        return ZoneHistory(since=since, until=until, clusters=[cluster])

    def _share(self, vm_type: str) -> float:
        """What a VM takes of a machine: of the resource of which it takes most."""
        zone = self.zone
        demand = zone.demand[zone.vm_type(vm_type), zone.generation_index[GENERATION]]
        return float((demand / zone.machines["capacity"][0]).max())
