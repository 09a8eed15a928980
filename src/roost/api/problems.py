"""What can go wrong, as RFC 9457 problem documents. A code, once released, keeps its meaning."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import cast

import msgspec

from roost.agent.operation import Answer
from roost.api.hush import Asker, is_for
from roost.engine.explain import FAILURES, Failure
from roost.model.errors import InvalidInput, Outdated, RoostError, StoreUnavailable, Taken, UnknownName
from roost.model.tokens import without_tokens
from roost.wire.decisions import ExplanationView
from roost.wire.problems import Problem, ReasonView, RemedyView

TYPE = "urn:roost:problem:"
MEDIA_TYPE = "application/problem+json"
RETRY_AFTER = "1"  # seconds


@dataclass(frozen=True)
class ProblemKind:
    """One way to fail."""

    status: HTTPStatus
    title: str
    retryable: bool = False  # the same request may succeed later


KINDS = {
    "roost.invalid_request": ProblemKind(HTTPStatus.BAD_REQUEST, "There is a mistake in the request"),
    "roost.unauthorised": ProblemKind(HTTPStatus.UNAUTHORIZED, "A valid token is needed"),
    "roost.forbidden": ProblemKind(HTTPStatus.FORBIDDEN, "The token does not allow this"),
    "roost.not_found": ProblemKind(HTTPStatus.NOT_FOUND, "Not found"),
    "roost.method_not_allowed": ProblemKind(HTTPStatus.METHOD_NOT_ALLOWED, "It cannot be used this way"),
    "roost.no_capacity": ProblemKind(HTTPStatus.CONFLICT, "Not enough capacity", retryable=True),
    "roost.fragmented": ProblemKind(
        HTTPStatus.CONFLICT, "Enough capacity in sum, but on no single machine", retryable=True
    ),
    "roost.tenant_constraint": ProblemKind(
        HTTPStatus.CONFLICT, "The tenant's own constraints exclude it", retryable=True
    ),
    "roost.threshold": ProblemKind(
        HTTPStatus.CONFLICT, "Clusters keep their empty machines from such requests", retryable=True
    ),
    "roost.conflict": ProblemKind(HTTPStatus.CONFLICT, "It contradicts what there is"),
    "roost.too_old": ProblemKind(HTTPStatus.GONE, "The feed no longer reaches back that far"),
    "roost.outdated": ProblemKind(HTTPStatus.PRECONDITION_FAILED, "Somebody changed it meanwhile"),
    "roost.too_large": ProblemKind(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The request is too large"),
    "roost.unsupported_media_type": ProblemKind(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "The body must be JSON"),
    "roost.never_fits": ProblemKind(HTTPStatus.UNPROCESSABLE_ENTITY, "No machine of the zone could ever take it"),
    "roost.rate_limited": ProblemKind(HTTPStatus.TOO_MANY_REQUESTS, "The token asks too often", retryable=True),
    "roost.headers_too_large": ProblemKind(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The headers are too large"),
    "roost.internal": ProblemKind(HTTPStatus.INTERNAL_SERVER_ERROR, "A bug in Roost"),
    "roost.retries_exhausted": ProblemKind(
        HTTPStatus.SERVICE_UNAVAILABLE, "Others were faster too often", retryable=True
    ),
    "roost.overloaded": ProblemKind(HTTPStatus.SERVICE_UNAVAILABLE, "Too much is asked at once", retryable=True),
    "roost.store_unavailable": ProblemKind(
        HTTPStatus.SERVICE_UNAVAILABLE, "The store cannot be reached", retryable=True
    ),
    "roost.starting": ProblemKind(HTTPStatus.SERVICE_UNAVAILABLE, "The service is not ready yet", retryable=True),
    "roost.timeout": ProblemKind(HTTPStatus.SERVICE_UNAVAILABLE, "It took too long", retryable=True),
}
DECLINED: dict[Failure, str] = {
    "mistake": "roost.never_fits",
    "no_capacity": "roost.no_capacity",
    "fragmented": "roost.fragmented",
    "tenant_constraint": "roost.tenant_constraint",
    "threshold": "roost.threshold",
}
# Where a mistake of the asker's own is, in what comes from within: the words of all others are not for everybody.
OWN = re.compile(r"(request|vms?|generation|key|decision|constraints|type|priority|operation)\b")
_encode = msgspec.json.Encoder().encode


class Refused(Exception):
    """A request that is answered with a problem document."""

    within = False  # the words come from where nobody knows who asks

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        field: str = "",
        decision: str = "",
        reasons: Sequence[ReasonView] = (),
        remedies: Sequence[RemedyView] = (),
        cut_short: bool = False,
    ) -> None:
        self.code, self.detail, self.field, self.decision = code, detail, field, decision
        self.reasons, self.remedies, self.cut_short = reasons, remedies, cut_short
        super().__init__(f"{code}: {detail}")

    @property
    def status(self) -> int:
        """The HTTP status."""
        return int(KINDS[self.code].status)

    def problem(self, asking: Asker | None, instance: str = "") -> Problem:
        """The document, as who asks may read it; nobody in particular reads what is the same for all."""
        kind = KINDS[self.code]
        detail, reasons, remedies = self.detail, self.reasons, self.remedies
        if asking is not None and asking.principal.namespace:
            detail = detail if self._is_for(asking) else self._hushed(kind)
            reasons = [each for each in reasons if is_for(asking, each.text)]
            remedies = [each for each in remedies if _may_have(asking, each)]
        return Problem(
            type=TYPE + self.code.removeprefix("roost."),
            title=kind.title,
            status=int(kind.status),
            detail=without_tokens(detail),
            code=self.code,
            retryable=kind.retryable,
            instance=without_tokens(instance),
            request_id=asking.request_id if asking is not None else "",
            field=without_tokens(self.field),
            decision=without_tokens(self.decision),
            reasons=reasons,
            remedies=remedies,
            cut_short=self.cut_short,
        )

    def _is_for(self, asking: Asker) -> bool:
        """Whether somebody bound to a namespace may read the detail; what comes from within only if it is known to."""
        if self.within and (self.code == "roost.retries_exhausted" or not OWN.match(self.field)):
            return False
        return is_for(asking, self.detail)

    def _hushed(self, kind: ProblemKind) -> str:
        """What is said instead."""
        if self.code == "roost.not_found" and self.field:
            return f"there is no such {self.field}"
        return f"{self.field}: {kind.title}" if self.field else kind.title

    def headers(self) -> dict[str, str]:
        """What goes with it: when to come back, how to identify."""
        if KINDS[self.code].status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            return {"retry-after": RETRY_AFTER}
        return {"www-authenticate": "Bearer"} if self.code == "roost.unauthorised" else {}

    def body(self, asking: Asker | None = None, instance: str = "") -> bytes:
        """The document as JSON."""
        return _encode(self.problem(asking, instance))


def _may_have(asking: Asker, remedy: RemedyView) -> bool:
    """What is to be freed must be the asker's own, and then so is the machine."""
    if remedy.vms:
        return all(asking.principal.owns(vm.partition("/")[0]) for vm in remedy.vms)
    return is_for(asking, remedy.text)


def _within(refused: Refused) -> Refused:
    refused.within = True
    return refused


def of_error(error: RoostError) -> Refused:
    """The refusal that an error amounts to."""
    return _within(_of_error(error))


def _of_error(error: RoostError) -> Refused:
    if isinstance(error, StoreUnavailable):
        return Refused("roost.store_unavailable", str(error))
    if isinstance(error, InvalidInput):
        return Refused(_code_of(error.code, error.where), str(error), field=error.where)
    return Refused("roost.internal", str(error))


def of_answer(answer: Answer, explained: ExplanationView | None = None) -> Refused:
    """The refusal that an answer amounts to; `explained`: why, if it was declined and somebody has looked."""
    if answer.status == "declined":
        return _declined(answer, explained)
    if answer.status == "conflicts":
        return _within(Refused("roost.retries_exhausted", answer.detail, decision=answer.key))
    if answer.status == "unavailable":
        return _within(Refused("roost.store_unavailable", answer.detail))
    return _within(Refused(_code_of(answer.code, answer.where), answer.detail, field=answer.where))


def _declined(answer: Answer, explained: ExplanationView | None) -> Refused:
    if explained is None:
        return Refused("roost.no_capacity", f"{answer.detail}; its decision can be explained", decision=answer.key)
    kind = cast(Failure, explained.failure or "no_capacity")
    return Refused(
        DECLINED[kind],
        f"{answer.detail}: {FAILURES[kind]}",
        decision=answer.key,
        reasons=explained.reasons,
        remedies=explained.remedies,
        cut_short=explained.cut_short,
    )


def _code_of(code: str, where: str) -> str:
    """A thing that a path names and that is not there is not found; a name inside a request is a mistake in it."""
    if code in (Outdated.code, Taken.code):
        return "roost.outdated" if code == Outdated.code else "roost.conflict"
    if code == UnknownName.code and where in ("tenant", "machine", "cluster", "vm", "key", "policy", "token"):
        return "roost.not_found"
    return "roost.invalid_request"
