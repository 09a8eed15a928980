"""How many empty machines clusters keep, from which requests, and how many they should keep by what happened."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
from litestar import delete, get, post, put
from litestar.params import JSONBody, Parameter
from litestar.response import Response
from litestar.types import Scope

from roost.admission.history import read_history
from roost.admission.standing import Standing, standings
from roost.admission.thresholds import Computed, Targets, compute
from roost.api.problems import Refused
from roost.api.routes.common import WRITING, DryRun, Key, asking_of, enter, may, was_decided
from roost.model.registry import THRESHOLD
from roost.model.thresholds import Thresholds
from roost.wire.tenants import Done
from roost.wire.thresholds import ComputedThresholds, ThresholdList, ThresholdPlan, ThresholdTargets, ThresholdView
from roost.wire.thresholds import ThresholdWish as Wish

Cluster = Annotated[str, Parameter(max_length=200, description="The cluster.")]


@get("/v1/thresholds", **may("read"))
async def list_thresholds(scope: Scope) -> ThresholdList:
    """How many empty machines each cluster keeps and has, who says so, and what it takes no more."""
    service = asking_of(scope).service
    service.check_open()
    return ThresholdList(
        items=[_view(each) for each in standings(service.agent.allocator, service.agent.replica.registry)]
    )


def _view(found: Standing) -> ThresholdView:
    return ThresholdView(
        cluster=found.cluster,
        machines=found.machines,
        empty=found.empty,
        **msgspec.structs.asdict(found.thresholds),
        source=found.source,
        reached=found.reached,
    )


@put("/v1/thresholds/{cluster:str}", status_code=200, **may("operate", *WRITING, "roost.not_found"))
async def set_thresholds(
    cluster: Cluster, data: JSONBody[Wish], scope: Scope, key: Key = None, dry_run: DryRun = False
) -> Response[Done]:
    """Keep so many empty machines in a cluster, whatever the zone file says; every worker follows.

    All three are replaced: what is left out is 0.
    """
    kept = Thresholds(new=data.new, scale_out=data.scale_out, healing=data.healing)
    return await enter(asking_of(scope), THRESHOLD, cluster, msgspec.json.encode(kept).decode(), key, dry_run)


@delete("/v1/thresholds/{cluster:str}", status_code=200, **may("operate", *WRITING, "roost.not_found"))
async def clear_thresholds(cluster: Cluster, scope: Scope, key: Key = None, dry_run: DryRun = False) -> Response[Done]:
    """Keep as many empty machines in a cluster as the zone file says, or none."""
    asking = asking_of(scope)
    asking.service.check_open()
    again = key and not dry_run and await was_decided(asking, key)
    if (THRESHOLD, cluster) not in asking.service.agent.replica.registry and not again:
        raise Refused("roost.not_found", f"no thresholds of its own are set for cluster {cluster}", field="cluster")
    return await enter(asking, THRESHOLD, cluster, None, key, dry_run)


@post("/v1/thresholds/compute", status_code=200, **may("read", "roost.too_large", "roost.unsupported_media_type"))
async def compute_thresholds(data: JSONBody[ThresholdTargets], scope: Scope) -> ThresholdPlan:
    """Thresholds that would have kept healing and scale-outs from failing more often than is tolerable.

    From what the store remembers: machines that were down, and tenants that grew. Nothing is changed.
    """
    asking, now = asking_of(scope), time.time()
    targets = Targets(
        healing=data.healing,
        scale_out=data.scale_out,
        failures_per_day=data.failures_per_day,
        repair_hours=data.repair_hours,
        window_hours=data.window_hours,
        turn_space=data.turn_space,
    )
    history = await asking.service.read_slowly(lambda store: read_history(store, now))
    found = compute(history, targets)
    return ThresholdPlan(
        since=history.since,
        until=history.until,
        scale_outs=history.scale_outs,
        refused=history.refused,
        items=[_computed(each) for each in found],
    )


def _computed(found: Computed) -> ComputedThresholds:
    fields = msgspec.structs.asdict(found)
    kept = msgspec.structs.asdict(fields.pop("thresholds"))
    return ComputedThresholds(**fields, **kept, takes_new=found.takes_new)


ROUTES = [list_thresholds, set_thresholds, clear_thresholds, compute_thresholds]
