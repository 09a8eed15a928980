"""A walk through the update domains of a zone: each is emptied, updated and in use again before the next.

    ready ──▶ draining ──▶ its VMs go elsewhere, wave by wave ──▶ empty: updated ──▶ ready
                                   │                                  └── that failed: quarantined, and told
                                   └── one has to stay: the machine is not updated, ready again, and told

One machine goes through all of it before the others of its domain do; if its update fails, they are left as they are.
After so many failures the walk stops.

Others may do something to the machines meanwhile. One that is no longer draining, as it went down or somebody said
otherwise, is left as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeVar

import msgspec

from roost.client.client import Client
from roost.client.errors import ServiceProblem
from roost.client.lease import Lease
from roost.client.waves import Key, SpreadGroup, group_of, groups_of, portion
from roost.model.errors import RoostError
from roost.model.request import HOLD
from roost.wire.healing import HealingResult, HealingWish, YetToUpdate
from roost.wire.machines import MachineChange, MachineLine
from roost.wire.tenants import VMView

CHUNK = 1_000  # VMs that are asked to go in one request
TRIES = 10  # to change a machine that others change at the same time
BREATH = 0.05  # seconds between two of them
GONE, OUTDATED = "roost.not_found", "roost.outdated"

T = TypeVar("T")
Update = Callable[[str], str]  # does to an empty machine what is to be done; returns what went wrong
State = Literal["ready", "draining"]


class Unmoved(msgspec.Struct, frozen=True):
    """A VM that had to stay where it is, so that its machine was not updated."""

    vm: str
    machine: str
    why: str


class Failed(msgspec.Struct, frozen=True):
    """A machine on which something failed."""

    machine: str
    why: str


class DomainDone(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one update domain."""

    domain: int
    machines: int  # that were ready when it was their turn, without those that were left alone later
    updated: int
    moved: int  # VMs
    evictions: int  # VMs of lower priority that gave way
    waves: int
    unmoved: tuple[Unmoved, ...] = ()
    failed: tuple[Failed, ...] = ()  # updates
    evicted: int = 0  # VMs that were evicted, not moved
    left_alone: tuple[str, ...] = ()  # machines that were not ready, or no longer draining when they were to be updated
    untouched: tuple[str, ...] = ()  # machines that were not updated as updates of others failed: they are in use
    unsettled: tuple[Failed, ...] = ()  # machines that could not be quarantined, or used again

    @property
    def whole(self) -> bool:
        """Every machine that was ready is updated, and in use."""
        return self.updated == self.machines and not self.unsettled and not self.untouched


@dataclass
class _Turn:
    """An update domain while it is walked. Threads add to it."""

    number: int
    later: frozenset[int]  # domains that have machines which are yet to be updated, and are not draining
    drained: list[str] = field(default_factory=list)
    out: set[str] = field(default_factory=set)  # machines that are to be used again
    moved: int = 0
    evictions: int = 0
    evicted: int = 0
    waves: int = 0
    updated: list[str] = field(default_factory=list)
    unmoved: list[Unmoved] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    left_alone: list[str] = field(default_factory=list)
    untouched: list[str] = field(default_factory=list)
    unsettled: list[Failed] = field(default_factory=list)

    def done(self) -> DomainDone:
        """What came of it."""
        return DomainDone(
            domain=self.number,
            machines=len(set(self.drained).difference(self.left_alone, self.untouched)),
            updated=len(self.updated),
            moved=self.moved,
            evictions=self.evictions,
            evicted=self.evicted,
            waves=self.waves,
            unmoved=tuple(self.unmoved),
            failed=_by_machine(self.failed),
            left_alone=tuple(sorted(self.left_alone)),
            untouched=tuple(sorted(self.untouched)),
            unsettled=_by_machine(self.unsettled),
        )


def _by_machine(failed: Iterable[Failed]) -> tuple[Failed, ...]:
    return tuple(sorted(failed, key=lambda each: each.machine))


def machines_of(client: Client, cluster: str) -> list[MachineLine]:
    """The machines that a walk is about, as they are now."""
    return list(client.machines(cluster=cluster))


def domains_of(machines: Iterable[MachineLine]) -> dict[int, list[MachineLine]]:
    """Machines by update domain, in the order in which they are walked."""
    found: dict[int, list[MachineLine]] = {}
    for machine in machines:
        found.setdefault(machine.update_domain, []).append(machine)
    return dict(sorted(found.items()))


class Walk:
    """Does it to one domain after another."""

    def __init__(
        self,
        client: Client,
        lease: Lease,
        *,
        max_failures: int,
        update: Update | None = None,
        cluster: str = "",
        at_once: int = 10,
        pause: float = 0.0,
        evict: str = "",
        tell: Callable[[int, str], None] = lambda _domain, _: None,
        warn: Callable[[str], None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`update`: up to so many machines `at_once`; None: they are only emptied. `pause`: seconds between two waves,
        for VMs to start.

        `max_failures`: of updates, after which it stops. `evict`: VMs of this priority are evicted, not moved. `tell`
        hears how far it is in which domain, `warn` what is left behind if it breaks off.
        """
        self._client, self._lease, self._update, self._cluster = client, lease, update, cluster
        self._at_once, self._pause, self._tell, self._warn, self._sleep = at_once, pause, tell, warn, sleep
        self._max_failures, self._evict, self._failures = max_failures, evict, 0

    @property
    def stopped(self) -> bool:
        """Whether so many updates failed that no more are begun."""
        return self._failures >= self._max_failures

    def run(self, domain: int, later: Collection[int] = ()) -> DomainDone:
        """Empty, update and use again. Whatever happens, no machine that it emptied stays out of use unnoticed.

        `later`: the domains that are walked after this one, whose machines get VMs only where no other has room.
        """
        turn = _Turn(domain, frozenset(later))
        try:
            here = domains_of(machines_of(self._client, self._cluster)).get(domain, [])
            turn.later |= {domain}
            rest = self._try_out(turn, sorted(here, key=lambda machine: (machine.vms, machine.machine)))
            if turn.failed or self.stopped:
                turn.untouched += [machine.machine for machine in rest if machine.state == "ready"]
            else:
                turn.later -= {domain}  # all others of it drain together
                self._go_through(turn, rest)
        except BaseException:
            self._use_again(turn)
            for each in turn.failed:
                self._warn(f"the update failed on {each.machine}: {each.why}")
            for each in turn.unsettled:
                self._warn(f"{each.machine} stays as it is: {each.why}")
            raise
        return turn.done()

    def _try_out(self, turn: _Turn, machines: Sequence[MachineLine]) -> Sequence[MachineLine]:
        """One machine at a time, the emptiest first, until one was updated or its update failed; returns the others."""
        for place, machine in enumerate(machines):
            if turn.updated or turn.failed:
                return machines[place:]
            self._go_through(turn, [machine])
        return ()

    def _go_through(self, turn: _Turn, machines: Sequence[MachineLine]) -> None:
        """Machines are emptied, updated and in use again."""
        wanted = [machine.machine for machine in machines if self._is_wanted(machine)]
        turn.left_alone += [machine.machine for machine in machines if not self._is_wanted(machine)]
        if not wanted:
            return
        self._lease.tell(turn.number, wanted)  # first: whoever takes over has to know which it finds draining
        drained = [name for name in wanted if self._drain(turn, name)]
        self._tell(turn.number, f"{len(drained):,} machines are draining")
        self._empty(turn, drained)
        self._update_all(turn, drained)
        self._use_again(turn)
        self._lease.settled(wanted)
        self._lease.tell(turn.number, ())

    def _is_wanted(self, machine: MachineLine) -> bool:
        """It is ready, or was left draining by another walk, from which this one took over."""
        return machine.state == "ready" or (machine.state == "draining" and machine.machine in self._lease.left)

    # ------------------------------------------------------------------------------------------- how machines are

    def _drain(self, turn: _Turn, name: str) -> bool:
        """Whether it drains now."""
        self._lease.check()
        turn.out.add(name)  # before: whoever is interrupted may have done it
        left = name in self._lease.left and self._client.get_machine(name).state == "draining"
        if left or self._change(name, "ready", "draining"):
            turn.drained.append(name)
            return True
        turn.out.discard(name)
        turn.left_alone.append(name)
        return False

    def _use_again(self, turn: _Turn) -> None:
        """Those that are still draining; what cannot be done to one is noted, and the others have their turn."""
        for name in sorted(turn.out):
            try:
                self._lease.check()
                self._change(name, "draining", "ready", current=name in turn.updated and self._update is not None)
            except RoostError as error:
                turn.unsettled.append(Failed(name, str(error)))
            turn.out.discard(name)

    def _quarantine(self, turn: _Turn, name: str) -> None:
        """However it is: a machine that was restarted may be down, or ready, by its heartbeats."""
        turn.out.discard(name)
        try:
            self._client.change_machine(name, MachineChange(state="quarantined"))
        except RoostError as error:
            turn.unsettled.append(Failed(name, str(error)))

    def _change(self, name: str, before: State, after: State, tries: int = TRIES, *, current: bool = False) -> bool:
        """Whether it was so and is otherwise now. One that somebody else has changed by then stays as it is.

        The generation changes with every VM that comes or goes, so who is late looks again. `current`: its host
        environment is the latest, whatever its state is by now.
        """
        found, behind = _if_there(self._client.get_machine, name), 0 if current else None
        if found is None or found.state != before:
            if found is not None and current:
                self._client.change_machine(name, MachineChange(versions_behind=0))
            return False
        try:
            change = MachineChange(state=after, versions_behind=behind)
            self._client.change_machine(name, change, if_match=found.generation)
        except ServiceProblem as problem:
            if problem.code not in (OUTDATED, GONE) or tries == 1:
                raise
            self._sleep(BREATH)
            return self._change(name, before, after, tries - 1, current=current)
        return True

    # --------------------------------------------------------------------------------------------------- emptying

    def _empty(self, turn: _Turn, drained: Sequence[str]) -> None:
        """Wave by wave; before each it is looked what may go, as machines go down and owners release VMs meanwhile."""
        found = (vm for name in drained for vm in self._client.vms(machine=name))
        left = [vm for vm in found if not vm.vm.endswith(HOLD)]
        number = len(left) + turn.moved + turn.evicted
        while left:
            if turn.waves and self._pause:
                self._sleep(self._pause)
            self._lease.check()
            left, groups = self._look(left)
            wave, left = portion(left, groups)
            if not wave:
                turn.unmoved += [Unmoved(vm.vm, vm.machine, groups[group_of(vm)].why_not) for vm in left]
                return
            turn.waves += 1
            for first in range(0, len(wave), CHUNK):
                self._move(turn, wave[first : first + CHUNK])
            said = f"{turn.moved:,} VMs run elsewhere, {turn.evicted:,} were evicted"
            self._tell(turn.number, f"of {number:,}, {said}, {len(turn.unmoved):,} found no machine")

    def _look(self, vms: Sequence[VMView]) -> tuple[list[VMView], dict[Key, SpreadGroup]]:
        """Those that still run where they did, and whom they count with. Those of machines that are down are healed."""
        names = dict.fromkeys(vm.tenant for vm in vms)
        tenants = [tenant for name in names if (tenant := _if_there(self._client.get_tenant, name))]
        down = {machine.machine for machine in self._client.machines(state="down")}
        known = {vm.vm: vm for tenant in tenants for vm in tenant.vms if vm.machine not in down}
        still = [now for vm in vms if (now := known.get(vm.vm)) and now.machine == vm.machine]
        return still, groups_of(tenants, down)

    def _move(self, turn: _Turn, vms: Sequence[VMView]) -> None:
        gone = self._evict_some(turn, [vm.vm for vm in vms if self._evict and vm.priority == self._evict])
        staying = [vm.vm for vm in vms if vm.vm not in gone]
        later = YetToUpdate(update_domains=tuple(sorted(turn.later)), cluster=self._cluster) if turn.later else None
        for done in self._heal(staying, later) if staying else ():
            turn.moved += len(done.healed)
            turn.evictions += done.evictions
            turn.unmoved += [Unmoved(vm.vm, vm.machine, vm.why) for vm in done.waiting if self._runs(vm.vm, vm.machine)]

    def _evict_some(self, turn: _Turn, vms: Sequence[str]) -> set[str]:
        """Take VMs off their machines; they get the time to finish that the policy gives them."""
        if not vms:
            return set()
        done = self._client.evict(vms)
        turn.evicted += len(done.evicted)
        if done.evicted and done.grace:
            self._sleep(done.grace)
        return set(vms)

    def _heal(self, vms: Sequence[str], later: YetToUpdate | None) -> list[HealingResult]:
        """Without those that are gone. One of them keeps all others from being healed: then each half is asked for."""
        try:
            return [self._client.heal(HealingWish(vms=tuple(vms), later=later))]
        except ServiceProblem as problem:
            if problem.code != GONE:
                raise
        half = len(vms) // 2
        return [*self._heal(vms[:half], later), *self._heal(vms[half:], later)] if half else []

    def _runs(self, vm: str, machine: str) -> bool:
        """Whether it still does, and there."""
        found = _if_there(self._client.get_vm, vm)
        return found is not None and found.machine == machine

    # --------------------------------------------------------------------------------------------------- updating

    def _update_all(self, turn: _Turn, drained: Sequence[str]) -> None:
        stuck = {vm.machine for vm in turn.unmoved}
        with ThreadPoolExecutor(self._at_once, "roost-update") as threads:
            list(threads.map(partial(self._update_one, turn), [name for name in drained if name not in stuck]))

    def _update_one(self, turn: _Turn, name: str) -> None:
        """If it is still draining, and empty. What fails is quarantined at once, whatever becomes of the others."""
        if self.stopped:
            turn.untouched.append(name)
            return
        try:
            self._lease.check()
            found = _if_there(self._client.get_machine, name)
        except RoostError as error:
            turn.failed.append(Failed(name, f"not begun: {error}"))
            return
        if found is None or found.state != "draining":
            turn.out.discard(name)
            turn.left_alone.append(name)
        elif running := [vm.vm for vm in found.running if not vm.vm.endswith(HOLD)]:
            turn.unmoved += [Unmoved(vm, name, "it still runs there") for vm in running]
        elif why := self._updated(turn, name):
            turn.failed.append(Failed(name, why))
            self._failures += 1
            self._quarantine(turn, name)
        else:
            turn.updated.append(name)

    def _updated(self, turn: _Turn, name: str) -> str:
        """What went wrong. As long as it is at work nobody uses the machine, even if the walk is broken off."""
        turn.out.discard(name)
        try:
            return self._update(name) if self._update else ""
        finally:
            turn.out.add(name)


def _if_there(get: Callable[[str], T], name: str) -> T | None:
    """What there is of that name, if it is not gone."""
    try:
        return get(name)
    except ServiceProblem as problem:
        if problem.code != GONE:
            raise
        return None
