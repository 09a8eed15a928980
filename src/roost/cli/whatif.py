"""`roost whatif`: questions about a zone, answered by doing it to a copy of the zone as it is now."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roost.cli import whatif_migrate, whatif_scarcity, whatif_scenario
from roost.cli.options import flat
from roost.cli.output import say
from roost.cli.whatif_source import Source
from roost.model.errors import InvalidInput

app = typer.Typer(
    help="Ask what would happen to the zone as it is now: migrate, lose, add, change the policy.", no_args_is_help=True
)
DENSER, CHANGE, ZONE = "Pack it better", "Change it", "Look at it"
app.command("migrate", rich_help_panel=DENSER)(whatif_migrate.migrate)
app.command("apply", rich_help_panel=DENSER)(whatif_migrate.apply)
app.command("policy", rich_help_panel=DENSER)(whatif_scenario.policy)
app.command("weights", rich_help_panel=DENSER)(whatif_scarcity.weights)
app.command("stranding", rich_help_panel=ZONE)(whatif_scarcity.stranding)
app.command("lose", rich_help_panel=CHANGE)(whatif_scenario.lose)
app.command("add-racks", rich_help_panel=CHANGE)(whatif_scenario.add_racks)
app.command("remove-rack", rich_help_panel=CHANGE)(whatif_scenario.remove_rack)
app.command("mix", rich_help_panel=CHANGE)(whatif_scenario.mix)
app.command("more", rich_help_panel=CHANGE)(whatif_scenario.more)


@app.command(rich_help_panel=ZONE)
@flat
def snapshot(
    source: Source,
    to: Annotated[Path, typer.Option("--to", help="The file to write.")] = Path("zone-now.json"),
) -> None:
    """Keep the zone as it is now in a file, to ask questions about it later or elsewhere. It has no tokens in it.

    \b
      roost whatif snapshot --to zone-now.json
      roost whatif migrate --snapshot zone-now.json
    """
    from roost.store.snapshot import encode_snapshot

    ledger = source.ledger()
    try:
        to.write_bytes(encode_snapshot(ledger))
    except OSError as error:
        raise InvalidInput(str(to), f"cannot be written: {error.strerror}") from None
    say(f"{to} holds {ledger.catalogue.name} at revision {ledger.revision:,}: {len(ledger.vms):,} VMs")
