"""How fast the engine decides, beside the paper's baseline and a NumPy scan, in one run.

A synthetic zone is filled to about 85 % by requests of many classes whose popularity follows Zipf's law, then churned:
each step releases a random VM and places one. Latency is that of the engine call (choose a machine and put the VM on
it, caches brought up to date), not of the bookkeeping around it. Figures: README and docs/benchmarks.md.
"""

import gc
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from roost.bench.numpy_scan import NumpyBestFit
from roost.bench.reporting import ReportProgress
from roost.engine.kernel.compiler import compile_rules
from roost.engine.selection import CacheLimits, Engine
from roost.engine.shape import Shape
from roost.engine.side_tables import FORESIGHT
from roost.engine.tenant import TenantDesk
from roost.engine.view import View
from roost.model.foresight import foresee, table_of
from roost.model.request import VM, Constraints, Request
from roost.model.zone import Zone
from roost.placing.allocator import Allocator
from roost.placing.gang import place_gang
from roost.placing.seating import seated
from roost.rules.policy import SHIPPED, Policy

ZIPF = 1.0
BLOCKS, BLOCK = 9, 1_000  # of requests, or of machines, that are measured alternately
FOR_LOWER_BANDS = re.compile(r"^ *- .*\b(safest|nobody_gives_way)\b.*\n", re.MULTILINE)  # lines of a policy
UTILISATION = 0.85
SPECIAL = ("infiniband",)  # types that need it would only measure how few such clusters there are
STARTUP = """
import time
started = time.perf_counter()
from roost import Allocator, Policy, Request, VM, Zone
zone = Zone.synthetic({machines}, seed=1)
allocator = Allocator(zone, Policy.named({policy!r}), seed=1)
assert allocator.allocate(Request("first", [VM("D2")])).ok
print(time.perf_counter() - started)
"""


class Live:
    """The VMs that run: two lists of numbers, which the garbage collector need not walk; and who can give way where."""

    def __init__(self, view: View, shapes: Sequence[Shape]) -> None:
        self._view, self._shapes = view, shapes
        self.machines: list[int] = []
        self.kinds: list[int] = []
        self._lower: dict[int, list[int]] = {}  # by machine: the kinds of its VMs below the highest priority
        self._gone: Counter[tuple[int, int]] = Counter()  # those in the lists that gave way

    def add(self, machine: int, kind: int) -> None:
        """One was placed. If others have to give way to it, they do."""
        self.machines.append(machine)
        self.kinds.append(kind)
        if self._shapes[kind].traits["priority"]:
            self._lower.setdefault(machine, []).append(kind)
        if self._view.overfilled((machine,)):
            here, free = self._lower.get(machine, []), self._view.machines[machine]["free"][-1]
            while (free < 0).any():
                gone = here.pop()
                self._view.remove(machine, self._shapes[gone])
                self._gone[machine, gone] += 1

    def release(self, share: float) -> None:
        """One leaves, so far into the lists; they are in no particular order."""
        while True:
            at = int(share * len(self.machines))
            for numbers in (self.machines, self.kinds):
                numbers[at], numbers[-1] = numbers[-1], numbers[at]
            machine, kind = self.machines.pop(), self.kinds.pop()
            if not self._gone[machine, kind]:
                break
            self._gone[machine, kind] -= 1
        self._view.remove(machine, self._shapes[kind])
        if self._shapes[kind].traits["priority"]:
            self._lower[machine].remove(kind)


def bench_engine(
    machines: int, classes: int, requests: int, policy: str = "default", progress: ReportProgress = lambda _t, _s: None
) -> dict[str, Any]:
    """All figures for one size of zone."""
    zone = Zone.synthetic(machines, seed=1)
    progress("compiling", 0.0)
    allocator = Allocator(zone, Policy.named(policy), seed=1, limits=CacheLimits(evaluations=classes + 8))
    engine, rng = allocator.engine, np.random.default_rng(1)
    shapes = [allocator.shapes.of(vm, tenant=1) for vm in _kinds(zone, classes)]
    popularity = 1.0 / np.arange(1, classes + 1) ** ZIPF
    popularity /= popularity.sum()
    live = _fill(allocator, shapes, popularity, rng, progress)
    churn = _churn(engine, shapes, popularity, live, requests, rng, progress)
    progress("baselines", 0.0)
    cold = _cold(allocator, shapes)
    desk = TenantDesk(engine.view)
    baseline = _median_ms(lambda i: _from_scratch(engine, shapes[i % classes], desk), 15)
    numpy = NumpyBestFit(zone, engine.view.machines)
    scan = _median_ms(lambda i: numpy.choose(shapes[i % classes]), 50)
    warm = churn["warm_us"]["mean"]
    progress("whole decisions", 0.0)
    decisions = _decisions(allocator, classes, popularity, rng)
    progress("tenants with constraints", 0.0)
    constrained = _constrained_ratio(engine, shapes, popularity, rng)
    progress("priorities", 0.0)
    priorities = _priorities(allocator, shapes, popularity, live, rng)
    progress("start-up", 0.0)
    return {
        "machines": machines,
        "policy": policy,
        "rules": len(allocator.policy.rules),
        "classes": classes,
        "requests": requests,
        "utilisation": round(allocator.usage().utilisation, 4),
        **churn,
        "decisions_per_s": decisions,
        "cold_evaluation_ms": cold,
        "memory_mb": {name: round(size / 1e6, 2) for name, size in engine.memory().items()},
        "resident_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "paper_baseline_ms": baseline,
        "numpy_best_fit_ms": scan,
        "times_faster_than_paper_baseline": round(baseline * 1000 / warm, 1),
        "times_faster_than_numpy_best_fit": round(scan * 1000 / warm, 1),
        "constrained_over_unconstrained": constrained,
        "two_priorities": priorities,
        "startup_to_first_decision_s": _startup(machines, policy),
    }


def _kinds(zone: Zone, count: int) -> list[VM]:
    """Distinct kinds of request, small ones the most popular: VM type, priority, anti-colocation class."""
    types = [t for t in zone.vm_types if t.family != "Full" and not set(SPECIAL) & set(t.requires)]
    types.sort(key=lambda t: max(t.demand.values()))
    variants = [
        VM(vm_type.name, priority=band, colocation=colocation)
        for colocation in ("", *zone.classes)
        for band in zone.bands
        for vm_type in types
    ]
    if count > len(variants):
        raise ValueError(f"at most {len(variants)} classes can be made")
    return variants[:count]


def _fill(
    allocator: Allocator,
    shapes: Sequence[Shape],
    popularity: np.ndarray,
    rng: np.random.Generator,
    progress: ReportProgress,
) -> Live:
    engine, live = allocator.engine, Live(allocator.view, shapes)
    cores = engine.view.clusters
    capacity = float(cores["capacity"][:, 0].sum())
    refused = 0
    while (full := float(cores["used"][:, -1, 0].sum()) / capacity) < UTILISATION and refused <= len(live.machines):
        progress("filling", full / UTILISATION)
        for k in rng.choice(len(shapes), 2_000, p=popularity):
            machine = engine.assign(shapes[k]).machine
            if machine >= 0:
                live.add(machine, int(k))
            else:
                refused += 1
    return live


def _churn(
    engine: Engine,
    shapes: Sequence[Shape],
    popularity: np.ndarray,
    live: Live,
    requests: int,
    rng: np.random.Generator,
    progress: ReportProgress,
) -> dict[str, Any]:
    """Release one, place one; the first fifth settles and is not measured."""
    settle = requests // 5
    order = rng.choice(len(shapes), settle + requests, p=popularity).tolist()
    leaving = rng.random(settle + requests).tolist()
    latency, hits, updated = np.empty(requests), np.zeros(requests, bool), np.empty(requests, np.int64)
    refused = 0
    clock = time.perf_counter
    for i, k in enumerate(order):
        if i % 2_000 == 0:
            progress("churning", i / len(order))
        live.release(leaving[i])
        shape = shapes[k]
        started = clock()
        found = engine.assign(shape)
        elapsed = clock() - started
        if found.machine >= 0:
            live.add(found.machine, k)
        if i >= settle:
            latency[i - settle], hits[i - settle], updated[i - settle] = elapsed, found.hit, found.updated
            refused += found.machine < 0
    warm = latency[hits] * 1e6
    return {
        "refused": refused,
        "hit_ratio": round(float(hits.mean()), 5),
        "warm_us": {
            "mean": round(float(warm.mean()), 2),
            "median": round(float(np.median(warm)), 2),
            "p99": round(float(np.percentile(warm, 99)), 1),
            "p99.9": round(float(np.percentile(warm, 99.9)), 1),
        },
        "throughput_per_s": round(requests / float(latency.sum())),
        "machines_updated_per_hit": round(float(updated[hits].mean()), 1),
    }


def _decisions(allocator: Allocator, classes: int, popularity: np.ndarray, rng: np.random.Generator) -> int:
    """Requests a second through the allocator: checked, placed, recorded; each released again, outside the measure.

    Of the lowest priority: the allocator does not know of the VMs that fill the zone, so none could give way.
    """
    lowest = allocator.zone.bands[-1]
    kinds = [msgspec.structs.replace(vm, priority=lowest) for vm in _kinds(allocator.zone, classes)]
    taken, placed = 0.0, 0
    gc.collect()  # a walk over all that was made before takes as long as thousands of requests
    for k in rng.choice(classes, 20_000, p=popularity):
        request = Request("measured", (kinds[k],))
        started = time.perf_counter()
        decision = allocator.allocate(request)
        taken += time.perf_counter() - started
        if decision.ok:
            placed += 1
            allocator.release(decision.placements[0].vm)
    return round(placed / taken)


def _cold(allocator: Allocator, shapes: Sequence[Shape]) -> dict[str, float]:
    """A first request of its class: as it happens (only the clusters it looks at), and for the whole zone at once."""
    engine = Engine(allocator.view, allocator.policy.rules, seed=2)
    desk = TenantDesk(allocator.view)
    times, looked, whole = [], [], []
    for shape in shapes[:40]:
        started = time.perf_counter()
        found = engine.assign(shape)
        times.append(time.perf_counter() - started)
        looked.append(found.updated)
        if found.machine >= 0:
            engine.view.remove(found.machine, shape)
        started = time.perf_counter()
        engine.judge(engine.view, shape, desk)
        whole.append(time.perf_counter() - started)
    return {
        "median": round(float(np.median(times)) * 1e3, 3),
        "max": round(max(times) * 1e3, 3),
        "machines_updated_per_miss": int(np.median(looked)),
        "whole_zone_median": round(float(np.median(whole)) * 1e3, 3),
    }


def _from_scratch(engine: Engine, shape: Shape, desk: TenantDesk) -> None:
    """The paper's baseline: no caches, no cluster selection; every rule on every machine, and the sorted list."""
    judged = engine.judge(engine.view, shape, desk)
    valid = np.flatnonzero(judged.verdicts < 0)
    valid[np.argsort(judged.keys[valid], kind="stable")]


def _median_ms(work: Callable[[int], object], times: int) -> float:
    work(0)
    taken = []
    for i in range(times):
        started = time.perf_counter()
        work(i)
        taken.append(time.perf_counter() - started)
    return round(float(np.median(taken)) * 1e3, 3)


def _constrained_ratio(
    engine: Engine, shapes: Sequence[Shape], popularity: np.ndarray, rng: np.random.Generator
) -> dict[str, float]:
    """5-VM tenants spread over 3 fault domains, one VM a machine, against the same VMs without.

    Blocks of requests alternate; before each, everything is as it was and every cache is up to date.
    """
    order = rng.choice(len(shapes), 400, p=popularity)
    kinds = {"free": Constraints(), "spread": Constraints(min_fault_domains=3, max_per_machine=1)}
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(15):
        for name, constraints in kinds.items():
            while engine.refresh(1_000):
                pass
            before = engine.view.revision
            beside = seated(constraints, (), {})
            started = time.perf_counter()
            placed = [place_gang(engine, (shapes[k],) * 5, range(5), beside) for k in order]
            taken = time.perf_counter() - started
            rates[name].append(sum(len(trial.machines) for trial in placed if trial.failed_vm is None) / taken)
            engine.view.rewind(before)
    spread, free = (float(np.median(rates[name])) for name in ("spread", "free"))
    return {
        "ratio": round(spread / free, 3),
        "constrained_vms_per_s": round(spread),
        "unconstrained_vms_per_s": round(free),
    }


def _priorities(
    allocator: Allocator, shapes: Sequence[Shape], popularity: np.ndarray, live: Live, rng: np.random.Generator
) -> dict[str, float]:
    """Requests of both bands by the policy, with VMs foreseen, against as many kinds of requests of the highest by the
    policy without what serves the lower one; and what a changed machine costs with and without the safety score.

    Both engines see one zone. Blocks alternate; before each, every cache is up to date.
    """
    zone, view, both = allocator.zone, allocator.view, allocator.engine
    text = (SHIPPED / f"{allocator.policy.name}.yaml").read_text()
    plain = Policy.parse(FOR_LOWER_BANDS.sub("", text)).rules
    limits, kernel = CacheLimits(evaluations=len(shapes) + 8), compile_rules(plain, zone)
    regular = Engine(view, plain, seed=3, limits=limits, kernel=kernel)
    highest = [k for k, shape in enumerate(shapes) if shape.traits["priority"] == 0]
    lower = [k for k, shape in enumerate(shapes) if shape.traits["priority"] > 0] or highest
    mixed = [pair[i % 2] for i, pair in enumerate(zip(highest, lower, strict=False))]
    share = popularity[: len(mixed)] / popularity[: len(mixed)].sum()
    rates = {(zone.vm_types[shapes[k].traits["vm_type"]].name, ""): 3_600 * popularity[k] for k in highest}
    started = time.perf_counter()
    view.set_table(FORESIGHT, table_of(foresee(zone, view.machines, rates), zone))
    foreseen = time.perf_counter() - started
    taken: dict[str, list[float]] = {"regular": [], "both": []}
    for _ in range(BLOCKS):
        for name, engine, kinds in (("regular", regular, highest[: len(mixed)]), ("both", both, mixed)):
            order = rng.choice(kinds, 2 * BLOCK, p=share).tolist()
            while engine.refresh(1_000):
                pass
            warm = []
            for i, k in enumerate(order):
                live.release(float(rng.random()))
                started = time.perf_counter()
                found = engine.assign(shapes[k])
                elapsed = time.perf_counter() - started
                if found.machine >= 0:
                    live.add(found.machine, k)
                if found.hit and i >= BLOCK:  # the first half settles
                    warm.append(elapsed)
            taken[name].append(1e6 * sum(warm) / max(1, len(warm)))
    one_us, two_us = (float(np.median(taken[name])) for name in ("regular", "both"))
    with_score, without = (
        _per_changed_machine(Engine(view, like.rules, seed=4, kernel=like.kernel), shapes[lower[0]], rng)
        for like in (both, regular)
    )
    return {
        "one_us": round(one_us, 2),
        "two_us": round(two_us, 2),
        "ratio": round(two_us / one_us, 3),
        "us_per_changed_machine": round(with_score, 3),
        "us_per_changed_machine_without_score": round(without, 3),
        "foreseeing_ms": round(1e3 * foreseen, 1),
    }


def _per_changed_machine(engine: Engine, shape: Shape, rng: np.random.Generator) -> float:
    """Microseconds to bring the evaluation of a VM of a lower band up to date, for each machine that has changed."""
    view, found = engine.view, []
    for _ in range(BLOCKS):
        for _ in range(20):
            if (machine := engine.assign(shape).machine) >= 0:
                view.remove(machine, shape)
        while engine.refresh(1_000):
            pass
        for machine in rng.integers(len(view.machines), size=BLOCK).tolist():
            view.set_field(machine, "health", int(view.machines[machine]["health"]))
        started = time.perf_counter()
        looked = engine.refresh(1_000)
        if looked:
            found.append(1e6 * (time.perf_counter() - started) / looked)
    return float(np.median(found)) if found else 0.0


def _startup(machines: int, policy: str) -> float:
    """A new process, from its first import to its first decision, with the kernel already on disk."""
    script = STARTUP.format(machines=machines, policy=policy)
    taken = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        taken.append(float(done.stdout))
    return round(float(np.median(taken)), 3)
