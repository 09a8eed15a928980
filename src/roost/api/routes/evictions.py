"""What had to give way, and what waits to be placed again."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import delete, get, post
from litestar.params import JSONBody, Parameter
from litestar.types import Scope

from roost.agent.verbs.evict import EvictVMs
from roost.api.backwards import place_of
from roost.api.evictions import EvictionQuery, page_of, summary_of
from roost.api.gate import Asking
from roost.api.problems import Refused
from roost.api.routes.common import (
    WRITING,
    Cursor,
    Key,
    Limit,
    asking_of,
    concluded,
    may,
    own,
    page_size,
    was_decided,
)
from roost.model.keys import new_key
from roost.model.registry import WAITING
from roost.model.waiting import Waiting
from roost.wire.evictions import EvictionDone, EvictionPage, EvictionSummary, EvictionWish, WaitingPage, WaitingVM

Tenant = Annotated[str, Parameter(max_length=200, description="Only this one's.")]
Since = Annotated[float, Parameter(ge=0.0, le=1e12, description="Only those since then, in seconds since 1970.")]
VMPath = Annotated[str, Parameter(max_length=300, description="The whole name of a VM, TENANT/NAME.")]

_waiting = msgspec.json.Decoder(Waiting).decode


@get("/v1/evictions", **may("read", namespaced=True))
async def list_evictions(
    scope: Scope, tenant: Tenant = "", since: Since = 0.0, limit: Limit = 100, cursor: Cursor = ""
) -> EvictionPage:
    """VMs that had to give way to others of a higher priority, latest first, for as long as the feed is kept.

    A page may be short, or empty, while `next` says that there is more to look at.
    """
    asking = asking_of(scope)
    wanted, before = _wanted(asking, tenant, since), place_of(cursor)
    size = page_size(limit, asking.service)
    found, following = await asking.service.read(lambda store: page_of(store, wanted, before, size))
    return EvictionPage(items=found, next=f"{following[0]}-{following[1]}" if following else None)


@get("/v1/evictions/summary", **may("read", namespaced=True))
async def summarise_evictions(scope: Scope, tenant: Tenant = "", since: Since = 0.0) -> EvictionSummary:
    """Evictions in numbers: by priority, by the priority of what caused them, and how long the VMs had run."""
    asking = asking_of(scope)
    wanted, service = _wanted(asking, tenant, since), asking.service
    service.check_open()
    bands = service.agent.allocator.zone.bands
    return await service.read_slowly(lambda store: summary_of(store, wanted, bands))


@post("/v1/evictions", status_code=200, **may("operate", *WRITING))
async def evict(data: JSONBody[EvictionWish], scope: Scope) -> EvictionDone:
    """Take VMs off their machines, as before maintenance: those that want to be placed again wait for that.

    Those of the highest priority are refused. Those that do not run are skipped. Others of a tenant whose VMs go
    together go with them.
    """
    asking = asking_of(scope)
    service = asking.service
    service.check_open()
    allocator, by_tenant, grace = service.agent.allocator, dict[str, list[str]](), 0.0
    for i, name in enumerate(data.vms):
        if (vm := allocator.vms.get(name)) is None:
            continue
        if not vm.shape.traits["priority"]:
            detail = f"{name} is of the highest priority: only VMs of lower ones give way"
            raise Refused("roost.invalid_request", detail, field=f"vms[{i}]")
        by_tenant.setdefault(vm.tenant, []).append(name)
    evicted: list[str] = []
    for tenant, names in by_tenant.items():
        ticket = await service.submit(EvictVMs(tenant, tuple(names)), new_key(), asking.principal.name)
        if ticket.answer and ticket.answer.status == "done":
            evicted += names
            grace = max(grace, allocator.arm_of(tenant).policy.rules.evictions.grace)
        elif ticket.answer and ticket.answer.status != "invalid":  # else somebody else has seen to it meanwhile
            concluded(asking, ticket)
    return EvictionDone(evicted=evicted, grace=grace)


def _wanted(asking: Asking, tenant: str, since: float) -> EvictionQuery:
    if tenant:
        own(asking, tenant)
    return EvictionQuery(asking.principal, tenant, since)


# ------------------------------------------------------------------------------------------------------------- waiting


@get("/v1/waiting", **may("read", namespaced=True))
async def list_waiting(scope: Scope, tenant: Tenant = "", limit: Limit = 100, cursor: Cursor = "") -> WaitingPage:
    """VMs that had to give way and wait to be placed again, by name."""
    asking = asking_of(scope)
    if tenant:
        own(asking, tenant)
    size = page_size(limit, asking.service)
    registry = await asking.service.read(lambda store: store.registry(WAITING))
    found = []
    for vm in sorted(registry):
        if vm <= cursor:
            continue
        waiting = _waiting(registry[vm])
        if asking.principal.owns(waiting.tenant) and tenant in ("", waiting.tenant):
            found.append(_view(asking, vm, waiting))
            if len(found) == size:
                break
    return WaitingPage(items=found, next=found[-1].vm if len(found) == size else None)


def _view(asking: Asking, vm: str, waiting: Waiting) -> WaitingVM:
    namespace = asking.principal.namespace
    mine = not namespace or waiting.cause.startswith(f"{namespace}:")
    return WaitingVM(
        vm=vm,
        tenant=waiting.tenant,
        type=waiting.spec.type,
        priority=waiting.spec.priority,
        since=waiting.since,
        cause=waiting.cause if mine else "",
    )


@delete("/v1/waiting/{vm:path}", status_code=204, **may("allocate", *WRITING, "roost.not_found", namespaced=True))
async def cancel_waiting(vm: VMPath, scope: Scope, key: Key = None) -> None:
    """Let a VM wait no longer: it is not placed again. One that runs again meanwhile goes on running."""
    asking = asking_of(scope)
    name, principal = vm.strip("/"), asking.principal
    given = principal.key(key) if key else ""
    value = (await asking.service.read(lambda store: store.registry(WAITING))).get(name)
    seen = value is not None and principal.owns(_waiting(value).tenant)
    if not seen and not (given and principal.owns(name.partition("/")[0]) and await was_decided(asking, given)):
        raise Refused("roost.not_found", f"no VM {name} waits", field="vm")
    given = given or new_key(principal.namespace)
    concluded(asking, await asking.service.enter(WAITING, name, None, given, principal.name))


ROUTES = [list_evictions, summarise_evictions, evict, list_waiting, cancel_waiting]
