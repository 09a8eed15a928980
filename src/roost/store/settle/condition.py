"""Say how a machine is: its state, health, failures or versions_behind."""

from __future__ import annotations

from collections.abc import Mapping

from roost.model.change import ConditionChange, Entry, Registered
from roost.model.errors import InvalidInput, UnknownName
from roost.model.failures import NONE, read_entry
from roost.model.registry import FAILURES
from roost.model.rows import MachineState
from roost.model.zone import CONDITION
from roost.store.contract import Committed, Outcome, SetCondition
from roost.store.ledger import MachineRow
from roost.store.settle.rows import Names
from roost.store.settle.settling import LostRace, Settling

LIMITS = {"state": len(MachineState) - 1, "health": 100, "failures": 2**15 - 1, "versions_behind": 2**15 - 1}


def needs(proposal: SetCondition, names: Names) -> None:
    """The machine, and what was counted of its failures."""
    names.machines.add(proposal.machine)
    names.registry.add((FAILURES, proposal.machine))


def settle(proposal: SetCondition, settling: Settling) -> Outcome:
    """Change what is said, and what follows from it; what is so already changes nothing."""
    row = settling.facts.machines.get(proposal.machine)
    if row is None:
        raise UnknownName("machine", "machine", proposal.machine, None)
    check_condition(proposal.condition)
    if proposal.version is not None and row.version != proposal.version:
        raise LostRace("premise", f"machine {proposal.machine} has changed", (proposal.machine,), row.version)
    said, counted = _count_failures(proposal, row, settling)
    changes = []
    versions: dict[str, int] = {}
    for name, value in said.items():
        if getattr(row, name) != value:
            settling.touch(proposal.machine, versions)
            changes.append(ConditionChange(proposal.machine, name, getattr(row, name), value))
            setattr(row, name, value)
            settling.tested.set_condition(proposal.machine, name, value)
    if changes or counted:
        settling.enter(
            proposal,
            Entry(
                key=proposal.key,
                by=proposal.record.by,
                at=proposal.record.at,
                conditions=tuple(changes),
                registered=counted,
                versions=versions,
            ),
        )
    settling.decide(proposal, versions.get(proposal.machine, 0))
    return Committed(versions, changed=bool(changes or counted))


def check_condition(condition: Mapping[str, int]) -> None:
    """Refuse what no machine can be like."""
    for name, value in condition.items():
        if name not in CONDITION:
            raise UnknownName("condition", "condition of a machine", name, CONDITION)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LIMITS[name]:
            raise InvalidInput(name, f"is {value!r}", f"use a whole number from 0 to {LIMITS[name]:,}")


def _count_failures(
    proposal: SetCondition, row: MachineRow, settling: Settling
) -> tuple[Mapping[str, int], tuple[Registered, ...]]:
    """A machine that goes from ready to down has failed, whoever says so; one that drains or is quarantined was out
    of use already. What was counted fades; what somebody says of failures stands, and nothing was counted then.
    """
    said, place = dict(proposal.condition), (FAILURES, proposal.machine)
    value = settling.facts.registry.get(place)
    now = before = read_entry(value)
    if "failures" in said:
        now = NONE
    else:
        faded = before.faded(proposal.record.at)
        failed = row.state == MachineState.READY and said.get("state") == MachineState.DOWN
        if failed:
            faded = faded.one_more()
        if failed or faded.number != before.number:
            now = faded
            counted = row.failures - before.number + now.number
            said["failures"] = min(max(0, counted), LIMITS["failures"])
    if now.entry == value:
        return said, ()
    return said, (settling.change_entry(place, now.entry),)
