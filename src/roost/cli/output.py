"""What commands share for talking to people: consoles, progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

STORE = "Where the store is: a file (SQLite) or postgresql://…"


def console() -> Console:
    """Where answers go."""
    from rich.console import Console

    return Console()


def errors() -> Console:
    """Where complaints and progress go."""
    from rich.console import Console

    return Console(stderr=True)


def print_json(value: object) -> None:
    """For programs: unstyled, whatever the terminal."""
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(value)).decode())  # noqa: T201


@contextmanager
def progress(title: str) -> Iterator[Callable[[str, float], None]]:
    """A live bar on the error stream: call it with what is being done and the share that is done."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<26}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors(), transient=True) as bar:
        task = bar.add_task(title, total=1.0)

        def report(doing: str, share: float) -> None:
            bar.update(task, description=doing, completed=share, total=1.0 if share else None)

        yield report
