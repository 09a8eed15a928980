"""The checks of scopes by name. A new one is a module beside this one, and a line here."""

from __future__ import annotations

from roost.store.scopes.check import ScopeCheck
from roost.store.scopes.empty_machines import EmptyMachines

CHECKS: dict[str, ScopeCheck] = {
    "empty machines": EmptyMachines(),  # a cluster keeps some machines empty, from those they are not kept for
}


def limit_kinds() -> list[str]:
    """The kinds of registry entries that limits stand in: they are read with every commit."""
    return [check.limits for check in CHECKS.values() if check.limits]
