"""Who may do what over HTTP: every route for every kind of caller, and what a token bound to a namespace cannot see."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from roost.api.tokens import Principal
from roost.model.stored import TokenScope
from roost.wire.basics import LONGEST_KEY, LONGEST_NAMESPACE
from tests.e2e.serving import Serving, serving
from tests.e2e.talking import audit, events, eventually, make_store, problem

WISH = {"vms": [{"type": "D2"}]}
MINE = {"tenant": "team-a.new", **WISH}
# Every route: how to use it without consequences, who may, and whether a token bound to team-a may, too.
TABLE: dict[tuple[str, str], tuple[str, Any, TokenScope | None, bool]] = {
    ("GET", "/healthz"): ("/healthz", None, None, True),
    ("GET", "/readyz"): ("/readyz", None, None, True),
    ("GET", "/metrics"): ("/metrics", None, "read", False),
    ("GET", "/v1/tenants"): ("/v1/tenants", None, "read", True),
    ("POST", "/v1/tenants"): ("/v1/tenants?dry_run=true", MINE, "allocate", True),
    ("GET", "/v1/tenants/{tenant:str}"): ("/v1/tenants/team-a", None, "read", True),
    ("DELETE", "/v1/tenants/{tenant:str}"): ("/v1/tenants/team-a?dry_run=true", None, "allocate", True),
    ("POST", "/v1/tenants/{tenant:str}/vms"): ("/v1/tenants/team-a/vms?dry_run=true", WISH, "allocate", True),
    ("POST", "/v1/tenants/{tenant:str}/release"): ("/v1/tenants/team-a/release", {"vms": ["x"]}, "allocate", True),
    ("POST", "/v1/batch"): ("/v1/batch?dry_run=true", {"requests": [MINE]}, "allocate", True),
    ("GET", "/v1/vms"): ("/v1/vms", None, "read", True),
    ("GET", "/v1/vms/{vm:path}"): ("/v1/vms/team-a/0", None, "read", True),
    ("DELETE", "/v1/vms/{vm:path}"): ("/v1/vms/team-a/0?dry_run=true", None, "allocate", True),
    ("POST", "/v1/vms/{vm:path}"): ("/v1/vms/team-a/0", {"machine": "none"}, "operate", False),
    ("GET", "/v1/machines"): ("/v1/machines", None, "read", False),
    ("POST", "/v1/machines"): ("/v1/machines", {"machines": [{
        "name": "m", "datacenter": "d", "cluster": "c", "rack": "r", "generation": "none"}]}, "operate", False),
    ("GET", "/v1/machines/{machine:str}"): ("/v1/machines/c1-r00-m00", None, "read", False),
    ("PATCH", "/v1/machines/{machine:str}"): ("/v1/machines/none", {"state": "down"}, "operate", False),
    ("DELETE", "/v1/machines/{machine:str}"): ("/v1/machines/none", None, "operate", False),
    ("GET", "/v1/clusters"): ("/v1/clusters", None, "read", False),
    ("GET", "/v1/clusters/{cluster:str}"): ("/v1/clusters/c1", None, "read", False),
    ("PATCH", "/v1/clusters/{cluster:str}"): ("/v1/clusters/none", {"quarantined": True}, "operate", False),
    ("DELETE", "/v1/clusters/{cluster:str}"): ("/v1/clusters/none", None, "operate", False),
    ("GET", "/v1/thresholds"): ("/v1/thresholds", None, "read", False),
    ("PUT", "/v1/thresholds/{cluster:str}"): ("/v1/thresholds/none", {"new": 1}, "operate", False),
    ("DELETE", "/v1/thresholds/{cluster:str}"): ("/v1/thresholds/none", None, "operate", False),
    ("POST", "/v1/thresholds/compute"): ("/v1/thresholds/compute", {}, "read", False),
    ("GET", "/v1/foresight"): ("/v1/foresight", None, "read", False),
    ("PUT", "/v1/foresight"): ("/v1/foresight", {"arrivals": {}}, "operate", False),
    ("DELETE", "/v1/foresight"): ("/v1/foresight", None, "operate", False),
    ("GET", "/v1/zone"): ("/v1/zone", None, "read", False),
    ("GET", "/v1/snapshot"): ("/v1/snapshot", None, "read", False),
    ("GET", "/v1/capacity"): ("/v1/capacity", None, "read", True),
    ("POST", "/v1/explain"): ("/v1/explain", MINE, "read", True),
    ("POST", "/v1/why-not"): ("/v1/why-not", {**MINE, "machine": "c1-r00-m00"}, "read", True),
    ("GET", "/v1/decisions"): ("/v1/decisions", None, "read", True),
    ("GET", "/v1/decisions/{key:str}"): ("/v1/decisions/none", None, "read", True),
    ("GET", "/v1/decisions/{key:str}/explanation"): ("/v1/decisions/none/explanation", None, "read", True),
    ("GET", "/v1/decisions/{key:str}/why-not"): ("/v1/decisions/none/why-not?machine=m", None, "read", True),
    ("GET", "/v1/evictions"): ("/v1/evictions", None, "read", True),
    ("GET", "/v1/evictions/summary"): ("/v1/evictions/summary", None, "read", True),
    ("GET", "/v1/waiting"): ("/v1/waiting", None, "read", True),
    ("DELETE", "/v1/waiting/{vm:path}"): ("/v1/waiting/team-a/none", None, "allocate", True),
    ("GET", "/v1/healing"): ("/v1/healing", None, "read", True),
    ("GET", "/v1/healing/history"): ("/v1/healing/history", None, "read", True),
    ("GET", "/v1/healing/summary"): ("/v1/healing/summary", None, "read", False),
    ("POST", "/v1/healing"): ("/v1/healing", {"machines": ["none"]}, "operate", False),
    ("POST", "/v1/heartbeats"): ("/v1/heartbeats", {"machines": ["none"]}, "operate", False),
    ("GET", "/v1/maintenance"): ("/v1/maintenance", None, "read", False),
    ("PUT", "/v1/maintenance"): ("/v1/maintenance", {"walk": "w", "owner": "me"}, "operate", False),
    ("DELETE", "/v1/maintenance"): ("/v1/maintenance?walk=none", None, "operate", False),
    ("POST", "/v1/evictions"): ("/v1/evictions", {"vms": ["none"]}, "operate", False),
    ("PATCH", "/v1/racks/{rack:str}"): ("/v1/racks/none", {"state": "down"}, "operate", False),
    ("GET", "/v1/policies"): ("/v1/policies", None, "read", False),
    ("GET", "/v1/policies/active"): ("/v1/policies/active", None, "read", False),
    ("GET", "/v1/policies/results"): ("/v1/policies/results", None, "read", False),
    ("GET", "/v1/shadow/differences"): ("/v1/shadow/differences", None, "read", False),
    ("POST", "/v1/shadow"): ("/v1/shadow", {"policy": "none"}, "operate", False),
    ("DELETE", "/v1/shadow"): ("/v1/shadow?dry_run=true", None, "operate", False),
    ("GET", "/v1/policies/{name:str}"): ("/v1/policies/default", None, "read", False),
    ("POST", "/v1/policies/validate"): ("/v1/policies/validate", {"text": "name: x"}, "operate", False),
    ("PUT", "/v1/policies/{name:str}"): ("/v1/policies/x", {"text": "name: x"}, "operate", False),
    ("DELETE", "/v1/policies/{name:str}"): ("/v1/policies/none", None, "operate", False),
    ("POST", "/v1/policies/activate"): ("/v1/policies/activate", {"policy": "none"}, "operate", False),
    ("GET", "/v1/changes"): ("/v1/changes", None, "read", True),
    ("GET", "/v1/changes/stream"): ("/v1/changes/stream", None, "read", True),
    ("GET", "/v1/tokens"): ("/v1/tokens", None, "admin", False),
    ("POST", "/v1/tokens"): ("/v1/tokens", {"name": "root", "scopes": ["read"]}, "admin", False),
    ("DELETE", "/v1/tokens/{name:str}"): ("/v1/tokens/none", None, "admin", False),
}  # fmt: skip
ALLOWS: dict[str, set[TokenScope]] = {
    "read": {"read"},
    "allocate": {"read", "allocate"},
    "operate": {"read", "operate"},
    "admin": {"read", "allocate", "operate", "admin"},
    "bound": {"read", "allocate"},
}
NOBODY = ("none", "expired", "revoked", "made up", "not bearer", "wrong secret")
HUSH = "hush"  # in every name of those that team-a must not hear of


@dataclass
class Guarded:
    """A service with tokens, and a header for each kind of caller."""

    service: Serving
    store: str
    tokens: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=self.service.url, timeout=30)

    def header(self, who: str) -> dict[str, str]:
        """How somebody identifies."""
        return {"Authorization": self.tokens[who]} if who in self.tokens else {}

    def ask(self, who: str, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """Ask as somebody; of a stream only the beginning is read."""
        request = self.http.build_request(method, path, json=body, headers={**self.header(who), **headers})
        response = self.http.send(request, stream=True)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.read()
        response.close()
        return response

    def make(self, name: str, *scopes: TokenScope, who: str = "admin", **more: Any) -> str:
        """A token."""
        made = self.ask(who, "POST", "/v1/tokens", {"name": name, "scopes": scopes, **more})
        assert made.status_code == 201, made.text
        token: str = made.json()["token"]
        return token


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A service that writes all it can into its log."""
    folder = tmp_path_factory.mktemp("tokens")
    store = make_store(str(folder / "tiny.db"), folder)
    with serving(store, "--set", "log.requests=all", "--set", "log.level=debug") as service:
        found = Guarded(service, store)
        found.tokens["admin"] = f"Bearer {found.make('root', 'admin', who='nobody yet')}"
        for scope in ("read", "allocate", "operate"):
            found.tokens[scope] = f"Bearer {found.make(scope, scope)}"
        found.tokens["bound"] = f"bearer {found.make('bound', 'read', 'allocate', namespace='team-a')}"
        found.tokens["expired"] = f"Bearer {found.make('old', 'admin', days=1e-9)}"
        found.tokens["revoked"] = f"Bearer {found.make('bad', 'admin')}"
        assert found.ask("admin", "DELETE", "/v1/tokens/bad").status_code == 204
        found.tokens["made up"] = "Bearer roost_root_" + "x" * 43
        found.tokens["not bearer"] = found.tokens["admin"].replace("Bearer", "Basic")
        found.tokens["wrong secret"] = found.tokens["admin"][:-1] + ("A" if found.tokens["admin"][-1] != "A" else "B")
        found.ask("admin", "POST", "/v1/tenants", {"tenant": "team-a", **WISH})
        yield found
        found.http.close()
    audit(store)


# -------------------------------------------------------------------------------------------------------------- scopes


@pytest.mark.filterwarnings("ignore:Deprecated:DeprecationWarning")  # how the framework has parameters declared
def test_every_route_is_in_the_table() -> None:
    from roost.api.app import ROUTES

    served = {(method, path) for route in ROUTES for method in route.http_methods for path in route.paths}
    assert served == set(TABLE)


@pytest.mark.parametrize("who", [*NOBODY, *ALLOWS])
def test_every_route_lets_in_those_with_its_scope_and_nobody_else(guarded: Guarded, who: str) -> None:
    for (method, route), (path, body, scope, for_bound) in TABLE.items():
        answer = guarded.ask(who, method, path, body)
        allowed = scope is None or (scope in ALLOWS.get(who, ()) and (who != "bound" or for_bound))
        said = (who, method, route, answer.status_code)
        if allowed:
            assert answer.status_code not in (401, 403), said
            assert answer.status_code < 500, said
        elif who in NOBODY:
            problem(answer, "roost.unauthorised")
            assert answer.headers["www-authenticate"] == "Bearer"
        else:
            problem(answer, "roost.forbidden")


def test_the_first_token_must_be_able_to_make_others_and_a_bound_one_cannot_operate(guarded: Guarded) -> None:
    for more in ({"namespace": "team-a", "scopes": ["operate"]}, {"namespace": "team-a", "scopes": ["read", "admin"]}):
        problem(guarded.ask("admin", "POST", "/v1/tokens", {"name": "x", **more}), "roost.invalid_request")
    for name in ("", "a_b", "a\n", "x" * 61):
        answer = guarded.ask("admin", "POST", "/v1/tokens", {"name": name, "scopes": ["read"]})
        problem(answer, "roost.invalid_request")
    listed = guarded.ask("admin", "GET", "/v1/tokens").json()["items"]
    assert {token["name"] for token in listed} == {"root", "read", "allocate", "operate", "bound", "old"}
    assert all("digest" not in token and "token" not in token for token in listed)


def test_a_token_can_be_revoked_again_under_the_same_key(guarded: Guarded) -> None:
    guarded.make("brief", "read")
    for _ in range(2):
        answer = guarded.ask("admin", "DELETE", "/v1/tokens/brief", **{"Idempotency-Key": "revoke-brief"})
        assert answer.status_code == 204
    problem(guarded.ask("admin", "DELETE", "/v1/tokens/brief"), "roost.not_found")


def test_a_stream_ends_when_its_token_is_revoked(guarded: Guarded) -> None:
    header = {"Authorization": f"Bearer {guarded.make('listener', 'read')}"}
    with guarded.http.stream("GET", "/v1/changes/stream?since=0", headers=header) as stream:
        following = events(stream)
        next(following)
        threading.Timer(0.1, guarded.ask, ["admin", "DELETE", "/v1/tokens/listener"]).start()
        until = time.monotonic() + 5
        assert all(time.monotonic() < until for _ in following)


def test_no_secret_is_in_the_log_or_in_the_store(guarded: Guarded) -> None:
    for path in ("/v1/decisions?limit=1000", "/v1/changes?limit=1000", "/v1/tokens"):
        text = guarded.ask("admin", "GET", path).text
        assert not any(token.split("_", 2)[2] in text for token in guarded.tokens.values())
    eventually(lambda: '"/v1/tokens"' in guarded.service.stderr)
    kept = b"".join(file.read_bytes() for file in Path(guarded.store).parent.glob("tiny.db*"))
    said = guarded.service.stderr.encode()
    assert b"root" in kept
    for token in guarded.tokens.values():
        secret = token.split("_", 2)[2].encode()
        assert len(secret) >= 43
        assert secret not in kept
        assert secret not in said


def test_a_whole_token_where_something_else_belongs_is_refused_and_written_down_nowhere(guarded: Guarded) -> None:
    whole = guarded.make("pasted", "read")
    secret = whole.split("_", 2)[2]
    asked = [
        ("DELETE", f"/v1/tokens/{whole}", None, "roost.invalid_request"),
        ("DELETE", f"/v1/tokens/%72oost{whole.removeprefix('roost')}", None, "roost.invalid_request"),
        ("DELETE", f"/v1/token/{whole}", None, "roost.not_found"),
        ("GET", f"/v1/tenants/{whole}", None, "roost.not_found"),
        ("GET", f"/v1/tenants?limit={whole}", None, "roost.invalid_request"),
        ("GET", f"/v1/capacity?type={whole}", None, "roost.not_found"),
        ("POST", "/v1/tenants", {"tenant": "a", "vms": [{"type": whole}]}, "roost.invalid_request"),
        ("POST", "/v1/tenants", {"tenant": "a", whole: 1}, "roost.invalid_request"),
        ("POST", "/v1/tenants/none/vms", {"vms": [{"type": "D2", "cluster": whole}]}, "roost.not_found"),
    ]
    for method, path, body, code in asked:
        answer = guarded.ask("admin", method, path, body, **{"X-Request-Id": whole})
        assert (answer.status_code, answer.json()["code"]) == (answer.json()["status"], code), answer.text
        assert secret not in f"{answer.headers}{answer.text}"
    assert "give its name alone: pasted" in guarded.ask("admin", "DELETE", f"/v1/tokens/{whole}").text
    assert secret not in guarded.ask("admin", "GET", "/metrics").text
    assert guarded.ask("admin", "DELETE", "/v1/tokens/pasted").status_code == 204
    eventually(lambda: '"/v1/tokens/pasted"' in guarded.service.stderr)
    assert secret not in guarded.service.stderr
    assert "roost_pasted_***" in guarded.service.stderr


# ---------------------------------------------------------------------------------------------------------- namespaces


@pytest.fixture(scope="module")
def crowded(guarded: Guarded) -> Guarded:
    """The same service, where others with similar names, VMs and keys have taken nearly all the room."""

    def make(tenant: str, *vms: dict[str, Any], key: str) -> None:
        body = {"tenant": tenant, "vms": vms}
        made = guarded.ask("admin", "POST", "/v1/tenants", body, **{"Idempotency-Key": key})
        assert made.status_code == 201, made.text

    make(f"team-a{HUSH}", {"type": "D10", "name": HUSH}, key="k1")
    make(f"team-a-{HUSH}", {"type": "D10"}, key="team-a:planted")
    make(HUSH, {"type": "D10", "count": 2}, key=f"team-a:{HUSH}")
    for name in ("team-a.one", "team-a.two"):
        made = guarded.ask("bound", "POST", "/v1/tenants", {"tenant": name, **WISH})
        assert made.status_code == 201, made.text
    guarded.ask("admin", "PATCH", "/v1/machines/c2-r00-m00", {"health": 99})
    return guarded


def pages(crowded: Guarded, path: str, size: int, who: str = "bound") -> Iterator[httpx.Response]:
    """All pages of a list, as the bound one sees them."""
    cursor = ""
    while True:
        page = crowded.ask(who, "GET", f"{path}{'&' if '?' in path else '?'}limit={size}&cursor={cursor}")
        assert page.status_code == 200, page.text
        yield page
        if (cursor := page.json()["next"]) is None:
            return


@pytest.mark.parametrize("size", [1, 2, 100])
def test_lists_show_a_bound_token_its_own_and_nothing_else(crowded: Guarded, size: int) -> None:
    def names(path: str, field_: str) -> list[str]:
        found = list(pages(crowded, path, size))
        assert not any(HUSH in page.text for page in found)
        assert all(len(page.json()["items"]) <= size for page in found)
        return [each[field_] for page in found for each in page.json()["items"]]

    assert names("/v1/tenants", "tenant") == ["team-a", "team-a.one", "team-a.two"]
    assert names("/v1/tenants?prefix=team", "tenant") == ["team-a", "team-a.one", "team-a.two"]
    assert names("/v1/tenants?prefix=team-a.o", "tenant") == ["team-a.one"]
    for nothing in ("team-ah", "team-a-", "h", "team-a.x"):
        assert names(f"/v1/tenants?prefix={nothing}", "tenant") == []
    assert names("/v1/vms", "tenant") == ["team-a.one", "team-a.two", "team-a"]
    assert names("/v1/vms?tenant=team-a.one", "vm") == ["team-a.one/0"]
    on = [
        name
        for machine in crowded.ask("admin", "GET", "/v1/machines").json()["items"]
        for name in names(f"/v1/vms?machine={machine['machine']}", "vm")
    ]
    assert sorted(on) == ["team-a.one/0", "team-a.two/0", "team-a/0"]
    decided = names("/v1/decisions", "key")
    assert decided
    assert all(key.startswith("team-a:") and "planted" not in key for key in decided)


def test_changes_show_a_bound_token_its_own_and_nothing_else(crowded: Guarded) -> None:
    head = crowded.ask("admin", "GET", "/v1/zone").json()["revision"]
    revision, tenants = 0, set()
    while revision < head:
        page = crowded.ask("bound", "GET", f"/v1/changes?limit=1000&since={revision}")
        assert HUSH not in page.text
        assert page.json()["revision"] > revision
        revision = page.json()["revision"]
        tenants |= {each["tenant"] for each in page.json()["items"]}
    assert tenants == {"team-a", "team-a.one", "team-a.two"}
    everything = ""
    with crowded.http.stream("GET", "/v1/changes/stream?since=0", headers=crowded.header("bound")) as stream:
        for number, event, data in events(stream):
            everything += f"{event} {data}"
            if int(number) > head:
                break
            if "team-a.two" in str(data):  # then comes something that is nobody's, of which only the number is told
                threading.Timer(0.1, crowded.ask, ["admin", "PATCH", "/v1/machines/c2-r00-m00", {"health": 98}]).start()
    assert HUSH not in everything
    assert "team-a.two" in everything
    assert "c2-r00-m00" not in everything


@pytest.mark.parametrize("there", [f"team-a{HUSH}", f"team-a-{HUSH}", HUSH, "TEAM-A"])
def test_what_belongs_to_others_is_refused_as_if_it_were_not_there(crowded: Guarded, there: str) -> None:
    for method, path, body in (
        ("GET", "/v1/tenants/{}", None),
        ("DELETE", "/v1/tenants/{}", None),
        ("POST", "/v1/tenants/{}/vms", WISH),
        ("POST", "/v1/tenants/{}/release", {"vms": ["{}/0"]}),
        ("GET", "/v1/vms?tenant={}", None),
        ("GET", "/v1/vms/{}/0", None),
        ("DELETE", "/v1/vms/{}/0", None),
        ("POST", "/v1/tenants", {"tenant": "{}", **WISH}),
        ("POST", "/v1/explain", {"tenant": "{}", **WISH}),
        ("POST", "/v1/why-not", {"tenant": "{}", "machine": "c1-r00-m00", **WISH}),
        ("POST", "/v1/batch", {"requests": [{"tenant": "{}", **WISH}]}),
        ("POST", "/v1/batch", {"requests": [{"tenant": "{}", "scale_out": True, **WISH}]}),
    ):
        answers = []
        for name in (there, "nobody"):
            sent = json.loads(json.dumps(body).replace("{}", name))
            answer = crowded.ask("bound", method, path.replace("{}", name), sent)
            assert answer.status_code in (200, 403, 404)
            if answer.status_code == 200:  # a list, or results one by one
                assert not answer.json().get("items")
                assert not answer.json().get("done")
            answers.append((answer.status_code, re.sub(r'"request_id":"[^"]*"', "", answer.text).replace(name, "NAME")))
        assert answers[0] == answers[1], (method, path)
    for tenant in (f"team-a{HUSH}", f"team-a-{HUSH}", HUSH):
        assert crowded.ask("admin", "GET", f"/v1/tenants/{tenant}").status_code == 200


def test_no_answer_to_a_bound_token_names_others(crowded: Guarded) -> None:
    full = {"tenant": "team-a.big", "vms": [{"type": "D8"}]}
    asked = [
        ("POST", "/v1/tenants", full),
        ("POST", "/v1/tenants?dry_run=true", full),
        ("POST", "/v1/tenants", full | {"constraints": {"max_per_machine": 1}}),
        ("POST", "/v1/batch", {"requests": [full, full | {"scale_out": True}]}),
        ("POST", "/v1/explain", full),
        ("POST", "/v1/why-not", full | {"machine": "c1-r00-m00"}),
        ("POST", "/v1/tenants/team-a.hus/vms", WISH),
        ("POST", "/v1/tenants/team-a.hus/vms?dry_run=true", WISH),
        ("POST", "/v1/tenants/team-a.hus/release", {"vms": ["team-a.hus/0"]}),
        ("POST", "/v1/tenants/team-a/release", {"vms": ["team-a/hus"]}),
        ("DELETE", "/v1/tenants/team-a.hus", None),
        ("DELETE", "/v1/tenants/team-a.hus?dry_run=true", None),
        ("DELETE", "/v1/vms/team-a.hus/0", None),
        ("POST", "/v1/tenants", {"tenant": "team-a.odd", "vms": [{"type": "hus"}]}),
        ("GET", "/v1/capacity", None),
        ("GET", "/v1/decisions/planted", None),
        ("GET", "/v1/decisions/team-a:planted", None),
        ("GET", "/v1/decisions/team-a:planted/explanation", None),
        ("GET", "/v1/decisions/team-a:planted/why-not?machine=c1-r00-m00", None),
        ("GET", "/v1/decisions/k1", None),
        ("GET", "/v1/metrics", None),
        ("GET", "/openapi.json", None),
        ("GET", "/readyz", None),
    ]
    for method, path, body in asked:
        answer = crowded.ask("bound", method, path, body)
        assert HUSH not in f"{answer.headers}{answer.text}", (method, path, answer.text)
        if "planted" in path or "k1" in path:
            problem(answer, "roost.not_found")
        decision = answer.json().get("decision")
        if answer.status_code == 409 and decision:
            past = crowded.ask("bound", "GET", f"/v1/decisions/{decision}/explanation")
            assert past.status_code == 200
            assert HUSH not in past.text
    told = crowded.ask("admin", "POST", "/v1/explain", full)
    assert HUSH in told.text  # to those who may know, the very same answer names whom to ask


def test_a_key_that_somebody_else_used_is_free_in_a_namespace(crowded: Guarded) -> None:
    for key in ("k1", "planted"):
        wish = {"tenant": f"team-a.{key}", **WISH}
        made = crowded.ask("bound", "POST", "/v1/tenants", wish, **{"Idempotency-Key": key})
        if key == "k1":
            assert (made.status_code, made.json()["decision"]) == (201, "team-a:k1")
            assert crowded.ask("bound", "GET", "/v1/decisions/k1").json()["what"]["request"]["tenant"] == "team-a.k1"
        else:
            assert HUSH not in made.text  # whoever is bound to nothing took it on purpose
    assert crowded.ask("admin", "GET", "/v1/decisions/k1").json()["what"]["request"]["tenant"] == f"team-a{HUSH}"


def test_limits_are_on_what_a_client_sends_not_on_what_it_becomes_in_its_namespace(guarded: Guarded) -> None:
    namespace = "n" * LONGEST_NAMESPACE
    guarded.tokens["long"] = f"Bearer {guarded.make('long', 'allocate', namespace=namespace)}"
    tenant = f"{namespace}.{'t' * (99 - len(namespace))}"
    wish = {"vms": [{"type": "S4", "name": "v" * 60}]}
    for i, fill in enumerate(("k", "\\", "-")):  # a backslash takes two characters of a cursor
        key = {"Idempotency-Key": f"{i}".ljust(LONGEST_KEY, fill)}
        made = guarded.ask("long", "POST", "/v1/tenants", {"tenant": tenant, **wish}, **key)
        assert made.status_code == 201, made.text
        again = guarded.ask("long", "POST", "/v1/tenants", {"tenant": tenant, **wish}, **key)
        assert again.json()["replayed"]
        vm = made.json()["vms"][0]["vm"]
        assert guarded.ask("long", "GET", f"/v1/vms/{vm}").status_code == 200
        released = guarded.ask("long", "POST", f"/v1/tenants/{tenant}/release", {"vms": [vm]})
        assert released.status_code == 200, released.text
    batch = {"requests": [{"tenant": tenant, "key": "b" * LONGEST_KEY, **wish}]}
    assert guarded.ask("long", "POST", "/v1/batch", batch).json()["done"] == 1
    seen = {each["key"] for page in pages(guarded, "/v1/decisions", 1, "long") for each in page.json()["items"]}
    assert {f"{namespace}:{'2'.ljust(LONGEST_KEY, '-')}", f"{namespace}:{'b' * LONGEST_KEY}"} <= seen
    too_long = guarded.ask("long", "POST", "/v1/tenants", {"tenant": tenant, **wish}, **{"Idempotency-Key": "k" * 151})
    problem(too_long, "roost.invalid_request")
    assert guarded.ask("long", "DELETE", f"/v1/tenants/{tenant}").status_code == 200


def test_a_namespace_ends_at_a_dot() -> None:
    bound = Principal("bound", frozenset({"read"}), "team-a")
    assert [
        name for name in ("team-a", "team-a.x", "team-ab", "team-a-x", "team", "", "x.team-a") if bound.owns(name)
    ] == [
        "team-a",
        "team-a.x",
    ]
    assert bound.key("k") == "team-a:k"
