"""The sums of a ledger in memory, by check and scope: added up when one is first asked for, and kept from then on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from roost.store.ledger import Ledger
from roost.store.scopes.check import Scope
from roost.store.scopes.table import CHECKS
from roost.store.settle.rows import Settlement


class LedgerSums:
    """What a store that is nothing but a ledger would have to add up anew at each commit."""

    def __init__(self, ledger: Ledger) -> None:
        """Whoever changes the ledger tells before (`change`), or has all of it added up again (`forget`)."""
        self._ledger, self._sums = ledger, dict[str, Counter[str]]()

    def count(self, scopes: Mapping[Scope, int]) -> dict[Scope, int]:
        """All that there is of each scope."""
        for name in {scope.check for scope in scopes} - self._sums.keys():
            sums = self._sums[name] = Counter[str]()
            for row in getattr(self._ledger, CHECKS[name].rows).values():
                self._add(name, sums, row, 1)
        return {scope: self._sums[scope.check][scope.name] for scope in scopes}

    def change(self, settled: Settlement) -> None:
        """These rows are about to take the place of those that the ledger has."""
        for name, sums in self._sums.items():
            rows = CHECKS[name].rows
            there = getattr(self._ledger, rows)
            for row, after in getattr(settled, rows).items():
                self._add(name, sums, there.get(row), -1)
                self._add(name, sums, after, 1)

    def forget(self) -> None:
        """The ledger is another one."""
        self._sums.clear()

    def _add(self, name: str, sums: Counter[str], row: object, sign: int) -> None:
        if row is not None:
            scope, amount = CHECKS[name].weight(row, self._ledger.accounts)
            sums[scope] += sign * amount
