"""How many VMs of an update domain may go at once.

Of VMs that asked for U update domains, at most one U-th may be gone at a time. Those on machines that are down are gone
already, so that fewer others may go, or none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from roost.model.request import HOLD
from roost.wire.tenants import TenantView, VMView

Key = tuple[str, str]  # tenant and set


class SpreadGroup(msgspec.Struct, frozen=True, kw_only=True):
    """VMs that count for one another: those of an availability set, or a tenant's that are in none."""

    name: str
    vms: int
    most: int  # that may be gone at once
    down: int  # that are gone already, as their machines are down

    @property
    def may_go(self) -> int:
        """How many more may be gone."""
        return max(0, self.most - self.down)

    @property
    def why_not(self) -> str:
        """What to say of a VM that must not go."""
        gone = f"{self.down:,} of {self.vms:,} VMs of {self.name} are on machines that are down"
        return f"{gone}, and no more than {self.most:,} may be gone at once"


def group_of(vm: VMView) -> Key:
    """Whom a VM counts with."""
    return vm.tenant, vm.set


def groups_of(tenants: Iterable[TenantView], down: Collection[str]) -> dict[Key, SpreadGroup]:
    """The groups of some tenants, if these machines are down."""
    found = {}
    for tenant in tenants:
        running = [vm for vm in tenant.vms if not vm.vm.endswith(HOLD)]
        lost = Counter(group_of(vm) for vm in running if vm.machine in down)
        for key, number in Counter(map(group_of, running)).items():
            of = key[1]
            most = most_at_once(number, tenant.constraints.terms(of).constraints.min_update_domains)
            name = f"set {of} of {tenant.tenant}" if of else tenant.tenant
            found[key] = SpreadGroup(name=name, vms=number, most=most, down=lost[key])
    return found


def most_at_once(vms: int, update_domains: int) -> int:
    """How many of so many VMs can be gone at once, if they asked for so many update domains; all, if for none."""
    return math.ceil(vms / update_domains) if update_domains else vms


def portion(vms: Sequence[VMView], groups: Mapping[Key, SpreadGroup]) -> tuple[list[VMView], list[VMView]]:
    """The VMs that may go now, and those that have to stay meanwhile."""
    taken: Counter[Key] = Counter()
    wave, later = [], []
    for vm in vms:
        key = group_of(vm)
        if taken[key] < groups[key].may_go:
            taken[key] += 1
            wave.append(vm)
        else:
            later.append(vm)
    return wave, later
