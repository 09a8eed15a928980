"""The `roost` command. Each command loads what it needs when it runs, so that help answers at once."""

import sys
from typing import Annotated

import typer
from typer.core import TyperGroup

from roost.cli import (
    audit,
    bench,
    capacity,
    changes,
    cluster,
    config,
    decisions,
    demo,
    duties,
    evictions,
    experiment,
    explain,
    foresight,
    heal,
    machine,
    maintenance,
    policy,
    policy_diff,
    serve,
    sim,
    store,
    tenant,
    thresholds,
    token,
    vm,
    whatif,
    why_not,
    worker,
    workload,
    workload_analyze,
    zone,
)
from roost.cli.exits import Exit, complain, complain_of_usage, wants_json
from roost.cli.help import plainly
from roost.cli.output import say
from roost.model.errors import RoostError

SERVE, USE, OPERATE, MEASURE = "Serve", "Use", "Operate", "Measure"

app = typer.Typer(
    name="roost",
    help="Place virtual machines on the machines of a zone, by rules people can read, and explain every decision.",
    epilog="Start with `roost demo`; or `roost serve`, and in another window:\n\n  roost tenant create web --vm D2",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
app.command("serve", rich_help_panel=SERVE)(serve.serve)
app.add_typer(token.app, name="token", rich_help_panel=SERVE)
app.add_typer(config.app, name="config", rich_help_panel=SERVE)
app.add_typer(store.app, name="store", rich_help_panel=SERVE)
app.command("worker", cls=worker.WorkerCommand, rich_help_panel=SERVE)(worker.worker)

app.add_typer(tenant.app, name="tenant", rich_help_panel=USE)
app.add_typer(vm.app, name="vm", rich_help_panel=USE)
app.command("capacity", rich_help_panel=USE)(capacity.capacity)
app.command("explain", rich_help_panel=USE)(explain.explain)
app.command("why-not", rich_help_panel=USE)(why_not.why_not)

app.add_typer(machine.app, name="machine", rich_help_panel=OPERATE)
app.add_typer(cluster.app, name="cluster", rich_help_panel=OPERATE)
app.add_typer(thresholds.app, name="thresholds", rich_help_panel=OPERATE)
policy.app.command("diff", rich_help_panel=policy.HERE)(policy_diff.diff)
app.add_typer(policy.app, name="policy", rich_help_panel=OPERATE)
app.add_typer(zone.app, name="zone", rich_help_panel=OPERATE)
app.command("changes", rich_help_panel=OPERATE)(changes.changes)
app.command("decisions", rich_help_panel=OPERATE)(decisions.decisions)
app.add_typer(evictions.app, name="evictions", rich_help_panel=OPERATE)
app.add_typer(foresight.app, name="foresight", rich_help_panel=OPERATE)
app.add_typer(heal.app, name="heal", rich_help_panel=OPERATE)
app.add_typer(maintenance.app, name="maintenance", rich_help_panel=OPERATE)
app.command("duties", rich_help_panel=OPERATE)(duties.duties)
app.command("audit", rich_help_panel=OPERATE)(audit.audit)
app.add_typer(whatif.app, name="whatif", rich_help_panel=OPERATE)

app.command("demo", rich_help_panel=MEASURE)(demo.demo)
workload.app.command("generate")(workload_analyze.generate)
workload.app.command("analyze")(workload_analyze.analyze)
app.add_typer(workload.app, name="workload", rich_help_panel=MEASURE)
app.add_typer(sim.app, name="sim", rich_help_panel=MEASURE)
app.add_typer(experiment.app, name="experiment", rich_help_panel=MEASURE)
app.add_typer(bench.app, name="bench", rich_help_panel=MEASURE)


def _tell_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        say(f"roost {version('roost')}")
        raise typer.Exit


@app.callback()
def roost(
    version: Annotated[
        bool, typer.Option("--version", help="Say which version this is.", callback=_tell_version, is_eager=True)
    ] = False,
) -> None:
    """What can be said before a command."""


def commands() -> TyperGroup:
    """All commands."""
    return plainly(app)


def main() -> None:
    """Run a command; what goes wrong ends with a sentence and an exit code (see exits.py), never with a traceback."""
    try:
        sys.exit(commands().main(prog_name="roost", standalone_mode=False))
    except typer.TyperException as error:
        sys.exit(complain_of_usage(error))
    except typer.Abort:
        sys.exit(Exit.INTERRUPTED)
    except RoostError as error:
        sys.exit(complain(error, for_programs=wants_json(sys.argv[1:])))
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        sys.stderr.close()
        sys.exit(0)
