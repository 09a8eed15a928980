"""`roost serve`: the HTTP service."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from roost.cli.options import Rules
from roost.cli.starting import Starting

Config = Annotated[Path | None, typer.Option("--config", help="A settings file; see `roost config describe`.")]


def serve(
    store: Annotated[str | None, typer.Option(help="A file (SQLite, the default) or postgresql://…")] = None,
    zone: Annotated[
        str | None, typer.Option(help="For a store that does not exist yet: a zone file, or synthetic:SIZE.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on; 0: any free one.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that share the port; PostgreSQL only.")] = None,
    policy: Annotated[str | None, typer.Option(help="A shipped policy or a file, until one is activated.")] = None,
    rules: Rules = None,
    tls_cert: Annotated[str | None, typer.Option(help="A PEM file; with --tls-key, HTTPS is served.")] = None,
    tls_key: Annotated[str | None, typer.Option(help="A PEM file.")] = None,
    allow_anonymous: Annotated[
        bool | None, typer.Option("--allow-anonymous", help="Serve without tokens beyond loopback.")
    ] = None,
    override: Annotated[
        list[str] | None, typer.Option("--set", help="Any other setting: --set limits.rate=100.", metavar="NAME=VALUE")
    ] = None,
    config: Config = None,
) -> None:
    """Serve the HTTP API. Without set-up: a zone of 1,000 made-up machines in the file roost.db, on loopback.

    \b
      roost serve
      roost serve --store zone.db --zone examples/zone.yaml --port 8080
      roost serve --store postgresql://localhost/roost --workers 4 --host 0.0.0.0

    Until the first token is made (`roost token create`) it listens on loopback only. SIGTERM drains and stops; SIGHUP
    reads limits, logging, retention and certificates anew. `roost config describe` tells every setting.
    """
    from roost.api import logs
    from roost.api.server import SettingsSource, address_to_bind, listen, run
    from roost.api.workers import Workers
    from roost.rules.own import OwnRules
    from roost.rules.policy import PolicySource
    from roost.settings import load

    given: dict[str, object] = {
        "store.url": store,
        "store.zone": zone,
        "server.host": host,
        "server.port": port,
        "server.workers": workers,
        "server.tls_cert": tls_cert,
        "server.tls_key": tls_key,
        "server.allow_anonymous": allow_anonymous,
        "agent.policy": policy,
        "agent.rules": rules,
    }
    for each in override or ():
        name, _, value = each.partition("=")
        given[name] = value
    origin = SettingsSource(config, {name: value for name, value in given.items() if value is not None})
    settings = load(origin.file, os.environ, origin.overrides).settings
    logs.set_up(settings.log)
    several = settings.server.workers > 1
    source = PolicySource.find(settings.agent.policy, OwnRules.find(settings.agent.rules))
    with Starting(settings) as starting:
        starting.tell("opening the store")
        host_, fallen_back = address_to_bind(settings, starting.tell)
        bound = listen(host_, settings.server.port, shared=several)
        starting.listens(bound, fallen_back=fallen_back)
        if several:
            sys.exit(Workers(settings, origin, source, bound, starting.tell, starting.ready).run())
        run(settings, origin, bound, policy=source, tell=starting.tell, ready=starting.ready)
