"""A call is a value: one request and what its answer is; and how requests of the API are put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar
from urllib.parse import quote

from roost.model.errors import InvalidInput
from roost.wire.basics import LONGEST_KEY, Asked

T_co = TypeVar("T_co", covariant=True)

Value = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True)
class Call(Generic[T_co]):
    """One request, and what its answer is."""

    method: str
    path: str
    answer: type[T_co]
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Asked | None = None
    key: str | None = None  # the Idempotency-Key; empty: to be made up; None: this operation has none
    repeatable: bool = True  # asking twice does nothing twice
    patience: float = 0.0  # seconds that the answer may take, if that is more than is usual


class Page(Protocol[T_co]):
    """Part of a list."""

    @property
    def items(self) -> Sequence[T_co]:
        """What is on it."""

    @property
    def next(self) -> str | None:
        """The cursor of the next one."""


I_co = TypeVar("I_co", covariant=True)


def next_page(call: Call[Page[I_co]], page: Page[I_co]) -> Call[Page[I_co]] | None:
    """The call for the page after this one, if there is one."""
    return replace(call, query={**call.query, "cursor": page.next}) if page.next else None


def read(path: str, answer: type[T_co], **query: Value) -> Call[T_co]:
    """Something that is looked up."""
    return Call(method="GET", path=path, answer=answer, query=query_of(query))


def ask(path: str, answer: type[T_co], body: Asked) -> Call[T_co]:
    """A question that is too long for a URL; it changes nothing."""
    return Call(method="POST", path=path, answer=answer, body=body)


def write(
    method: str,
    path: str,
    answer: type[T_co],
    body: Asked | None = None,
    *,
    key: str,
    dry_run: bool = False,
    if_match: int | None = None,
) -> Call[T_co]:
    """Something that is to be done, once for a key. `if_match`: only if that is the generation of what is changed."""
    if len(key) > LONGEST_KEY or not all("!" <= character <= "~" for character in key):
        raise InvalidInput("key", f"is {key!r}", f"use up to {LONGEST_KEY} letters, digits and signs, without spaces")
    headers = {} if if_match is None else {"if-match": f'"{if_match}"'}
    query = query_of({"dry_run": dry_run or None})
    return Call(method=method, path=path, answer=answer, body=body, key=key, query=query, headers=headers)


def query_of(given: Mapping[str, Value]) -> dict[str, str]:
    """What is said in the URL; what is None or empty is not said."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in given.items()
        if value is not None and value != ""
    }


def part(kind: str, name: str) -> str:
    """A name as one part of a path."""
    if not name:
        raise InvalidInput(kind, "is empty", f"name a {kind}")
    # Dots alone would climb out of the path, though quoted they are a name like any other.
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="")


def vm_path(name: str, folder: str = "vms") -> str:
    """A VM in a path: its name has a slash, which stays."""
    return f"/v1/{folder}/" + "/".join(part("VM", each) for each in name.split("/"))
