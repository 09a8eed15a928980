"""`roost policy diff`: which decisions another policy would change, by which rules, and what that does to the zone."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roost.cli.options import Rules, flat, own_rules
from roost.cli.output import STORE, Form, Output, advise, errors, print_json, print_table, say
from roost.cli.sim import LatencyModel
from roost.model.errors import InvalidInput

if TYPE_CHECKING:
    from roost.rules.own import OwnRules
    from roost.sim.diff import Diff
    from roost.sim.runs import Run

AGENTS, LATENCY = 2, LatencyModel.PAPER  # so that there are races, and conflicts to compare
WORKLOAD, HISTORY = "On a workload", "On what happened at a store"


def _about(panel: str, text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


@dataclass(frozen=True)
class Staging:
    """What both policies are simulated on."""

    workload: Annotated[str | None, _about(WORKLOAD, "azure-2017 (built in), or a file; see `roost workload`.")] = None
    zone: Annotated[str | None, _about(WORKLOAD, "A zone file, or synthetic:SIZE; else a fleet that suits.")] = None
    machines: Annotated[int | None, _about(WORKLOAD, "Of a fleet; 3000 unless said.", min=1)] = None
    utilisation: Annotated[
        float | None, _about(WORKLOAD, "Instead: as many as are used to this share on average.", min=0, max=1)
    ] = None
    fill: Annotated[float | None, _about(WORKLOAD, "Share of the cores in use at the beginning.", min=0, max=1)] = None
    warm_up: Annotated[str | None, _about(WORKLOAD, "The first part, which no measure counts: 12h.")] = None
    until: Annotated[str | None, _about(WORKLOAD, "Stop then, instead of at the last arrival: 2d.")] = None
    speed: Annotated[float | None, _about(WORKLOAD, "Let time pass so many times faster.", min=0)] = None
    agents: Annotated[
        int | None, _about(WORKLOAD, f"That decide in parallel; {AGENTS} unless said.", min=1, max=1_000)
    ] = None
    latency: Annotated[LatencyModel | None, _about(WORKLOAD, f"Of agents and store; {LATENCY.value} unless said.")] = (
        None
    )


@flat
def diff(
    first: Annotated[str, typer.Argument(help="The policy that decides, by name or file.", metavar="FIRST")],
    staging: Staging,
    second: Annotated[
        str,
        typer.Argument(help="Another; none with --store: FIRST against what was decided.", metavar="[SECOND]"),
    ] = "",
    store: Annotated[str | None, _about(HISTORY, STORE, "--store")] = None,
    since: Annotated[int | None, _about(HISTORY, "After this revision, not from the earliest.", min=0)] = None,
    seeds: Annotated[int, typer.Option(help="Measure each policy with seeds 1 to this.", min=1, max=100)] = 2,
    to: Annotated[Path | None, typer.Option("--to", help="Write all differences and a report to this folder.")] = None,
    processes: Annotated[int, _about(WORKLOAD, "Runs at once; 0: one per core.", min=0)] = 0,
    rules: Rules = None,
    output: Output = Form.TABLE,
) -> None:
    """Which decisions another policy would change, by which of its rules, and what that does to the zone.

    On a workload, which is simulated; or on what happened at a store, from its feed. Nothing is placed anywhere.

    \b
      roost policy diff default dense
      roost policy diff default mine.yaml --workload week.parquet --zone z.yaml
      roost policy diff default mine.yaml --store roost.db
      roost policy diff mine.yaml --store roost.db    against what was decided
    """
    from roost.sim.diff import check_folder
    from roost.sim.diff_report import page

    if first == second:
        raise InvalidInput("SECOND", "is the same policy", "name another one")
    if to is not None:
        check_folder(to)
    with ExitStack() as stack:
        if store is not None:
            _check_alone(staging)
            found = _on_history(store, since, first, second, seeds, own_rules(rules))
        else:
            if not second:
                raise InvalidInput("SECOND", "is missing", "name another policy, or what was decided with --store")
            if since is not None:
                raise InvalidInput("--since", "goes with --store", "use --until to simulate a part of a workload")
            folder = to or Path(stack.enter_context(TemporaryDirectory(prefix="roost-diff-")))
            found = _on_workload(staging, first, second, seeds, folder, processes, rules)
        if to is not None:
            try:
                found.save(to, page(found))
            except OSError as error:
                problem = f"cannot be written: {error.strerror}"
                raise InvalidInput(str(to), problem, "choose another folder") from None
    if output is Form.JSON:
        print_json(found.as_data())
    else:
        _show(found)
        if to is not None:
            say(f"\nall of it: {to}")


def _check_alone(staging: Staging) -> None:
    for name, value in asdict(staging).items():
        if value is not None:
            raise InvalidInput(f"--{name.replace('_', '-')}", "does not go with --store", "leave out one of them")


def _on_workload(
    staging: Staging, first: str, second: str, seeds: int, folder: Path, processes: int, rules: str | None
) -> Diff:
    from roost.cli.progress import bars
    from roost.cli.sim import Options, experiment_of
    from roost.sim.diff import diff_workload

    staging = replace(staging, agents=staging.agents or AGENTS, latency=staging.latency or LATENCY)
    experiment = experiment_of(None, Options(**asdict(staging), policy=[first, second], seeds=seeds, rules=rules))
    with bars(_name_of) as show:
        found = diff_workload(experiment, folder, show, processes)
    if found.notice:
        advise(found.notice)
    return found


def _name_of(run: Run) -> str:
    return run.folder


def _on_history(url: str, since: int | None, first: str, second: str, seeds: int, rules: OwnRules) -> Diff:
    from roost.api.policies import PolicyBook
    from roost.cli.whatif_source import named_policy
    from roost.sim.diff_history import RECORDED, StoreHistory, diff_history
    from roost.wiring import open_store

    store = open_store(url, read_only=True)
    try:
        ledger = store.load()
        policies = [named_policy(ledger, name, rules) for name in (first, second) if name]
        if policies[-1].name == (policies[0].name if second else RECORDED):
            raise InvalidInput("policies", "two have the same name", "change the name that one of them has in its text")
        book = PolicyBook(ledger.registry, policies[-1], rules)
        decided_by = policies[0] if second else None
        with errors().status("Reading the feed") as status:
            history = StoreHistory(store, since)
            return diff_history(history, decided_by, policies[-1], seeds, book.recorded, status.update)
    finally:
        store.close()


def _show(found: Diff) -> None:
    from roost.sim.diff_report import HEADINGS, group_line, headline, intervals

    say(f"{found.second} instead of {found.first}, on {found.over}")
    say(headline(found))
    groups = found.differences.groups()
    if groups:
        say("")
        print_table(HEADINGS, map(group_line, groups))
        say("")
    for group in groups:
        say(f"{group.rule or group.kind}: {group.example}")
    say("")
    measures = found.measures()
    print_table(measures.headings(), measures.cells())
    say(intervals(found))
