"""What a store remembers of each cluster: when its machines were down, and by how much its tenants grew."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from roost.model.rows import MachineState
from roost.store.contract import Decided, Store
from roost.store.history import entries_between
from roost.store.ledger import Ledger

PAGE = 1_000  # decisions read at once
DOWN = int(MachineState.DOWN)


class ClusterHistory(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in a cluster. Times are seconds since 1970."""

    cluster: str
    generation: str
    machines: int  # that it has now
    outages: list[tuple[float, float]]  # from when to when a machine was down
    growth: list[tuple[float, list[float]]]  # when a tenant grew, and the share of a machine that each new VM took


class ZoneHistory(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in a zone, as far back as the store remembers."""

    since: float
    until: float
    clusters: list[ClusterHistory]
    scale_outs: int = 0
    refused: int = 0  # of these


def read_history(store: Store, until: float) -> ZoneHistory:
    """All that the feed and the decisions tell, up to now."""
    ledger = store.load()
    clusters = {
        name: ClusterHistory(cluster=name, generation=row.generation, machines=row.machines, outages=[], growth=[])
        for name, row in sorted(ledger.clusters.items())
    }
    since = _read_outages(store, ledger, clusters, until)
    scale_outs = refused = 0
    for decided in _decisions(store):
        if decided.record.purpose == "scale_out":
            scale_outs += 1
            refused += decided.outcome == "declined"
            _note_growth(decided, ledger, clusters)
    return ZoneHistory(
        since=since, until=until, clusters=list(clusters.values()), scale_outs=scale_outs, refused=refused
    )


def _read_outages(store: Store, ledger: Ledger, clusters: dict[str, ClusterHistory], until: float) -> float:
    """Note when machines were down; returns since when that is known. A machine that was removed is forgotten."""
    _, trimmed = store.head()
    began: dict[str, float] = {}  # by machine, of those that are down
    since = until
    for _, entry in entries_between(store, trimmed, ledger.revision):
        if not entry.at:
            continue
        since = min(since, entry.at)
        for change in entry.conditions:
            if change.field != "state" or change.machine not in ledger.machines:
                continue
            if change.after == DOWN:
                began.setdefault(change.machine, entry.at)
            elif change.before == DOWN:
                outage = began.pop(change.machine, since), entry.at  # it may have been down when the feed begins
                clusters[ledger.machines[change.machine].spec.cluster].outages.append(outage)
    for machine, row in ledger.machines.items():
        if row.state == DOWN:
            clusters[row.spec.cluster].outages.append((began.get(machine, since), until))
    return since


def _decisions(store: Store) -> Iterator[Decided]:
    before = None
    while page := store.decisions(PAGE, before=before):
        yield from page
        before = page[-1].record.at, page[-1].key


def _note_growth(decided: Decided, ledger: Ledger, clusters: dict[str, ClusterHistory]) -> None:
    """How much of machines a scale-out took, cluster by cluster. What is of lower bands gives way, and is left out."""
    found: dict[str, list[float]] = {}
    highest = ("", ledger.catalogue.bands[0])
    for placed in decided.placed:
        row = ledger.machines.get(placed.machine)
        if row is None or placed.spec.priority not in highest:
            continue
        demand = ledger.catalogue.demand[placed.spec.type, row.spec.generation]
        shares = (need / has for need, has in zip(demand, row.spec.capacity, strict=True) if has)
        found.setdefault(row.spec.cluster, []).append(max(shares, default=0.0))
    for cluster, taken in found.items():
        clusters[cluster].growth.append((decided.record.at, taken))
