"""`roost foresight`: what is to be expected, which is where VMs of low priority are safe, through the service."""

from __future__ import annotations

from typing import Annotated

import typer

from roost.cli.options import DryRun, Key, ServiceOptions, flat
from roost.cli.output import Form, Output, advise, print_json, print_table, when
from roost.cli.tenant import show_done
from roost.model.errors import InvalidInput

HELP = """How many VMs of each type are expected in an hour.

VMs of lower priority are placed where it takes longest until those that are expected make them give way (the rule
`safest`). The service reads from its history how often VMs come; an operator may know better.
"""
app = typer.Typer(help=HELP, no_args_is_help=True)

Arrivals = Annotated[
    list[str], typer.Argument(help="So many in an hour; of the highest priority, unless it is named.",
                              metavar="TYPE=NUMBER[@PRIORITY]..."),
]  # fmt: skip


@app.command()
@flat
def show(service: ServiceOptions, output: Output = Form.TABLE) -> None:
    """What is expected, and who says so: history, or an operator.

    A few types are told apart; those that come seldom count as the one of these that is most like them.
    """
    with service.open() as client:
        found = client.show_foresight()
    if output is Form.JSON:
        print_json(found)
        return
    if found.at is None:
        advise("nothing is foreseen yet: all machines are equally safe")
        return
    bands = list(found.items[0].arrivals) if found.items else []
    print_table(
        ("type", *(f"{band} an hour" for band in bands), "room for"),
        ((each.type, *(each.arrivals[band] for band in bands), round(each.ahead[-1])) for each in found.items),
    )
    advise(f"by {'what an operator says' if found.source == 'operator' else 'history'}, as of {when(found.at)}")


@app.command("set")
@flat
def set_foresight(
    arrivals: Arrivals, service: ServiceOptions, key: Key = "", dry_run: DryRun = False, output: Output = Form.TABLE
) -> None:
    """Say what comes, instead of what history tells. What is left out does not come.

    \b
      roost foresight set D4=120 D2=400.5
      roost foresight set D4=120 D4=30@batch
    """
    with service.open() as client:
        wish: dict[str, dict[str, float]] = {}
        highest = client.get_zone().bands[0]
        for each in arrivals:
            name, band, rate = _read(each, highest)
            if band in (of_type := wish.setdefault(name, {})):
                raise InvalidInput(each, f"{name} of priority {band} is given twice", "give it once")
            of_type[band] = rate
        done = client.set_foresight(wish, key=key, dry_run=dry_run)
    show_done(done, f"expected now: {', '.join(arrivals)} in an hour", output)


def _read(text: str, highest: str) -> tuple[str, str, float]:
    name, _, rest = text.partition("=")
    number, _, band = rest.partition("@")
    try:
        return name, band or highest, float(number)
    except ValueError:
        raise InvalidInput(text, "is no TYPE=NUMBER", "write such as D4=120, or D4=30@spot") from None


@app.command()
@flat
def clear(service: ServiceOptions, key: Key = "", dry_run: DryRun = False, output: Output = Form.TABLE) -> None:
    """Go by history again, from when it is looked at the next time (agent.foresight_seconds)."""
    with service.open() as client:
        done = client.clear_foresight(key=key, dry_run=dry_run)
    show_done(done, "cleared: history decides what is expected", output)
