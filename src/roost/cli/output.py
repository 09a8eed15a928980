"""What commands share for talking to people: consoles, progress, and where a policy or a zone comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from roost.model.zone import Zone
    from roost.rules.policy import Policy

SYNTHETIC = "synthetic:"
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


def find_policy(name_or_file: str) -> Policy:
    """A shipped policy by name, or the one in a .yaml file."""
    from roost.rules.policy import Policy

    is_file = name_or_file.endswith((".yaml", ".yml")) or "/" in name_or_file
    return Policy.load(name_or_file) if is_file else Policy.named(name_or_file)


def find_zone(file_or_size: str, seed: int = 1) -> Zone:
    """The zone in a file, or a made-up one: synthetic:20000."""
    from roost.model.errors import InvalidInput
    from roost.model.zone import Zone

    if not file_or_size.startswith(SYNTHETIC):
        return Zone.load(file_or_size)
    size = file_or_size.removeprefix(SYNTHETIC).replace("_", "")
    if not (size.isascii() and size.isdigit()):
        raise InvalidInput("zone", f"{file_or_size!r} has no size", "write synthetic:20000")
    return Zone.synthetic(int(size), seed)
