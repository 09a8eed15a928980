"""The walk of one `POST /v1/tenants` through the code: which functions of Roost are entered, from the parsed request
to the written answer.

The service runs in this process, on SQLite, without a socket: the application is called as the HTTP server calls it.
Every entry counts, also that of a coroutine that goes on; of many requests the shortest walk is told, as others have a
duty's step between them.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

import roost
from roost.api import logs
from roost.api.app import make_gate
from roost.api.service import Service
from roost.settings import LogSection, Settings, StoreSection

Walked = tuple[Counter[tuple[str, str]], int]  # functions entered, and hops from one file to another
HOME = str(Path(roost.__file__).parent) + "/"
REQUESTS = 40


class Footprints:
    """Counts the functions of Roost that are entered, by file and name, in all threads that began after `watch`."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.hops = 0  # entries from another file
        self.counting = False

    def watch(self) -> None:
        """From now on; nothing is counted unless `counting` is set."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and self.counting:
            code = frame.f_code
            if code.co_filename.startswith(HOME) and code.co_filename != __file__:
                self.counts[code.co_filename.removeprefix(HOME), code.co_qualname] += 1
                self.hops += frame.f_back is None or frame.f_back.f_code.co_filename != code.co_filename


def bench_walk(report: Callable[[str, float], None] = lambda *_: None) -> dict[str, Any]:
    """The functions entered by the shortest of some walks, in all and by file; hops are entries from another file."""
    prints = Footprints()
    try:
        with tempfile.TemporaryDirectory() as folder:
            walks = asyncio.run(_walk(prints, f"{folder}/zone.db", report))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    shortest, hops = min(walks, key=lambda walk: walk[0].total())
    files: Counter[str] = Counter()
    for (file, _), entered in shortest.items():
        files[file] += entered
    return {
        "functions_entered": shortest.total(),
        "hops": hops,
        "files": len(files),
        "by_file": dict(files.most_common()),
        "by_function": {f"{file}:{name}": entered for (file, name), entered in shortest.most_common()},
    }


async def _walk(prints: Footprints, store: str, report: Callable[[str, float], None]) -> list[Walked]:
    logs.set_up(LogSection(level="error"))
    prints.watch()
    service = Service(replace(Settings(), store=StoreSection(url=store)))
    await service.start()
    gate = make_gate(service, loopback=True)
    walks = []
    for i in range(REQUESTS):
        body = msgspec.json.encode({"tenant": f"walker-{i}", "vms": [{"type": "D2"}]})
        prints.counts, prints.hops = Counter(), 0
        status = await _post(gate, body, prints)
        assert status == 201, status
        walks.append((prints.counts, prints.hops))
        report("requests", (i + 1) / REQUESTS)
        await asyncio.sleep(0.01)
    await service.stop(asyncio.get_running_loop().time() + 5.0)
    return walks[REQUESTS // 2 :]  # those before found caches cold


async def _post(gate: Any, body: bytes, prints: Footprints) -> int:
    headers = [
        (b"host", b"localhost"),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
    ]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": "/v1/tenants", "raw_path": b"/v1/tenants", "query_string": b"", "headers": headers,
        "client": ("127.0.0.1", 40_000), "server": ("127.0.0.1", 8_080), "root_path": "",
    }  # fmt: skip
    status = 0

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)
        if message["type"] == "http.response.body":
            prints.counting = False

    prints.counting = True
    await gate(scope, receive, send)
    return status
