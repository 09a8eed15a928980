"""Remove machines that run nothing; a cluster ends with its last machine."""

from __future__ import annotations

import msgspec

from roost.model.change import ConditionChange, Entry, QuarantineChange
from roost.model.errors import InvalidInput, UnknownName
from roost.model.registry import FAILURES
from roost.store.contract import Committed, Decommission, Outcome
from roost.store.ledger import STARTING
from roost.store.settle.clusters import recount
from roost.store.settle.rows import Names
from roost.store.settle.settling import Settling


def needs(proposal: Decommission, names: Names) -> None:
    """The machines, what was counted of their failures, and the clusters."""
    names.clusters = True
    names.machines.update(proposal.machines)
    names.registry.update([(FAILURES, name) for name in proposal.machines])


def settle(proposal: Decommission, settling: Settling) -> Outcome:
    """All of them, or none. The feed says how they were, so that the past can be rebuilt."""
    _check(proposal, settling)
    facts = settling.facts
    specs, changes, reopened, forgotten = [], [], [], []
    versions: dict[str, int] = {}
    for name in proposal.machines:
        row = facts.machines.pop(name)
        if (FAILURES, name) in facts.registry:
            forgotten.append(settling.change_entry((FAILURES, name), None))
        versions[name] = row.version + 1
        specs.append(row.spec)
        changes += [
            ConditionChange(name, field, getattr(row, field), start)
            for field, start in STARTING.items()
            if getattr(row, field) != start
        ]
        settling.result.machines[name] = None
        cluster = facts.clusters[row.spec.cluster]
        if cluster.machines == 1 and cluster.quarantined:
            reopened.append(QuarantineChange(row.spec.cluster, True, False))
        recount(settling, row.spec.cluster, msgspec.structs.replace(cluster, machines=cluster.machines - 1))
    settling.decide(proposal)
    settling.enter(
        proposal,
        Entry(
            key=proposal.key,
            by=proposal.record.by,
            at=proposal.record.at,
            removed=tuple(specs),
            conditions=tuple(changes),
            quarantines=tuple(reopened),
            registered=tuple(forgotten),
            versions=versions,
        ),
    )
    return Committed()


def _check(proposal: Decommission, settling: Settling) -> None:
    """They are there, run nothing, and are not all that there is."""
    facts = settling.facts
    for name in proposal.machines:
        if name not in facts.machines:
            raise UnknownName("machine", "machine", name, None)
        if count := facts.machines[name].vms:
            raise InvalidInput(f"machine {name}", f"runs {count} VMs", "drain it and release them first")
        if name in settling.result.added:
            raise InvalidInput(f"machine {name}", "was added in the same transaction", "remove it later")
    if not proposal.machines or len(set(proposal.machines)) < len(proposal.machines):
        raise InvalidInput("machines", "are none, or repeat themselves", "name each once")
    if sum(cluster.machines for cluster in facts.clusters.values()) == len(proposal.machines):
        raise InvalidInput("machines", "are all that the zone has", "leave at least one")
