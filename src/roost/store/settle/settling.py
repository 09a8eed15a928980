"""One group being settled: what its verbs read, what they have changed so far, and how they say what they did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from roost.model.change import Entry, PlacedVM, Registered
from roost.model.errors import InvariantBroken
from roost.store.contract import Decided, Proposal, Recorded
from roost.store.ledger import Accounts, MachineRow
from roost.store.recheck import CommitRows
from roost.store.settle.rows import Facts, Settlement


class LostRace(Exception):
    """A race was lost: whoever settles the group makes a `Conflict` of it. A verb raises it before it changes a row."""

    behind = False

    def __init__(self, reason: str, detail: str, machines: Sequence[str] = (), stamp: int | None = None) -> None:
        self.reason, self.detail, self.machines, self.stamp = reason, detail, machines, stamp


class Behind(LostRace):
    """It was lost as whoever decided knew too little: more than these rows has to be heard, to go on."""

    behind = True


class Settling:
    """The freshest rows, as the proposals so far have left them, and the settlement that grows meanwhile.

    `tested` has the machines' rows once more, as the rules read them: verbs keep the two in step.
    """

    def __init__(self, facts: Facts, accounts: Accounts, tested: CommitRows, first_stamp: int, strict: bool) -> None:
        self.facts, self.accounts, self.tested, self.strict = facts, accounts, tested, strict
        self.stamp = first_stamp  # of the proposal that is being settled
        self.started = {name: row.version for name, row in facts.machines.items()} if strict else {}
        self.result = Settlement()
        self.check_sums: Callable[[Proposal], None] | None = None  # raises if what holds of a sum would be broken
        self._admitted: Sequence[PlacedVM] = ()  # what may come to machines by the proposal that is being settled

    def admit(self, proposal: Proposal) -> None:
        """Let come to machines what a proposal tells; raises if what holds of a sum would be broken.

        A verb asks once all else holds, and before it changes a row.
        """
        if self.check_sums is not None:
            self.check_sums(proposal)
        self._admitted = proposal.placed

    def decide(
        self,
        proposal: Recorded,
        generation: int = 0,
        placed: tuple[PlacedVM, ...] = (),
        outcome: Literal["committed", "declined"] = "committed",
    ) -> None:
        """Remember what came of a key, so that it is answered alike when it is asked for again."""
        record = proposal.record
        self.result.decided[proposal.key] = Decided(
            key=proposal.key,
            outcome=outcome,
            request=proposal.request,
            record=msgspec.structs.replace(record, generation=generation) if generation else record,
            placed=placed,
        )

    def enter(self, proposal: Recorded, entry: Entry) -> None:
        """What a proposal changed goes into the feed, with its key, who asked for it and when."""
        if entry.placed and entry.placed is not self._admitted:
            _check_admitted(proposal, entry.placed, self._admitted)
        self.result.entries.append(entry)

    def touch(self, name: str, versions: dict[str, int]) -> MachineRow:
        """A machine row that this proposal changes, under its next version."""
        row = self.facts.machines[name]
        if name not in versions:
            row.version += 1
            versions[name] = row.version
            self.result.machines[name] = row
        return row

    def limit(self, kind: str, name: str) -> str | None:
        """An entry of the registry that says what a sum may not pass, as it is by now."""
        place = kind, name
        return self.result.registry[place] if place in self.result.registry else self.facts.limits.get(place)

    def change_entry(self, place: tuple[str, str], value: str | None) -> Registered:
        """Set an entry of the registry, by kind and name; None removes it."""
        now = self.facts.registry.get(place)
        self.result.registry[place] = value
        if value is None:
            del self.facts.registry[place]
        else:
            self.facts.registry[place] = value
        return Registered(*place, now, value)


def _check_admitted(proposal: Proposal, placed: Sequence[PlacedVM], admitted: Sequence[PlacedVM]) -> None:
    """What came to machines is what was admitted, whatever it is called: a verb that never asked is a bug."""
    if [(each.machine, each.spec) for each in placed] != [(each.machine, each.spec) for each in admitted]:
        raise InvariantBroken(f"{type(proposal).__name__} puts VMs on machines that it has not asked for (see `admit`)")
