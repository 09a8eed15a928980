"""Put VMs of a tenant on machines, all or none; others may give way to them, or they leave machines that failed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from roost.model.change import Entry, PlacedVM
from roost.model.errors import InvalidInput
from roost.model.registry import WAITING
from roost.model.request import HOLD, hold_of
from roost.model.rows import MachineState
from roost.store.contract import Committed, Outcome, Place
from roost.store.ledger import Accounts, TenantRow
from roost.store.settle import eviction
from roost.store.settle.rows import Names
from roost.store.settle.settling import Behind, LostRace, Settling
from roost.store.settle.vms import as_it_runs, check_premise, check_tenant, put_on, take_off, wait


def needs(proposal: Place, names: Names) -> None:
    """The VMs and their machines; those that leave or give way, what is held for them, and what waits."""
    names.tenants.add(proposal.tenant)
    machines, vms = names.machines, names.vms
    for each in proposal.placed:
        machines.add(each.machine)
        vms.add(each.vm)
    if not proposal.plain:
        for each in proposal.leaving:
            names.machines.add(each.machine)
            names.vms.update((each.vm, hold_of(each.vm)))
        for victim in proposal.victims:
            names.tenants.add(victim.tenant)
            names.machines.add(victim.vm.machine)
            names.vms.update((victim.vm.vm, hold_of(victim.vm.vm)))
            names.registry.add((WAITING, victim.vm.vm))
        names.registry.update([(WAITING, each.vm) for each in proposal.placed])


def settle(proposal: Place, settling: Settling) -> Outcome:
    """Test each VM on what those before it left, and write them all down."""
    facts, tenant, placed = settling.facts, proposal.tenant, proposal.placed
    if not tenant or not placed:
        raise InvalidInput("proposal", "names no tenant or no VM", "name both")
    known = facts.tenants.get(tenant)
    now = known.stamp if known else 0
    check_premise(proposal, now)
    if known or proposal.stamp:
        check_tenant(proposal, known, settling)
    touched = [placed[0].machine] if len(placed) == 1 else list(dict.fromkeys([each.machine for each in placed]))
    for name in touched:
        if name not in facts.machines:
            raise Behind("machine", f"machine {name} is no more")
        if settling.strict and settling.started.get(name) != proposal.seen.get(name):
            raise LostRace("stale", f"machine {name} has changed", tuple(touched))
    if proposal.requeued:
        for each in placed:
            if (WAITING, each.vm) not in facts.registry:
                raise Behind("gone", f"VM {each.vm} waits no longer", stamp=now)
    leaving = _check_leaving(proposal, now, settling) if proposal.leaving else ()
    if proposal.victims:
        eviction.check_victims(proposal, settling)
    _try(proposal, leaving, touched, now, settling)
    evicted = eviction.eviction_of(proposal, settling) if proposal.victims else None
    own = eviction.evict(proposal, evicted, settling) if evicted else ()
    gone = (*leaving, *own)
    versions: dict[str, int] = {}
    if gone:
        take_off(settling, gone, tenant, versions)
    put_on(settling, placed, tenant, versions)
    count = (known.vms if known else 0) + len(placed) - len(gone)
    row = TenantRow(proposal.constraints, settling.stamp, count)
    facts.tenants[tenant] = settling.result.tenants[tenant] = row
    settling.decide(proposal, settling.stamp, placed)
    registered = wait(settling, own, tenant, proposal.constraints, proposal) if own else ()
    if proposal.requeued:
        registered += tuple([settling.change_entry((WAITING, each.vm), None) for each in placed])
    settling.enter(
        proposal,
        Entry(
            key=proposal.key,
            by=proposal.record.by,
            at=proposal.record.at,
            tenant=tenant,
            constraints=proposal.constraints,
            before=now,
            after=settling.stamp,
            placed=placed,
            released=gone,
            eviction=evicted if own else None,
            registered=registered,
            versions=versions,
        ),
    )
    return Committed(versions, settling.stamp, before=now)


def _try(
    proposal: Place, leaving: Sequence[PlacedVM], touched: Collection[str], stamp: int, settling: Settling
) -> None:
    """All machines take their VMs, on which these are then, as the rules see them; or none is changed."""
    vms, tested, tenant = settling.facts.vms, settling.tested, proposal.tenant
    tried: list[PlacedVM] = []
    names: set[str] = set()
    left: Collection[str] = {each.vm for each in leaving} if leaving else ()
    kept = tested.keep([each.machine for each in leaving]) if leaving else {}
    for each in leaving:
        tested.remove(each.machine, each.spec, tenant)
    try:
        for each in _highest_first(proposal.placed, settling.accounts):
            if each.vm in names or (each.vm in vms and each.vm not in left):
                raise Behind("name", f"a VM {each.vm} runs already", stamp=stamp)
            # As its own priority sees the machine, so with the victims there.
            if problem := tested.place(each.machine, each.spec, tenant):
                raise LostRace("room", f"machine {each.machine}: {problem}", tuple(touched))
            tried.append(each)
            names.add(each.vm)
        if settling.accounts.bands > 1 or proposal.victims:
            eviction.check_evicted(proposal, touched, settling)
        settling.admit(proposal)
    except (LostRace, InvalidInput):
        for again in reversed(tried):
            tested.remove(again.machine, again.spec, tenant)
        tested.put_back(kept)
        raise


def _highest_first(placed: Sequence[PlacedVM], accounts: Accounts) -> Sequence[PlacedVM]:
    """The VMs of a request by priority, the highest first, which is the order in which room is counted for them.

    A VM of a lower band that took the free room first would leave none to a higher one of the same request.
    """
    if len(placed) == 1 or accounts.bands == 1 or len({each.spec.priority for each in placed}) == 1:
        return placed
    return sorted(placed, key=lambda each: accounts.band(each.spec))


def _check_leaving(proposal: Place, stamp: int, settling: Settling) -> tuple[PlacedVM, ...]:
    """VMs are where the proposal says, on machines that are not ready, with what is held for them."""
    vms, machines = settling.facts.vms, settling.facts.machines
    names = {each.vm for each in proposal.leaving}
    if len(names) < len(proposal.leaving):
        raise InvalidInput("leaving", "repeat themselves", "name each once")
    for each in proposal.leaving:
        there = vms.get(each.vm)
        if there is None or there.tenant != proposal.tenant:
            raise Behind("gone", f"tenant {proposal.tenant} runs no VM {each.vm}", stamp=stamp)
        if there.machine != each.machine or there.spec != each.spec:
            raise Behind("tenant", f"VM {each.vm} is another one by now", stamp=stamp)
        if not each.vm.endswith(HOLD) and machines[each.machine].state == MachineState.READY:
            raise Behind("gone", f"machine {each.machine} of VM {each.vm} is ready again", stamp=stamp)
        if (hold := hold_of(each.vm)) in vms and hold not in names:
            raise Behind("tenant", f"room is held for VM {each.vm} by now", stamp=stamp)
    return tuple([as_it_runs(settling, each) for each in proposal.leaving])
