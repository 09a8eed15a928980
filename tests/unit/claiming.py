"""A toy verb, whole: an operation and a proposal of its own that puts VMs somewhere, in one module and two lines.

VMs of a tenant are placed for a claim; no claim is good for more than once. So it needs all that a verb may need: it
places, is checked, sized and refused, and its proposal has rows, a reason and an entry of the registry of its own.
"""

from __future__ import annotations

import pytest

from roost.agent.context import Context
from roost.agent.operation import Operation
from roost.agent.ticket import Ticket
from roost.agent.verbs import table as agent_table
from roost.agent.verbs.placing import propose
from roost.agent.verbs.verb import Tenants, Verb, Wanted, of_tenant
from roost.model.change import Entry, PlacedVM
from roost.model.errors import InvalidInput, Taken
from roost.model.names import check_new_name
from roost.model.request import UNCONSTRAINED, VM, Constraints, Request
from roost.placing.allocator import Allocator
from roost.store.contract import Committed, Conflict, Outcome, Proposal, Recorded
from roost.store.ledger import TenantRow
from roost.store.settle import table as store_table
from roost.store.settle.rows import Names
from roost.store.settle.settling import Behind, LostRace, Settling
from roost.store.settle.verb import StoreVerb
from roost.store.settle.vms import put_on

CLAIMED = "claimed"  # the kind of entries that say whose a claim was, and the word for a race about one


# ------------------------------------------------------------------------------------------------ beside the agent


class ClaimRoom(Operation, frozen=True, tag="claim"):
    """Place VMs of a tenant for a claim."""

    tenant: str
    claim: str
    vms: int = 1
    type: str = "A0"


def wanted(_: Allocator, operation: ClaimRoom) -> Wanted:
    return Wanted(Request(operation.tenant, [VM(operation.type)] * operation.vms))


def decide(context: Context, operation: ClaimRoom, ticket: Ticket) -> Proposal:
    if not operation.claim:
        raise InvalidInput("claim", "is empty", "say which")
    found = propose(context, ticket, wanted(context.allocator, operation))
    if found.declines:
        return found
    assert isinstance(found, Recorded)
    assert ticket.decision is not None
    return Claim(
        key=ticket.key,
        request=ticket.request,
        record=found.record,
        tenant=operation.tenant,
        claim=operation.claim,
        placed=tuple(found.placed),
        constraints=ticket.decision.constraints,
    )


def size(operation: ClaimRoom, _: Tenants) -> int:
    return operation.vms


def check(operation: ClaimRoom) -> None:
    check_new_name("tenant", operation.tenant)


def hopeless(conflict: Conflict) -> InvalidInput | None:
    return Taken("claim", conflict.detail, "claim something else") if conflict.reason == CLAIMED else None


CLAIM = Verb(decide, ClaimRoom("web", "c1"), of_tenant, size, check, hopeless=hopeless, wanted=wanted)


# --------------------------------------------------------------------------------------------------- in the store


class Claim(Recorded, frozen=True, kw_only=True):
    """Put VMs of a tenant on machines, for a claim that nobody has used."""

    tenant: str
    claim: str
    placed: tuple[PlacedVM, ...]
    constraints: Constraints = UNCONSTRAINED


def needs(proposal: Claim, names: Names) -> None:
    names.tenants.add(proposal.tenant)
    names.registry.add((CLAIMED, proposal.claim))
    for each in proposal.placed:
        names.machines.add(each.machine)
        names.vms.add(each.vm)


def settle(proposal: Claim, settling: Settling) -> Outcome:
    facts, tenant, entry = settling.facts, proposal.tenant, (CLAIMED, proposal.claim)
    if not proposal.placed:
        raise InvalidInput("placed", "is nothing", "name a VM")
    if entry in facts.registry:
        raise LostRace(CLAIMED, f"claim {proposal.claim} was used by {facts.registry[entry]}")
    _try(proposal, settling)
    versions: dict[str, int] = {}
    put_on(settling, proposal.placed, tenant, versions)
    known = facts.tenants.get(tenant)
    before, running = (known.stamp, known.vms) if known else (0, 0)
    row = TenantRow(proposal.constraints, settling.stamp, running + len(proposal.placed))
    facts.tenants[tenant] = settling.result.tenants[tenant] = row
    settling.decide(proposal, settling.stamp, proposal.placed)
    settling.enter(
        proposal,
        Entry(
            key=proposal.key,
            by=proposal.record.by,
            at=proposal.record.at,
            tenant=tenant,
            constraints=proposal.constraints,
            before=before,
            after=settling.stamp,
            placed=proposal.placed,
            registered=(settling.change_entry(entry, tenant),),
            versions=versions,
        ),
    )
    return Committed(versions, settling.stamp, before=before)


def _try(proposal: Claim, settling: Settling) -> None:
    tried = []
    try:
        for each in proposal.placed:
            if each.vm in settling.facts.vms:
                raise Behind("name", f"a VM {each.vm} runs already")
            if problem := settling.tested.place(each.machine, each.spec, proposal.tenant):
                raise LostRace("room", f"machine {each.machine}: {problem}", (each.machine,))
            tried.append(each)
        settling.admit(proposal)
    except LostRace:
        for each in tried:
            settling.tested.remove(each.machine, each.spec, proposal.tenant)
        raise


STORE_CLAIM = StoreVerb("Put VMs on machines for a claim, which is good for once.", needs, settle)


def enter_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two lines."""
    monkeypatch.setitem(agent_table.VERBS, ClaimRoom, CLAIM)  # type: ignore[misc]
    monkeypatch.setitem(store_table.VERBS, Claim, STORE_CLAIM)
