"""Who walks through the update domains of the zone: one at a time."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
from litestar import delete, get, put
from litestar.params import JSONBody, Parameter
from litestar.types import Scope

from roost.agent.verbs.entry import SetEntry
from roost.api.gate import Asking
from roost.api.problems import Refused
from roost.api.routes.common import WRITING, asking_of, concluded, may
from roost.api.walks import MACHINES, WALK, machines_of, walk_of
from roost.model.keys import new_key
from roost.model.registry import MAINTENANCE
from roost.model.stored import StoredWalk
from roost.wire.maintenance import WalkHold, WalkView

WalkName = Annotated[str, Parameter(min_length=1, max_length=64, description="The walk's own name for itself.")]


@get("/v1/maintenance", **may("read", "roost.not_found"))
async def get_walk(scope: Scope) -> WalkView:
    """Who walks through the zone, where it is, what it has taken out of use, and when it was last heard of."""
    asking = asking_of(scope)
    known = await _known(asking)
    if (walk := walk_of(value := known.get(WALK))) is None or value is None:
        raise Refused("roost.not_found", "nobody walks through the zone", field="walk")
    return _view(walk, machines_of(known.get(MACHINES)), asking.service.walks.silent_for(value))


@put("/v1/maintenance", status_code=200, **may("operate", *WRITING))
async def hold_walk(data: JSONBody[WalkHold], scope: Scope) -> WalkView:
    """Begin to walk, or say that one goes on. While another has the zone, that is refused.

    With `take_over` it is not, once the other has not said that it goes on for as long as it promised to. Then
    `machines` are those that it has left out of use.
    """
    asking = asking_of(scope)
    known = await _known(asking)
    before = known.get(WALK)
    held = walk_of(before)
    if held is not None and before is not None and held.walk != data.walk:
        _check_gone(held, asking.service.walks.silent_for(before), take_over=data.take_over)
    mine = held is not None and held.walk == data.walk
    walk = StoredWalk(
        walk=data.walk,
        owner=data.owner,
        by=asking.principal.name,
        since=held.since if held and mine else time.time(),
        seconds=data.seconds,
        beat=held.beat + 1 if held and mine else 0,
        domain=data.domain,
    )
    await _enter(asking, WALK, msgspec.json.encode(walk).decode(), before)
    machines = machines_of(known.get(MACHINES))
    if data.machines is not None and mine:
        value = msgspec.json.encode(data.machines).decode() if data.machines else None
        await _enter(asking, MACHINES, value, known.get(MACHINES))
        machines = data.machines
    return _view(walk, machines, 0.0)


@delete("/v1/maintenance", status_code=204, **may("operate", *WRITING, "roost.not_found"))
async def end_walk(walk: WalkName, scope: Scope) -> None:
    """A walk has ended: another may begin."""
    asking = asking_of(scope)
    known = await _known(asking)
    held = walk_of(known.get(WALK))
    if held is None or held.walk != walk:
        raise Refused("roost.not_found", f"walk {walk} does not have the zone", field="walk")
    await _enter(asking, MACHINES, None, known.get(MACHINES))
    await _enter(asking, WALK, None, known.get(WALK))


async def _known(asking: Asking) -> dict[str, str]:
    return await asking.service.read(lambda store: store.registry(MAINTENANCE))


async def _enter(asking: Asking, name: str, value: str | None, before: str | None) -> None:
    """Set an entry, unless somebody else has done so since it was looked at."""
    if value == before:
        return
    entry = SetEntry(MAINTENANCE, name, value, new=before is None, instead_of=before)
    ticket = await asking.service.submit(entry, new_key(), asking.principal.name)
    if ticket.answer and ticket.answer.status == "invalid":
        raise Refused("roost.conflict", "another walk through the zone began, or took over, just now", field="walk")
    concluded(asking, ticket)


def _check_gone(held: StoredWalk, silent: float, *, take_over: bool) -> None:
    """Refuse to take what somebody else has."""
    where = "" if held.domain is None else f", in update domain {held.domain}"
    said = f"{held.owner} walks through the zone{where}"
    if not take_over:
        ended = silent >= held.seconds
        heard = f"has not been heard of for {silent:,.0f} s" if ended else f"was heard of {silent:,.0f} s ago"
        remedy = "take over from it" if ended else "wait until it has ended"
        raise Refused("roost.conflict", f"{said} and {heard}: {remedy}", field="walk")
    if silent < held.seconds:
        wait = f"take over when it has been silent for {held.seconds:,.0f} s"
        raise Refused("roost.conflict", f"{said} and was heard of {silent:,.0f} s ago: {wait}", field="take_over")


def _view(walk: StoredWalk, machines: tuple[str, ...], silent: float) -> WalkView:
    return WalkView(
        walk=walk.walk,
        owner=walk.owner,
        by=walk.by,
        since=walk.since,
        seconds=walk.seconds,
        domain=walk.domain,
        machines=machines,
        silent=round(silent, 3),
    )


ROUTES = [get_walk, hold_walk, end_walk]
