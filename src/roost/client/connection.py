"""What both clients share: where the service is, how a call becomes a request, and when to ask again."""

from __future__ import annotations

import inspect
import os
import random
import ssl
from collections.abc import Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import httpx
import msgspec

from roost import settings
from roost.client.call import Call
from roost.client.errors import MORE_PATIENCE, NOBODY_THERE, ServiceProblem, ServiceUnreachable
from roost.model.errors import InvalidInput
from roost.model.keys import new_key
from roost.wire.problems import Problem
from roost.wire.tenants import Batch

T = TypeVar("T")
Http = TypeVar("Http")
Transport = TypeVar("Transport")
Method = TypeVar("Method", bound=Callable[..., Any])

RETRIES = 3
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds between attempts; a service that wants more is left to the caller
ANSWERS_LATER = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_DEFAULT = settings.ClientSection()
_problem = msgspec.json.Decoder(Problem).decode
_encode = msgspec.json.Encoder().encode


class Connection(Generic[Http, Transport]):
    """A service and how to reach it. `Client` and `AsyncClient` add the sending."""

    def __init__(
        self,
        url: str = _DEFAULT.url,
        token: str = "",
        *,
        timeout: float = _DEFAULT.timeout_seconds,
        ca_file: str = "",
        retries: int = RETRIES,
        transport: Transport | None = None,
    ) -> None:
        """`ca_file`: the PEM file to verify the service by, else what the system trusts. `timeout`: in seconds.

        `retries`: how often a call is repeated that may be; `transport`: of httpx, for tests and special networks.
        """
        address = _checked(url)
        self.url, self.retries, self.timeout = settings.without_password(url.rstrip("/")), retries, timeout
        headers = {"accept": "application/json", "user-agent": "roost"}
        if token:
            headers["authorization"] = f"Bearer {_printable(token.strip())}"
        self._http = self._open(
            base_url=address,
            headers=headers,
            timeout=timeout,
            # Plain HTTP verifies nobody, and loading certificates takes a while.
            verify=_trusting(ca_file) if address.scheme == "https" else False,
            transport=transport,
        )

    def _open(self, **options: Any) -> Http:
        raise NotImplementedError

    @classmethod
    def from_settings(cls, chosen: settings.ClientSection | None = None, *, retries: int = RETRIES) -> Self:
        """A client as settings say; without any, as roost.toml and the environment (ROOST_URL, ROOST_TOKEN) say."""
        if chosen is None:
            chosen = settings.load(None, os.environ, {}).settings.client
        return cls(chosen.url, chosen.token, timeout=chosen.timeout_seconds, ca_file=chosen.ca_file, retries=retries)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


def _checked(url: str) -> httpx.URL:
    try:
        found = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise InvalidInput("client.url", f"is no URL: {error}", "write http://127.0.0.1:7117") from None
    if found.scheme not in ("http", "https") or not found.host:
        said = settings.without_password(url)
        raise InvalidInput("client.url", f"is {said!r}", "write http://… or https://…, with a host")
    return found


def _printable(token: str) -> str:
    if not all("!" <= character <= "~" for character in token):
        raise InvalidInput(
            "client.token", "has characters that no token has", "use it as `roost token create` shows it"
        )
    return token


def _trusting(ca_file: str) -> ssl.SSLContext:
    if ca_file and not Path(ca_file).is_file():
        raise InvalidInput("client.ca_file", f"{ca_file}: no such file")
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput("client.ca_file", f"{ca_file}: {error}", "use a file of PEM certificates") from None


def described(method: Method, call: Callable[..., Call[Any]]) -> Method:
    """A method that goes by the name, the words and the parameters of the call it makes."""
    parameters = inspect.signature(call).parameters.values()
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__name__, method.__doc__ = call.__name__, call.__doc__
    method.__signature__ = inspect.Signature([own, *parameters])  # type: ignore[attr-defined]  # what help() shows
    return method


# ------------------------------------------------------------------------------------------------ there and back


def prepared(call: Call[T]) -> Call[T]:
    """A call with all the keys that make it safe to ask again."""
    if call.key == "":
        call = replace(call, key=new_key())
    if isinstance(call.body, Batch):
        items = [item if item.key else msgspec.structs.replace(item, key=new_key()) for item in call.body.requests]
        call = replace(call, body=Batch(requests=tuple(items)))
    return call


def spelled(call: Call[Any], timeout: float | httpx.Timeout) -> dict[str, Any]:
    """A call as httpx builds a request from it; some take longer than is usual."""
    headers = dict(call.headers)
    if call.key:
        headers["idempotency-key"] = call.key
    if call.body is not None:
        headers["content-type"] = "application/json"
    return {
        "method": call.method,
        "url": call.path,
        "params": call.query or None,
        "headers": headers,
        "content": None if call.body is None else _encode(call.body),
        "timeout": max(timeout, call.patience) if isinstance(timeout, float | int) else timeout,
    }


def understood(call: Call[T], response: httpx.Response, where: str) -> T:
    """The answer in a response that was read whole; raises if it is none."""
    if not response.is_success:
        raise failure(response, where)
    try:
        if issubclass(call.answer, bytes):
            return call.answer(response.content)
        return msgspec.json.decode(response.content or b"null", type=call.answer)
    except msgspec.MsgspecError as error:
        raise ServiceUnreachable(where, f"the answer is none of Roost's ({error})", NOBODY_THERE) from None


def failure(response: httpx.Response, where: str) -> ServiceProblem | ServiceUnreachable:
    """What a response without success says."""
    try:
        problem = _problem(response.content)
    except msgspec.MsgspecError:
        said = f"it answered {response.status_code} {response.reason_phrase}, not as Roost does"
        return ServiceUnreachable(where, said, NOBODY_THERE)
    return ServiceProblem(problem, _seconds(response.headers))


def _seconds(headers: Mapping[str, str]) -> float | None:
    """Retry-After, if it is a number of seconds."""
    given = headers.get("retry-after", "")
    return float(given) if given.isascii() and given.isdigit() else None


def unreachable(error: httpx.TransportError, where: str, key: str | None = None) -> ServiceUnreachable:
    """What an error of the connection amounts to."""
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return ServiceUnreachable(where, str(error) or "nobody answers", NOBODY_THERE)  # nothing was sent
    if isinstance(error, httpx.TimeoutException):
        return ServiceUnreachable(where, "no answer in time", MORE_PATIENCE, key or "")
    return ServiceUnreachable(where, str(error) or type(error).__name__, NOBODY_THERE, key or "")


class Attempts:
    """How often one call is tried, and how long to wait in between."""

    def __init__(self, call: Call[Any], retries: int, where: str) -> None:
        self._call, self._left, self._where = call, retries, where
        self._pause = FIRST_PAUSE

    def pause(self, error: httpx.TransportError | ServiceProblem) -> float:
        """Seconds to wait before the next attempt; raises if there is none."""
        wanted = self._wanted(error)
        if wanted is None or not self._left:
            if isinstance(error, ServiceProblem):
                raise error
            raise unreachable(error, self._where, self._call.key) from error
        self._left -= 1
        pause = max(wanted, self._pause * random.uniform(0.5, 1.0))  # not all at the same time
        self._pause *= 2
        return pause

    def _wanted(self, error: httpx.TransportError | ServiceProblem) -> float | None:
        """The least to wait; None: asking again is not allowed, or of no use."""
        if isinstance(error, ServiceProblem):
            after = error.retry_after
            allowed = self._call.repeatable and error.status in ANSWERS_LATER
            return after if allowed and after is not None and after <= LONGEST_PAUSE else None
        if isinstance(error, httpx.ConnectError):
            return 0.0  # nothing was sent
        broke = isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError)
        return 0.0 if broke and self._call.repeatable else None
