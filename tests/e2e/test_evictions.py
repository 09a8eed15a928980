"""Who gives way, told to those who placed, to those who had to go, and to those who operate the zone."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.serving import ROOST, Serving, serving
from tests.e2e.talking import audit, events, eventually, make_store, problem

# The tiny zone has four machines of 16 cores that run D8, so eight of these fill it.
FULL = 8


@dataclass
class Zone:
    """A service on the tiny zone, with a client for everybody's token."""

    service: Serving
    http: httpx.Client
    headers: dict[str, dict[str, str]]

    def ask(self, method: str, path: str, body: Any = None, who: str = "root", **query: Any) -> httpx.Response:
        """Ask something as somebody."""
        return self.http.request(method, path, json=body, params=query, headers=self.headers[who])

    def get(self, path: str, who: str = "root", **query: Any) -> Any:
        """What a route that works answers."""
        answer = self.ask("GET", path, who=who, **query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def place(
        self, tenant: str, count: int = 1, who: str = "root", dry_run: bool = False, more: Any = None, **vm: Any
    ) -> Any:
        """Place D8 VMs of a new tenant."""
        wish = {"tenant": tenant, "vms": [{"type": "D8", "count": count, **vm}], **(more or {})}
        answer = self.ask("POST", "/v1/tenants", wish, who, **({"dry_run": True} if dry_run else {}))
        assert answer.status_code == (200 if dry_run else 201), answer.text
        return answer.json()

    def release(self, tenant: str) -> None:
        """Release all VMs of a tenant."""
        answer = self.ask("DELETE", f"/v1/tenants/{tenant}")
        assert answer.status_code == 200, answer.text

    def revision(self) -> int:
        """How far the zone is."""
        return int(self.get("/v1/zone")["revision"])

    def command(self, *arguments: str, who: str = "root") -> str:
        """What a command prints."""
        token = self.headers[who]["Authorization"].removeprefix("Bearer ")
        line = [ROOST, *arguments, "--url", self.service.url, "--token", token]
        wide = {**os.environ, "COLUMNS": "200"}
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60, env=wide)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zone]:
    """One service for all tests."""
    folder = tmp_path_factory.mktemp("evictions")
    store = make_store(str(folder / "tiny.db"), folder)
    often = ("--set", "agent.requeue_seconds=0.1", "--set", "agent.foresight_seconds=0.5")
    with serving(store, "--policy", "fast", *often) as service, httpx.Client(base_url=service.url, timeout=30) as http:
        zone = Zone(service, http, {"nobody": {}})
        for name, more in (("root", {"scopes": ["admin"]}), *((n, _bound(n)) for n in ("gold", "lead"))):
            made = http.post("/v1/tokens", json={"name": name, **more}, headers=zone.headers.get("root"))
            assert made.status_code == 201, made.text
            zone.headers[name] = {"Authorization": f"Bearer {made.json()['token']}"}
        yield zone
        assert '"a bug"' not in service.stderr
        assert "Traceback" not in service.stderr
    audit(store)


def _bound(namespace: str) -> dict[str, Any]:
    return {"scopes": ["allocate"], "namespace": namespace}


@pytest.fixture
def zone(running: Zone) -> Iterator[Zone]:
    """The service, without tenants, and with nothing that waits."""
    yield running
    for line in running.get("/v1/tenants")["items"]:
        running.release(line["tenant"])
    for each in running.get("/v1/waiting")["items"]:
        running.ask("DELETE", f"/v1/waiting/{each['vm']}")


def test_whoever_places_hears_who_gave_way_and_a_dry_run_tells_it_before(zone: Zone) -> None:
    zone.place("lead", FULL, priority="spot")
    asked = zone.place("gold", dry_run=True)
    assert asked["evictions"] == len(asked["evicted"]) == 1
    assert len(zone.get("/v1/tenants/lead")["vms"]) == FULL
    placed = zone.place("gold")
    assert placed["evictions"] == 1
    (gone,) = placed["evicted"]
    assert (gone["tenant"], gone["type"], gone["priority"]) == ("lead", "D8", "spot")
    assert gone["machine"] == placed["vms"][0]["machine"]
    assert gone["vm"] not in {vm["vm"] for vm in zone.get("/v1/tenants/lead")["vms"]}
    decided = zone.get(f"/v1/decisions/{placed['decision']}")
    assert decided["evicted"] == placed["evicted"]


def test_the_same_key_is_answered_with_the_same_evictions(zone: Zone) -> None:
    zone.place("lead", FULL, priority="spot")
    wish = {"tenant": "gold", "vms": [{"type": "D8"}]}
    header = {**zone.headers["root"], "Idempotency-Key": "once"}
    first, again = (zone.http.post("/v1/tenants", json=wish, headers=header).json() for _ in range(2))
    assert again["replayed"]
    assert again["evicted"] == first["evicted"] != []


def test_nobody_gives_way_where_there_is_room(zone: Zone) -> None:
    zone.place("lead", FULL - 1, priority="spot")
    placed = zone.place("gold")
    assert (placed["evictions"], placed["evicted"]) == (0, [])


def test_an_explanation_names_who_would_have_to_go_and_who_had_to(zone: Zone) -> None:
    zone.place("lead", FULL, priority="spot")
    asked = zone.ask("POST", "/v1/explain", {"tenant": "gold", "vms": [{"type": "D8"}]}).json()
    assert asked["evictions"] == len(asked["victims"]) == 1
    assert f"{asked['victims'][0]} gives way to it" in asked["text"]
    placed = zone.place("gold")
    told = zone.get(f"/v1/decisions/{placed['decision']}/explanation")
    assert told["victims"] == [placed["evicted"][0]["vm"]]
    assert f"{told['victims'][0]} gives way to it" in zone.command("explain", placed["decision"])
    assert zone.get("/v1/tenants/lead")["vms"]


def test_a_token_bound_to_a_namespace_hears_how_many_of_others_gave_way_and_no_more(zone: Zone) -> None:
    zone.place("lead", FULL, priority="spot")
    asked = zone.ask("POST", "/v1/explain", {"tenant": "gold", "vms": [{"type": "D8"}]}, "gold").json()
    assert (asked["evictions"], asked["victims"]) == (1, [])
    assert "1 VM of others gives way to it" in asked["text"]
    placed = zone.place("gold", who="gold")
    assert (placed["evictions"], placed["evicted"]) == (1, [])
    assert "lead" not in json.dumps(zone.get(f"/v1/decisions/{placed['decision']}", "gold"))
    assert "lead" not in json.dumps(zone.get(f"/v1/decisions/{placed['decision']}/explanation", "gold"))
    assert zone.get("/v1/evictions", "gold")["items"] == []


def test_an_owner_who_follows_its_namespace_hears_of_an_eviction_but_not_of_whose_vms_came(zone: Zone) -> None:
    zone.place("lead", FULL, priority="spot")
    since = zone.revision()
    placed = zone.place("gold", who="gold")
    (change,) = zone.get("/v1/changes", "lead", since=since)["items"]
    assert change["eviction"] == {"priority": "regular", "grace": 30.0, "tenant": ""}
    assert (change["tenant"], change["key"], len(change["released"])) == ("lead", "", 1)
    assert "gold" not in json.dumps(change)
    with zone.http.stream("GET", f"/v1/changes/stream?since={since}", headers=zone.headers["lead"]) as stream:
        _, kind, streamed = next(events(stream))
    assert (kind, streamed) == ("change", change)

    seen = [each for each in zone.get("/v1/changes", since=since)["items"] if "eviction" in each]
    assert seen[0]["eviction"]["tenant"] == "gold"
    assert seen[0]["key"] == placed["decision"]
    printed = zone.command("changes", "--since", str(since))
    assert f"evicted {change['released'][0]['vm']} from" in printed
    assert "for regular VMs of gold, 30 s to finish" in printed
    mine = zone.command("changes", "--since", str(since), who="lead")
    assert "for regular VMs, 30 s to finish" in mine
    assert "gold" not in mine


def test_evictions_are_listed_latest_first_page_by_page_by_tenant_and_time(zone: Zone) -> None:
    zone.place("lead", 4, priority="spot")
    zone.place("zinc", 4, priority="spot")
    start = zone.get("/v1/changes", since=zone.revision() - 1)["items"][0]["at"]
    placed = [zone.place(f"gold{i}", 2) for i in range(4)]
    items = zone.get("/v1/evictions", since=start)["items"]
    assert len(items) == FULL
    assert [each["cause"] for each in items[::2]] == [each["decision"] for each in reversed(placed)]
    assert items == sorted(items, key=lambda each: -each["revision"])
    told = {gone["vm"]: gone["machine"] for each in placed for gone in each["evicted"]}
    assert {each["vm"]: each["machine"] for each in items} == told
    for each in items:
        assert (each["type"], each["priority"], each["cause_priority"]) == ("D8", "spot", "regular")
        assert each["cause_tenant"].startswith("gold")
        assert (each["grace"], each["requeue"]) == (30.0, False)
        assert 0 < each["ran"] < 60

    paged: list[Any] = []
    cursor: str | None = ""
    while cursor is not None:
        page = zone.get("/v1/evictions", since=start, limit=3, cursor=cursor)
        paged += page["items"]
        cursor = page["next"]
    assert paged == items
    mine = zone.get("/v1/evictions", tenant="zinc", since=start)["items"]
    assert mine == [each for each in items if each["tenant"] == "zinc"]
    hushed = zone.get("/v1/evictions", "lead", since=start)["items"]
    assert [each["vm"] for each in hushed] == [each["vm"] for each in items if each["tenant"] == "lead"]
    assert {(each["cause"], each["cause_tenant"]) for each in hushed} == {("", "")}
    assert zone.get("/v1/evictions", since=items[0]["at"] + 1)["items"] == []
    problem(zone.ask("GET", "/v1/evictions", cursor="nonsense"), "roost.invalid_request")
    problem(zone.ask("GET", "/v1/evictions", who="lead", tenant="gold0"), "roost.forbidden")


def test_evictions_are_summed_up_by_band_and_cause_with_how_long_vms_ran(zone: Zone) -> None:
    zone.place("lead", 4, priority="spot")
    zone.place("zinc", 4, priority="spot")
    start = zone.get("/v1/changes", since=zone.revision() - 1)["items"][0]["at"]
    zone.place("gold", 2)
    zone.place("more")
    found = zone.get("/v1/evictions/summary", since=start)
    assert (found["evictions"], found["requests"], found["whole"]) == (3, 2, True)
    (band,), (cause,) = found["bands"], found["causes"]
    assert (band["priority"], band["evictions"], band["ran"]["count"]) == ("spot", 3, 3)
    assert (cause["priority"], cause["requests"], cause["evictions"]) == ("regular", 2, 3)
    assert 0 < found["ran"]["p50"] <= found["ran"]["p90"] < 60
    assert start <= found["first"] <= found["last"]
    alone = zone.get("/v1/evictions/summary", "lead", since=start)
    mine = zone.get("/v1/evictions", "lead", since=start)["items"]
    assert alone["evictions"] == len(mine)


def test_commands_list_evictions_and_sum_them_up(zone: Zone) -> None:
    zone.place("lead", FULL, priority="spot")
    output = zone.command("tenant", "create", "gold", "--vm", "D8=2", "--dry-run")
    assert "would have to give way: lead/" in output
    output = zone.command("tenant", "create", "gold", "--vm", "D8=2", "--key", "two")
    assert "gave way: lead/" in output
    assert "(spot) on c1-" in output
    listed = zone.command("evictions", "--limit", "2")
    assert listed.count("regular of gold") == 2
    assert listed.count("two") == 2
    assert len(json.loads(zone.command("evictions", "--tenant", "lead", "--days", "1", "--all", "-o", "json"))) >= 2
    summed = zone.command("evictions", "summary", "--tenant", "lead")
    assert "caused by" in summed
    assert "nine tenths" in summed
    assert json.loads(zone.command("evictions", "summary", "-o", "json"))["evictions"] >= 2


def test_a_tenant_may_ask_that_its_vms_go_together(zone: Zone) -> None:
    alone = {"constraints": {"max_per_machine": 1}}
    zone.place("gold", 4, more=alone)
    pair = ("--vm", "D8=2", "--priority", "spot", "--max-per-machine", "1", "--evict-together")
    zone.command("tenant", "create", "pair", *pair)
    assert "evict_together" in zone.command("tenant", "show", "pair")
    assert zone.get("/v1/tenants/pair")["constraints"]["evict_together"]
    assert zone.place("more", 2)["evictions"] == 0
    last = zone.place("last")
    assert sorted(each["vm"] for each in last["evicted"]) == ["pair/0", "pair/1"]
    problem(zone.ask("GET", "/v1/tenants/pair"), "roost.not_found")


# ------------------------------------------------------------------------------------------------------ coming back


def test_a_vm_that_waits_is_seen_comes_back_or_is_cancelled(zone: Zone) -> None:
    zone.place("lead", FULL, priority="spot", requeue=True)
    placed = zone.place("gold", 2, who="gold")
    gone = sorted(each["vm"] for each in zone.get("/v1/evictions", limit=2)["items"])
    waiting = zone.get("/v1/waiting")["items"]
    assert [each["vm"] for each in waiting] == gone
    assert {(w["tenant"], w["type"], w["priority"], w["cause"]) for w in waiting} == {
        ("lead", "D8", "spot", placed["decision"])
    }
    assert {each["cause"] for each in zone.get("/v1/waiting", "lead")["items"]} == {""}
    assert zone.get("/v1/waiting", "gold")["items"] == []
    paged = zone.get("/v1/waiting", limit=1)
    assert [each["vm"] for each in paged["items"]] == gone[:1]
    assert zone.get("/v1/waiting", limit=1, cursor=paged["next"])["items"][0]["vm"] == gone[1]
    assert zone.command("evictions", "waiting", "--tenant", "lead").count("spot") == 2
    assert zone.get("/v1/tenants/lead")["waiting"] == gone
    assert {line["tenant"]: line["waiting"] for line in zone.get("/v1/tenants")["items"]} == {"lead": 2, "gold": 0}

    problem(zone.ask("DELETE", f"/v1/waiting/{gone[0]}", who="gold"), "roost.not_found")
    assert f"{gone[0]} waits no longer" in zone.command("evictions", "cancel", gone[0], "--key", "enough", who="lead")
    zone.command("evictions", "cancel", gone[0], "--key", "enough", who="lead")
    problem(zone.ask("DELETE", f"/v1/waiting/{gone[0]}"), "roost.not_found")
    zone.release("gold")
    eventually(lambda: not zone.get("/v1/waiting")["items"])
    running = {vm["vm"] for vm in zone.get("/v1/tenants/lead")["vms"]}
    assert gone[1] in running
    assert gone[0] not in running


def test_a_tenant_of_which_all_vms_wait_is_listed_and_shown(zone: Zone) -> None:
    zone.place("lead", FULL, priority="spot", requeue=True)
    zone.place("gold", FULL, who="gold")
    assert {line["tenant"]: (line["vms"], line["waiting"]) for line in zone.get("/v1/tenants")["items"]} == {
        "gold": (FULL, 0),
        "lead": (0, FULL),
    }
    pages = [zone.get("/v1/tenants", limit=1), zone.get("/v1/tenants", limit=1, cursor="gold")]
    assert [page["items"][0]["tenant"] for page in pages] == ["gold", "lead"]
    shown = zone.get("/v1/tenants/lead")
    assert (shown["vms"], len(shown["waiting"])) == ([], FULL)
    assert [line["tenant"] for line in zone.get("/v1/tenants", "gold")["items"]] == ["gold"]
    assert "wait for room" in zone.command("tenant", "show", "lead")


def test_metrics_count_evictions_and_what_waits(zone: Zone) -> None:
    def number(name: str) -> float:
        lines = zone.ask("GET", "/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    before = number('roost_evictions_total{cause="regular",priority="spot"}')
    ran = number('roost_evicted_after_seconds_count{priority="spot"}')
    zone.place("lead", FULL, priority="spot", requeue=True)
    zone.place("gold", 3)
    assert number('roost_evictions_total{cause="regular",priority="spot"}') == before + 3
    assert number('roost_evicted_after_seconds_count{priority="spot"}') == ran + 3
    eventually(lambda: number("roost_waiting_vms ") == 3)


def test_what_is_to_be_expected_is_told_for_as_long_as_vms_come(zone: Zone) -> None:
    since = zone.revision()
    zone.place("lead", 2, priority="spot")
    with zone.http.stream("GET", f"/v1/changes/stream?since={since}", headers=zone.headers["root"]) as stream:
        changes = (change for _, kind, change in events(stream) if kind == "change")
        told = next(each for each in changes if "set foresight zone" in each["registered"])
    assert told["by"] == "foresight"


def test_a_vm_that_waits_survives_that_the_service_is_killed_and_comes_back_once(tmp_path: Path) -> None:
    store = make_store(str(tmp_path / "tiny.db"), tmp_path)
    wish = {"tenant": "lead", "vms": [{"type": "D8", "count": FULL, "priority": "spot", "requeue": True}]}
    with serving(store, "--policy", "fast") as service:
        assert httpx.post(f"{service.url}/v1/tenants", json=wish).status_code == 201
        placed = httpx.post(f"{service.url}/v1/tenants", json={"tenant": "gold", "vms": [{"type": "D8"}]}).json()
        (gone,) = (each["vm"] for each in placed["evicted"])
        _kill(service)
    with serving(store, "--policy", "fast") as service:
        assert [each["vm"] for each in httpx.get(f"{service.url}/v1/waiting").json()["items"]] == [gone]
        assert httpx.delete(f"{service.url}/v1/tenants/gold").status_code == 200
        _kill(service)  # before or after the VM is placed again
    with serving(store, "--policy", "fast") as service:
        eventually(lambda: not httpx.get(f"{service.url}/v1/waiting").json()["items"])
        vms = httpx.get(f"{service.url}/v1/tenants/lead").json()["vms"]
        changes = httpx.get(f"{service.url}/v1/changes", params={"limit": 1_000}).json()["items"]
    assert sorted(vm["vm"] for vm in vms) == [f"lead/{i}" for i in range(FULL)]
    assert sum(gone in [vm["vm"] for vm in each.get("placed", ())] for each in changes) == 2
    audit(store)


def _kill(service: Serving) -> None:
    service.process.kill()
    service.process.wait()


def test_an_operator_says_what_comes_until_history_is_to_decide_again(zone: Zone) -> None:
    said = zone.command("foresight", "set", "D8=120", "D8=3.5@spot")
    assert said.startswith("expected now: D8=120, D8=3.5@spot in an hour\n")
    found = zone.get("/v1/foresight")
    assert found["source"] == "operator"
    (kind,) = found["items"]
    assert kind["type"] == "D8"
    assert list(kind["arrivals"].values()) == [120.0, 3.5]
    # It stays so however often it is worked out anew; only how much room there is ahead is news.
    zone.place("gold", FULL)
    eventually(lambda: zone.get("/v1/foresight")["items"][0]["ahead"] != kind["ahead"])
    later = zone.get("/v1/foresight")
    assert (later["source"], later["items"][0]["arrivals"]) == ("operator", kind["arrivals"])
    shown = zone.command("foresight", "show")
    assert "by what an operator says" in shown
    assert json.loads(zone.command("foresight", "show", "-o", "json"))["source"] == "operator"
    trial = zone.ask("DELETE", "/v1/foresight", dry_run=True)
    assert (trial.status_code, zone.get("/v1/foresight")["source"]) == (200, "operator")
    assert zone.command("foresight", "clear") == "cleared: history decides what is expected\n"
    eventually(lambda: zone.get("/v1/foresight")["source"] == "history")
    problem(zone.ask("DELETE", "/v1/foresight"), "roost.not_found")


@pytest.mark.parametrize(
    ("arrivals", "field", "says"),
    [
        ({}, "arrivals", "name a VM type"),
        ({"D99": {"spot": 1}}, "arrivals.D99", "D99"),
        ({"D8": {}}, "arrivals.D8", "has no priority"),
        ({"D8": {"gold": 1}}, "arrivals.D8.gold", "gold"),
        ({"D8": {"spot": -1}}, "arrivals.D8.spot", "from 0 to"),
    ],
)
def test_what_cannot_come_is_refused(zone: Zone, arrivals: Any, field: str, says: str) -> None:
    before = zone.get("/v1/foresight")["source"]
    found = problem(zone.ask("PUT", "/v1/foresight", {"arrivals": arrivals}), "roost.invalid_request")
    assert found.field == field
    assert says in found.detail
    assert zone.get("/v1/foresight")["source"] == before


@pytest.mark.parametrize("given", ["D8", "D8=many", "=3"])
def test_a_command_says_how_arrivals_are_written(zone: Zone, given: str) -> None:
    token = zone.headers["root"]["Authorization"].removeprefix("Bearer ")
    line = [ROOST, "foresight", "set", given, "--url", zone.service.url, "--token", token]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert given in done.stderr or "VM type" in done.stderr
    assert "Traceback" not in done.stderr
