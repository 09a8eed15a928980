"""The kinds of entries that a zone's registry has: what those around the store agree on, one kind a line of `KINDS`.

    SetEntry ──▶ check (the agent that is asked) ──▶ store ──▶ feed ──▶ apply (every copy of the zone)

An entry has a kind, a name that is unique among its kind, and a value: a text, mostly JSON. A new kind is one line of
the table: the type its value is read as, what else must be so before it is written, and what a copy of the zone makes
of it.
Entries of kinds that are not in the table are kept and travel like all others: a newer worker may know them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from roost.model.errors import InvalidInput
from roost.model.failures import Failures
from roost.model.foresight import Foresight
from roost.model.stored import Activated, Shadowed, StoredToken, StoredWalk
from roost.model.thresholds import Thresholds
from roost.model.waiting import Waiting
from roost.model.zone import Zone

TOKEN, ACCESS = "token", "access"
POLICY, PAST_POLICY, ACTIVE = "policy", "past policy", "active"
FORESIGHT, THRESHOLD, WAITING = "foresight", "threshold", "waiting"
FAILURES, SILENT, MAINTENANCE = "failures", "silent", "maintenance"


class EntryTarget(Protocol):
    """A copy of a zone, as far as entries of the registry change what is decided on it."""

    def keep_empty(self, cluster: str, thresholds: Thresholds | None) -> None:
        """A cluster keeps so many empty machines; None: as the zone file says."""

    def foresee(self, foresight: Foresight | None) -> None:
        """This is what is expected to come; None: nothing is known."""

    def wait(self, vm: str, waiting: Waiting | None) -> None:
        """A VM that had to give way waits to be placed again; None: it waits no longer."""


def _leave(copy: EntryTarget, name: str, value: Any) -> None:
    """Nothing is decided by it."""


def _anything(zone: Zone, name: str, value: Any) -> None:
    """There is nothing else to check."""


@dataclass(frozen=True)
class Kind:
    """What there is to know of a kind of entry."""

    what: str  # a sentence: what an entry says, and what its name is
    value: Any = str  # what a value is, as JSON; str: a text that is taken as it is
    named: Mapping[str, Any] | None = None  # where each name has a type of its own: these are all the names
    check: Callable[[Zone, str, Any], None] = _anything  # raises if a value makes no sense for the zone
    apply: Callable[[EntryTarget, str, Any], None] = _leave  # what a copy of the zone makes of it; None: it is gone
    in_snapshots: bool = False  # decisions rest on it, so it goes where the zone goes
    where: str = ""  # what an error is about, instead of the kind and the name
    remedy: str = ""  # what to write instead of what cannot be read

    def type_of(self, name: str) -> Any:
        """What the value of an entry is."""
        return self.value if self.named is None else self.named.get(name, str)

    def read(self, name: str, value: str) -> Any:
        """A value as what it is."""
        kind = self.type_of(name)
        return value if kind is str else msgspec.json.decode(value, type=kind)


def _check_thresholds(zone: Zone, cluster: str, thresholds: Thresholds) -> None:
    thresholds.check_size(cluster, int(zone.clusters[zone.cluster(cluster)]["machines"]))


KINDS: dict[str, Kind] = {
    TOKEN: Kind("Who may do what; by the name of the token.", StoredToken),
    ACCESS: Kind("Whether requests without a token are let in.", named={"anonymous": str}),
    POLICY: Kind("The text of a policy, in YAML; by its name.", in_snapshots=True),
    PAST_POLICY: Kind("The text of a policy that has decided something; by its digest.", in_snapshots=True),
    ACTIVE: Kind(
        "Which policies decide, and which one beside them, in the shadow.",
        named={"policies": Activated, "shadow": Shadowed},
        in_snapshots=True,
    ),
    FORESIGHT: Kind(
        "What is expected to come; of the zone.",
        Foresight,
        apply=lambda copy, _, value: copy.foresee(value),
        in_snapshots=True,
    ),
    THRESHOLD: Kind(
        "How many machines a cluster keeps empty, instead of what the zone file says; by cluster.",
        Thresholds,
        check=_check_thresholds,
        apply=lambda copy, cluster, value: copy.keep_empty(cluster, value),
        in_snapshots=True,
        where="thresholds",
        remedy="give new, scale_out and healing as whole numbers",
    ),
    WAITING: Kind(
        "A VM that had to give way and wants to be placed again; by VM.",
        Waiting,
        apply=lambda copy, vm, value: copy.wait(vm, value),
        in_snapshots=True,
    ),
    FAILURES: Kind("The failures of a machine that were counted, which fade; by machine.", Failures),
    SILENT: Kind("A machine is down since it fell silent: after how many seconds, and what it was; by machine."),
    MAINTENANCE: Kind(
        "The maintenance walk under way, and the machines it took out of use.",
        named={"walk": StoredWalk, "machines": tuple[str, ...]},
    ),
}


def in_snapshots(kind: str) -> bool:
    """Whether decisions rest on entries of a kind, so that a snapshot of the zone takes them along."""
    return kind in KINDS and KINDS[kind].in_snapshots


def check_entry(zone: Zone, kind: str, name: str, value: str) -> None:
    """Refuse an entry that nobody could read, or that makes no sense for the zone."""
    known = KINDS.get(kind)
    if known is None:
        return
    try:
        read = known.read(name, value)
    except msgspec.MsgspecError as error:
        raise InvalidInput(known.where or f"{kind} {name}", str(error), known.remedy or known.what) from None
    known.check(zone, name, read)


def apply_entry(copy: EntryTarget, kind: str, name: str, value: str | None) -> None:
    """Let a copy of a zone be as an entry says."""
    known = KINDS.get(kind)
    if known is not None and known.apply is not _leave:
        known.apply(copy, name, None if value is None else known.read(name, value))
