"""`roost config`: which settings are in force and why, what settings there are, and whether a file of them is right."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from roost.cli.output import Form, Output, console, print_json, print_table

app = typer.Typer(help="See which settings are in force and why, and check a file of settings.", no_args_is_help=True)


class Described(StrEnum):
    """How settings are described."""

    TABLE = "table"
    JSON = "json"
    TOML = "toml"


@app.command()
def show(
    config: Annotated[
        Path | None, typer.Option(help="A file of settings instead of $ROOST_CONFIG or roost.toml.")
    ] = None,
    assign: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Try an override; may be repeated.")
    ] = None,
    output: Output = Form.TABLE,
) -> None:
    """Every setting, its value, and where that comes from. Secrets are shown as ***.

    A flag wins over the environment, the environment over the file, the file over the default.

    \b
      roost config show
      roost config show --config /etc/roost.toml -o json
      ROOST_SERVER_PORT=8000 roost config show --set store.url=zone.db
    """
    import os

    from roost.settings import load, shown

    loaded = load(config, os.environ, dict(map(_assignment, assign or ())), flag="--set")
    found = shown(loaded.settings)
    if output is Form.JSON:
        print_json([{"name": name, "value": value, "from": loaded.sources[name]} for name, value in found.items()])
        return
    print_table(
        ("setting", "value", "from"), ((name, _plain(value), loaded.sources[name]) for name, value in found.items())
    )


@app.command()
def describe(
    output: Annotated[Described, typer.Option("--output", "-o", help="For people, for programs, or as a file.")] = (
        Described.TABLE
    ),
) -> None:
    """Every setting there is: what it means, its default, unit and environment variable.

    \b
      roost config describe
      roost config describe -o toml > roost.toml
    """
    from roost.settings import describe as settings
    from roost.settings import to_toml

    if output is Described.JSON:
        print_json(settings())
    elif output is Described.TOML:
        console().out(to_toml(), end="", highlight=False)
    else:
        print_table(
            ("setting", "default", "what it means"),
            ((s.name, f"{_plain(s.default)} {s.unit}", f"{s.sentence}\n{s.environment}") for s in settings()),
        )


@app.command()
def check(file: Annotated[Path, typer.Argument(help="A file of settings.")]) -> None:
    """Read a file of settings. A mistake is shown with its line.

    The environment is left aside, so what only makes sense together (a certificate and its key) is not checked.

    \b
      roost config check roost.toml
    """
    from roost.settings import read_file

    console().print(
        f"{file} is fine; settings in it: {len(read_file(file))}", highlight=False, markup=False, soft_wrap=True
    )


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter("write it as server.port=8000", param_hint="--set")
    return name.strip(), value


def _plain(value: object) -> str:
    """As it would be written in the environment."""
    return str(value).lower() if isinstance(value, bool) else str(value)
