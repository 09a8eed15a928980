"""`roost bench`: measurements against baselines taken in the same run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from roost.cli.output import console, progress

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
    from roost.bench.engine import bench_engine

    results = []
    with progress("starting") as report:
        for size in machines or [10_000, 50_000, 100_000]:

            def step(doing: str, share: float, size: int = size) -> None:
                report(f"{size:,}: {doing}", share)

            results.append(bench_engine(size, classes, requests, policy, step))
    if json:
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(results)).decode())  # noqa: T201  for programs, unstyled
    else:
        console().print(_table(results))


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
