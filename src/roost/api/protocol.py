"""How bytes of a connection become requests: uvicorn's parser, with limits of time and size around it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from roost.api.problems import MEDIA_TYPE, Refused
from roost.settings import LimitsSection

log = structlog.get_logger()


class Corked:
    """A transport that sends what is written in one turn of the loop at once: headers and body are one packet."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._waiting: list[bytes] = []
        self.is_closing, self.get_extra_info = transport.is_closing, transport.get_extra_info
        self.pause_reading, self.resume_reading = transport.pause_reading, transport.resume_reading
        self.get_write_buffer_size = transport.get_write_buffer_size

    def write(self, data: bytes) -> None:
        """Send this soon."""
        if not self._waiting:
            self._loop.call_soon(self.flush)
        self._waiting.append(data)

    def flush(self) -> None:
        """Send it now."""
        waiting, self._waiting = self._waiting, []
        if waiting and not self._transport.is_closing():
            self._transport.write(b"".join(waiting))

    def close(self) -> None:
        """Send what is left, then close."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Have another one read."""
        self._transport.set_protocol(protocol)


class _Trailers(list[tuple[bytes, bytes]]):
    """What comes after a body in chunks: nobody asks for it, so it is not kept, and never taken for headers."""

    def append(self, _: tuple[bytes, bytes]) -> None:
        """Forget it."""


class Protocol(HttpToolsProtocol):
    """One connection. Who sends a request too slowly, or too much beside its body, or takes no answer, is cut off."""

    header_bytes, request_seconds, most_connections, write_seconds = 16_384, 30.0, 2_000, 30.0

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._unfinished: asyncio.TimerHandle | None = None  # cuts off, unless the request is whole by then
        self._in_headers, self._whole = True, False
        self._requests = 0  # that were received whole
        self._received = self._body = 0  # bytes of the request so far, and those that are its body
        self._stalled: asyncio.TimerHandle | None = None  # cuts off, unless something of what waits is taken by then

    @classmethod
    def limit(cls, limits: LimitsSection) -> None:
        """What holds for every connection from now on."""
        cls.header_bytes, cls.most_connections = limits.header_bytes, limits.connections
        cls.request_seconds, cls.write_seconds = limits.request_seconds, limits.write_seconds

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody connects."""
        super().connection_made(cast(asyncio.Transport, Corked(transport, self.loop)))
        if len(self.connections) > self.most_connections:
            self._say(Refused("roost.overloaded", f"{self.most_connections:,} connections are open"))
            return
        self._unfinished = self.loop.call_later(self.request_seconds, self._cut_off)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._finished()
        self._taken()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The other side sends no more. It may still wait for an answer; of a stream it is taken to be gone."""
        cycle: RequestResponseCycle | None = self.cycle
        cast(Corked, self.transport).flush()
        if cycle is None or cycle.response_started or not self._whole or self.scheme == "https":
            return False
        cycle.keep_alive = False
        return True

    def data_received(self, data: bytes) -> None:
        """Some bytes of a request."""
        if self.transport.is_closing():
            return
        requests = self._requests
        super().data_received(data)
        if self._whole:
            self._finished()
            return
        if self._requests == requests:  # else some of it belongs to the request before
            self._received += len(data)
        beside = self._received - self._body
        if beside > self.header_bytes and (self._in_headers or beside > 2 * self.header_bytes + 8 * self._body):
            self._say(Refused("roost.headers_too_large", f"headers may have {self.header_bytes:,} bytes"))
        elif self._unfinished is None:
            self._unfinished = self.loop.call_later(self.request_seconds, self._cut_off)

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_headers, self._whole = True, False
        self._received = self._body = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its headers are whole."""
        self._in_headers = False
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size <= self.header_bytes:
            super().on_headers_complete()
        else:
            app, self.app = self.app, _too_many_headers
            super().on_headers_complete()
            self.app = app
        self.headers = _Trailers()

    def on_body(self, body: bytes) -> None:
        """Some of its body."""
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """All of it is here."""
        self._whole = True
        self._requests += 1
        super().on_message_complete()

    def pause_writing(self) -> None:
        """So much waits to be read that no more is sent."""
        super().pause_writing()
        self._expect_reader(cast(Corked, self.transport).get_write_buffer_size())

    def resume_writing(self) -> None:
        """Enough of it was read."""
        super().resume_writing()
        self._taken()

    def _expect_reader(self, waiting: int) -> None:
        self._taken()
        self._stalled = self.loop.call_later(self.write_seconds, self._look_at_reader, waiting)

    def _look_at_reader(self, before: int) -> None:
        """Who reads slowly may go on; who reads nothing holds a connection, what waits, and maybe a stream."""
        waiting = cast(Corked, self.transport).get_write_buffer_size()
        if waiting < before:
            self._expect_reader(waiting)
        else:
            log.info("a reader was cut off, as it takes nothing", bytes_waiting=waiting)
            self.transport.abort()

    def _taken(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP."""
        self._say(Refused("roost.invalid_request", msg))

    def _finished(self) -> None:
        if self._unfinished is not None:
            self._unfinished.cancel()
            self._unfinished = None

    def _cut_off(self) -> None:
        self._unfinished = None
        if self._received:
            self._say(Refused("roost.timeout", "the request did not arrive in time"))
        else:
            self.transport.close()

    def _say(self, refused: Refused) -> None:
        """A last word, and goodbye. No word if it would be taken for the answer to an earlier request."""
        cycle: RequestResponseCycle | None = self.cycle
        between = self._in_headers or self._whole  # then the cycle is of the request before
        if cycle is not None and (not cycle.response_complete if between else cycle.response_started):
            self.transport.close()
            return
        body = refused.body()
        extra = "".join(f"{name}: {value}\r\n" for name, value in refused.headers().items())
        head = f"HTTP/1.1 {refused.status} \r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n{extra}"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()


async def _too_many_headers(_scope: Any, _receive: Any, send: Any) -> None:
    refused = Refused("roost.headers_too_large", "send fewer or shorter headers")
    body = refused.body()
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
