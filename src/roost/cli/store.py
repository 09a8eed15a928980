"""`roost store`: make a store, look at it, keep its feed short."""

from __future__ import annotations

from typing import Annotated

import typer

from roost.cli.output import STORE, Form, Output, console, print_facts, print_json
from roost.model.spans import DAY

app = typer.Typer(help="Make a store, look at it, keep its feed short.", no_args_is_help=True)

Address = Annotated[str, typer.Argument(help=STORE)]


@app.command()
def create(
    store: Address,
    zone: Annotated[str, typer.Option(help="A zone file, or synthetic:SIZE.")],
) -> None:
    """Begin a new store with the machines of a zone. An address that holds a zone already is refused.

    \b
      roost store create zone.db --zone examples/zone.yaml
      roost store create postgresql://localhost/roost --zone synthetic:20000
    """
    from roost.wiring import find_zone, open_store

    described = find_zone(zone)
    opened = open_store(store, create=described)
    opened.close()
    console().print(f"{store} holds {described.name}: {len(described.machines):,} machines", highlight=False)


@app.command()
def status(store: Address, output: Output = Form.TABLE) -> None:
    """What a store holds: machines, tenants, VMs, and how far its feed goes."""
    from roost.wiring import open_store

    opened = open_store(store, read_only=True)
    ledger, (last, trimmed) = opened.load(), opened.head()
    opened.close()
    found = {
        "zone": ledger.catalogue.name,
        "revision": last,
        "feed_begins_after": trimmed,
        "clusters": len(ledger.clusters),
        "machines": len(ledger.machines),
        "tenants": len(ledger.tenants),
        "vms": len(ledger.vms),
    }
    if output is Form.JSON:
        print_json(found)
    else:
        print_facts({name.replace("_", " "): value for name, value in found.items()})


@app.command()
def trim(
    store: Address,
    keep: Annotated[int, typer.Option(help="Revisions of the feed to keep.", min=0)] = 1_000_000,
    decisions_days: Annotated[float, typer.Option(help="Days to remember decisions and keys for.", min=0.0)] = 30.0,
) -> None:
    """Forget old changes and decisions. Agents that were away for longer load the zone anew.

    Past decisions can be explained as far back as the feed reaches; a key is answered as it was the first time for as
    long as its decision is remembered.
    """
    from roost.wiring import open_store

    opened = open_store(store)
    begins = opened.trim(keep, decisions_days * DAY)
    opened.close()
    console().print(f"the feed begins after revision {begins:,}", highlight=False)
