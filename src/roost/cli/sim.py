"""`roost sim`: what would happen to a zone under a workload and a policy, in virtual time."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roost.cli.options import Rules, flat, own_rules
from roost.cli.output import Form, Output, advise, console, errors, print_json, print_table, say
from roost.cli.progress import bars

if TYPE_CHECKING:
    from roost.sim.experiment import Experiment
    from roost.sim.result import RunResult
    from roost.sim.runs import Run

SIZES = ("machines", "utilisation")  # of a fleet: one or the other
FLEET = (*SIZES, "cores", "memory", "disk", "ssd", "nic")
BUILT_IN = {"name": "azure-2017", "workload": "azure-2017", "fleet": {"machines": 3_000}, "warm_up": "12h"}
MANY = 2  # variants; of more, a narrow terminal shows the figures alone
WHAT, HOW, RUNS = "What is simulated", "How", "Runs"
app = typer.Typer(help="Simulate a zone: what a workload and a policy would do to it.", no_args_is_help=True)


class LatencyModel(StrEnum):
    """How long decisions and commits take in virtual time."""

    NONE = "none"
    PAPER = "paper"
    MEASURED = "measured"


def _about(panel: str, text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


@dataclass(frozen=True)
class Options:
    """Fields of an experiment that can be given without a file, or instead of what a file says."""

    name: Annotated[str | None, _about(WHAT, "What to call the experiment.")] = None
    workload: Annotated[str | None, _about(WHAT, "azure-2017 (built in), or a file; see `roost workload`.")] = None
    zone: Annotated[str | None, _about(WHAT, "A zone file, or synthetic:SIZE; else a fleet that suits.")] = None
    machines: Annotated[int | None, _about(WHAT, "Of a fleet; 3000 unless said.", min=1)] = None
    utilisation: Annotated[
        float | None, _about(WHAT, "Instead: as many as are used to this share on average, as 0.8.", min=0, max=1)
    ] = None
    cores: Annotated[float | None, _about(WHAT, "Of a machine of the fleet; 16 unless said.", min=0)] = None
    memory: Annotated[float | None, _about(WHAT, "GiB of a machine of the fleet; 128 unless said.", min=0)] = None
    disk: Annotated[float | None, _about(WHAT, "GiB of a machine of the fleet; 8000 unless said.", min=0)] = None
    ssd: Annotated[float | None, _about(WHAT, "GiB of a machine of the fleet; 4000 unless said.", min=0)] = None
    nic: Annotated[float | None, _about(WHAT, "Gbit/s of a machine of the fleet; 40 unless said.", min=0)] = None
    policy: Annotated[list[str] | None, _about(WHAT, "A policy, by name or file; repeatable.", "--policy")] = None
    rules: Rules = None
    fill: Annotated[
        float | None, _about(WHAT, "Share of the cores that is in use at the beginning already.", min=0, max=1)
    ] = None
    warm_up: Annotated[str | None, _about(WHAT, "The first part, which no figure counts: 12h.")] = None
    until: Annotated[str | None, _about(WHAT, "Stop then, instead of at the last arrival: 2d.")] = None
    speed: Annotated[float | None, _about(WHAT, "Let the workload's time pass so many times faster.", min=0)] = None
    agents: Annotated[int | None, _about(HOW, "That decide in parallel, each on its own copy.", min=1, max=1_000)] = (
        None
    )
    latency: Annotated[
        LatencyModel | None, _about(HOW, "In virtual time: none, as in Protean's paper, or as it really takes here.")
    ] = None
    seeds: Annotated[int | None, _about(RUNS, "Run each policy with seeds 1 to this.", min=1, max=1_000)] = None


@app.callback()
def sim() -> None:
    """Simulate a zone: what a workload and a policy would do to it."""


@app.command()
@flat
def run(
    options: Options,
    file: Annotated[Path | None, typer.Argument(help="An experiment; options overrule what it says.")] = None,
    to: Annotated[Path, typer.Option("--to", help="The folder for the results; must be new or empty.")] = Path("sim"),
    processes: Annotated[int, _about(RUNS, "Runs at once; 0: one per core.", min=0)] = 0,
    output: Output = Form.TABLE,
) -> None:
    """Simulate an experiment: each policy with each seed. Writes tidy data and a report, and shows the key figures.

    Without a file: the built-in Azure trace on 3,000 machines. See docs/simulate.md for what a file can say.

    \b
      roost sim run
      roost sim run --policy default --policy dense --seeds 5
      roost sim run --agents 4 --latency paper --until 1d
      roost sim run --workload mine.csv --utilisation 0.8 --cores 64 --memory 512
      roost sim run --workload week.parquet --zone synthetic:1000
      roost sim run experiment.yaml --to results
    """
    from roost.sim.runs import begin

    experiment = experiment_of(file, options)
    with errors().status("Reading and checking"):
        notice = begin(experiment, to)
    if notice:
        advise(notice)
    _perform(to, processes, output)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of `roost sim run`.")],
    processes: Annotated[int, _about(RUNS, "Runs at once; 0: one per core.", min=0)] = 0,
    output: Output = Form.TABLE,
) -> None:
    """Go on with an experiment that was interrupted: its result is the one it would have had.

    Runs that are finished stay as they are; the others go on from where they last saved themselves.

    \b
      roost sim resume results
    """
    _perform(folder, processes, output)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The folder of an experiment, or of one run.")],
    to: Annotated[Path | None, typer.Option("--to", help="Write the page here; else in the folder.")] = None,
    output: Output = Form.TABLE,
) -> None:
    """Write the report of an experiment again, and show the key figures.

    \b
      roost sim report results
      roost sim report results/default-seed1 --to one-run.html
      roost sim report results -o json | jq '.[0]'
    """
    from roost.sim.runs import REPORT, results_in

    _write(results_in(folder), [folder], to or folder / REPORT, "", output)


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Of experiments, or of runs.", metavar="FOLDER…")],
    to: Annotated[Path, typer.Option("--to", help="Write the page here.")] = Path("comparison.html"),
    title: Annotated[str, typer.Option(help="Of the page.")] = "",
    output: Output = Form.TABLE,
) -> None:
    """Compare the runs of several experiments with the first: means, confidence intervals over seeds, a verdict each.

    \b
      roost sim compare small-fleet large-fleet --to fleets.html
      roost sim compare results/default-seed1 results/dense-seed1
    """
    from roost.sim.runs import side_by_side

    _write(side_by_side(folders), folders, to, title, output)


def experiment_of(file: Path | None, options: Options) -> Experiment:
    """What a file says, and what options say instead."""
    import msgspec

    from roost.model.errors import InvalidInput
    from roost.sim.experiment import Experiment

    given: dict[str, Any] = {
        f.name: getattr(options, f.name) for f in fields(options) if getattr(options, f.name) is not None
    }
    data: dict[str, Any] = Experiment.load(file).as_data() if file else dict(BUILT_IN)
    fleet = {name: given.pop(name) for name in FLEET if name in given}
    if fleet and "zone" in given:
        raise InvalidInput("--zone", "and a fleet cannot both be given", "drop one of them")
    if "zone" in given:
        data.pop("fleet", None)
    if fleet:
        data.pop("zone", None)
        sized = fleet.keys() & set(SIZES)
        kept = {name: value for name, value in data.get("fleet", {}).items() if not (sized and name in SIZES)}
        data["fleet"] = kept | fleet
    if "seeds" in given:
        given["seeds"] = list(range(1, given["seeds"] + 1))
    if "agents" in given:
        given["agents"] = {**data.get("agents", {}), "count": given["agents"]}
    if "latency" in given:
        given["latency"] = str(given["latency"])
    if "policy" in given:
        given["policies"] = given.pop("policy")
    if "rules" in given or not data.get("rules"):
        given["rules"] = own_rules(given.get("rules")).sources
    if not file and {"until", "speed", "workload"} & given.keys():
        del data["warm_up"]  # it suits the whole of the built-in trace only
    if not file and "workload" in given:
        stem = Path(given["workload"].removesuffix(".gz")).stem
        data["name"] = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("._-") or "simulation"
    try:
        return msgspec.convert(data | given, Experiment)
    except msgspec.ValidationError as error:
        problem, _, where = str(error).partition(" - at `$.")
        raise InvalidInput(where.rstrip("`") or "experiment", problem) from None


def _perform(folder: Path, processes: int, output: Form) -> None:
    from roost.sim.runs import REPORT, perform

    try:
        with bars(_name_of) as show:
            results = perform(folder, show, processes)
    except KeyboardInterrupt:
        advise(f"interrupted; go on with: roost sim resume {folder}")
        raise
    _show(results, output)
    if output is Form.TABLE:
        say(f"report: {folder / REPORT}")


def _write(results: Sequence[RunResult], folders: Sequence[Path], to: Path, title: str, output: Form) -> None:
    from roost.model.errors import InvalidInput
    from roost.sim.report import report as page
    from roost.sim.runs import unfinished

    try:
        to.touch()  # before it is drawn, which takes a while
        with errors().status("Drawing the report"):
            to.write_text(page(results, title), encoding="utf-8")
    except OSError as error:
        raise InvalidInput(str(to), f"cannot be written: {error.strerror}", "choose another file with --to") from None
    _show(results, output)
    if output is Form.TABLE:
        say(f"report: {to}")
    for folder in folders:
        if left := unfinished(folder):
            advise(f"{folder}: {left} more to be finished; go on with: roost sim resume {folder}")


def _name_of(run: Run) -> str:
    return run.folder


def _show(results: Sequence[RunResult], output: Form) -> None:
    """The measures, as a table or as JSON. For people, those that have nothing to tell are only named."""
    from roost.sim.comparison import summary_table, variants
    from roost.sim.prose import circumstances
    from roost.sim.statistics import CONFIDENCE

    table = summary_table(results)
    if output is Form.JSON:
        print_json(table.as_data())
    else:
        told = [row for row in table.rows if not row.zero]
        shown = replace(table, rows=told)
        headings, cells = shown.headings(), shown.cells()
        if narrow := len(table.variants) > MANY and not _fits(headings, cells):
            headings, cells = ["measure", *table.variants], [[table.label(row), *row.figures()] for row in told]
        print_table(headings, cells)
        if narrow:
            say(f"\nhow they differ from {table.variants[0]} is told in the report, and by a wider terminal")
        rest = [row for row in table.rows if row.zero]
        for what, these in (
            ("zero throughout", [row for row in rest if any(row.estimates)]),
            ("nothing to measure", [row for row in rest if not any(row.estimates)]),
        ):
            if these:
                names = ", ".join(row.measure.name.replace("_", " ") for row in these).replace("vms", "VMs")
                say(f"\n{what}: {names}")
        if any(e and e.margin for row in told for e in row.estimates):
            say(f"±: where the mean lies, with {CONFIDENCE:.0%} confidence; unclear: it may be chance")
            if len({tuple(runs) for runs in variants(results).values()}) > 1:
                say("not all have the same seeds: differences are those of the seeds that both have")
        elif len(table.variants) > 1:
            say("\nof one seed each: differences may be chance, which --seeds 5 would tell")
        say(f"\nsimulated: {circumstances(results)}")
    if any(not result.facts["repeatable"] for result in results):
        advise("decisions took as long as they really took here: these figures differ from run to run")


def _fits(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> bool:
    """Is the terminal, if there is one, wide enough for a table?"""
    columns = zip(headings, *cells, strict=True)
    needed = sum(max(map(len, column)) + 2 for column in columns)
    return needed <= console().width or not (sys.stdout.isatty() or "COLUMNS" in os.environ)
