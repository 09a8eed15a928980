"""Every route of the HTTP service, through a real server, on SQLite and on PostgreSQL: what works, and how it fails."""

from __future__ import annotations

import itertools
import re
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from roost.api.problems import KINDS
from roost.bench.postgres import ThrowawayPostgres
from roost.rules.policy import SHIPPED
from tests.e2e.serving import Serving, serving
from tests.e2e.talking import audit, events, eventually, make_store, problem

HERE = Path(__file__).parent
# What no test can bring about from outside, and why.
UNPROVOKED = {
    "roost.internal": "it is a bug, and none is known",
    "roost.retries_exhausted": "two dozen lost races in a row; tests/scenario shows them inside the agent",
}
OURS = """
name: ours
description: Only what must be.
machines:
  validators: [is_ready, has_room, evicts_nobody]
  preferences: [{rule: best_fit, buckets: 3}]
"""
_numbers = itertools.count()


@dataclass
class Api:
    """A service under test, its store, and a client."""

    service: Serving
    store: str
    config: Path
    http: httpx.Client

    def create(self, tenant: str, vm_type: str = "D2", count: int = 1, **more: Any) -> httpx.Response:
        """Ask for a tenant with VMs of one type."""
        wish = {"tenant": tenant, "vms": [{"type": vm_type, "count": count}], **more}
        return self.http.post("/v1/tenants", json=wish)

    def created(self, tenant: str, vm_type: str = "D2", count: int = 1, **more: Any) -> Any:
        """A tenant that was created."""
        response = self.create(tenant, vm_type, count, **more)
        assert response.status_code == 201, response.text
        return response.json()

    def get(self, path: str, **query: Any) -> Any:
        """What a route that works answers."""
        response = self.http.get(path, params=query)
        assert response.status_code == 200, response.text
        return response.json()

    def revision(self) -> int:
        """How far the zone is."""
        return int(self.get("/v1/zone")["revision"])

    def set(self, *lines: str) -> None:
        """Settings of the file, read anew."""
        before = self.service.stderr.count("settings read anew")
        self.config.write_text("\n".join(lines))
        self.service.process.send_signal(signal.SIGHUP)
        eventually(lambda: self.service.stderr.count("settings read anew") > before)


@pytest.fixture(scope="module")
def postgres() -> Iterator[ThrowawayPostgres]:
    """A real server."""
    with ThrowawayPostgres() as server:
        yield server


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One service for all tests of a store. Its feed does not reach back to the beginning."""
    folder = tmp_path_factory.mktemp("routes")
    url = str(folder / "tiny.db")
    if request.param == "postgres":
        url = request.getfixturevalue("postgres").create_database("routes")
    store, config = make_store(url, folder, trimmed=True), folder / "roost.toml"
    config.touch()
    with serving(store, "--config", str(config)) as service, httpx.Client(base_url=service.url, timeout=30) as http:
        yield Api(service, store, config, http)
    audit(store)


@pytest.fixture
def api(running: Api) -> Iterator[Api]:
    """The service, without tenants, and with every machine ready."""
    yield running
    if running.config.read_text():
        running.set()
    for line in running.get("/v1/tenants", limit=1_000)["items"]:
        assert running.http.delete(f"/v1/tenants/{line['tenant']}").status_code == 200
    for machine in running.get("/v1/machines")["items"]:
        if (machine["state"], machine["health"]) != ("ready", 100):
            running.http.patch(f"/v1/machines/{machine['machine']}", json={"state": "ready", "health": 100})
    assert '"a bug"' not in running.service.stderr


# ------------------------------------------------------------------------------------------------------------ tenants


def test_a_tenant_is_created_looked_at_scaled_and_deleted(api: Api) -> None:
    made = api.http.post(
        "/v1/tenants", json={"tenant": "web", "vms": [{"type": "D2", "name": "front"}, {"type": "D8"}]}
    )
    assert made.status_code == 201
    body = made.json()
    assert [vm["vm"] for vm in body["vms"]] == ["web/front", "web/0"]
    assert made.headers["etag"] == f'"{body["generation"]}"'

    seen = api.http.get("/v1/tenants/web")
    assert seen.headers["etag"] == made.headers["etag"]
    assert {(vm["vm"], vm["machine"]) for vm in seen.json()["vms"]} == {(vm["vm"], vm["machine"]) for vm in body["vms"]}

    more = api.http.post("/v1/tenants/web/vms", json={"vms": [{"type": "D2", "count": 2}]})
    assert more.status_code == 201
    assert more.json()["generation"] > body["generation"]
    assert len(api.get("/v1/tenants/web")["vms"]) == 4

    fewer = api.http.post("/v1/tenants/web/release", json={"vms": ["web/front", "web/0"]})
    assert fewer.status_code == 200
    assert sorted(vm["vm"] for vm in api.get("/v1/tenants/web")["vms"]) == sorted(vm["vm"] for vm in more.json()["vms"])

    assert api.http.delete("/v1/tenants/web").status_code == 200
    problem(api.http.get("/v1/tenants/web"), "roost.not_found")


def test_tenants_are_listed_in_pages_by_name(api: Api) -> None:
    names = [f"t{i:02}" for i in range(7)]
    for name in [*names[::-1], "other"]:
        api.created(name)
    found, cursor = [], ""
    for _ in range(4):
        page = api.get("/v1/tenants", limit=2, cursor=cursor, prefix="t")
        assert len(page["items"]) <= 2
        found += [line["tenant"] for line in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert found == names
    assert len(api.get("/v1/tenants")["items"]) == 8


def test_what_is_not_there_is_not_found(api: Api) -> None:
    for method, path, body in (
        ("GET", "/v1/tenants/nobody", None),
        ("DELETE", "/v1/tenants/nobody", None),
        ("POST", "/v1/tenants/nobody/vms", {"vms": [{"type": "D2"}]}),
        ("POST", "/v1/tenants/nobody/release", {"vms": ["nobody/0"]}),
        ("GET", "/v1/vms/nobody/0", None),
        ("DELETE", "/v1/vms/nobody/0", None),
        ("POST", "/v1/vms/nobody/0", {"machine": "c1-r00-m00"}),
        ("GET", "/v1/machines/nowhere", None),
        ("PATCH", "/v1/machines/nowhere", {"state": "down"}),
        ("DELETE", "/v1/machines/nowhere", None),
        ("GET", "/v1/clusters/nowhere", None),
        ("PATCH", "/v1/clusters/nowhere", {"quarantined": True}),
        ("DELETE", "/v1/clusters/nowhere", None),
        ("GET", "/v1/machines?cluster=nowhere", None),
        ("GET", "/v1/capacity?type=nothing", None),
        ("GET", "/v1/decisions/never", None),
        ("GET", "/v1/decisions/never/explanation", None),
        ("GET", "/v1/decisions/never/why-not?machine=c1-r00-m00", None),
        ("GET", "/v1/policies/none", None),
        ("DELETE", "/v1/policies/none", None),
        ("DELETE", "/v1/policies/shadow", None),  # a name like any other
        ("GET", "/v1/policies/differences", None),
        ("POST", "/v1/policies/activate", {"policy": "none"}),
        ("POST", "/v1/shadow", {"policy": "none"}),
        ("DELETE", "/v1/tokens/none", None),
        ("POST", "/v1/why-not", {"tenant": "t", "vms": [{"type": "D2"}], "machine": "nowhere"}),
        ("GET", "/v1/nothing", None),
        ("GET", "/", None),
    ):
        problem(api.http.request(method, path, json=body), "roost.not_found")
        if method != "GET" and path not in ("/v1/tokens/none", "/v1/why-not"):
            problem(api.http.request(method, path, params={"dry_run": True}, json=body), "roost.not_found")


def test_a_request_that_makes_no_sense_says_where(api: Api) -> None:
    api.created("web")
    for method, path, body, field in (
        ("POST", "/v1/tenants", {"tenant": "t", "vms": [{"type": "D3"}]}, "request.vms[0].type"),
        ("POST", "/v1/tenants", {"tenant": "t", "vms": [{"type": "D2", "name": "n", "count": 2}]}, "vms[0].name"),
        ("POST", "/v1/tenants", {"tenant": "t\n", "vms": [{"type": "D2"}]}, "tenant"),
        ("POST", "/v1/tenants", {"tenant": "t", "vms": [{"type": "D2", "name": "n\n"}]}, "vms[0].name"),
        ("POST", "/v1/tenants", {"tenant": "t", "vms": [{"type": "D2", "cluster": "c9"}]}, "request.vms[0].cluster"),
        ("POST", "/v1/tenants/web/release", {"vms": ["web/0", "web/0"]}, "vms"),
        ("POST", "/v1/tenants/web/release", {"vms": ["web/9"]}, "vms[0]"),
        ("POST", "/v1/vms/web/0", {"machine": "{elsewhere}", "step": "finish"}, "step"),
        ("PATCH", "/v1/machines/c1-r00-m00", {}, "machine"),
        ("PATCH", "/v1/machines/c1-r00-m00", {"failures": 2**31 - 1}, "failures"),
        ("DELETE", "/v1/machines/{busy}", None, "machine {busy}"),
        ("POST", "/v1/explain", {"tenant": "t", "vms": [{"type": "D2"}], "vm": 5}, "vm"),
        ("GET", "/v1/capacity?priority=none", None, "priority"),
        ("GET", "/v1/decisions?cursor=none", None, "cursor"),
        ("GET", "/v1/tenants?limit=0", None, "limit"),
        ("POST", "/v1/policies/activate", {"policy": "default", "share": 0.5}, "share"),
        ("PUT", "/v1/policies/theirs", {"text": OURS}, "text"),
        ("PUT", "/v1/policies/a b", {"text": OURS.replace("ours", "a b")}, "name"),
        ("POST", "/v1/policies/validate", {"text": OURS.replace("ours", "a/b")}, "name"),
    ):
        busy = api.get("/v1/vms/web/0")["machine"]
        if body and body.get("machine") == "{elsewhere}":
            body["machine"] = next(m["machine"] for m in api.get("/v1/machines")["items"] if m["machine"] != busy)
        answer = api.http.request(method, path.format(busy=busy), json=body)
        assert problem(answer, "roost.invalid_request").field == field.format(busy=busy)
    for wish in ({}, {"tenant": "t"}, {"tenant": "t", "vms": []}, {"tenant": "t", "vms": [{"type": "D2"}], "x": 1}):
        problem(api.http.post("/v1/tenants", json=wish), "roost.invalid_request")


# ---------------------------------------------------------------------------------------------------------------- VMs


def test_vms_are_listed_by_tenant_and_machine_and_released_one_by_one(api: Api) -> None:
    made = api.created("web", count=3)
    vms = made["vms"]
    api.created("other")
    assert [vm["vm"] for vm in api.get("/v1/vms", limit=2)["items"]] == ["other/0", "web/0"]
    assert api.get("/v1/vms", cursor="web/0", limit=5)["items"][0]["vm"] == "web/1"
    assert len(api.get("/v1/vms", tenant="web")["items"]) == 3
    on = vms[0]["machine"]
    assert "web/0" in [vm["vm"] for vm in api.get("/v1/vms", machine=on)["items"]]
    assert api.get("/v1/vms", machine="nowhere")["items"] == []
    found = api.get("/v1/vms/web/1")
    assert time.time() - 600 < found.pop("since") <= time.time() + 1
    assert found == {
        "vm": "web/1", "tenant": "web", "type": "D2", "machine": vms[1]["machine"], "priority": "", "set": "",
        "decision": made["decision"], "which": 1, "lost": False,
    }  # fmt: skip
    key = {"Idempotency-Key": f"one-{next(_numbers)}"}
    first = api.http.delete("/v1/vms/web/1", headers=key)
    assert (first.status_code, first.json()["replayed"]) == (200, False)
    again = api.http.delete("/v1/vms/web/1", headers=key)
    assert (again.status_code, again.json()["replayed"]) == (200, True)
    problem(api.http.delete("/v1/vms/web/1"), "roost.not_found")
    assert len(api.get("/v1/vms", tenant="web")["items"]) == 2


def test_a_vm_is_moved_in_steps_or_at_once(api: Api) -> None:
    source = api.created("web")["vms"][0]["machine"]
    free = [m["machine"] for m in api.get("/v1/machines", cluster="c1", empty=True)["items"]]

    def move(machine: str, step: str, **headers: str) -> httpx.Response:
        return api.http.post("/v1/vms/web/0", json={"machine": machine, "step": step}, headers=headers)

    def where() -> dict[str, str]:
        return {vm["vm"]: vm["machine"] for vm in api.get("/v1/vms")["items"]}

    held = move(free[0], "hold", **{"Idempotency-Key": (key := f"hold-{next(_numbers)}")})
    assert held.status_code == 200, held.text
    assert held.headers["etag"] == f'"{held.json()["generation"]}"'
    assert where() == {"web/0": source, "web/0~hold": free[0]}
    assert move(free[0], "hold", **{"Idempotency-Key": key}).json()["replayed"]
    assert problem(move(free[1], "hold"), "roost.invalid_request").field == "machine"
    finished = move(free[0], "finish").json()
    assert where() == {"web/0": free[0]}
    again = move(free[0], "finish").json()
    assert (again["generation"], again["replayed"]) == (finished["generation"], False)
    assert move(free[1], "hold").status_code == 200
    assert move(free[1], "cancel").status_code == 200
    assert api.http.post("/v1/vms/web/0", json={"machine": source}).status_code == 200
    assert where() == {"web/0": source}

    api.http.patch(f"/v1/machines/{free[0]}", json={"state": "down"})
    refused = problem(move(free[0], "whole"), "roost.conflict")
    assert refused.detail == f"machine {free[0]} cannot have web/0: machine down (is_ready)"
    assert refused.field == "machine"
    assert api.get(f"/v1/decisions/{refused.decision}")["outcome"] == "declined"
    problem(move("nowhere", "whole"), "roost.not_found")
    problem(move(free[1], "leap"), "roost.invalid_request")
    assert where() == {"web/0": source}


# ------------------------------------------------------------------------------------------------------------ batches


def test_each_request_of_a_batch_has_its_own_result(api: Api) -> None:
    api.created("old")
    key = f"batch-{next(_numbers)}"
    requests = [
        {"tenant": "new", "vms": [{"type": "D2"}], "key": key},
        {"tenant": "old", "vms": [{"type": "D2"}]},
        {"tenant": "old", "vms": [{"type": "D2"}], "scale_out": True},
        {"tenant": "nobody", "vms": [{"type": "D2"}], "scale_out": True},
        {"tenant": "huge", "vms": [{"type": "XL"}]},
        {"tenant": "odd", "vms": [{"type": "none"}]},
        {"tenant": "odd", "vms": [{"type": "D2"}], "key": "with space"},
        {"tenant": "many", "vms": [{"type": "D2", "count": 100_000}]},
        {"tenant": "odd", "vms": [{"type": "D2", "cluster": "\0"}]},
    ]
    dry = api.http.post("/v1/batch", params={"dry_run": True}, json={"requests": requests}).json()
    assert [result["status"] for result in dry["results"]] == [200, 409, 200, 404, 422, 400, 400, 413, 400]
    answer = api.http.post("/v1/batch", json={"requests": requests})
    assert answer.status_code == 200
    body = answer.json()
    assert [result["status"] for result in body["results"]] == [201, 409, 201, 404, 422, 400, 400, 413, 400]
    codes = [result["problem"] and result["problem"]["code"] for result in body["results"]]
    assert codes[1:6:2] == ["roost.conflict", "roost.not_found", "roost.invalid_request"]
    assert (body["done"], body["failed"]) == (2, 7)
    assert [line["tenant"] for line in api.get("/v1/tenants")["items"]] == ["new", "old"]
    again = api.http.post("/v1/batch", json={"requests": requests[:1]}).json()["results"][0]
    assert again["placed"]["replayed"]
    assert again["placed"]["vms"] == body["results"][0]["placed"]["vms"]


# -------------------------------------------------------------------------------------------------- machines, clusters


def test_machines_are_listed_with_every_filter(api: Api) -> None:
    api.created("web")
    busy = api.get("/v1/vms/web/0")["machine"]
    api.http.patch("/v1/machines/c2-r00-m00", json={"state": "draining"})

    def names(**query: Any) -> list[str]:
        return [machine["machine"] for machine in api.get("/v1/machines", **query)["items"]]

    everything = names()
    assert len(everything) == 6
    assert everything == sorted(everything)
    assert names(limit=2) == everything[:2]
    assert names(cursor=everything[1]) == everything[2:]
    assert api.get("/v1/machines", limit=6)["next"] is None
    assert names(cluster="c2") == ["c2-r00-m00", "c2-r00-m01"]
    rack = api.get("/v1/machines/c1-r01-m00")["rack"]
    assert names(rack=rack) == ["c1-r01-m00", "c1-r01-m01"]
    assert names(hardware="v2") == names(cluster="c2")
    assert names(state="draining") == ["c2-r00-m00"]
    assert names(empty=False) == [busy]
    assert len(names(empty=True)) == 5
    assert names(empty=True, cluster="c1", state="ready", hardware="v1") == [
        name for name in everything if name != busy and name.startswith("c1")
    ]


def test_a_machine_is_changed_added_and_removed(api: Api) -> None:
    before = api.http.get("/v1/machines/c1-r00-m00")
    changed = api.http.patch("/v1/machines/c1-r00-m00", json={"state": "draining", "health": 50})
    assert changed.status_code == 200
    after = api.http.get("/v1/machines/c1-r00-m00")
    assert (after.json()["state"], after.json()["health"]) == ("draining", 50)
    assert after.headers["etag"] == changed.headers["etag"] != before.headers["etag"]

    machine = {"name": "c1-new", "datacenter": "dc1", "cluster": "c1", "rack": "r-new", "generation": "v1"}
    added = api.http.post("/v1/machines", json={"machines": [machine]})
    assert added.status_code == 201
    eventually(lambda: api.get("/v1/zone")["machines"] == 7)
    new, old = api.get("/v1/machines/c1-new"), api.get("/v1/machines/c1-r00-m00")
    assert new["capacity"] == old["capacity"]
    assert api.get("/v1/clusters/c1")["machines"] == 5
    problem(api.http.post("/v1/machines", json={"machines": [machine]}), "roost.invalid_request")
    for field, name in (
        ("name", "a/b"),
        ("rack", "r\n"),
        ("cluster", "c=1"),
        ("datacenter", "d@1"),
        ("features", ["x y"]),
    ):
        named = problem(
            api.http.post("/v1/machines", json={"machines": [machine | {field: name}]}), "roost.invalid_request"
        )
        assert field in named.detail
        assert "is no name: use letters, digits, dots, dashes and underscores" in named.detail
    problem(api.http.post("/v1/machines", json={"machines": [machine | {"generation": "v9"}]}), "roost.invalid_request")

    key = {"Idempotency-Key": f"remove-{next(_numbers)}"}
    assert api.http.delete("/v1/machines/c1-new", headers=key).status_code == 200
    assert api.http.delete("/v1/machines/c1-new", headers=key).json()["replayed"]
    eventually(lambda: api.get("/v1/zone")["machines"] == 6)


def test_a_cluster_in_quarantine_takes_nothing_and_one_without_vms_can_be_removed(api: Api) -> None:
    assert api.http.patch("/v1/clusters/c2", json={"quarantined": True}).status_code == 200
    eventually(lambda: api.get("/v1/clusters/c2")["quarantined"])
    refused = problem(api.create("web", "S4"), "roost.no_capacity")
    assert any("quarantine" in reason.text for reason in refused.reasons), refused.reasons
    assert api.http.patch("/v1/clusters/c2", json={"quarantined": False}).status_code == 200
    api.created("web", "S4")

    machine = {"name": "c3-m0", "datacenter": "dc3", "cluster": "c3", "rack": "c3-r0", "generation": "v2"}
    assert api.http.post("/v1/machines", json={"machines": [machine]}).status_code == 201
    eventually(lambda: len(api.get("/v1/clusters")["items"]) == 3)
    assert api.http.delete("/v1/clusters/c3").status_code == 200
    eventually(lambda: len(api.get("/v1/clusters")["items"]) == 2)


# ----------------------------------------------------------------------------------------------------------- dry runs


def test_a_dry_run_says_what_would_come_of_it_and_does_nothing(api: Api) -> None:
    before = api.revision()
    first = api.created("web", count=2)["decision"]
    vms = api.get("/v1/vms")
    machines = api.get("/v1/machines")
    policies = api.get("/v1/policies")
    decisions = api.get("/v1/decisions")["items"][0]["key"]
    free = next(m["machine"] for m in machines["items"] if not m["vms"])
    beside = next(m["machine"] for m in machines["items"] if not m["vms"] and m["cluster"] == "c1")
    machine = {"name": "c1-dry", "datacenter": "dc1", "cluster": "c1", "rack": "r", "generation": "v1"}
    wish = {"vms": [{"type": "D2"}]}
    for method, path, body, status in (
        ("POST", "/v1/tenants", {"tenant": "dry", **wish}, 200),
        ("POST", "/v1/tenants/web/vms", wish, 200),
        ("POST", "/v1/tenants/web/release", {"vms": ["web/0"]}, 200),
        ("DELETE", "/v1/tenants/web", None, 200),
        ("DELETE", "/v1/vms/web/0", None, 200),
        ("POST", "/v1/vms/web/0", {"machine": beside}, 200),
        ("POST", "/v1/vms/web/0", {"machine": beside, "step": "hold"}, 200),
        ("POST", "/v1/batch", {"requests": [{"tenant": "dry", **wish}]}, 200),
        ("PATCH", f"/v1/machines/{free}", {"state": "down"}, 200),
        ("POST", "/v1/machines", {"machines": [machine]}, 200),
        ("DELETE", f"/v1/machines/{free}", None, 200),
        ("PATCH", "/v1/clusters/c2", {"quarantined": True}, 200),
        ("DELETE", "/v1/clusters/c2", None, 200),
        ("PUT", "/v1/policies/ours", {"text": OURS}, 200),
        ("POST", "/v1/policies/activate", {"policy": "fast"}, 200),
        ("POST", "/v1/shadow", {"policy": "fast"}, 200),
    ):
        answer = api.http.request(method, path, params={"dry_run": True}, json=body)
        assert answer.status_code == status, answer.text
        if not any(word in path for word in ("policies", "shadow", "batch")):
            assert answer.json()["dry_run"]
    last = [api.created("dry")["decision"], api.http.delete("/v1/tenants/dry").json()["decision"]]
    assert api.get("/v1/vms") == vms
    assert {m["machine"]: m["state"] for m in api.get("/v1/machines")["items"]} == {
        m["machine"]: m["state"] for m in machines["items"]
    }
    assert api.get("/v1/policies") == policies

    def changed() -> list[str]:
        keys = [each["key"] for each in api.get("/v1/changes", since=before)["items"]]
        return keys[keys.index(first) + 1 :] if first in keys else []

    assert eventually(lambda: len(changed()) >= 2 and changed()) == last
    assert api.get("/v1/decisions", limit=3)["items"][2]["key"] == decisions
    problem(api.http.post("/v1/tenants?dry_run=true", json={"tenant": "web", **wish}), "roost.conflict")
    too_many = {"tenant": "dry", "vms": [{"type": "D2", "count": 50}]}
    problem(api.http.post("/v1/tenants?dry_run=true", json=too_many), "roost.no_capacity")


# ------------------------------------------------------------------------------------------- explanations, decisions


def test_a_request_is_explained_now_and_a_decision_as_it_was_made(api: Api) -> None:
    wish = {"tenant": "web", "vms": [{"type": "D8", "count": 2}]}
    now = api.http.post("/v1/explain", json=wish).json()
    assert now["machine"].startswith("c1-")
    assert now["valid"] == 4
    assert "D8 for web" in now["text"]
    other = next(m["machine"] for m in api.get("/v1/machines", cluster="c2")["items"])
    assert api.http.post("/v1/why-not", json=wish | {"machine": other}).json()["verdict"] == "refused"

    made = api.created("web", "D8", 2)
    api.created("later", "D10", 2)
    past = api.get(f"/v1/decisions/{made['decision']}/explanation")
    assert past["machine"] == made["vms"][0]["machine"]
    assert past["valid"] == 4
    why = api.get(f"/v1/decisions/{made['decision']}/why-not", machine=other)
    assert (why["verdict"], why["winner"]) == ("refused", past["machine"])
    assert api.get(f"/v1/decisions/{made['decision']}/why-not", machine=past["machine"])["verdict"] == "chosen"

    declined = problem(api.create("huge", "D10", 9), "roost.fragmented")
    then = api.get(f"/v1/decisions/{declined.decision}/explanation")
    assert then["machine"] is None
    assert then["failure"]
    assert then["reasons"]
    released = api.http.delete("/v1/tenants/later").json()["decision"]
    problem(api.http.get(f"/v1/decisions/{released}/explanation"), "roost.invalid_request")


def test_decisions_are_listed_latest_first_in_pages(api: Api) -> None:
    keys = [api.created(f"t{i}")["decision"] for i in range(5)]
    one = api.get(f"/v1/decisions/{keys[2]}")
    assert (one["outcome"], one["by"], one["what"]["request"]["tenant"]) == ("committed", "anonymous", "t2")
    assert one["placed"][0]["vm"] == "t2/0"
    found: list[str] = []
    cursor = ""
    while len(found) < 5:
        page = api.get("/v1/decisions", limit=2, cursor=cursor)
        found += [each["key"] for each in page["items"]]
        cursor = page["next"]
    assert found[:5] == keys[::-1]


def test_capacity_is_what_can_really_be_placed(api: Api) -> None:
    def count() -> int:
        return int(api.get("/v1/capacity", type="D8")["types"][0]["count"])

    left = count()
    assert left > 0
    for i in range(left - 1):
        api.created(f"t{i}", "D8")
    eventually(lambda: count() == 1)  # counts may be a second old
    api.created("fits", "D8")
    eventually(lambda: count() == 0)
    problem(api.create("last", "D8"), "roost.no_capacity")
    everything = api.get("/v1/capacity")
    assert [each["type"] for each in everything["types"]] == ["D2", "D8", "D10", "XL", "S4"]
    assert next(each for each in everything["types"] if each["type"] == "XL")["count"] == 0
    assert set(api.get("/v1/capacity", type="S4")["types"][0]["clusters"]) == {"c2"}
    assert api.get("/v1/capacity", type="D2", priority="spot")["priority"] == "spot"


# ----------------------------------------------------------------------------------------------------------- policies


def test_policies_are_checked_kept_activated_and_compared_while_requests_are_decided(api: Api) -> None:
    shipped = {each["name"] for each in api.get("/v1/policies")["items"]}
    assert {"default", "fast"} <= shipped
    assert api.get("/v1/policies/default")["text"] == (SHIPPED / "default.yaml").read_text()
    valid = api.http.post("/v1/policies/validate", json={"text": OURS})
    assert (valid.status_code, valid.json()["rules"]) == (200, 4)
    problem(api.http.get("/v1/policies/ours"), "roost.not_found")
    put = {"Idempotency-Key": f"put-{next(_numbers)}"}
    for _ in range(2):
        assert api.http.put("/v1/policies/ours", json={"text": OURS}, headers=put).status_code == 200
    assert api.get("/v1/policies/ours")["text"] == OURS

    key = {"Idempotency-Key": f"activate-{next(_numbers)}"}
    split = {"policy": "default", "against": "ours", "share": 0.5}
    active = api.http.post("/v1/policies/activate", json=split, headers=key)
    assert active.status_code == 200
    again = api.http.post("/v1/policies/activate", json=split, headers=key)
    assert again.json() == active.json()
    other = api.http.post("/v1/policies/activate", json=split | {"share": 0.25}, headers=key)
    assert problem(other, "roost.invalid_request").field == "key"
    assert api.get("/v1/policies/active") == active.json()
    assert {each["name"]: each["share"] for each in api.get("/v1/policies")["items"] if each["share"]} == {
        "default": 0.5, "ours": 0.5,
    }  # fmt: skip
    deciders = {api.get(f"/v1/decisions/{api.created(f't{i}')['decision']}")["policy"] for i in range(16)}
    assert {name.split()[0] for name in deciders} == {"default", "ours"}
    results = api.get("/v1/policies/results")["results"]
    assert {each["policy"]: each["requests"] for each in results}.keys() == {"default", "ours"}
    assert sum(each["requests"] for each in results) == 16

    assert api.http.post("/v1/policies/activate", json={"policy": "ours"}).status_code == 200
    decision = api.created("by-ours")["decision"]
    assert api.get(f"/v1/decisions/{decision}")["policy"].startswith("ours ")
    gone = {"Idempotency-Key": f"forget-{next(_numbers)}"}
    for _ in range(2):
        assert api.http.delete("/v1/policies/ours", headers=gone).status_code == 204
    assert api.get(f"/v1/decisions/{decision}/explanation")["machine"]  # though its text is gone
    assert api.http.post("/v1/policies/activate", json={"policy": "default"}).status_code == 200


def test_a_policy_decides_in_the_shadow_until_it_is_ended_and_tells_what_it_would_do_otherwise(api: Api) -> None:
    nothing = {"policy": "", "digest": "", "share": 0.0, "since": 0.0}
    assert api.get("/v1/shadow/differences") == {
        "shadow": nothing, "decisions": 0, "changed": 0, "skipped": 0, "counts": [], "latest": [], "problem": "",
    }  # fmt: skip
    used = api.created("first")["vms"][0]["machine"]
    api.http.patch(f"/v1/machines/{used}", json={"health": 60})  # which default minds, and fast does not
    key = {"Idempotency-Key": f"shadow-{next(_numbers)}"}
    cast = api.http.post("/v1/shadow", json={"policy": "fast"}, headers=key)
    assert (cast.status_code, cast.json()["policy"], cast.json()["share"]) == (200, "fast", 1.0)
    assert api.http.post("/v1/shadow", json={"policy": "fast"}, headers=key).json() == cast.json()
    assert api.get("/v1/policies/active")["policy"] == "default", "it decides nothing"
    for i in range(6):
        api.created(f"shadowed-{i}")
    found = api.get("/v1/shadow/differences")
    assert found["shadow"] == cast.json()
    assert found["decisions"] == 6
    assert found["changed"] == sum(each["decisions"] for each in found["counts"]) > 0
    assert {"kind": "preferred", "rule": "non_empty", "decisions": 1} in found["counts"]
    for each in found["latest"]:
        assert "fast " in each["text"]
        assert "default " in each["text"]
    assert "roost_shadow_decisions_total" in api.http.get("/metrics").text
    for _ in range(2):
        assert api.http.delete("/v1/shadow").status_code == 204
    assert api.get("/v1/shadow/differences")["shadow"] == nothing
    api.created("unwatched")
    assert api.get("/v1/shadow/differences")["decisions"] == 0


@pytest.mark.parametrize(
    "rule", ["os:system", "/tmp/evil.py:rule", "evil.py:rule", "roost.rules.validators.has_room:x"]
)
def test_a_policy_that_names_code_is_refused(api: Api, rule: str) -> None:
    text = OURS.replace("is_ready", f'"{rule}"')
    for answer in (
        api.http.post("/v1/policies/validate", json={"text": text}),
        api.http.put("/v1/policies/ours", json={"text": text}),
    ):
        assert "says where a rule is" in problem(answer, "roost.invalid_request").detail
    problem(api.http.get("/v1/policies/ours"), "roost.not_found")


# ------------------------------------------------------------------------------------------------------------ changes


def test_changes_come_in_pages_and_as_a_stream_that_goes_on_where_it_broke(api: Api) -> None:
    start = api.revision()
    made = api.created("web")
    api.http.patch("/v1/machines/c2-r00-m01", json={"state": "down"})
    api.http.delete("/v1/tenants/web")
    eventually(lambda: api.get("/v1/changes", since=start)["revision"] == start + 3)
    first = api.get("/v1/changes", since=start, limit=1)
    assert (len(first["items"]), first["revision"]) == (1, start + 1)
    assert (first["items"][0]["key"], first["items"][0]["placed"]) == (made["decision"], made["vms"])
    items = api.get("/v1/changes", since=start)["items"]
    assert [each["revision"] for each in items] == [start + 1, start + 2, start + 3]
    assert items[1]["machines"] == [
        {"machine": "c2-r00-m01", "field": "state", "before": "ready", "after": "down"},
        {"machine": "c2-r00-m01", "field": "failures", "before": 0, "after": 1},
    ]
    assert items[2]["released"] == made["vms"]
    assert api.get("/v1/changes", since=start + 3)["items"] == []

    with api.http.stream("GET", "/v1/changes/stream", params={"since": start}) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        seen = list(itertools.islice(events(stream), 2))
    assert [(int(number), data) for number, _, data in seen] == [(each["revision"], each) for each in items[:2]]
    with api.http.stream("GET", "/v1/changes/stream", headers={"Last-Event-ID": seen[-1][0]}) as stream:
        following = events(stream)
        assert next(following)[2] == items[2]
        threading.Timer(0.1, api.created, ["live"]).start()
        number, event, data = next(following)
    assert (int(number), event, data["placed"][0]["vm"]) == (start + 4, "change", "live/0")


def test_changes_that_are_forgotten_are_gone(api: Api) -> None:
    problem(api.http.get("/v1/changes", params={"since": 0}), "roost.too_old")
    problem(api.http.get("/v1/changes/stream", params={"since": 0}), "roost.too_old")
    problem(api.http.get("/v1/changes/stream", headers={"Last-Event-ID": "0"}), "roost.too_old")
    for silly in ("-1", "9" * 20, "x"):
        problem(api.http.get("/v1/changes/stream", headers={"Last-Event-ID": silly}), "roost.invalid_request")
        problem(api.http.get("/v1/changes", params={"since": silly}), "roost.invalid_request")


# ------------------------------------------------------------------------------------------------- health and metrics


def test_the_service_is_healthy_ready_and_measured(api: Api) -> None:
    api.created("web", count=2)
    problem(api.create("huge", "XL"), "roost.never_fits")
    assert api.get("/healthz")["status"] == "ok"
    assert api.get("/readyz")["status"] == "ok"
    text = api.http.get("/metrics").text
    found = {family.name for family in text_string_to_metric_families(text)}
    promised = """http_request_duration_seconds schedule_attempts placed_vms queue_wait_seconds
        decision_duration_seconds commit_duration_seconds conflicts retries shed_requests cache_requests cache_updates
        queue_depth queue_depth_vms change_streams feed_lag_revisions revision store_up utilisation_ratio
        packing_density_ratio machines empty_machines vms tenants rule_filter_ratio cache_bytes"""
    assert {f"roost_{name}" for name in promised.split()} <= found
    assert not any(name in text for name in ("web", "c1-r0"))  # labels never name a tenant or a machine
    eventually(lambda: "roost_vms 2.0" in api.http.get("/metrics").text)


# ------------------------------------------------------------------------------------------ keys, generations, names


def test_the_same_key_is_done_once_and_answered_alike(api: Api) -> None:
    key = {"Idempotency-Key": f"key.{next(_numbers)}:1"}
    wish = {"tenant": "web", "vms": [{"type": "D2", "count": 2}]}
    first = api.http.post("/v1/tenants", json=wish, headers=key)
    again = api.http.post("/v1/tenants", json=wish, headers=key)
    assert (first.status_code, again.status_code) == (201, 201)
    assert (first.json()["replayed"], again.json()["replayed"]) == (False, True)
    assert first.json()["vms"] == again.json()["vms"]
    assert first.json()["decision"] == again.json()["decision"]
    assert len(api.get("/v1/vms")["items"]) == 2
    other = api.http.post("/v1/tenants", json=wish | {"tenant": "other"}, headers=key)
    assert problem(other, "roost.invalid_request").field == "key"
    problem(api.http.get("/v1/tenants/other"), "roost.not_found")
    assert api.get(f"/v1/decisions/{key['Idempotency-Key']}")["outcome"] == "committed"

    out = {"Idempotency-Key": f"out-{next(_numbers)}"}
    for replayed in (False, True):
        answer = api.http.post("/v1/tenants/web/vms", json={"vms": [{"type": "D2"}]}, headers=out)
        assert answer.json()["replayed"] is replayed
    gone = {"Idempotency-Key": f"gone-{next(_numbers)}"}
    for replayed in (False, True):
        assert api.http.delete("/v1/tenants/web", headers=gone).json()["replayed"] is replayed
    for bad in ("with space", "with/slash", "x" * 151):
        problem(api.http.post("/v1/tenants", json=wish, headers={"Idempotency-Key": bad}), "roost.invalid_request")


def test_whatever_was_done_is_answered_again_with_the_generation_that_it_led_to(api: Api) -> None:
    vms, machine = {"vms": [{"type": "D2", "count": 2}]}, api.get("/v1/machines")["items"][0]["machine"]
    writes = [
        ("POST", "/v1/tenants", {"tenant": "web", **vms}),
        ("POST", "/v1/tenants/web/vms", vms),
        ("POST", "/v1/tenants/web/release", {"vms": ["web/0"]}),
        ("DELETE", "/v1/vms/web/1", None),
        ("PATCH", f"/v1/machines/{machine}", {"health": 90}),
        ("PATCH", f"/v1/machines/{machine}", {"health": 100}),
    ]
    keys = [{"Idempotency-Key": f"told-{next(_numbers)}"} for _ in writes]

    def ask(number: int) -> httpx.Response:
        method, path, body = writes[number]
        return api.http.request(method, path, json=body, headers=keys[number])

    first = [ask(number) for number in range(len(writes))]
    for number, before in enumerate(first):
        assert before.is_success, before.text
        again = ask(number)
        assert again.json() == before.json() | {"replayed": True}
        assert again.headers["etag"] == before.headers["etag"] == f'"{before.json()["generation"]}"'
    batch = {"requests": [{"tenant": "batch", "key": f"told-{next(_numbers)}", **vms}]}
    one, other = (api.http.post("/v1/batch", json=batch).json()["results"][0]["placed"] for _ in range(2))
    assert other == one | {"replayed": True}


def test_a_change_that_rests_on_what_is_no_longer_so_is_outdated(api: Api) -> None:
    old = {"If-Match": f'"{api.created("web")["generation"]}"'}
    wish = {"vms": [{"type": "D2"}]}
    new = api.http.post("/v1/tenants/web/vms", json=wish, headers=old)
    assert new.status_code == 201
    for method, path, body in (
        ("POST", "/v1/tenants/web/vms", wish),
        ("POST", "/v1/tenants/web/release", {"vms": ["web/0"]}),
        ("DELETE", "/v1/tenants/web", None),
    ):
        problem(api.http.request(method, path, json=body, headers=old), "roost.outdated")
        problem(api.http.request(method, path, json=body, headers=old, params={"dry_run": True}), "roost.outdated")
    assert api.http.delete("/v1/tenants/web", headers={"If-Match": new.headers["etag"]}).status_code == 200

    machine = "/v1/machines/c2-r00-m00"
    seen = {"If-Match": api.http.get(machine).headers["etag"]}
    assert api.http.patch(machine, json={"health": 90}, headers=seen).status_code == 200
    problem(api.http.patch(machine, json={"health": 80}, headers=seen), "roost.outdated")
    assert api.http.patch(machine, json={"health": 80}, headers={"If-Match": "*"}).status_code == 200
    problem(api.http.patch(machine, json={"health": 80}, headers={"If-Match": "soon"}), "roost.invalid_request")


def test_names_are_chosen_by_the_caller_and_given_once(api: Api) -> None:
    wish = {"tenant": "web", "vms": [{"type": "D2", "name": "a"}, {"type": "D2", "name": "b"}]}
    assert api.http.post("/v1/tenants", json=wish).json()["vms"][1]["vm"] == "web/b"
    taken = problem(api.http.post("/v1/tenants", json=wish), "roost.conflict")
    assert taken.field == "tenant"
    taken = problem(
        api.http.post("/v1/tenants/web/vms", json={"vms": [{"type": "D2", "name": "a"}]}), "roost.invalid_request"
    )
    assert "taken" in taken.detail
    for name in ("", ".hidden", "a b", "a/b", "ü", "x" * 101):
        problem(api.create(name), "roost.invalid_request")
    assert "tenant: is no name: use letters, digits" in problem(api.create("a\n"), "roost.invalid_request").detail


# -------------------------------------------------------------------------------------------- the other ways to fail


def test_what_finds_no_machine_says_which_way_and_why(api: Api) -> None:
    never = problem(api.create("huge", "XL"), "roost.never_fits")
    assert never.decision
    assert never.reasons
    api.created("full", "D10", 4)
    pieces = problem(api.create("web", "D8"), "roost.fragmented")
    assert [remedy.kind for remedy in pieces.remedies] == ["free"]
    assert pieces.remedies[0].vms[0].startswith("full/")
    rack = problem(
        api.create("web", count=3, constraints={"max_per_machine": 1, "colocate": "rack"}), "roost.tenant_constraint"
    )
    assert any("constraint" in remedy.kind for remedy in rack.remedies)
    problem(api.create("web", count=40), "roost.no_capacity")
    problem(api.create("full"), "roost.conflict")


def test_limits_are_read_anew_and_kept(api: Api) -> None:
    big = {"tenant": "web", "vms": [{"type": "D2", "count": 1_001}]}
    problem(api.http.post("/v1/tenants", json=big), "roost.too_large")
    api.set("[limits]", "body_bytes = 2048", "requests_per_batch = 2", "page = 1", "header_bytes = 2048", "streams = 0")
    long = {"tenant": "web", "vms": [{"type": "D2", "datacenter": "x" * 200}] * 20}
    problem(api.http.post("/v1/tenants", json=long), "roost.too_large")
    small = {"tenant": "t", "vms": [{"type": "D2"}]}
    problem(api.http.post("/v1/batch", json={"requests": [small] * 3}), "roost.too_large")
    assert len(api.get("/v1/machines", limit=100)["items"]) == 1
    problem(api.http.get("/v1/changes/stream"), "roost.overloaded")
    with httpx.Client(base_url=api.service.url) as fresh:
        answer = fresh.get("/v1/zone", headers={"x-long": "y" * 3_000})
        assert (answer.status_code, answer.json()["code"]) == (431, "roost.headers_too_large")
    api.set("[limits]", "rate = 0.5", "burst = 1")
    api.http.get("/v1/zone")
    problem(api.http.get("/v1/zone"), "roost.rate_limited")
    assert api.get("/healthz")
    api.set("[limits]", "queued_vms = 1")
    problem(api.create("web", count=4), "roost.overloaded")
    said = api.service.stderr.count("not read anew")
    api.config.write_text("[limits]\npage = 0")
    api.service.process.send_signal(signal.SIGHUP)
    eventually(lambda: api.service.stderr.count("not read anew") > said)
    problem(api.create("web", count=4), "roost.overloaded")


def test_bodies_are_json_and_methods_are_those_of_the_route(api: Api) -> None:
    text = '{"tenant": "web", "vms": [{"type": "D2"}]}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        answer = api.http.post("/v1/tenants", content=text, headers={"Content-Type": kind})
        problem(answer, "roost.unsupported_media_type")
    typed = {"Content-Type": "application/json; charset=utf-8"}
    assert api.http.post("/v1/tenants", content=text, headers=typed).status_code == 201
    for method in ("PUT", "PATCH", "DELETE", "TRACE", "PURGE"):
        answer = api.http.request(method, "/v1/tenants")
        problem(answer, "roost.method_not_allowed")
        assert {"GET", "POST"} <= set(answer.headers["allow"].split(", "))


def test_answers_carry_the_request_id_and_the_log_the_trace(api: Api) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"X-Request-ID": "mine-7", "traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    answer = api.http.post("/v1/tenants", json={"tenant": "web", "vms": [{"type": "D2"}]}, headers=headers)
    assert answer.headers["x-request-id"] == "mine-7"
    line = eventually(lambda: next((ln for ln in api.service.stderr.splitlines() if "mine-7" in ln), ""))
    assert trace in line
    assert answer.json()["decision"] in line
    assert api.http.get("/healthz", headers={"X-Request-ID": "x" * 101}).headers["x-request-id"] != "x" * 101


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ('{"tenant": "q", "vms": [{"type": "D2", "count": "2"}]}', "vms[0].count", "must be a whole number"),
        ('{"tenant": "q", "vms": [{"type": "D2", "isolated": "true"}]}', "vms[0].isolated", "must be true or false"),
        ('{"tenant": "q", "vms": [{"type": "D2", "count": 2, "count": 1}]}', "count", "is given twice"),
        ('{"tenant": "q", "vms": [{"type": "D2"}], "tenant": "q"}', "tenant", "is given twice"),
        ('{"tenant": "a b", "vms": [{"type": "D2"}]}', "tenant", "use letters, digits"),
        ("", "body", "the body is missing"),
    ],
)
@pytest.mark.parametrize("query", ["", "?dry_run=true"])
def test_what_would_be_put_right_without_a_word_is_refused(
    api: Api, body: str, field: str, words: str, query: str
) -> None:
    json = {"content-type": "application/json"}
    sent = api.http.post(f"/v1/tenants{query}", content=body.encode(), headers=json)
    found = problem(sent, "roost.invalid_request")
    assert (found.field, found.title) == (field, "There is a mistake in the request")
    assert words in found.detail
    if body:
        sent = api.http.post(f"/v1/batch{query}", content=f'{{"requests": [{body}]}}'.encode(), headers=json)
        assert words in problem(sent, "roost.invalid_request").detail
    assert api.get("/v1/tenants")["items"] == []


def test_a_query_parameter_that_nobody_knows_is_refused(api: Api) -> None:
    for method, path, body in (
        ("GET", "/v1/machines?limt=1", None),
        ("GET", "/healthz?verbose=1", None),
        ("POST", "/v1/tenants?dryrun=true", {"tenant": "q", "vms": [{"type": "D2"}]}),
        ("PATCH", "/v1/racks/c1-r00?dry_run=true", {"state": "down"}),
    ):
        found = problem(api.http.request(method, path, json=body), "roost.invalid_request")
        assert found.field == path.partition("?")[2].partition("=")[0]
        assert "no query parameter here is called" in found.detail
    twice = problem(api.http.get("/v1/machines?limit=1&limit=2"), "roost.invalid_request")
    assert (twice.field, twice.detail) == ("limit", "the query parameter limit is given twice")
    assert api.get("/v1/tenants")["items"] == []
    assert all(machine["state"] == "ready" for machine in api.get("/v1/machines")["items"])


def test_a_parameter_is_called_what_the_caller_calls_it(api: Api) -> None:
    wish = {"tenant": "q", "vms": [{"type": "D2"}]}
    found = problem(
        api.http.post("/v1/tenants", json=wish, headers={"idempotency-key": "a b"}), "roost.invalid_request"
    )
    assert (found.field, found.detail) == (
        "Idempotency-Key",
        "Idempotency-Key: use printable ASCII without spaces and slashes",
    )


# ------------------------------------------------------------------------------------------------------ completeness


def test_every_problem_code_is_provoked_by_some_test() -> None:
    sources = "".join(file.read_text() for file in HERE.glob("test_*.py"))
    provoked = set(re.findall(r'"(roost\.\w+)"(?!:)', sources))
    assert set(KINDS) - provoked == set(UNPROVOKED)
