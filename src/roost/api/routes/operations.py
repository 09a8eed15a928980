"""Changes, the trail, tokens, health and metrics."""

from __future__ import annotations

import time
from typing import Annotated, Any

from litestar import Response, delete, get, post
from litestar.params import HeaderParameter, JSONBody, Parameter
from litestar.response import Stream
from litestar.types import Scope

from roost.api.problems import Refused
from roost.api.routes.common import (
    WRITING,
    Key,
    Limit,
    anybody,
    asking_of,
    concluded,
    may,
    page_size,
    was_decided,
)
from roost.api.service import Service
from roost.api.tokens import CLOSED, LAST_ADMIN
from roost.duties.duty import Duty
from roost.model.keys import new_key
from roost.model.registry import TOKEN
from roost.model.tokens import check_name
from roost.store.snapshot import encode_snapshot
from roost.wire.basics import EVENT
from roost.wire.changes import Changes
from roost.wire.operations import DutyHealth, Health
from roost.wire.tokens import NewToken, TokenMade, Tokens

Since = Annotated[int, Parameter(ge=0, le=2**62, description="Changes after this revision.")]
EVENT_STREAM = "text/event-stream"


@get("/v1/changes", **may("read", "roost.too_old", namespaced=True))
async def list_changes(scope: Scope, since: Since = 0, limit: Limit = 100) -> Changes:
    """What changed after a revision, oldest first: who, when, what. Every write is here, so this is the audit trail."""
    asking = asking_of(scope)
    asking.service.check_open()
    return await asking.service.changes.page(since, page_size(limit, asking.service), asking.principal)


@get("/v1/changes/stream", media_type=EVENT_STREAM, **may("read", "roost.too_old", namespaced=True))
async def stream_changes(
    scope: Scope,
    since: Annotated[
        int | None, Parameter(ge=0, le=2**62, description="Changes after this revision; from now on if left out.")
    ] = None,
    last_event_id: Annotated[
        str | None, HeaderParameter(name="Last-Event-ID", max_length=18, pattern=EVENT, description="As `since`.")
    ] = None,
) -> Stream:
    """Changes as they happen, as server-sent events whose ids are revisions. A stream that broke goes on from there."""
    asking = asking_of(scope)
    service = asking.service
    service.check_open()
    start = int(last_event_id) if last_event_id else since
    if start is None:
        start = service.agent.replica.revision
    await service.changes.page(start, 1, asking.principal)  # what is too old is refused before anything is sent
    asking.ended = service.changes.take(asking.principal)
    return Stream(service.changes.stream(start, asking.principal), headers={"cache-control": "no-store"})


@get("/v1/snapshot", media_type="application/json", **may("read"))
async def snapshot(scope: Scope) -> Response[dict[str, Any]]:
    """The zone as it is now: machines, tenants, VMs, policies; no tokens. `roost whatif` asks questions about it."""
    service = asking_of(scope).service
    text: Any = await service.read_slowly(lambda store: encode_snapshot(store.load()))  # encoded already
    return Response(text, media_type="application/json", headers={"cache-control": "no-store"})


# -------------------------------------------------------------------------------------------------------------- tokens


@get("/v1/tokens", **may("admin"))
async def list_tokens(scope: Scope) -> Tokens:
    """All tokens, without their secrets."""
    service = asking_of(scope).service
    service.check_open()
    return Tokens(items=service.tokens.views())


@post("/v1/tokens", status_code=201, **may("admin", *WRITING))
async def create_token(data: JSONBody[NewToken], scope: Scope) -> TokenMade:
    """Make a token. Its secret is in this answer and nowhere else."""
    asking = asking_of(scope)
    service, by = asking.service, asking.principal.name
    service.check_open()
    made, kept = service.tokens.make(data, time.time(), by)
    concluded(asking, await service.enter(TOKEN, data.name, kept, new_key(), by, new=True))
    return made


@delete("/v1/tokens/{name:str}", status_code=204, **may("admin", *WRITING, "roost.not_found"))
async def revoke_token(
    name: Annotated[str, Parameter(max_length=200, description="As it was made.")],
    scope: Scope,
    key: Key = None,
    force: Annotated[bool, Parameter(description="Also the last one with scope admin.")] = False,
) -> None:
    """Revoke a token. Other workers refuse it as soon as the feed has told them, mostly within a second.

    The last one that can make others is kept, unless `force` is given. Without any, nobody is let in: make one on the
    store (`roost token create --store`).
    """
    asking = asking_of(scope)
    service, by = asking.service, asking.principal.name
    service.check_open()
    check_name("token", name)
    async with service.revoking:
        if name not in service.tokens.tokens and not (key and await was_decided(asking, key)):
            raise Refused("roost.not_found", f"there is no token {name}", field="token")
        if not force and service.tokens.is_last_admin(name, time.time()):
            raise Refused("roost.conflict", f"{name} {LAST_ADMIN}", field="token")
        if not service.tokens.closed:
            concluded(asking, await service.enter(*CLOSED, "closed", new_key(), by))
        concluded(asking, await service.enter(TOKEN, name, None, key or new_key(), by))


# ---------------------------------------------------------------------------------------------------------- operations


@get("/healthz", **anybody())
async def healthz() -> Health:
    """Whether the process lives."""
    return Health(status="ok")


@get("/readyz", **anybody("roost.starting", "roost.store_unavailable"))
async def readyz(scope: Scope) -> Health:
    """Whether requests can be decided: the zone is loaded, the store can be written, and it is not stopping."""
    service = asking_of(scope).service
    service.check_open(writing=True)
    if service.closing.is_set():
        raise Refused("roost.starting", "the service is stopping")
    duties = tuple(_fares(duty, service) for duty in service.roster.duties)
    return Health(status="ok", detail=service.agent.name, problem=service.switch.unusable, duties=duties)


def _fares(duty: Duty, service: Service) -> DutyHealth:
    health = service.roster.health[duty.name]
    return DutyHealth(
        name=duty.name,
        runs=health.runs,
        failures=health.failures,
        seconds_ago=round(service.since(health.last_run), 3),
        took_seconds=round(health.last_seconds, 6),
        period_seconds=duty.period,
        last_error=health.last_error.partition(":")[0],  # anybody may ask: the log has the rest
    )


@get("/metrics", media_type="text/plain; version=0.0.4; charset=utf-8", **may("read"))
async def metrics(scope: Scope) -> Response[bytes]:
    """Numbers for Prometheus, also while the store is away."""
    return Response(asking_of(scope).service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


ROUTES = [list_changes, stream_changes, snapshot, list_tokens, create_token, revoke_token, healthz, readyz, metrics]
