"""`roost zone`: what a zone file describes, and whether it is right."""

from typing import Annotated

import typer

from roost.cli.output import console

app = typer.Typer(help="Look at a zone, and check a zone file.", no_args_is_help=True)


@app.callback()
def zone() -> None:
    """Look at a zone, and check a zone file."""


@app.command()
def show(
    source: Annotated[str, typer.Argument(help="A zone file, or synthetic:SIZE for a made-up zone.")],
    seed: Annotated[int, typer.Option(help="Of a made-up zone.")] = 1,
) -> None:
    """Read a zone and show its clusters and VM types. A mistake in the file is shown with its line.

    \b
      roost zone show zone.yaml
      roost zone show synthetic:20000
    """
    from rich.table import Table

    from roost.wiring import find_zone

    loaded = find_zone(source, seed)
    out = console()
    out.print(repr(loaded), highlight=False)
    clusters = Table("cluster", "datacenter", "generation", "racks", "machines", "VM types")
    for row, name in zip(loaded.clusters, loaded.cluster_names, strict=True):
        clusters.add_row(
            name,
            loaded.datacenters[row["datacenter"]],
            loaded.generations[row["generation"]].name,
            f"{row['racks']:,}",
            f"{row['machines']:,}",
            str(int(row["supports"].sum())),
        )
    types = Table("VM type", "runs on", *(f"{r.name}\n{r.unit}" for r in loaded.resources), "requires", box=None)
    for vm_type in loaded.vm_types:
        largest = max(vm_type.demand.values(), default=())
        amounts = (f"{a / r.per_unit:.4g}" for a, r in zip(largest, loaded.resources, strict=True))
        types.add_row(vm_type.name, " ".join(vm_type.demand), *amounts, ", ".join(vm_type.requires))
    out.print(clusters)
    out.print(types)
