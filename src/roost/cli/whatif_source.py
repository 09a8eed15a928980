"""Where a question about a zone takes the zone from, and the policy that answers by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roost.cli.options import Rules, ServiceOptions, own_rules
from roost.cli.output import STORE, advise, read_input
from roost.model.errors import InvalidInput

if TYPE_CHECKING:
    from roost.api.policies import PolicyBook
    from roost.engine.ruleset import PolicySplit
    from roost.rules.own import OwnRules
    from roost.rules.policy import Policy
    from roost.store.ledger import Ledger

PANEL = "Which zone; else that of the service"
PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy", help="By name or file; else the one that is activated; else the service's, or that of the settings."
    ),
]


@dataclass(frozen=True)
class Source(ServiceOptions):
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
    rules: Rules = None

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

    def policy(self, ledger: Ledger, name: str = "") -> PolicySplit:
        """A policy by name or file; without a name, what decides in the zone."""
        from roost.engine.ruleset import PolicySplit

        if name:
            return PolicySplit(self.named_policy(ledger, name))
        book = _book(ledger, self.own_rules())
        return PolicySplit(self._unactivated(ledger)[0]) if book.in_force is None else book.split(book.find("default"))

    def policy_text(self, ledger: Ledger, name: str = "") -> tuple[Policy, str, Path]:
        """A policy, its text and where its own rules start from; without a name, the one that decides in the zone."""
        chosen = _book(ledger, self.own_rules()).in_force
        if not name and chosen is None:
            return self._unactivated(ledger)
        name = name or (chosen.policy if chosen else "")
        return self.named_policy(ledger, name), *_text(ledger, name)

    def named_policy(self, ledger: Ledger, name: str) -> Policy:
        """A policy of the zone's own, one that comes with Roost, or the one in a file."""
        return named_policy(ledger, name, self.own_rules())

    def own_rules(self) -> OwnRules:
        """Rules of the user's own that policies may name."""
        return own_rules(self.rules, self.config)

    def _unactivated(self, ledger: Ledger) -> tuple[Policy, str, Path]:
        """What decides as long as no policy is activated: what the service was started with, else the settings'."""
        if self.store is None and self.snapshot is None and self.zone is None:
            return self._of_service()
        import os

        from roost.settings import load

        loaded = load(self.config, os.environ, {})
        name = loaded.settings.agent.policy
        advise(f"no policy is activated in the zone; by {name}, of the settings ({loaded.sources['agent.policy']})")
        return self.named_policy(ledger, name), *_text(ledger, name)

    def _of_service(self) -> tuple[Policy, str, Path]:
        """The policy that decides in the service."""
        from roost.client import ServiceProblem
        from roost.rules.policy import Policy

        with self.open() as client:
            active = client.active_policy()
            try:
                text = client.get_policy(active.policy).text
            except ServiceProblem as problem:
                if problem.code != "roost.not_found":
                    raise
                text = ""
        path = Path(f"{active.policy}.yaml")
        found = Policy.parse(text, path, self.own_rules(), only_named=True) if text else None
        if found is None or found.digest != active.digest:
            problem_ = f"the service decides by {active.policy} {active.digest}, from a file of its own"
            raise InvalidInput("--policy", problem_, "give that file with --policy")
        return found, text, path


def named_policy(ledger: Ledger, name: str, rules: OwnRules) -> Policy:
    """A policy of the zone's own, one that comes with Roost, or the one in a file."""
    from roost.wiring import find_policy

    book = _book(ledger, rules)
    return book.find(name) if name in book.texts else find_policy(name, rules)


def _book(ledger: Ledger, rules: OwnRules) -> PolicyBook:
    import msgspec

    from roost.api.policies import PolicyBook

    try:
        return PolicyBook(ledger.registry, rules=rules)
    except msgspec.MsgspecError as error:
        problem = f"what it says of the policy that is activated makes no sense: {error}"
        raise InvalidInput("zone", problem, "activate one again, and take the snapshot again") from None


def _text(ledger: Ledger, name: str) -> tuple[str, Path]:
    """A policy's text, and where its own rules start from."""
    from roost.rules.own import NONE
    from roost.rules.policy import shipped_policies

    book = _book(ledger, NONE)
    if name in book.texts or name in shipped_policies():
        return book.text(name), Path(f"{name}.yaml")
    return Path(name).read_text(), Path(name)
