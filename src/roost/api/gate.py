"""Everything that is the same for every request: limits, who asks, ids, metrics and the log; then the routes.

One plain ASGI layer, because each costs every request some microseconds.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from roost.api import logs
from roost.api.problems import MEDIA_TYPE, Refused, of_error
from roost.api.service import Service
from roost.api.tokens import ANYBODY, Principal, TokenBook
from roost.model.errors import RoostError
from roost.model.readable import plain
from roost.model.tokens import TOKEN

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]
Express = Callable[[Any, Mapping[bytes, bytes], bytes, Send], Awaitable[bool]]

OPEN = frozenset({"/healthz", "/readyz", "/openapi.json", "/"})  # for everybody
WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
LOOPBACK = re.compile(r"^(localhost|127(\.\d+){3}|\[::1\])(:\d+)?$")
REQUEST_ID = re.compile(rb"^[\x21-\x7e]{1,100}$")
TRACEPARENT = re.compile(rb"^[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}$")
LARGEST_BODIES = 64  # that may arrive at once, if all are as large as they may be
MOST_BUCKETS = 10_000  # tokens whose rates are remembered

log = structlog.get_logger()
_lots = random.Random(os.urandom(16))


@dataclass(slots=True)
class Asking:
    """One request: who asks, and what has come of it so far."""

    service: Service
    principal: Principal
    request_id: str
    trace_id: str = ""
    decision: str = ""  # the key of what was decided
    status: int = 0
    ended: Callable[[], None] | None = None  # called when all of it is over, however it ends
    said: tuple[str, bytes, bytes] = ("", b"", b"")  # path, query and body

    def has_said(self, word: str) -> bool:
        """Whether a word is the asker's own."""
        path, query, body = self.said
        return word in path or word.encode() in query or word.encode() in body


class Gate:
    """Lets requests in."""

    def __init__(
        self, app: App, service: Service, *, loopback: bool, express: Mapping[tuple[str, str], Express] | None = None
    ) -> None:
        """`loopback`: only this very machine can connect, so that tokens are needed only once there are some.

        `express`: by method and path, a shorter way through; see `roost.api.express`.
        """
        self._app, self._service, self._loopback, self._express = app, service, loopback, express or {}
        self._arriving = 0  # bytes of bodies that are not whole yet
        self._buckets: dict[str, tuple[float, float]] = {}  # by token: what it may still ask, and when that was so

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        mine = REQUEST_ID.match(given) and not TOKEN.search(given.decode())
        request_id = given.decode() if mine else f"{_lots.getrandbits(64):016x}"
        asking = Asking(self._service, ANYBODY, request_id)
        if (parent := headers.get(b"traceparent")) and (trace := TRACEPARENT.match(parent)):
            asking.trace_id = trace[1].decode()
        scope["roost"] = asking
        stamp = (b"x-request-id", request_id.encode())

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                asking.status = message["status"]
                message["headers"] = [*message["headers"], stamp]
            await send(message)

        try:
            if scope["path"] not in OPEN:
                asking.principal = self._identify(headers)
                self._check_rate(asking.principal.name)
            body = await self._receive_all(scope["method"], headers, receive)
            asking.said = scope["path"], scope["query_string"], body
            express = self._express.get((scope["method"], scope["path"])) if not scope["query_string"] else None
            if express is None or not await express(scope, headers, body, answer):
                await self._app(scope, _replay(body, receive), answer)
        except Refused as refused:
            await self._refuse(refused, asking, scope, answer)
        except RoostError as error:
            await self._refuse(of_error(error), asking, scope, answer)
        except (RecursionError, UnicodeDecodeError):
            said = "the body is nested too deeply, or is not UTF-8"
            await self._refuse(Refused("roost.invalid_request", said), asking, scope, answer)
        except asyncio.CancelledError:
            if not self._service.closing.is_set():
                raise
            said = "the service stops, and may still do it: ask again with the same Idempotency-Key"
            await self._refuse(Refused("roost.store_unavailable", said), asking, scope, answer)
        except Exception:
            log.exception("a bug", request_id=request_id, path=scope["path"])
            await self._refuse(Refused("roost.internal", "look into the log"), asking, scope, answer)
        finally:
            if asking.ended is not None:
                asking.ended()
            self._note(scope, asking, time.perf_counter() - started)

    async def _refuse(self, refused: Refused, asking: Asking, scope: Any, send: Send) -> None:
        if asking.status:  # too late to say anything else
            return
        body = refused.body(asking, scope["path"])
        headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
        headers += [(name.encode(), value.encode()) for name, value in refused.headers().items()]
        await send({"type": "http.response.start", "status": refused.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    # ---------------------------------------------------------------------------------------------- who

    def _identify(self, headers: dict[bytes, bytes]) -> Principal:
        service, given = self._service, headers.get(b"authorization")
        if given is None:
            if service.ready and self._is_open(service.tokens):
                # A page in a browser on this machine must not be able to speak for its user.
                if self._loopback and not LOOPBACK.match(headers.get(b"host", b"").decode("latin-1")):
                    raise Refused("roost.forbidden", "without tokens only requests to localhost are answered")
                return ANYBODY
            service_ready(service)
            where = "" if service.tokens else " on the store (--store): all tokens were revoked"
            raise Refused(
                "roost.unauthorised", f"send Authorization: Bearer roost_…; make one with `roost token create`{where}"
            )
        scheme, _, token = given.decode("latin-1").partition(" ")
        service_ready(service)
        principal = service.tokens.principal(token.strip(), time.time()) if scheme.lower() == "bearer" else None
        if principal is None:
            raise Refused("roost.unauthorised", "the token is not known, or has expired")
        return principal

    def _is_open(self, tokens: TokenBook) -> bool:
        """Whether anybody may ask: as long as nobody has made a token, on loopback; without tokens, if set so."""
        return (self._loopback and tokens.never_any) or (not tokens and self._service.settings.server.allow_anonymous)

    def _check_rate(self, who: str) -> None:
        limits = self._service.settings.limits
        if not limits.rate:
            return
        now = time.monotonic()
        left, then = self._buckets.get(who, (float(limits.burst), now))
        left = min(float(limits.burst), left + (now - then) * limits.rate)
        if left < 1.0:
            raise Refused("roost.rate_limited", f"more than {plain(limits.rate)} requests a second")
        if len(self._buckets) > MOST_BUCKETS:
            self._buckets.clear()
        self._buckets[who] = left - 1.0, now

    # --------------------------------------------------------------------------------------------- what

    async def _receive_all(self, method: str, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """The body, if it is not too large and does not take too long."""
        most = self._service.settings.limits.body_bytes
        length = headers.get(b"content-length")
        if length is not None and (not length.isdigit() or int(length) > most):
            raise Refused("roost.too_large", f"the body may have {most:,} bytes")
        if length in (None, b"0") and b"transfer-encoding" not in headers:
            return b""
        message = await receive()
        _check_there(message)
        body: bytes = message.get("body", b"")
        if message.get("more_body"):
            body = await self._receive_rest(body, most, receive)
        if len(body) > most:
            raise Refused("roost.too_large", f"the body may have {most:,} bytes")
        if body and method in WRITES:
            kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
            if kind != b"application/json":
                raise Refused("roost.unsupported_media_type", "send Content-Type: application/json")
        return body

    async def _receive_rest(self, body: bytes, most: int, receive: Receive) -> bytes:
        parts, size, more = [body], len(body), True
        self._arriving += size
        try:
            async with asyncio.timeout(self._service.settings.limits.request_seconds):
                while more:
                    message = await receive()
                    _check_there(message)
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    self._arriving += len(parts[-1])
                    more = message.get("more_body", False)
                    if size > most:
                        raise Refused("roost.too_large", f"the body may have {most:,} bytes")
                    if self._arriving > LARGEST_BODIES * most:
                        raise Refused("roost.overloaded", "too many large bodies arrive at once")
        except TimeoutError:
            raise Refused("roost.timeout", "the body did not arrive in time") from None
        finally:
            self._arriving -= size
        return b"".join(parts)

    # -------------------------------------------------------------------------------------------- after

    def _note(self, scope: Any, asking: Asking, seconds: float) -> None:
        method, status = scope["method"], asking.status
        route = scope.get("path_template") or "unmatched"
        self._service.metrics.answered(method if method in WRITES else "GET", route, status, seconds)
        wanted = self._service.settings.log.requests
        if wanted == "failed" and status < 500:
            return
        if wanted == "writes" and method not in WRITES and status < 500:
            return
        line = {
            "method": method,
            "path": scope["path"],
            "status": status,
            "ms": round(seconds * 1e3, 2),
            "by": asking.principal.name,
            "request_id": asking.request_id,
        }
        if asking.decision:
            line["decision"] = asking.decision
        if asking.trace_id:
            line["trace_id"] = asking.trace_id
        logs.request(line)


def service_ready(service: Service) -> None:
    """Before the zone is loaded nobody can be identified."""
    if not service.ready:
        service.check_open()


def _check_there(message: Message) -> None:
    """Half a request is none, even if that half would make sense."""
    if message["type"] == "http.disconnect":
        raise Refused("roost.invalid_request", "the body ended early")


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body once, whole; afterwards what the connection says."""
    first = True

    async def replayed() -> Message:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replayed
