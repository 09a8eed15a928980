"""What commands share for talking to people and programs: consoles, tables, JSON, progress, what they read."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from roost.model.errors import InvalidInput
from roost.model.spans import DAY

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")
STORE = "Where the store is: a file (SQLite) or postgresql://…"
UNITS = (("d", DAY), ("h", 3_600.0), ("min", 60.0))


class Form(StrEnum):
    """How answers are printed."""

    TABLE = "table"
    JSON = "json"


Output = Annotated[Form, typer.Option("--output", "-o", help="For people, or for programs.")]


def console() -> Console:
    """Where answers go."""
    from rich.console import Console

    return Console()


def errors() -> Console:
    """Where complaints and progress go."""
    from rich.console import Console

    return Console(stderr=True)


def say(text: str) -> None:
    """A line for people, as it is."""
    console().print(text, markup=False, highlight=False, soft_wrap=True)


def advise(text: str) -> None:
    """A line beside the answer."""
    errors().print(text, markup=False, highlight=False, soft_wrap=True)


def print_json(value: object) -> None:
    """For programs: unstyled, whatever the terminal."""
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(value)).decode())  # noqa: T201


def print_json_line(value: object) -> None:
    """For programs that read while more is to come: a line for each value."""
    import msgspec

    print(msgspec.json.encode(value).decode(), flush=True)  # noqa: T201


def print_table(headings: Iterable[str], rows: Iterable[Iterable[object]], *, title: str = "") -> None:
    """A table; numbers stand to the right."""
    from roost.cli.table import lines_of

    found = [list(row) for row in rows]
    names = list(headings)
    right = [bool(found) and isinstance(found[0][i], int | float) for i in range(len(names))]
    if title:
        say(title)
    lines = lines_of(names, [[cell(value) for value in row] for row in found], right, _columns())
    print("\n".join(lines))  # noqa: T201


def _columns() -> int | None:
    """How wide the terminal is, if somebody looks at one."""
    return console().width if sys.stdout.isatty() or "COLUMNS" in os.environ else None


def print_facts(facts: Mapping[str, object]) -> None:
    """What there is to say about one thing, a line each."""
    width = max(map(len, facts)) + 2
    for name, value in facts.items():
        say(f"{name:<{width}}{cell(value)}")


def cell(value: object) -> str:
    """A value as people read it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}"
    return "" if value is None else str(value)


def when(seconds: float) -> str:
    """A time, as it is here."""
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S") if seconds else ""


def since_days(days: float | None) -> float | None:
    """So many days ago, in seconds since 1970."""
    return None if days is None else max(0.0, round(time.time() - days * DAY, 3))


def lasted(seconds: float | None) -> str:
    """A time span as people say it."""
    if seconds is None:
        return "-"
    for unit, length in UNITS:
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 or not seconds else f"{1_000 * seconds:.0f} ms"


def read_input(file: str) -> bytes:
    """What is in a file, or, for `-`, what comes in."""
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except FileNotFoundError:
        raise InvalidInput(file, "no such file") from None
    except OSError as error:
        raise InvalidInput(file, f"cannot be read: {error.strerror}") from None


def decode(text: bytes | Any, kind: type[T], where: str) -> T:
    """JSON as a checked value; `text` may be read already."""
    import msgspec

    from roost.json_mistakes import check_keys, in_words

    try:
        found = msgspec.json.decode(text, type=kind) if isinstance(text, bytes) else msgspec.convert(text, kind)
        if isinstance(text, bytes):
            check_keys(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        place, words = in_words(str(error), kind)
        raise InvalidInput(where, f"{place}: {words}" if place else words) from None
    return found


@contextmanager
def progress(title: str) -> Iterator[Callable[[str, float], None]]:
    """A live bar on the error stream: call it with what is being done and the share that is done.

    What is begun is drawn at once, however soon it is over; shares when the bar is drawn anew.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<26}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    out = errors()
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task(title, total=1.0)
        drawn = title

        def report(doing: str, share: float) -> None:
            nonlocal drawn
            begun, drawn = doing != drawn, doing
            bar.update(task, description=doing, completed=share, total=1.0 if share else None, refresh=begun)

        yield report
