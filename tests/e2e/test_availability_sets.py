"""Availability sets over HTTP and on the command line: hard ones, best effort, scale-outs, and what is told of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.serving import ROOST, serving
from tests.e2e.talking import problem, tidy_client

# Three racks of two machines; the machines of a rack are in update domains of their own.
ZONE = """
name: trio
generations: {v1: {cores: 16, memory: 64}}
vm_types:
  D2: {demand: {cores: 2, memory: 4}, on: [v1]}
  D4: {demand: {cores: 4, memory: 8}, on: [v1]}
availability: {fault_domains: 4}
clusters:
  - {name: c1, generation: v1, racks: 3, machines_per_rack: 2, update_domains: 6}
"""
SETS = {"db": {"fault_domains": 3}, "web": {"update_domains": 6}}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service, for all tests, where nobody needs a token."""
    folder = tmp_path_factory.mktemp("sets")
    (folder / "trio.yaml").write_text(ZONE)
    zone = ("--zone", str(folder / "trio.yaml"))
    with serving(str(folder / "trio.db"), *zone, "--policy", "default") as service:
        yield service.url


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    """A client, and no tenants afterwards."""
    with tidy_client(url) as client:
        yield client


def create(http: httpx.Client, tenant: str, sets: Any, *vms: Any) -> httpx.Response:
    """Ask for a tenant."""
    return http.post("/v1/tenants", json={"tenant": tenant, "vms": vms, "constraints": {"sets": sets}})


def where(http: httpx.Client, tenant: str, of_set: str) -> list[str]:
    """The machines of a set's VMs."""
    vms = http.get(f"/v1/tenants/{tenant}").json()["vms"]
    return [vm["machine"] for vm in vms if vm["set"] == of_set]


def racks(machines: list[str]) -> set[str]:
    """The racks of machines, by their names."""
    return {machine.rpartition("-")[0] for machine in machines}


def test_each_set_is_spread_over_its_own_domains_and_stays_so_when_it_grows(http: httpx.Client) -> None:
    db, web = {"type": "D2", "count": 3, "set": "db"}, {"type": "D2", "count": 6, "set": "web"}
    created = create(http, "shop", SETS, db, web)
    assert created.status_code == 201, created.text
    assert created.json()["short"] == []
    assert len(racks(where(http, "shop", "db"))) == 3
    assert len(set(where(http, "shop", "web"))) == 6  # each machine is an update domain of its own
    view = http.get("/v1/tenants/shop").json()
    assert view["constraints"]["sets"] == SETS
    grown = http.post("/v1/tenants/shop/vms", json={"vms": [{"type": "D2", "count": 3, "set": "db"}]})
    assert grown.status_code == 201, grown.text
    found = where(http, "shop", "db")
    assert sorted(sum(machine.startswith(rack) for machine in found) for rack in racks(found)) == [2, 2, 2]


def test_a_hard_set_that_does_not_fit_is_refused_by_its_name(http: httpx.Client) -> None:
    down = [m["machine"] for m in http.get("/v1/machines").json()["items"] if "-r02-" in m["machine"]]
    for machine in down:
        assert http.patch(f"/v1/machines/{machine}", json={"state": "down"}).status_code == 200
    try:
        refused = create(http, "hard", {"db": {"fault_domains": 3}}, {"type": "D2", "count": 3, "set": "db"})
        found = problem(refused, "roost.tenant_constraint")
        assert any(reason.text.endswith("for set db") for reason in found.reasons)
        assert "let set db do its best (best_effort)" in [remedy.text for remedy in found.remedies]
        explained = http.get(f"/v1/decisions/{found.decision}/explanation").json()
        assert explained["set"] == "db"
        assert "of set db)" in explained["text"]
        machine = http.get("/v1/machines").json()["items"][0]["machine"]
        against = http.get(f"/v1/decisions/{found.decision}/why-not", params={"machine": machine}).json()
        assert against["reason"].endswith("for set db")

        sets = {"db": {"fault_domains": 3, "best_effort": True}}
        soft = create(http, "soft", sets, {"type": "D2", "count": 3, "set": "db"})
        assert soft.status_code == 201, soft.text
        short = {"set": "db", "vms": 1, "fault_domains": 2, "wanted_fault_domains": 3}
        assert soft.json()["short"] == [short]
        assert len(racks(where(http, "soft", "db"))) == 2
        decision = http.get(f"/v1/decisions/{soft.json()['decision']}").json()
        assert decision["short"] == [short]
        last = http.get(f"/v1/decisions/{soft.json()['decision']}/explanation", params={"vm": 2}).json()
        assert last["waived"] == ["min_fault_domains = 3"]
        assert "best effort: no machine would have done with min_fault_domains = 3" in last["text"]
    finally:
        for machine in down:
            assert http.patch(f"/v1/machines/{machine}", json={"state": "ready"}).status_code == 200


def test_a_set_that_asks_for_too_much_or_that_nobody_declared_is_invalid(http: httpx.Client) -> None:
    vm = {"type": "D2", "set": "db"}
    assert create(http, "four", {"db": {"fault_domains": 4}}, vm).status_code == 201  # as the zone file says
    found = problem(create(http, "five", {"db": {"fault_domains": 5}}, vm), "roost.invalid_request")
    assert found.field == "constraints.sets.db.fault_domains"
    assert "ask for at most 4, or raise availability.fault_domains in the zone file" in found.detail
    found = problem(create(http, "other", {"web": {"update_domains": 2}}, vm), "roost.invalid_request")
    assert found.field == "request.vms[0].set"
    assert "no availability set of tenant other is called 'db'; known are web" in found.detail
    assert "asks for nothing" in problem(create(http, "none", {"db": {}}, vm), "roost.invalid_request").detail
    found = problem(create(http, "odd", {"d b": {"fault_domains": 2}}, vm), "roost.invalid_request")
    assert (found.field, "'d b'" in found.detail) == ("constraints.sets", True)
    scaled = http.post("/v1/tenants/four/vms", json={"vms": [{"type": "D2", "set": "new"}]})
    assert problem(scaled, "roost.invalid_request").field == "request.vms[0].set"


def test_the_command_line_says_it_all(http: httpx.Client, url: str) -> None:
    def roost(*arguments: str) -> str:
        line = [ROOST, "tenant", *arguments, "--url", url]
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    sets = ("--set", "db:fds=4,uds=2,best-effort", "--set", "web:uds=3")
    said = roost("create", "cli", *sets, "--vm", "D2=4@db", "--vm", "D2=3@web")
    assert "short of what was asked: set db: 3 of 4 fault domains" in said
    assert roost("scale-out", "cli", "--vm", "D2@web")
    shown = roost("show", "cli")
    assert "fault_domains 4, update_domains 2, best_effort" in shown
    (line,) = (line for line in shown.splitlines() if line.startswith("cli/0"))
    assert line.split()[-1] == "db"
    assert json.loads(roost("show", "cli", "-o", "json"))["constraints"]["sets"]["web"] == {"update_domains": 3}


@pytest.mark.parametrize("text", ["db", "db:", "db:fds", "db:fds=x", "db:racks=3", "db:fds=1,fds=2", ":fds=2"])
def test_a_set_that_is_written_wrongly_is_refused(text: str, url: str) -> None:
    line = [ROOST, "tenant", "create", "t", "--set", text, "--vm", "D2@db", "--url", url]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "set" in done.stderr
