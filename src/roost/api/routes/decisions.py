"""Capacity, explanations of what would be decided now, and what was decided."""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import Annotated, Any

import msgspec
from litestar import get, post
from litestar.params import JSONBody, Parameter, QueryParameter
from litestar.types import Scope

from roost.agent.outcomes import evicted_of
from roost.api.gate import Asking
from roost.api.problems import Refused
from roost.api.routes.common import (
    Cursor,
    Limit,
    asking_of,
    explanation_view,
    may,
    own,
    page_size,
    seen_evicted,
    vms_of,
)
from roost.engine.explain import WhyNot
from roost.model.request import Placement, Request
from roost.placing.decision import Decision
from roost.store.contract import Decided, Store
from roost.wire.decisions import DecisionPage, DecisionView, ExplanationView, Question, WhyNotQuestion, WhyNotView
from roost.wire.zone import CapacityView, TypeCapacity

KeyPath = Annotated[str, Parameter(max_length=300, description="The key of a decision.")]
MachineName = Annotated[str, Parameter(max_length=200, description="The machine that did not get it.")]
Which = Annotated[int | None, Parameter(ge=0, le=100_000, description="Which VM of the request, from 0.")]


@get("/v1/capacity", **may("read", "roost.not_found", namespaced=True))
async def capacity(
    scope: Scope,
    vm_type: Annotated[str, QueryParameter(name="type", max_length=200, description="Only this VM type.")] = "",
    priority: Annotated[str, Parameter(max_length=200, description="The priority band; the highest if empty.")] = "",
) -> CapacityView:
    """How many more VMs of each type fit now, if nothing else came: in the zone, and by cluster.

    Counted from what every machine that the rules allow has free, and what each cluster's own limits let in.
    """
    service = asking_of(scope).service
    service.check_open()
    zone = service.agent.allocator.zone
    if vm_type and vm_type not in zone.vm_type_index:
        raise Refused("roost.not_found", f"there is no VM type {vm_type}", field="type")
    if priority and priority not in zone.bands:
        raise Refused("roost.invalid_request", f"use one of {', '.join(zone.bands)}", field="priority")
    revision, found = 0, []
    for name in [vm_type] if vm_type else [t.name for t in zone.vm_types]:
        revision, room = service.explainer.room(name, priority)
        await asyncio.sleep(0)  # each type is a scan of the zone: let others have their turn between
        found.append(
            TypeCapacity(
                type=name,
                count=room.total,
                machines=room.machines,
                clusters={zone.cluster_names[c]: number for c, number in sorted(room.by_cluster.items())},
            )
        )
    return CapacityView(revision=revision, priority=priority or zone.bands[0], types=found)


# --------------------------------------------------------------------------------------------------------------- now


def _request(asking: Asking, data: Question | WhyNotQuestion) -> Request:
    own(asking, data.tenant)
    asking.service.check_open()
    return Request(data.tenant, vms_of(data.tenant, data.vms, asking.service), data.constraints)


@post("/v1/explain", status_code=200, **may("read", "roost.too_large", "roost.unsupported_media_type", namespaced=True))
async def explain(data: JSONBody[Question], scope: Scope) -> ExplanationView:
    """Why a request would be placed as it would be now, or not at all, and what would make it fit."""
    asking = asking_of(scope)
    request = _request(asking, data)
    return explanation_view(await asking.service.explainer.explain(request, data.vm), asking)


@post(
    "/v1/why-not",
    status_code=200,
    **may("read", "roost.not_found", "roost.too_large", "roost.unsupported_media_type", namespaced=True),
)
async def why_not(data: JSONBody[WhyNotQuestion], scope: Scope) -> WhyNotView:
    """Why one machine would not get a VM: the rule that refuses it, or the preference by which it loses."""
    asking = asking_of(scope)
    request = _request(asking, data)
    return _why_not_view(await asking.service.explainer.why_not(request, data.machine, data.vm))


def _why_not_view(found: WhyNot) -> WhyNotView:
    return WhyNotView(
        machine=found.machine, verdict=found.verdict, rule=found.rule, reason=found.reason, winner=found.winner
    )


# --------------------------------------------------------------------------------------------------------------- past


@get("/v1/decisions", **may("read", namespaced=True))
async def list_decisions(scope: Scope, limit: Limit = 100, cursor: Cursor = "") -> DecisionPage:
    """What was decided, latest first: every write, and every request that was declined."""
    asking = asking_of(scope)
    size, before = page_size(limit, asking.service), _read_cursor(cursor)
    prefix = f"{asking.principal.namespace}:" if asking.principal.namespace else ""

    def look(store: Store) -> list[Decided]:
        found: list[Decided] = []
        at = before
        while True:
            page = store.decisions(size, before=at, prefix=prefix)
            found += [each for each in page if _may_see(asking, each)]
            if len(page) < size or len(found) >= size:
                return found[:size]
            at = page[-1].record.at, page[-1].key

    found = await asking.service.read(look)
    items = [_view(asking, each) for each in found]
    return DecisionPage(items=items, next=_write_cursor(found[-1]) if len(found) == size else None)


def _may_see(asking: Asking, decided: Decided) -> bool:
    """Whoever is bound to no namespace may use keys that look like those of one."""
    if not asking.principal.namespace:
        return True
    what = msgspec.json.decode(decided.request)
    return asking.principal.owns(what.get("tenant") or what.get("request", {}).get("tenant", ""))


def _write_cursor(last: Decided) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode((last.record.at, last.key))).decode().rstrip("=")


def _read_cursor(cursor: str) -> tuple[float, str] | None:
    if not cursor:
        return None
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        found: tuple[float, str] = msgspec.json.decode(text, type=tuple[float, str])
    except (binascii.Error, ValueError):
        raise Refused("roost.invalid_request", "is not the `next` of a page", field="cursor") from None
    return found


def _view(asking: Asking, decided: Decided) -> DecisionView:
    record = decided.record
    evicted = evicted_of(record.victims)
    what: dict[str, Any] = msgspec.json.decode(decided.request)
    if what.get("do") == "entry":
        what.pop("value", None)  # what the registry keeps may be nobody's business
    return DecisionView(
        key=decided.key,
        outcome=decided.outcome,
        at=record.at,
        by=record.by,
        what=what,
        placed=[Placement(vm=p.vm, type=p.spec.type, machine=p.machine) for p in decided.placed],
        agent=record.agent,
        round=record.round,
        policy=record.policy,
        retries=record.retries,
        hits=record.hits,
        updated=record.updated,
        waited_us=record.waited_us,
        decided_us=record.decided_us,
        avoided_conflict=record.avoiding,
        purpose=record.purpose,
        evictions=len(evicted),
        evicted=seen_evicted(asking, evicted),
        short=record.short,
    )


async def _find(asking: Asking, key: str) -> Decided:
    own_key = key.strip("/")
    namespace = asking.principal.namespace
    if namespace and not own_key.startswith(f"{namespace}:"):
        own_key = asking.principal.key(own_key)
    found = await asking.service.read(lambda store: store.decided(own_key))
    if found is None or not _may_see(asking, found):
        raise Refused("roost.not_found", f"{key} was never decided, or is forgotten", field="key")
    return found


@get("/v1/decisions/{key:str}", **may("read", "roost.not_found", namespaced=True))
async def get_decision(key: KeyPath, scope: Scope) -> DecisionView:
    """What came of a key, and how."""
    asking = asking_of(scope)
    return _view(asking, await _find(asking, key))


@get("/v1/decisions/{key:str}/explanation", **may("read", "roost.not_found", namespaced=True))
async def explain_decision(key: KeyPath, scope: Scope, vm: Which = None) -> ExplanationView:
    """Why it was decided so: the zone is rebuilt as the agent saw it at its revision."""
    asking = asking_of(scope)
    decided = await _find(asking, key)
    return explanation_view(await asking.service.past(decided.key, lambda decision: decision.explain(vm)), asking)


@get("/v1/decisions/{key:str}/why-not", **may("read", "roost.not_found", namespaced=True))
async def why_not_decision(key: KeyPath, machine: MachineName, scope: Scope, vm: Which = None) -> WhyNotView:
    """Why one machine did not get a VM of a past request."""
    asking = asking_of(scope)
    decided = await _find(asking, key)

    def look(decision: Decision) -> WhyNot:
        return decision.why_not(machine, vm)

    return _why_not_view(await asking.service.past(decided.key, look))


ROUTES = [capacity, explain, why_not, list_decisions, get_decision, explain_decision, why_not_decision]
