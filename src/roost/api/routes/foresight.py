"""What is to be expected: how often VMs come, from history or as an operator says. The rule `safest` goes by it."""

from __future__ import annotations

import asyncio
import time

from litestar import delete, get, put
from litestar.params import JSONBody
from litestar.response import Response
from litestar.types import Scope

from roost.api.problems import Refused
from roost.api.routes.common import WRITING, DryRun, Key, asking_of, enter, may, was_decided
from roost.duties.foresight import foreseen
from roost.model.foresight import NAME, encode, foresee_given
from roost.model.registry import FORESIGHT
from roost.wire.foresight import ExpectedType, ForesightView, ForesightWish
from roost.wire.tenants import Done


@get("/v1/foresight", **may("read"))
async def show_foresight(scope: Scope) -> ForesightView:
    """What is foreseen, who says so, and since when. Types that come seldom count as the one that is most like them."""
    service = asking_of(scope).service
    service.check_open()
    known = foreseen(service.agent.replica.registry)
    if known is None:
        return ForesightView(source="none", at=None, items=[])
    bands = service.agent.allocator.zone.bands
    items = [
        ExpectedType(type=name, arrivals=dict(zip(bands, rates, strict=True)), ahead=known.ahead[name])
        for name, rates in sorted(known.arrivals.items())
        if len(rates) == len(bands)
    ]
    return ForesightView(source="operator" if known.given else "history", at=known.at, items=items)


@put("/v1/foresight", status_code=200, **may("operate", *WRITING))
async def set_foresight(
    data: JSONBody[ForesightWish], scope: Scope, key: Key = None, dry_run: DryRun = False
) -> Response[Done]:
    """Say how many VMs of each type and priority come in an hour, whatever history tells; every worker follows."""
    asking = asking_of(scope)
    asking.service.check_open()
    allocator = asking.service.agent.allocator
    rows = allocator.view.machines.copy()
    found = await asyncio.to_thread(foresee_given, allocator.zone, rows, data.arrivals, time.time())
    return await enter(asking, FORESIGHT, NAME, encode(found), key, dry_run)


@delete("/v1/foresight", status_code=200, **may("operate", *WRITING, "roost.not_found"))
async def clear_foresight(scope: Scope, key: Key = None, dry_run: DryRun = False) -> Response[Done]:
    """Go by history again, as soon as it is looked at the next time; until then nothing is foreseen."""
    asking = asking_of(scope)
    asking.service.check_open()
    known = foreseen(asking.service.agent.replica.registry)
    again = key and not dry_run and await was_decided(asking, key)
    if (known is None or not known.given) and not again:
        raise Refused("roost.not_found", "nobody has said what comes: it goes by history")
    return await enter(asking, FORESIGHT, NAME, None, key, dry_run)


ROUTES = [show_foresight, set_foresight, clear_foresight]
