"""A group of proposals: which rows it needs, and what comes of it on these rows."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from roost.model.errors import InvalidInput
from roost.store.contract import LARGEST_GROUP, Conflict, Decided, Outcome, Proposal, Rejected, Replayed
from roost.store.ledger import Accounts
from roost.store.recheck import Recheck, StandingRecheck
from roost.store.scopes.check import Count
from roost.store.scopes.counted import hold_sums
from roost.store.settle.rows import Facts, Names, Needs, Settlement
from roost.store.settle.settling import LostRace, Settling
from roost.store.settle.table import VERBS


def needs_of(group: Sequence[Proposal]) -> Needs:
    """What has to be read before a group can be settled."""
    if len(group) > LARGEST_GROUP:
        raise InvalidInput("group", f"has {len(group)} proposals", f"commit at most {LARGEST_GROUP} together")
    names = Names(set(), set(), set(), set())
    for proposal in group:
        VERBS[type(proposal)].needs(proposal, names)
    return Needs(
        keys=[proposal.key for proposal in group],
        machines=sorted(names.machines),
        tenants=sorted(names.tenants),
        vms=sorted(names.vms),
        clusters=names.clusters,
        registry=sorted(names.registry),
    )


def first_stamp(revision: int) -> int:
    """Stamps for the group that follows a revision: a group has fewer proposals than lie between two of these."""
    return (revision + 1) * LARGEST_GROUP


def settle(
    group: Sequence[Proposal],
    facts: Facts,
    accounts: Accounts,
    recheck: Recheck | StandingRecheck,
    count: Count,
    first_stamp: int,
    strict: bool = False,
) -> Settlement:
    """Settle proposals in order, each on what those before it left. Stamps count up from the first one.

    `count` is asked at most once, before anything is settled, and only if a sum over many rows matters to the group.
    """
    settling = Settling(facts, accounts, recheck.on(list(facts.machines.values())), first_stamp, strict)
    hold_sums(group, settling, count)
    result = settling.result
    conflicts: list[tuple[int, Sequence[str]]] = []  # and the machines to show as they are at the end
    for i, proposal in enumerate(group):
        answered = result.decided.get(proposal.key) or facts.known.get(proposal.key)
        try:
            if answered and (answered.outcome == "committed" or answered.request != proposal.request):
                result.outcomes.append(_replay(answered, proposal))
            else:
                result.outcomes.append(VERBS[type(proposal)].settle(proposal, settling))
        except LostRace as lost:
            conflicts.append((i, lost.machines))
            result.outcomes.append(Conflict(lost.reason, lost.detail, (), lost.stamp, lost.behind))
        except InvalidInput as error:
            result.outcomes.append(Rejected(error))
        settling.stamp += 1
    for i, names in conflicts:
        rows = tuple(facts.machines[name].copy() for name in names if name in facts.machines)
        result.outcomes[i] = msgspec.structs.replace(result.outcomes[i], machines=rows)
    return result


def _replay(answered: Decided, proposal: Proposal) -> Outcome:
    if answered.request != proposal.request:
        problem = f"{proposal.key!r} was used for another request"
        return Rejected(InvalidInput("key", problem, "use a new key for a new request"))
    return Replayed(answered)
