"""How far jobs are that run side by side, shown while they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from roost.cli.output import errors

if TYPE_CHECKING:
    from rich.progress import TaskID

K = TypeVar("K")


@contextmanager
def bars(label: Callable[[K], str]) -> Iterator[Callable[[Mapping[K, tuple[float, int]]], None]]:
    """A line for each job that is finished; on a terminal, live bars of those under way, with rate and time left."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<24}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    out = errors()
    shown = Progress(*columns, console=out, transient=True, disable=not out.is_terminal)
    tasks: dict[K, TaskID] = {}
    finished: set[K] = set()

    def show(jobs: Mapping[K, tuple[float, int]]) -> None:
        for job, (share, done) in jobs.items():
            if share < 0 or job in finished:
                continue
            if job not in tasks:
                tasks[job] = shown.add_task(label(job), total=1.0, rate="preparing", begun=None)
            task = next(task for task in shown.tasks if task.id == tasks[job])
            if share == 1:
                finished.add(job)
                shown.remove_task(task.id)
                text = f"{label(job)}: finished, {done:,} operations ({len(finished)} of {len(jobs)})"
                out.print(text, markup=False, highlight=False, soft_wrap=True)
            elif done:
                now = task.elapsed or 0.0
                before, since = begun = task.fields["begun"] or (done, now)  # it may have been resumed
                rate = f"{(done - before) / (now - since):,.0f} operations/s" if now > since else ""
                shown.update(task.id, completed=share, rate=rate, begun=begun)

    with shown:
        yield show
