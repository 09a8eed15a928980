"""The HTTP application: every route, and how errors become problem documents."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import msgspec
from litestar import Litestar, Request, Response, get
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from litestar.types import ControllerRouterHandler

from roost.api.express import EXPRESS
from roost.api.gate import Asking, Gate
from roost.api.problems import MEDIA_TYPE, Refused, of_error
from roost.api.routes import (
    decisions,
    evictions,
    foresight,
    healing,
    machines,
    maintenance,
    operations,
    policies,
    tenants,
    thresholds,
)
from roost.api.routes.common import KNOWN, OUTSIDE, READER, anybody, guard
from roost.api.service import Service
from roost.json_mistakes import Reader, in_words
from roost.model.errors import RoostError
from roost.wire.forms import FORMS

# What the API is about, in the order of its reference.
NOUNS: Sequence[tuple[str, Sequence[Any]]] = (
    ("Tenants and VMs", tenants.ROUTES),
    ("Machines, clusters, the zone", machines.ROUTES),
    ("Thresholds", thresholds.ROUTES),
    ("Evictions and what is foreseen", (*evictions.ROUTES, *foresight.ROUTES)),
    ("Healing and maintenance", (*healing.ROUTES, *maintenance.ROUTES)),
    ("Capacity, explanations, decisions", decisions.ROUTES),
    ("Policies", policies.ROUTES),
    ("Changes, tokens, health, metrics", operations.ROUTES),
)
ROUTES: list[Any] = [route for _, routes in NOUNS for route in routes]


def _answer(request: Request[Any, Any, Any], refused: Refused, **headers: str) -> Response[bytes]:
    asking: Asking = request.scope["roost"]  # type: ignore[typeddict-item]
    return Response(
        refused.body(asking, request.scope["path"]),
        status_code=refused.status,
        headers={**refused.headers(), **headers},
        media_type=MEDIA_TYPE,
    )


def _refused(request: Request[Any, Any, Any], error: Refused) -> Response[bytes]:
    return _answer(request, error)


def _roost_error(request: Request[Any, Any, Any], error: RoostError) -> Response[bytes]:
    return _answer(request, of_error(error))


def _http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """What the framework finds wrong: paths, methods, parameters, bodies."""
    if isinstance(error, NotFoundException):
        return _answer(request, Refused("roost.not_found", f"there is nothing at {request.scope['path']}"))
    if isinstance(error, MethodNotAllowedException):
        allow = (error.headers or {}).get("allow", "")
        return _answer(request, Refused("roost.method_not_allowed", f"not {request.method}, but {allow}"), allow=allow)
    if error.status_code >= 500:
        raise error
    said, field = str(error.detail), ""
    extra = error.extra
    if isinstance(extra, list) and extra and isinstance(extra[0], dict):
        outside = request.route_handler.opt.get(OUTSIDE, {})
        found = [(str(each.get("key", "")), str(each.get("message", ""))) for each in extra if isinstance(each, dict)]
        found = [(outside.get(key, key), in_words(message)[1]) for key, message in found]
        field = found[0][0]
        said = "; ".join(f"{key}: {words}" for key, words in found)
    return _answer(request, Refused("roost.invalid_request", said, field=field))


def _bug(_: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Nothing that anybody expected: the gate notes it and answers."""
    raise error


def openapi_config() -> OpenAPIConfig:
    """What the OpenAPI document says beside the routes."""
    return OpenAPIConfig(
        title="Roost",
        version=version("roost"),
        description="Places virtual machines on the machines of a zone, and explains every decision.",
        path="/docs-not-served",
        render_plugins=[],
        use_handler_docstrings=True,
        components=Components(
            security_schemes={"token": SecurityScheme(type="http", scheme="bearer", description="A token of Roost.")}
        ),
        security=[{"token": []}, {}],
    )


@get("/openapi.json", include_in_schema=False, **anybody())
async def openapi(request: Request[Any, Any, Any]) -> dict[str, Any]:
    """This API, as OpenAPI 3.1."""
    return document(request.app)


@lru_cache(maxsize=1)
def document(app: Litestar) -> dict[str, Any]:
    """What an application can do, as OpenAPI 3.1. Made once: it takes some 30 ms, and anybody may ask for it."""
    found = app.openapi_schema.to_schema()
    found["components"]["schemas"] |= _shapes()
    return found


def _shapes() -> dict[str, Any]:
    """What goes over the wire, in msgspec's words: the framework's leave out what lists hold and what is refused."""
    _, found = msgspec.json.schema_components(FORMS.values(), ref_template="#/components/schemas/{name}")
    return found


def make_app(*more: ControllerRouterHandler) -> Litestar:
    """The routes; `more` are added for benchmarks."""
    app = Litestar(
        [*ROUTES, openapi, *more],
        guards=[guard],
        exception_handlers={Refused: _refused, RoostError: _roost_error, HTTPException: _http_error, Exception: _bug},
        openapi_config=openapi_config(),
        logging_config=None,
        request_max_body_size=None,
    )
    for handler, model in (pair for route in app.routes for pair in getattr(route, "route_handler_map", {}).values()):
        headers = {each.field_name: each.field_alias for each in model.expected_header_params}
        handler.opt[OUTSIDE] = headers | {each.field_name: each.field_alias for each in model.expected_query_params}
        handler.opt[KNOWN] = frozenset(each.field_alias for each in model.expected_query_params)
        if (data := handler.parsed_data_field) is not None:
            handler.opt[READER] = Reader(data.annotation)
    return app


def make_gate(service: Service, *more: ControllerRouterHandler, loopback: bool) -> Gate:
    """The whole application."""
    return Gate(make_app(*more), service, loopback=loopback, express=EXPRESS)
