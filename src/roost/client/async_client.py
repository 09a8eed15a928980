"""The client for programs with an event loop: the same calls, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx

from roost.client import calls
from roost.client.call import Call, Page, next_page
from roost.client.connection import Attempts, Connection, described, failure, prepared, spelled, understood
from roost.client.errors import ServiceProblem
from roost.client.events import SILENCE, Following
from roost.wire.changes import ChangeView

P = ParamSpec("P")
T = TypeVar("T")


def _async(call: Callable[P, Call[T]]) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """The method that sends a call."""

    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.send(call(*args, **kwargs))

    return described(method, call)


def _each(call: Callable[P, Call[Page[T]]]) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]:
    """The method that goes through a list, page by page."""

    def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return self.iterate(call(*args, **kwargs))

    return described(method, call)


class AsyncClient(Connection[httpx.AsyncClient, httpx.AsyncBaseTransport]):
    """A service, to be asked by many tasks at once. As `Client`, but awaited.

    async with AsyncClient("http://127.0.0.1:7117", token) as client:
        placed = await client.create_tenant("web", [VMWish(type="D2", count=2)])
    """

    def _open(self, **options: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(**options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of its connections."""
        await self._http.aclose()

    async def send(self, call: Call[T]) -> T:
        """Make any call of `roost.client.calls`."""
        call = prepared(call)
        attempts = Attempts(call, self.retries, self.url)
        while True:
            try:
                response = await self._http.send(self._http.build_request(**spelled(call, self.timeout)))
                return understood(call, response, self.url)
            except (httpx.TransportError, ServiceProblem) as error:
                await asyncio.sleep(attempts.pause(error))

    async def iterate(self, call: Call[Page[T]]) -> AsyncIterator[T]:
        """Everything in a list, page by page: `iterate(calls.list_vms(tenant="web"))`."""
        following: Call[Page[T]] | None = call
        while following is not None:
            page = await self.send(following)
            for item in page.items:
                yield item
            following = next_page(following, page)

    async def changes(self, since: int | None = None) -> AsyncIterator[ChangeView]:
        """Changes after a revision (else from now on) as they happen, for ever; a stream that broke goes on."""
        following = Following(since, self.retries, self.url)
        while True:
            error: httpx.TransportError | ServiceProblem | None = None
            try:
                request = self._http.build_request(**spelled(following.call, SILENCE))
                response = await self._http.send(request, stream=True)
                try:
                    if not response.is_success:
                        await response.aread()
                        raise failure(response, self.url)
                    async for chunk in response.aiter_bytes():
                        for change in following.take(chunk):
                            yield change
                finally:
                    await response.aclose()
            except (httpx.TransportError, ServiceProblem) as caught:
                error = caught
            await asyncio.sleep(following.pause(error))

    # Lists, page by page without end.
    tenants = _each(calls.list_tenants)
    vms = _each(calls.list_vms)
    machines = _each(calls.list_machines)
    decisions = _each(calls.list_decisions)
    evictions = _each(calls.list_evictions)
    waiting = _each(calls.list_waiting)
    unhealed = _each(calls.list_unhealed)
    healings = _each(calls.list_healed)

    # Everything else, as `roost.client.calls` has it.
    create_tenant = _async(calls.create_tenant)
    scale_out = _async(calls.scale_out)
    scale_in = _async(calls.scale_in)
    delete_tenant = _async(calls.delete_tenant)
    batch = _async(calls.batch)
    list_tenants = _async(calls.list_tenants)
    get_tenant = _async(calls.get_tenant)
    list_vms = _async(calls.list_vms)
    get_vm = _async(calls.get_vm)
    delete_vm = _async(calls.delete_vm)
    move_vm = _async(calls.move_vm)
    get_zone = _async(calls.get_zone)
    list_machines = _async(calls.list_machines)
    get_machine = _async(calls.get_machine)
    change_machine = _async(calls.change_machine)
    change_rack = _async(calls.change_rack)
    add_machines = _async(calls.add_machines)
    remove_machine = _async(calls.remove_machine)
    list_clusters = _async(calls.list_clusters)
    get_cluster = _async(calls.get_cluster)
    change_cluster = _async(calls.change_cluster)
    remove_cluster = _async(calls.remove_cluster)
    list_thresholds = _async(calls.list_thresholds)
    set_thresholds = _async(calls.set_thresholds)
    clear_thresholds = _async(calls.clear_thresholds)
    compute_thresholds = _async(calls.compute_thresholds)
    capacity = _async(calls.capacity)
    explain = _async(calls.explain)
    why_not = _async(calls.why_not)
    list_decisions = _async(calls.list_decisions)
    get_decision = _async(calls.get_decision)
    explain_decision = _async(calls.explain_decision)
    why_not_decision = _async(calls.why_not_decision)
    show_foresight = _async(calls.show_foresight)
    set_foresight = _async(calls.set_foresight)
    clear_foresight = _async(calls.clear_foresight)
    list_evictions = _async(calls.list_evictions)
    summarise_evictions = _async(calls.summarise_evictions)
    list_waiting = _async(calls.list_waiting)
    cancel_waiting = _async(calls.cancel_waiting)
    list_unhealed = _async(calls.list_unhealed)
    list_healed = _async(calls.list_healed)
    summarise_healing = _async(calls.summarise_healing)
    heal = _async(calls.heal)
    hear = _async(calls.hear)
    evict = _async(calls.evict)
    get_walk = _async(calls.get_walk)
    hold_walk = _async(calls.hold_walk)
    end_walk = _async(calls.end_walk)
    list_policies = _async(calls.list_policies)
    get_policy = _async(calls.get_policy)
    validate_policy = _async(calls.validate_policy)
    put_policy = _async(calls.put_policy)
    delete_policy = _async(calls.delete_policy)
    active_policy = _async(calls.active_policy)
    activate_policy = _async(calls.activate_policy)
    shadow_policy = _async(calls.shadow_policy)
    end_shadow = _async(calls.end_shadow)
    policy_differences = _async(calls.policy_differences)
    policy_results = _async(calls.policy_results)
    list_changes = _async(calls.list_changes)
    snapshot = _async(calls.snapshot)
    list_tokens = _async(calls.list_tokens)
    create_token = _async(calls.create_token)
    revoke_token = _async(calls.revoke_token)
    health = _async(calls.health)
    ready = _async(calls.ready)
    metrics = _async(calls.metrics)
