"""A cluster keeps so many machines empty: what may not take them does not, however many decide at the same moment.

By the rule `keeps_empty_machines`, requests of a purpose stop in a cluster that has no more empty machines than its
threshold. What holds at the commit is what that is for: *no placement lets the number of empty machines fall below the
threshold of its purpose*. What takes no empty machine (it goes where others run, or frees as many) waits for nobody.
So an agent that knows all is never refused here what the rule allowed it: it took machines one by one while there were
more than the threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from roost.model.change import PlacedVM
from roost.model.registry import THRESHOLD
from roost.model.thresholds import NONE, PURPOSES, WORDS, Purpose, Thresholds, read_entry
from roost.store.contract import NOTHING, Proposal, Register
from roost.store.ledger import Accounts, MachineRow
from roost.store.settle.rows import Names
from roost.store.settle.settling import Settling
from roost.store.settle.table import VERBS

RULE = "keeps_empty_machines"  # policies without it know no thresholds


class EmptyMachines:
    """The thresholds of clusters, by what a request is for."""

    rows: Literal["machines"] = "machines"
    limits: str = THRESHOLD
    reason = "threshold"
    statement = "SELECT count(*) FROM (SELECT 1 FROM machines WHERE cluster = :scope AND is_empty LIMIT :most) AS found"

    def weight(self, row: MachineRow, accounts: Accounts) -> tuple[str, int]:
        """Its cluster has one more."""
        return row.spec.cluster, int(row.is_empty(accounts.resources))

    def scopes(self, group: Sequence[Proposal], settling: Settling) -> Mapping[str, int]:
        """Clusters where a machine that is empty, or may be by then, gets what it is kept from."""
        facts, said = settling.facts, []
        for each in group:
            if isinstance(each, Register) and each.kind == THRESHOLD:
                said.append(each)
        if not (said or facts.limits or settling.accounts.catalogue.thresholds):
            return NOTHING
        loosened, resources = _loosened(group), settling.accounts.resources
        found: dict[str, int] = {}
        for visit in filter(None, map(_visit_of, group)):
            for machine in visit.highest(settling):
                row = facts.machines.get(machine)
                if row is None or not (machine in loosened or row.is_empty(resources)):
                    continue
                cluster = row.spec.cluster
                kept = [_kept(cluster, settling), *_about(cluster, said, settling)]
                if any(each.row[visit.purpose] for each in kept) and settling.tested.has_rule(RULE, visit.tenant):
                    found[cluster] = max(each.new for each in kept) + len(facts.machines)
        return found

    def refuses(self, proposal: Proposal, settling: Settling, sum_of: Callable[[str], int]) -> str | None:
        """Fewer would be left than are kept from such requests."""
        visit = _visit_of(proposal)
        if visit is None or not settling.tested.has_rule(RULE, visit.tenant):
            return None
        for cluster, fall in visit.fall(settling).items():
            least = _kept(cluster, settling).row[visit.purpose]
            if fall > 0 < least and (empty := sum_of(cluster)) - fall < least:
                kept = f"{least:,} of its empty machines from {WORDS[visit.purpose]}"
                return f"cluster {cluster} keeps {kept}, and has {empty:,} by now"
        return None


class Visit(msgspec.Struct, frozen=True, gc=False):
    """What comes to machines by a proposal, and what leaves them for it."""

    tenant: str
    purpose: Purpose
    coming: Sequence[PlacedVM]
    going: Sequence[tuple[str, PlacedVM]] = ()  # and whose it is

    def highest(self, settling: Settling) -> Iterator[str]:
        """The machines that get something of the highest band."""
        bands = ("", settling.accounts.catalogue.bands[0])
        return (each.machine for each in self.coming if each.spec.priority in bands)

    def fall(self, settling: Settling) -> Mapping[str, int]:
        """By cluster: how many fewer empty machines it has then. One that only lower bands take counts as empty."""
        accounts, machines = settling.accounts, settling.facts.machines
        taken, fewer = set(self.highest(settling)), dict[str, int]()
        for name in dict.fromkeys((*taken, *(each.machine for _, each in self.going))):
            before = machines[name]
            after = before.copy()
            for tenant, each in self.going:
                if each.machine == name:
                    accounts.put(after, each.spec, tenant, -1)
            left = name not in taken and after.is_empty(accounts.resources)
            cluster = before.spec.cluster
            fewer[cluster] = fewer.get(cluster, 0) + before.is_empty(accounts.resources) - left
        return fewer


def _visit_of(proposal: Proposal) -> Visit | None:
    """What a proposal brings to machines, if it does, whatever kind it is."""
    if not proposal.placed:
        return None
    purpose = Purpose(PURPOSES.index(proposal.purpose))
    return Visit(proposal.tenant, purpose, proposal.placed, proposal.going)


def _loosened(group: Iterable[Proposal]) -> set[str]:
    """Machines that may be empty before the group is settled, though they are not now."""
    names = Names(set(), set(), set(), set())
    for each in group:
        if each.going or not each.placed:
            VERBS[type(each)].needs(each, names)
    return names.machines


def _kept(cluster: str, settling: Settling) -> Thresholds:
    """What a cluster keeps by now: as the registry says, or else the zone."""
    return _said(cluster, settling.limit(THRESHOLD, cluster), settling)


def _about(cluster: str, said: Iterable[Register], settling: Settling) -> Iterator[Thresholds]:
    """What a cluster may be told to keep before the group is settled."""
    return (_said(cluster, each.value, settling) for each in said if each.name == cluster)


def _said(cluster: str, value: str | None, settling: Settling) -> Thresholds:
    """What an entry of the registry says; without one, what the zone does."""
    return settling.accounts.catalogue.thresholds.get(cluster, NONE) if value is None else read_entry(value)
