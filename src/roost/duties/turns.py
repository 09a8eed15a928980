"""Whose turn it is to be tried again, of VMs that found no machine: what it costs does not grow with how many they are.

    put ──▶ line of those that ask for the same ──▶ something changed in clusters where they may go
                 ▲                                        │
                 │                                any machine for such a VM? ── no ──▶ nobody of the line is tried
                 │                                        │ yes
                 └──── found none ◀── tried, one by one, the highest priority first ──▶ under way

Those of a line that want nothing else share one fate: if the first finds no machine, no other does. Whoever wants more
(its tenant has constraints) is tried by itself, and after each try in vain it waits twice as long, up to
`LONGEST_PAUSE`; unless something opened, or its own tenant has changed: then its turn is at once. All tries in vain
together take no more than a share of the time (`SHARE`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from roost.agent.relief import latest
from roost.model.errors import RoostError
from roost.model.request import VM

if TYPE_CHECKING:
    from roost.agent.agent import Agent
    from roost.agent.operation import Operation

LONGEST_PAUSE = 60.0  # seconds between two tries of what keeps failing
SHARE = 0.02  # of the time, that tries in vain may take
SAVED = 1.0  # seconds of which the share can be used at once
LEAST = 0.000_2  # seconds that a try in vain counts for, however fast it was
AT_ONCE = 64  # that are asked for in one step

Result = Literal["asked", "none", "gone"]  # it is under way; it found no machine; it is not to be tried at all
Attempt = Callable[[str], Result]
Order = tuple[Any, ...]  # who comes first: a band, and more

_encode = msgspec.json.Encoder().encode


def finds_none(agent: Agent, operation: Operation, key: str = "") -> bool:
    """Whether an operation would find no machine now, for all that the copy knows. What is wrong else, asking tells."""
    ticket, proposal = agent.rehearse(operation, key)
    return proposal is not None and proposal.declines and not ticket.unfinished


class Turn(msgspec.Struct, eq=False):
    """Somebody who is tried by itself."""

    name: str
    tenant: str
    line: WaitingLine
    pause: float = 0.0  # seconds
    next: float = 0.0  # when


class WaitingLine(msgspec.Struct, eq=False):
    """Those that ask for the same."""

    specs: Sequence[VM]  # of each of them; mostly one
    arm: int  # which of the policies decides
    band: int
    clusters: NDArray[np.intp]  # where they may go
    alike: dict[str, Order] = {}  # those that want nothing else
    queue: list[tuple[Order, str]] = []  # of these, a heap; some are gone by now
    odd: dict[str, Turn] = {}  # those that are tried by themselves
    coming: list[tuple[float, int, Turn]] = []  # of these, a heap by time; some are otherwise by now
    resting: list[Turn] = []  # of these, those that were tried since room was freed
    freed: int = -1  # what was known of relief at the last look
    opened: int = -1
    fits: bool = False  # there was a machine for such a VM, then
    next: float = 0.0  # when to look again at the earliest

    def __bool__(self) -> bool:
        return bool(self.alike or self.odd)


class Turns:
    """Says whom to try. Whoever asks is told what came of it, and puts in and takes out."""

    def __init__(self, agent: Agent, clock: Callable[[], float]) -> None:
        """`clock`: the one that steps go by; it measures what tries in vain take, and when answers come."""
        self._agent, self._clock = agent, clock
        self._numbers = count()  # ties between turns are broken by who came first
        self._budget, self._filled = SHARE * SAVED, math.inf
        self.clear()

    def clear(self) -> None:
        """Nobody waits. Whoever still does is to be put in anew: the copy or the policy is another."""
        self._lines: dict[tuple[int, tuple[bytes, ...]], WaitingLine] = {}  # by policy, and by what they ask for
        self._where: dict[str, WaitingLine] = {}
        self._tenants: dict[str, dict[str, Turn]] = {}
        self._heard = self._agent.replica.relief.count

    def __contains__(self, name: str) -> bool:
        return name in self._where

    @property
    def at_rest(self) -> bool:
        """Whether nobody has its turn, now or later, unless something changes."""
        relief = self._agent.replica.relief
        if relief.count != self._heard and self._tenants:
            return False
        return not any(
            (line.fits and line.coming) or line.freed < max(0, latest(relief.freed, line.clusters))
            for line in self._lines.values()
            if line
        )

    # ------------------------------------------------------------------------------------------- in and out

    def put(self, name: str, specs: Iterable[VM], order: Order, tenant: str, *, alike: bool, tried: int = -1) -> None:
        """Somebody waits. `order`: its band, and what comes after that; `alike`: it wants nothing but a machine.

        `tried`: it was, when there had been so much relief.
        """
        self.drop(name)
        line = self._line(specs, int(order[0]), tenant, tried)
        self._where[name] = line
        if alike:
            known = bool(line.alike)
            line.alike[name] = order
            heapq.heappush(line.queue, (order, name))
            if tried < 0 and not known:
                line.freed, line.next = -1, 0.0
            return
        turn = line.odd[name] = Turn(name, tenant, line)
        self._tenants.setdefault(tenant, {})[name] = turn
        if tried >= max(line.freed, 0):
            line.resting.append(turn)
        else:
            self._come(turn, 0.0)

    def drop(self, name: str) -> None:
        """Somebody waits no longer."""
        line = self._where.pop(name, None)
        if line is None:
            return
        line.alike.pop(name, None)
        if turn := line.odd.pop(name, None):
            del self._tenants[turn.tenant][name]
            if not self._tenants[turn.tenant]:
                del self._tenants[turn.tenant]

    def again(self, name: str, pause: float = 0.0) -> None:
        """What was under way came to nothing, for another reason than room: its turn is after a pause."""
        line = self._where.get(name)
        if line is None:
            return
        if name in line.alike:
            heapq.heappush(line.queue, (line.alike[name], name))
            line.freed, line.next = -1, self._clock() + pause
        else:
            self._come(line.odd[name], self._clock() + pause)

    def _line(self, specs: Iterable[VM], band: int, tenant: str, tried: int) -> WaitingLine:
        asked = {}
        for spec in specs:
            plain = msgspec.structs.replace(spec, name="", isolated=False, requeue=False, set="")
            asked[_encode(plain)] = plain
        arm = self._agent.split.arm_of(tenant)
        key = arm, tuple(sorted(asked))
        if (line := self._lines.get(key)) is None:
            clusters = np.flatnonzero(np.logical_or.reduce([self._may_go(vm) for vm in asked.values()]))
            line = self._lines[key] = WaitingLine(list(asked.values()), arm, band, clusters, freed=tried, opened=tried)
        return line

    def _may_go(self, vm: VM) -> NDArray[np.bool_]:
        """The clusters that can have a VM at all; what is not known here is for whoever tries to say."""
        zone = self._agent.allocator.zone
        clusters = zone.clusters
        if (kind := zone.vm_type_index.get(vm.type)) is None:
            return np.ones(len(clusters), np.bool_)
        found: NDArray[np.bool_] = zone.supported[kind][clusters["generation"]] > 0
        if vm.cluster in zone.cluster_names:
            found &= np.arange(len(clusters)) == zone.cluster(vm.cluster)
        if vm.generation in zone.generation_index:
            found &= clusters["generation"] == zone.generation_index[vm.generation]
        if vm.datacenter in zone.datacenters:
            found &= clusters["datacenter"] == zone.datacenters.index(vm.datacenter)
        return found

    # ---------------------------------------------------------------------------------------------- trying

    def step(self, now: float, patience: float, attempt: Attempt) -> int | None:
        """Try whoever may find a machine by now; lines in which nothing was found are looked at after `patience`.

        Where there may be room for another like one that found some, lower priorities wait for that: else they would
        come and go. Returns the band for which they do.
        """
        if not self._where:
            return None
        self._budget = min(SHARE * SAVED, self._budget + SHARE * max(0.0, now - self._filled))
        self._filled = now
        self._hear(now)
        held_back: int | None = None
        left = AT_ONCE
        for line in self._ready(now):
            if self._budget <= 0 or left <= 0 or (held_back is not None and line.band > held_back):
                break
            asked, more = self._serve(line, now, patience, attempt)
            left -= asked
            if more:
                held_back = line.band
        return held_back

    def _hear(self, now: float) -> None:
        """Whose tenant has changed has its turn at once."""
        relief = self._agent.replica.relief
        if relief.count == self._heard:
            return
        if self._tenants:
            changed = relief.tenants(self._heard)
            for tenant in self._tenants if changed is None else self._tenants.keys() & changed:
                for turn in self._tenants[tenant].values():
                    self._come_at_once(turn, now)
        self._heard = relief.count

    def _ready(self, now: float) -> list[WaitingLine]:
        """The lines of which somebody may have its turn, the highest priority first; those of nobody are no more.

        Lines of one priority come in an order of their own, not in the one in which they were made: that depends on how
        often was looked, and decisions must not.
        """
        relief = self._agent.replica.relief
        for key in [key for key, line in self._lines.items() if not line]:
            del self._lines[key]
        found = []
        for key, line in self._lines.items():
            due = line.fits and line.coming and line.coming[0][0] <= now
            if due or (now >= line.next and line.freed < max(0, latest(relief.freed, line.clusters))):
                found.append((line.band, key, line))
        return [line for _, _, line in sorted(found, key=itemgetter(0, 1))]

    def _serve(self, line: WaitingLine, now: float, patience: float, attempt: Attempt) -> tuple[int, bool]:
        """How many of a line were asked for, and whether there may be room for more that are alike."""
        asked, more = 0, False
        relief = self._agent.replica.relief
        freed, opened = latest(relief.freed, line.clusters), latest(relief.opened, line.clusters)
        if now >= line.next and line.freed < max(0, freed):
            if opened > line.opened:
                for turn in line.odd.values():
                    self._come_at_once(turn, now)
            before, line.freed, line.opened = line.freed, max(0, freed), opened
            line.fits, asked = self._look(line, attempt)
            if asked:
                line.freed, more = before, bool(line.queue)  # the next of them may find room, too
            elif not line.fits:
                line.next = now + patience
            if line.fits:
                for turn in line.resting:
                    self._come(turn, turn.next)
                line.resting.clear()
        if line.fits:
            asked += self._serve_odd(line, now, patience, attempt)
        return asked, more

    def _look(self, line: WaitingLine, attempt: Attempt) -> tuple[bool, int]:
        """Whether there is a machine for such a VM, and whether one was asked for."""
        while line.queue:
            order, name = heapq.heappop(line.queue)
            if line.alike.get(name) != order:
                continue
            result = self._try(name, attempt)
            if result == "none":
                heapq.heappush(line.queue, (order, name))
                return False, 0
            if result == "asked":
                return True, 1
        began = self._clock()
        allocator = self._agent.allocator
        fits = True
        if line.odd:
            try:
                fits = all(allocator.has_machine_for(vm, allocator.arms[line.arm]) for vm in line.specs)
            except RoostError:  # whoever tries is told
                fits = True
            if not fits:
                self._spend(began)
        return fits, 0

    def _serve_odd(self, line: WaitingLine, now: float, patience: float, attempt: Attempt) -> int:
        asked = 0
        for turn in self._due(line, now):
            result = self._try(turn.name, attempt)
            if result == "none":
                turn.pause = min(max(patience, 2 * turn.pause), max(patience, LONGEST_PAUSE))
                turn.next = now + turn.pause
                line.resting.append(turn)
            asked += result == "asked"
            if self._budget <= 0 or asked >= AT_ONCE:
                break
        return asked

    def _due(self, line: WaitingLine, now: float) -> Iterator[Turn]:
        while line.coming and line.coming[0][0] <= now:
            at, _, turn = heapq.heappop(line.coming)
            if line.odd.get(turn.name) is turn and turn.next == at:
                yield turn

    def _come_at_once(self, turn: Turn, now: float) -> None:
        """Somebody has its turn as if it had never failed."""
        turn.pause = 0.0
        self._come(turn, now)

    def _come(self, turn: Turn, at: float) -> None:
        turn.next = at
        heapq.heappush(turn.line.coming, (at, next(self._numbers), turn))

    def _try(self, name: str, attempt: Attempt) -> Result:
        began = self._clock()
        result = attempt(name)
        if result == "none":
            self._spend(began)
        return result

    def _spend(self, began: float) -> None:
        self._budget -= max(LEAST, self._clock() - began)
