"""VMs of machines that do not work: what waits, what was placed again, and heartbeats."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import numpy as np
from litestar import get, post
from litestar.params import JSONBody, Parameter
from litestar.types import Scope

from roost.agent.ticket import Ticket
from roost.agent.verbs.heal import HealVMs, Later
from roost.api.backwards import place_of
from roost.api.gate import Asking
from roost.api.healings import page_of, summary_of
from roost.api.hush import is_for
from roost.api.problems import Refused
from roost.api.routes.common import WRITING, Cursor, Limit, asking_of, may, own, page_size
from roost.api.service import Service
from roost.duties.healing import LostVM, healing_key, lost_vms, vms_on
from roost.duties.healing_now import Try, heal_now, is_declined
from roost.model.errors import UnknownName
from roost.model.rows import MachineState
from roost.placing.books import RunningVM
from roost.wire.healing import HealedPage, HealedVM, HealingPage, HealingResult, HealingSummary, HealingWish, UnhealedVM
from roost.wire.machines import Heard, Heartbeat

AT_ONCE = 500  # groups that are asked for together
BODY = ("roost.too_large", "roost.unsupported_media_type")
Tenant = Annotated[str, Parameter(max_length=200, description="Only this one's.")]
Since = Annotated[float, Parameter(ge=0.0, le=1e12, description="Only those since then, in seconds since 1970.")]


@get("/v1/healing", **may("read", namespaced=True))
async def list_unhealed(scope: Scope, tenant: Tenant = "", limit: Limit = 100, cursor: Cursor = "") -> HealingPage:
    """VMs on machines that are down, by name: since when, and why they are not elsewhere yet."""
    asking = asking_of(scope)
    service = asking.service
    service.check_open()
    if tenant:
        own(asking, tenant)
    size = page_size(limit, service)
    lost = sorted(lost_vms(service.agent.allocator), key=lambda vm: vm.name)
    mine = [vm for vm in lost if vm.name > cursor and asking.principal.owns(vm.tenant) and tenant in ("", vm.tenant)]
    found = [_unhealed(asking, vm) for vm in mine[:size]]
    return HealingPage(items=found, next=found[-1].vm if len(mine) > size else None)


def _unhealed(asking: Asking, vm: RunningVM) -> UnhealedVM:
    service = asking.service
    healer = service.healer
    lost = healer.waiting.get(vm.name) if healer else None
    known = lost or LostVM(0.0, "")
    return UnhealedVM(
        vm=vm.name,
        tenant=vm.tenant,
        type=vm.vm.type,
        priority=vm.vm.priority,
        machine=service.agent.allocator.zone.machine_names[vm.machine],
        since=None if lost is None else time.time() - service.since(lost.since),
        why=known.why if is_for(asking, known.why) else "it found no machine yet",
        decision="" if asking.principal.namespace else known.key,
    )


@get("/v1/healing/history", **may("read", namespaced=True))
async def list_healed(
    scope: Scope, tenant: Tenant = "", since: Since = 0.0, limit: Limit = 100, cursor: Cursor = ""
) -> HealedPage:
    """VMs that were placed again as their machine did not work, latest first, for as long as the feed is kept.

    A page may be short, or empty, while `next` says that there is more to look at.
    """
    asking = asking_of(scope)
    if tenant:
        own(asking, tenant)
    principal, before, size = asking.principal, place_of(cursor), page_size(limit, asking.service)
    found, following = await asking.service.read(lambda store: page_of(store, principal, tenant, since, before, size))
    return HealedPage(items=found, next=f"{following[0]}-{following[1]}" if following else None)


@get("/v1/healing/summary", **may("read"))
async def summarise_healing(scope: Scope, since: Since = 0.0) -> HealingSummary:
    """Healing in numbers: what waits, what was healed, and how long that took since the machine went down."""
    service = asking_of(scope).service
    service.check_open()
    allocator = service.agent.allocator
    waiting, bands = len(lost_vms(allocator)), allocator.zone.bands
    down = int(np.count_nonzero(allocator.view.machines["state"] == MachineState.DOWN))
    doubted = service.heartbeats.doubted if service.heartbeats else 0
    return await service.read_slowly(lambda store: summary_of(store, since, bands, waiting, down, doubted))


# ----------------------------------------------------------------------------------------------------------- placing


@post("/v1/healing", status_code=200, **may("operate", *WRITING, "roost.not_found"))
async def heal(data: JSONBody[HealingWish], scope: Scope) -> HealingResult:
    """Place VMs of machines that are not ready again, now: those named, or of all machines that are down.

    The highest priority first, a tenant's together if they can. What finds no machine stays where it is, and is told.
    Machines of `later` get only what no other has room for.
    """
    asking = asking_of(scope)
    service = asking.service
    service.check_open()
    allocator = service.agent.allocator
    tries = await _place_again(asking, _wanted(service, data), _later(service, data))
    healed: list[HealedVM] = []
    waiting: list[UnhealedVM] = []
    gave_way, names = 0, allocator.zone.machine_names
    for group, ticket in tries:
        answer = ticket.answer
        assert answer is not None
        gave_way += len(answer.evicted)
        there = {each.vm: each.machine for each in answer.placements}
        refused = is_declined(ticket)
        found = await service.explainer.explain_refusal(ticket, remedied=False) if refused else None
        for vm in group:
            said: dict[str, Any] = {"vm": vm.name, "tenant": vm.tenant, "type": vm.vm.type, "priority": vm.vm.priority}
            if vm.name in there:
                healed.append(HealedVM(**said, source=names[vm.machine], machine=there[vm.name], key=answer.key))
            elif answer.status != "invalid" or _is_lost(service, vm.name):
                why = found.summary if found else answer.detail
                waiting.append(UnhealedVM(**said, machine=names[vm.machine], why=why, decision=answer.key))
    return HealingResult(healed=healed, waiting=waiting, evictions=gave_way)


def _wanted(service: Service, wish: HealingWish) -> list[RunningVM]:
    """Which VMs are meant; on machines that are ready there is nothing to heal."""
    allocator, states = service.agent.allocator, service.agent.replica.view.machines["state"]
    for i, name in enumerate(wish.vms):
        if name not in allocator.vms:
            raise Refused("roost.not_found", f"no VM {name} runs", field=f"vms[{i}]")
    if wish.vms and not (wish.machines or wish.racks):
        machines = {allocator.vms[name].machine for name in wish.vms}
    else:
        machines = set(_machines(service, wish))
    chosen, found = set(wish.vms), vms_on(allocator, sorted(m for m in machines if states[m] != MachineState.READY))
    return [vm for vm in found if not chosen or vm.name in chosen]


def _machines(service: Service, wish: HealingWish) -> list[int]:
    """Which machines are meant."""
    zone, states = service.agent.allocator.zone, service.agent.replica.view.machines["state"]
    for i, name in enumerate(wish.machines):
        if name not in zone.machine_index:
            unknown = UnknownName(f"machines[{i}]", "machine", name, zone.machine_index)
            raise Refused("roost.not_found", str(unknown), field=f"machines[{i}]")
    for i, name in enumerate(wish.racks):
        if name not in zone.rack_names:
            unknown = UnknownName(f"racks[{i}]", "rack", name, zone.rack_names)
            raise Refused("roost.not_found", str(unknown), field=f"racks[{i}]")
    if not wish.machines and not wish.racks:
        return np.flatnonzero(states == MachineState.DOWN).tolist()
    racks = [zone.rack_names.index(name) for name in wish.racks]
    found = {zone.machine_index[name] for name in wish.machines}
    found |= set(np.flatnonzero(np.isin(zone.machines["rack"], racks)).tolist())
    return sorted(found)


def _later(service: Service, wish: HealingWish) -> Later | None:
    """Which machines are to get VMs last of all."""
    if wish.later is None:
        return None
    cluster, known = wish.later.cluster, service.agent.allocator.zone.cluster_names
    if cluster and cluster not in known:
        unknown = UnknownName("later.cluster", "cluster", cluster, known)
        raise Refused("roost.not_found", str(unknown), field="later.cluster")
    return Later(wish.later.update_domains, cluster)


async def _place_again(asking: Asking, vms: Iterable[RunningVM], later: Later | None) -> list[Try]:
    """What came of each VM."""
    healing = heal_now(vms, later)
    try:
        wishes = next(healing)
        while True:
            wishes = healing.send(await _ask(asking, wishes))
    except StopIteration as over:
        found: list[Try] = over.value
        return found


async def _ask(asking: Asking, wishes: Sequence[HealVMs]) -> list[Ticket]:
    """Have groups placed elsewhere, so many at a time."""
    service, by = asking.service, asking.principal.name
    found: list[Ticket] = []
    for first in range(0, len(wishes), AT_ONCE):
        some = wishes[first : first + AT_ONCE]
        found += await asyncio.gather(*(service.submit(wish, healing_key(), by) for wish in some))
    return found


def _is_lost(service: Service, name: str) -> bool:
    """Whether a VM is on a machine that is not ready, still: somebody else may have seen to it meanwhile."""
    allocator = service.agent.allocator
    vm = allocator.vms.get(name)
    return vm is not None and allocator.view.machines[vm.machine]["state"] != MachineState.READY


# --------------------------------------------------------------------------------------------------------- heartbeats


@post("/v1/heartbeats", status_code=200, **may("operate", *BODY, "roost.conflict"))
async def hear(data: JSONBody[Heartbeat], scope: Scope) -> Heard:
    """These machines are alive. One that says so no longer, for as long as the setting tells, is down."""
    service = asking_of(scope).service
    service.check_open()
    if service.heartbeats is None:
        raise Refused("roost.conflict", "heartbeats are not listened to here: set healing.heartbeat_seconds")
    unknown = service.heartbeats.hear(data.machines)
    return Heard(heard=len(data.machines) - len(unknown), unknown=unknown)


ROUTES = [list_unhealed, list_healed, summarise_healing, heal, hear]
