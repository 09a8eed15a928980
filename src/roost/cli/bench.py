"""`roost bench`: measurements against baselines taken in the same run."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roost.cli.output import console, errors, print_json, progress

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(help="Measure Roost against baselines taken in the same run.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure Roost against baselines taken in the same run."""


@app.command()
def engine(
    machines: Annotated[list[int] | None, typer.Option(help="Size of the zone; may be given several times.")] = None,
    classes: Annotated[int, typer.Option(help="Kinds of request, of Zipf popularity.", min=1, max=120)] = 100,
    requests: Annotated[int, typer.Option(help="Placements measured after the zone is full.", min=100)] = 100_000,
    policy: Annotated[str, typer.Option(help="A shipped policy.")] = "default",
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of a table.")] = False,
) -> None:
    """How fast the engine decides on a nearly full zone with churn, and how much memory it takes.

    \b
      roost bench engine                                  10,000, 50,000 and 100,000 machines
      roost bench engine --machines 100000 --json
    """
    sizes = machines or [10_000, 50_000, 100_000]
    if len(sizes) == 1:
        from roost.bench.engine import bench_engine

        with progress(f"{sizes[0]:,} machines") as report:
            results = [bench_engine(sizes[0], classes, requests, policy, report)]
    else:  # a process for each, so that none inherits another's memory
        results = [_alone(size, classes, requests, policy) for size in sizes]
    if json:
        print_json(results)
    else:
        console().print(_table(results))


def _alone(size: int, classes: int, requests: int, policy: str) -> dict[str, Any]:
    import msgspec

    options = {"machines": size, "classes": classes, "requests": requests, "policy": policy}
    arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    script = "from roost.cli.main import main; main()"
    errors().print(f"{size:,} machines …", highlight=False)
    done = subprocess.run(
        [sys.executable, "-c", script, "bench", "engine", *arguments, "--json"], stdout=subprocess.PIPE, check=False
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


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)
