"""The HTTP service as the drive of `crashing` knows workers: lines go in, answers come out, whoever is killed.

A lane is a few connections. What breaks on the way is answered as "unavailable": nobody knows what came of it, so the
drive asks again with the same key.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec

from roost.agent.operation import Answer, Evicted, Operation
from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.machines import AddMachines, RemoveMachines
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.api.json_lines import operation_of, parse
from roost.model.inventory import Catalogue
from roost.model.request import VM, Placement
from tests.e2e.crashing import Client

AT_ONCE = 8  # requests of a lane under way
PAUSE = 0.05  # seconds, after something broke, before the drive hears of it
DECLINED = {
    "roost.no_capacity", "roost.fragmented", "roost.tenant_constraint", "roost.threshold", "roost.never_fits",
}  # fmt: skip


class Lane:
    """Some connections to the service."""

    def __init__(self, fleet: HttpFleet, slot: int) -> None:
        self.slot, self.answers, self.killed = slot, 0, False
        self._fleet = fleet
        self._pool = ThreadPoolExecutor(AT_ONCE, f"lane-{slot}")
        self._http = httpx.Client(base_url=fleet.url, timeout=60, limits=httpx.Limits(max_connections=AT_ONCE))

    def tell(self, line: bytes) -> None:
        """Have something done."""
        key, given = parse(line)
        operation = operation_of(given)
        send = self._fleet.spell(key, operation)
        self._pool.submit(self._carry, key, send)

    def _carry(self, key: str, request: dict[str, Any]) -> None:
        try:
            response = self._http.request(**request, headers={"idempotency-key": key})
            answer = _answer(key, response)
        except httpx.TransportError as error:
            answer = Answer(key=key, status="unavailable", detail=repr(error))
        except Exception as error:
            answer = Answer(key=key, status="invalid", detail=f"the lane broke: {error!r}")
        if answer.status == "unavailable":
            self._fleet.closing.wait(PAUSE)
        self._fleet.events.put((self, answer))

    def close(self) -> None:
        """No more."""
        self._pool.shutdown(cancel_futures=True)
        self._http.close()


class HttpFleet:
    """Lanes to one service. The service is somebody else's to start and to kill."""

    def __init__(self, store: str, url: str, size: int, catalogue: Catalogue) -> None:
        self.store, self.url = store, url
        self.events: queue.SimpleQueue[tuple[Lane, Answer | None]] = queue.SimpleQueue()
        self.closing = threading.Event()
        self.clients: list[Client] = []
        self._resources = [resource.name for resource in catalogue.resources]
        self._creates: dict[str, bool] = {}  # by key: whether it was to create a tenant, or to let it grow
        self.workers = [Lane(self, slot) for slot in range(size)]

    def working(self) -> list[Lane]:
        """Those that have answered something."""
        return [lane for lane in self.workers if lane.answers]

    def spell(self, key: str, operation: Operation) -> dict[str, Any]:
        """An operation as a request."""
        if isinstance(operation, PlaceVMs):
            request = operation.request
            new = not any(request.tenant in client.tenants for client in self.clients)
            body: dict[str, Any] = {"vms": [_wish(request.tenant, vm) for vm in request.vms]}
            if not self._creates.setdefault(key, new):
                return {"method": "POST", "url": f"/v1/tenants/{request.tenant}/vms", "json": body}
            body |= {"tenant": request.tenant}
            if request.constraints:
                body |= {"constraints": msgspec.to_builtins(request.constraints)}
            return {"method": "POST", "url": "/v1/tenants", "json": body}
        if isinstance(operation, ReleaseVMs):
            if not operation.vms:
                return {"method": "DELETE", "url": f"/v1/tenants/{operation.tenant}"}
            url = f"/v1/tenants/{operation.tenant}/release"
            return {"method": "POST", "url": url, "json": {"vms": operation.vms}}
        if isinstance(operation, SetMachine):
            return {"method": "PATCH", "url": f"/v1/machines/{operation.machine}", "json": {"state": operation.state}}
        if isinstance(operation, AddMachines):
            (spec,) = operation.machines
            machine = {name: getattr(spec, name) for name in ("name", "datacenter", "cluster", "rack", "generation")}
            machine |= {"update_domain": spec.update_domain, "features": spec.features, "state": "down"}
            machine |= {"capacity": dict(zip(self._resources, spec.capacity, strict=True))}
            return {"method": "POST", "url": "/v1/machines", "json": {"machines": [machine]}}
        assert isinstance(operation, RemoveMachines)
        (name,) = operation.machines
        (name,) = operation.machines
        return {"method": "DELETE", "url": f"/v1/machines/{name}"}

    def close(self) -> None:
        """Leave nothing behind."""
        self.closing.set()
        for lane in self.workers:
            lane.close()


def _wish(tenant: str, vm: VM) -> dict[str, Any]:
    wish = msgspec.to_builtins(vm)
    if vm.name:
        wish["name"] = vm.name.removeprefix(f"{tenant}/")
    return dict(wish)


def _answer(key: str, response: httpx.Response) -> Answer:
    body = response.json()
    if response.is_success:
        placements = tuple(Placement(**each) for each in body.get("vms", ()))
        evicted = tuple(Evicted(**each) for each in body.get("evicted", ()))
        retries, replayed = body.get("retries", 0), body["replayed"]
        assert body["decision"] == key
        return Answer(
            key=key, status="done", placements=placements, evicted=evicted, retries=retries, replayed=replayed
        )
    code, detail = body["code"], body["detail"]
    if code in DECLINED:
        return Answer(key=key, status="declined", detail=detail)
    if code == "roost.retries_exhausted":
        return Answer(key=key, status="conflicts", detail=detail)
    if response.status_code == 503:
        return Answer(key=key, status="unavailable", detail=detail)
    return Answer(key=key, status="invalid", detail=f"{code}: {detail}")


def processes_of(supervisor: int) -> list[int]:
    """The processes that serve for one that was started with several workers."""
    try:
        children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
        found = [(int(pid), Path(f"/proc/{pid}/cmdline").read_bytes()) for pid in children]
    except FileNotFoundError:  # one has ended meanwhile
        return processes_of(supervisor)
    return [pid for pid, command in found if b"spawn_main" in command]
