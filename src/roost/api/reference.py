"""Reference pages made from the code itself: `python -m roost.api.reference api > docs/reference/api.md`.

Tests compare the pages that are committed with what is made here.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from prometheus_client.metrics import MetricWrapperBase

from roost.api.app import NOUNS, document, make_app
from roost.api.metrics import RESULTS, Metrics
from roost.api.problems import KINDS
from roost.api.routes.common import COMMON
from roost.api.tokens import IMPLIED
from roost.model import availability, request
from roost.settings import SECTIONS, SettingDescription, describe
from roost.wire.basics import Wire
from roost.wire.forms import FORMS

MADE = "<!-- Made by `python -m roost.api.reference {}`; not edited by hand. -->"
API = """# The HTTP API

{made}

JSON over HTTP, under `/v1`. `GET /openapi.json` has the same as OpenAPI 3.1, for programs.

- **Tokens** come as `Authorization: Bearer roost_…`. Scopes: {scopes}.
  A token bound to a namespace `shop` sees the tenants `shop` and `shop.…`, and nothing of others.
- **Every answer** has an `X-Request-Id`: yours if you sent one, else a new one. The trace id of a `traceparent` goes
  into the log.
- **Writes** take an `Idempotency-Key`. The same key is never done twice; what was done is answered again.
- **`dry_run=true`** on a write says what would come of it, does nothing, and answers 200.
- **Generations** come as a field and as `ETag`. Send one as `If-Match`, and the write is refused if somebody changed
  the thing meanwhile.
- **Lists** come in pages: send `next` of a page as `cursor`.
- **What goes wrong** is a [problem](#problems) with a code that never changes. Any route that needs a token may answer
  with {common};
  below, only what comes on top is named.
"""
PROBLEMS = """## Problems

Whatever goes wrong is answered as `application/problem+json` (RFC 9457): a [Problem](#problem). A code, once released,
keeps its meaning. Retryable: the same request may succeed later. 429 and 503 say when, in `Retry-After`.
"""
SETTINGS = """# Settings

{made}

A flag wins over the environment, the environment over the file, the file over the default. The file is what `--config`
or `ROOST_CONFIG` names, else `roost.toml` in the current folder, if there is one.

`roost config show` tells which values are in force and where they come from, `roost config check FILE` finds mistakes,
and `roost config describe -o toml` writes a file with every default.
"""
METRICS = """# Metrics

{made}

`GET /metrics` has them as Prometheus reads them; a token needs scope `read`. With several workers at one port, any of
them answers for all. Labels are bounded: never a machine, a tenant or a VM.
"""
SCALARS = {
    "integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "object": "mapping",
    "null": "null",
}  # fmt: skip
REF = "#/components/schemas/"
FIELD_COMMENT = re.compile(r"^    (\w+): .*?  # (.+)$", re.MULTILINE)
ANY_ROUTE = (*COMMON, "roost.internal")

PageLines = Iterator[str]


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> PageLines:
    """A table in Markdown, and an empty line."""
    yield f"| {' | '.join(headings)} |"
    yield "|" + "---|" * len(headings)
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


# ----------------------------------------------------------------------------------------------------------------- API


def api() -> PageLines:
    """Every route, every form, every problem."""
    found = document(make_app())
    scopes = ", ".join(f"`{scope}`{_implies(known - {scope})}" for scope, known in IMPLIED.items())
    yield API.format(made=MADE.format("api"), scopes=scopes, common=_codes(ANY_ROUTE))
    for title, routes in NOUNS:
        yield from (f"## {title}", "")
        for route in routes:
            yield from _route(route, found["paths"])
    yield from ("## Forms", "", "What is sent and what is answered.", "")
    for name, schema in found["components"]["schemas"].items():
        yield from _form(name, schema)
    yield PROBLEMS
    rows = (
        (f"`{code}`", str(int(kind.status)), kind.title, "yes" if kind.retryable else "")
        for code, kind in sorted(KINDS.items(), key=lambda each: (each[1].status, each[0]))
    )
    yield from table(("code", "status", "what it means", "retryable"), rows)


def _implies(more: Iterable[str]) -> str:
    return f" (and with it {', '.join(sorted(more))})" if more else ""


def _codes(codes: Iterable[str]) -> str:
    return ", ".join(f"`{code}`" for code in codes)


def _route(route: Any, paths: Mapping[str, Any]) -> PageLines:
    (template,), (method,) = route.paths, route.http_methods
    path = re.sub(r":\w+}", "}", template)
    found = paths[path][method.lower()]
    yield from (f"### `{method} {path}`", "", found["description"], "", _who(route.opt), "")
    if parameters := [each for each in found.get("parameters", ()) if each["in"] != "path"]:
        yield from table(("parameter", "in", "what it is"), map(_parameter, parameters))
    if body := found.get("requestBody"):
        yield from (f"Body: {_type(body['content']['application/json']['schema'])}.", "")
    answers: dict[str, Any] = found["responses"]
    good = [status for status in answers if int(status) < HTTPStatus.BAD_REQUEST]
    yield from (f"Answer: {'; '.join(f'{status} {_answer(answers[status])}' for status in good)}.", "")
    codes = [code for status in answers if status not in good for code in answers[status]["description"].split(", ")]
    if special := [code for code in codes if code not in ANY_ROUTE]:
        yield from (f"Problems: {_codes(special)}.", "")


def _who(opt: Mapping[str, Any]) -> str:
    if opt["scope"] is None:
        return "For everybody, without a token."
    return f"Scope `{opt['scope']}`{'' if opt['namespaced'] else ', not bound to a namespace'}."


def _parameter(found: Mapping[str, Any]) -> tuple[str, str, str]:
    kind, default = _type(found["schema"]).removesuffix(" or null"), found["schema"].get("default")
    usual = f", {default} if left out" if default not in (None, "", False) else ""
    must = ", required" if found["required"] else ""
    return f"`{found['name']}`", found["in"], f"{kind}{usual}{must}. {found.get('description', '')}".strip()


def _answer(found: Mapping[str, Any]) -> str:
    for media, content in found.get("content", {}).items():
        return _type(content["schema"]) if media == "application/json" else f"`{media.partition(';')[0]}`"
    return "without a body"


def _type(schema: Mapping[str, Any]) -> str:
    """What a value is, in words."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(REF)
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return " or ".join(f"`{value}`" if value is not None else "null" for value in schema["enum"])
    if either := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(_type(each) for each in either if each.get("enum") != [""])
    kind = schema.get("type")
    if kind == "array":
        return f"list of {_type(schema['items'])}"
    if kind == "object" and "additionalProperties" in schema:
        return f"mapping of names to {_type(schema['additionalProperties'])}"
    return f"{SCALARS[kind]}{_range(schema)}" if kind else "anything"


def _form(name: str, schema: Mapping[str, Any]) -> PageLines:
    kind = FORMS.get(name) or getattr(availability, name, None) or getattr(request, name)
    comments = _comments(kind)
    yield from (f"### {name}", "", schema["description"], "")
    rows = []
    asked = not issubclass(kind, Wire)
    for field, each in schema["properties"].items():
        said, default = _type(each), each.get("default")
        if asked and field not in schema["required"]:
            said += f", `{default}` if left out" if default and default != () else ", may be left out"
        rows.append((f"`{field}`", said, each.get("description") or comments.get(field, "")))
    yield from table(("field", "type", "what it is"), rows)


def _comments(kind: type) -> dict[str, str]:
    """What is said of fields beside their definitions."""
    sources = [inspect.getsource(each) for each in reversed(kind.__mro__) if each.__module__.startswith("roost.")]
    return {name: words for source in sources for name, words in FIELD_COMMENT.findall(source)}


def _range(schema: Mapping[str, Any]) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and most is not None:
        return f" from {least:,.0f} to {most:,.0f}"
    return f" up to {most:,.0f}" if most is not None else ""


# ------------------------------------------------------------------------------------------------ settings and metrics


def settings() -> PageLines:
    """Every setting."""
    yield SETTINGS.format(made=MADE.format("settings"))
    for name, section in SECTIONS.items():
        yield from (f"## {name}", "", inspect.cleandoc(section.__doc__ or ""), "")
        rows = [_setting(each) for each in describe() if each.name.startswith(f"{name}.")]
        yield from table(("setting", "default", "allowed", "what it means", "environment"), rows)


def _setting(found: SettingDescription) -> tuple[str, str, str, str, str]:
    default = str(found.default).lower() if isinstance(found.default, bool) else str(found.default)
    return (
        f"`{found.name}`",
        f"`{default}` {found.unit}".strip() if default else "empty",
        "" if found.allowed.startswith("a text") else found.allowed,
        found.sentence,
        " ".join(f"`{variable}`" for variable in found.environment.split(" or ")),
    )


def metrics() -> PageLines:
    """Every metric."""
    yield METRICS.format(made=MADE.format("metrics"))
    found = [each for each in vars(Metrics()).values() if isinstance(each, MetricWrapperBase)]
    yield from table(("metric", "type", "labels", "what it means"), map(_metric, found))
    yield f"`result` of an attempt is {', '.join(f'`{each}`' for each in RESULTS.values())};"
    yield f"of an operation {', '.join(f'`{each}`' for each in RESULTS)}, as answers have it."
    yield "`verb` is what operations are called by [workers](../how-to/run-workers.md); those of duties are among them."


def _metric(found: MetricWrapperBase) -> tuple[str, str, str, str]:
    kind, labels = str(found._type), ", ".join(f"`{label}`" for label in found._labelnames)
    return f"`{found._name}{'_total' if kind == 'counter' else ''}`", kind, labels, found._documentation


PAGES: Mapping[str, Callable[[], PageLines]] = MappingProxyType({"api": api, "settings": settings, "metrics": metrics})


def page(name: str) -> str:
    """A page by its name."""
    return "\n".join(PAGES[name]()).rstrip("\n") + "\n"


if __name__ == "__main__":
    sys.stdout.write(page(sys.argv[1]))
