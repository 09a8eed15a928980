"""What the verbs share that change clusters."""

from __future__ import annotations

from roost.store.ledger import ClusterRow
from roost.store.settle.settling import Settling


def recount(settling: Settling, name: str, cluster: ClusterRow) -> None:
    """A cluster is like this now; without machines it is no more."""
    facts, result = settling.facts, settling.result
    if cluster.machines:
        facts.clusters[name] = result.clusters[name] = cluster
    else:
        del facts.clusters[name]
        result.clusters[name] = None
