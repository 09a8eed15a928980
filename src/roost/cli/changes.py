"""`roost changes`: the audit trail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from roost.cli.options import PAGE, ServiceOptions, flat
from roost.cli.output import Form, Output, print_json_line, say, when
from roost.model.readable import plain
from roost.model.request import HOLD, hold_of

if TYPE_CHECKING:
    from roost.client import Client
    from roost.model.request import Placement
    from roost.wire.changes import ChangeView, EvictionReason

BEYOND = 2**62  # any revision
NAMED = 3  # VMs and machines of one change that are named


@flat
def changes(
    service: ServiceOptions,
    since: Annotated[
        int | None, typer.Option("--since", help="After this revision, all of them.", metavar="REVISION", min=0)
    ] = None,
    last: Annotated[int, typer.Option("--last", help="Without --since: the last so many.", min=0)] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as more happens, until interrupted.")] = False,
    output: Output = Form.TABLE,
) -> None:
    """What was changed: revision, when, by whom, what. Every write is here. JSON comes as a line for each change.

    \b
      roost changes
      roost changes --since 0
      roost changes --follow -o json
    """
    with service.open() as client:
        start = since if since is not None else max(0, client.list_changes(since=BEYOND, limit=1).head - last)
        for change in client.changes(start) if follow else _listed(client, start):
            if output is Form.JSON:
                print_json_line(change)
            else:
                say(f"{change.revision:>8}  {when(change.at):<19}  {change.by or '-':<12}  {'; '.join(_words(change))}")


def _listed(client: Client, since: int) -> Iterator[ChangeView]:
    while True:
        page = client.list_changes(since=since, limit=PAGE)
        yield from page.items
        if page.revision == since:
            return
        since = page.revision


def _words(change: ChangeView) -> Iterator[str]:
    """What a change was. A VM that is released and placed has moved, and what was held for it has served."""
    targets = {p.vm: p.machine for p in change.placed}
    moved = [p for p in change.released if p.vm in targets]
    served = {name for p in moved for name in (p.vm, hold_of(p.vm))}
    if moved:
        yield f"moved {_some([f'{p.vm} from {p.machine} to {targets[p.vm]}' for p in moved])}"
    yield from _words_of("placed", "on", "held room", [p for p in change.placed if p.vm not in served])
    rest = [p for p in change.released if p.vm not in served]
    if change.eviction is None:
        yield from _words_of("released", "from", "gave back room", rest)
    else:
        why = _why(change.eviction)
        for words in _words_of("evicted", "from", "gave back room", rest):
            yield f"{words} {why}, {plain(change.eviction.grace)} s to finish" if words.startswith("evicted") else words
    if change.added:
        yield f"added {_some(change.added)}"
    if change.machines:
        yield _some([f"{m['machine']}: {m['field']} {m['before']} → {m['after']}" for m in change.machines])
    for each in change.clusters:
        yield f"{each['cluster']}: {'quarantined' if each['after'] else 'no longer quarantined'}"
    if change.removed:
        yield f"removed {_some(change.removed)}"
    yield from change.registered


def _why(eviction: EvictionReason) -> str:
    """Whose room it had to be."""
    whose = f" of {eviction.tenant}" if eviction.tenant else ""
    return f"for {eviction.priority} VMs{whose}" if eviction.priority else "for maintenance"


def _words_of(verb: str, where: str, held: str, vms: Sequence[Placement]) -> Iterator[str]:
    """What was done to VMs, and to room that is held for them."""
    if some := [f"{p.vm} {where} {p.machine}" for p in vms if not p.vm.endswith(HOLD)]:
        yield f"{verb} {_some(some)}"
    if some := [f"{p.vm.removesuffix(HOLD)} on {p.machine}" for p in vms if p.vm.endswith(HOLD)]:
        yield f"{held} for {_some(some)}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
