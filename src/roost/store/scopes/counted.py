"""The sums that matter to one group: counted once, if any do, and kept up to date while the group is settled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from roost.model.change import Entry
from roost.store.contract import Proposal
from roost.store.scopes.check import Count, Scope, ScopeCheck
from roost.store.scopes.table import CHECKS
from roost.store.settle.settling import Behind, Settling


def hold_sums(group: Sequence[Proposal], settling: Settling, count: Count) -> None:
    """Have a group held to what speaks of sums. Mostly nothing does that it could break: then nothing is counted."""
    wanted = {
        Scope(name, scope): most
        for name, check in CHECKS.items()
        for scope, most in check.scopes(group, settling).items()
    }
    if wanted:
        settling.check_sums = Counted(count(wanted), settling).check


class Counted:
    """The sums of some scopes, as the proposals so far have left them.

    What those changed is told by their entries: of each row that one speaks of, the weight is taken anew.
    """

    def __init__(self, sums: Mapping[Scope, int], settling: Settling) -> None:
        """Before anything of the group is settled."""
        self._settling, self._sums = settling, dict(sums)
        self._checks = {scope.check: CHECKS[scope.check] for scope in sums}
        self._weights = {
            name: {row: self._weight(check, row) for row in self._rows(check)} for name, check in self._checks.items()
        }
        self._heard = 0  # entries that are in the sums

    def check(self, proposal: Proposal) -> None:
        """Raise if a proposal would break what holds of a sum."""
        self._hear()
        for name, check in self._checks.items():
            why = check.refuses(proposal, self._settling, lambda scope, of=name: self._sums[Scope(of, scope)])  # type: ignore[misc]
            if why:
                raise Behind(check.reason, why)

    def _hear(self) -> None:
        entries = self._settling.result.entries
        for entry in entries[self._heard :]:
            for name, check in self._checks.items():
                for row in _rows_of(entry, check):
                    self._change(name, check, row)
        self._heard = len(entries)

    def _change(self, name: str, check: ScopeCheck, row: str) -> None:
        """A row is another one, or gone."""
        was, now = self._weights[name].get(row, ("", 0)), self._weight(check, row)
        self._weights[name][row] = now
        for sign, (scope, amount) in ((-1, was), (1, now)):
            if (counted := Scope(name, scope)) in self._sums:
                self._sums[counted] += sign * amount

    def _rows(self, check: ScopeCheck) -> dict[str, Any]:
        found: dict[str, Any] = getattr(self._settling.facts, check.rows)
        return found

    def _weight(self, check: ScopeCheck, row: str) -> tuple[str, int]:
        there = self._rows(check).get(row)
        return check.weight(there, self._settling.accounts) if there is not None else ("", 0)


def _rows_of(entry: Entry, check: ScopeCheck) -> Iterator[str]:
    """The rows that an entry speaks of."""
    if check.rows == "machines":
        yield from entry.versions
        yield from (spec.name for spec in entry.added)
    else:
        yield from dict.fromkeys(each.vm for each in (*entry.released, *entry.placed))
