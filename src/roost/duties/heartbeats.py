"""Machines that send heartbeats: one that falls silent is down, one that is heard again is what it was before.

    heartbeat ──▶ heard, just now      silent for too long ──▶ registry: silent, and what it was ──▶ down ──▶ healed
                                       heard again         ──▶ what it was ──▶ silent no longer

Each arrow is a commit of its own, asked for once the one before it is done; what fails is asked for again at the next
look.

Only machines that were heard of can fall silent, so nobody is down because a process began anew, and time in which
nobody listened counts for nothing. If most of many machines fall silent together, something is the matter with whoever
listens: then nothing is done, and `doubted` tells how many there are.

Where several processes listen, each tells the others now and then how long ago it heard of each machine, in a note of a
byte a machine (`Store.exchange`). A machine is silent if none of them has heard of it up to the time for which all have
told. Whoever cannot hear the others says of nobody that it is down, and what a process that ended had heard of may be
silent for as long again. A step that is due to tell yields, as the store may take its time; the next step takes in what
others told, and looks. Where a store is one process's own, there is nobody else to hear of.

No clock is read here: a heartbeat counts from the first step after it, which is later, never earlier.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import structlog
from numpy.typing import NDArray

from roost.agent.operation import Answer
from roost.agent.verbs.entry import SetEntry
from roost.agent.verbs.machine import SetMachine
from roost.duties.duty import Pausing, SimpleDuty
from roost.model.registry import SILENT
from roost.model.rows import MachineState
from roost.store.contract import Note

if TYPE_CHECKING:
    from roost.agent.agent import Agent

BY = "heartbeats"  # who asks, as the trail tells it
LOOKS = 4  # at the clock, in the time that a machine may be silent
MOST = 0.5  # of those that are listened to, that can fall silent within that time
MANY = 10  # machines that must be listened to before most of them are doubted: a few can well fail together
DEAF = 0.5  # of the time that a machine may be silent: after so long without a step, the store's answer included,
# nobody was listening
NOTE = "heartbeats"  # the kind of note that listeners exchange
KEPT_SECONDS = 3_600.0  # how long a note is kept at least
PARTS = 100  # of the time that a machine may be silent, that a note counts in
TOO_LONG = 255  # of these, or never

log = structlog.get_logger()


class Told(msgspec.Struct, frozen=True, array_like=True):
    """What a listener tells the others."""

    zone: int  # tells which machines the ages are of
    every: float  # seconds between two of these
    part: float  # seconds that the ages are counted in
    ages: bytes  # of each machine of the zone, in their order: how long ago it was heard of; compressed


class Other(NamedTuple):
    """Another listener."""

    since: float  # when it last told, at the earliest: what it heard of later is news
    names: Sequence[str]  # of the machines that it told of
    lately: NDArray[np.bool_]  # by machine: it had heard of it


_decoder = msgspec.msgpack.Decoder(Told)


def _read(note: bytes) -> Told | None:
    """What another told, if that can be read: it may be of another version."""
    try:
        return _decoder.decode(note)
    except msgspec.MsgspecError:
        return None


class Heartbeats(SimpleDuty):
    """Listens through an agent. Call `step` between the agent's own."""

    name, period = "heartbeats", 0.0

    def __init__(self, agent: Agent, patience: float) -> None:
        """`patience`: seconds that a machine may be silent."""
        self._agent, self._patience = agent, patience
        self._began = math.inf  # the first step
        self._names: tuple[object, int] = (None, 0)  # of the machines of which zone, in short
        self._answer: tuple[float, Mapping[str, Note]] | None = None  # when others were asked, and what they told
        self._others: dict[str, Other] = {}  # who listen
        self._new: set[str] = set()  # machines that were heard since the last step
        self._heard: dict[str, float] = {}  # by machine: when it was last heard, by anybody
        self._own: dict[str, float] = {}  # and by this process
        self._fallen: set[str] = set()  # machines that are silent, and not down yet
        self._returned: set[str] = set()  # machines that are heard again, and not yet what they were
        self._lowered: dict[str, str] = {}  # machines that this put down, and what the registry said of them then
        self._asked: set[str] = set()  # of both, those for which something is under way
        self._failed: set[str] = set()  # and those that wait for the next look, as something did not work
        self._next, self._last = 0.0, math.inf  # when to tell, and the last step
        self.doubted = 0  # machines that fell silent, but so many at once that nothing is done

    @property
    def silent(self) -> set[str]:
        """Machines that are down because they fell silent, as far as the copy knows."""
        return set(self._agent.replica.registry.of(SILENT))

    def hear(self, machines: Iterable[str]) -> list[str]:
        """These are alive; returns those that the zone does not have."""
        index, registry = self._agent.allocator.zone.machine_index, self._agent.replica.registry
        unknown = []
        for name in machines:
            if name not in index:
                unknown.append(name)
                continue
            self._new.add(name)
            self._fallen.discard(name)
            self._lowered.pop(name, None)
            if (SILENT, name) in registry:
                self._returned.add(name)
        return unknown

    def step(self, now: float) -> Pausing | None:
        """Say of machines that they are down, or back; tell others what was heard, when that is due."""
        self._began = min(self._began, now)
        if now - self._last > DEAF * self._patience:
            self._heard = dict.fromkeys(self._heard, now)
        self._last = now
        for heard in (self._heard, self._own):
            heard.update(dict.fromkeys(self._new, now))
        self._new.clear()
        if self._answer is not None:
            (asked, notes), self._answer = self._answer, None
            self._hear_others(asked, now, notes)
        ready = (self._fallen | self._returned) - self._asked - self._failed
        if ready:
            self._go_on(sorted(ready))
        return self._tell(now) if now >= self._next else None

    # -------------------------------------------------------------------------------------------- other listeners

    def _zone(self) -> int:
        """Which machines there are, in short: ages of others are only of use if they are of the same."""
        zone = self._agent.allocator.zone
        if self._names[0] is not zone:
            self._names = zone, zlib.crc32("\n".join(zone.machine_names).encode())
        return self._names[1]

    def _tell(self, now: float) -> Pausing:
        """Tell what was heard here, and hear what others told; if that cannot be, it is for the next time."""
        self._next = now + self._patience / LOOKS
        keep = max(KEPT_SECONDS, 10 * self._patience)
        notes = yield partial(self._agent.store.exchange, NOTE, self._agent.name, self._note(now), keep)
        self._answer = now, notes

    def _note(self, now: float) -> bytes:
        zone, part = self._agent.allocator.zone, self._patience / PARTS
        ages, index = bytearray([TOO_LONG]) * len(zone.machine_names), zone.machine_index
        for name, at in self._own.items():
            if (row := index.get(name)) is not None:
                ages[row] = min(TOO_LONG, int((now - at) / part))
        told = Told(self._zone(), self._patience / LOOKS, part, zlib.compress(ages, 1))
        return msgspec.msgpack.encode(told)

    def _hear_others(self, asked: float, now: float, notes: Mapping[str, Note]) -> None:
        """Take in what others heard; then look who is silent, as of the time for which all of them have told.

        The store dated the notes at some time between. Silence counts up to the earliest that this can mean, and what
        others heard from the latest.
        """
        until, others = asked, dict[str, Other]()
        for listener, note in notes.items():
            told = _read(note.value)
            if note.age > (LOOKS * told.every if told else self._patience):
                continue  # it has ended, or cannot tell
            if told is None or told.zone != self._zone():
                log.info("another listener knows other machines: no machine is said to be down", listener=listener)
                return
            until = min(until, asked - note.age)
            others[listener] = self._take_in(told, now - note.age, asked - note.age, self._others.get(listener))
        for listener in self._others.keys() - others.keys():
            self._bear_with(self._others[listener], now)
        self._others = others
        self._look(until)

    def _take_in(self, told: Told, at: float, since: float, before: Other | None) -> Other:
        """What another has heard of lately; only what is new since it last told has to be looked at one by one.

        It told between `since` and `at`.
        """
        names, ages = self._agent.allocator.zone.machine_names, np.frombuffer(zlib.decompress(told.ages), np.uint8)
        lately = self._patience if before is None else min(self._patience, at - before.since)
        for row in np.flatnonzero(ages <= lately / told.part + 1).tolist():
            name, heard = names[row], at - int(ages[row]) * told.part
            if heard > self._heard.get(name, -math.inf):
                self._heard[name] = heard
        return Other(since, names, ages * told.part <= self._patience)

    def _bear_with(self, ended: Other, now: float) -> None:
        """A service that listened has ended: the machines that it heard get their full time again to reach another."""
        for row in np.flatnonzero(ended.lately).tolist():
            if (name := ended.names[row]) in self._heard:
                self._heard[name] = now

    # ------------------------------------------------------------------------------------------------- who is silent

    def _look(self, until: float) -> None:
        """Who has been silent for too long by then? Before this began, nobody was."""
        late = {name for name, at in self._heard.items() if until - max(at, self._began) > self._patience}
        states = self._states(late)
        fallen = {name for name in late if states.get(name, MachineState.DOWN) != MachineState.DOWN}
        for name in late - fallen:  # whoever is heard again is listened to again
            self._unheard(name)
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
                self._unheard(name)
            else:
                self._returned.remove(name)
                back.append(name)
        if back:
            log.info("machines are heard again", machines=len(back), some=back[:3])

    def _falling(self, name: str, state: MachineState | None) -> SetEntry | SetMachine | None:
        """First it is written down what it was, then it is down; and that must still be written down.

        Another process may hear of it at the same time, and strike what was written before the machine is down.
        """
        if state is None:
            return None
        written, lowered = self._agent.replica.registry.get((SILENT, name)), self._lowered.get(name)
        if lowered is not None or state == MachineState.DOWN:
            struck = lowered is not None and state == MachineState.DOWN and written is None
            return SetEntry(SILENT, name, lowered) if struck else None
        value = f"{round(self._patience, 3)} {state.name.lower()}"
        if written != value:
            return SetEntry(SILENT, name, value)
        self._lowered[name] = value
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
            self._lowered.pop(name, None)

    def _unheard(self, name: str) -> None:
        """Nobody listens to a machine until it is heard again."""
        for known in (self._lowered, self._heard, self._own):
            known.pop(name, None)

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
