"""A service from start to stop: addresses, TLS, draining, and a database that goes away, is slow, or comes late."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from roost.bench.postgres import ThrowawayPostgres
from roost.wiring import open_store
from tests.e2e.serving import ROOST, Serving, serving
from tests.e2e.talking import ZONE, audit, eventually, make_store, problem

PATIENCE, ANSWER = 1.0, 3.0  # seconds: with a store that is away, and for an answer
A_LITTLE = 3.0  # seconds, on a busy machine
LIMITS = ("--set", f"store.patience_seconds={PATIENCE}", "--set", f"limits.request_seconds={ANSWER}")
_numbers = itertools.count()


@pytest.fixture(scope="module")
def postgres() -> Iterator[ThrowawayPostgres]:
    """A real server, which some tests kill."""
    with ThrowawayPostgres() as server:
        yield server


# ------------------------------------------------------------------------------------------------------------ addresses


def test_without_tokens_it_listens_on_loopback_only_says_so_and_serves_tls(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    store = make_store(str(tmp_path / "tiny.db"), tmp_path)
    with serving(store, "--host", "0.0.0.0", "--tls-cert", str(cert), "--tls-key", str(key)) as service:
        assert urlsplit(service.url).scheme == "https"
        assert urlsplit(service.url).hostname == "127.0.0.1"
        assert "listens on loopback only" in re.sub(r"\s+", " ", service.stderr)
        trusted = ssl.create_default_context(cafile=str(cert))
        with httpx.Client(base_url=service.url, verify=trusted) as http:
            assert http.get("/v1/zone").json()["zone"] == "tiny"
            for host in ("localhost", "127.0.0.1:80", "LOCALHOST"):
                assert http.get("/v1/zone", headers={"Host": host}).status_code == (403 if host.isupper() else 200)
            for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:7117", ""):
                for method, path in (("GET", "/v1/zone"), ("POST", "/v1/tokens"), ("GET", "/metrics")):
                    answer = http.request(method, path, headers={"Host": host, "Origin": f"http://{host}"})
                    if host:
                        problem(answer, "roost.forbidden")
                    else:
                        assert answer.status_code in (400, 403)
            asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
            assert "access-control-allow-origin" not in http.options("/v1/tenants", headers=asked).headers
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{service.url}/healthz")  # whoever does not trust the certificate
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{service.url}/healthz".replace("https", "http"))
        subprocess.run(
            [openssl, "req", "-x509", "-key", str(key), "-days", "3", "-subj", "/CN=renewed", "-out", str(cert)],
            check=True, capture_output=True,
        )  # fmt: skip
        service.process.send_signal(signal.SIGHUP)
        eventually(lambda: "settings read anew" in service.stderr)
        address = (urlsplit(service.url).hostname or "", urlsplit(service.url).port or 0)
        assert ssl.get_server_certificate(address) == ssl.DER_cert_to_PEM_cert(
            ssl.PEM_cert_to_DER_cert(cert.read_text())
        )


# ------------------------------------------------------------------------------------------------------------- draining


@dataclass
class Asked:
    """What came of many requests."""

    done: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)  # the connection ended without an answer
    halves: list[bytes] = field(default_factory=list)


async def _ask_until_gone(url: str, asked: Asked, name: str) -> None:
    """Tenants of three VMs each, one after another, until nobody answers."""
    parts = urlsplit(url)
    for i in itertools.count():
        tenant = f"{name}-{i}"
        body = b'{"tenant":"%s","vms":[{"type":"A1","count":3}]}' % tenant.encode()
        try:
            if not i:
                reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.write(
                b"POST /v1/tenants HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            assert length
            await reader.readexactly(int(length[1]))
        except asyncio.IncompleteReadError as error:
            asked.unknown.add(tenant)
            asked.halves += [error.partial] if error.partial else []
            break
        except ConnectionError:
            asked.unknown.add(tenant)
            break
        (asked.done if head.startswith(b"HTTP/1.1 201 ") else asked.refused).add(tenant)
        if b"connection: close" in head:
            break
    writer.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_told_to_stop_it_answers_or_fails_what_is_in_flight_but_never_half(
    kind: str, postgres: ThrowawayPostgres, tmp_path: Path
) -> None:
    store = str(tmp_path / "zone.db") if kind == "sqlite" else postgres.create_database("draining")
    asked = Asked()
    with serving(store, "--zone", "synthetic:100") as service:

        async def ask() -> None:
            asking = [asyncio.create_task(_ask_until_gone(service.url, asked, f"t{i}")) for i in range(40)]
            while len(asked.done) < 200:
                await asyncio.sleep(0.01)
            service.process.send_signal(signal.SIGTERM)
            await asyncio.gather(*asking)

        asyncio.run(asyncio.wait_for(ask(), 60))
        assert service.stop() == 0
    assert asked.halves == []
    with closing(open_store(store, read_only=True)) as opened:
        vms = {name: row.vms for name, row in opened.tenants(limit=100_000)}
    assert asked.done <= set(vms)
    assert not asked.refused & set(vms)
    assert set(vms) <= asked.done | asked.unknown
    assert set(vms.values()) == {3}
    audit(store)


# ------------------------------------------------------------------------------------------------------------ databases


def _create(url: str, **more: str) -> httpx.Response:
    body = {"tenant": f"t{next(_numbers)}", "vms": [{"type": "S4"}]}
    return httpx.post(f"{url}/v1/tenants", params=more, json=body, timeout=30)


@contextmanager
def frozen(postgres: ThrowawayPostgres) -> Iterator[None]:
    """The database does nothing for a while, but its connections stay."""
    assert postgres._process
    postmaster = postgres._process.pid
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    processes = [postmaster, *map(int, children)]
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)


def _away(service: Serving) -> None:
    """Everything that needs the store is refused, in time, with a problem document; what does not need it works."""
    started = time.monotonic()
    with ThreadPoolExecutor(12) as pool:
        creating = [pool.submit(_create, service.url) for _ in range(8)]
        creating.append(pool.submit(_create, service.url, dry_run="true"))
        reading = [
            pool.submit(httpx.get, f"{service.url}{path}", timeout=30) for path in ("/v1/tenants", "/v1/changes")
        ]
        assert httpx.get(f"{service.url}/healthz").status_code == 200
        for waiting in (*creating, *reading):
            answer = waiting.result()
            assert answer.status_code == 503, answer.text
            problem(answer, answer.json()["code"])
            assert answer.json()["retryable"]
    assert time.monotonic() - started < max(PATIENCE, ANSWER) + A_LITTLE


def test_a_database_that_dies_is_told_of_and_one_that_comes_back_is_used(
    postgres: ThrowawayPostgres, tmp_path: Path
) -> None:
    store = make_store(postgres.create_database("dying"), tmp_path)
    with serving(store, *LIMITS) as service:
        assert _create(service.url).status_code == 201
        postgres.kill()
        try:
            started = time.monotonic()
            problem(_create(service.url), "roost.store_unavailable")
            assert time.monotonic() - started < PATIENCE + A_LITTLE
            problem(httpx.get(f"{service.url}/readyz"), "roost.store_unavailable")
            for path in ("/v1/zone", "/v1/tenants", "/v1/machines", "/v1/capacity", "/v1/policies"):
                problem(httpx.get(f"{service.url}{path}"), "roost.store_unavailable")
            problem(_create(service.url, dry_run="true"), "roost.store_unavailable")
            eventually(lambda: "roost_store_up 0.0" in httpx.get(f"{service.url}/metrics").text)
            _away(service)
        finally:
            postgres.start()
        eventually(lambda: httpx.get(f"{service.url}/readyz").status_code == 200)
        assert _create(service.url).status_code == 201
        assert httpx.get(f"{service.url}/v1/zone").json()["vms"] == 2
        assert '"a bug"' not in service.stderr
    audit(store)


def test_a_database_that_dies_is_noticed_even_if_nobody_asks_for_anything(
    postgres: ThrowawayPostgres, tmp_path: Path
) -> None:
    store = make_store(postgres.create_database("unseen"), tmp_path)
    with serving(store, *LIMITS) as service:
        postgres.kill()
        try:
            eventually(lambda: httpx.get(f"{service.url}/readyz").status_code == 503)
        finally:
            postgres.start()
        eventually(lambda: httpx.get(f"{service.url}/readyz").status_code == 200)


def test_a_database_that_does_not_answer_keeps_nobody_waiting_for_ever(
    postgres: ThrowawayPostgres, tmp_path: Path
) -> None:
    store = make_store(postgres.create_database("freezing"), tmp_path)
    with serving(store, *LIMITS) as service:
        assert _create(service.url).status_code == 201
        with frozen(postgres):
            _away(service)
        eventually(lambda: _create(service.url).status_code in (201, 409))
        assert httpx.get(f"{service.url}/v1/tenants").status_code == 200
    audit(store)


def test_a_service_that_starts_before_its_database_serves_503_until_it_comes(
    postgres: ThrowawayPostgres, tmp_path: Path
) -> None:
    store, empty = make_store(postgres.create_database("late"), tmp_path), postgres.create_database("empty")
    zone = tmp_path / "tiny.yaml"
    zone.write_text(ZONE)
    postgres.kill()
    try:
        with (
            serving(store, *LIMITS, ready=False) as service,
            serving(empty, "--zone", str(zone), *LIMITS, ready=False) as fresh,
        ):
            for each in (service, fresh):
                eventually(lambda each=each: "the store is away" in each.stderr)  # type: ignore[misc]
                assert httpx.get(f"{each.url}/healthz").status_code == 200
                answer = httpx.get(f"{each.url}/readyz")
                problem(answer, "roost.store_unavailable")
                problem(_create(each.url), "roost.store_unavailable")
            postgres.start()
            for each in (service, fresh):
                eventually(each.is_ready, 60)
                assert _create(each.url).status_code == 201
    finally:
        postgres.start() if postgres._process is None else None
    audit(store)


STEPS = [
    "opening the store",
    "making a store with 2,000 machines",
    "opening the store",  # the port is open by now
    "reading the zone",
    "compiling the rules of default",
    "loading 2,000 machines and 0 VMs",
]


def test_before_the_zone_is_loaded_it_answers_with_what_it_is_doing_and_says_that_it_serves_once_it_does(
    tmp_path: Path,
) -> None:
    store = str(tmp_path / "zone.db")
    with serving(store, "--zone", "synthetic:2000", ready=False) as service:
        told, said = set(), service.stderr
        while (answer := httpx.get(f"{service.url}/readyz")).status_code == 503:
            told.add(problem(answer, "roost.starting").detail)
            assert "Roost serves" not in said
            said = service.stderr
            if (asked := httpx.get(f"{service.url}/v1/zone")).status_code != 200:
                problem(asked, "roost.starting")
        assert answer.status_code == 200
        assert told
        assert told <= {"the service is starting", *STEPS}
        eventually(lambda: "Roost serves" in service.stderr)
        before, _, after = service.stderr.partition("Roost serves")
        assert re.findall(r'"doing":"([^"]*)"', before) == STEPS
        assert '"doing"' not in after


def test_on_a_terminal_one_sees_what_is_being_done_until_it_serves(tmp_path: Path) -> None:
    screen, its = os.openpty()
    arguments = [ROOST, "serve", "--store", str(tmp_path / "zone.db"), "--zone", "synthetic:200", "--port", "0"]
    env = os.environ | {"COLUMNS": "200", "TERM": "xterm", "ROOST_AGENT_POLICY": "fast"}
    with subprocess.Popen(arguments, stdin=its, stdout=its, stderr=its, env=env) as process:
        os.close(its)
        shown = b""
        while b"Roost serves" not in shown and (more := os.read(screen, 65_536)):
            shown += more
        process.terminate()
    os.close(screen)
    before = shown.partition(b"Roost serves")[0].decode()
    assert re.search(r"opening the store|making a store", before)
    assert "compiling the rules of fast" in before
    assert '"doing"' not in before
    assert process.returncode == 0


def test_a_store_of_another_zone_is_not_served_in_place_of_the_one_that_is_named(tmp_path: Path) -> None:
    store = make_store(str(tmp_path / "tiny.db"), tmp_path)
    done = subprocess.run(
        [ROOST, "serve", "--store", store, "--zone", "synthetic:200", "--port", "0"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "synthetic:200 is zone synthetic-200-1, but" in done.stderr
    assert "tiny.db holds zone tiny" in done.stderr
    assert "Roost serves" not in done.stderr
