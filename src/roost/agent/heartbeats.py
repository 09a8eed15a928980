"""Machines that send heartbeats: one that falls silent is down, one that is heard again is ready.

    heartbeat ──▶ heard, just now          silent for too long ──▶ registry: silent, and down ──▶ its VMs are healed
                                           heard again         ──▶ ready, and silent no longer

Only machines that were heard of by this process can fall silent, so nobody is down because a process began anew. If
most of them fall silent together, something is the matter with whoever listens: then nothing is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import structlog

from roost.agent.operation import SetEntry, SetMachine
from roost.model.rows import MachineState

if TYPE_CHECKING:
    from roost.agent.agent import Agent

SILENT = "silent"  # in the registry, by machine: it is down as it was silent, for so many seconds
BY = "heartbeats"  # who asks, as the trail tells it
LOOKS = 4  # at the clock, in the time that a machine may be silent
MOST = 0.5  # of those that are listened to, that can fall silent within that time

log = structlog.get_logger()


class Heartbeats:
    """Listens through an agent. Call `step` between the agent's own."""

    def __init__(self, agent: Agent, clock: Callable[[], float], patience: float) -> None:
        """`patience`: seconds that a machine may be silent."""
        self._agent, self._clock, self._patience = agent, clock, patience
        self._heard: dict[str, float] = {}  # by machine: when it was last heard
        self._returned: set[str] = set()  # machines that are heard again, and that nobody has been asked to set ready
        self._next = 0.0
        self._suspicious = False

    @property
    def silent(self) -> set[str]:
        """Machines that are down because they fell silent, as far as the copy knows."""
        return {name for kind, name in self._agent.replica.registry if kind == SILENT}

    def hear(self, machines: Iterable[str]) -> list[str]:
        """These are alive; returns those that the zone does not have."""
        index, registry, now = self._agent.allocator.zone.machine_index, self._agent.replica.registry, self._clock()
        unknown = []
        for name in machines:
            if name not in index:
                unknown.append(name)
                continue
            self._heard[name] = now
            if (SILENT, name) in registry:
                self._returned.add(name)
        return unknown

    def step(self) -> None:
        """Say of machines that they are down, or back."""
        if self._returned:
            self._bring_back()
        now = self._clock()
        if now >= self._next:
            self._next = now + self._patience / LOOKS
            self._look(now)

    def _bring_back(self) -> None:
        returned, self._returned = sorted(self._returned), set()
        states = self._states(returned)
        for name in returned:
            if states.get(name) == MachineState.DOWN:
                self._agent.submit(SetMachine(name, state="ready"), by=BY)
            self._agent.submit(SetEntry(SILENT, name, None), by=BY)
        log.info("machines are heard again", machines=len(returned), some=returned[:3])

    def _look(self, now: float) -> None:
        late = sorted(name for name, at in self._heard.items() if now - at > self._patience)
        states = self._states(late)
        fallen = [name for name in late if states.get(name, MachineState.DOWN) != MachineState.DOWN]
        suspicious = len(fallen) > MOST * len(self._heard)
        if suspicious and not self._suspicious:
            log.error("most machines fell silent at once: nothing is done", silent=len(fallen), of=len(self._heard))
        self._suspicious = suspicious
        if suspicious:
            return
        for name in late:  # whoever is heard again is listened to again
            del self._heard[name]
        for name in fallen:
            self._agent.submit(SetEntry(SILENT, name, str(round(self._patience, 3))), by=BY)
            self._agent.submit(SetMachine(name, state="down"), by=BY)
        if fallen:
            log.warning("machines fell silent", machines=len(fallen), some=fallen[:3])

    def _states(self, names: Iterable[str]) -> dict[str, MachineState]:
        """Of those of them that the zone has."""
        index, rows = self._agent.allocator.zone.machine_index, self._agent.replica.view.machines
        return {name: MachineState(rows[index[name]]["state"]) for name in names if name in index}
