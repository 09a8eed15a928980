"""How often VMs of each type come, as the feed tells."""

from __future__ import annotations

import math

from roost.model.change import Entry
from roost.model.errors import InvalidInput
from roost.model.registry import WAITING
from roost.model.request import HOLD
from roost.model.spans import HOUR

HALF_LIFE = 6 * 3_600.0  # seconds after which an arrival counts half


class ArrivalRates:
    """How often VMs of each type and priority are placed, as a mean in which the past counts less and less."""

    def __init__(self, half_life: float = HALF_LIFE) -> None:
        if not half_life > 0:
            raise InvalidInput("half_life", f"is {half_life}", "use a number of seconds above 0")
        self._half_life = half_life
        self._counts: dict[tuple[str, str], float] = {}  # by type and priority: as of `_at`
        self._at = self._since = -math.inf
        self.noted = 0  # arrivals, so far

    def note(self, entry: Entry) -> None:
        """An entry of the feed: what it places for the first time has arrived."""
        moved = {each.vm for each in entry.released}
        moved.update(each.name for each in entry.registered if each.kind == WAITING)  # placed again
        for each in entry.placed:
            if each.vm not in moved and not each.vm.endswith(HOLD):
                self.add(each.spec.type, each.spec.priority, entry.at)

    def add(self, vm_type: str, priority: str, at: float) -> None:
        """A VM has arrived."""
        self._pass(at)
        self.noted += 1
        self._counts[vm_type, priority] = self._counts.get((vm_type, priority), 0.0) + 1.0

    def _pass(self, at: float) -> None:
        if self._since == -math.inf:
            self._at = self._since = at
        if at > self._at:
            fade = 0.5 ** ((at - self._at) / self._half_life)
            self._counts = {what: count * fade for what, count in self._counts.items() if count * fade > 1e-6}
            self._at = at

    def state(self) -> tuple[float, float, list[tuple[str, str, float]]]:
        """All of it, as plain data."""
        return self._at, self._since, [(*what, count) for what, count in self._counts.items()]

    def restore(self, state: tuple[float, float, list[tuple[str, str, float]]]) -> None:
        """Go on from a state."""
        self._at, self._since, counts = state
        self._counts = {(vm_type, priority): count for vm_type, priority, count in counts}

    def per_hour(self, at: float) -> dict[tuple[str, str], float]:
        """By type and priority."""
        self._pass(at)
        # The weights of all moments since the beginning add up to this many seconds.
        seconds = self._half_life / math.log(2) * (1.0 - 0.5 ** (max(1.0, at - self._since) / self._half_life))
        return {what: count / seconds * HOUR for what, count in self._counts.items()}
