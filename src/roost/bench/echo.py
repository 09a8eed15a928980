"""The ceilings that the service is measured against: the same server, asked for the same, with nothing to do.

`python -m roost.bench.echo STORE ZONE` serves what `roost serve` does, and besides an echo route through the same gate
and framework, and one that tells for how long the event loop was held; `… framework` serves the framework's echo
without the gate, and `… bare` one without either. Each prints its port.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import msgspec
import uvicorn
import uvloop
from litestar import Litestar, get, post
from litestar.params import JSONBody
from litestar.types import Scope

from roost.api.routes.common import asking_of, may
from roost.api.server import SettingsSource, address_to_bind, listen, run
from roost.settings import load
from roost.wire.tenants import TenantWish

PATH, HELD = "/bench/echo", "/bench/held"
_decode = msgspec.json.Decoder(TenantWish).decode
_encode = msgspec.json.Encoder().encode


@post(PATH, status_code=201, **may("allocate"))
async def echo(data: JSONBody[TenantWish]) -> TenantWish:
    """What was sent."""
    return data


@get(HELD, **may("read"))
async def held(scope: Scope) -> dict[str, float]:
    """For how long the event loop served nobody else, at most, since this was last asked."""
    pulse = asking_of(scope).service.pulse
    most, pulse.most = pulse.most, 0.0
    return {"ms": most * 1e3}


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """The same without gate and framework."""
    del scope
    message = await receive()
    body = _encode(_decode(message["body"]))
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _serve(store: str, zone: str) -> None:
    origin = SettingsSource(None, {"store.url": store, "store.zone": zone, "server.port": 0})
    settings = load(origin.file, os.environ, origin.overrides).settings
    address_to_bind(settings)
    bound = listen("127.0.0.1", 0)
    run(settings, origin, bound, more=[echo, held], ready=lambda: _say(bound.getsockname()[1]))


def _serve_alone(app: Any) -> None:
    bound = listen("127.0.0.1", 0)
    config = uvicorn.Config(
        app, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False, proxy_headers=False
    )
    _say(bound.getsockname()[1])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(uvicorn.Server(config).serve(sockets=[bound]))


def _say(port: int) -> None:
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        _serve(sys.argv[1], sys.argv[2])
    else:
        _serve_alone(bare if sys.argv[1] == "bare" else Litestar([echo], openapi_config=None))
