"""Which decision put a VM where it is: by when it was first placed, or, if it has moved since, by the feed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from roost.store.backwards import Backwards
from roost.store.contract import Decided, Store
from roost.store.ledger import VMRow

PAGE = 100  # decisions that are read at once; those of a moment are few
MOST = 5_000  # revisions that are looked at for a VM that has moved


@dataclass(frozen=True)
class VMOrigin:
    """A decision, and which of its VMs a VM is; empty if it is forgotten."""

    key: str = ""
    which: int | None = None


def origin_of(store: Store, vm: str, row: VMRow) -> VMOrigin:
    """The decision that put a VM on its machine."""
    found = _first(store, vm, row.since) if row.since else None
    if found is not None and any(each.vm == vm and each.machine == row.machine for each in found.placed):
        return _origin(found, vm)
    for _, entry in Backwards(store, 2**62, row.since).entries(MOST):
        if any(each.vm == vm and each.machine == row.machine for each in entry.placed):
            decided = store.decided(entry.key)
            return _origin(decided, vm) if decided else VMOrigin(entry.key)
    return VMOrigin()


def _first(store: Store, vm: str, since: float) -> Decided | None:
    """The decision that placed a VM first of all, at a time."""
    before = math.nextafter(since, math.inf), ""
    while page := store.decisions(PAGE, before=before):
        for decided in page:
            if decided.record.at < since:
                return None
            if any(each.vm == vm for each in decided.placed):
                return decided
        before = page[-1].record.at, page[-1].key
    return None


def _origin(decided: Decided, vm: str) -> VMOrigin:
    places = [each.vm for each in decided.placed]
    return VMOrigin(decided.key, places.index(vm) if vm in places else None)
