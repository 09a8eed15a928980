"""`roost heal`: VMs of machines that do not work, through the service."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from roost.cli.exits import Exit
from roost.cli.options import Days, Paging, ServiceOptions, Tenant, flat, followed_by_command
from roost.cli.output import Form, Output, advise, lasted, print_facts, print_json, print_table, say, since_days, when
from roost.model.readable import as_counted

if TYPE_CHECKING:
    from roost.wire.healing import HealingResult

app = typer.Typer()


@app.callback(invoke_without_command=True)
@flat
def heal(
    context: typer.Context, paging: Paging, service: ServiceOptions, tenant: Tenant = "", output: Output = Form.TABLE
) -> None:
    """VMs on machines that are down and found no other one yet: since when, and why.

    The service places the VMs of machines that go down elsewhere by itself, the highest priority first; a VM stays on
    the books of its machine until then. What found none is tried again as soon as something changes that may help.

    \b
      roost machine down --rack c000-r01    a rack failed
      roost heal                            what waits
      roost heal history --limit 10         what was placed again, and where
      roost heal summary                    how many, and how long it took
      roost heal now --rack c000-r01        place its VMs elsewhere now
      roost explain heal fd3e61d7…          why a try found no machine: both words
    """
    if followed_by_command(context):
        return
    with service.open() as client:
        found = paging.of(client.unhealed(tenant=tenant, limit=paging.page))
    if output is Form.JSON:
        print_json(found)
        return
    now = time.time()
    print_table(
        ("vm", "type", "priority", "machine", "for", "why", "decision"),
        ((v.vm, v.type, v.priority, v.machine, lasted(now - v.since if v.since else None), v.why, v.decision)
         for v in sorted(found, key=lambda v: as_counted(v.vm))),
    )  # fmt: skip


@app.command()
@flat
def now(
    service: ServiceOptions,
    machines: Annotated[list[str] | None, typer.Argument(help="Machines.", metavar="MACHINE")] = None,
    racks: Annotated[
        list[str] | None, typer.Option("--rack", help="All machines of this rack; can be repeated.")
    ] = None,
    output: Output = Form.TABLE,
) -> None:
    """Place the VMs of machines that are not ready elsewhere, now: of those named, or of all that are down.

    Ends with 3 if some found no machine.

    \b
      roost heal now
      roost machine drain c000-r00-m04 && roost heal now c000-r00-m04
    """
    from roost.wire.healing import HealingWish

    with service.open() as client:
        found = client.heal(HealingWish(machines=tuple(machines or ()), racks=tuple(racks or ())))
    if output is Form.JSON:
        print_json(found)
    else:
        _show(found)
    if found.waiting:
        raise typer.Exit(Exit.NO_ROOM)


def _show(found: HealingResult) -> None:
    print_table(
        ("vm", "type", "priority", "from", "to"),
        ((v.vm, v.type, v.priority, v.source, v.machine) for v in found.healed),
    )
    if found.waiting:
        print_table(
            ("no machine for", "type", "priority", "stays on", "why"),
            ((v.vm, v.type, v.priority, v.machine, v.why) for v in found.waiting),
        )
    gave_way = f"; {found.evictions:,} of a lower priority gave way" if found.evictions else ""
    say(f"{len(found.healed):,} VMs run elsewhere, {len(found.waiting):,} found no machine{gave_way}")
    if not found.healed and not found.waiting:
        advise("nothing runs there, or the machines are ready: drain one first (roost machine drain)")


@app.command()
@flat
def history(
    paging: Paging, service: ServiceOptions, tenant: Tenant = "", days: Days = None, output: Output = Form.TABLE
) -> None:
    """VMs that were placed again as their machine did not work, latest first, for as long as the feed is kept.

    \b
      roost heal history --tenant web --days 1
    """
    with service.open() as client:
        found = paging.of(client.healings(tenant=tenant, since=since_days(days), limit=paging.page))
    if output is Form.JSON:
        print_json(found)
        return
    print_table(
        ("when", "vm", "type", "priority", "from", "to", "key"),
        ((when(v.at), v.vm, v.type, v.priority, v.source, v.machine, v.key) for v in found),
    )


@app.command()
@flat
def summary(service: ServiceOptions, days: Days = None, output: Output = Form.TABLE) -> None:
    """Healing in numbers: what waits, what was healed, and how long that took since the machine went down.

    \b
      roost heal summary --days 7
    """
    with service.open() as client:
        found = client.summarise_healing(since=since_days(days))
    if output is Form.JSON:
        print_json(found)
        return
    print_facts(
        {
            "machines down": found.machines_down,
            "machines doubted": found.machines_doubted,
            "VMs that wait": found.waiting,
            "healed": found.healed,
            "first": when(found.first or 0.0) or "-",
            "last": when(found.last or 0.0) or "-",
        }
    )
    if found.healed:
        print_table(
            ("healed", "VMs", "took: mean", "half", "nine tenths"),
            (
                (b.priority, b.healed, lasted(b.took.mean), lasted(b.took.p50), lasted(b.took.p90))
                for b in found.bands
                if b.healed
            ),
        )
    if found.machines_doubted:
        advise(
            "most machines fell silent at once: nothing is done; look at what sends the heartbeats, or say which failed"
        )
    if not found.whole:
        advise("earlier ones were not looked at: there are too many changes; ask for fewer with --days")
