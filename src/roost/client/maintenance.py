"""A walk through the update domains of a zone: each is emptied, updated and in use again before the next.

    ready ──▶ draining ──▶ its VMs go elsewhere, wave by wave ──▶ empty: updated ──▶ ready
                                   │                                  └── that failed: quarantined, and told
                                   └── one has to stay: the machine is not updated, ready again, and told

Others may do something to the machines meanwhile. One that is no longer draining, as it went down or somebody said
otherwise, is left as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeVar

import msgspec

from roost.client.client import Client
from roost.client.errors import ServiceProblem
from roost.client.waves import Group, Key, group_of, groups_of, portion
from roost.model.errors import RoostError
from roost.model.request import HOLD
from roost.wire import HealingResult, HealingWish, MachineChange, MachineLine, VMView

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
    left_alone: tuple[str, ...] = ()  # machines that were not ready, or no longer draining when they were to be updated
    unsettled: tuple[Failed, ...] = ()  # machines that could not be quarantined, or used again

    @property
    def whole(self) -> bool:
        """Every machine that was ready is updated, and in use."""
        return self.updated == self.machines and not self.unsettled


@dataclass
class _Turn:
    """An update domain while it is walked. Threads add to it."""

    drained: list[str] = field(default_factory=list)
    out: set[str] = field(default_factory=set)  # machines that are to be used again
    moved: int = 0
    evictions: int = 0
    waves: int = 0
    updated: list[str] = field(default_factory=list)
    unmoved: list[Unmoved] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    left_alone: list[str] = field(default_factory=list)
    unsettled: list[Failed] = field(default_factory=list)

    def done(self, domain: int) -> DomainDone:
        """What came of it."""
        return DomainDone(
            domain=domain,
            machines=len(set(self.drained).difference(self.left_alone)),
            updated=len(self.updated),
            moved=self.moved,
            evictions=self.evictions,
            waves=self.waves,
            unmoved=tuple(self.unmoved),
            failed=_by_machine(self.failed),
            left_alone=tuple(sorted(self.left_alone)),
            unsettled=_by_machine(self.unsettled),
        )


def _by_machine(failed: Iterable[Failed]) -> tuple[Failed, ...]:
    return tuple(sorted(failed, key=lambda each: each.machine))


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
        *,
        update: Update = lambda _: "",
        cluster: str = "",
        at_once: int = 10,
        pause: float = 0.0,
        tell: Callable[[str], None] = lambda _: None,
        warn: Callable[[str], None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`update`: up to so many machines `at_once`. `pause`: seconds between two waves, for VMs to start.

        `tell` hears how far it is, `warn` what is left behind if it breaks off.
        """
        self._client, self._update, self._cluster = client, update, cluster
        self._at_once, self._pause, self._tell, self._warn, self._sleep = at_once, pause, tell, warn, sleep

    def machines(self) -> list[MachineLine]:
        """The machines that it is about, as they are now."""
        return list(self._client.machines(cluster=self._cluster))

    def run(self, domain: int) -> DomainDone:
        """Empty, update and use again. Whatever happens, no machine that it emptied stays out of use unnoticed."""
        turn = _Turn()
        try:
            for machine in domains_of(self.machines()).get(domain, []):
                self._drain(turn, machine)
            self._tell(f"{len(turn.drained):,} machines are draining")
            self._empty(turn)
            self._update_all(turn)
            self._use_again(turn)
        except BaseException:
            self._use_again(turn)
            for each in turn.failed:
                self._warn(f"the update failed on {each.machine}: {each.why}")
            for each in turn.unsettled:
                self._warn(f"{each.machine} stays as it is: {each.why}")
            raise
        return turn.done(domain)

    # ------------------------------------------------------------------------------------------- how machines are

    def _drain(self, turn: _Turn, machine: MachineLine) -> None:
        name = machine.machine
        if machine.state == "ready":
            turn.out.add(name)  # before: whoever is interrupted may have done it
            if self._change(name, "ready", "draining"):
                turn.drained.append(name)
                return
            turn.out.discard(name)
        turn.left_alone.append(name)

    def _use_again(self, turn: _Turn) -> None:
        """Those that are still draining; what cannot be done to one is noted, and the others have their turn."""
        for name in sorted(turn.out):
            try:
                self._change(name, "draining", "ready")
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

    def _change(self, name: str, before: State, after: State, tries: int = TRIES) -> bool:
        """Whether it was so and is otherwise now. One that somebody else has changed by then stays as it is.

        The generation changes with every VM that comes or goes, so who is late looks again.
        """
        found = _if_there(self._client.get_machine, name)
        if found is None or found.state != before:
            return False
        try:
            self._client.change_machine(name, MachineChange(state=after), if_match=found.generation)
        except ServiceProblem as problem:
            if problem.code not in (OUTDATED, GONE) or tries == 1:
                raise
            self._sleep(BREATH)
            return self._change(name, before, after, tries - 1)
        return True

    # --------------------------------------------------------------------------------------------------- emptying

    def _empty(self, turn: _Turn) -> None:
        """Wave by wave; before each it is looked what may go, as machines go down and owners release VMs meanwhile."""
        found = (vm for name in turn.drained for vm in self._client.vms(machine=name))
        left = [vm for vm in found if not vm.vm.endswith(HOLD)]
        number = len(left)
        while left:
            if turn.waves and self._pause:
                self._sleep(self._pause)
            left, groups = self._look(left)
            wave, left = portion(left, groups)
            if not wave:
                turn.unmoved += [Unmoved(vm.vm, vm.machine, groups[group_of(vm)].why_not) for vm in left]
                return
            turn.waves += 1
            for first in range(0, len(wave), CHUNK):
                self._move(turn, wave[first : first + CHUNK])
            self._tell(f"{turn.moved:,} of {number:,} VMs run elsewhere, {len(turn.unmoved):,} found no machine")

    def _look(self, vms: Sequence[VMView]) -> tuple[list[VMView], dict[Key, Group]]:
        """Those that still run where they did, and whom they count with. Those of machines that are down are healed."""
        names = dict.fromkeys(vm.tenant for vm in vms)
        tenants = [tenant for name in names if (tenant := _if_there(self._client.get_tenant, name))]
        down = {machine.machine for machine in self._client.machines(state="down")}
        known = {vm.vm: vm for tenant in tenants for vm in tenant.vms if vm.machine not in down}
        still = [now for vm in vms if (now := known.get(vm.vm)) and now.machine == vm.machine]
        return still, groups_of(tenants, down)

    def _move(self, turn: _Turn, vms: Sequence[VMView]) -> None:
        for done in self._heal([vm.vm for vm in vms]):
            turn.moved += len(done.healed)
            turn.evictions += done.evictions
            turn.unmoved += [Unmoved(vm.vm, vm.machine, vm.why) for vm in done.waiting if self._runs(vm.vm, vm.machine)]

    def _heal(self, vms: Sequence[str]) -> list[HealingResult]:
        """Without those that are gone. One of them keeps all others from being healed: then each half is asked for."""
        try:
            return [self._client.heal(HealingWish(vms=tuple(vms)))]
        except ServiceProblem as problem:
            if problem.code != GONE:
                raise
        half = len(vms) // 2
        return [*self._heal(vms[:half]), *self._heal(vms[half:])] if half else []

    def _runs(self, vm: str, machine: str) -> bool:
        """Whether it still does, and there."""
        found = _if_there(self._client.get_vm, vm)
        return found is not None and found.machine == machine

    # --------------------------------------------------------------------------------------------------- updating

    def _update_all(self, turn: _Turn) -> None:
        stuck = {vm.machine for vm in turn.unmoved}
        with ThreadPoolExecutor(self._at_once, "roost-update") as threads:
            list(threads.map(partial(self._update_one, turn), [name for name in turn.drained if name not in stuck]))

    def _update_one(self, turn: _Turn, name: str) -> None:
        """If it is still draining, and empty. What fails is quarantined at once, whatever becomes of the others."""
        try:
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
            self._quarantine(turn, name)
        else:
            turn.updated.append(name)

    def _updated(self, turn: _Turn, name: str) -> str:
        """What went wrong. As long as it is at work nobody uses the machine, even if the walk is broken off."""
        turn.out.discard(name)
        try:
            return self._update(name)
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
