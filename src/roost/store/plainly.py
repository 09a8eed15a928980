"""Commits that no agent decides: they touch no machine that is there, so no rule has anything to say of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from roost.model.request import VM
from roost.store.contract import Outcome, Rejected
from roost.store.ledger import MachineRow


def insist(outcomes: Iterable[Outcome]) -> None:
    """Raise what a store found wrong with proposals."""
    for outcome in outcomes:
        if isinstance(outcome, Rejected):
            raise outcome.error


class NoMachines:
    """What a commit is re-checked by that touches no machine."""

    def on(self, rows: Sequence[MachineRow]) -> NoMachines:
        assert not rows
        return self

    def place(self, machine: str, vm: VM, tenant: str) -> str | None:
        raise NotImplementedError

    def replace(self, machine: str, vm: VM, tenant: str) -> str | None:
        raise NotImplementedError

    def remove(self, machine: str, vm: VM, tenant: str) -> None:
        raise NotImplementedError

    def keep(self, machines: Iterable[str]) -> Any:
        raise NotImplementedError

    def put_back(self, kept: Any) -> None:
        raise NotImplementedError

    def set_condition(self, machine: str, field: str, value: int) -> None:
        raise NotImplementedError

    def has_rule(self, rule: str, tenant: str) -> bool:
        raise NotImplementedError

    def standing(self) -> NoMachines:
        return self

    def written(self, rows: Iterable[MachineRow]) -> None:
        """Nothing was."""
