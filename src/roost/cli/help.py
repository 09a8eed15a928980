"""How commands tell about themselves, and about what they were given that they do not know, as people read it.

Typer shows types of Python (`<bool>`, `<list[str]>`), ranges as formulas, and lines of a docstring as they are broken
there. It has no setting for any of that, so that the commands it makes are gone over once.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer
import typer.main
from typer.core import TyperArgument, TyperGroup, TyperOption

from roost.model.errors import InvalidInput, nearest
from roost.model.readable import plain

HELP = ["--help", "-h"]
LONGEST_CHOICE = 12  # characters that stand beside an option; more are told in its sentence
WORDS = {"str": "TEXT", "int": "NUMBER", "float": "NUMBER", "path": "FILE", "file": "FILE"}
# What others call it. A word that means the end of something has no entry: who wants that looks it up.
SYNONYMS = {
    "add": ("create",),
    "cordon": ("drain", "quarantine"),
    "describe": ("show",),
    "get": ("show", "list"),
    "ls": ("list",),
    "make": ("create",),
    "migrate": ("move",),
    "new": ("create",),
    "resize": ("scale-out",),
    "status": ("show",),
    "uncordon": ("ready", "release"),
    "undrain": ("ready",),
    "up": ("ready", "scale-out"),
}


class Option(TyperOption):
    """An option that tells its type in a word, and a flag that tells none."""

    def display_type_rich(self, ctx: Any) -> str | None:  # noqa: ARG002
        """What stands beside it."""
        if self.is_flag:
            return None
        return self.metavar or _word(self)

    def _get_number_range_help_str(self) -> str | None:
        return None  # its sentence says so

    def consume_value(self, ctx: Any, opts: Any) -> Any:
        """A text that is given and empty is a variable that was never set: it must not mean all, or the best."""
        given = opts.get(self.name)
        if given == "" or (isinstance(given, list | tuple) and "" in given):
            raise typer.BadParameter("is empty; leave it out, or say what you want", ctx=ctx, param=self)
        return super().consume_value(ctx, opts)


class Argument(TyperArgument):
    """An argument as usage lines have it: NAME, [NAME], NAME..., [NAME...]."""

    def display_type_rich(self, ctx: Any) -> str | None:  # noqa: ARG002
        """Its name says what it is."""
        return None

    def _usage_display_name(self) -> str:
        name = self.display_name_raw
        return name if self.required else f"[{name}]"

    def _get_number_range_help_str(self) -> str | None:
        return None


class CommandGroup(TyperGroup):
    """Commands; one that there is not leads to others, but never to one that destroys something."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is meant."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            named = [each for each in SYNONYMS.get(name, ()) if each in self.commands]
            near = named or nearest(name, self.commands)
            remedy = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(self.commands)}"
            raise InvalidInput(ctx.command_path, f"has no command {name!r}", remedy)
        return super().resolve_command(ctx, args)


def plainly(app: typer.Typer) -> TyperGroup:
    """The commands of an application, made to tell about themselves in plain words."""
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    for command in _all_of(root):
        _mend(command)
    return root


def _all_of(command: Any) -> Iterator[Any]:
    yield command
    for each in getattr(command, "commands", {}).values():
        yield from _all_of(each)


def _mend(command: Any) -> None:
    """Let a command, its options and arguments be of the classes above: Typer has no way to be told of them."""
    if isinstance(command, TyperGroup):
        command.__class__ = CommandGroup
    command.help = paragraphs(command.help or "")
    command.context_settings["help_option_names"] = HELP
    helping = command.get_help_option(typer.Context(command, help_option_names=HELP))
    for each in (*command.params, helping):
        if isinstance(each, TyperArgument):
            each.__class__ = Argument
            each.metavar = (each.metavar or each.name.upper()).strip("[].") + ("..." if each.nargs != 1 else "")
        elif isinstance(each, TyperOption):
            each.__class__ = Option
            each.help = " ".join((each.help or "", *_limits(each))).strip()


def paragraphs(text: str) -> str:
    """A docstring whose lines are broken where the terminal ends, but for examples, which stay as they are.

    Their lines begin with a mark that nobody sees, so that they keep their indentation.
    """
    found = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        each.removeprefix("\b").replace("\n", "\n\b").strip("\n") if each.startswith("\b") else each.replace("\n", " ")
        for each in found
    )


def _word(parameter: Any) -> str:
    """What kind of value is wanted, in a word."""
    found = parameter.type_descriptor
    if found.is_choice:
        choices = "|".join(_choices(parameter))
        return choices if len(choices) <= LONGEST_CHOICE else "WORD"
    kind = found.ranged_type_name if found.is_ranged else found.path_type if found.is_path else parameter.bare_type()
    return WORDS.get(kind.removeprefix("list[").removesuffix("]"), "TEXT")


def _choices(parameter: Any) -> list[str]:
    return [str(getattr(each, "value", each)) for each in parameter.type_descriptor.choices or ()]


def _limits(option: Any) -> Iterator[str]:
    """What an option may be, as far as no word beside it says so."""
    choices = _choices(option)
    if len("|".join(choices)) > LONGEST_CHOICE:
        yield f"One of {', '.join(choices)}."
    if option.max is not None or option.min:
        yield f"{_range(option)}."


def _range(parameter: Any) -> str:
    least, most = parameter.min, parameter.max
    return f"{plain(least or 0)} or more" if most is None else f"{plain(least or 0)} to {plain(most)}"


def wanted(parameter: Any) -> str:
    """What a parameter that got something else wants."""
    found = parameter.type_descriptor
    if not found.is_ranged:
        return {"int": "a whole number", "float": "a number"}.get(parameter.bare_type(), "something else")
    return f"{'a whole number' if found.ranged_type_name == 'int' else 'a number'}, {_range(parameter)}"
