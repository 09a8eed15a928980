"""Does a store contradict itself? What it keeps twice must agree, and what is safely repairable can be repaired.

A VM's row is the truth about where it runs. Sums kept beside the VMs (what a machine holds, how many VMs a tenant
has) can be added up again; a VM too many, or one that the feed has never heard of, is for people to look at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from roost.model.errors import InvariantBroken, RoostError
from roost.store.contract import Mending, Store
from roost.store.history import entries_between
from roost.store.ledger import HOLDINGS, Finding, Ledger, TenantRow, replayed


class AuditReport(msgspec.Struct, frozen=True):
    """The outcome of an audit."""

    revision: int
    machines: int
    tenants: int
    vms: int
    replayed_from: int  # 0: the feed was replayed from the very beginning
    findings: tuple[Finding, ...]

    @property
    def clean(self) -> bool:
        """Nothing was found."""
        return not self.findings


def audit(store: Store) -> AuditReport:
    """Check everything, changing nothing. May run while others work."""
    ledger = store.load()
    _, trimmed = store.head()
    found = [*ledger.check_invariants(), *_columns(store, ledger), *_feed(store, ledger, trimmed)]
    return AuditReport(
        revision=ledger.revision,
        machines=len(ledger.machines),
        tenants=len(ledger.tenants),
        vms=len(ledger.vms),
        replayed_from=trimmed,
        findings=tuple(found),
    )


def check_invariants(store: Store) -> None:
    """Raise unless the store agrees with itself."""
    if found := audit(store).findings:
        raise InvariantBroken(f"{found[0].what} ({len(found)} findings)")


def repair(store: Store) -> Mending:
    """Add up again what can be added up, while nobody else writes. Every agent then loads its copy anew."""
    return store.repair(lambda ledger: mending(ledger, store.amounts(), store.counted()))


def mending(
    ledger: Ledger,
    amounts: Mapping[str, tuple[Sequence[int], Sequence[int]]] | None = None,
    counted: Mapping[str, tuple[str, bool]] | None = None,
) -> Mending:
    """The sums that have to be overwritten so that they are those of the VMs."""
    fresh, members = ledger.added_up()
    machines = []
    for name, row in ledger.machines.items():
        good, taken = fresh[name], fresh[name].taken(ledger.accounts.resources)
        if any(used > capacity for used, capacity in zip(taken, row.spec.capacity, strict=True)):
            continue  # over capacity: adding up does not help
        columns_differ = amounts is not None and amounts.get(name, ((), ()))[0] != taken
        if counted is not None and name in counted:
            columns_differ |= counted[name][1] != good.is_empty(ledger.accounts.resources)
        if columns_differ or any(getattr(row, field) != getattr(good, field) for field in HOLDINGS):
            mended = row.copy()
            for field in HOLDINGS:
                setattr(mended, field, getattr(good, field))
            mended.version += 1
            machines.append(mended)
    tenants: dict[str, TenantRow | None] = {}
    for name, tenant in ledger.tenants.items():
        if (count := members.get(name, 0)) != tenant.vms:
            tenants[name] = msgspec.structs.replace(tenant, vms=count) if count else None
    return Mending(machines, tenants)


def _columns(store: Store, ledger: Ledger) -> Iterator[Finding]:
    """The amounts that the database compares are those that the rows add up to."""
    if store.head()[0] != ledger.revision:
        return  # others have written since
    for name, (used, capacity) in store.amounts().items():
        row = ledger.machines[name]
        if list(used) != (taken := row.taken(ledger.accounts.resources)):
            yield Finding("columns", f"machine {name}: the columns say {list(used)}, the row {taken}", repairable=True)
        if tuple(capacity) != row.spec.capacity:
            yield Finding("columns", f"machine {name}: the columns say it has {capacity}, not {row.spec.capacity}")
    for name, (cluster, empty) in store.counted().items():
        row = ledger.machines[name]
        if empty != row.is_empty(ledger.accounts.resources):
            said = "is empty" if empty else "is not empty"
            yield Finding("columns", f"machine {name}: it is counted as if it {said}", repairable=True)
        if cluster != row.spec.cluster:
            yield Finding("columns", f"machine {name}: it is counted for cluster {cluster!r}, not {row.spec.cluster!r}")


def _feed(store: Store, ledger: Ledger, trimmed: int) -> Iterator[Finding]:
    """The feed, replayed from nothing, makes the tables. If it was trimmed: undone as far as it goes, and redone."""
    try:
        entries = [entry for _, entry in entries_between(store, trimmed, ledger.revision)]
        if trimmed == 0:
            again = replayed(ledger.catalogue, entries)
        else:
            again = store.load()
            for _, entry in reversed(list(entries_between(store, trimmed, again.revision))):
                again.undo(entry)
            for entry in entries:
                again.apply(entry)
    except (RoostError, KeyError) as error:
        yield Finding("feed", f"the feed contradicts the tables: {error}")
        return
    for what in again.differences(ledger):
        yield Finding("feed", f"by the feed, {what}")
