"""Rules of one's own, as operators list them and callers name them: kept, compared, in the shadow, in force."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from roost.bench.postgres import ThrowawayPostgres
from roost.cli.main import main
from tests.e2e.serving import Serving, serving
from tests.e2e.talking import Json, audit, eventually, make_store, problem

RULE = '''from roost.engine.rule import preference


@preference()
def unused_first(machine, vm):
    """Prefer machines that nobody uses."""
    return 0.0 if machine.vms == 0 else 1.0
'''
CAREFUL = """name: careful
machines:
  validators: [is_ready, has_features, has_room, evicts_nobody]
  preferences: [{rule: unused_first, buckets: 50}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a rule, a policy that names it, and a store."""
    (tmp_path / "unused_first.py").write_text(RULE)
    (tmp_path / "careful.yaml").write_text(CAREFUL)
    make_store(str(tmp_path / "tiny.db"), tmp_path)
    return tmp_path


def post(service: Serving, path: str, **body: object) -> Json:
    """What a route that works answers."""
    answer = httpx.post(f"{service.url}{path}", json=body, timeout=60)
    assert answer.status_code in (200, 201), answer.text
    found: Json = answer.json()
    return found


def get(service: Serving, path: str) -> Json:
    """The same of one that only tells."""
    answer = httpx.get(f"{service.url}{path}", timeout=60)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def put(service: Serving, text: str = CAREFUL) -> httpx.Response:
    """Keep the policy."""
    return httpx.put(f"{service.url}/v1/policies/careful", json={"text": text}, timeout=60)


def decider(service: Serving, tenant: str) -> str:
    """Which policy decides for a tenant."""
    made = post(service, "/v1/tenants", tenant=tenant, vms=[{"type": "D2"}])
    return str(get(service, f"/v1/decisions/{made['decision']}")["policy"]).partition(" ")[0]


def test_a_policy_with_a_rule_of_ones_own_is_kept_compared_shadowed_activated_and_explained(folder: Path) -> None:
    with serving(str(folder / "tiny.db"), "--rules", str(folder / "unused_first.py")) as service:
        assert put(service).status_code == 200
        post(service, "/v1/shadow", policy="careful")
        assert {decider(service, f"s{i}") for i in range(6)} == {"default"}
        seen = get(service, "/v1/shadow/differences")
        assert (seen["decisions"], seen["problem"]) == (6, "")
        assert "unused_first" in {each["rule"] for each in seen["counts"]}, "the other one fills machines"
        post(service, "/v1/policies/activate", policy="careful")
        made = post(service, "/v1/tenants", tenant="explained", vms=[{"type": "D2"}])
        explained = get(service, f"/v1/decisions/{made['decision']}/explanation")
        assert "unused_first" in explained["text"]
        post(service, "/v1/policies/activate", policy="default", against="careful", share=0.5)
        assert {decider(service, f"a{i}") for i in range(12)} == {"default", "careful"}
        post(service, "/v1/policies/activate", policy="careful")
        assert get(service, "/readyz")["problem"] == ""
    _starts_without_the_rule(folder)


def _starts_without_the_rule(folder: Path) -> None:
    """It serves, by the policy of the settings, and whoever looks is told."""
    with serving(str(folder / "tiny.db"), "--policy", "fast") as service:
        words = "careful cannot decide here, fast does: careful.yaml:4: .*no rule here is called 'unused_first'"
        told = (get(service, "/readyz")["problem"], get(service, "/v1/policies/active")["problem"])
        for each in told:
            assert re.match(words, each), each
        assert decider(service, "without") == "fast"
        eventually(lambda: "roost_policy_unusable 1.0" in httpx.get(f"{service.url}/metrics").text)
        assert "agent.rules" in service.stderr
        kept = {each["name"]: each["problem"] for each in get(service, "/v1/policies")["items"]}
        assert "no rule here is called 'unused_first'" in kept["careful"]
        assert get(service, "/v1/policies/careful")["text"] == CAREFUL
        problem(put(service), "roost.invalid_request")
        assert "Traceback" not in service.stderr


@pytest.mark.deep
def test_a_service_whose_rule_was_changed_decides_by_it_and_says_so_until_the_policy_is_activated_again(
    folder: Path,
) -> None:
    listed = (str(folder / "tiny.db"), "--rules", str(folder / "unused_first.py"))
    with serving(*listed) as service:
        put(service)
        post(service, "/v1/policies/activate", policy="careful")
    (folder / "unused_first.py").write_text(RULE.replace("else 1.0", "else 0.9"))
    with serving(*listed) as service:
        assert "not what they were when it was activated" in get(service, "/readyz")["problem"]
        assert decider(service, "changed") == "careful"
        post(service, "/v1/policies/activate", policy="careful")
        assert get(service, "/readyz")["problem"] == ""


@pytest.mark.parametrize("rule", ["unused_first.py:unused_first", "os:system", "tests.property.own_rules:own"])
def test_a_caller_names_a_rule_never_a_file_or_module(shared: Serving, rule: str) -> None:
    said = problem(put(shared, CAREFUL.replace("unused_first", f'"{rule}"')), "roost.invalid_request").detail
    assert "says where a rule is, which only a file of the service may" in said
    assert "unused_first" in said


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A service that lists a rule."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "unused_first.py").write_text(RULE)
    with serving(make_store(str(folder / "tiny.db"), folder), "--rules", str(folder / "unused_first.py")) as service:
        yield service


def test_a_name_that_nobody_lists_is_refused_with_those_that_are_near(shared: Serving) -> None:
    said = problem(put(shared, CAREFUL.replace("unused_first", "unused_frist")), "roost.invalid_request").detail
    assert "no rule here is called 'unused_frist'; did you mean unused_first" in said


def test_a_policy_is_not_compared_with_itself(shared: Serving) -> None:
    wish = {"policy": "default", "against": "default", "share": 0.5}
    found = problem(httpx.post(f"{shared.url}/v1/policies/activate", json=wish), "roost.invalid_request")
    assert found.field == "against"
    assert "default would be compared with itself" in found.detail
    assert get(shared, "/v1/policies/active")["against"] == ""


@pytest.fixture
def roost(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A command, run in the folder; returns what it answers."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["roost", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert not ended.value.code, said.err
        return said.out

    return run


def test_commands_take_rules_of_ones_own_by_a_flag_or_by_the_settings(
    roost: Callable[..., str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = ("--rules", "unused_first.py")
    assert "is fine: careful" in roost("policy", "check", "careful.yaml", "--zone", "tiny.yaml", *rules)
    assert "Prefer machines that nobody uses." in roost("policy", "rules", *rules)
    lines = [f"{60 * i},t{i},D2,600" for i in range(6)]
    (folder / "week.csv").write_text("\n".join(["time_s,tenant,vm_type,lifetime_s", *lines]) + "\n")
    stage = ("--workload", "week.csv", "--zone", "tiny.yaml", "--processes", "1", "--seeds", "1")
    assert "unused_first" in roost("policy", "diff", "default", "careful.yaml", *stage, *rules)
    lost = ("--rack", "c1-r00", "--store", "tiny.db", "--policy", "careful.yaml")
    assert "c1-r00" in roost("whatif", "lose", *lost, *rules)
    monkeypatch.setenv("ROOST_AGENT_RULES", "unused_first.py")
    assert "unused_first" in roost("policy", "show", "careful.yaml")
    assert "c1-r00" in roost("whatif", "lose", *lost)
    assert "Density" in roost("sim", "run", *stage, "--policy", "careful.yaml", "--to", "results")
    monkeypatch.delenv("ROOST_AGENT_RULES")
    (folder / "results" / "careful-seed1" / "run.json").unlink()
    assert "Density" in roost("sim", "resume", "results", "--processes", "1"), "the experiment lists them itself"


@pytest.mark.deep
def test_a_service_without_the_rule_goes_on_deciding_as_before_and_says_so(folder: Path) -> None:
    with ThrowawayPostgres() as postgres:
        store = make_store(postgres.create_database("shared"), folder)
        has = ("--rules", str(folder / "unused_first.py"), "--workers", "2")
        with serving(store, *has) as able, serving(store, "--policy", "fast") as unable:
            assert put(able).status_code == 200
            post(able, "/v1/policies/activate", policy="dense")
            eventually(lambda: get(unable, "/v1/policies/active")["policy"] == "dense", 60)
            post(able, "/v1/policies/activate", policy="careful")
            eventually(lambda: "careful cannot decide here, dense does" in get(unable, "/readyz")["problem"], 60)
            eventually(lambda: {decider(able, f"a{os.urandom(4).hex()}") for _ in range(4)} == {"careful"}, 60)
            assert decider(unable, "u") == "dense"
            post(able, "/v1/shadow", policy="careful")
            eventually(lambda: "no rule here" in get(unable, "/v1/shadow/differences")["problem"], 60)
            post(able, "/v1/policies/activate", policy="default")
            eventually(lambda: get(unable, "/readyz")["problem"] == "", 60)
            assert decider(unable, "v") == "default"
            assert "Traceback" not in able.stderr + unable.stderr
        audit(store)
