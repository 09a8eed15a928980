"""What one request or one failure does to everybody else: an open load of creates beside each, and the loop watched.

For each case a service on SQLite. Its saturation rate is measured, then half of that is offered twice: undisturbed, and
beside the disturbance. What counts is what comes of the creates, how long the event loop is held at once, and how soon
the health routes answer.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import msgspec

from roost.bench.echo import HELD
from roost.bench.load import Load, LoadReport
from roost.bench.reporting import ReportProgress
from roost.bench.service import CONNECTIONS, CREATE, WARM_UP_SECONDS, generate, serve_with_echo
from roost.engine.recheck import CompiledRecheck
from roost.model.registry import WAITING
from roost.model.request import UNCONSTRAINED, VM
from roost.model.waiting import Waiting
from roost.rules.policy import Policy
from roost.store.contract import Decline, Proposal, Record, Register, SetCondition, SetQuarantine
from roost.wiring import find_zone, open_store

WAITING_VMS, DECISIONS, LOST_VMS = 10_000, 140_000, 23
GROUP = 1_000  # proposals that are committed together
PATIENCE_SECONDS = 120.0  # for one answer
PROBE_SECONDS = 0.02  # between questions for its health

# --------------------------------------------------------------------------------------------------------------- cases


class Case(msgspec.Struct, frozen=True):
    """Something that should disturb nobody."""

    what: str
    prepare: Callable[[Path, str], None] = lambda _path, _zone: None  # the store, before it is served
    settle: Callable[[httpx.Client], None] = lambda _client: None  # once it is served, before anything else comes
    begin: Callable[[httpx.Client], None] = lambda _client: None  # when it is to disturb
    ask: Callable[[httpx.Client, int], None] | None = None  # again and again, while the load is offered


def _post(client: httpx.Client, path: str, body: Mapping[str, Any]) -> None:
    client.post(path, json=body)


def _together(client: httpx.Client, number: int) -> None:
    """1,000 VMs that must stay in one rack, which none can hold."""
    vms = [{"type": "A3", "count": 1_000}]
    _post(client, CREATE, {"tenant": f"together-{number}", "vms": vms, "constraints": {"colocate": "rack"}})


def _batch(client: httpx.Client, number: int) -> None:
    """100 tenants of 200 VMs, each in one rack."""
    vms, together = [{"type": "A3", "count": 200}], {"colocate": "rack"}
    requests = [{"tenant": f"batch-{number}-{i}", "vms": vms, "constraints": together} for i in range(100)]
    _post(client, "/v1/batch", {"requests": requests})


def _explain(client: httpx.Client, _number: int) -> None:
    """Why 100 VMs fit nowhere, and what would help."""
    together = {"colocate": "rack", "max_per_machine": 1}
    _post(client, "/v1/explain", {"tenant": "why", "vms": [{"type": "A3", "count": 100}], "constraints": together})


def _declined(client: httpx.Client, number: int) -> None:
    """A small request that fits nowhere; each has its own reasons, so that none is answered from the last one's."""
    least = 600 + number % 1_000
    vms, spread = [{"type": "A3", "count": 3 + number % 60}], {"max_per_rack": 1, "colocate": "rack"}
    wish = {"tenant": f"declined-{number}", "vms": vms, "constraints": {**spread, "max_per_machine": least}}
    _post(client, CREATE, wish)


def _results(client: httpx.Client, _number: int) -> None:
    """What each policy decided, since the beginning; and a look at a tenant beside it."""
    client.get("/v1/policies/results", params={"since": 0})


def _lone_pair(path: Path, zone: str) -> None:
    """The last cluster, which has the largest machines: two of one rack are ready, and no others."""
    found = find_zone(zone)
    names = found.machine_names[int(found.clusters[-1]["first"]) + 2 :]
    draining = {"state": 1}
    _commit(
        path,
        zone,
        [
            SetCondition(key=f"drain {name}", request=b"{}", record=Record(), machine=name, condition=draining)
            for name in names
        ],
    )


def _pair_up(client: httpx.Client) -> None:
    """Tenants whose VMs have no other place."""
    cluster = client.get("/v1/clusters").json()["items"][-1]["cluster"]
    for i in range(LOST_VMS):
        wish = {"type": "A0", "cluster": cluster, "count": 2}
        apart = {"colocate": "rack", "max_per_machine": 1}
        client.post(CREATE, json={"tenant": f"lost-{i}", "vms": [wish], "constraints": apart}).raise_for_status()


def _lose(client: httpx.Client) -> None:
    """A machine goes down on which each of them has a VM."""
    (vm, _) = client.get("/v1/vms", params={"tenant": "lost-0"}).json()["items"]
    client.patch(f"/v1/machines/{vm['machine']}", json={"state": "down"}).raise_for_status()


def _queue_up(path: Path, zone: str) -> None:
    """VMs that had to give way and wait for room in a cluster that takes none."""
    cluster = find_zone(zone).cluster_names[0]
    spec = VM("A1", priority="spot", cluster=cluster, requeue=True)
    proposals: list[Proposal] = [
        SetQuarantine(key="shut", request=b"{}", record=Record(), cluster=cluster, quarantined=True)
    ]
    for i in range(WAITING_VMS):
        waiting = Waiting(tenant=f"w{i}", spec=spec, constraints=UNCONSTRAINED, since=time.time(), cause="bench")
        value = msgspec.json.encode(waiting).decode()
        proposals.append(
            Register(key=f"wait {i}", request=b"{}", record=Record(), kind=WAITING, name=f"w{i}/0", value=value)
        )
    _commit(path, zone, proposals)


def _decide_much(path: Path, zone: str) -> None:
    policy = Policy.default()
    record = Record(policy=f"{policy.name} {policy.digest}", at=time.time(), decided_us=17)
    _commit(path, zone, [Decline(key=f"past {i}", request=b"{}", record=record) for i in range(DECISIONS)])


def _commit(path: Path, zone: str, proposals: list[Any]) -> None:
    found = find_zone(zone)
    store, recheck = open_store(str(path), create=found), CompiledRecheck(found, Policy.default().rules)
    for start in range(0, len(proposals), GROUP):
        store.commit(proposals[start : start + GROUP], recheck)
    store.close()


CASES = (
    Case("1,000 VMs in one rack", ask=_together),
    Case("batches of 100 × 200 VMs in one rack each", ask=_batch),
    Case("explanations of 100 VMs", ask=_explain),
    Case("small requests that are declined", ask=_declined),
    Case(f"{LOST_VMS} VMs that cannot be healed", prepare=_lone_pair, settle=_pair_up, begin=_lose),
    Case(f"{WAITING_VMS:,} VMs that wait", prepare=_queue_up),
    Case(f"results over {DECISIONS:,} decisions", prepare=_decide_much, ask=_results),
)

# ----------------------------------------------------------------------------------------------------------- measuring


class Beside(msgspec.Struct):
    """What was seen of a service while a load was offered."""

    health: list[float] = []  # seconds until the health routes answered
    asked: int = 0  # disturbances that were answered
    longest: float = 0.0  # seconds that one of them took


def bench_stalls(
    machines: int, seconds: float, repeats: int, progress: ReportProgress = lambda _t, _s: None
) -> dict[str, Any]:
    """A row for each case, each figure the median of `repeats` turns."""
    rows: dict[str, list[dict[str, Any]]] = {case.what: [] for case in CASES}
    steps, done = repeats * len(CASES), count()
    for case in [case for _ in range(repeats) for case in CASES]:
        progress(case.what, next(done) / steps)
        rows[case.what].append(_measure(case, f"synthetic:{machines}", seconds))
    return {"rows": [_median(turns) for turns in rows.values()]}


def _measure(case: Case, zone: str, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="roost-bench-") as folder:
        path = Path(folder) / "zone.db"
        case.prepare(path, zone)
        with (
            serve_with_echo(str(path), zone) as port,
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_SECONDS) as client,
        ):
            case.settle(client)
            generate(Load(port=port, path=CREATE, seconds=WARM_UP_SECONDS, connections=CONNECTIONS))
            full = generate(Load(port=port, path=CREATE, seconds=seconds / 2, connections=CONNECTIONS))
            load = Load(port=port, path=CREATE, seconds=seconds, connections=CONNECTIONS, rate=full.rate / 2)
            client.get(HELD)
            with _watching(port, None):
                calm = generate(load)
            calm_held = client.get(HELD).json()["ms"]
            case.begin(client)
            client.get(HELD)
            with _watching(port, case.ask) as beside:
                report = generate(load)
            return _row(case.what, calm, calm_held, report, client.get(HELD).json()["ms"], beside)


@contextmanager
def _watching(port: int, ask: Callable[[httpx.Client, int], None] | None) -> Iterator[Beside]:
    """Ask for the health of a service, and for what may disturb it, in threads, for as long as this lasts."""
    beside, over = Beside(), threading.Event()

    def probe() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_SECONDS) as client:
            while not over.wait(PROBE_SECONDS):
                for path in ("/healthz", "/readyz"):
                    started = time.perf_counter()
                    client.get(path).raise_for_status()
                    beside.health.append(time.perf_counter() - started)

    def disturb() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_SECONDS) as client:
            while ask is not None and not over.is_set():
                started = time.perf_counter()
                ask(client, beside.asked)
                beside.asked += 1
                beside.longest = max(beside.longest, time.perf_counter() - started)

    threads = [threading.Thread(target=work) for work in (probe, disturb)]
    for thread in threads:
        thread.start()
    try:
        yield beside
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _row(
    what: str, calm: LoadReport, calm_held: float, report: LoadReport, held: float, beside: Beside
) -> dict[str, Any]:
    return {
        "what": what,
        "offered_per_second": round(report.offered / report.seconds),
        "answered": round(report.statuses.get("201", 0) / report.offered, 3),
        "p99_ms_undisturbed": round(calm.p99_ms, 1),
        "p99_ms": round(report.p99_ms, 1),
        "times": round(report.p99_ms / calm.p99_ms, 2),
        "held_ms_undisturbed": round(calm_held, 1),
        "held_ms": round(held, 1),
        "health_ms_worst": round(max(beside.health) * 1e3, 1),
        "disturbances": beside.asked,
        "longest_s": round(beside.longest, 2),
    }


def _median(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Figure by figure."""
    found: dict[str, Any] = {}
    for name, first in turns[0].items():
        found[name] = first if isinstance(first, str) else statistics.median(turn[name] for turn in turns)
    return found
