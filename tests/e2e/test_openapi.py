"""What the service says of itself in OpenAPI is valid, whole and true: Schemathesis tries what it promises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import CheckFunction, load_all_checks, not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.e2e.serving import serving
from tests.e2e.talking import audit, make_store
from tests.e2e.test_http_tokens import TABLE, WISH

EXAMPLES = 10  # of each route, each way
CHECKS: list[CheckFunction] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
UNTRIED = {("GET", "/v1/changes/stream"): "it never ends; test_http_routes reads it"}
TRIED = [
    (method, path.replace(":str", "").replace(":path", "")) for method, path in TABLE if (method, path) not in UNTRIED
]


class Promised:
    """A service with something in it, and what it says of itself."""

    def __init__(self, url: str) -> None:
        self.url = url
        made = httpx.post(f"{url}/v1/tokens", json={"name": "root", "scopes": ["admin"]})
        self.headers = {"Authorization": f"Bearer {made.json()['token']}"}
        self.document: dict[str, Any] = httpx.get(f"{url}/openapi.json").json()
        self.schema = schemathesis.openapi.from_dict(self.document)
        self.real = {"tenant": "web", "vm": "web/0", "machine": "c1-r00-m00", "cluster": "c1", "rack": "c1-r00",
                     "name": "default"}  # fmt: skip
        self.restore()

    def restore(self) -> None:
        """What tries may have taken away is there again."""
        httpx.delete(f"{self.url}/v1/thresholds/{self.real['cluster']}", headers=self.headers)
        body = {"tenant": "web", **WISH}
        made = httpx.post(f"{self.url}/v1/tenants", json=body, headers=self.headers)
        assert made.status_code in (201, 409), made.text
        self.real["key"] = made.json()["decision"] if made.status_code == 201 else self.real["key"]

    def ground(self, case: Any) -> None:
        """Let a case speak of what is there, so that more than its words are looked at."""
        for name in case.path_parameters or {}:
            case.path_parameters[name] = self.real[name]
        for name in set(case.query or {}) & {"machine", "cluster", "type", "tenant"}:
            case.query[name] = "D2" if name == "type" else self.real[name]
        body = case.body if isinstance(case.body, dict) else {}
        for request in (body, *body.get("requests", ())):
            request.pop("constraints", None)
            if "vms" in request and not case.path.endswith(("/release", "/healing", "/evictions")):
                request["vms"] = [{"type": "D2"}]
        for machine in body.get("machines", ()) if case.path.endswith("/machines") else ():
            machine |= {"datacenter": "dc1", "cluster": "c1", "rack": "r9", "generation": "v1"}
            machine["capacity"], machine["features"] = {}, []


@pytest.fixture(scope="module")
def promised(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Promised]:
    """One service for all routes."""
    load_all_checks()
    folder = tmp_path_factory.mktemp("openapi")
    store = make_store(str(folder / "tiny.db"), folder)
    with serving(store) as service:
        yield Promised(service.url)
        assert '"a bug"' not in service.stderr
    audit(store)


def test_the_document_is_valid_and_says_something_about_everything(promised: Promised) -> None:
    document = promised.document
    assert document["openapi"].startswith("3.1.")
    promised.schema.validate()
    served = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert served == {*TRIED, *((method, path) for method, path in UNTRIED)}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            said = f"{method} {path}"
            assert operation.get("description"), said
            for parameter in operation.get("parameters", ()):
                assert parameter.get("description"), f"{said}: {parameter['name']}"
            for status, response in operation["responses"].items():
                assert response["description"], f"{said}: {status}"
            assert operation["operationId"], said
    for name, shape in document["components"]["schemas"].items():
        for part in _parts(shape):
            assert part.get("type") != "array" or part.get("items"), name
    assert document["components"]["schemas"]["VMWish"]["additionalProperties"] is False
    names = [operation["operationId"] for item in document["paths"].values() for operation in item.values()]
    assert len(set(names)) == len(names)


def _parts(shape: Any) -> Iterator[dict[str, Any]]:
    """Every schema within a schema."""
    if isinstance(shape, dict):
        yield shape
    for part in shape.values() if isinstance(shape, dict) else shape if isinstance(shape, list) else ():
        yield from _parts(part)


@pytest.mark.parametrize(("method", "path"), TRIED)
def test_answers_are_what_the_document_promises(promised: Promised, method: str, path: str) -> None:
    operation = promised.schema[path][method]

    def trying(mode: GenerationMode, checks: list[CheckFunction]) -> None:
        @settings(
            max_examples=EXAMPLES, database=None, phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode), grounded=st.booleans())
        def try_out(case: Any, grounded: bool) -> None:
            if grounded and mode is GenerationMode.POSITIVE:
                promised.ground(case)
            answer = case.call(promised.url, headers=promised.headers, timeout=20)
            expected = CHECKS if answer.status_code == 413 else checks  # which is a refusal, too
            case.validate_response(answer, checks=expected)

        try_out()

    trying(GenerationMode.POSITIVE, CHECKS)
    if operation.body or operation.query or operation.headers:
        trying(GenerationMode.NEGATIVE, [*CHECKS, negative_data_rejection])
    promised.restore()
