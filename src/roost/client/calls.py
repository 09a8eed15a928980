"""Every operation of the API as a value: nothing is sent here.

A function for each operation says which request it is and what comes back; `Client` and `AsyncClient` are made of them.

It is longer than other files as it is a flat list: nobody reads it from top to bottom, and callers look in one place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import NoneType

from roost.client.call import Call, ask, part, query_of, read, vm_path, write
from roost.model.request import UNCONSTRAINED, Constraints
from roost.model.stored import TokenScope
from roost.model.tokens import check_name
from roost.wire.basics import MoveStepName, StateName
from roost.wire.changes import Changes
from roost.wire.clusters import ClusterChange, Clusters, ClusterView
from roost.wire.decisions import DecisionPage, DecisionView, ExplanationView, Question, WhyNotQuestion, WhyNotView
from roost.wire.evictions import EvictionDone, EvictionPage, EvictionSummary, EvictionWish, WaitingPage
from roost.wire.foresight import ForesightView, ForesightWish
from roost.wire.healing import HealedPage, HealingPage, HealingResult, HealingSummary, HealingWish
from roost.wire.machines import (
    Heard,
    Heartbeat,
    MachineChange,
    MachinePage,
    MachineView,
    NewMachine,
    NewMachines,
    RackChange,
    RackDone,
)
from roost.wire.maintenance import WalkHold, WalkView
from roost.wire.operations import Health
from roost.wire.policies import (
    Activation,
    Active,
    Differences,
    Policies,
    PolicyResults,
    PolicyText,
    PolicyView,
    ShadowPolicy,
    ShadowWish,
)
from roost.wire.tenants import (
    Batch,
    BatchItem,
    BatchResults,
    Done,
    Placed,
    ScaleIn,
    ScaleOut,
    TenantPage,
    TenantView,
    TenantWish,
    VMDetail,
    VMMove,
    VMPage,
    VMWish,
)
from roost.wire.thresholds import ThresholdList, ThresholdPlan, ThresholdTargets, ThresholdWish
from roost.wire.tokens import NewToken, TokenMade, Tokens
from roost.wire.zone import CapacityView, ZoneView

PAGE = 100
COMPILING = 300.0  # seconds: a policy that is new to a service is compiled first
LOOKING_BACK = 120.0  # seconds: the zone is rebuilt as it was


# ------------------------------------------------------------------------------------------------ tenants and VMs


def create_tenant(
    tenant: str,
    vms: Iterable[VMWish],
    constraints: Constraints = UNCONSTRAINED,
    *,
    key: str = "",
    dry_run: bool = False,
) -> Call[Placed]:
    """Create a tenant with its first VMs: all of them are placed, or none."""
    wish = TenantWish(tenant=tenant, vms=tuple(vms), constraints=constraints)
    return write("POST", "/v1/tenants", Placed, wish, key=key, dry_run=dry_run)


def scale_out(
    tenant: str, vms: Iterable[VMWish], *, key: str = "", if_match: int | None = None, dry_run: bool = False
) -> Call[Placed]:
    """Place more VMs of a tenant: all of them, or none."""
    path = f"/v1/tenants/{part('tenant', tenant)}/vms"
    return write("POST", path, Placed, ScaleOut(vms=tuple(vms)), key=key, if_match=if_match, dry_run=dry_run)


def scale_in(
    tenant: str, vms: Iterable[str], *, key: str = "", if_match: int | None = None, dry_run: bool = False
) -> Call[Done]:
    """Release VMs of a tenant, by name: all of them, or none."""
    path = f"/v1/tenants/{part('tenant', tenant)}/release"
    return write("POST", path, Done, ScaleIn(vms=tuple(vms)), key=key, if_match=if_match, dry_run=dry_run)


def delete_tenant(tenant: str, *, key: str = "", if_match: int | None = None, dry_run: bool = False) -> Call[Done]:
    """Release all VMs of a tenant."""
    path = f"/v1/tenants/{part('tenant', tenant)}"
    return write("DELETE", path, Done, key=key, if_match=if_match, dry_run=dry_run)


def batch(requests: Iterable[BatchItem], *, dry_run: bool = False) -> Call[BatchResults]:
    """Many requests in one call: each is done or not done by itself. Those without a key get one."""
    return Call(
        method="POST",
        path="/v1/batch",
        answer=BatchResults,
        body=Batch(requests=tuple(requests)),
        query=query_of({"dry_run": dry_run or None}),
    )


def list_tenants(*, prefix: str = "", limit: int = PAGE, cursor: str = "") -> Call[TenantPage]:
    """Tenants by name."""
    return read("/v1/tenants", TenantPage, prefix=prefix, limit=limit, cursor=cursor)


def get_tenant(tenant: str) -> Call[TenantView]:
    """A tenant with its VMs."""
    return read(f"/v1/tenants/{part('tenant', tenant)}", TenantView)


def list_vms(*, tenant: str = "", machine: str = "", limit: int = PAGE, cursor: str = "") -> Call[VMPage]:
    """VMs by name."""
    return read("/v1/vms", VMPage, tenant=tenant, machine=machine, limit=limit, cursor=cursor)


def get_vm(vm: str) -> Call[VMDetail]:
    """A VM by its whole name, TENANT/NAME."""
    return read(vm_path(vm), VMDetail)


def delete_vm(vm: str, *, key: str = "", dry_run: bool = False) -> Call[Done]:
    """Release one VM."""
    return write("DELETE", vm_path(vm), Done, key=key, dry_run=dry_run)


def move_vm(vm: str, machine: str, step: MoveStepName = "whole", *, key: str = "", dry_run: bool = False) -> Call[Done]:
    """Bring a VM to another machine at once, or in steps: hold room there, then finish the move or cancel it."""
    return write("POST", vm_path(vm), Done, VMMove(machine=machine, step=step), key=key, dry_run=dry_run)


# ------------------------------------------------------------------------------------------- machines and clusters


def get_zone() -> Call[ZoneView]:
    """The zone at a glance."""
    return read("/v1/zone", ZoneView)


def list_machines(
    *,
    cluster: str = "",
    rack: str = "",
    hardware: str = "",
    state: StateName | None = None,
    empty: bool | None = None,
    limit: int = PAGE,
    cursor: str = "",
) -> Call[MachinePage]:
    """Machines by name."""
    return read(
        "/v1/machines",
        MachinePage,
        cluster=cluster,
        rack=rack,
        hardware=hardware,
        state=state,
        empty=empty,
        limit=limit,
        cursor=cursor,
    )


def get_machine(machine: str) -> Call[MachineView]:
    """A machine with its VMs."""
    return read(f"/v1/machines/{part('machine', machine)}", MachineView)


def change_machine(
    machine: str, change: MachineChange, *, key: str = "", if_match: int | None = None, dry_run: bool = False
) -> Call[Done]:
    """Say how a machine is. What runs on it stays."""
    path = f"/v1/machines/{part('machine', machine)}"
    return write("PATCH", path, Done, change, key=key, if_match=if_match, dry_run=dry_run)


def change_rack(rack: str, state: StateName, *, key: str = "") -> Call[RackDone]:
    """Say how all machines of a rack are, at once."""
    return write("PATCH", f"/v1/racks/{part('rack', rack)}", RackDone, RackChange(state=state), key=key)


def add_machines(machines: Iterable[NewMachine], *, key: str = "", dry_run: bool = False) -> Call[Done]:
    """Add machines, and with them racks and clusters: all of them, or none."""
    return write("POST", "/v1/machines", Done, NewMachines(machines=tuple(machines)), key=key, dry_run=dry_run)


def remove_machine(machine: str, *, key: str = "", dry_run: bool = False) -> Call[Done]:
    """Remove a machine that runs nothing."""
    return write("DELETE", f"/v1/machines/{part('machine', machine)}", Done, key=key, dry_run=dry_run)


def list_clusters() -> Call[Clusters]:
    """All clusters and how full they are."""
    return read("/v1/clusters", Clusters)


def get_cluster(cluster: str) -> Call[ClusterView]:
    """A cluster and how full it is."""
    return read(f"/v1/clusters/{part('cluster', cluster)}", ClusterView)


def change_cluster(cluster: str, *, quarantined: bool, key: str = "", dry_run: bool = False) -> Call[Done]:
    """Take a cluster out of use for new VMs, or back."""
    path, change = f"/v1/clusters/{part('cluster', cluster)}", ClusterChange(quarantined=quarantined)
    return write("PATCH", path, Done, change, key=key, dry_run=dry_run)


def remove_cluster(cluster: str, *, key: str = "", dry_run: bool = False) -> Call[Done]:
    """Remove all machines of a cluster, if they run nothing."""
    return write("DELETE", f"/v1/clusters/{part('cluster', cluster)}", Done, key=key, dry_run=dry_run)


def list_thresholds() -> Call[ThresholdList]:
    """How many empty machines each cluster keeps and has, and which kinds of requests it takes no more."""
    return read("/v1/thresholds", ThresholdList)


def set_thresholds(cluster: str, wish: ThresholdWish, *, key: str = "", dry_run: bool = False) -> Call[Done]:
    """Keep other numbers of empty machines in a cluster than the zone file says."""
    return write("PUT", f"/v1/thresholds/{part('cluster', cluster)}", Done, wish, key=key, dry_run=dry_run)


def clear_thresholds(cluster: str, *, key: str = "", dry_run: bool = False) -> Call[Done]:
    """Keep as many as the zone file says again."""
    return write("DELETE", f"/v1/thresholds/{part('cluster', cluster)}", Done, key=key, dry_run=dry_run)


def compute_thresholds(targets: ThresholdTargets) -> Call[ThresholdPlan]:
    """Thresholds that the zone's history asks for, for target failure rates. Nothing is changed."""
    return replace(ask("/v1/thresholds/compute", ThresholdPlan, targets), patience=LOOKING_BACK)


# ----------------------------------------------------------------------------------------- capacity, explanations


def capacity(vm_type: str = "", *, priority: str = "") -> Call[CapacityView]:
    """How many more VMs of each type, or of one, fit now."""
    return read("/v1/capacity", CapacityView, type=vm_type, priority=priority)


def explain(
    tenant: str, vms: Iterable[VMWish], constraints: Constraints | None = None, *, vm: int | None = None
) -> Call[ExplanationView]:
    """Why a request would be placed as it would be now, or not at all. `vm`: which one of it, from 0."""
    question = Question(tenant=tenant, vms=tuple(vms), constraints=constraints, vm=vm)
    return ask("/v1/explain", ExplanationView, question)


def why_not(
    machine: str,
    tenant: str,
    vms: Iterable[VMWish],
    constraints: Constraints | None = None,
    *,
    vm: int | None = None,
) -> Call[WhyNotView]:
    """Why one machine would not get a VM now."""
    question = WhyNotQuestion(machine=machine, tenant=tenant, vms=tuple(vms), constraints=constraints, vm=vm)
    return ask("/v1/why-not", WhyNotView, question)


def list_decisions(*, limit: int = PAGE, cursor: str = "") -> Call[DecisionPage]:
    """What was decided, latest first."""
    return read("/v1/decisions", DecisionPage, limit=limit, cursor=cursor)


def get_decision(key: str) -> Call[DecisionView]:
    """What came of a key, and how."""
    return read(f"/v1/decisions/{part('key', key)}", DecisionView)


def explain_decision(key: str, *, vm: int | None = None) -> Call[ExplanationView]:
    """Why it was decided so, for one of the VMs of the request."""
    call = read(f"/v1/decisions/{part('key', key)}/explanation", ExplanationView, vm=vm)
    return replace(call, patience=LOOKING_BACK)


def why_not_decision(key: str, machine: str, *, vm: int | None = None) -> Call[WhyNotView]:
    """Why one machine did not get a VM of a past request."""
    call = read(f"/v1/decisions/{part('key', key)}/why-not", WhyNotView, machine=machine, vm=vm)
    return replace(call, patience=LOOKING_BACK)


# ------------------------------------------------------------------------------------------------------ evictions


def show_foresight() -> Call[ForesightView]:
    """How many VMs of each type are expected in an hour, and who says so."""
    return read("/v1/foresight", ForesightView)


def set_foresight(arrivals: Mapping[str, Mapping[str, float]], *, key: str = "", dry_run: bool = False) -> Call[Done]:
    """Say how many VMs come in an hour, by type and priority, instead of what history tells."""
    return write("PUT", "/v1/foresight", Done, ForesightWish(arrivals=arrivals), key=key, dry_run=dry_run)


def clear_foresight(*, key: str = "", dry_run: bool = False) -> Call[Done]:
    """Go by history again."""
    return write("DELETE", "/v1/foresight", Done, key=key, dry_run=dry_run)


def list_evictions(
    *, tenant: str = "", since: float | None = None, limit: int = PAGE, cursor: str = ""
) -> Call[EvictionPage]:
    """VMs that had to give way, latest first: of one tenant, since a time (seconds since 1970)."""
    return read("/v1/evictions", EvictionPage, tenant=tenant, since=since, limit=limit, cursor=cursor)


def summarise_evictions(*, tenant: str = "", since: float | None = None) -> Call[EvictionSummary]:
    """Evictions in numbers: by priority, by what caused them, and how long the VMs had run."""
    call = read("/v1/evictions/summary", EvictionSummary, tenant=tenant, since=since)
    return replace(call, patience=LOOKING_BACK)


def list_waiting(*, tenant: str = "", limit: int = PAGE, cursor: str = "") -> Call[WaitingPage]:
    """VMs that had to give way and wait to be placed again, by name."""
    return read("/v1/waiting", WaitingPage, tenant=tenant, limit=limit, cursor=cursor)


def evict(vms: Sequence[str]) -> Call[EvictionDone]:
    """Take VMs of lower priorities off their machines; those that want to be placed again wait for that."""
    return ask("/v1/evictions", EvictionDone, EvictionWish(vms=tuple(vms)))


def cancel_waiting(vm: str, *, key: str = "") -> Call[None]:
    """Let a VM wait no longer: it is not placed again."""
    return write("DELETE", vm_path(vm, "waiting"), NoneType, key=key)


# -------------------------------------------------------------------------------------------------------- healing


def list_unhealed(*, tenant: str = "", limit: int = PAGE, cursor: str = "") -> Call[HealingPage]:
    """VMs on machines that are down, by name, and why they are not elsewhere yet."""
    return read("/v1/healing", HealingPage, tenant=tenant, limit=limit, cursor=cursor)


def list_healed(
    *, tenant: str = "", since: float | None = None, limit: int = PAGE, cursor: str = ""
) -> Call[HealedPage]:
    """VMs that were placed again, latest first: of one tenant, since a time (seconds since 1970)."""
    return read("/v1/healing/history", HealedPage, tenant=tenant, since=since, limit=limit, cursor=cursor)


def summarise_healing(*, since: float | None = None) -> Call[HealingSummary]:
    """Healing in numbers: what waits, what was healed, and how long that took."""
    return replace(read("/v1/healing/summary", HealingSummary, since=since), patience=LOOKING_BACK)


def heal(wish: HealingWish) -> Call[HealingResult]:
    """Place the VMs of machines that are not ready again, now: of those named, or of all that are down."""
    return replace(ask("/v1/healing", HealingResult, wish), patience=LOOKING_BACK)


def hear(machines: Sequence[str]) -> Call[Heard]:
    """These machines are alive."""
    return ask("/v1/heartbeats", Heard, Heartbeat(machines=tuple(machines)))


def get_walk() -> Call[WalkView]:
    """Who walks through the update domains of the zone."""
    return read("/v1/maintenance", WalkView)


def hold_walk(hold: WalkHold) -> Call[WalkView]:
    """Begin to walk through the zone, or say that one goes on; refused while another does."""
    return Call(method="PUT", path="/v1/maintenance", answer=WalkView, body=hold)


def end_walk(walk: str) -> Call[None]:
    """A walk has ended: another may begin."""
    return Call(method="DELETE", path="/v1/maintenance", answer=NoneType, query={"walk": walk})


# ------------------------------------------------------------------------------------------------------- policies


def list_policies() -> Call[Policies]:
    """Every policy, and for which share of the tenants it decides."""
    return read("/v1/policies", Policies)


def get_policy(name: str) -> Call[PolicyView]:
    """A policy with its text."""
    return read(f"/v1/policies/{part('policy', name)}", PolicyView)


def validate_policy(text: str) -> Call[PolicyView]:
    """Read a policy, compile it and try it out on this zone. Nothing is kept."""
    return replace(ask("/v1/policies/validate", PolicyView, PolicyText(text=text)), patience=COMPILING)


def put_policy(name: str, text: str, *, key: str = "", dry_run: bool = False) -> Call[PolicyView]:
    """Keep a policy under its name. It decides nothing until it is activated."""
    path = f"/v1/policies/{part('policy', name)}"
    call = write("PUT", path, PolicyView, PolicyText(text=text), key=key, dry_run=dry_run)
    return replace(call, patience=COMPILING)


def delete_policy(name: str, *, key: str = "", dry_run: bool = False) -> Call[None]:
    """Forget a policy."""
    return write("DELETE", f"/v1/policies/{part('policy', name)}", NoneType, key=key, dry_run=dry_run)


def active_policy() -> Call[Active]:
    """Which policy decides, and which one it is compared with."""
    return read("/v1/policies/active", Active)


def activate_policy(
    policy: str, *, against: str = "", share: float = 0.0, key: str = "", dry_run: bool = False
) -> Call[Active]:
    """Let a policy decide from now on; with `against`, another one for a share of the tenants."""
    wish = Activation(policy=policy, against=against, share=share)
    call = write("POST", "/v1/policies/activate", Active, wish, key=key, dry_run=dry_run)
    return replace(call, patience=COMPILING)


def shadow_policy(policy: str, *, share: float = 1.0, key: str = "", dry_run: bool = False) -> Call[ShadowPolicy]:
    """Let a policy decide beside the one in force, for a share of the tenants; nothing is placed by it."""
    wish = ShadowWish(policy=policy, share=share)
    call = write("POST", "/v1/shadow", ShadowPolicy, wish, key=key, dry_run=dry_run)
    return replace(call, patience=COMPILING)


def end_shadow(*, key: str = "", dry_run: bool = False) -> Call[None]:
    """Let no policy decide beside the one in force."""
    return write("DELETE", "/v1/shadow", NoneType, key=key, dry_run=dry_run)


def policy_differences() -> Call[Differences]:
    """What the policy in the shadow would have decided otherwise."""
    return read("/v1/shadow/differences", Differences)


def policy_results(*, since: float | None = None) -> Call[PolicyResults]:
    """What each policy did since a time (seconds since 1970), or since the last activation."""
    return read("/v1/policies/results", PolicyResults, since=since)


# -------------------------------------------------------------------------------------------- changes, tokens, ops


def list_changes(*, since: int = 0, limit: int = PAGE) -> Call[Changes]:
    """What changed after a revision, oldest first: who, when, what."""
    return read("/v1/changes", Changes, since=since, limit=limit)


def stream_changes(since: int | None = None) -> Call[bytes]:
    """Changes after a revision (else from now on) as they happen: server-sent events. `Client.changes` reads them."""
    return replace(read("/v1/changes/stream", bytes, since=since), headers={"accept": "text/event-stream"})


def snapshot() -> Call[bytes]:
    """The zone as it is now, as JSON: what `roost whatif` asks questions about."""
    return replace(read("/v1/snapshot", bytes), patience=LOOKING_BACK)


def list_tokens() -> Call[Tokens]:
    """All tokens, without their secrets."""
    return read("/v1/tokens", Tokens)


def create_token(name: str, scopes: Iterable[TokenScope], *, namespace: str = "", days: float = 0.0) -> Call[TokenMade]:
    """Make a token. Its secret is in the answer and nowhere else, so that this is not asked for twice."""
    body = NewToken(name=name, scopes=tuple(scopes), namespace=namespace, days=days)
    return Call(method="POST", path="/v1/tokens", answer=TokenMade, body=body, repeatable=False)


def revoke_token(name: str, *, force: bool = False, key: str = "") -> Call[None]:
    """Revoke a token; with `force`, also the last one with scope admin."""
    check_name("token", name)
    call = write("DELETE", f"/v1/tokens/{part('token', name)}", NoneType, key=key)
    return replace(call, query=query_of({"force": force or None}))


def health() -> Call[Health]:
    """Whether the process lives."""
    return read("/healthz", Health)


def ready() -> Call[Health]:
    """Whether it may be given work. Asked once: that it is not ready is an answer, too."""
    return replace(read("/readyz", Health), repeatable=False)


def metrics() -> Call[bytes]:
    """Numbers for Prometheus."""
    return read("/metrics", bytes)
