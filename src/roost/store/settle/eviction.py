"""VMs of lower priority that give way to a placement: that they are as it says, that each has to, and that they go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import add, sub

from roost.model.change import Entry, Eviction, PlacedVM
from roost.model.errors import InvalidInput
from roost.model.request import HOLD, hold_of
from roost.model.rows import OCCUPIED
from roost.store.contract import Place
from roost.store.settle.settling import LostRace, Settling
from roost.store.settle.vms import as_it_runs, fewer, take_off, wait


def check_victims(proposal: Place, settling: Settling) -> None:
    """Victims are as the proposal says, and what is held for them is among them."""
    vms, names = settling.facts.vms, {victim.vm.vm for victim in proposal.victims}
    where = tuple(dict.fromkeys(victim.vm.machine for victim in proposal.victims))
    if len(names) < len(proposal.victims) or names & {each.vm for each in proposal.leaving}:
        raise InvalidInput("victims", "repeat themselves, or leave anyway", "name each once")
    for victim in proposal.victims:
        there = vms.get(victim.vm.vm)
        if there is None or (there.tenant, there.machine, there.spec) != (
            victim.tenant, victim.vm.machine, victim.vm.spec,
        ):  # fmt: skip
            raise LostRace("victims", f"VM {victim.vm.vm} no longer runs on {victim.vm.machine}", where)
        if (hold := hold_of(victim.vm.vm)) in vms and hold not in names:
            raise LostRace("victims", f"room is held for VM {victim.vm.vm} by now", where)
        owner = settling.facts.tenants[victim.tenant]
        if owner.constraints.evict_together and owner.stamp != victim.stamp:
            raise LostRace("victims", f"tenant {victim.tenant} has other VMs by now, which go together", where)


def check_evicted(proposal: Place, touched: Iterable[str], settling: Settling) -> None:
    """With the victims gone, everything has room; of lower priority, and none of them could have stayed."""
    accounts, machines = settling.accounts, settling.facts.machines
    if len(proposal.placed) == 1 and proposal.plain:
        (only,) = proposal.placed
        if accounts.lacks_room(machines[only.machine], only.spec):
            raise LostRace("room", f"machine {only.machine}: {OCCUPIED}", (only.machine,))
        return
    room = {name: accounts.room(machines[name]) for name in touched}
    for each in proposal.placed:
        name = each.machine
        room[name] = list(map(sub, room[name], accounts.demand(each.spec, machines[name])))
    if not proposal.plain:
        for gone in (*proposal.leaving, *[victim.vm for victim in proposal.victims]):
            if (left := room.get(gone.machine)) is not None:
                room[gone.machine] = list(map(add, left, accounts.demand(gone.spec, machines[gone.machine])))
    for name, left in room.items():
        if min(left) < 0:
            raise LostRace("room", f"machine {name}: {OCCUPIED}", tuple(room))
    if proposal.victims:
        _check_needed(proposal, room, settling)


def _check_needed(proposal: Place, room: Mapping[str, Sequence[int]], settling: Settling) -> None:
    """Each victim is of lower priority than what comes to its machine, and would not fit beside it; or it belongs
    to one that does: as what is held for it. Of VMs that go together, not all could have stayed.
    """
    accounts, facts = settling.accounts, settling.facts
    highest: dict[str, int] = {}
    for each in proposal.placed:
        band = accounts.band(each.spec)
        highest[each.machine] = min(band, highest.get(each.machine, band))
    top = min(highest.values())
    # By tenant, VM and machine, what would have to fit; no VM: all those of the tenant.
    taken: dict[tuple[str, str, str], list[int]] = {}
    for victim in proposal.victims:
        vm, band = victim.vm, accounts.band(victim.vm.spec)
        if band <= top:
            raise InvalidInput("victims", f"VM {vm.vm} is not of lower priority", "leave it out")
        if vm.machine in room and band > highest[vm.machine]:
            together = facts.tenants[victim.tenant].constraints.evict_together
            amounts = taken.setdefault((victim.tenant, "" if together else vm.vm, vm.machine), [])
            demand = accounts.demand(vm.spec, facts.machines[vm.machine])
            amounts[:] = [a + b for a, b in zip(amounts, demand, strict=True)] if amounts else demand
    needed = {
        (tenant, name)
        for (tenant, name, machine), amounts in taken.items()
        if any(need > has for need, has in zip(amounts, room[machine], strict=True))
    }
    for victim in proposal.victims:
        tenant, name = victim.tenant, victim.vm.vm
        if needed.isdisjoint(((tenant, ""), (tenant, name), (tenant, name.removesuffix(HOLD)))):
            raise LostRace("victims", f"VM {name} need not give way", tuple(room))


def eviction_of(proposal: Place, settling: Settling) -> Eviction:
    """What the victims are told: who comes, of which priority, and how long they are left."""
    band = min(settling.accounts.band(each.spec) for each in proposal.placed)
    return Eviction(tenant=proposal.tenant, priority=settling.accounts.catalogue.bands[band], grace=proposal.grace)


def evict(proposal: Place, eviction: Eviction, settling: Settling) -> tuple[PlacedVM, ...]:
    """Take the victims off their machines, an entry for each tenant; those of the placed VMs' own are returned."""
    by_tenant: dict[str, list[PlacedVM]] = {}
    for victim in proposal.victims:
        settling.tested.remove(victim.vm.machine, victim.vm.spec, victim.tenant)
        by_tenant.setdefault(victim.tenant, []).append(as_it_runs(settling, victim.vm))
    own = tuple(by_tenant.pop(proposal.tenant, ()))
    for tenant, gone in by_tenant.items():
        versions: dict[str, int] = {}
        take_off(settling, gone, tenant, versions)
        known = settling.facts.tenants[tenant]
        rest = fewer(settling, tenant, known, len(gone))
        settling.enter(
            proposal,
            Entry(
                key=proposal.key,
                by=proposal.record.by,
                at=proposal.record.at,
                tenant=tenant,
                constraints=known.constraints,
                before=known.stamp,
                after=settling.stamp if rest else 0,
                released=tuple(gone),
                eviction=eviction,
                registered=wait(settling, gone, tenant, known.constraints, proposal),
                versions=versions,
            ),
        )
    return own
