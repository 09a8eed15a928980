"""What a commit asks the rules again: whoever decided hands its validators to the store with each group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from roost.model.request import VM
from roost.store.ledger import MachineRow


class CommitRows(Protocol):
    """The rows of one commit, under the rules' eyes: each placement is tested on what those before it left."""

    def place(self, machine: str, vm: VM, tenant: str) -> str | None:
        """Put a VM on a machine if every re-checked validator agrees; else why not."""

    def replace(self, machine: str, vm: VM, tenant: str) -> str | None:
        """Test a VM on a machine that holds the same for it, without that. The row is the same afterwards."""

    def remove(self, machine: str, vm: VM, tenant: str) -> None:
        """Take a VM off a machine."""

    def keep(self, machines: Iterable[str]) -> Any:
        """Machines as they are, to `put_back` if something does not work out."""

    def put_back(self, kept: Any) -> None:
        """Let machines be as they were when they were kept."""

    def set_condition(self, machine: str, field: str, value: int) -> None:
        """A machine's condition changed."""

    def has_rule(self, rule: str, tenant: str) -> bool:
        """Whether the policy that decides for a tenant has a rule of this name."""


class Recheck(Protocol):
    """The validators that are marked for re-check, as the engine runs them."""

    def on(self, rows: Sequence[MachineRow]) -> CommitRows:
        """Test placements on these rows."""

    def standing(self) -> StandingRecheck:
        """The same for one store, which tells it what it wrote: it remembers rows."""


class StandingRecheck(Protocol):
    """A re-check of one store."""

    def on(self, rows: Sequence[MachineRow]) -> CommitRows:
        """Test placements on these rows."""

    def written(self, rows: Iterable[MachineRow]) -> None:
        """Of the rows that were tested last, these are now what it made of them."""
