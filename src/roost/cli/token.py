"""`roost token`: who may ask the service for what."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from roost.cli.options import ServiceOptions, StoreOption, flat
from roost.cli.output import Form, Output, advise, decode, print_json, print_table, say, when
from roost.model.errors import InUse, InvalidInput, UnknownName
from roost.model.tokens import check_name

if TYPE_CHECKING:
    from roost.store.contract import Store
    from roost.wire.tokens import NewToken, TokenMade, TokenView

app = typer.Typer(help="Make tokens, list them, revoke them.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="What it is called in the audit trail.", metavar="NAME")]
BY = "roost token"  # who, if it was done without a service


class ScopeName(StrEnum):
    """What a token can allow. All of them allow to read; admin allows everything."""

    READ = "read"
    ALLOCATE = "allocate"
    OPERATE = "operate"
    ADMIN = "admin"


@app.command()
@flat
def create(
    name: Name,
    service: ServiceOptions,
    scope: Annotated[list[ScopeName], typer.Option("--scope", help="What it allows; repeatable.")],
    namespace: Annotated[
        str, typer.Option("--namespace", help="Bind it to tenants called NS or NS.something.", metavar="NS")
    ] = "",
    days: Annotated[float, typer.Option("--days", help="Until it expires; 0: never.", min=0)] = 0.0,
    store: StoreOption = None,
    output: Output = Form.TABLE,
) -> None:
    """Make a token. It is printed alone, and this once. The first one of a zone must have scope admin.

    Before a service listens beyond loopback it needs a token; make the first one on its store. That works beside a
    service, too, if every other token is lost: it takes the new one over at once.

    \b
      TOKEN=$(roost token create ci --scope allocate --namespace shop --days 90)
      roost token create admin --scope admin --store roost.db
      roost token create grafana --scope read
    """
    from roost.wire.tokens import NewToken

    scopes = [each.value for each in scope]
    wanted = decode({"name": name, "scopes": scopes, "namespace": namespace, "days": days}, NewToken, "token")
    if store is not None:
        made = _make(store, wanted)
    else:
        with service.open() as client:
            made = client.create_token(name, wanted.scopes, namespace=namespace, days=days)
    if output is Form.JSON:
        print_json(made)
    else:
        say(made.token)
        until = f" until {when(made.expires)}" if made.expires else ""
        advise(f"{name} may {', '.join(made.scopes)}{until}. Keep the token now: it is shown this once.")
        advise("Use it with:  export ROOST_TOKEN=…")


@app.command("list")
@flat
def list_tokens(service: ServiceOptions, store: StoreOption = None, output: Output = Form.TABLE) -> None:
    """All tokens, without their secrets."""
    if store is not None:
        found = _list(store)
    else:
        with service.open() as client:
            found = list(client.list_tokens().items)
    if output is Form.JSON:
        print_json(found)
        return
    print_table(
        ("name", "scopes", "namespace", "created", "by", "expires"),
        (
            (t.name, ", ".join(t.scopes), t.namespace, when(t.created), t.created_by, when(t.expires) or "never")
            for t in found
        ),
    )


@app.command()
@flat
def revoke(
    name: Name,
    service: ServiceOptions,
    force: Annotated[bool, typer.Option("--force", help="Also the last one with scope admin.")] = False,
    store: StoreOption = None,
) -> None:
    """Revoke a token: from now on it opens nothing.

    The last one with scope admin is kept, unless you force it: nobody could make others, but on the store itself.
    """
    check_name("name", name)
    if store is not None:
        _revoke(store, name, force)
    else:
        with service.open() as client:
            client.revoke_token(name, force=force)
    say(f"revoked {name}")


# --------------------------------------------------------------------------------------------- without a service


@contextmanager
def _opened(store: str, *, read_only: bool = False) -> Iterator[Store]:
    from roost.wiring import open_store

    opened = open_store(store, read_only=read_only)
    try:
        yield opened
    finally:
        opened.close()


def _make(store: str, wanted: NewToken) -> TokenMade:
    from roost.api.tokens import TokenBook
    from roost.model.registry import TOKEN
    from roost.wiring import register

    try:
        with _opened(store) as opened:
            made, kept = TokenBook(opened.registry(TOKEN)).make(wanted, time.time(), BY)
            register(opened, TOKEN, wanted.name, kept, BY)
    except InUse as error:
        return _hand_over(store, wanted, error)
    return made


def _hand_over(store: str, wanted: NewToken, refused: InUse) -> TokenMade:
    """Have the service that has a file open make the token."""
    from roost.api.letters import leave
    from roost.api.tokens import TokenBook
    from roost.model.registry import TOKEN

    with _opened(store, read_only=True) as opened:
        made, kept = TokenBook(opened.registry(TOKEN)).make(wanted, time.time(), BY)
        taken = leave(store, wanted.name, kept)
        there = opened.registry(TOKEN).get(wanted.name)
    if there == kept:
        return made
    if taken:
        raise InvalidInput("name", "the service did not take it", "its log says why")
    raise refused


def _list(store: str) -> list[TokenView]:
    from roost.api.tokens import TokenBook
    from roost.model.registry import TOKEN

    with _opened(store, read_only=True) as opened:
        return TokenBook(opened.registry(TOKEN)).views()


def _revoke(store: str, name: str, force: bool) -> None:
    from roost.api.tokens import CLOSED, LAST_ADMIN, TokenBook
    from roost.model.registry import TOKEN
    from roost.wiring import register

    with _opened(store) as opened:
        book = TokenBook(opened.registry(TOKEN))
        if name not in book.tokens:
            raise UnknownName("name", "token", name, book.tokens)
        if not force and book.is_last_admin(name, time.time()):
            raise InvalidInput("name", f"{name} {LAST_ADMIN}")
        register(opened, *CLOSED, "closed", BY)
        register(opened, TOKEN, name, None, BY)
