"""The `roost` command. Each command loads what it needs when it runs, so that help answers at once."""

import sys

import typer

from roost.cli import audit, bench, config, demo, explain, policy, serve, store, worker, zone
from roost.cli.output import errors
from roost.model.errors import RoostError

BAD_INPUT, INTERRUPTED = 2, 130

app = typer.Typer(
    name="roost",
    help="Place virtual machines on the machines of a zone, by rules people can read, and explain every decision.",
    epilog="Start with:  roost demo",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
app.command("serve")(serve.serve)
app.command("demo")(demo.demo)
app.command("worker")(worker.worker)
app.command("explain")(explain.explain)
app.command("audit")(audit.audit)
app.add_typer(bench.app, name="bench")
app.add_typer(config.app, name="config")
app.add_typer(policy.app, name="policy")
app.add_typer(store.app, name="store")
app.add_typer(zone.app, name="zone")


def main() -> None:
    """Run a command; a mistake in the input ends with a sentence and exit code 2, never with a traceback."""
    try:
        app()
    except RoostError as error:
        errors().print(f"error: {error}", style="bold red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        sys.stderr.close()
        sys.exit(0)
