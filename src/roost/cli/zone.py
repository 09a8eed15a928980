"""`roost zone`: what a zone file describes, and whether it is right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from roost.cli.output import print_table, say

if TYPE_CHECKING:
    from roost.model.zone import Resource, Zone

    Shown = tuple[Sequence[str], list[tuple[object, ...]]]  # headings and rows

app = typer.Typer(help="Look at a zone, and check a zone file.", no_args_is_help=True)


@app.callback()
def zone() -> None:
    """Look at a zone, and check a zone file."""


@app.command()
def show(
    source: Annotated[str, typer.Argument(help="A zone file, or synthetic:SIZE for a made-up zone.")],
    seed: Annotated[int, typer.Option(help="Of a made-up zone.")] = 1,
) -> None:
    """Read a zone and show its clusters, hardware and VM types. All mistakes in the file are shown with their lines.

    \b
      roost zone show zone.yaml
      roost zone show synthetic:20000
    """
    from roost.wiring import find_zone

    loaded = find_zone(source, seed)
    say(repr(loaded))
    for headings, rows in (_clusters(loaded), _generations(loaded), _types(loaded)):
        say("")
        print_table(headings, rows)


def _clusters(zone: Zone) -> Shown:
    rows: list[tuple[object, ...]] = []
    for row, name in zip(zone.clusters, zone.cluster_names, strict=True):
        where, what = zone.datacenters[row["datacenter"]], zone.generations[row["generation"]].name
        rows.append((name, where, what, *(int(row[field].sum()) for field in ("racks", "machines", "supports"))))
    return ("cluster", "datacenter", "generation", "racks", "machines", "VM types"), rows


def _generations(zone: Zone) -> Shown:
    """What a machine of each generation has."""
    rows: list[tuple[object, ...]] = []
    for i, generation in enumerate(zone.generations):
        machines = int((zone.machines["generation"] == i).sum())
        amounts = (r.said(amount) for r, amount in zip(zone.resources, generation.capacity, strict=True))
        rows.append((generation.name, machines, *amounts, ", ".join(generation.features)))
    return ("generation", "machines", *_in_units(zone), "features"), rows


def _types(zone: Zone) -> Shown:
    """What a VM of each type takes: from the least to the most, if that differs by generation."""
    rows: list[tuple[object, ...]] = []
    for vm_type in zone.vm_types:
        taken = zip(*vm_type.demand.values(), strict=True) if vm_type.demand else ((),) * len(zone.resources)
        amounts = (_range(resource, amounts) for resource, amounts in zip(zone.resources, taken, strict=True))
        rows.append((vm_type.name, *amounts, ", ".join(vm_type.demand), ", ".join(vm_type.requires)))
    return ("VM type", *_in_units(zone), "runs on", "requires"), rows


def _in_units(zone: Zone) -> list[str]:
    """A heading for each resource, with its unit where that says more than the name."""
    return [r.name if r.unit == r.name else f"{r.name}, {r.unit}" for r in zone.resources]


def _range(resource: Resource, amounts: Iterable[int]) -> str:
    said = dict.fromkeys(resource.said(amount) for amount in sorted(amounts))
    return "–".join(list(said)[:: max(1, len(said) - 1)])
