"""`roost workload`: what tenants ask for and when, from traces of others into Roost's own form, and at a glance."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roost.cli.output import Form, Output, advise, print_facts, print_json, print_table, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roost.traces.description import WorkloadDescription
    from roost.traces.workload import Workload

SHOWN = 12  # types in a table
SOURCE = "azure-2017 (built in), a file in Roost's own form, or KIND:FILE as with import."

app = typer.Typer(help="Read, write and look at workloads: what tenants ask for, and when.", no_args_is_help=True)


class TraceForm(StrEnum):
    """Forms that others publish workloads in, and machines."""

    AZURE_PACKING = "azure-packing"
    AZURE_V1 = "azure-v1"
    HUAWEI_EAST = "huawei-east"
    HUAWEI_TOPOLOGY = "huawei-topology"
    NODE_LIST = "node-list"


Source = Annotated[str, typer.Argument(help=SOURCE, metavar="WORKLOAD")]
SkipBadRows = Annotated[bool, typer.Option("--skip-bad-rows", help="Leave them out and count them.")]
Seed = Annotated[int, typer.Option(help="Of what a trace leaves open, such as the instant within 5 minutes.", min=0)]
Types = Annotated[Path | None, typer.Option(help="What VM types take by generation; else FILE.types.csv beside.")]


@app.callback()
def workload() -> None:
    """Read, write and look at workloads: what tenants ask for, and when."""


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="The trace.", metavar="FILE")],
    kind: Annotated[TraceForm, typer.Option("--from", help="The form it is in.")],
    to: Annotated[Path, typer.Option("--to", help="Write it here: .csv, .csv.gz or .parquet.")],
    seed: Seed = 0,
    interval: Annotated[float, typer.Option(help="Seconds between VMs of huawei-topology.", min=0.0)] = 1.0,
    racks: Annotated[Path | None, typer.Option(help="Of a node-list: a CSV of host_id and rack_id.")] = None,
    skip_bad_rows: SkipBadRows = False,
) -> None:
    """Read a trace in the form of somebody else, and write it in Roost's own.

    A node-list is machines, not a workload: it becomes the list of machines of a zone file. The zone file is printed,
    complete but for its VM types.

    \b
      roost workload import --from azure-packing zone_a.sqlite --to a.parquet
      roost workload import --from node-list nodes.csv --to m.csv > zone.yaml
    """
    from roost.traces.own_form import check_target
    from roost.traces.reading import Reading
    from roost.traces.sources import READERS

    if kind is TraceForm.NODE_LIST:
        _import_machines(file, racks, to, skip_bad_rows)
        return
    check_target(to)
    found = READERS[kind](file, Reading(skip=skip_bad_rows, seed=seed, interval=interval))
    tell_notice(found)
    _write(found, to)


@app.command()
def convert(
    source: Source,
    to: Annotated[Path, typer.Option("--to", help="Write it here: .csv, .csv.gz or .parquet.")],
    start: Annotated[str, typer.Option(help="Requests from then on, in seconds or as 1d; it becomes 0.")] = "0",
    end: Annotated[str | None, typer.Option(help="Requests before then: 36h.")] = None,
    first: Annotated[int | None, typer.Option(help="So many requests, at most.", min=1)] = None,
    types: Types = None,
    seed: Seed = 0,
    skip_bad_rows: SkipBadRows = False,
) -> None:
    """Write a workload, or a part of it, as CSV or Parquet in Roost's own form.

    \b
      roost workload convert trace.csv --to trace.parquet
      roost workload convert azure-2017 --start 1d --end 2d --to second-day.csv.gz
    """
    from roost.sim.experiment import seconds
    from roost.traces.own_form import check_target
    from roost.traces.window import cut

    check_target(to)
    since, until = seconds(start, "--start"), float("inf") if end is None else seconds(end, "--end")
    _write(cut(_find(source, types, seed, skip_bad_rows), since, until, first), to)


@app.command()
def describe(
    source: Source,
    types: Types = None,
    seed: Seed = 0,
    skip_bad_rows: SkipBadRows = False,
    output: Output = Form.TABLE,
) -> None:
    """How much a workload asks for, of what, for how long, and by whom.

    \b
      roost workload describe azure-2017
      roost workload describe huawei-east:Huawei-East-1.csv -o json
    """
    from dataclasses import asdict

    from roost.traces.description import describe as look_at

    seen = look_at(_find(source, types, seed, skip_bad_rows))
    if output is Form.JSON:
        print_json(asdict(seen))
    else:
        _show(seen)


def _find(source: str, types: Path | None, seed: int, skip: bool) -> Workload:
    from roost.traces.reading import Reading
    from roost.traces.sources import find_workload

    found = find_workload(source, Reading(skip=skip, seed=seed), types)
    tell_notice(found)
    return found


def _write(found: Workload, to: Path) -> None:
    from roost.traces.own_form import write_own_form

    written = " and ".join(map(str, write_own_form(found, to)))
    say(f"{written}: {counted(found.requests, 'request')}, {counted(found.vms, 'VM')}, {duration(found.span)}")
    _tell_skipped(found.skipped)
    advise(f"source: {found.source}")


def _import_machines(file: Path, racks: Path | None, to: Path, skip: bool) -> None:
    from roost.traces.node_list import read_node_list, write_machines, zone_file

    nodes = read_node_list(file, racks, skip=skip)
    write_machines(nodes, to)
    say(zone_file(nodes, to.name))
    machines, kinds = counted(nodes.machines.height, "machine"), counted(len(nodes.generations), "generation")
    advise(f"{to}: {machines} of {kinds}")
    _tell_skipped(nodes.skipped)


def tell_notice(found: Workload) -> None:
    """What was done to a workload when it was read, if anything was."""
    if found.notice:
        advise(found.notice)


def _tell_skipped(skipped: Mapping[str, int]) -> None:
    for reason, count in skipped.items():
        advise(f"left out {counted(count, 'row')}: {reason}")


def _show(seen: WorkloadDescription) -> None:
    lifetimes = ", ".join(f"{name} {duration(seconds)}" for name, seconds in seen.lifetimes_s.items())
    facts = {
        "workload": seen.name,
        "source": seen.source,
        "requests": f"{seen.requests:,} ({seen.constrained_requests:,} with constraints)",
        "VMs": f"{seen.vms:,} ({seen.vms_per_request:.3g} a request, {seen.largest_request:,} at most)",
        "time": duration(seen.span_s),
        "tenants": seen.tenants,
        "VMs of a tenant": _percentages(seen.tenant_sizes),
        "cores of a VM": _percentages(seen.cores) or "not said",
        "priorities": _percentages(seen.priorities),
        "lifetimes": lifetimes or "none leaves",
        "stay": percentage(seen.stay),
        "at once, at most": counted(seen.peak_vms, "VM")
        + ("" if seen.peak_cores is None else f", {seen.peak_cores:,.12g} cores"),
    }
    if seen.skipped:
        facts["left out"] = ", ".join(f"{counted(count, 'row')}: {reason}" for reason, count in seen.skipped.items())
    print_facts(facts)
    say("")
    rows = [(name, percentage(share)) for name, share in list(seen.types.items())[:SHOWN]]
    if (more := len(seen.types) - SHOWN) > 0:
        rows.append((f"{more:,} more", percentage(sum(list(seen.types.values())[SHOWN:]))))
    print_table(("VM type", "VMs"), rows)


def _percentages(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name}: {percentage(share)}" for name, share in shares.items())


def counted(number: int, name: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{number:,} {name}" + ("" if number == 1 else "s")


def percentage(share: float) -> str:
    """A share as people say it."""
    return "< 0.1 %" if 0 < share < 0.001 else f"{share * 100:.1f} %"


def duration(seconds: float) -> str:
    """A time span as people say it."""
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"
