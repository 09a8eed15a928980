"""Bytes that are no request, or a malicious one: never a 5xx, never a hang, and the store is none the worse for it."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.e2e.serving import Serving, serving
from tests.e2e.talking import audit, check_problem, connected, make_store, read_all
from tests.e2e.test_http_tokens import TABLE

SLOW_SECONDS = 1.0  # within which a request has to arrive
PATIENCE = 10.0
BODY_BYTES = 65_536
GET = b"GET /v1/zone HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /v1/tenants?dry_run=true HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
WISH = b'{"tenant":"t","vms":[{"type":"D2"}]}'
WHOLE = POST + b"Content-Length: %d\r\n\r\n%s" % (len(WISH), WISH)
ANSWER = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r]*\r\n((?:[^\r\n]+\r\n)*)\r\n", re.DOTALL)
trying = settings(max_examples=100, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A service that waits for nobody."""
    folder = tmp_path_factory.mktemp("fuzz")
    store = make_store(str(folder / "tiny.db"), folder)
    limits = [f"limits.request_seconds={SLOW_SECONDS}", f"limits.body_bytes={BODY_BYTES}"]
    with serving(store, *(part for limit in limits for part in ("--set", limit))) as service:
        yield service
        assert httpx.get(f"{service.url}/v1/zone").status_code == 200
        assert service.process.poll() is None
        assert '"a bug"' not in service.stderr
        assert "Traceback" not in service.stderr
    audit(store)


def exchange(service: Serving, data: bytes, *, half_close: bool = True) -> bytes:
    """What comes back for some bytes, until the service closes; a hang fails."""
    with connected(service.url, PATIENCE) as line:
        try:
            line.sendall(data)
            if half_close:
                line.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError, OSError):
            pass  # it had enough before we were done
        return read_all(line)


def answers(raw: bytes) -> list[tuple[int, bytes]]:
    """Each answer's status and body."""
    found = []
    while raw:
        head = ANSWER.match(raw)
        assert head, raw[:200]
        length = re.search(rb"content-length: (\d+)", head[2])
        end = head.end() + (int(length[1]) if length else len(raw))
        found.append((int(head[1]), raw[head.end() : end]))
        raw = raw[end:]
    return found


def refused(raw: bytes, *statuses: int) -> None:
    """One answer, a problem document of one of these statuses."""
    ((status, body),) = answers(raw)
    assert status in statuses, raw[:300]
    check_problem(json.loads(body), status)


# ---------------------------------------------------------------------------------------------------- requests, headers


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"NONSENSE /v1/zone HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"get /v1/zone HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://[::1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/zone HTTP/1.1\r\nHost: localhost\r\nx: \x00\r\n\r\n",
        b"GET /v1/zone HTTP/1.1\r\nHost: localhost\r\nx\x01: y\r\n\r\n",
        b"GET /v1/zone HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n",
        b"GET /v1/zone HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"GET /v1/zone HTTP/1.1\r\nHost: localhost\r\nContent-Length: many\r\n\r\n",
        b"GET /v1/zone HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 5_000 + b"\r\n\r\n",
        POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
        POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n{}",
        POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}x",
    ],
)  # fmt: skip
def test_what_is_no_http_is_refused(service: Serving, data: bytes) -> None:
    refused(exchange(service, data, half_close=False), 400, 404, 405)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
        (b"GET /v1/zone?" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
        (b"GET /v1/zone HTTP/1.1\r\nHost: localhost\r\nx: " + b"y" * 20_000 + b"\r\n\r\n", 431),
        (b"GET /v1/zone HTTP/1.1\r\n" + b"x: y\r\n" * 5_000 + b"\r\n", 431),
        (b"GET /v1/zone HTTP/1.1\r\nx: " + b"y" * 2_000_000, 431),  # without end
        (b"A" * 1_000_000, 400),
        (POST + b"Content-Length: 100000\r\n\r\n" + b"x" * 100_000, 413),
        (POST + b"Content-Length: 99999999999\r\n\r\n", 413),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"8000\r\n" + b"x" * 0x8000 + b"\r\n", 503),  # without end
        (POST + b"Transfer-Encoding: chunked\r\n\r\n" + (b"8000\r\n" + b"x" * 0x8000 + b"\r\n") * 4, 413),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + b"x: y\r\n" * 20_000, 431),  # trailers
        (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx: " + b"y" * 200_000, 431),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n2;" + b"y" * 200_000 + b"\r\n{}\r\n", 431),  # a chunk's extension
    ],
)  # fmt: skip
def test_what_is_too_large_is_refused(service: Serving, data: bytes, status: int) -> None:
    started = time.monotonic()
    raw = exchange(service, data, half_close=status == 413)
    if raw or len(data) < 100_000:  # what is cut off in the middle of sending may not hear why
        refused(raw, status)
    assert time.monotonic() - started < SLOW_SECONDS + 3


def test_requests_that_never_end_are_cut_off(service: Serving) -> None:
    begun = (
        b"", b"G", b"GET /v1/zone HTTP/1.1\r\n", b"GET /v1/zone HTTP/1.1\r\nHost: local",
        POST + b"Content-Length: 10\r\n\r\n", POST + b"Content-Length: 10\r\n\r\n{",
        POST + b"Transfer-Encoding: chunked\r\n\r\n", POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
        b"DELETE /v1/tenants/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n",
        GET + b"GET /v1/zo",
    )  # fmt: skip
    lines = []
    for data in begun:
        parts = httpx.URL(service.url)
        line = socket.create_connection((parts.host, parts.port or 0), timeout=PATIENCE)
        line.sendall(data)
        lines.append(line)
    drip = lines.pop()  # one byte now and then does not help
    started = time.monotonic()
    for line, data in zip(lines, begun[:-1], strict=True):
        with line:
            raw = read_all(line)
            if data:
                refused(raw, 503)
                assert b'"roost.timeout"' in raw
            else:
                assert raw == b""
    with drip:
        assert answers(read_all(drip))[0][0] == 200
    assert time.monotonic() - started < SLOW_SECONDS + 3


def test_one_byte_at_a_time_does_not_keep_a_connection(service: Serving) -> None:
    started = time.monotonic()
    with connected(service.url, PATIENCE) as line:
        line.settimeout(0.05)
        for byte in GET[:-2] + b"x: " + b"y" * 10_000:
            try:
                line.send(bytes([byte]))
                if not line.recv(1_000):
                    break
                line.settimeout(PATIENCE)
            except TimeoutError:
                continue
            except OSError:
                break
            assert time.monotonic() - started < SLOW_SECONDS + 3
    assert time.monotonic() - started >= SLOW_SECONDS * 0.9


def test_pipelined_requests_are_answered_in_order(service: Serving) -> None:
    found = answers(exchange(service, GET * 20 + WHOLE * 20 + b"GET /v1/none HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    assert [status for status, _ in found] == [200] * 40 + [404]
    found = answers(exchange(service, WHOLE * 3 + b"\x00nonsense"))
    assert all(status == 200 for status, _ in found)  # nothing else is ever taken for an answer to one of them
    large = POST + b"Content-Length: 40000\r\n\r\n" + WISH + b" " * (40_000 - len(WISH))
    found = answers(exchange(service, large + GET))
    assert [status for status, _ in found] == [200, 200]


def test_whoever_has_said_all_may_still_listen(service: Serving) -> None:
    assert answers(exchange(service, WHOLE))[0][0] == 200
    assert exchange(service, WHOLE[:-5]) == b""
    assert exchange(service, GET[:-2]) == b""
    assert exchange(service, b"") == b""


def test_upgrades_and_expectations_change_nothing(service: Serving) -> None:
    assert answers(exchange(service, b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n"))[0][0] in (400, 404)
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n"
    assert answers(exchange(service, GET[:-2] + upgrade))[0][0] == 200
    raw = exchange(service, POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n%s" % (len(WISH), WISH))
    assert b"HTTP/1.1 200" in raw


# --------------------------------------------------------------------------------------------------------------- bodies

BODIES = [
    b"", b" ", b"null", b"[]", b"0", b'""', b"{", b"}", b"{}" * 2, b"\xef\xbb\xbf{}", b"\x00", b'{"a":\x00}',
    b"\xff\xfe",     b"[" * 60_000, b'{"tenant":' * 6_000, b'{"tenant":"t","vms":' + b"[" * 60_000,
    b'{"tenant":"t","vms":[{"type":"D2","traits":{"a":' + b"[" * 50_000,
    b'{"tenant":"\xff","vms":[{"type":"D2"}]}', b'{"tenant":"t\xc3","vms":[{"type":"D2"}]}',
    b'{"tenant":"\\ud800","vms":[{"type":"D2"}]}', b'{"tenant":"t","vms":[{"type":"\\udfff"}]}',
    b'{"tenant":"t","vms":[{"type":"D2","datacenter":"\\u0000"}]}',
    b'{"tenant":"t","vms":[{"type":"D2","traits":{"\\u0000":1}}]}',
    b'{"tenant":"t","vms":[{"type":"D2","count":NaN}]}', b'{"tenant":"t","vms":[{"type":"D2","count":Infinity}]}',
    b'{"tenant":"t","vms":[{"type":"D2","count":1e400}]}', b'{"tenant":"t","vms":[{"type":"D2","count":1.5}]}',
    b'{"tenant":"t","vms":[{"type":"D2","count":' + b"9" * 6_000 + b"}]}",
    b'{"tenant":"t","vms":[{"type":"D2","count":-1}]}', b'{"tenant":"t","vms":[{"type":"D2","count":true}]}',
    b'{"tenant":"t","vms":[{"type":"D2","traits":{"a":9223372036854775808}}]}',
    b'{"tenant":"t","vms":[{"type":"D2"}],"constraints":{"max_per_rack":99999999999999999999}}',
    b'{"tenant":"t","vms":[{"type":"D2"}],"constraints":{"min_fault_domains":5,"max_fault_domains":1}}',
    b'{"tenant":"../../etc","vms":[{"type":"D2"}]}', b'{"tenant":"t/0","vms":[{"type":"D2"}]}',
    b'{"tenant":"\xf0\x9f\x90\x94","vms":[{"type":"D2"}]}', b"<xml/>", b"a=b&c=d",
]  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/tenants", "/v1/batch", "/v1/explain", "/v1/tokens", "/v1/policies/validate"])
def test_bodies_that_make_no_sense_are_refused(service: Serving, path: str) -> None:
    with httpx.Client(base_url=service.url) as http:
        for body in BODIES:
            for suffix in ("", "?dry_run=true"):
                answer = http.post(path + suffix, content=body, headers={"Content-Type": "application/json"})
                assert answer.status_code in (400, 413), (path, body[:100], answer.text)
                check_problem(answer.json(), answer.status_code)
        twice = b'{"tenant":"t","tenant":"u","vms":[{"type":"D2"}]}'
        typed = {"Content-Type": "application/json"}
        refused = http.post("/v1/tenants?dry_run=true", content=twice, headers=typed)
        assert (refused.status_code, refused.json()["field"]) == (400, "tenant"), "one of the two would be ignored"
        for kind in ("text/json", "application/jsonx", "application/problem+json", "\xff", "application/json\t,x"):
            answer = http.post(path, content=WISH, headers={b"Content-Type": kind.encode("latin-1")})
            assert answer.status_code == 415, kind


@pytest.mark.parametrize(
    "text",
    [
        "[" * 60_000, "a: " * 20_000, "&a [*a]", "name: &a {x: *a}", "? [a, b]\n: c", "name: !!python/name:os.system",
        "name: x\nmachines: {validators: [" + "has_room, " * 5_000 + "]}", "- " * 20_000, "%YAML 9.9\n---\na", "\t",
        "\x85", "<<: {a: b}", "name: 2001-99-99", "name: " + "9" * 50_000, "name: 0o9", "name: 1:60:99", "name: =",
    ],
)  # fmt: skip
def test_policies_that_make_no_sense_are_refused(service: Serving, text: str) -> None:
    answer = httpx.post(f"{service.url}/v1/policies/validate", json={"text": text}, timeout=PATIENCE)
    assert answer.status_code in (400, 413), answer.text[:200]
    check_problem(answer.json(), answer.status_code)


# --------------------------------------------------------------------------------------------------------------- chance


@trying
@given(data=st.data())
def test_a_request_with_some_bytes_changed_is_answered_or_dropped(service: Serving, data: st.DataObject) -> None:
    request = bytearray(
        data.draw(st.sampled_from([GET, WHOLE, POST + b"Transfer-Encoding: chunked\r\n\r\n24\r\n" + WISH]))
    )
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(request) - 1))
        kind = data.draw(st.sampled_from(["change", "insert", "delete", "repeat"]))
        if kind == "change":
            request[at] = data.draw(st.integers(0, 255))
        elif kind == "insert":
            request[at:at] = data.draw(st.binary(min_size=1, max_size=8))
        elif kind == "delete":
            del request[at : at + data.draw(st.integers(1, 8))]
        else:
            request[at:at] = request[at : at + 16] * data.draw(st.integers(1, 20))
        request = request or bytearray(b"\r\n")
    raw = exchange(service, bytes(request))
    assert re.match(rb"HTTP/1\.1 [1-4]\d\d ", raw) or not raw, raw[:200]


@trying
@given(raw_path=st.text(alphabet='/%.?&=;#+~0aé\\\x7f|{}[]"<>^`', max_size=60), pick=st.sampled_from(sorted(TABLE)))
@example("%00", ("GET", "/v1/tenants"))
@example("%ff%fe%ed%a0%80", ("GET", "/v1/vms"))
@example("%2e%2e%2f%2e%2e%2fetc%2fpasswd", ("GET", "/v1/policies"))
@example("?limit=1&limit=2&cursor=%00&prefix=%ff", ("GET", "/v1/tenants"))
@example("?since=nan", ("GET", "/v1/policies/results"))
@example("?cursor=WzEsIlx1MDAwMCJd", ("GET", "/v1/decisions"))
@example("?cursor=WzFlMzk5LCJhIl0", ("GET", "/v1/decisions"))
def test_absurd_paths_and_queries_are_answered(service: Serving, raw_path: str, pick: tuple[str, str]) -> None:
    method, route = pick
    if "stream" in route:
        return
    path = re.sub(r"\{.*", "", route) + raw_path
    line = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    ((status, body),) = answers(exchange(service, line))
    assert 200 <= status < 500, (line, body)


@trying
@given(
    body=st.recursive(
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(
                    ["tenant", "vms", "type", "count", "name", "constraints", "requests", "traits", "requires", "x"]
                ),
                inner,
                max_size=5,
            )
        ),
    ),
    path=st.sampled_from(
        [path for (method, path) in TABLE if method in ("POST", "PUT", "PATCH") and "token" not in path]
    ),
)
def test_bodies_of_any_shape_are_answered(service: Serving, body: object, path: str) -> None:
    method = next(method for method, known in TABLE if known == path and method != "GET" and method != "DELETE")
    target = re.sub(r"\{.*?\}", "c1", path) + "?dry_run=true"
    text = json.dumps(body).encode()
    head = b"%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    ((status, said),) = answers(exchange(service, head % (method.encode(), target.encode(), len(text)) + text))
    assert 200 <= status < 500, (path, body, said)


@trying
@given(
    name=st.text(min_size=1, max_size=20),
    route=st.sampled_from(["/v1/tenants/", "/v1/vms/", "/v1/machines/", "/v1/decisions/"]),
)
def test_names_of_any_characters_are_looked_for(service: Serving, name: str, route: str) -> None:
    quoted = "".join(f"%{byte:02x}" for byte in name.encode("utf-8", "surrogatepass"))
    line = f"GET {route}{quoted} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    ((status, body),) = answers(exchange(service, line))
    assert status in (200, 400, 404), body  # 200: of nothing but slashes, a list
