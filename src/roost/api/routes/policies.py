"""Policies: look, check, keep, and say which of them decide, or look on in the shadow."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
from litestar import delete, get, post, put
from litestar.params import JSONBody, Parameter
from litestar.types import Scope

from roost.api.gate import Asking
from roost.api.policies import IN_FORCE, SHADOW
from roost.api.problems import Refused
from roost.api.routes.common import WRITING, DryRun, Key, asking_of, concluded, may, was_decided
from roost.model.errors import InvalidInput, UnknownName
from roost.model.keys import new_key
from roost.model.names import check_new_name
from roost.model.registry import ACTIVE, PAST_POLICY, POLICY
from roost.rules.policy import Policy, digest_of, shipped_policies
from roost.store.contract import Decided
from roost.wire.policies import (
    Activation,
    Active,
    DifferenceCount,
    Differences,
    DifferenceView,
    Policies,
    PolicyResults,
    PolicyResultView,
    PolicyText,
    PolicyView,
    ShadowPolicy,
    ShadowWish,
)

Name = Annotated[str, Parameter(max_length=200, description="The name that its text gives it.")]
MOST = 1_000  # policies kept


def _view(asking: Asking, policy: Policy, text: str = "") -> PolicyView:
    service = asking.service
    split = service.agent.split
    shares = {policy.digest: 0.0 for policy in split.policies}
    shares[split.main.digest] += 1.0 - (split.share if split.other else 0.0)
    if split.other is not None:
        shares[split.other.digest] += split.share
    return PolicyView(
        name=policy.name,
        version=policy.version,
        digest=policy.digest,
        description=policy.description,
        rules=len(policy.rules),
        shipped=policy.name in shipped_policies() and policy.name not in service.switch.book.texts,
        share=shares.get(policy.digest, 0.0),
        text=text,
    )


@get("/v1/policies", **may("read"))
async def list_policies(scope: Scope) -> Policies:
    """Every policy, and for which share of the tenants it decides."""
    asking = asking_of(scope)
    asking.service.check_open()
    book = asking.service.switch.book
    return Policies(items=[_listed(asking, name) for name in book.names()])


def _listed(asking: Asking, name: str, *, with_text: bool = False) -> PolicyView:
    """A policy that is known by its name, even if this worker cannot decide by it: others may have its rules."""
    book = asking.service.switch.book
    try:
        policy = book.find(name)
    except UnknownName:
        raise
    except InvalidInput as error:
        text = book.text(name)
        return PolicyView(
            name=name, version=0, digest=digest_of(text.encode()), description="", rules=0, shipped=False, share=0.0,
            text=text if with_text else "", problem=str(error),
        )  # fmt: skip
    return _view(asking, policy, book.text(name) if with_text else "")


@get("/v1/policies/active", **may("read"))
async def get_active(scope: Scope) -> Active:
    """Which policy decides, and which one it is compared with."""
    asking = asking_of(scope)
    asking.service.check_open()
    split, chosen = asking.service.agent.split, asking.service.switch.book.in_force
    other = split.other
    return Active(
        policy=split.main.name,
        digest=split.main.digest,
        against=other.name if other else "",
        against_digest=other.digest if other else "",
        share=split.share,
        since=chosen.since if chosen else 0.0,
        problem=asking.service.switch.unusable,
    )


@get("/v1/policies/results", **may("read"))
async def results(
    scope: Scope,
    since: Annotated[
        float | None,
        Parameter(ge=0.0, le=1e12, description="Seconds since 1970; the last activation if left out."),
    ] = None,
) -> PolicyResults:
    """What each policy did, side by side."""
    asking = asking_of(scope)
    asking.service.check_open()
    chosen = asking.service.switch.book.in_force
    start = since if since is not None else (chosen.since if chosen else 0.0)
    found = await asking.service.read_slowly(lambda store: store.policy_results(start))
    views = []
    for each in found:
        name, _, digest = each.policy.rpartition(" ")
        views.append(
            PolicyResultView(
                policy=name,
                digest=digest,
                requests=each.requests,
                declined=each.declined,
                vms=each.vms,
                retries=each.retries,
                mean_decided_us=each.mean_decided_us,
                p99_decided_us=each.p99_decided_us,
            )
        )
    return PolicyResults(since=start, results=views)


@get("/v1/policies/{name:str}", **may("read", "roost.not_found"))
async def get_policy(name: Name, scope: Scope) -> PolicyView:
    """A policy with its text."""
    asking = asking_of(scope)
    asking.service.check_open()
    return _listed(asking, name, with_text=True)


@post("/v1/policies/validate", status_code=200, **may("operate", "roost.too_large", "roost.unsupported_media_type"))
async def validate(data: JSONBody[PolicyText], scope: Scope) -> PolicyView:
    """Read a policy, compile it and try it out on this zone; a mistake is told with its line. Nothing is kept."""
    asking = asking_of(scope)
    asking.service.check_open()
    policy = await asking.service.switch.prepare(data.text)
    check_new_name("name", policy.name)
    return _view(asking, policy, data.text)


@put("/v1/policies/{name:str}", status_code=200, **may("operate", *WRITING))
async def put_policy(
    name: Name, data: JSONBody[PolicyText], scope: Scope, key: Key = None, dry_run: DryRun = False
) -> PolicyView:
    """Keep a policy under its name. It decides nothing until it is activated."""
    asking = asking_of(scope)
    asking.service.check_open()
    texts = asking.service.switch.book.texts
    if name not in texts and len(texts) >= MOST:
        raise Refused("roost.too_large", f"a zone keeps {MOST:,} policies")
    check_new_name("name", name)
    policy = await asking.service.switch.prepare(data.text)
    if policy.name != name:
        raise Refused("roost.invalid_request", f"the text is of policy {policy.name}", field="text")
    if not dry_run:
        concluded(asking, await asking.service.enter(POLICY, name, data.text, key or new_key(), asking.principal.name))
    return _view(asking, policy, data.text)


@delete("/v1/policies/{name:str}", status_code=204, **may("operate", *WRITING, "roost.not_found"))
async def delete_policy(name: Name, scope: Scope, key: Key = None, dry_run: DryRun = False) -> None:
    """Forget a policy. One that is active goes on deciding; decisions that it made can still be explained."""
    asking = asking_of(scope)
    asking.service.check_open()
    done = key and not dry_run and await was_decided(asking, key)
    if name not in asking.service.switch.book.texts and not done:
        raise Refused("roost.not_found", f"no policy {name} is kept here", field="policy")
    if not dry_run:
        concluded(asking, await asking.service.enter(POLICY, name, None, key or new_key(), asking.principal.name))


@post("/v1/policies/activate", status_code=200, **may("operate", *WRITING, "roost.not_found"))
async def activate(data: JSONBody[Activation], scope: Scope, key: Key = None, dry_run: DryRun = False) -> Active:
    """Let a policy decide from now on, on every worker; with `against`, two share the tenants by a hash of the name.

    The policies are compiled and tried out first; requests go on being decided meanwhile.
    """
    asking = asking_of(scope)
    service, by = asking.service, asking.principal.name
    service.check_open()
    if data.share and not data.against:
        raise Refused("roost.invalid_request", "needs another policy", field="share")
    if data.against and not data.share:
        none = f"share: is 0, so {data.against} would decide for nobody; say for which share of the tenants, as 0.1"
        raise Refused("roost.invalid_request", none, field="share")
    if data.against == data.policy:
        same = f"against: {data.policy} would be compared with itself; name another policy, or leave it out"
        raise Refused("roost.invalid_request", same, field="against")
    book = service.switch.book
    chosen = [book.find(name) for name in (data.policy, data.against) if name]
    for policy in chosen:
        await service.switch.prepare(policy)
    other = chosen[1] if data.against else None
    earlier = await was_decided(asking, key) if key else None
    wanted = Active(
        policy=chosen[0].name,
        digest=chosen[0].digest,
        against=other.name if other else "",
        against_digest=other.digest if other else "",
        share=data.share,
        since=_since(earlier) or round(time.time(), 3),
    )
    if not dry_run:
        for policy in chosen:  # to explain by it what it decided, whatever becomes of its name
            concluded(asking, await service.enter(PAST_POLICY, policy.digest, book.text(policy.name), new_key(), by))
        text = msgspec.json.encode(wanted).decode()
        concluded(asking, await service.enter(ACTIVE, IN_FORCE, text, key or new_key(), by))
        await service.switch.switched()
    return wanted


def _since(earlier: Decided | None) -> float:
    """When a policy was activated under a key, if it was: the same request has the same answer."""
    entry = msgspec.json.decode(earlier.request) if earlier else {}
    told = entry.get("value") if entry.get("kind") == ACTIVE else None
    return float(msgspec.json.decode(told)["since"]) if told else 0.0


@post("/v1/shadow", status_code=200, **may("operate", *WRITING, "roost.not_found"))
async def shadow(data: JSONBody[ShadowWish], scope: Scope, key: Key = None, dry_run: DryRun = False) -> ShadowPolicy:
    """Let a policy decide beside the one in force, on every worker: differences are counted, nothing is placed by it.

    The policy is compiled and tried out first; requests go on being decided meanwhile.
    """
    asking = asking_of(scope)
    service, by = asking.service, asking.principal.name
    service.check_open()
    policy = service.switch.book.find(data.policy)
    await service.switch.prepare(policy)
    earlier = await was_decided(asking, key) if key else None
    since = _since(earlier) or round(time.time(), 3)
    wanted = ShadowPolicy(policy=policy.name, digest=policy.digest, share=data.share, since=since)
    if not dry_run:
        kept = service.switch.book.text(policy.name)  # whatever becomes of its name
        concluded(asking, await service.enter(PAST_POLICY, policy.digest, kept, new_key(), by))
        text = msgspec.json.encode(wanted).decode()
        concluded(asking, await service.enter(ACTIVE, SHADOW, text, key or new_key(), by))
        await service.switch.switched()
    return wanted


@delete("/v1/shadow", status_code=204, **may("operate", *WRITING))
async def end_shadow(scope: Scope, key: Key = None, dry_run: DryRun = False) -> None:
    """Let no policy decide beside the one in force. What was counted is forgotten."""
    asking = asking_of(scope)
    asking.service.check_open()
    if not dry_run:
        concluded(asking, await asking.service.enter(ACTIVE, SHADOW, None, key or new_key(), asking.principal.name))
        await asking.service.switch.switched()


@get("/v1/shadow/differences", **may("read"))
async def differences(scope: Scope) -> Differences:
    """What the policy in the shadow would have decided otherwise: counts by rule, and the latest ones explained.

    Of the decisions of the worker that answers; the metric `roost_shadow_changed_total` has those of all.
    """
    service = asking_of(scope).service
    service.check_open()
    found, wanted = service.switch.shadow, service.switch.book.shadow or ShadowPolicy()
    if found is None:
        problem = service.switch.no_shadow
        return Differences(shadow=wanted, decisions=0, changed=0, skipped=0, counts=[], latest=[], problem=problem)
    counts = [DifferenceCount(kind=kind, rule=rule, decisions=n) for (kind, rule), n in found.changed.most_common()]
    latest = [DifferenceView(**msgspec.structs.asdict(each)) for each in reversed(found.latest)]
    return Differences(
        shadow=wanted,
        decisions=found.decisions,
        changed=found.changed.total(),
        skipped=found.skipped,
        counts=counts,
        latest=latest,
        problem=found.problem,
    )


ROUTES = [
    list_policies, get_active, results, differences, get_policy, validate, put_policy, delete_policy, activate,
    shadow, end_shadow,
]  # fmt: skip
