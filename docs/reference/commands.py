"""Makes the page of all commands from the commands themselves.

python docs/reference/commands.py > docs/reference/commands.md
"""

import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from typing import Any, get_args

from typer.core import TyperArgument, TyperGroup, TyperOption

from roost.api.reference import table
from roost.cli.exits import Exit
from roost.cli.main import commands
from roost.cli.worker import WorkerCommand

HEAD = """# Commands

<!-- Made by `python docs/reference/commands.py`; not edited by hand. -->

`roost --help` and `roost COMMAND --help` say the same. `-o json` is for programs.

Commands that ask the service take `--url` (else `ROOST_URL`, else http://127.0.0.1:7117), `--token` (else
`ROOST_TOKEN`) and `--config FILE` (its section `client`); these are not repeated below.

Exit codes:

"""
MEANING = {
    Exit.DONE: "done",
    Exit.FOUND: "an audit has findings",
    Exit.BAD_INPUT: "there is a mistake in it, or no such thing, or it can never fit",
    Exit.NO_ROOM: "there is no room now",
    Exit.TOO_LATE: "somebody was faster, or it contradicts what there is",
    Exit.UNAVAILABLE: "the service or the store cannot be reached, or has too much to do",
    Exit.NOT_ALLOWED: "a token is missing, or does not allow it",
    Exit.INTERRUPTED: "interrupted",
}
SERVICE = {"url", "token", "config"}
UNSAID = (None, "", 0, 0.0, False, ())  # defaults


def page() -> str:
    """The whole page."""
    exits = table(("code", "meaning"), ((str(int(code)), MEANING[code]) for code in Exit))
    told = (line for name, command in _leaves(commands(), "roost") for line in _tell(name, command))
    return HEAD + "\n".join([*exits, *told]).rstrip() + "\n"


def _leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(command, TyperGroup):
        yield name, command
        return
    if command.invoke_without_command:
        yield name, command
    for each in command.commands.values():
        yield from _leaves(each, f"{name} {each.name}")


def _tell(name: str, command: Any) -> Iterator[str]:
    arguments = [_argument(each) for each in command.params if isinstance(each, TyperArgument)]
    yield from (f"## `{' '.join([name, *arguments])}`", "")
    if isinstance(command, WorkerCommand):
        command.tell_all()
    for paragraph in inspect.cleandoc(command.help or "").replace("\\[", "[").split("\n\n"):
        if paragraph.startswith("\b"):
            yield from ("```text", inspect.cleandoc(f" \n{paragraph.replace(chr(8), '')}"), "```", "")
        else:
            yield from (paragraph.replace("\n", " "), "")
    options = [each for each in command.params if isinstance(each, TyperOption)]
    if {each.name for each in options} >= SERVICE:
        options = [each for each in options if each.name not in SERVICE]
    if options:
        yield from table(("option", "what it is"), map(_option, options))


def _argument(argument: Any) -> str:
    return str(argument.metavar if argument.required else f"[{argument.metavar}]")


def _option(option: Any) -> tuple[str, str]:
    names = ", ".join(f"`{each}`" for each in (*option.opts, *option.secondary_opts))
    words = [option.help or ""]
    annotation = option.type_descriptor.annotation
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, Enum) and "One of" not in words[0]:
            words.append(f"One of {', '.join(each.value for each in kind)}.")
    if option.required:
        words.append("Required.")
    elif option.default not in UNSAID:
        words.append(f"Default: {getattr(option.default, 'value', option.default)}.")
    return names, re.sub(r"\s+", " ", " ".join(words))


if __name__ == "__main__":
    sys.stdout.write(page())
