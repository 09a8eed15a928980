"""How a command ends: every exit code, what leads to it, and what is said about it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from roost.cli.help import wanted
from roost.cli.output import errors, print_json
from roost.model.errors import RoostError, nearest

if TYPE_CHECKING:
    import typer
    from rich.console import Console

    from roost.wire.problems import Problem

REASONS_SHOWN = 5


class Exit(IntEnum):
    """How a command ended."""

    DONE = 0
    FOUND = 1  # an audit has findings
    BAD_INPUT = 2  # a mistake in it, or there is no such thing, or it can never fit, or the store is broken
    NO_ROOM = 3  # not now
    TOO_LATE = 4  # somebody was faster, or it contradicts what there is
    UNAVAILABLE = 5  # the service or the store cannot be reached, or has too much to do
    NOT_ALLOWED = 6
    INTERRUPTED = 130


CODES = {
    "roost.no_capacity": Exit.NO_ROOM,
    "roost.fragmented": Exit.NO_ROOM,
    "roost.tenant_constraint": Exit.NO_ROOM,
    "roost.threshold": Exit.NO_ROOM,
    "roost.conflict": Exit.TOO_LATE,
    "roost.outdated": Exit.TOO_LATE,
    "roost.retries_exhausted": Exit.TOO_LATE,
    "roost.store_unavailable": Exit.UNAVAILABLE,
    "roost.unreachable": Exit.UNAVAILABLE,
    "roost.overloaded": Exit.UNAVAILABLE,
    "roost.rate_limited": Exit.UNAVAILABLE,
    "roost.starting": Exit.UNAVAILABLE,
    "roost.timeout": Exit.UNAVAILABLE,
    "roost.internal": Exit.UNAVAILABLE,
    "roost.unauthorised": Exit.NOT_ALLOWED,
    "roost.forbidden": Exit.NOT_ALLOWED,
}


def exit_of(code: str) -> Exit:
    """The exit code for the code of an error or a problem."""
    return CODES.get(code, Exit.BAD_INPUT)


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether a command was to answer a program, whatever became of it."""
    joined = " ".join(arguments)
    return any(f"{option}{between}json" in joined for option in ("-o", "--output") for between in (" ", "=", ""))


def complain(error: RoostError, *, for_programs: bool = False) -> Exit:
    """Say what went wrong, why, and what may help; returns how to exit. A program gets the problem itself, too."""
    from roost.client.errors import ServiceProblem, ServiceUnreachable

    if for_programs and isinstance(error, ServiceProblem):
        print_json(error.problem)

    out = errors()
    out.print(f"error: {error}", style="bold red", markup=False, highlight=False, soft_wrap=True)
    if isinstance(error, ServiceProblem):
        _advise(out, error.problem)
    elif isinstance(error, ServiceUnreachable) and error.key:
        _say(
            out, "careful", f"it may have been done all the same; ask again with the key {error.key}: never done twice"
        )
    return exit_of(error.code)


def complain_of_usage(error: typer.TyperException) -> Exit:
    """Say what is wrong with how a command was called, and where to read how it is."""
    if type(error).__name__ == "NoArgsIsHelpError":  # which was told
        return Exit.BAD_INPUT
    out = errors()
    out.print(f"error: {_usage(error)}", style="bold red", markup=False, highlight=False, soft_wrap=True)
    if (context := getattr(error, "ctx", None)) is not None:
        _say(out, "usage", context.get_usage().removeprefix("Usage: "))
        _say(out, "help", f"{context.command_path} --help")
    return Exit.BAD_INPUT


def _usage(error: typer.TyperException) -> str:
    """What is wrong, without the words of libraries."""
    option, context = getattr(error, "option_name", ""), getattr(error, "ctx", None)
    if option.startswith("--") and context is not None:
        known = [name for each in context.command.params for name in each.opts]
        return error.message + "".join(f"; did you mean {each}?" for each in nearest(option, known)[:1])
    parameter = getattr(error, "param", None)
    hint = getattr(error, "param_hint", None) or (parameter.opts[0] if parameter else "")
    if not hint or not error.message:
        return error.format_message()
    if error.message.startswith("Input should be"):
        return f"{hint}: give {wanted(parameter)}"
    return f"{hint}: {error.message.removeprefix('Value error, ')}"


def _advise(out: Console, problem: Problem) -> None:
    for i, reason in enumerate(problem.reasons[:REASONS_SHOWN]):
        _say(out, "" if i else "why", f"{reason.machines:,} machines: {reason.text} ({reason.rule})")
    if (more := len(problem.reasons) - REASONS_SHOWN) > 0:
        _say(out, "", f"… and {more} more reasons")
    for i, remedy in enumerate(problem.remedies):
        _say(out, "" if i else "would fit", remedy.text)
    if problem.decision and problem.reasons:
        _say(out, "more", f"roost explain {problem.decision}")
    if problem.code == "roost.unauthorised":
        _say(out, "token", "give it with --token, ROOST_TOKEN or client.token in roost.toml")
    if problem.code == "roost.internal":
        _say(out, "request", problem.request_id)


def _say(out: Console, what: str, words: str) -> None:
    out.print(f"  {what:<10} {words}", markup=False, highlight=False, soft_wrap=True)
