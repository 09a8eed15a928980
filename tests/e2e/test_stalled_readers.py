"""Those who ask for much and read nothing: they are cut off, and what they held is free again."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
import pytest

from roost.cli.token import _make
from roost.wire.tokens import NewToken
from roost.wiring import open_store, register
from tests.e2e.serving import Serving, serving
from tests.e2e.talking import eventually, make_store, problem, read_all

PATIENCE = 1.5  # seconds
MUCH = 80  # changes of 100,000 bytes: more than the buffers of two sockets hold


class Busy(NamedTuple):
    """A service with much to tell, and two who may read it."""

    service: Serving
    tokens: tuple[str, str]


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Busy]:
    """Three streams at most, and two of a token."""
    folder = tmp_path_factory.mktemp("stalled")
    store = make_store(str(folder / "tiny.db"), folder)
    tokens = [_make(store, NewToken(name=name, scopes=("admin",))).token for name in ("one", "two")]
    with closing(open_store(store)) as opened:
        for i in range(MUCH):
            register(opened, "note", f"{i}-" + "n" * 100_000, "x", "test")
    limits = {"streams": 3, "streams_per_token": 2, "write_seconds": PATIENCE}
    with serving(store, *(part for name, value in limits.items() for part in ("--set", f"limits.{name}={value}"))) as s:
        yield Busy(s, (tokens[0], tokens[1]))
        assert '"a bug"' not in s.stderr


def follow(busy: Busy, token: int, path: str = "/v1/changes/stream?since=0") -> socket.socket:
    """Ask for all changes, and read nothing yet."""
    parts = urlsplit(busy.service.url)
    line = socket.create_connection((parts.hostname, parts.port or 0), timeout=10)
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {busy.tokens[token]}\r\n\r\n"
    line.sendall(head.encode())
    return line


def ask(busy: Busy, token: int, path: str) -> httpx.Response:
    """The beginning of an answer."""
    header = {"Authorization": f"Bearer {busy.tokens[token]}"}
    with httpx.stream("GET", f"{busy.service.url}{path}", headers=header) as answer:
        if answer.status_code != 200:
            answer.read()
        return answer


def test_readers_that_take_nothing_are_cut_off_and_their_streams_are_free_again(busy: Busy) -> None:
    with ExitStack() as stack:
        lines = [stack.enter_context(follow(busy, token)) for token in (0, 0, 1)]
        for line in lines:
            assert line.recv(9) == b"HTTP/1.1 "  # it began
        problem(ask(busy, 0, "/v1/changes/stream"), "roost.rate_limited")
        problem(ask(busy, 1, "/v1/changes/stream"), "roost.overloaded")
        eventually(lambda: ask(busy, 1, "/v1/changes/stream").status_code == 200)
        for line in lines:
            assert not read_all(line).endswith(b"0\r\n\r\n")  # cut off, not ended
    eventually(lambda: "roost_change_streams 0.0" in _metrics(busy))
    assert "a reader was cut off" in busy.service.stderr


def _metrics(busy: Busy) -> str:
    header = {"Authorization": f"Bearer {busy.tokens[0]}"}
    return httpx.get(f"{busy.service.url}/metrics", headers=header).text


def test_a_reader_that_reads_slowly_is_not_cut_off(busy: Busy) -> None:
    with follow(busy, 0) as line:
        found, until = 0, time.monotonic() + 1.7 * PATIENCE
        while time.monotonic() < until:
            time.sleep(PATIENCE / 15)
            part = line.recv(200_000)
            assert part, f"cut off after {found:,} bytes"
            found += len(part)


def test_a_stream_whose_reader_is_gone_at_once_is_free_again(busy: Busy) -> None:
    for _ in range(12):  # four times as many as there may be
        follow(busy, 0).close()
    eventually(lambda: ask(busy, 0, "/v1/changes/stream").status_code == 200)
    eventually(lambda: "roost_change_streams 0.0" in _metrics(busy))
