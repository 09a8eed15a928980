"""What routes share: who asks, what they may do, keys, generations, and how answers become responses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl

from litestar.connection import ASGIConnection
from litestar.datastructures import ResponseHeader
from litestar.handlers import BaseRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import HeaderParameter, QueryParameter
from litestar.response import Response

from roost.agent.operation import Answer, Evicted
from roost.agent.ticket import Ticket
from roost.agent.verbs.entry import SetEntry
from roost.api.gate import Asking
from roost.api.problems import KINDS, Refused, of_answer
from roost.api.service import Service
from roost.engine.explain import Explanation, Remedies
from roost.json_mistakes import Reader, check_keys
from roost.model.errors import InvalidInput, UnknownName
from roost.model.keys import new_key
from roost.model.request import VM
from roost.model.stored import TokenScope
from roost.store.contract import Decided
from roost.wire.basics import KEY, LONGEST_KEY, MATCH
from roost.wire.decisions import CandidateView, ExplanationView, ScoreView, StageView
from roost.wire.problems import Problem, ReasonView, RemedyView
from roost.wire.tenants import Done, EvictedVM, Placed, VMWish

T = TypeVar("T")
ETAG = re.compile(r'^(?:W/)?"?(\d{1,19})"?$')

DryRun = Annotated[bool, QueryParameter(name="dry_run", description="Only say what would come of it.")]
Key = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        max_length=LONGEST_KEY,
        pattern=KEY,
        description="Chosen by you, without slashes: the same key is never done twice, but answered as the first time.",
    ),
]
IfMatch = Annotated[
    str | None,
    HeaderParameter(
        name="If-Match",
        max_length=40,
        pattern=MATCH,
        description="The generation that it must have still.",
    ),
]
Cursor = Annotated[str, QueryParameter(name="cursor", max_length=1_000, description="`next` of the page before.")]
Limit = Annotated[int, QueryParameter(name="limit", ge=1, le=100_000, description="Items of a page.")]

COMMON = (
    "roost.invalid_request", "roost.unauthorised", "roost.forbidden", "roost.rate_limited", "roost.overloaded",
    "roost.timeout", "roost.starting", "roost.store_unavailable",
)  # fmt: skip
WRITING = (
    "roost.conflict", "roost.outdated", "roost.too_large", "roost.unsupported_media_type", "roost.retries_exhausted",
)  # fmt: skip
PLACING = (
    *WRITING, "roost.no_capacity", "roost.fragmented", "roost.tenant_constraint", "roost.threshold", "roost.never_fits",
)  # fmt: skip


def may(scope: TokenScope, *codes: str, namespaced: bool = False, dry: type | None = None) -> dict[str, Any]:
    """Who may use a route, and the problems it answers with, by code; `dry`: what a dry run answers, with a 200."""
    responses = _responses((*COMMON, *codes, "roost.internal"))
    if dry is not None:
        responses[200] = ResponseSpec(dry, generate_examples=False, description="Of a dry run: what would come of it.")
    return {"opt": {"scope": scope, "namespaced": namespaced}, "responses": responses}


def anybody(*codes: str) -> dict[str, Any]:
    """A route for everybody."""
    return {"opt": {"scope": None, "namespaced": True}, "responses": _responses((*codes, "roost.internal"))}


def _responses(codes: Sequence[str]) -> dict[int, ResponseSpec]:
    """One entry a status, with every code that comes with it."""
    by_status: dict[int, list[str]] = {}
    for code in codes:
        by_status.setdefault(int(KINDS[code].status), []).append(code)
    return {
        status: ResponseSpec(
            Problem,
            generate_examples=False,
            description=", ".join(known),
            media_type="application/problem+json",
        )
        for status, known in sorted(by_status.items())
    }


async def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Let through only those whose token allows it."""
    wanted, asking = handler.opt.get("scope"), asking_of(connection.scope)
    principal = asking.principal
    if wanted is not None:
        if wanted not in principal.scopes:
            raise Refused("roost.forbidden", f"needs a token with scope {wanted}")
        if principal.namespace and not handler.opt["namespaced"]:
            raise Refused("roost.forbidden", f"a token bound to namespace {principal.namespace} sees tenants only")
    _, query, body = asking.said
    if (known := handler.opt.get(KNOWN)) is not None:
        _check_query(query, known)
    if (reader := handler.opt.get(READER)) is not None:
        _check_body(body, reader)


# What a route knows of itself, once the application is made: its query parameters, how to read its body, and what
# parameters are called outside.
KNOWN, READER, OUTSIDE = "known", "reader", "outside"


def _check_query(query: bytes, known: frozenset[str]) -> None:
    """Refuse parameters that would be ignored: unknown ones, and the first of two."""
    seen: set[str] = set()
    for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name not in known:
            told = UnknownName("query", "query parameter here", name, known)
            raise Refused("roost.invalid_request", f"{told.problem}; {told.remedy}", field=name)
        if name in seen:
            raise Refused("roost.invalid_request", f"the query parameter {name} is given twice", field=name)
        seen.add(name)


def _check_body(body: bytes, reader: Reader) -> None:
    """Refuse what the framework would put right without a word: numbers as texts, a key that is there twice."""
    if not body:
        raise Refused("roost.invalid_request", "the body is missing: send JSON", field="body")
    try:
        reader.read(body)
        check_keys(body)
    except InvalidInput as error:
        raise Refused("roost.invalid_request", str(error), field=error.where) from None


def asking_of(scope: Mapping[str, Any]) -> Asking:
    """The request that is being answered."""
    found: Asking = scope["roost"]
    return found


def own(asking: Asking, tenant: str) -> None:
    """Refuse a tenant outside the namespace that a token is bound to, whether or not there is such a tenant."""
    if not asking.principal.owns(tenant):
        raise Refused(
            "roost.forbidden", f"the token is bound to tenants called {asking.principal.namespace} or "
            f"{asking.principal.namespace}.…", field="tenant",
        )  # fmt: skip


async def was_decided(asking: Asking, key: str) -> Decided | None:
    """What came of a key, if anything did."""
    return await asking.service.read(lambda store: store.decided(key))


def generation_of(if_match: str | None) -> int | None:
    """The generation in an If-Match header."""
    if if_match is None or if_match == "*":
        return None
    if (found := ETAG.match(if_match)) is None:
        raise Refused("roost.invalid_request", f"is {if_match!r}; send the ETag of a response", field="If-Match")
    return int(found[1])


def etag(generation: int) -> dict[str, str]:
    """The header that names a generation."""
    return {"etag": f'"{generation}"'} if generation else {}


ETAG_HEADER = [ResponseHeader(name="ETag", value="", description="The generation.", documentation_only=True)]  # a text


def vms_of(tenant: str, wishes: Sequence[VMWish], service: Service) -> tuple[VM, ...]:
    """The VMs of a request."""
    found: list[VM] = []
    most = service.settings.limits.vms_per_request
    for i, wish in enumerate(wishes):
        if len(found) + wish.count > most:
            raise Refused("roost.too_large", f"a request may ask for {most:,} VMs", field=f"vms[{i}].count")
        if wish.name and wish.count > 1:
            raise Refused("roost.invalid_request", "several VMs cannot share a name", field=f"vms[{i}].name")
        vm = VM(
            wish.type,
            f"{tenant}/{wish.name}" if wish.name else "",
            wish.priority,
            wish.isolated,
            wish.colocation,
            wish.requires,
            wish.datacenter,
            wish.cluster,
            wish.generation,
            wish.traits,
            wish.requeue,
            wish.set,
        )
        found += [vm] * wish.count
    return tuple(found)


async def placed(asking: Asking, tenant: str, ticket: Ticket, *, dry_run: bool = False) -> Placed:
    """What a request to place got; raises if it got nothing, and tells why."""
    explained = await asking.service.explainer.explain_refusal(ticket) if was_declined(ticket) else None
    return got(asking, tenant, ticket, explained, dry_run=dry_run)


def was_declined(ticket: Ticket) -> bool:
    """Whether there is something to explain."""
    return ticket.answer is not None and ticket.answer.status == "declined"


def got(asking: Asking, tenant: str, ticket: Ticket, explained: Explanation | None, *, dry_run: bool = False) -> Placed:
    """The same, if it is known why it was declined, or it was not."""
    answer = concluded(asking, ticket, explained)
    return Placed(
        tenant=tenant,
        generation=answer.generation,
        vms=answer.placements,
        decision=asking.decision,
        retries=answer.retries,
        replayed=answer.replayed,
        dry_run=dry_run,
        evictions=len(answer.evicted),
        evicted=seen_evicted(asking, answer.evicted) if answer.evicted else (),
        short=answer.short,
        spread=answer.spread,
    )


def seen_evicted(asking: Asking, evicted: Iterable[Evicted]) -> list[EvictedVM]:
    """What gave way, as somebody may see it: a token bound to a namespace hears nothing of others."""
    return [
        EvictedVM(vm=each.vm, tenant=each.tenant, type=each.type, priority=each.priority, machine=each.machine)
        for each in evicted
        if asking.principal.owns(each.tenant)
    ]


def done(asking: Asking, ticket: Ticket, *, dry_run: bool = False) -> Response[Done]:
    """A change that was made; raises if it was not."""
    answer = concluded(asking, ticket)
    body = Done(decision=asking.decision, generation=answer.generation, replayed=answer.replayed, dry_run=dry_run)
    return Response(body, headers=etag(0 if dry_run else answer.generation))


async def enter(
    asking: Asking, kind: str, name: str, value: str | None, key: str | None, dry_run: bool
) -> Response[Done]:
    """Set an entry of the registry, or remove it; every worker follows."""
    service, by, entry = asking.service, asking.principal.name, SetEntry(kind, name, value)
    ticket = await service.rehearse(entry, by) if dry_run else await service.submit(entry, key or new_key(), by)
    return done(asking, ticket, dry_run=dry_run)


def concluded(asking: Asking, ticket: Ticket, explained: Explanation | None = None) -> Answer:
    """The answer, if it is done; else the refusal is raised. `explained`: why it was declined, if that is known."""
    answer = ticket.answer
    assert answer is not None
    asking.decision = "" if ticket.dry else answer.key  # of what was only tried out nothing is kept
    if answer.status == "done":
        return answer
    refused = of_answer(answer, explanation_view(explained, asking) if explained else None)
    if answer.status == "declined":
        refused.decision = asking.decision
    raise refused


def explanation_view(found: Explanation, asking: Asking) -> ExplanationView:
    """An explanation as somebody may see it: the VMs of others have no names for a token bound to a namespace."""
    principal = asking.principal
    remedies = [
        RemedyView(kind=r.kind, text=r.text, vms=r.vms, machine=r.machine)
        for r in found.remedies
        if not principal.namespace or all(principal.owns(vm.partition("/")[0]) for vm in r.vms)
    ]
    victims = [vm for vm in found.victims if principal.owns(vm.partition("/")[0])]
    seen = tuple([r for r in found.remedies if r.text in {each.text for each in remedies}])
    shown = found.with_remedies(Remedies(seen, found.cut_short))
    shown = shown.with_victims(victims, len(found.victims) - len(victims))
    return ExplanationView(
        summary=found.summary,
        text=str(shown),
        tenant=found.tenant,
        vm=found.vm,
        vm_type=found.vm_type,
        machine=found.machine,
        machines=found.machines,
        valid=found.valid,
        funnel=[
            StageView(rule=s.rule, kind=s.kind, level=s.level, entered=s.entered, kept=s.kept) for s in found.funnel
        ],
        reasons=[ReasonView(text=r.text, rule=r.rule, machines=r.machines) for r in found.reasons],
        candidates=[
            CandidateView(
                machine=c.machine, scores=[ScoreView(rule=s.rule, score=s.score, bucket=s.bucket) for s in c.scores]
            )
            for c in found.candidates
        ],
        tied=found.tied,
        decided_by=found.decided_by,
        failure=found.failure,
        remedies=remedies,
        cut_short=found.cut_short,
        evictions=len(found.victims),
        victims=victims,
        as_good=found.as_good,
        set=found.of_set,
        waived=found.waived,
        sought=found.sought,
    )


def page_size(limit: int, service: Service) -> int:
    """How many items a page may have."""
    return min(limit, service.settings.limits.page)
