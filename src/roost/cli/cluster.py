"""`roost cluster`: clusters, through the service."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from roost.cli.options import DryRun, Key, ServiceOptions, flat
from roost.cli.output import Form, Output, print_json, print_table
from roost.cli.tenant import show_done
from roost.model.readable import as_counted

if TYPE_CHECKING:
    from roost.wire.clusters import ClusterView

app = typer.Typer(help="Look at clusters, take them out of use and back, remove them.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The cluster.", metavar="NAME")]


@app.command("list")
@flat
def list_clusters(service: ServiceOptions, output: Output = Form.TABLE) -> None:
    """All clusters and how full they are."""
    with service.open() as client:
        found = client.list_clusters().items
    if output is Form.JSON:
        print_json(found)
    else:
        _print(found)


@app.command()
@flat
def show(name: Name, service: ServiceOptions, output: Output = Form.TABLE) -> None:
    """A cluster and how full it is."""
    with service.open() as client:
        found = client.get_cluster(name)
    if output is Form.JSON:
        print_json(found)
    else:
        _print([found])


def _print(clusters: Iterable[ClusterView]) -> None:
    print_table(
        ("cluster", "datacenter", "hardware", "racks", "machines", "ready", "empty", "VMs", "used", "quarantined"),
        (
            (c.cluster, c.datacenter, c.hardware, c.racks, c.machines, c.ready, c.empty, c.vms,
             f"{c.utilisation:.1%}", c.quarantined)
            for c in sorted(clusters, key=lambda c: as_counted(c.cluster))
        ),
    )  # fmt: skip


@app.command()
@flat
def quarantine(
    name: Name, service: ServiceOptions, key: Key = "", dry_run: DryRun = False, output: Output = Form.TABLE
) -> None:
    """Put no new VMs into a cluster. Those that run there stay.

    \b
      roost cluster quarantine c000
    """
    with service.open() as client:
        done = client.change_cluster(name, quarantined=True, key=key, dry_run=dry_run)
    show_done(done, f"quarantined {name}", output)


@app.command()
@flat
def release(
    name: Name, service: ServiceOptions, key: Key = "", dry_run: DryRun = False, output: Output = Form.TABLE
) -> None:
    """Let a cluster that was quarantined get VMs again."""
    with service.open() as client:
        done = client.change_cluster(name, quarantined=False, key=key, dry_run=dry_run)
    show_done(done, f"released {name}", output)


@app.command()
@flat
def remove(
    name: Name, service: ServiceOptions, key: Key = "", dry_run: DryRun = False, output: Output = Form.TABLE
) -> None:
    """Remove all machines of a cluster, if they run nothing."""
    with service.open() as client:
        done = client.remove_cluster(name, key=key, dry_run=dry_run)
    show_done(done, f"removed {name}", output)
