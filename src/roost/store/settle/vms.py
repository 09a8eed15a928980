"""What the verbs share that speak of a tenant's VMs: what they rest on, and how rows change with a VM."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from roost.model.change import PlacedVM, Registered
from roost.model.registry import WAITING
from roost.model.request import HOLD, Constraints
from roost.model.waiting import Waiting
from roost.store.contract import Move, Place, Release
from roost.store.ledger import TenantRow, VMRow
from roost.store.settle.settling import Behind, LostRace, Settling


def check_premise(proposal: Place | Release | Move, stamp: int) -> None:
    """What whoever asks was told of the tenant is still so, whatever the agent knows."""
    if not proposal.premise.holds(stamp):
        state = f"is at generation {stamp} by now" if stamp else "has no VMs by now"
        raise LostRace("premise", f"tenant {proposal.tenant} {state}", stamp=stamp)


def check_tenant(proposal: Place | Move, known: TenantRow | None, settling: Settling) -> None:
    """The tenant is as the proposal knows it, as far as that matters."""
    tenant, now = proposal.tenant, known.stamp if known else 0
    if known and known.constraints != proposal.constraints:
        raise Behind("tenant", f"tenant {tenant} has other constraints by now", stamp=now)
    if now != proposal.stamp and (settling.strict or proposal.constraints.on_places):
        raise Behind("tenant", f"tenant {tenant} has other VMs by now", stamp=now)


def as_it_runs(settling: Settling, vm: PlacedVM) -> PlacedVM:
    """A VM that is where a proposal says, with all that the store knows of it."""
    return settling.facts.vms[vm.vm].placed


def put_on(settling: Settling, placed: Sequence[PlacedVM], tenant: str, versions: dict[str, int]) -> None:
    """The rows have these VMs."""
    put, touch, there, written = settling.accounts.put, settling.touch, settling.facts.vms, settling.result.vms
    for each in placed:
        put(touch(each.machine, versions), each.spec, tenant, 1)
        there[each.vm] = written[each.vm] = VMRow(tenant, each)


def take_off(settling: Settling, released: Sequence[PlacedVM], tenant: str, versions: dict[str, int]) -> None:
    """The rows no longer have these VMs."""
    put, touch, there = settling.accounts.put, settling.touch, settling.facts.vms
    written, freed = settling.result.vms, settling.result.freed
    for each in released:
        put(touch(each.machine, versions), each.spec, tenant, -1)
        del there[each.vm]
        if each.vm not in written:
            freed.add(each.vm)
        written[each.vm] = None


def fewer(settling: Settling, tenant: str, known: TenantRow, gone: int) -> int:
    """A tenant has fewer VMs; says how many are left. Without any it is no more."""
    facts, result, rest = settling.facts, settling.result, known.vms - gone
    if rest:
        facts.tenants[tenant] = result.tenants[tenant] = TenantRow(known.constraints, settling.stamp, rest)
    else:
        del facts.tenants[tenant]
        result.tenants[tenant] = None
    return rest


def wait(
    settling: Settling, gone: Sequence[PlacedVM], tenant: str, constraints: Constraints, proposal: Place | Release
) -> tuple[Registered, ...]:
    """Those of the evicted VMs that want to be placed again wait for that, where everybody sees it."""
    changes = []
    for each in gone:
        if each.spec.requeue and not each.vm.endswith(HOLD):
            waiting = Waiting(
                tenant=tenant,
                spec=each.spec,
                constraints=constraints,
                since=proposal.record.at,
                cause=proposal.key,
            )
            changes.append(settling.change_entry((WAITING, each.vm), msgspec.json.encode(waiting).decode()))
    return tuple(changes)
