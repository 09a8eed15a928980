"""Take a VM off its machine and put it on another, where room may be held for it; or only hold that room."""

from __future__ import annotations

from roost.model.change import Entry, PlacedVM
from roost.model.request import hold_of
from roost.model.rows import OCCUPIED
from roost.store.contract import Committed, Move, Outcome
from roost.store.ledger import TenantRow
from roost.store.settle.rows import Names
from roost.store.settle.settling import Behind, LostRace, Settling
from roost.store.settle.vms import check_premise, check_tenant, put_on, take_off


def needs(proposal: Move, names: Names) -> None:
    """The VM, what is held for it, and both machines."""
    names.tenants.add(proposal.tenant)
    names.machines.update((proposal.vm.machine, proposal.machine))
    names.vms.update((proposal.vm.vm, hold_of(proposal.vm.vm)))


def settle(proposal: Move, settling: Settling) -> Outcome:
    """What is so already is done, and changes nothing. Nobody gives way to a move."""
    facts, tested = settling.facts, settling.tested
    tenant, vm, target = proposal.tenant, proposal.vm, proposal.machine
    known = facts.tenants.get(tenant)
    check_premise(proposal, known.stamp if known else 0)
    if known is None:
        raise Behind("gone", f"tenant {tenant} has no VMs", stamp=0)
    _check_moving(proposal, known, settling)
    if proposal.hold if proposal.held else vm.machine == target:  # so it is already
        settling.decide(proposal, known.stamp)
        return Committed(stamp=known.stamp, changed=False)
    check_tenant(proposal, known, settling)
    _try(proposal, settling)
    since = facts.vms[vm.vm].since
    hold = PlacedVM(hold_of(vm.vm), vm.spec, target, since)
    released: tuple[PlacedVM, ...] = ()
    placed = (hold,)
    if not proposal.hold:
        tested.remove(vm.machine, vm.spec, tenant)
        here = PlacedVM(vm.vm, vm.spec, vm.machine, since)
        released, placed = (here, hold) if proposal.held else (here,), (PlacedVM(vm.vm, vm.spec, target, since),)
    versions: dict[str, int] = {}
    take_off(settling, released, tenant, versions)
    put_on(settling, placed, tenant, versions)
    count = known.vms + len(placed) - len(released)
    facts.tenants[tenant] = settling.result.tenants[tenant] = TenantRow(known.constraints, settling.stamp, count)
    settling.decide(proposal, settling.stamp)
    settling.enter(
        proposal,
        Entry(
            key=proposal.key,
            by=proposal.record.by,
            at=proposal.record.at,
            tenant=tenant,
            constraints=known.constraints,
            before=known.stamp,
            after=settling.stamp,
            placed=placed,
            released=released,
            versions=versions,
        ),
    )
    return Committed(versions, settling.stamp)


def _check_moving(proposal: Move, known: TenantRow, settling: Settling) -> None:
    """The VM is where the proposal says, and what is held for it, too."""
    tenant, vm, vms = proposal.tenant, proposal.vm, settling.facts.vms
    there = vms.get(vm.vm)
    if there is None or there.tenant != tenant:
        raise Behind("gone", f"tenant {tenant} runs no VM {vm.vm}", stamp=known.stamp)
    if there.machine != vm.machine or there.spec != vm.spec:
        raise Behind("tenant", f"VM {vm.vm} is another one by now", stamp=known.stamp)
    hold = vms.get(hold_of(vm.vm))
    found = (hold.tenant, hold.machine, hold.spec) if hold else None
    if found != ((tenant, proposal.machine, vm.spec) if proposal.held else None):
        raise Behind("tenant", f"what is held for VM {vm.vm} is another by now", stamp=known.stamp)


def _try(proposal: Move, settling: Settling) -> None:
    """The other machine takes the VM, and has room that nobody holds. It is there then, as the rules see it."""
    facts, tested = settling.facts, settling.tested
    tenant, spec, target = proposal.tenant, proposal.vm.spec, proposal.machine
    if target not in facts.machines:
        raise Behind("machine", f"machine {target} is no more")
    if settling.strict and settling.started.get(target) != proposal.seen.get(target):
        raise LostRace("stale", f"machine {target} has changed", (target,))
    if problem := (tested.replace if proposal.held else tested.place)(target, spec, tenant):
        raise LostRace("room", f"machine {target}: {problem}", (target,))
    try:
        if not proposal.held and settling.accounts.lacks_room(facts.machines[target], spec):
            raise LostRace("room", f"machine {target}: {OCCUPIED}", (target,))
        settling.admit(proposal)
    except LostRace:
        if not proposal.held:  # else the row is as it was
            tested.remove(target, spec, tenant)
        raise
