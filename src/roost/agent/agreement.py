"""Whether a copy is what it should be: rows and books agree, and both with the store at the same revision."""

from __future__ import annotations

from roost.agent.replica import Replica, holdings_of
from roost.model.errors import InvariantBroken
from roost.model.registry import THRESHOLD
from roost.model.thresholds import NONE, of_row, read_entry
from roost.store.ledger import Ledger


def check_sums(replica: Replica) -> None:
    """Raise unless the rows are what the books add up to. Only while nothing is adopted."""
    if not replica.adopted:
        replica.allocator.check_invariants()


def check_against(replica: Replica, ledger: Ledger) -> None:
    """Raise unless the copy is what a store holds at the same revision; only while nothing runs ahead."""
    check_sums(replica)
    if found := differences(replica, ledger):
        raise InvariantBroken(f"{found[0]} ({len(found)} differences)")


def differences(replica: Replica, ledger: Ledger) -> list[str]:
    """Where the copy differs from the store at the same revision; only while nothing runs ahead."""
    assert ledger.revision == replica.revision
    assert not replica.ahead
    assert not replica.adopted
    allocator = replica.allocator
    names = allocator.zone.machine_names
    found = []
    mine = {name: (vm.tenant, vm.placed) for name, vm in allocator.vms.items()}
    theirs = {name: (vm.tenant, vm.placed) for name, vm in ledger.vms.items()}
    for name in mine.keys() | theirs.keys():
        if mine.get(name) != theirs.get(name):
            found.append(f"VM {name} is {mine.get(name)}, in the store {theirs.get(name)}")
    everything = list(range(len(names)))
    for row in holdings_of(allocator, everything, [ledger.machines[name].version for name in names]):
        if row != (there := ledger.machines[row.spec.name]):
            found.append(f"machine {row.spec.name} is {row}, in the store {there}")
    for name, tenant in ledger.tenants.items():
        known = allocator.tenants.get(name)
        if known is None or (known.constraints, known.stamp, len(known.vms)) != (
            tenant.constraints, tenant.stamp, tenant.vms,
        ):  # fmt: skip
            found.append(f"tenant {name} is {known}, in the store {tenant}")
    for c, name in enumerate(allocator.zone.cluster_names):
        if bool(replica.view.clusters[c]["quarantined"]) != ledger.clusters[name].quarantined:
            found.append(f"cluster {name} is quarantined in one of copy and store")
        entry, kept = ledger.registry.get((THRESHOLD, name)), of_row(replica.view.clusters[c]["thresholds"])
        if kept != (read_entry(entry) if entry else ledger.catalogue.thresholds.get(name, NONE)):
            found.append(f"cluster {name} has other thresholds in the store than {kept}")
    return found
