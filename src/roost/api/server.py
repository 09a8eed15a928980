"""One process that serves: it listens, answers, drains when told to stop, and reads its settings anew when told to."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import structlog
import uvicorn
import uvloop
from litestar.types import ControllerRouterHandler

from roost.api import letters, logs
from roost.api.app import make_gate
from roost.api.problems import Refused
from roost.api.protocol import Protocol
from roost.api.service import Service
from roost.api.tokens import CLOSED
from roost.model.errors import InvalidInput, RoostError, StoreBroken, StoreUnavailable
from roost.model.registry import TOKEN
from roost.rules.policy import PolicySource
from roost.settings import Settings, load
from roost.wiring import ensure_store, open_store

KEEP_ALIVE_SECONDS = 60
BACKLOG = 2_048
SWITCH_SECONDS = 0.0005  # after which a thread lets another go on: the loop must not wait long for a courier's
PARENT_SECONDS = 1.0  # between looks whether whoever started this worker still lives

log = structlog.get_logger()


@dataclass(frozen=True)
class SettingsSource:
    """Where settings come from, to read them again."""

    file: Path | None
    overrides: dict[str, object]

    def load(self) -> Settings:
        """As they are now."""
        return load(self.file, os.environ, self.overrides).settings


class Server(uvicorn.Server):
    """Lets streams end before it waits for connections, and the agent finish before it is gone."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are handled by whoever runs this."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, finish or fail what is in flight, then let go of the store."""
        log.info("stopping", in_flight=len(self.server_state.tasks))
        deadline = time.monotonic() + self.service.settings.server.drain_seconds
        self.service.closing.set()
        await super().shutdown(sockets)
        await self.service.stop(deadline)
        self.service.metrics.pour()  # other workers tell what this one has counted
        log.info("stopped")


def is_loopback(host: str) -> bool:
    """Whether only this very machine can connect."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A socket; `shared`: several processes may each have one at the same address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        found.bind((host, port))
        if not shared:
            found.listen(BACKLOG)  # whoever is told of the address can connect at once
    except (OSError, UnicodeError) as error:
        found.close()
        said = getattr(error, "strerror", None) or str(error)
        raise InvalidInput("server.port", f"cannot listen at {host}:{port}: {said}", "choose another") from None
    return found


def address_to_bind(settings: Settings, tell: Callable[[str], None] = lambda _: None) -> tuple[str, bool]:
    """The address to listen on, and whether it is loopback because there are no tokens.

    Makes the store if there is none yet; `tell` hears that.
    """
    host = settings.server.host
    try:
        if odd := ensure_store(settings.store.url, settings.store.zone, tell):
            log.warning(odd)
        if is_loopback(host) or settings.server.allow_anonymous:
            return host, False
        store = open_store(settings.store.url, read_only=True)
        guarded = store.registry(TOKEN) or CLOSED[1] in store.registry(CLOSED[0])
        store.close()
    except StoreBroken:
        raise
    except StoreUnavailable as error:
        log.warning("the store is away; serving 503 until it is back", detail=str(error))
        return host, False
    return (host, False) if guarded else ("127.0.0.1", True)


def run(
    settings: Settings,
    origin: SettingsSource | None,
    bound: socket.socket,
    *,
    policy: PolicySource | None = None,
    place: int = 0,
    parent: int = 0,
    line: Connection | None = None,
    tell: Callable[[str], None] = lambda _: None,
    ready: Callable[[], None] = lambda: None,
    more: Sequence[ControllerRouterHandler] = (),
) -> None:
    """Serve until told to stop. `parent`: stop when that process is gone.

    `ready` is called when the zone is loaded; until then `tell` hears what is being done, from another thread. SIGHUP
    reads settings anew from their `origin`; or they come by `line` from the process that reads them for all. `more`:
    routes that are served besides; benchmarks have some.
    """
    logs.set_up(settings.log)
    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, origin, bound, policy, place, parent, line, tell, ready, more))


async def _serve(
    settings: Settings,
    origin: SettingsSource | None,
    bound: socket.socket,
    policy: PolicySource | None,
    place: int,
    parent: int,
    line: Connection | None,
    tell: Callable[[str], None],
    ready: Callable[[], None],
    more: Sequence[ControllerRouterHandler],
) -> None:
    service = Service(settings, place=place, policy=policy, tell=tell)
    host = bound.getsockname()[0]
    protocol = _limited(settings)
    config = uvicorn.Config(
        make_gate(service, *more, loopback=is_loopback(host)),
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, round(settings.server.drain_seconds)),
        ssl_certfile=settings.server.tls_cert or None,
        ssl_keyfile=settings.server.tls_key or None,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(
            "server.tls_cert", f"cannot be used: {error}", "give PEM files that belong together"
        ) from None
    server = Server(config, service)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM,) if parent else (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.handle_exit, number, None)
    if origin is not None:
        loop.add_signal_handler(signal.SIGHUP, _reload, service, protocol, config, origin)
    if line is not None:
        loop.add_reader(line.fileno(), _hear, line, service, protocol, config)
    starting = asyncio.create_task(_start(service, server, ready))
    beside = [asyncio.create_task(_watch(parent, server))] if parent else []
    if folder := letters.folder_of(settings.store.url):
        beside.append(asyncio.create_task(_take_letters(service, folder)))
    await server.serve(sockets=[bound])
    for task in (starting, *beside):
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await starting  # what kept it from starting, if anything did


async def _start(service: Service, server: Server, ready: Callable[[], None]) -> None:
    try:
        await service.start()
        ready()
    except BaseException:
        server.should_exit = True
        raise


async def _watch(parent: int, server: Server) -> None:
    while os.getppid() == parent:
        await asyncio.sleep(PARENT_SECONDS)
    server.should_exit = True


async def _take_letters(service: Service, folder: Path) -> None:
    while True:
        await asyncio.sleep(letters.LOOK_SECONDS)
        if service.ready and not service.watch.down:
            with contextlib.suppress(Refused, OSError):  # the store went away meanwhile, or others own the folder
                await letters.take(service, folder)


def _limited(settings: Settings) -> type[Protocol]:
    class Limited(Protocol):
        """A connection of this server."""

    Limited.limit(settings.limits)
    return Limited


def renewed(settings: Settings, origin: SettingsSource) -> Settings | None:
    """Limits, logs, retention and certificates anew; where to listen and the store stay. None if there is a mistake."""
    server = settings.server
    try:
        fresh = origin.load()
        if server.tls_cert:
            server = replace(server, tls_cert=fresh.server.tls_cert, tls_key=fresh.server.tls_key)
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(server.tls_cert, server.tls_key)
    except (RoostError, OSError, ssl.SSLError) as error:
        log.error("the settings were not read anew", detail=str(error))
        return None
    return replace(settings, server=server, limits=fresh.limits, log=fresh.log, retention=fresh.retention)


def _reload(service: Service, protocol: type[Protocol], config: uvicorn.Config, origin: SettingsSource) -> None:
    if (fresh := renewed(service.settings, origin)) is not None:
        _take_over(fresh, service, protocol, config)


def _hear(line: Connection, service: Service, protocol: type[Protocol], config: uvicorn.Config) -> None:
    """Something from the process that started this one: settings, or how many workers are missing."""
    try:
        told = line.recv()
    except (EOFError, OSError):  # it is gone, which is seen elsewhere
        asyncio.get_running_loop().remove_reader(line.fileno())
        return
    if isinstance(told, Settings):
        _take_over(told, service, protocol, config)
    else:
        service.metrics.missing.set(told)


def _take_over(fresh: Settings, service: Service, protocol: type[Protocol], config: uvicorn.Config) -> None:
    try:
        if config.ssl is not None:
            config.ssl.load_cert_chain(fresh.server.tls_cert, fresh.server.tls_key)
    except (OSError, ssl.SSLError) as error:  # they changed since they were looked at
        log.error("the certificate was not read anew", detail=str(error))
    service.renew(fresh)
    protocol.limit(fresh.limits)
    logs.set_up(fresh.log)
    log.info("settings read anew")
