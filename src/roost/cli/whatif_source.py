"""Where a question about a zone takes the zone from, and the policy that answers by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roost.cli.options import Service
from roost.cli.output import STORE, read_input
from roost.model.errors import InvalidInput

if TYPE_CHECKING:
    from roost.engine.ruleset import PolicySplit
    from roost.rules.policy import Policy
    from roost.store.ledger import Ledger

PANEL = "Which zone; else that of the service"
PolicyOption = Annotated[
    str, typer.Option("--policy", help="By name or file; else the one that decides in the zone, else default.")
]


@dataclass(frozen=True)
class Source(Service):
    """A zone at one moment: of a service unless something else is named."""

    store: Annotated[str | None, typer.Option("--store", help=f"{STORE} It is only read.", rich_help_panel=PANEL)] = (
        None
    )
    snapshot: Annotated[
        Path | None, typer.Option("--snapshot", help="What `roost whatif snapshot` wrote.", rich_help_panel=PANEL)
    ] = None
    zone: Annotated[
        str | None, typer.Option("--zone", help="A zone file, or synthetic:SIZE; it is empty.", rich_help_panel=PANEL)
    ] = None

    def ledger(self) -> Ledger:
        """The zone as it is now."""
        from roost.store.snapshot import decode_snapshot
        from roost.wiring import find_zone, open_store

        named = [name for name in ("store", "snapshot", "zone") if getattr(self, name) is not None]
        if len(named) > 1:
            raise InvalidInput(f"--{named[1]}", f"goes not with --{named[0]}", "name one zone")
        if self.snapshot is not None:
            return decode_snapshot(read_input(str(self.snapshot)), str(self.snapshot))
        if self.store is None and self.zone is None:
            with self.open() as client:
                return decode_snapshot(client.snapshot())
        described = find_zone(self.zone) if self.zone is not None else None
        opened = open_store(self.store or "memory:", read_only=True, create=described)
        try:
            return opened.load()
        finally:
            opened.close()


def policy_of(ledger: Ledger, name: str) -> PolicySplit:
    """A policy by name or file; without a name, what decides in the zone."""
    from roost.api.policies import PolicyBook
    from roost.engine.ruleset import PolicySplit

    book = PolicyBook(ledger.registry)
    return PolicySplit(named_policy(ledger, name)) if name else book.split(named_policy(ledger, "default"))


def named_policy(ledger: Ledger, name: str) -> Policy:
    """A policy of the zone's own, one that comes with Roost, or the one in a file."""
    from roost.api.policies import PolicyBook
    from roost.wiring import find_policy

    book = PolicyBook(ledger.registry)
    return book.find(name) if name in book.texts else find_policy(name)


def policy_text(ledger: Ledger, name: str) -> tuple[Policy, str, Path]:
    """A policy, its text and where its own rules start from; without a name, the one that decides in the zone."""
    from roost.api.policies import PolicyBook
    from roost.rules.policy import shipped_policies

    book = PolicyBook(ledger.registry)
    if not name:
        name = book.in_force.policy if book.in_force else "default"
    chosen = named_policy(ledger, name)
    if name in book.texts or name in shipped_policies():
        return chosen, book.text(name), Path(f"{name}.yaml")
    return chosen, Path(name).read_text(), Path(name)
