"""Set an entry of the zone's registry."""

from __future__ import annotations

from roost.model.change import Entry
from roost.model.errors import InvalidInput
from roost.store.contract import Committed, Outcome, Register
from roost.store.settle.rows import Names
from roost.store.settle.settling import LostRace, Settling


def needs(proposal: Register, names: Names) -> None:
    """The entry."""
    names.registry.add((proposal.kind, proposal.name))


def settle(proposal: Register, settling: Settling) -> Outcome:
    """Guarded entries must have the value that was expected."""
    place, value = (proposal.kind, proposal.name), proposal.value
    if not all(place):
        raise InvalidInput("proposal", "names no kind or no entry of the registry", "name both")
    now = settling.facts.registry.get(place)
    if proposal.guarded and now != proposal.expected:
        raise LostRace("registry", f"{proposal.kind} {proposal.name} has another value by now")
    if changed := now != value:
        settling.enter(
            proposal,
            Entry(
                key=proposal.key,
                by=proposal.record.by,
                at=proposal.record.at,
                registered=(settling.change_entry(place, value),),
            ),
        )
    settling.decide(proposal)
    return Committed(changed=changed)
