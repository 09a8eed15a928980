"""Machines that send heartbeats: one that falls silent is down, one that is heard again is what it was before.

    heartbeat ──▶ heard, just now      silent for too long ──▶ registry: silent, and what it was ──▶ down ──▶ healed
                                       heard again         ──▶ what it was ──▶ silent no longer

Each arrow is a commit of its own, asked for once the one before it is done; what fails is asked for again at the next
look.

Only machines that were heard of by this process can fall silent, so nobody is down because a process began anew, and
time in which nobody listened counts for nothing. If most of many machines fall silent together, something is the matter
with whoever listens: then nothing is done, and `doubted` tells how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import structlog

from roost.agent.operation import Answer, SetEntry, SetMachine
from roost.model.rows import MachineState

if TYPE_CHECKING:
    from roost.agent.agent import Agent

SILENT = "silent"  # in the registry, by machine: it is down as it was silent, for so many seconds, and what it was
BY = "heartbeats"  # who asks, as the trail tells it
LOOKS = 4  # at the clock, in the time that a machine may be silent
MOST = 0.5  # of those that are listened to, that can fall silent within that time
MANY = 10  # machines that must be listened to before most of them are doubted: a few can well fail together
DEAF = 0.5  # of the time that a machine may be silent: after so long without a step, nobody was listening

log = structlog.get_logger()


class Heartbeats:
    """Listens through an agent. Call `step` between the agent's own."""

    def __init__(self, agent: Agent, clock: Callable[[], float], patience: float) -> None:
        """`patience`: seconds that a machine may be silent."""
        self._agent, self._clock, self._patience = agent, clock, patience
        self._heard: dict[str, float] = {}  # by machine: when it was last heard
        self._fallen: set[str] = set()  # machines that are silent, and not down yet
        self._returned: set[str] = set()  # machines that are heard again, and not yet what they were
        self._asked: set[str] = set()  # of both, those for which something is under way
        self._failed: set[str] = set()  # and those that wait for the next look, as something did not work
        self._next, self._last = 0.0, clock()  # look, and step
        self.doubted = 0  # machines that fell silent, but so many at once that nothing is done

    @property
    def silent(self) -> set[str]:
        """Machines that are down because they fell silent, as far as the copy knows."""
        return set(self._agent.replica.registry.of(SILENT))

    def hear(self, machines: Iterable[str]) -> list[str]:
        """These are alive; returns those that the zone does not have."""
        index, registry, now = self._agent.allocator.zone.machine_index, self._agent.replica.registry, self._clock()
        unknown = []
        for name in machines:
            if name not in index:
                unknown.append(name)
                continue
            self._heard[name] = now
            self._fallen.discard(name)
            if (SILENT, name) in registry:
                self._returned.add(name)
        return unknown

    def step(self) -> None:
        """Say of machines that they are down, or back."""
        now = self._clock()
        if now - self._last > DEAF * self._patience:
            self._heard = dict.fromkeys(self._heard, now)
        self._last = now
        if now >= self._next:
            self._next = now + self._patience / LOOKS
            self._look(now)
        ready = (self._fallen | self._returned) - self._asked - self._failed
        if ready:
            self._go_on(sorted(ready))

    def _look(self, now: float) -> None:
        """Who has been silent for too long by now?"""
        late = {name for name, at in self._heard.items() if now - at > self._patience}
        states = self._states(late)
        fallen = {name for name in late if states.get(name, MachineState.DOWN) != MachineState.DOWN}
        for name in late - fallen:  # whoever is heard again is listened to again
            del self._heard[name]
        self._doubt(len(fallen))
        if self.doubted:
            fallen = set()
        if new := sorted(fallen - self._fallen):
            log.warning("machines fell silent", machines=len(new), some=new[:3])
        self._fallen = fallen
        self._returned -= late
        self._failed.clear()

    def _doubt(self, fallen: int) -> None:
        """Is it the machines, or whoever listens?"""
        listened = len(self._heard)
        doubtful = listened >= MANY and fallen > MOST * listened
        if doubtful and not self.doubted:
            log.error("most machines fell silent at once: nothing is done", silent=fallen, of=listened)
        self.doubted = fallen if doubtful else 0

    def _go_on(self, names: list[str]) -> None:
        """Ask for the next thing that each of these machines needs."""
        states, back = self._states(names), []
        for name in names:
            state, falls = states.get(name), name in self._fallen
            operation = self._falling(name, state) if falls else self._returning(name, state)
            if operation is not None:
                self._asked.add(name)
                self._agent.submit(operation, done=partial(self._answered, name), by=BY)
            elif falls:  # whatever somebody says of it from now on holds until it is heard again
                self._fallen.remove(name)
                del self._heard[name]
            else:
                self._returned.remove(name)
                back.append(name)
        if back:
            log.info("machines are heard again", machines=len(back), some=back[:3])

    def _falling(self, name: str, state: MachineState | None) -> SetEntry | SetMachine | None:
        """First it is written down what it was, then it is down."""
        if state is None or state == MachineState.DOWN:
            return None
        value = f"{round(self._patience, 3)} {state.name.lower()}"
        if self._agent.replica.registry.get((SILENT, name)) != value:
            return SetEntry(SILENT, name, value)
        return SetMachine(name, state="down")

    def _returning(self, name: str, state: MachineState | None) -> SetEntry | SetMachine | None:
        """First it is what it was, unless somebody has said otherwise meanwhile; then it is silent no longer."""
        value = self._agent.replica.registry.get((SILENT, name))
        if value is None:
            return None
        if state == MachineState.DOWN:
            return _restoring(name, value)
        return SetEntry(SILENT, name, None)

    def _answered(self, name: str, answer: Answer) -> None:
        self._asked.discard(name)
        if not answer.ok:
            self._failed.add(name)

    def _states(self, names: Iterable[str]) -> dict[str, MachineState]:
        """Of those of them that the zone has."""
        index, rows = self._agent.allocator.zone.machine_index, self._agent.replica.view.machines
        return {name: MachineState(rows[index[name]]["state"]) for name in names if name in index}


def _restoring(name: str, value: str) -> SetMachine:
    """A machine becomes what it was before it fell silent; entries of earlier versions do not say, and mean ready."""
    was = value.partition(" ")[2]
    if was == "quarantined":
        return SetMachine(name, state="quarantined")
    return SetMachine(name, state="draining" if was == "draining" else "ready")
