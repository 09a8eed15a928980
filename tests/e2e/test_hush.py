"""A token bound to a namespace asks all it can, while others come, go and give way: no answer names them."""

from __future__ import annotations

import json
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from roost.bench.postgres import ThrowawayPostgres
from roost.cli.token import _make
from roost.wire.tokens import NewToken
from tests.e2e.serving import Serving, serving
from tests.e2e.talking import audit, make_store

OTHER = "hush"  # the other namespace: in every name of what is its own, and in its keys
THEIRS = re.compile(r"c2-r\d\d-m\d\d")  # machines that only others use
MACHINE = re.compile(r"c\d-r\d\d-m\d\d")
SAID = ("detail", "text", "summary", "why", "reason")  # where sentences are
LOST = "Others were faster too often"
SPOT = {"priority": "spot", "requeue": True}
ROUNDS, DEEP = 100, 6_000

Ask = tuple[str, str, Any]
Lots = random.Random
TENANTS = ("team-a", "team-a.x", "team-a.y", "team-a.z")


def _vm(lots: Lots) -> dict[str, Any]:
    vm: dict[str, Any] = {"type": lots.choice(["D2", "D8", "D10"]), "count": lots.randint(1, 3)}
    vm |= lots.choice([{}, {}, SPOT, {"cluster": "c1"}, {"cluster": "c9"}])
    return vm | lots.choice([{}, {}, {"type": "D3"}, {"isolated": True}, {"datacenter": "dc1"}])


def _tenant(lots: Lots) -> str:
    return lots.choice(TENANTS)


def _somebody(lots: Lots) -> str:
    """A tenant of one's own, one like those of others, or one of others."""
    return lots.choice([*TENANTS, *TENANTS, "team-a.hus", "hus", f"{OTHER}.0", f"team-{OTHER}"])


def _wish(lots: Lots) -> dict[str, Any]:
    wish: dict[str, Any] = {"vms": [_vm(lots) for _ in range(lots.randint(1, 2))]}
    return wish | lots.choice([{}, {}, {"constraints": {"max_per_machine": 1}}])


def _dry(lots: Lots) -> str:
    return lots.choice(["?dry_run=true", "?dry_run=true", ""])


def _machine(lots: Lots) -> str:
    return lots.choice(["c1-r00-m00", "c1-r01-m01", "c1-r00-m0", "m"])


# Every route that such a token may use: something to ask of it.
ASKS: dict[tuple[str, str], Callable[[Lots], Ask]] = {
    ("GET", "/v1/tenants"): lambda r: ("GET", f"/v1/tenants?prefix={r.choice(['', 'h', 'team'])}", None),
    ("POST", "/v1/tenants"): lambda r: ("POST", f"/v1/tenants{_dry(r)}", {"tenant": _tenant(r), **_wish(r)}),
    ("GET", "/v1/tenants/{tenant:str}"): lambda r: ("GET", f"/v1/tenants/{_somebody(r)}", None),
    ("DELETE", "/v1/tenants/{tenant:str}"): lambda r: ("DELETE", f"/v1/tenants/{_somebody(r)}{_dry(r)}", None),
    ("POST", "/v1/tenants/{tenant:str}/vms"): lambda r: (
        "POST", f"/v1/tenants/{_somebody(r)}/vms{_dry(r)}", {"vms": [_vm(r)]}),
    ("POST", "/v1/tenants/{tenant:str}/release"): lambda r: (
        "POST", f"/v1/tenants/{_tenant(r)}/release{_dry(r)}", {"vms": [f"{_tenant(r)}/{r.randint(0, 3)}"]}),
    ("POST", "/v1/batch"): lambda r: ("POST", f"/v1/batch{_dry(r)}", {"requests": [
        {"tenant": _somebody(r), "scale_out": r.random() < 0.5, "vms": [_vm(r)]} for _ in range(3)]}),
    ("GET", "/v1/vms"): lambda r: ("GET", f"/v1/vms?machine={r.choice(['', _machine(r)])}", None),
    ("GET", "/v1/vms/{vm:path}"): lambda r: ("GET", f"/v1/vms/{_somebody(r)}/0", None),
    ("DELETE", "/v1/vms/{vm:path}"): lambda r: ("DELETE", f"/v1/vms/{_somebody(r)}/0{_dry(r)}", None),
    ("GET", "/v1/capacity"): lambda r: ("GET", f"/v1/capacity?type={r.choice(['D2', 'hus'])}", None),
    ("POST", "/v1/explain"): lambda r: ("POST", "/v1/explain", {"tenant": _tenant(r), **_wish(r)}),
    ("POST", "/v1/why-not"): lambda r: (
        "POST", "/v1/why-not", {"tenant": _tenant(r), "machine": _machine(r), **_wish(r)}),
    ("GET", "/v1/decisions"): lambda r: ("GET", "/v1/decisions?limit=20", None),
    ("GET", "/v1/decisions/{key:str}"): lambda r: ("GET", "/v1/decisions/last", None),
    ("GET", "/v1/decisions/{key:str}/explanation"): lambda r: ("GET", "/v1/decisions/last/explanation", None),
    ("GET", "/v1/decisions/{key:str}/why-not"): lambda r: (
        "GET", f"/v1/decisions/last/why-not?machine={_machine(r)}", None),
    ("GET", "/v1/evictions"): lambda r: ("GET", "/v1/evictions?limit=20", None),
    ("GET", "/v1/evictions/summary"): lambda r: ("GET", "/v1/evictions/summary", None),
    ("GET", "/v1/waiting"): lambda r: ("GET", "/v1/waiting", None),
    ("DELETE", "/v1/waiting/{vm:path}"): lambda r: ("DELETE", f"/v1/waiting/{_somebody(r)}/0", None),
    ("GET", "/v1/healing"): lambda r: ("GET", "/v1/healing", None),
    ("GET", "/v1/healing/history"): lambda r: ("GET", "/v1/healing/history?limit=20", None),
    ("GET", "/v1/changes"): lambda r: ("GET", f"/v1/changes?limit=50&since={r.randint(0, 400)}", None),
    ("GET", "/v1/changes/stream"): lambda r: ("GET", f"/v1/changes/stream?since={r.randint(0, 400)}", None),
}  # fmt: skip
WRITES = [key for key in ASKS if key[0] != "GET"]


def test_every_route_that_a_bound_token_may_use_is_asked() -> None:
    from roost.api.app import ROUTES

    for_it = [route for route in ROUTES if route.opt["namespaced"] and route.opt["scope"]]
    assert {(method, path) for route in for_it for method in route.http_methods for path in route.paths} == set(ASKS)


@dataclass
class Zone:
    """A service, and a client for each token."""

    service: Serving
    clients: dict[str, httpx.Client]
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    dry: Counter[str] = field(default_factory=Counter)  # dry runs, by what was wrong


@contextmanager
def zone_on(store: str, *arguments: str) -> Iterator[Zone]:
    """A service with an admin and two bound tokens."""
    tokens = {"root": _make(store, NewToken(name="root", scopes=("admin",))).token}
    for name in ("team-a", OTHER):
        tokens[name] = _make(store, NewToken(name=name, scopes=("allocate",), namespace=name)).token
    often = ("--set", "agent.requeue_seconds=0.1", "--set", "log.requests=failed")
    with serving(store, "--policy", "fast", *often, *arguments) as service:
        clients = {
            name: httpx.Client(base_url=service.url, timeout=30, headers={"Authorization": f"Bearer {token}"})
            for name, token in tokens.items()
        }
        try:
            yield Zone(service, clients)
        finally:
            for client in clients.values():
                client.close()
        assert '"a bug"' not in service.stderr
    audit(store)


def others(zone: Zone, until: threading.Event, seed: int) -> None:
    """They fill the zone with VMs that may have to give way, release some, and machines come and go."""
    lots, http = random.Random(seed), zone.clients[OTHER]
    names = iter(range(seed, 10**9, 100))
    there: list[str] = []
    while not until.is_set():
        if len(there) > 6 or (there and lots.random() < 0.3):
            http.delete(f"/v1/tenants/{there.pop(lots.randrange(len(there)))}")
            continue
        name = f"{OTHER}.{next(names)}"
        vm: dict[str, Any] = lots.choice([{"type": "S4"}, {"type": "D8", **SPOT}, {"type": "D2"}])
        wish: dict[str, Any] = {"tenant": name, "vms": [{**vm, "count": lots.randint(1, 3)}]}
        wish |= lots.choice([{}, {"constraints": {"evict_together": True}}])
        if http.post("/v1/tenants", json=wish, headers={"Idempotency-Key": f"{OTHER}-{name}"}).status_code == 201:
            there.append(name)
        if lots.random() < 0.1:
            state = {"state": lots.choice(["ready", "ready", "draining", "down"])}
            zone.clients["root"].patch(f"/v1/machines/c1-r00-m0{lots.randint(0, 1)}", json=state)


def strings(found: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """Every text of a document, and the field it is in."""
    if isinstance(found, dict):
        for name, value in found.items():
            yield at, name
            yield from strings(value, name)
    elif isinstance(found, list):
        for value in found:
            yield from strings(value, at)
    elif isinstance(found, str):
        yield at, found


def ask(zone: Zone, lots: Lots, last: str) -> str:
    """Ask one thing, and look at all that is said; returns the key of what was decided."""
    route = lots.choice([*WRITES, *[("POST", "/v1/tenants")] * 5] if lots.random() < 0.7 else [*ASKS])
    method, path, body = ASKS[route](lots)
    path = path.replace("/last", f"/{last or 'none'}")
    with zone.clients["team-a"].stream(method, path, json=body) as answer:
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            text = next(answer.iter_text(), "")
            found: Any = {"text": text}
        else:
            text = answer.read().decode()
            found = json.loads(text) if text else {}
    zone.answers[route[1], answer.status_code] += 1
    if "dry_run" in path:
        zone.dry[found.get("title", "done")] += 1
    said = f"{path} {json.dumps(body)}"
    for name, words in (*strings(found), *(("header", value) for value in answer.headers.values())):
        shown = (method, path, body, answer.status_code, name, words)
        for word in re.findall(r"[\w./~:-]+", words):
            assert OTHER not in word or word.strip(".:") in said, shown
            assert not THEIRS.search(word), shown
        if answer.status_code >= 400 and name in SAID:
            own = [remedy["machine"] for remedy in found.get("remedies", ()) if remedy.get("vms")]
            assert all(machine in said or machine in own for machine in MACHINE.findall(words)), shown
    return str(found.get("decision") or last) if isinstance(found, dict) else last


def fuzz(zone: Zone, rounds: int, askers: int = 1, churners: int = 1) -> None:
    """Ask so many things while others are busy."""
    until, problems = threading.Event(), list[BaseException]()

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            problems.append(error)
            until.set()

    def asking(seed: int) -> None:
        lots, last = random.Random(seed), ""
        for _ in range(rounds // askers):
            if until.is_set():
                return
            last = ask(zone, lots, last)

    busy = [threading.Thread(target=run, args=(lambda i=i: others(zone, until, i),)) for i in range(churners)]
    asks = [threading.Thread(target=run, args=(lambda i=i: asking(i),)) for i in range(askers)]
    for thread in (*busy, *asks):
        thread.start()
    for thread in asks:
        thread.join()
    until.set()
    for thread in busy:
        thread.join()
    if problems:
        raise problems[0]


def test_no_answer_to_a_bound_token_names_others_or_their_machines(tmp_path: Path) -> None:
    with zone_on(make_store(str(tmp_path / "tiny.db"), tmp_path)) as zone:
        fuzz(zone, ROUNDS)
        assert len(zone.answers) > 20
        assert {status for _, status in zone.answers} >= {200, 201, 400, 403, 404, 409}
        assert zone.dry["done"] > 3
        assert LOST not in zone.dry


@pytest.mark.deep
def test_nor_do_those_of_several_workers_that_get_in_each_others_way(tmp_path: Path) -> None:
    with ThrowawayPostgres() as server:
        store = make_store(server.create_database("hush"), tmp_path)
        with zone_on(store, "--workers", "2") as zone:
            fuzz(zone, DEEP, askers=3, churners=3)
            assert sum(zone.dry.values()) > 1_000
            assert LOST not in zone.dry
