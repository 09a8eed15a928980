"""Take VMs of a tenant off their machines; what is held for them must go with them."""

from __future__ import annotations

import msgspec

from roost.model.change import Entry, Registered
from roost.model.errors import InvalidInput
from roost.model.registry import WAITING
from roost.model.request import HOLD, hold_of
from roost.model.waiting import Waiting
from roost.store.contract import Committed, Outcome, Release
from roost.store.ledger import TenantRow
from roost.store.settle.rows import Names
from roost.store.settle.settling import Behind, Settling
from roost.store.settle.vms import as_it_runs, check_premise, fewer, take_off, wait


def needs(proposal: Release, names: Names) -> None:
    """The VMs, what is held for them, where they are, and which of the tenant's wait."""
    names.tenants.add(proposal.tenant)
    for each in proposal.released:
        names.machines.add(each.machine)
        names.vms.add(each.vm)
        names.vms.add(hold_of(each.vm))
    names.registry.update([(WAITING, vm) for vm in proposal.waiting])
    if proposal.eviction is not None:
        names.registry.update([(WAITING, each.vm) for each in proposal.released])


def settle(proposal: Release, settling: Settling) -> Outcome:
    """All of them, or none."""
    tenant = proposal.tenant
    if not tenant or not (proposal.released or proposal.waiting):
        raise InvalidInput("proposal", "names no tenant or no VM", "name both")
    known = settling.facts.tenants.get(tenant)
    check_premise(proposal, known.stamp if known else 0)
    if not proposal.released:
        return _wait_for_nothing(proposal, known, settling)
    if known is None:
        raise Behind("gone", f"tenant {tenant} has no VMs", stamp=0)
    _check(proposal, known, settling)
    released = tuple([as_it_runs(settling, each) for each in proposal.released])
    versions: dict[str, int] = {}
    for each in released:
        settling.tested.remove(each.machine, each.spec, tenant)
    take_off(settling, released, tenant, versions)
    stamp = settling.stamp if fewer(settling, tenant, known, len(proposal.released)) else 0
    settling.decide(proposal, stamp)
    registered = _give_up(proposal, settling) if proposal.waiting else ()
    if proposal.eviction is not None:
        registered = (*registered, *wait(settling, released, tenant, known.constraints, proposal))
    settling.enter(
        proposal,
        Entry(
            key=proposal.key,
            by=proposal.record.by,
            at=proposal.record.at,
            tenant=tenant,
            constraints=known.constraints,
            before=known.stamp,
            after=stamp,
            released=released,
            eviction=proposal.eviction,
            registered=registered,
            versions=versions,
        ),
    )
    return Committed(versions, stamp)


def _check(proposal: Release, known: TenantRow, settling: Settling) -> None:
    """The VMs are where the proposal says, and what is held for them is among them."""
    vms, tenant = settling.facts.vms, proposal.tenant
    if proposal.stamp is not None:
        all_of_it = len(proposal.released) == known.vms or proposal.eviction is not None  # those may be fewer
        if proposal.stamp != known.stamp or not all_of_it:
            raise Behind("tenant", f"tenant {tenant} has other VMs by now", stamp=known.stamp)
    names: set[str] = set()
    for each in proposal.released:
        there = vms.get(each.vm)
        if there is None or each.vm in names or there.tenant != tenant:
            # Who releases a VM with what is held for it may try again without that.
            reason = "tenant" if there is None and each.vm.endswith(HOLD) else "gone"
            raise Behind(reason, f"tenant {tenant} runs no VM {each.vm}", stamp=known.stamp)
        if there.machine != each.machine or there.spec != each.spec:
            raise Behind("tenant", f"VM {each.vm} is another one by now", stamp=known.stamp)
        names.add(each.vm)
    for each in proposal.released:
        if (hold := hold_of(each.vm)) in vms and hold not in names:
            raise Behind("tenant", f"room is held for VM {each.vm} by now", stamp=known.stamp)


def _wait_for_nothing(proposal: Release, known: TenantRow | None, settling: Settling) -> Outcome:
    """Delete a tenant none of whose VMs run, as all gave way and wait to be placed again: they wait no longer."""
    changes = _give_up(proposal, settling) if known is None else ()
    if len(changes) < len(set(proposal.waiting)):
        for change in changes:
            settling.change_entry((change.kind, change.name), change.before)
        stamp = known.stamp if known else 0
        raise Behind("tenant", f"not all VMs of tenant {proposal.tenant} wait still", stamp=stamp)
    settling.decide(proposal)
    settling.enter(proposal, Entry(key=proposal.key, by=proposal.record.by, at=proposal.record.at, registered=changes))
    return Committed()


def _give_up(proposal: Release, settling: Settling) -> tuple[Registered, ...]:
    """Take the VMs of a deleted tenant off the books of what waits to be placed again."""
    registry, changes = settling.facts.registry, []
    for vm in dict.fromkeys(proposal.waiting):
        value = registry.get((WAITING, vm))
        if value is not None and msgspec.json.decode(value, type=Waiting).tenant == proposal.tenant:
            changes.append(settling.change_entry((WAITING, vm), None))
    return tuple(changes)
