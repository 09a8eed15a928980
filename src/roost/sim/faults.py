"""What happens to machines in a run: they fail, alone or by the rack, are repaired, and are maintained.

Only machines are told of here. What becomes of the VMs on them is the duty of the healer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from roost.agent.operation import Answer
from roost.agent.verbs.machine import SetMachine
from roost.model.errors import InvariantBroken
from roost.model.rows import MachineState
from roost.model.zone import Zone
from roost.sim.crew import Crew
from roost.sim.events import DRAIN, FAIL, FAIL_RACK, OUTAGE, REPAIR, RESUME, Events
from roost.sim.experiment import Faults, seconds
from roost.sim.tracker import Tracker
from roost.sim.virtual import Clock, SimulatedWorker

READY, DOWN, DRAINING = (int(MachineState[name]) for name in ("READY", "DOWN", "DRAINING"))
UP = [int(state) for state in MachineState if state != DOWN]


class FaultInjector:
    """Lets machines fail as an experiment says, and has the store told."""

    def __init__(
        self,
        faults: Faults,
        zone: Zone,
        clock: Clock,
        events: Events,
        crew: Crew,
        tracker: Tracker,
        random: np.random.Generator,
        warm_up: float,
    ) -> None:
        self._faults, self._zone, self._clock, self._events = faults, zone, clock, events
        self._crew, self._tracker, self._warm_up, self.random = crew, tracker, warm_up, random
        self._mtbf = seconds(faults.mtbf or 0.0, "faults.mtbf") / len(zone.machines)  # of any machine
        self._rack_mtbf = seconds(faults.rack_mtbf or 0.0, "faults.rack_mtbf") / len(zone.racks)
        self._repair = seconds(faults.repair, "faults.repair")
        self._maintenance: list[tuple[float, float, list[int]]] = []  # from, to, machines
        self.state = zone.machines["state"].astype(int).tolist()  # of each machine, as it is
        self.broken = [0] * len(self.state)  # outages that each is in

    def begin(self) -> None:
        """Plan what is known beforehand, and the first of what is drawn."""
        if self._mtbf:
            self._draw_next(self._mtbf, FAIL)
        if self._rack_mtbf:
            self._draw_next(self._rack_mtbf, FAIL_RACK)
        for outage in self._faults.outages:
            machines = machines_of(self._zone, outage.rack, outage.cluster, outage.machine)
            self.plan(seconds(outage.at, "outages.at"), machines, seconds(outage.lasts, "outages.lasts"))
        for each in self._faults.maintenance:
            start, lasts = seconds(each.at, "maintenance.at"), seconds(each.lasts, "maintenance.lasts")
            machines = self._some(each.share) if each.share else machines_of(self._zone, cluster=each.cluster)
            self._maintenance.append((start, start + lasts, machines))
            self._events.at(start, DRAIN, machines)
            self._events.at(start + lasts, RESUME, machines)

    def plan(self, at: float, machines: Sequence[int], lasts: float) -> None:
        """Let machines fail then, for so long."""
        self._events.at(at, OUTAGE, (machines, lasts))

    def _draw_next(self, mean: float, what: int) -> None:
        self._events.after(float(self.random.exponential(mean)), what)

    def _some(self, share: float) -> list[int]:
        machines = len(self.state)
        return sorted(self.random.choice(machines, max(1, round(share * machines)), replace=False).tolist())

    @property
    def handlers(self) -> dict[int, Callable[[Any], None]]:
        """What is done about each event."""
        return {
            FAIL: self._fail,
            FAIL_RACK: self._fail_rack,
            OUTAGE: self._begin_outage,
            REPAIR: self._end_outage,
            DRAIN: self._drain,
            RESUME: self._resume,
        }

    # ------------------------------------------------------------------------------------------------- failures

    def _fail(self, _: None) -> None:
        """Some machine fails, unless it is down already."""
        self._draw_next(self._mtbf, FAIL)
        machine = int(self.random.integers(len(self.state)))
        if self.state[machine] != DOWN:
            self._begin_outage(([machine], float(self.random.exponential(self._repair))))

    def _fail_rack(self, _: None) -> None:
        """All machines of some rack fail."""
        self._draw_next(self._rack_mtbf, FAIL_RACK)
        rack = int(self.random.integers(len(self._zone.racks)))
        machines = np.flatnonzero(self._zone.machines["rack"] == rack).tolist()
        self._begin_outage((machines, float(self.random.exponential(self._repair))))

    def _begin_outage(self, outage: tuple[Sequence[int], float]) -> None:
        """Machines fail together: one agent hears of all of them at once."""
        machines, lasts = outage
        failing = [machine for machine in machines if self.state[machine] != DOWN]
        self._tracker.faults.failures += len(failing) if self._clock.now >= self._warm_up else 0
        self._tracker.down += len(failing)
        for machine in machines:
            self.broken[machine] += 1
        self._set_states(failing, DOWN)
        self._events.after(lasts, REPAIR, list(machines))

    def _end_outage(self, machines: Sequence[int]) -> None:
        """An outage is over; a machine that is in another one stays down."""
        for machine in machines:
            self.broken[machine] -= 1
        back = [machine for machine in machines if not self.broken[machine]]
        for state in UP:  # what the zone has down by itself was never counted, and stays so
            again = [machine for machine in back if self._state_but_for_failures(machine) == state]
            self._tracker.down -= len(again)
            self._set_states(again, state)

    # ---------------------------------------------------------------------------------------------- maintenance

    def _state_but_for_failures(self, machine: int) -> int:
        """By what the zone says, or whether it is maintained just now."""
        now, usual = self._clock.now, int(self._zone.machines["state"][machine])
        maintained = any(start <= now < end and machine in machines for start, end, machines in self._maintenance)
        return DRAINING if maintained and usual == READY else usual

    def _drain(self, machines: Sequence[int]) -> None:
        self._set_states([machine for machine in machines if self.state[machine] == READY], DRAINING)

    def _resume(self, machines: Sequence[int]) -> None:
        for machine in machines:
            if self.state[machine] == DRAINING and (state := self._state_but_for_failures(machine)) != DRAINING:
                self._set_states([machine], state)

    # -------------------------------------------------------------------------------------------------- telling

    def _set_states(self, machines: Sequence[int], state: int) -> None:
        if machines:
            worker = self._crew.least_busy()
            for machine in machines:
                self.state[machine] = state
                self._tell(machine, state, worker)

    def _tell(self, machine: int, state: int, worker: SimulatedWorker) -> None:
        name: Any = MachineState(state).name.lower()
        told = partial(self._told, machine, state)
        self._crew.submit(SetMachine(self._zone.machine_names[machine], state=name), told, worker)

    def _told(self, machine: int, state: int, answer: Answer) -> None:
        """The store knows of a state; if another agent was quicker to tell of a later one, that is told again."""
        if not answer.ok:
            raise InvariantBroken(f"{answer.key}: {answer.detail}")
        if self.state[machine] != state:
            self._tell(machine, self.state[machine], self._crew.least_busy())


def machines_of(zone: Zone, rack: str = "", cluster: str = "", machine: str = "") -> list[int]:
    """The rows of a rack, a cluster or a machine."""
    if machine:
        return [zone.machine(machine)]
    if rack:
        return np.flatnonzero(zone.machines["rack"] == zone.rack_names.index(rack)).tolist()
    return np.flatnonzero(zone.machines["cluster"] == zone.cluster(cluster)).tolist()
