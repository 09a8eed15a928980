"""Take a cluster out of use for new VMs, or back."""

from __future__ import annotations

import msgspec

from roost.model.change import Entry, QuarantineChange
from roost.model.errors import UnknownName
from roost.store.contract import Committed, Outcome, SetQuarantine
from roost.store.settle.clusters import recount
from roost.store.settle.rows import Names
from roost.store.settle.settling import Settling


def needs(_proposal: SetQuarantine, names: Names) -> None:
    """The clusters: they are all read together."""
    names.clusters = True


def settle(proposal: SetQuarantine, settling: Settling) -> Outcome:
    """What is so already is done, and changes nothing."""
    cluster = settling.facts.clusters.get(proposal.cluster)
    if cluster is None:
        raise UnknownName("cluster", "cluster", proposal.cluster, None)
    if changed := cluster.quarantined != proposal.quarantined:
        change = QuarantineChange(proposal.cluster, cluster.quarantined, proposal.quarantined)
        recount(settling, proposal.cluster, msgspec.structs.replace(cluster, quarantined=proposal.quarantined))
        settling.enter(
            proposal, Entry(key=proposal.key, by=proposal.record.by, at=proposal.record.at, quarantines=(change,))
        )
    settling.decide(proposal)
    return Committed(changed=changed)
