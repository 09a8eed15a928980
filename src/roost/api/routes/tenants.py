"""Tenants and their VMs: create, look, scale out and in, delete; many at once."""

from __future__ import annotations

import asyncio
import heapq
import re
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping
from itertools import islice
from typing import Annotated, Any

import msgspec
from litestar import delete, get, post
from litestar.params import JSONBody, Parameter
from litestar.response import Response
from litestar.types import Scope

from roost.agent.ticket import Ticket
from roost.agent.verbs.move import MoveVM
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.api.gate import Asking
from roost.api.origin import origin_of
from roost.api.problems import Refused, of_error
from roost.api.routes.common import (
    ETAG_HEADER,
    PLACING,
    WRITING,
    Cursor,
    DryRun,
    IfMatch,
    Key,
    Limit,
    asking_of,
    done,
    etag,
    generation_of,
    got,
    may,
    own,
    page_size,
    placed,
    vms_of,
    was_decided,
    was_declined,
)
from roost.engine.explain import Explanation
from roost.model.errors import RoostError
from roost.model.keys import new_key
from roost.model.readable import as_counted
from roost.model.registry import WAITING
from roost.model.request import UNCONSTRAINED, Constraints, Request, check_promises
from roost.model.rows import MachineState
from roost.model.waiting import Waiting
from roost.placing.allocator import Allocator
from roost.store.contract import Store
from roost.store.ledger import TenantRow, VMRow
from roost.wire.tenants import (
    Batch,
    BatchItem,
    BatchResult,
    BatchResults,
    Done,
    Placed,
    ScaleIn,
    ScaleOut,
    TenantLine,
    TenantPage,
    TenantView,
    TenantWish,
    VMDetail,
    VMMove,
    VMPage,
    VMView,
)

Explained = Mapping[int, Explanation | BaseException | None]

TenantPath = Annotated[str, Parameter(max_length=200, description="The name of a tenant.")]
VMPath = Annotated[str, Parameter(max_length=300, description="The whole name of a VM, TENANT/NAME.")]
MOST_VMS_SHOWN = 100_000  # of one tenant
_waiting = msgspec.json.Decoder(Waiting).decode
KEY = re.compile(r"[\x21-\x2e\x30-\x7e]*\Z")


def _request(
    tenant: str, wish: TenantWish | ScaleOut | BatchItem, constraints: Constraints | None, asking: Asking
) -> Request:
    own(asking, tenant)
    request = Request(tenant, vms_of(tenant, wish.vms, asking.service), constraints)
    if constraints is not None and constraints != UNCONSTRAINED:
        check_promises(request)
    return request


def _key(asking: Asking, key: str | None) -> str:
    principal = asking.principal
    return principal.key(key) if key else new_key(principal.namespace)


async def _place(asking: Asking, operation: PlaceVMs, key: str | None, dry_run: bool) -> Placed:
    service, by, tenant = asking.service, asking.principal.name, operation.request.tenant
    if dry_run:
        ticket = await service.rehearse(operation, by)
    else:
        ticket = await service.submit(operation, _key(asking, key), by)
    try:
        return await placed(asking, tenant, ticket, dry_run=dry_run)
    except Refused as refused:
        raise _exists(refused, new=operation.generation == 0) from None


def _response(body: Placed) -> Response[Placed]:
    return Response(
        body, status_code=200 if body.dry_run else 201, headers=etag(0 if body.dry_run else body.generation)
    )


def _exists(refused: Refused, *, new: bool) -> Refused:
    """A tenant that was to be new and is not: a conflict, not a precondition that somebody stated."""
    if new and refused.code == "roost.outdated":
        refused.code, refused.field = "roost.conflict", "tenant"
    return refused


@post(
    "/v1/tenants",
    status_code=201,
    response_headers=ETAG_HEADER,
    **may("allocate", *PLACING, namespaced=True, dry=Placed),
)
async def create_tenant(
    data: JSONBody[TenantWish], scope: Scope, key: Key = None, dry_run: DryRun = False
) -> Response[Placed]:
    """Create a tenant with its first VMs: all of them are placed, or none."""
    return _response(await create(asking_of(scope), data, key, dry_run))


def create(asking: Asking, wish: TenantWish, key: str | None, dry_run: bool = False) -> Awaitable[Placed]:
    """What `create_tenant` does."""
    constraints = None if wish.constraints == UNCONSTRAINED else wish.constraints
    operation = PlaceVMs(_request(wish.tenant, wish, constraints, asking), generation=0)
    return _place(asking, operation, key, dry_run)


@post(
    "/v1/tenants/{tenant:str}/vms",
    status_code=201,
    response_headers=ETAG_HEADER,
    **may("allocate", *PLACING, "roost.not_found", namespaced=True, dry=Placed),
)
async def scale_out(
    tenant: TenantPath,
    data: JSONBody[ScaleOut],
    scope: Scope,
    key: Key = None,
    if_match: IfMatch = None,
    dry_run: DryRun = False,
) -> Response[Placed]:
    """Place more VMs of a tenant: all of them, or none. Its constraints hold for all of its VMs together."""
    asking = asking_of(scope)
    request = _request(tenant, data, None, asking)
    return _response(await _place(asking, PlaceVMs(request, generation_of(if_match), existing=True), key, dry_run))


@post(
    "/v1/tenants/{tenant:str}/release", status_code=200, **may("allocate", *WRITING, "roost.not_found", namespaced=True)
)
async def scale_in(
    tenant: TenantPath,
    data: JSONBody[ScaleIn],
    scope: Scope,
    key: Key = None,
    if_match: IfMatch = None,
    dry_run: DryRun = False,
) -> Response[Done]:
    """Release VMs of a tenant: all of them, or none."""
    asking = asking_of(scope)
    own(asking, tenant)
    if len(set(data.vms)) < len(data.vms):
        raise Refused("roost.invalid_request", "a VM is named twice", field="vms")
    return await _release(asking, ReleaseVMs(tenant, data.vms, generation=generation_of(if_match)), key, dry_run)


@delete("/v1/tenants/{tenant:str}", status_code=200, **may("allocate", *WRITING, "roost.not_found", namespaced=True))
async def delete_tenant(
    tenant: TenantPath, scope: Scope, key: Key = None, if_match: IfMatch = None, dry_run: DryRun = False
) -> Response[Done]:
    """Release all VMs of a tenant."""
    asking = asking_of(scope)
    own(asking, tenant)
    return await _release(asking, ReleaseVMs(tenant, generation=generation_of(if_match)), key, dry_run)


async def _release(asking: Asking, operation: ReleaseVMs, key: str | None, dry_run: bool) -> Response[Done]:
    service, by = asking.service, asking.principal.name
    if dry_run:
        return done(asking, await service.rehearse(operation, by), dry_run=True)
    return done(asking, await service.submit(operation, _key(asking, key), by))


# ------------------------------------------------------------------------------------------------------------ batches


@post("/v1/batch", status_code=200, **may("allocate", *WRITING, namespaced=True))
async def batch(data: JSONBody[Batch], scope: Scope, dry_run: DryRun = False) -> BatchResults:
    """Many requests in one call. Each is done or not done by itself, and has its own result."""
    return await do_batch(asking_of(scope), data, dry_run)


async def do_batch(asking: Asking, data: Batch, dry_run: bool = False) -> BatchResults:
    """What `batch` does."""
    most = asking.service.settings.limits.requests_per_batch
    if len(data.requests) > most:
        raise Refused("roost.too_large", f"a batch may hold {most:,} requests", field="requests")
    waiting = []
    for item in data.requests:
        waiting.append(_begin(asking, item, dry_run))
        if dry_run:
            await asyncio.sleep(0)  # each is decided at once, and others have their turn
    tickets = [each for each in waiting if isinstance(each, asyncio.Future)]
    for each in tickets:
        if not each.done():  # mostly those that come after it are done with it
            await asyncio.wait((each,))
    explained = await _explained(asking, tickets)
    pairs = zip(data.requests, waiting, strict=True)
    results = [_result(asking, item, each, explained, dry_run) for item, each in pairs]
    succeeded = sum(result.problem is None for result in results)
    return BatchResults(results=results, done=succeeded, failed=len(results) - succeeded)


async def _explained(asking: Asking, tickets: Iterable[asyncio.Future[Ticket]]) -> Explained:
    """Why tickets were declined, those that were, by their identity; all are explained at once."""
    answered = [each.result() for each in tickets if not each.cancelled() and each.exception() is None]
    declined = list(filter(was_declined, answered))
    if not declined:  # as nearly always
        return {}
    why = await asyncio.gather(*map(asking.service.explainer.explain_refusal, declined), return_exceptions=True)
    return dict(zip(map(id, declined), why, strict=True))


def _begin(asking: Asking, item: BatchItem, dry_run: bool) -> asyncio.Future[Ticket] | Refused:
    constraints = None if item.constraints == UNCONSTRAINED or item.scale_out else item.constraints
    try:
        if not KEY.match(item.key):
            raise Refused("roost.invalid_request", "use printable ASCII without spaces and slashes", field="key")
        request = _request(item.tenant, item, constraints, asking)
        operation = PlaceVMs(request, None if item.scale_out else 0, item.scale_out)
        if dry_run:
            return asyncio.ensure_future(asking.service.rehearse(operation, asking.principal.name))
        return asking.service.submit(operation, _key(asking, item.key), asking.principal.name)
    except Refused as refused:
        return refused
    except RoostError as error:
        return of_error(error)


def _result(
    asking: Asking,
    item: BatchItem,
    waited: asyncio.Future[Ticket] | Refused,
    explained: Explained,
    dry_run: bool,
) -> BatchResult:
    try:
        if isinstance(waited, Refused):
            raise waited
        ticket = waited.result()
        why = explained.get(id(ticket))
        if isinstance(why, BaseException):
            raise why
        try:
            body = got(asking, item.tenant, ticket, why, dry_run=dry_run)
        except Refused as refused:
            raise _exists(refused, new=not item.scale_out) from None
        return BatchResult(status=200 if dry_run else 201, placed=body)
    except (Refused, RoostError) as error:  # the mistake of one is not that of all
        why = error if isinstance(error, Refused) else of_error(error)
        return BatchResult(status=why.status, problem=why.problem(asking))


# ------------------------------------------------------------------------------------------------------------ looking


def vm_view(asking: Asking, name: str, row: VMRow) -> VMView:
    """A VM as it is shown."""
    return VMView(**_described(asking, name, row))


def _is_down(allocator: Allocator, machine: str) -> bool:
    """Whether a machine does not work, as far as this agent knows."""
    m = allocator.zone.machine_index.get(machine)
    return m is not None and bool(allocator.view.machines["state"][m] == MachineState.DOWN)


def _described(asking: Asking, name: str, row: VMRow) -> dict[str, Any]:
    spec = row.spec
    return {
        "vm": name,
        "tenant": row.tenant,
        "type": spec.type,
        "machine": row.machine,
        "priority": spec.priority,
        "set": spec.set,
        "since": row.since,
        "lost": _is_down(asking.service.agent.allocator, row.machine),
    }


def _waiting_of(store: Store, asking: Asking) -> Counter[str]:
    """How many VMs of each tenant wait for room, as far as one may hear of them."""
    tenants = (name.partition("/")[0] for name in store.registry(WAITING))
    return Counter(tenant for tenant in tenants if asking.principal.owns(tenant))


@get("/v1/tenants", **may("read", namespaced=True))
async def list_tenants(
    scope: Scope,
    limit: Limit = 100,
    cursor: Cursor = "",
    prefix: Annotated[str, Parameter(max_length=200, description="Only names that begin so.")] = "",
) -> TenantPage:
    """Tenants by name."""
    asking = asking_of(scope)
    size, namespace = page_size(limit, asking.service), asking.principal.namespace

    def look(store: Store) -> tuple[list[tuple[str, TenantRow]], Counter[str]]:
        waiting = _waiting_of(store, asking)
        if not namespace:
            return store.tenants(cursor, size, prefix), waiting
        own_row = store.tenant(namespace) if namespace > cursor and namespace.startswith(prefix) else None
        found = [(namespace, own_row)] if own_row else []
        inner = f"{namespace}."
        if prefix.startswith(inner) or inner.startswith(prefix):
            found += store.tenants(cursor, size, max(prefix, inner))
        return found[:size], waiting

    found, waiting = await asking.service.read(look)
    items = {n: TenantLine(tenant=n, generation=t.stamp, vms=t.vms, waiting=waiting[n]) for n, t in found}
    last = found[-1][0] if len(found) == size else None
    for name, number in waiting.items():  # those that have no other VMs
        if name not in items and name > cursor and name.startswith(prefix) and (last is None or name < last):
            items[name] = TenantLine(tenant=name, generation=0, vms=0, waiting=number)
    page = sorted(items)[:size]
    return TenantPage(items=[items[name] for name in page], next=page[-1] if len(items) > size or last else None)


@get("/v1/tenants/{tenant:str}", response_headers=ETAG_HEADER, **may("read", "roost.not_found", namespaced=True))
async def get_tenant(tenant: TenantPath, scope: Scope) -> Response[TenantView]:
    """A tenant with its VMs."""
    asking = asking_of(scope)
    own(asking, tenant)

    def look(store: Store) -> TenantView | None:
        row, registry = store.tenant(tenant), store.registry(WAITING)
        waiting = sorted((name for name in registry if name.startswith(f"{tenant}/")), key=as_counted)
        if row is None and not waiting:
            return None
        vms = [vm_view(asking, name, vm) for name, vm in store.vms(limit=MOST_VMS_SHOWN, tenant=tenant)]
        stamp, constraints = (row.stamp, row.constraints) if row else (0, _waiting(registry[waiting[0]]).constraints)
        return TenantView(tenant=tenant, generation=stamp, constraints=constraints, vms=vms, waiting=waiting)

    if (found := await asking.service.read(look)) is None:
        raise Refused("roost.not_found", f"there is no tenant {tenant}", field="tenant")
    return Response(found, headers=etag(found.generation))


@get("/v1/vms", **may("read", namespaced=True))
async def list_vms(
    scope: Scope,
    limit: Limit = 100,
    cursor: Cursor = "",
    tenant: Annotated[str, Parameter(max_length=200, description="Only this one's.")] = "",
    machine: Annotated[str, Parameter(max_length=200, description="Only those on this one.")] = "",
) -> VMPage:
    """VMs by name."""
    asking = asking_of(scope)
    if tenant:
        own(asking, tenant)
    size, namespace = page_size(limit, asking.service), asking.principal.namespace

    def look(store: Store) -> list[tuple[str, VMRow]]:
        if tenant or not namespace:
            return store.vms(cursor, size, tenant=tenant or None, machine=machine or None)
        own_vms = store.vms(cursor, size, tenant=namespace, machine=machine or None)
        inner = store.vms(cursor, size, machine=machine or None, prefix=f"{namespace}.")
        return list(islice(heapq.merge(own_vms, inner, key=lambda pair: pair[0]), size))

    found = await asking.service.read(look)
    items = [vm_view(asking, name, row) for name, row in found]
    return VMPage(items=items, next=found[-1][0] if len(found) == size else None)


@get("/v1/vms/{vm:path}", **may("read", "roost.not_found", namespaced=True))
async def get_vm(vm: VMPath, scope: Scope) -> VMDetail:
    """A VM by its whole name, TENANT/NAME, and the decision that put it where it is."""
    asking = asking_of(scope)
    name, row = await _running(asking, vm)
    found = await asking.service.read(lambda store: origin_of(store, name, row))
    mine = not asking.principal.namespace or found.key.startswith(f"{asking.principal.namespace}:")
    return VMDetail(
        **_described(asking, name, row), decision=found.key if mine else "", which=found.which if mine else None
    )


@delete("/v1/vms/{vm:path}", status_code=200, **may("allocate", *WRITING, "roost.not_found", namespaced=True))
async def delete_vm(vm: VMPath, scope: Scope, key: Key = None, dry_run: DryRun = False) -> Response[Done]:
    """Release one VM."""
    asking = asking_of(scope)
    name = vm.strip("/")
    tenant = name.partition("/")[0]
    if not (key and asking.principal.owns(tenant) and await was_decided(asking, _key(asking, key))):
        name, row = await _running(asking, vm)  # else it may be gone because of this key
        tenant = row.tenant
    try:
        return await _release(asking, ReleaseVMs(tenant, (name,)), key, dry_run)
    except Refused as refused:
        if refused.field == "vms[0]":  # it was there, and is gone meanwhile
            raise Refused("roost.not_found", refused.detail, field="vm") from None
        raise


@post("/v1/vms/{vm:path}", status_code=200, **may("operate", *WRITING, "roost.not_found"))
async def move_vm(
    vm: VMPath, data: JSONBody[VMMove], scope: Scope, key: Key = None, dry_run: DryRun = False
) -> Response[Done]:
    """Move a VM to another machine: at once, or by holding room there and then finishing the move or cancelling it.

    A step that was done before is done again, and changes nothing. A machine that a hard rule of the policy says no to
    is refused.
    """
    asking = asking_of(scope)
    name = vm.strip("/")
    row = await asking.service.read(lambda store: store.vm(name))
    operation = MoveVM(row.tenant if row else name.partition("/")[0], name, data.machine, data.step)
    service, by = asking.service, asking.principal.name
    ticket = await (service.rehearse(operation, by) if dry_run else service.submit(operation, _key(asking, key), by))
    if ticket.answer and ticket.answer.status == "declined":
        asking.decision = "" if dry_run else ticket.answer.key
        raise Refused("roost.conflict", ticket.answer.detail, field="machine", decision=asking.decision)
    return done(asking, ticket, dry_run=dry_run)


async def _running(asking: Asking, vm: str) -> tuple[str, VMRow]:
    name = vm.strip("/")
    row = await asking.service.read(lambda store: store.vm(name))
    if row is None or not asking.principal.owns(row.tenant):
        raise Refused("roost.not_found", f"there is no VM {name}", field="vm")
    return name, row


ROUTES = [
    create_tenant,
    list_tenants,
    get_tenant,
    delete_tenant,
    scale_out,
    scale_in,
    batch,
    list_vms,
    get_vm,
    delete_vm,
    move_vm,
]
