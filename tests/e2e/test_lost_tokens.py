"""The last token: it is not revoked by accident, nothing is open without it, and another is made beside the service."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from roost.api.server import address_to_bind
from roost.bench.postgres import ThrowawayPostgres
from roost.cli.main import app
from roost.settings import ServerSection, Settings, StoreSection
from tests.e2e.serving import Serving, serving
from tests.e2e.talking import audit, eventually, make_store, problem


@contextmanager
def asking(service: Serving, token: str = "") -> Iterator[httpx.Client]:
    """Somebody with a token, or without."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with httpx.Client(base_url=service.url, timeout=30, headers=headers) as http:
        yield http


def command(*arguments: str) -> Result:
    """`roost token`, here and now."""
    return CliRunner().invoke(app, ["token", *arguments])


def make(store: str, name: str) -> str:
    """A token that is made on the store itself."""
    done = command("create", name, "--scope", "admin", "--store", store)
    assert done.exit_code == 0, done.exception
    return done.stdout.strip()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.deep)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store with the tiny zone."""
    if request.param == "sqlite":
        yield make_store(str(tmp_path / "tiny.db"), tmp_path)
    else:
        with ThrowawayPostgres() as server:
            yield make_store(server.create_database("lost"), tmp_path)


def test_the_last_admin_is_kept_and_forcing_it_closes_the_service_until_one_is_made_on_the_store(store: str) -> None:
    with serving(store) as service:
        with asking(service) as anybody:
            token = anybody.post("/v1/tokens", json={"name": "root", "scopes": ["admin"]}).json()["token"]
        with asking(service, token) as admin:
            admin.post("/v1/tokens", json={"name": "ci", "scopes": ["allocate"]})
            admin.post("/v1/tokens", json={"name": "old", "scopes": ["admin"], "days": 1e-9})
            for _ in range(2):
                refused = problem(admin.delete("/v1/tokens/root"), "roost.conflict")
                assert "make one first" in refused.detail
            for name, force in (("old", False), ("ci", False), ("root", True)):
                assert admin.delete(f"/v1/tokens/{name}", params={"force": force}).status_code == 204
        with asking(service) as anybody:
            for method, path in (("GET", "/v1/zone"), ("POST", "/v1/tokens"), ("GET", "/metrics")):
                refused = problem(anybody.request(method, path), "roost.unauthorised")
                assert "all tokens were revoked" in refused.detail
        one, two = make(store, "one"), make(store, "two")
        with asking(service, one) as first, asking(service, two) as second:
            eventually(lambda: second.get("/v1/tokens").status_code == 200)
            assert [each["name"] for each in second.get("/v1/tokens").json()["items"]] == ["one", "two"]
            left = _revoke_each_other(first, second)
            assert left.delete("/v1/tokens/one?force=true").status_code in (204, 404)
            assert left.delete("/v1/tokens/two?force=true").status_code in (204, 401)
            problem(left.get("/v1/zone"), "roost.unauthorised")
    host = "0.0.0.0"
    asked = Settings(server=ServerSection(host=host), store=StoreSection(url=store))
    assert address_to_bind(asked) == (host, False)  # as with tokens: there is no reason to hide from anybody
    audit(store)


def _revoke_each_other(first: httpx.Client, second: httpx.Client) -> httpx.Client:
    """Two admins revoke each other at once; the one who is left."""
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(first.delete, "/v1/tokens/two"), pool.submit(second.delete, "/v1/tokens/one")]
        statuses = [each.result().status_code for each in done]
    assert sorted(statuses)[0] == 204
    assert sorted(statuses)[1] in (401, 409)
    return first if statuses[0] == 204 else second


def test_a_letter_counts_only_if_it_could_be_the_services_own(tmp_path: Path) -> None:
    store = make_store(str(tmp_path / "tiny.db"), tmp_path)
    folder = tmp_path / "tiny.db.letters"
    with serving(store) as service, asking(service, make(store, "root")) as admin:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert list(folder.iterdir()) == []
        elsewhere = tmp_path / "kept"
        elsewhere.write_text('{"digest":"0","scopes":["admin"]}')
        (folder / "linked").symlink_to(elsewhere)
        (folder / "no name").write_text(elsewhere.read_text())
        (folder / "nonsense").write_text("{}")
        if os.geteuid() == 0:
            (folder / "foreign").write_text(elsewhere.read_text())
            os.chown(folder / "foreign", 12_345, 12_345)
        make(store, "second")  # by the time this is taken, the others have been looked at
        assert {each["name"] for each in admin.get("/v1/tokens").json()["items"]} == {"root", "second"}
        assert service.stderr.count("a letter cannot be used") == 2


def test_nobody_takes_a_letter_where_no_service_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from roost.wiring import open_store

    monkeypatch.setattr("roost.api.letters.WAIT_SECONDS", 0.2)
    store = make_store(str(tmp_path / "tiny.db"), tmp_path)
    opened = open_store(store)  # by a worker, say
    done = command("create", "root", "--scope", "admin", "--store", store)
    opened.close()
    assert "another process has" in str(done.exception)
    assert list((tmp_path / "tiny.db.letters").iterdir()) == []


def test_the_command_keeps_the_last_admin_too_and_never_says_a_token_again(tmp_path: Path) -> None:
    store = make_store(str(tmp_path / "tiny.db"), tmp_path)
    token = make(store, "root")
    assert "last token with scope admin" in str(command("revoke", "root", "--store", store).exception)
    for where in (("--store", store), ("--url", "http://127.0.0.1:1")):
        echoed = command("revoke", token, *where)
        assert "give its name alone: root" in str(echoed.exception)
        assert token.split("_", 2)[2] not in f"{echoed.output}{echoed.exception}"
    assert command("revoke", "root", "--force", "--store", store).exit_code == 0
