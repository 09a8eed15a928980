"""What a check of a scope is: something that must hold of a sum over many rows, whoever else commits meanwhile.

    group ─▶ rows are read and locked ─▶ scopes it may take from ──none──▶ settled as ever: no lock, no statement
                                                  │
                                                  └──▶ their locks, then their sums ─▶ settled, each proposal on
                                                                                       what those before it left

A commit locks the machines that it touches, so what speaks of one machine holds. What speaks of many (the empty
machines of a cluster) could be broken by two commits that each keep it alone. Those that may break it wait for each
other; all others run side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from roost.store.contract import Proposal
from roost.store.ledger import Accounts
from roost.store.settle.settling import Settling


class Scope(msgspec.Struct, frozen=True, order=True, gc=False):
    """What a check adds up over: a cluster, the zone; one day a tenant's namespace, or a reservation."""

    check: str  # its name in the table
    name: str


# Counts scopes, under their locks. Each comes with how far it matters: of more than that, that much may be said.
Count = Callable[[Mapping[Scope, int]], Mapping[Scope, int]]


class ScopeCheck(Protocol):
    """Something that must hold of the sum over each of its scopes.

    - The sum of a scope is what the rows of one table weigh together in it (`weight`). `statement` has a database add
      up the same, so every store counts alike.
    - `scopes` names each scope of which `refuses` may want the sum, and how far it matters. Naming one costs a lock
      and a statement, so it names none where no limit could be passed. It is asked before anything of the group is
      settled: what earlier proposals may make of the rows is its business.
    - From when a sum is read until the group is committed, nobody else is settled who names the scope. Who does not
      name it is not waited for, and counts as having come later.
    - `refuses` is asked once all else holds, and before any row is changed. The sums are those of that moment: what
      earlier proposals of the group took or gave is in them.
    - Both decide by the rows, the limits and the rules in force that the settlement has, and read nothing else.
    """

    @property
    def rows(self) -> Literal["machines", "vms"]:
        """The table whose rows it adds up."""

    @property
    def limits(self) -> str:
        """The kind of registry entries that say what may be passed; empty: none do."""

    @property
    def reason(self) -> str:
        """Why a proposal is lost that would pass one."""

    @property
    def statement(self) -> str:
        """The SQL, the same for every database, that adds up the rows of `:scope`; it may stop counting at `:most`."""

    def weight(self, row: Any, accounts: Accounts) -> tuple[str, int]:
        """The scope that a row counts in, and what it adds to that."""

    def scopes(self, group: Sequence[Proposal], settling: Settling) -> Mapping[str, int]:
        """The scopes whose sums may matter to a group, and how far."""

    def refuses(self, proposal: Proposal, settling: Settling, sum_of: Callable[[str], int]) -> str | None:
        """Why a proposal may not be done; None if it may."""
