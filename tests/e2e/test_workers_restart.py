"""Real workers that are killed while their files are broken: those left serve, and later ones are like them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from roost.bench.postgres import ThrowawayPostgres
from tests.e2e.serving import ROOST, Serving, serving
from tests.e2e.talking import audit, eventually, make_store

RULE = """from roost.engine.rule import preference


@preference(traits=())
def mine(machine, vm):
    \"\"\"All are alike.\"\"\"
    return 0.0
"""
POLICY = """name: own
clusters:
  validators: [type_supported]
machines:
  validators: [has_room, is_ready, has_features]
  preferences: [{rule: "mine.py:mine", buckets: 2}]
"""


@pytest.fixture(scope="module")
def postgres() -> Iterator[ThrowawayPostgres]:
    """A real server."""
    with ThrowawayPostgres() as server:
        yield server


def workers(service: Serving) -> list[int]:
    """The processes that serve, by pid."""
    parent = service.process.pid
    children = map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
    return [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def kill_one(service: Serving) -> None:
    """As the system does when memory runs out."""
    os.kill(workers(service)[0], signal.SIGKILL)


def is_ready(url: str) -> bool:
    """Whether a worker, whichever it is, serves."""
    return httpx.get(f"{url}/readyz").status_code == 200


def pages(service: Serving) -> set[int]:
    """The largest page, as each of several connections gets it."""
    sizes = set()
    for _ in range(12):
        answer = httpx.get(f"{service.url}/v1/machines", params={"limit": 100})
        sizes.add(len(answer.json()["items"]) if answer.status_code == 200 else 0)
    return sizes


def missing(service: Serving) -> bool:
    """Whether metrics say that one is missing."""
    return "roost_missing_workers 1.0" in httpx.get(f"{service.url}/metrics").text


@pytest.mark.deep
def test_a_broken_file_and_a_dead_worker_stop_nobody_and_who_comes_back_is_like_the_others(
    postgres: ThrowawayPostgres, tmp_path: Path
) -> None:
    store = make_store(postgres.create_database("restarts"), tmp_path)
    settings, policy, rule = (tmp_path / name for name in ("roost.toml", "own.yaml", "mine.py"))
    settings.write_text("[limits]\npage = 5\n")
    policy.write_text(POLICY)
    rule.write_text(RULE)
    with serving(store, "--workers", "2", "--policy", str(policy), "--config", str(settings)) as service:
        eventually(lambda: service.stderr.count('"event":"ready"') == 2, 60)
        settings.write_text("[limits]\npage = 3\n")
        service.process.send_signal(signal.SIGHUP)
        eventually(lambda: service.stderr.count("settings read anew") == 2)
        settings.write_text("[limits]\npage = 'many'\n")
        policy.write_text("name: broken")
        service.process.send_signal(signal.SIGHUP)
        eventually(lambda: "the settings were not read anew" in service.stderr)
        kill_one(service)
        eventually(lambda: service.stderr.count('"event":"ready"') == 3, 60)
        assert pages(service) == {3}
        for i in range(12):
            httpx.post(f"{service.url}/v1/tenants", json={"tenant": f"t{i}", "vms": [{"type": "D2"}]})
        decided = httpx.get(f"{service.url}/v1/decisions").json()["items"]
        assert len({each["policy"] for each in decided if each["policy"]}) == 1
        rule.write_text(RULE.replace("0.0", "1.0"))  # which no text can tell to another process
        kill_one(service)
        eventually(lambda: service.stderr.count("restart the service") >= 2, 60)
        eventually(lambda: missing(service))
        eventually(lambda: '"again_in":2.0' in service.stderr)
        assert is_ready(service.url)
        rule.write_text(RULE)
        eventually(lambda: service.stderr.count('"event":"ready"') == 4, 60)
        eventually(lambda: not missing(service))
        assert len(workers(service)) == 2
        assert service.stop() == 0
    audit(store)


@pytest.mark.deep
def test_a_first_start_that_cannot_be_ends_with_exit_code_2(postgres: ThrowawayPostgres, tmp_path: Path) -> None:
    store, policy = make_store(postgres.create_database("never"), tmp_path), tmp_path / "own.yaml"
    cert = tmp_path / "no.pem"
    policy.write_text("name: broken")
    for more in (("--policy", str(policy)), ("--tls-cert", str(cert), "--tls-key", str(cert))):
        for number in ("1", "2"):
            done = subprocess.run(
                [ROOST, "serve", "--store", store, "--port", "0", "--workers", number, *more],
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert done.returncode == 2, done.stderr
            assert ("own.yaml:1" if "own.yaml" in more[1] else "server.tls_cert") in done.stderr
            assert "Traceback" not in done.stderr
