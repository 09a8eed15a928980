"""What tests of the HTTP service share: a tiny zone, problem documents, raw sockets, and patience."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from roost.api.problems import KINDS, TYPE
from roost.wire.problems import Problem
from roost.wiring import find_zone, open_store
from tests.e2e.serving import ROOST

T = TypeVar("T")
Json = dict[str, Any]
# Four machines of 16 cores in two racks, and two with ssd elsewhere. Nothing can run XL.
ZONE = """
name: tiny
generations:
  v1: {cores: 16, memory: 64}
  v2: {cores: 16, memory: 64, features: [ssd]}
  v3: {cores: 64, memory: 64}
vm_types:
  D2: {family: general, demand: {cores: 2, memory: 4}, on: [v1]}
  D8: {family: general, demand: {cores: 8, memory: 8}, on: [v1]}
  D10: {family: general, demand: {cores: 10, memory: 8}, on: [v1]}
  XL: {family: general, demand: {cores: 64, memory: 8}, on: [v3]}
  S4: {family: storage, demand: {cores: 4, memory: 4}, on: [v2], requires: [ssd]}
clusters:
  - {name: c1, datacenter: dc1, generation: v1, racks: 2, machines_per_rack: 2}
  - {name: c2, datacenter: dc2, generation: v2, racks: 1, machines_per_rack: 2}
"""
RETRIED = {429, 503}  # statuses that say when to come back


def make_store(url: str, folder: Path, *, trimmed: bool = False) -> str:
    """A store with the tiny zone; `trimmed`: its feed has forgotten how the machines came."""
    file = folder / "tiny.yaml"
    file.write_text(ZONE)
    with closing(open_store(url, create=find_zone(str(file)))) as store:
        if trimmed:
            store.changes(0, patient=True)  # which gives what was committed its revisions
            store.trim(0)
    return url


@contextmanager
def tidy_client(url: str) -> Iterator[httpx.Client]:
    """A client of a service that has no tenants once the block has ended well."""
    with httpx.Client(base_url=url, timeout=30) as client:
        yield client
        for line in client.get("/v1/tenants").json()["items"]:
            assert client.delete(f"/v1/tenants/{line['tenant']}").status_code == 200


def problem(response: httpx.Response, code: str) -> Problem:
    """The problem document of a response, after all that is promised of one was checked."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    found = response.json()
    assert found["code"] == code, found
    assert found["request_id"] == response.headers["x-request-id"]
    assert found["instance"] == httpx.URL(response.request.url).path
    if response.status_code in RETRIED:
        assert int(response.headers["retry-after"]) >= 1
    return check_problem(found, response.status_code)


def check_problem(found: Json, status: int) -> Problem:
    """A problem document is whole, and says of its code what the table of codes says."""
    kind = KINDS[found["code"]]
    assert set(found) == set(Problem.__struct_fields__)
    assert found["status"] == status == kind.status
    assert found["title"] == kind.title
    assert found["retryable"] == kind.retryable
    assert found["type"] == TYPE + found["code"].removeprefix("roost.")
    assert found["detail"]
    return msgspec.convert(found, Problem)


def audit(store: str) -> None:
    """The store agrees with itself."""
    done = subprocess.run([ROOST, "audit", store], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def eventually(look: Callable[[], T], seconds: float = 10.0) -> T:
    """What is found as soon as something is found."""
    until = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < until, f"not within {seconds} s"
        time.sleep(0.02)
    return found


@contextmanager
def connected(url: str, seconds: float = 10.0) -> Iterator[socket.socket]:
    """A bare connection to a service."""
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    with socket.create_connection((parts.hostname, parts.port), timeout=seconds) as line:
        yield line


def read_all(line: socket.socket) -> bytes:
    """Everything until the other side closes."""
    parts = []
    try:
        while part := line.recv(65_536):
            parts.append(part)
    except ConnectionResetError:
        pass  # it closed while we were still sending
    return b"".join(parts)


def events(response: httpx.Response) -> Iterator[tuple[str, str, Json]]:
    """Server-sent events as they come: id, event and data."""
    event: dict[str, str] = {}
    for line in response.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            event[name] = value
        elif "data" in event:
            yield event.get("id", ""), event["event"], msgspec.json.decode(event["data"])
            event = {}
        else:
            event = {}
