"""What every store that keeps tables reads alike, whatever its dialect of SQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from roost.model.inventory import Catalogue
from roost.store.codec import Codec, decode_catalogue, decode_round
from roost.store.contract import Decided, Round
from roost.store.ledger import Accounts, Ledger


class Tables(ABC):
    """The tables of a zone, by the names of the statements that read them."""

    catalogue: Catalogue
    _codec: Codec
    _accounts: Accounts

    def _know(self, catalogue: str) -> None:
        """Learn which zone it is."""
        self.catalogue = decode_catalogue(catalogue)
        self._codec, self._accounts = Codec(self.catalogue), Accounts(self.catalogue)

    @abstractmethod
    def _read(self, name: str, *values: Any) -> list[Any]:
        """All rows of a statement."""

    @abstractmethod
    def _listed(self, names: Sequence[str]) -> Any:
        """A list of names as a statement takes it."""

    def _ledger(self, read: Callable[[str], Iterable[Any]]) -> Ledger:
        """Everything, by a way to read statements that all see the same state."""
        codec = self._codec
        ((last, _),) = read("head")
        ledger = Ledger(self.catalogue, last)
        ledger.machines = {row.spec.name: row for row in map(codec.machine, read("all_machines"))}
        ledger.clusters = dict(map(codec.cluster, read("all_clusters")))
        ledger.tenants = dict(map(codec.tenant, read("all_tenants")))
        ledger.vms = dict(map(codec.vm, read("all_vms")))
        ledger.registry = {(kind, name): value for kind, name, value in read("all_registry")}
        return ledger

    def head(self) -> tuple[int, int]:
        """The revision of the last entry of the feed, and of the last that was trimmed away."""
        ((last, trimmed),) = self._read("head")
        return last, trimmed

    def decided(self, key: str) -> Decided | None:
        """What came of a key."""
        rows = self._read("decisions", self._listed([key]))
        return self._codec.decided(rows[0]) if rows else None

    def decisions(self, limit: int = 100) -> list[Decided]:
        """The latest decisions, latest first."""
        return list(map(self._codec.decided, self._read("latest_decisions", limit)))

    def round(self, agent: str, number: int) -> Round | None:
        """What an agent saw."""
        rows = self._read("round", agent, number)
        return decode_round(rows[0][0]) if rows else None

    def registry(self, kind: str) -> dict[str, str]:
        """The present values of a kind, by name."""
        return dict(self._read("registry_of_kind", kind))

    def amounts(self) -> dict[str, tuple[Sequence[int], Sequence[int]]]:
        """What is used of each machine and what it has, by resource, as the database itself compares them."""
        return dict(map(self._codec.amounts, self._read("amounts")))
