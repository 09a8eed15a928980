"""`roost experiment`: published evaluations, run again: their figures beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roost.cli.output import Form, Output, print_json, print_table, say
from roost.cli.progress import bars

if TYPE_CHECKING:
    from roost.experiments.study import Findings

app = typer.Typer(help="Run published evaluations again: their figures beside ours.", no_args_is_help=True)


@app.command("list")
def list_experiments(output: Output = Form.TABLE) -> None:
    """The experiments, and what each asks."""
    from roost.experiments.catalogue import studies

    found = studies()
    if output is Form.JSON:
        print_json([{"name": s.name, "title": s.title, "source": s.source, "question": s.question} for s in found])
    else:
        print_table(("experiment", "after", "what it asks"), ((s.name, s.source, s.question) for s in found))


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="See `roost experiment list`.")],
    quick: Annotated[bool, typer.Option("--quick", help="A small form, for seeing that it works.")] = False,
    to: Annotated[
        Path | None, typer.Option("--to", help="The folder for the results; else experiments/NAME, or NAME-quick.")
    ] = None,
    processes: Annotated[int, typer.Option(help="Parts at once; 0: one per core.", min=0)] = 0,
    output: Output = Form.TABLE,
) -> None:
    """Run an experiment: writes tidy data, a plot and a report, and says whether the published shape holds.

    One that was interrupted goes on where it was: give the same command again.

    \b
      roost experiment run protean-table5 --quick
      roost experiment run protean-table5 --to table5
    """
    from roost.experiments.catalogue import find_study
    from roost.experiments.performing import begin, perform

    folder = to or Path("experiments") / (f"{name}-quick" if quick else name)
    begin(find_study(name), quick, folder)
    with bars(_label) as progress:
        findings = perform(folder, progress, processes)
    _show(findings, folder, output)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The folder of `roost experiment run`.")],
    output: Output = Form.TABLE,
) -> None:
    """Write the report of an experiment anew, and show it."""
    from roost.experiments.performing import report as write_report

    _show(write_report(folder), folder, output)


def _label(cell: str) -> str:
    return cell


def _show(findings: Findings, folder: Path, output: Form) -> None:
    from roost.experiments.writing import REPORT

    if output is Form.JSON:
        print_json(findings)
        return
    for table in findings.tables:
        print_table(table.headings, table.rows, title=table.title)
    say(f"\nthe shape {'holds' if findings.holds else 'does not hold'}: {findings.verdict}")
    say(f"report: {folder / REPORT}")
