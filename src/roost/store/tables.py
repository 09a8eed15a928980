"""What every store that keeps tables reads alike, whatever its dialect of SQL."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from roost.model.inventory import Catalogue
from roost.store.codec import Codec, decode_catalogue, decode_round
from roost.store.columns import ZoneColumns
from roost.store.contract import Decided, PolicyResult, Round
from roost.store.ledger import Accounts, Ledger, MachineRow, TenantRow, VMRow

BEYOND = "\U0010ffff" * 64  # no name comes after it
Read = Callable[..., list[Any]]  # the rows of a statement, by its name and values

SLICE = 2_000  # rows that are forgotten in one transaction


def slices(trimmed: int, decisions: float) -> tuple[tuple[str, float], ...]:
    """The statements that forget, with the point up to which they do; of `decisions` as the dialect tells it."""
    return (
        ("trim_some_feed", trimmed),
        ("trim_some_rounds", trimmed),
        ("trim_some_decisions", decisions),
    )


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
        """All rows of a statement, by a connection on which nobody waits who commits or follows the feed."""

    @abstractmethod
    def _page(self, name: str, *values: Any) -> list[Any]:
        """The same for many rows, by another connection: who looks up one thing does not wait for a list."""

    @abstractmethod
    def _survey(self, name: str, *values: Any) -> list[Any]:
        """The same for what reads a whole table, by yet another one: a page of a list does not wait for that."""

    @abstractmethod
    def _listed(self, names: Sequence[str]) -> Any:
        """A list of names as a statement takes it."""

    @abstractmethod
    def columns(self) -> ZoneColumns:
        """Everything, as of one revision."""

    def load(self) -> Ledger:
        """The same in rows."""
        return self.columns().ledger()

    @abstractmethod
    def _slices(self, read: Read, table: str) -> Iterator[tuple[str, ...]]:
        """A table in slices, so that none is too large for a text: the columns of each, as the codec reads them."""

    def _columns(self, read: Read) -> ZoneColumns:
        """Everything, by a way to read statements that all see the same state."""
        codec = self._codec
        ((last, _),) = read("head")
        return ZoneColumns(
            self.catalogue,
            last,
            codec.machines(self._slices(read, "machines")),
            codec.tenants(self._slices(read, "tenants")),
            codec.vms(self._slices(read, "vms")),
            dict(map(codec.cluster, read("all_clusters"))),
            {(kind, name): value for kind, name, value in read("all_registry")},
        )

    def head(self) -> tuple[int, int]:
        """The revision of the last entry of the feed, and of the last that was trimmed away."""
        ((last, trimmed),) = self._read("head")
        return last, trimmed

    def decided(self, key: str) -> Decided | None:
        """What came of a key."""
        rows = self._read("decisions", self._listed([key]))
        return self._codec.decided(rows[0]) if rows else None

    def decisions(
        self, limit: int = 100, *, before: tuple[float, str] | None = None, prefix: str = ""
    ) -> list[Decided]:
        """The latest decisions, latest first."""
        rows = self._page("list_decisions", *(before or (math.inf, "")), *_span(prefix), limit)
        return list(map(self._codec.decided, rows))

    def policy_results(self, since: float) -> list[PolicyResult]:
        """How each policy fared with the requests that were decided since a time."""
        return list(map(self._codec.policy_result, self._survey("policy_results", since)))

    def round(self, agent: str, number: int) -> Round | None:
        """What an agent saw."""
        rows = self._read("round", agent, number)
        return decode_round(rows[0][0]) if rows else None

    # --------------------------------------------------------------------------------------------- looking up

    def tenant(self, name: str) -> TenantRow | None:
        """A tenant that has VMs."""
        return dict(map(self._codec.tenant, self._read("tenants", self._listed([name])))).get(name)

    def tenants(self, after: str = "", limit: int = 100, prefix: str = "") -> list[tuple[str, TenantRow]]:
        """Tenants after a name, those with a prefix."""
        first, last = _span(prefix)
        return list(map(self._codec.tenant, self._page("list_tenants", max(first, after), last, after, limit)))

    def vm(self, name: str) -> VMRow | None:
        """A VM that runs."""
        return dict(map(self._codec.vm, self._read("vms", self._listed([name])))).get(name)

    def vms(
        self,
        after: str = "",
        limit: int = 100,
        *,
        tenant: str | None = None,
        machine: str | None = None,
        prefix: str = "",
    ) -> list[tuple[str, VMRow]]:
        """VMs after a name: of a tenant, on a machine, of tenants with a prefix."""
        if tenant is not None and not tenant.startswith(prefix):
            return []
        if machine is not None:
            span = _span(prefix) if tenant is None else (tenant, tenant)
            rows = self._page("list_vms_on_machine", machine, *span, after, limit)
        elif tenant is not None:
            rows = self._page("list_vms_of_tenant", tenant, after, limit)
        elif prefix:
            rows = self._page("list_vms_of_tenants", *_span(prefix), after, limit)
        else:
            rows = self._page("list_vms", after, limit)
        return list(map(self._codec.vm, rows))

    def machine(self, name: str) -> MachineRow | None:
        """A machine as it is now."""
        rows = self._read("machines", self._listed([name]))
        return self._codec.machine(rows[0]) if rows else None

    def registry(self, kind: str) -> dict[str, str]:
        """The present values of a kind, by name."""
        return dict(self._read("registry_of_kind", kind))

    def amounts(self) -> dict[str, tuple[Sequence[int], Sequence[int]]]:
        """What is used of each machine and what it has, by resource, as the database itself compares them."""
        return dict(map(self._codec.amounts, self._survey("amounts")))

    def counted(self) -> dict[str, tuple[str, bool]]:
        """The cluster of each machine, and whether it is empty, as sums at the commit count it."""
        return {name: (cluster, bool(empty)) for name, cluster, empty in self._survey("counted")}


def _span(prefix: str) -> tuple[str, str]:
    """All names with a prefix lie between these two, and no others do, by code point. Nothing in it is a wildcard."""
    return prefix, prefix + BEYOND
