"""What goes into a settlement and what comes out of it: rows by name."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from roost.model.change import Entry
from roost.store.contract import Decided, Outcome
from roost.store.ledger import ClusterRow, MachineRow, TenantRow, VMRow


class Names(msgspec.Struct, eq=False):
    """Names of rows, as the verbs of a group put them together."""

    machines: set[str]
    tenants: set[str]
    vms: set[str]
    registry: set[tuple[str, str]]
    clusters: bool = False  # all of them, or none


class Needs(msgspec.Struct, eq=False):
    """The names of the rows that a group of proposals touches, each list in the order in which it is locked."""

    keys: list[str]
    machines: list[str]
    tenants: list[str]
    vms: list[str]
    clusters: bool  # all of them, or none
    registry: list[tuple[str, str]]


class Facts(msgspec.Struct, eq=False):
    """The freshest rows, those of `Needs` that exist. Settling changes them."""

    known: Mapping[str, Decided]
    machines: dict[str, MachineRow]
    tenants: dict[str, TenantRow]
    vms: dict[str, VMRow]
    clusters: dict[str, ClusterRow]
    registry: dict[tuple[str, str], str]
    limits: Mapping[tuple[str, str], str]  # all entries of the kinds that say what sums may be passed; see store/scopes


class Settlement(msgspec.Struct, eq=False):
    """What came of a group, and what is to be written. Rows that are to go are None."""

    outcomes: list[Outcome] = []
    entries: list[Entry] = []
    decided: dict[str, Decided] = {}
    machines: dict[str, MachineRow | None] = {}
    added: set[str] = set()  # of the machines, those that are new
    tenants: dict[str, TenantRow | None] = {}
    vms: dict[str, VMRow | None] = {}
    freed: set[str] = set()  # names of VMs that ran before and are released; others may have them
    clusters: dict[str, ClusterRow | None] = {}
    registry: dict[tuple[str, str], str | None] = {}
