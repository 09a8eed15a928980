"""A walk through the update domains of a zone: each is emptied, updated and in use again before the next.

    ready ──▶ draining ──▶ its VMs go elsewhere, wave by wave ──▶ empty: updated ──▶ ready
                                   │                                  └── that failed: quarantined, and told
                                   └── one finds no machine: the machine is not updated, ready again, and told

A tenant, or a set of it, that asked for U update domains lost at most one U-th of its VMs at a time, so no more of them
than that go in one wave.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import msgspec

from roost.client.client import Client
from roost.model.request import HOLD
from roost.wire import HealingWish, MachineChange, MachineLine, TenantView, VMView

CHUNK = 1_000  # VMs that are asked to go in one request

Update = Callable[[str], str]  # does to an empty machine what is to be done; returns what went wrong
State = Literal["ready", "draining", "quarantined"]


class Unmoved(msgspec.Struct, frozen=True):
    """A VM that found no other machine, so that its own was not updated."""

    vm: str
    machine: str
    why: str


class Failed(msgspec.Struct, frozen=True):
    """A machine on which the update failed."""

    machine: str
    why: str


class DomainDone(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one update domain."""

    domain: int
    machines: int  # that were ready when it was their turn
    updated: int
    moved: int  # VMs
    evictions: int  # VMs of lower priority that gave way
    waves: int
    unmoved: tuple[Unmoved, ...] = ()
    failed: tuple[Failed, ...] = ()
    left_alone: tuple[str, ...] = ()  # machines that were not ready

    @property
    def whole(self) -> bool:
        """Every machine that was ready is updated."""
        return self.updated == self.machines


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
        update: Update | None = None,
        cluster: str = "",
        at_once: int = 10,
        pause: float = 0.0,
        tell: Callable[[str], None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`update`: up to so many machines `at_once`. `pause`: seconds between two waves, for VMs to start."""
        self._client, self._update, self._cluster = client, update, cluster
        self._at_once, self._pause, self._tell, self._sleep = at_once, pause, tell, sleep

    def machines(self) -> list[MachineLine]:
        """The machines that it is about, as they are now."""
        return list(self._client.machines(cluster=self._cluster))

    def run(self, domain: int) -> DomainDone:
        """Empty, update and use again. Whatever happens, no machine that it emptied stays out of use unnoticed."""
        here = domains_of(self.machines()).get(domain, [])
        ready = [machine.machine for machine in here if machine.state == "ready"]
        out: set[str] = set()  # machines that are out of use because of this
        try:
            for machine in ready:
                self._set(machine, "draining")
                out.add(machine)
            self._tell(f"{len(ready):,} machines are draining")
            moved, gave_way, waves, unmoved = self._empty(ready)
            stuck = {each.machine for each in unmoved}
            failed = self._update_all([machine for machine in ready if machine not in stuck])
            for each in failed:
                self._set(each.machine, "quarantined")
                out.discard(each.machine)
        finally:
            for machine in sorted(out):
                self._set(machine, "ready")
        return DomainDone(
            domain=domain,
            machines=len(ready),
            updated=len(ready) - len(stuck) - len(failed),
            moved=moved,
            evictions=gave_way,
            waves=waves,
            unmoved=tuple(unmoved),
            failed=tuple(failed),
            left_alone=tuple(machine.machine for machine in here if machine.state != "ready"),
        )

    def _set(self, machine: str, state: State) -> None:
        self._client.change_machine(machine, MachineChange(state=state))

    def _empty(self, machines: Sequence[str]) -> tuple[int, int, int, list[Unmoved]]:
        """How many VMs went elsewhere, how many gave way to them, in how many waves, and who stays."""
        found = (vm for machine in machines for vm in self._client.vms(machine=machine))
        vms = [vm for vm in found if not vm.vm.endswith(HOLD)]
        tenants = {name: self._client.get_tenant(name) for name in dict.fromkeys(vm.tenant for vm in vms)}
        moved = gave_way = count = 0
        unmoved: list[Unmoved] = []
        for count, wave in enumerate(waves(vms, tenants), 1):
            if count > 1 and self._pause:
                self._sleep(self._pause)
            for first in range(0, len(wave), CHUNK):
                done = self._client.heal(HealingWish(vms=tuple(vm.vm for vm in wave[first : first + CHUNK])))
                moved += len(done.healed)
                gave_way += done.evictions
                unmoved += [Unmoved(vm.vm, vm.machine, vm.why) for vm in done.waiting]
            self._tell(f"{moved:,} of {len(vms):,} VMs run elsewhere, {len(unmoved):,} found no machine")
        return moved, gave_way, count, unmoved

    def _update_all(self, machines: Sequence[str]) -> list[Failed]:
        if self._update is None or not machines:
            return []
        with ThreadPoolExecutor(self._at_once, "roost-update") as threads:
            said = list(threads.map(self._update, machines))
        return [Failed(machine, why) for machine, why in zip(machines, said, strict=True) if why]


def waves(vms: Sequence[VMView], tenants: dict[str, TenantView]) -> Iterator[list[VMView]]:
    """The VMs of a domain in portions, none of which takes more of a set than one update domain may."""
    left = list(vms)
    totals: dict[tuple[str, str], int] = {}
    for tenant in tenants.values():
        for vm in tenant.vms:
            totals[vm.tenant, vm.set] = totals.get((vm.tenant, vm.set), 0) + 1
    while left:
        taken: dict[tuple[str, str], int] = {}
        wave, later = [], []
        for vm in left:
            group = vm.tenant, vm.set
            wanted = tenants[vm.tenant].constraints.terms(vm.set).constraints.min_update_domains
            if taken.get(group, 0) < most_at_once(totals.get(group, 1), wanted):
                taken[group] = taken.get(group, 0) + 1
                wave.append(vm)
            else:
                later.append(vm)
        yield wave
        left = later


def most_at_once(vms: int, update_domains: int) -> int:
    """How many of so many VMs can be gone at once, if they asked for so many update domains; all, if for none."""
    return math.ceil(vms / update_domains) if update_domains else vms
