"""`roost evictions`: who had to give way, and who waits to be placed again, through the service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from roost.cli.options import Days, Key, Paging, ServiceOptions, Tenant, flat, followed_by_command
from roost.cli.output import Form, Output, advise, lasted, print_facts, print_json, print_table, say, since_days, when
from roost.model.readable import as_counted

if TYPE_CHECKING:
    from roost.wire.basics import Seconds
    from roost.wire.evictions import EvictionView

app = typer.Typer()


@app.callback(invoke_without_command=True)
@flat
def evictions(
    context: typer.Context,
    paging: Paging,
    service: ServiceOptions,
    tenant: Tenant = "",
    days: Days = None,
    output: Output = Form.TABLE,
) -> None:
    """Which VMs had to give way to others of a higher priority, latest first, for as long as the feed is kept.

    A VM of a higher band sees as free what lower bands hold. Where that is needed, VMs of the lowest band go first, and
    no more of them than must. Their owners are told in the feed (roost changes), with the time that is left to finish.

    \b
      roost evictions --limit 10
      roost evictions --tenant render --days 7 -o json
      roost evictions summary    how many, of which band, for whom
      roost evictions waiting    those that are placed again when there is room
      roost explain KEY          why the request that caused it was placed there
    """
    if followed_by_command(context):
        return
    with service.open() as client:
        found = paging.of(client.evictions(tenant=tenant, since=since_days(days), limit=paging.page))
    if output is Form.JSON:
        print_json(found)
        return
    print_table(
        ("when", "vm", "type", "priority", "machine", "ran", "grace", "for", "cause"),
        (
            (when(e.at), e.vm, e.type, e.priority, e.machine, lasted(e.ran), lasted(e.grace), _for(e), e.cause)
            for e in found
        ),
    )


@app.command()
@flat
def summary(service: ServiceOptions, tenant: Tenant = "", days: Days = None, output: Output = Form.TABLE) -> None:
    """Evictions in numbers: of which priority, for which, and how long the VMs had run until then.

    \b
      roost evictions summary --days 1
      roost evictions summary --tenant render -o json
    """
    with service.open() as client:
        found = client.summarise_evictions(tenant=tenant, since=since_days(days))
    if output is Form.JSON:
        print_json(found)
        return
    print_facts(
        {
            "evictions": found.evictions,
            "for requests": found.requests,
            "first": when(found.first or 0.0) or "-",
            "last": when(found.last or 0.0) or "-",
            "had run": _spread(found.ran),
        }
    )
    if found.bands:
        print_table(
            ("evicted", "VMs", "ran: mean", "half", "nine tenths"),
            ((b.priority, b.evictions, lasted(b.ran.mean), lasted(b.ran.p50), lasted(b.ran.p90)) for b in found.bands),
        )
        print_table(("caused by", "requests", "VMs"), ((c.priority, c.requests, c.evictions) for c in found.causes))
    if not found.whole:
        advise("earlier ones were not looked at: there are too many changes; ask for fewer with --days")


@app.command()
@flat
def waiting(paging: Paging, service: ServiceOptions, tenant: Tenant = "", output: Output = Form.TABLE) -> None:
    """VMs that had to give way and wait to be placed again: those that were asked for with --requeue.

    The service places them under their old names as soon as room is freed or machines become ready.

    \b
      roost evictions waiting --tenant render
      roost evictions cancel render/3
    """
    with service.open() as client:
        found = paging.of(client.waiting(tenant=tenant, limit=paging.page))
    if output is Form.JSON:
        print_json(found)
    else:
        print_table(
            ("vm", "tenant", "type", "priority", "since", "cause"),
            (
                (w.vm, w.tenant, w.type, w.priority, when(w.since), w.cause)
                for w in sorted(found, key=lambda w: as_counted(w.vm))
            ),
        )


@app.command()
@flat
def cancel(
    vm: Annotated[str, typer.Argument(help="Its whole name: render/3.", metavar="TENANT/NAME")],
    service: ServiceOptions,
    key: Key = "",
) -> None:
    """Let a VM wait no longer: it is not placed again.

    \b
      roost evictions cancel render/3
    """
    with service.open() as client:
        client.cancel_waiting(vm, key=key)
    say(f"{vm} waits no longer")


def _for(eviction: EvictionView) -> str:
    whose = f" of {eviction.cause_tenant}" if eviction.cause_tenant else ""
    return f"{eviction.cause_priority}{whose}" or "maintenance"


def _spread(ran: Seconds) -> str:
    if not ran.count:
        return "nobody knows how long"
    return f"{lasted(ran.mean)} on average, half up to {lasted(ran.p50)}, nine tenths up to {lasted(ran.p90)}"
