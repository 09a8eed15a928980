"""Add machines; a cluster begins with its first machine."""

from __future__ import annotations

import msgspec

from roost.model.change import ConditionChange, Entry
from roost.model.errors import InvalidInput
from roost.model.inventory import check_spec
from roost.store.contract import Commission, Committed, Outcome
from roost.store.ledger import STARTING, ClusterRow
from roost.store.settle.clusters import recount
from roost.store.settle.condition import check_condition
from roost.store.settle.rows import Names
from roost.store.settle.settling import Settling


def needs(proposal: Commission, names: Names) -> None:
    """The machines, which should not be there, and the clusters."""
    names.clusters = True
    names.machines.update([spec.name for spec in proposal.machines])


def settle(proposal: Commission, settling: Settling) -> Outcome:
    """All of them, or none."""
    new = _check(proposal, settling)
    facts, result = settling.facts, settling.result
    changes = []
    for spec in proposal.machines:
        row = facts.machines[spec.name] = settling.accounts.new_row(spec)
        result.machines[spec.name] = row
        result.added.add(spec.name)
        for field, value in proposal.conditions.get(spec.name, {}).items():
            changes.append(ConditionChange(spec.name, field, STARTING[field], value))
            setattr(row, field, value)
    for name, cluster in new.items():
        recount(settling, name, cluster)
    settling.decide(proposal)
    settling.enter(
        proposal,
        Entry(
            key=proposal.key,
            by=proposal.record.by,
            at=proposal.record.at,
            added=proposal.machines,
            conditions=tuple(changes),
        ),
    )
    return Committed()


def _check(proposal: Commission, settling: Settling) -> dict[str, ClusterRow]:
    """Refuse machines that the zone cannot have; the clusters as they will be with the others."""
    facts = settling.facts
    new: dict[str, ClusterRow] = {}
    names: set[str] = set()
    for spec in proposal.machines:
        check_spec(spec, settling.accounts.catalogue)
        if spec.name in facts.machines or spec.name in names:
            raise InvalidInput(f"machine {spec.name}", "is there already", "names must differ")
        if spec.name in settling.result.machines:
            raise InvalidInput(f"machine {spec.name}", "was removed in the same transaction", "add it later")
        cluster = new.get(spec.cluster) or facts.clusters.get(spec.cluster)
        if cluster and (cluster.datacenter, cluster.generation) != (spec.datacenter, spec.generation):
            was = f"{cluster.generation} in {cluster.datacenter}"
            raise InvalidInput(
                f"machine {spec.name}", f"does not match cluster {spec.cluster}, which is {was}", "use another one"
            )
        names.add(spec.name)
        cluster = cluster or ClusterRow(spec.datacenter, spec.generation, 0)
        new[spec.cluster] = msgspec.structs.replace(cluster, machines=cluster.machines + 1)
    for name, condition in proposal.conditions.items():
        if name not in names:
            raise InvalidInput("conditions", f"speak of {name}, which is not added", "leave it out")
        check_condition(condition)
    if not proposal.machines:
        raise InvalidInput("machines", "are none", "name at least one")
    return new
