"""`roost worker`: one agent, fed with lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from textwrap import wrap
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from roost.cli.help import paragraphs
from roost.cli.options import Rules
from roost.cli.output import STORE, errors

WIDTH = 76  # characters of a line of help that no terminal breaks


def lines_of(file: int) -> Iterator[bytes]:
    """The lines of an open file. Not through sys.stdin: the interpreter aborts if it ends while a thread reads it."""
    rest = b""
    while more := os.read(file, 65_536):
        *lines, rest = (rest + more).split(b"\n")
        yield from lines
    if rest:
        yield rest


class WorkerCommand(TyperCommand):
    """The command, which looks up what can be asked only when somebody wants to read it."""

    def tell_all(self) -> None:
        """Its help has all verbs of the table from now on."""
        self.help = (self.help or "").replace("VERBS", paragraphs("\b\n" + "\n".join(verbs_shown())))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write its help, all of it."""
        self.tell_all()
        super().format_help(ctx, formatter)


def verbs_shown() -> Iterator[str]:
    """What each verb is for, and an example."""
    import json

    import msgspec
    from rich.markup import escape

    from roost.agent.verbs.table import VERBS

    for operation, verb in VERBS.items():
        yield from wrap((operation.__doc__ or "").partition("\n")[0], WIDTH)
        text = escape(json.dumps(msgspec.to_builtins(verb.example), ensure_ascii=False))
        yield from wrap(
            text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )


def worker(
    store: Annotated[str, typer.Argument(help=STORE)],
    policy: Annotated[
        str | None, typer.Option(help="A shipped policy, or a .yaml file; else agent.policy.", show_default=False)
    ] = None,
    rules: Rules = None,
    name: Annotated[str, typer.Option(help="What the agent is called in decisions; unique, made up if left out.")] = "",
    seed: Annotated[
        int | None, typer.Option(help="For its random draws, 0: begin elsewhere each time; else agent.seed.", min=0)
    ] = None,
    retries: Annotated[
        int | None, typer.Option(help="After a conflict, before a request is given up; else agent.retries.", min=0)
    ] = None,
    top: Annotated[
        int | None, typer.Option(help="Machines a conflict-avoiding draw is among; 1: off; else agent.top.", min=1)
    ] = None,
) -> None:
    """Take operations as lines of JSON on the input, answer with lines of JSON on the output.

    Any number of workers may share a PostgreSQL store. An answer "done" is durable. After a crash, or no answer, ask
    again with the same key: nothing is done twice.

    How it decides, how long it waits for a store that is away, and what it sees to beside requests (healing, placing
    again what had to give way, foresight, trimming) goes by the same settings as in the service: roost.toml, or the
    environment. See `roost config show`. It decides by its own policy, whatever was activated for the service. Its log
    is on the error output.

    What can be asked, beside a "key" of yours, to be able to ask again:

    VERBS

    Without "vms" the whole tenant is released; "remove_machines" takes "cluster" instead of "machines"; a capacity has
    an amount of each resource; steps of a move are "hold", "finish", "cancel", and without one the VM moves at once.

    \b
      roost store create zone.db --zone synthetic:1000
      roost worker zone.db < requests.jsonl
    """
    from roost.agent.settings import AgentSettings, seed_of
    from roost.api import logs
    from roost.api.json_lines import serve
    from roost.rules.own import OwnRules
    from roost.settings import load
    from roost.wiring import calm_collector, find_policy, open_agent, open_store

    given = {"policy": policy, "rules": rules, "seed": seed, "retries": retries, "top": top}
    settings = load(None, os.environ, {f"agent.{name}": value for name, value in given.items()}).settings
    logs.set_up(settings.log)  # on the error output: the other one is for answers alone
    wanted = settings.agent
    chosen = find_policy(wanted.policy, OwnRules.find(wanted.rules))
    opened = open_store(store)
    try:
        with errors().status("loading the zone"):
            agent = open_agent(
                opened,
                chosen,
                name,
                seed=seed_of(wanted),
                settings=AgentSettings.of(wanted),
                patience=settings.store.patience_seconds,
            )
        calm_collector()
        errors().print(f"{agent.name}: ready at revision {agent.replica.revision:,}", highlight=False)
        output = sys.stdout.buffer

        def write(line: bytes) -> None:
            output.write(line)
            output.flush()

        try:
            serve(agent, lines_of(0), write, settings)
        finally:
            agent.close()
    finally:
        opened.close()
