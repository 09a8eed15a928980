"""The client for programs that wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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


def _sync(call: Callable[P, Call[T]]) -> Callable[Concatenate[Client, P], T]:
    """The method that sends a call."""

    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.send(call(*args, **kwargs))

    return described(method, call)


def _each(call: Callable[P, Call[Page[T]]]) -> Callable[Concatenate[Client, P], Iterator[T]]:
    """The method that goes through a list, page by page."""

    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self.iterate(call(*args, **kwargs))

    return described(method, call)


class Client(Connection[httpx.Client, httpx.BaseTransport]):
    """A service, to be asked.

    with Client("http://127.0.0.1:7117", token) as client:
        placed = client.create_tenant("web", [VMWish(type="D2", count=2)])

    A write gets a key if it has none; what failed in a way that allows it is asked again, with the same key. What the
    service refuses is raised as ServiceProblem, anything else that goes wrong as ServiceUnreachable.
    """

    def _open(self, **options: Any) -> httpx.Client:
        return httpx.Client(**options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of its connections."""
        self._http.close()

    def send(self, call: Call[T]) -> T:
        """Make any call of `roost.client.calls`."""
        call = prepared(call)
        attempts = Attempts(call, self.retries, self.url)
        while True:
            try:
                response = self._http.send(self._http.build_request(**spelled(call, self.timeout)))
                return understood(call, response, self.url)
            except (httpx.TransportError, ServiceProblem) as error:
                time.sleep(attempts.pause(error))

    def iterate(self, call: Call[Page[T]]) -> Iterator[T]:
        """Everything in a list, page by page: `iterate(calls.list_vms(tenant="web"))`."""
        following: Call[Page[T]] | None = call
        while following is not None:
            page = self.send(following)
            yield from page.items
            following = next_page(following, page)

    def changes(self, since: int | None = None) -> Iterator[ChangeView]:
        """Changes after a revision (else from now on) as they happen, for ever; a stream that broke goes on."""
        following = Following(since, self.retries, self.url)
        while True:
            error: httpx.TransportError | ServiceProblem | None = None
            try:
                request = self._http.build_request(**spelled(following.call, SILENCE))
                response = self._http.send(request, stream=True)
                try:
                    if not response.is_success:
                        response.read()
                        raise failure(response, self.url)
                    for chunk in response.iter_bytes():
                        yield from following.take(chunk)
                finally:
                    response.close()
            except (httpx.TransportError, ServiceProblem) as caught:
                error = caught
            time.sleep(following.pause(error))

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
    create_tenant = _sync(calls.create_tenant)
    scale_out = _sync(calls.scale_out)
    scale_in = _sync(calls.scale_in)
    delete_tenant = _sync(calls.delete_tenant)
    batch = _sync(calls.batch)
    list_tenants = _sync(calls.list_tenants)
    get_tenant = _sync(calls.get_tenant)
    list_vms = _sync(calls.list_vms)
    get_vm = _sync(calls.get_vm)
    delete_vm = _sync(calls.delete_vm)
    move_vm = _sync(calls.move_vm)
    get_zone = _sync(calls.get_zone)
    list_machines = _sync(calls.list_machines)
    get_machine = _sync(calls.get_machine)
    change_machine = _sync(calls.change_machine)
    change_rack = _sync(calls.change_rack)
    add_machines = _sync(calls.add_machines)
    remove_machine = _sync(calls.remove_machine)
    list_clusters = _sync(calls.list_clusters)
    get_cluster = _sync(calls.get_cluster)
    change_cluster = _sync(calls.change_cluster)
    remove_cluster = _sync(calls.remove_cluster)
    list_thresholds = _sync(calls.list_thresholds)
    set_thresholds = _sync(calls.set_thresholds)
    clear_thresholds = _sync(calls.clear_thresholds)
    compute_thresholds = _sync(calls.compute_thresholds)
    capacity = _sync(calls.capacity)
    explain = _sync(calls.explain)
    why_not = _sync(calls.why_not)
    list_decisions = _sync(calls.list_decisions)
    get_decision = _sync(calls.get_decision)
    explain_decision = _sync(calls.explain_decision)
    why_not_decision = _sync(calls.why_not_decision)
    show_foresight = _sync(calls.show_foresight)
    set_foresight = _sync(calls.set_foresight)
    clear_foresight = _sync(calls.clear_foresight)
    list_evictions = _sync(calls.list_evictions)
    summarise_evictions = _sync(calls.summarise_evictions)
    list_waiting = _sync(calls.list_waiting)
    cancel_waiting = _sync(calls.cancel_waiting)
    list_unhealed = _sync(calls.list_unhealed)
    list_healed = _sync(calls.list_healed)
    summarise_healing = _sync(calls.summarise_healing)
    heal = _sync(calls.heal)
    hear = _sync(calls.hear)
    evict = _sync(calls.evict)
    get_walk = _sync(calls.get_walk)
    hold_walk = _sync(calls.hold_walk)
    end_walk = _sync(calls.end_walk)
    list_policies = _sync(calls.list_policies)
    get_policy = _sync(calls.get_policy)
    validate_policy = _sync(calls.validate_policy)
    put_policy = _sync(calls.put_policy)
    delete_policy = _sync(calls.delete_policy)
    active_policy = _sync(calls.active_policy)
    activate_policy = _sync(calls.activate_policy)
    shadow_policy = _sync(calls.shadow_policy)
    end_shadow = _sync(calls.end_shadow)
    policy_differences = _sync(calls.policy_differences)
    policy_results = _sync(calls.policy_results)
    list_changes = _sync(calls.list_changes)
    snapshot = _sync(calls.snapshot)
    list_tokens = _sync(calls.list_tokens)
    create_token = _sync(calls.create_token)
    revoke_token = _sync(calls.revoke_token)
    health = _sync(calls.health)
    ready = _sync(calls.ready)
    metrics = _sync(calls.metrics)
