"""VMs that had to give way and wait, as a copy of a store knows them: each is read once, and found by its tenant."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

from roost.model.waiting import Waiting

REMEMBERED = 65_536  # changes, for those who follow


class WaitingBook:
    """What waits, by VM. Whoever follows asks for those that changed since it last did."""

    def __init__(self) -> None:
        self.vms: dict[str, Waiting] = {}
        self._tenants: dict[str, dict[str, None]] = {}
        self._changed: deque[str] = deque(maxlen=REMEMBERED)
        self.changes = 0

    def note(self, vm: str, now: Waiting | None) -> None:
        """A VM waits, as the registry says, or waits no longer."""
        if (before := self.vms.pop(vm, None)) is not None:
            of = self._tenants[before.tenant]
            del of[vm]
            if not of:
                del self._tenants[before.tenant]
        if now is not None:
            self.vms[vm] = now
            self._tenants.setdefault(now.tenant, {})[vm] = None
        self._changed.append(vm)
        self.changes += 1

    def of(self, tenant: str) -> tuple[str, ...]:
        """Those of a tenant."""
        return tuple(self._tenants.get(tenant, ()))

    def changed(self, since: int) -> Iterable[str] | None:
        """The VMs that changed after so many changes; None if that is too long ago."""
        news = self.changes - since
        if news > len(self._changed):
            return None
        return list(islice(reversed(self._changed), news))[::-1]
