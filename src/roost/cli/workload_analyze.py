"""`roost workload generate` and `analyze`: workloads by seed, and what any workload is like, in tables and figures."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roost.cli.options import flat
from roost.cli.output import Form, Output, advise, print_facts, print_json, print_table, say
from roost.cli.workload import Seed, SkipBadRows, Source, Types, counted, duration, percentage, tell_notice
from roost.model.errors import InvalidInput
from roost.model.readable import plain

if TYPE_CHECKING:
    from roost.traces.analysis import Analysis

SHOWN = 16  # types in a table
SIZE, SHAPE = "How much", "What it is like"


class Mix(StrEnum):
    """Zones of which Protean (OSDI'20) reports types and cores."""

    ZONE1 = "zone1"
    ZONE2 = "zone2"


def _about(panel: str, text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel=panel, **more)


@dataclass(frozen=True)
class ShapeOptions:
    """The fields of a `WorkloadShape`, with its defaults."""

    mix: Annotated[Mix, _about(SHAPE, "Types and cores as in this zone of Protean's tables.")] = Mix.ZONE1
    days: Annotated[float, _about(SIZE, "How long requests come, from a Monday on.")] = 7.0
    requests_per_day: Annotated[float, _about(SIZE, "Mean over these days.")] = 20_000.0
    stays: Annotated[float, _about(SHAPE, "Share of the requests whose VMs never leave.")] = 0.003
    services: Annotated[float, _about(SHAPE, "Share of the others whose VMs run for days and weeks.")] = 0.012
    spot: Annotated[float, _about(SHAPE, "Share of the requests at low priority.")] = 0.1
    spread: Annotated[float, _about(SHAPE, "Share of those for several VMs that ask for fault domains.")] = 0.5
    daily: Annotated[float, _about(SHAPE, "How much busier afternoons are than the mean, and nights quieter.")] = 0.35
    weekly: Annotated[float, _about(SHAPE, "How much quieter week-ends are.")] = 0.25
    spikes_per_day: Annotated[float, _about(SHAPE, "Spikes, in which many come at once.")] = 24.0
    spike_seconds: Annotated[int, _about(SHAPE, "How long each spike lasts.")] = 5
    spike_peak: Annotated[float, _about(SHAPE, "Requests a second of the highest spike; 0: 120 times the mean.")] = 0.0


@flat
def generate(
    to: Annotated[Path, typer.Option("--to", help="Write it here: .csv, .csv.gz or .parquet.")],
    shape: ShapeOptions,
    utilisation: Annotated[
        float | None, _about(SIZE, "Instead: as many as bring the cores to this utilisation.", min=0.0, max=1.0)
    ] = None,
    cores: Annotated[float | None, _about(SIZE, "How many cores there are; else those of the zone.")] = None,
    filled: Annotated[
        bool, typer.Option("--filled", help="They are filled to it from the beginning.", rich_help_panel=SIZE)
    ] = False,
    zone: Annotated[
        str | None, typer.Option(help="VM types of this zone: a zone file, or synthetic:SIZE; else Protean's mix.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same workload.", min=0)] = 1,
) -> None:
    """Make up a workload with the statistics that Protean (OSDI'20, §2.2) reports for real zones.

    \b
      roost workload generate --to week.parquet
      roost workload generate --to busy.parquet --mix zone2 --days 1
      roost workload generate --to full.parquet --cores 100000 --filled
    """
    import msgspec

    from roost.traces.generate import WorkloadShape, rate_for
    from roost.traces.generate import generate as make
    from roost.traces.own_form import write_own_form
    from roost.wiring import find_zone

    wanted = WorkloadShape(**{**asdict(shape), "mix": str(shape.mix)})
    given = find_zone(zone, 1) if zone else None
    if utilisation is not None:
        total = cores or (given and given.cores)
        if not total:
            raise InvalidInput("--utilisation", "is a share of an unknown number of cores", "give --cores or --zone")
        rate = rate_for(wanted, total, utilisation, filled=filled, zone=given)
        wanted = msgspec.structs.replace(wanted, requests_per_day=rate)
    made = make(wanted, seed, given)
    written = " and ".join(map(str, write_own_form(made, to)))
    say(f"{written}: {counted(made.requests, 'request')}, {counted(made.vms, 'VM')}, {duration(made.span)}")


def analyze(
    source: Source,
    to: Annotated[
        Path | None, typer.Option("--to", help="Draw the figures here: .svg or .png.", metavar="FIGURES")
    ] = None,
    types: Types = None,
    seed: Seed = 0,
    skip_bad_rows: SkipBadRows = False,
    output: Output = Form.TABLE,
) -> None:
    """What a workload is like: the tables and figures of Protean's workload analysis (OSDI'20, §2.2), for any workload.

    \b
      roost workload analyze azure-2017 --to figures.svg
      roost workload analyze week.parquet -o json
    """
    from roost.traces.analysis import analyse
    from roost.traces.reading import Reading
    from roost.traces.sources import find_workload

    found = find_workload(source, Reading(skip=skip_bad_rows, seed=seed), types)
    tell_notice(found)
    seen = analyse(found)
    if to is not None:  # before the tables: whoever reads only their first lines gets the figures all the same
        from roost.plotting import save
        from roost.traces.figures import draw

        save(draw(seen), to)
    if output is Form.JSON:
        print_json(seen.facts)
    else:
        _show(seen)
    if to is not None:
        advise(f"{to}: the figures")


def _show(seen: Analysis) -> None:
    from roost.traces.figures import duration as lasting
    from roost.traces.type_mix import CORES

    near, again = seen.reuse_shares[:5].sum(), seen.reuse_shares[0]
    sizes = seen.share_of_sizes
    print_facts(
        {
            "workload": seen.name,
            "source": seen.source,
            "requests": f"{seen.requests:,} for {counted(seen.vms, 'VM')} in {duration(seen.span)}",
            "reuse distance": f"0 for {percentage(again)} of the VMs, below 5 for {percentage(near)}",
            "VMs of a request": f"1 in {percentage(sizes(1, 1))}, up to 5 in {percentage(sizes(1, 5))}, "
            f"100 or more in {percentage(sizes(100))}; {max(seen.sizes):,} at most",
            "lifetimes": ", ".join(f"{q * 100:g} %: {lasting(s)}" for q, s in seen.lifetime_quantiles.items()),
            "stay": percentage(seen.stays),
            "busiest second": f"{counted(seen.busiest_seconds.max(), 'request')}, on day {seen.busiest_day + 1}",
        }
    )
    say("")
    shares, cores = list(seen.type_shares.items()), seen.type_cores
    rows = [(name, plain(cores[name]) if name in cores else "", percentage(share)) for name, share in shares[:SHOWN]]
    if more := shares[SHOWN:]:
        rows.append((f"{len(more):,} more", "", percentage(sum(share for _, share in more))))
    print_table(("VM type", "cores", "VMs"), rows)
    if seen.core_shares:
        say("")
        found = zip(seen.core_shares.items(), CORES.values(), strict=True)
        beside = [(name, percentage(share), *(f"{p} %" for p in percents)) for (name, share), percents in found]
        print_table(("cores", "VMs", "Protean, zone 1", "zone 2"), beside)
