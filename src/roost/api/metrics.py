"""What Prometheus is told. Labels are bounded: never a machine, a tenant or a VM.

With several workers the numbers of all of them are summed: each writes its own to files that every worker can read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from roost.admission.standing import Standing, standings
from roost.agent.operation import Status
from roost.agent.ticket import Ticket
from roost.api.tally import Tally, TimeTally
from roost.engine.statistics import RuleFilter
from roost.model.request import HOLD
from roost.model.thresholds import PURPOSES
from roost.placing.decision import Decision

if TYPE_CHECKING:
    from roost.api.service import Service

SHARED = "PROMETHEUS_MULTIPROC_DIR"  # set by whoever starts several workers
FAST = (0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
LASTING = (60.0, 600.0, 3_600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0, 2_592_000.0)
SLOW = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
HELD = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
RESULTS: dict[Status, str] = {
    "done": "scheduled",
    "declined": "unschedulable",
    "conflicts": "conflict",
    "invalid": "invalid",
    "unavailable": "error",
}


class Metrics:
    """Every metric, once."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, sentence: str, *labels: str) -> Counter:
            return Counter(f"roost_{name}", sentence, labels, registry=registry)

        def gauge(name: str, sentence: str, *labels: str, mode: str = "mostrecent") -> Gauge:
            return Gauge(f"roost_{name}", sentence, labels, registry=registry, multiprocess_mode=mode)  # type: ignore[arg-type]

        def histogram(name: str, sentence: str, *labels: str, buckets: tuple[float, ...] = SLOW) -> Histogram:
            return Histogram(f"roost_{name}", sentence, labels, registry=registry, buckets=buckets)

        self.requests = histogram("http_request_duration_seconds", "Time to answer.", "method", "route", "status")
        self.attempts = counter(
            "schedule_attempts_total", "Requests to place, by what came of them.", "policy", "result"
        )
        self.operations = counter(
            "operations_total",
            "Operations that were answered, by what was asked and what came of it.",
            "verb",
            "result",
        )
        self.unplaced = counter(
            "unschedulable_total", "Requests to place that found no machine, by what they were for.", "purpose"
        )
        self.placed = counter("placed_vms_total", "VMs placed.")
        self.waited = histogram("queue_wait_seconds", "Time from a request's arrival to its decision.")
        self.decided = histogram("decision_duration_seconds", "Time to decide a request.", buckets=FAST)
        self.committed = histogram("commit_duration_seconds", "Time the store took for a group of requests.")
        self.conflicts = counter("conflicts_total", "Commits refused because somebody was faster.", "reason")
        self.retries = counter("retries_total", "Requests decided again after a conflict.")
        self.shadow_decisions = counter("shadow_decisions_total", "Decisions that a policy in the shadow looked at.")
        self.shadow_changed = counter(
            "shadow_changed_total", "Of these, those that it would have decided otherwise.", "kind", "rule"
        )
        self.evictions = counter(
            "evictions_total",
            "VMs that had to give way, by their priority and by that of what came.",
            "priority",
            "cause",
        )
        self.survived = histogram("evicted_after_seconds", "How long evicted VMs had run.", "priority", buckets=LASTING)
        self.waiting = gauge("waiting_vms", "VMs that had to give way and wait to be placed again.")
        self.healed = counter("healed_vms_total", "VMs whose machine was down and that run elsewhere now.")
        self.healing = histogram("healing_seconds", "Time from the loss of a VM to its commit elsewhere.")
        self.unhealed = gauge("unhealed_vms", "VMs on machines that are down.")
        self.distrusted = counter("flapping_machines_total", "Machines quarantined as they went down again and again.")
        self.silent = gauge("silent_machines", "Machines that are down as their heartbeats stopped.")
        self.doubted = gauge(
            "doubted_machines", "Machines whose heartbeats stopped, so many at once that nothing is done about them."
        )
        self.duty_runs = counter("duty_runs_total", "Steps of what is seen to beside the requests, by duty.", "duty")
        self.duty_failures = counter("duty_failures_total", "Steps that failed, by duty.", "duty")
        self.duty_seconds = gauge("duty_seconds", "How long the last step took, by duty.", "duty", mode="livemax")
        self.duty_age = gauge("duty_age_seconds", "Seconds since the last step, by duty.", "duty", mode="livemax")
        self.held = histogram("loop_held_seconds", "Times for which the event loop served nobody else.", buckets=HELD)
        self.errands = counter("errands_total", "Explanations that were cut short, or refused.", "result")
        self.shed = counter("shed_requests_total", "Requests refused because too much was asked at once.")
        self.cache = counter("cache_requests_total", "Uses of cached objects.", "class", "result")
        self.cache_updates = counter("cache_updates_total", "Machines looked at to bring caches up to date.", "class")
        self.depth = gauge("queue_depth", "Requests that wait to be decided.", mode="livesum")
        self.depth_vms = gauge("queue_depth_vms", "VMs that wait to be decided.", mode="livesum")
        self.streams = gauge("change_streams", "Open streams of changes.", mode="livesum")
        self.feed_lag = gauge("feed_lag_revisions", "Changes that the agent has not seen yet.", mode="livemax")
        self.revision = gauge("revision", "The revision that the agent has seen.", mode="livemax")
        self.missing = gauge("missing_workers", "Workers that could not start and are tried again.", mode="livemax")
        self.unusable = gauge(
            "policy_unusable", "1 while a worker does not decide by what was activated, as it was.", mode="livemax"
        )
        self.store_up = gauge("store_up", "1 while the store can be reached and written.", mode="livemin")
        self.utilisation = gauge("utilisation_ratio", "Used cores over all cores.")
        self.density = gauge("packing_density_ratio", "Used cores over the cores of machines in use.")
        self.machines = gauge("machines", "Machines.", "state")
        self.empty = gauge("empty_machines", "Machines without a VM.")
        self.cluster_empty = gauge(
            "cluster_empty_machines", "Ready machines of a cluster without a VM of the highest band.", "cluster"
        )
        self.thresholds = gauge(
            "cluster_threshold_machines", "Empty machines at which a kind of request stops; 0: never.",
            "cluster", "purpose",
        )  # fmt: skip
        self.reached = gauge("thresholds_reached", "Clusters in which a kind of request has stopped.", "purpose")
        self.vms = gauge("vms", "VMs that run.")
        self.tenants = gauge("tenants", "Tenants with VMs.")
        self.filtered = gauge("rule_filter_ratio", "Share of what reaches a rule that it filters out.", "rule", "level")
        self.memory = gauge("cache_bytes", "Memory of an agent, by what holds it.", "class", mode="livesum")
        self._seen: dict[tuple[str, ...], float] = {}
        self._clusters: set[str] = set()  # that were measured last
        # What is counted for every request. Finding one by its labels takes longer than using it.
        self._results: dict[tuple[str, Status], Tally] = {}
        self._times: dict[tuple[str, str, int], TimeTally] = {}
        self._placed, self._waited, self._decided = Tally(self.placed), TimeTally(self.waited), TimeTally(self.decided)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request was answered."""
        kind = method, route, status
        if (times := self._times.get(kind)) is None:
            times = self._times[kind] = TimeTally(self.requests.labels(method, route, str(status)))
        times.note(seconds)

    def pour(self) -> None:
        """Tell what was counted since the last time."""
        counted: tuple[Tally | TimeTally, ...] = self._placed, self._waited, self._decided
        for each in (*counted, *self._results.values(), *self._times.values()):
            each.pour()

    def note(self, ticket: Ticket, policy: str) -> None:
        """A request to place was answered; `policy` decided."""
        answer = ticket.answer
        assert answer is not None
        kind = policy, answer.status
        if (attempts := self._results.get(kind)) is None:
            attempts = self._results[kind] = Tally(self.attempts.labels(policy, RESULTS[answer.status]))
        attempts.add()
        if answer.status == "done" and not answer.replayed:
            self._placed.add(len(answer.placements))
            if answer.evicted and ticket.decision is not None:
                self._note_evictions(ticket.decision)
        if answer.status == "declined" and ticket.decision is not None:
            self.unplaced.labels(PURPOSES[ticket.decision.purpose]).inc()
        self._waited.note(answer.waited_us / 1e6)
        self._decided.note(answer.decided_us / 1e6)
        if answer.retries:
            self.retries.inc(answer.retries)

    def _note_evictions(self, decision: Decision) -> None:
        """What gave way, whose room it was, and how long it had run."""
        trial, bands, now = decision.trial, decision.allocator.zone.bands, time.time()
        cause = bands[min(shape.traits["priority"] for shape in trial.shapes)]
        for victim in decision.victims:
            if victim.name.endswith(HOLD):
                continue
            self.evictions.labels(victim.vm.priority, cause).inc()
            if victim.since:
                self.survived.labels(victim.vm.priority).observe(max(0.0, now - victim.since))

    def measure(self, service: Service) -> None:
        """Look at the zone and the agent; cheap enough for every second."""
        agent = service.agent
        allocator, counters = agent.allocator, agent.counters
        usage = allocator.usage()
        self.depth.set(service.queued_requests)
        self.depth_vms.set(service.queued_vms)
        self.streams.set(service.changes.streams)
        self.feed_lag.set(service.lag)
        self.revision.set(agent.replica.revision)
        self.store_up.set(not (service.watch.down or service.watch.unwritable))
        self.unusable.set(bool(service.switch.unusable))
        self.utilisation.set(usage.utilisation)
        self.density.set(usage.packing_density)
        self.empty.set(usage.empty_machines)
        self.vms.set(usage.vms)
        self.tenants.set(usage.tenants)
        self.errands.labels("cut_short").inc(self._more("cut_short", now=service.explainer.errands.cut_short))
        self.errands.labels("refused").inc(self._more("refused errand", now=service.explainer.errands.refused))
        self.waiting.set(len(agent.replica.waiting.vms))
        if (healer := service.healer) is not None:
            self.unhealed.set(len(healer.waiting))
            counts = healer.counts
            self.healed.inc(self._more("healed", now=counts.healed))
            self.distrusted.inc(self._more("flapping", now=counts.quarantined))
            while counts.seconds:
                self.healing.observe(counts.seconds.pop())
        if service.heartbeats is not None:
            self.silent.set(len(service.heartbeats.silent))
            self.doubted.set(service.heartbeats.doubted)
        for name, health in service.roster.health.items():
            self.duty_runs.labels(name).inc(self._more("duty", name, now=health.runs))
            self.duty_failures.labels(name).inc(self._more("duty failed", name, now=health.failures))
            self.duty_seconds.labels(name).set(health.last_seconds)
            self.duty_age.labels(name).set(service.since(health.last_run))
        for state, number in allocator.machine_states().items():
            self.machines.labels(state).set(number)
        self._measure_thresholds(standings(allocator, agent.replica.registry))
        while agent.commit_seconds:
            self.committed.observe(agent.commit_seconds.popleft())
        for (verb, status), number in counters.answers.items():
            self.operations.labels(verb, status).inc(self._more("operation", verb, status, now=number))
        for reason, number in counters.reasons.items():
            self.conflicts.labels(reason).inc(self._more("conflict", reason, now=number))
        if (shadow := service.switch.shadow) is not None:
            began = str(shadow.began)
            self.shadow_decisions.inc(self._more("shadow", began, now=shadow.decisions))
            for (kind, rule), number in shadow.changed.items():
                self.shadow_changed.labels(kind, rule).inc(self._more("shadow", began, kind, rule, now=number))
        for arm in allocator.arms:
            for name, stats in arm.engine.cache_stats().items():
                label = name.replace(" ", "_")
                self.cache.labels(label, "hit").inc(self._more(arm.recorded, name, "hit", now=stats.hits))
                self.cache.labels(label, "miss").inc(self._more(arm.recorded, name, "miss", now=stats.misses))
                updated = stats.updated_on_hit + stats.updated_on_miss
                self.cache_updates.labels(label).inc(self._more(arm.recorded, name, "updated", now=updated))
        for name, held in allocator.engine.memory().items():
            self.memory.labels(name.replace(" ", "_")).set(held)

    def _measure_thresholds(self, clusters: Sequence[Standing]) -> None:
        """What each cluster keeps and has; one that was removed has nothing."""
        gone, self._clusters = self._clusters - {each.cluster for each in clusters}, {each.cluster for each in clusters}
        for name in gone:
            self.cluster_empty.labels(name).set(0)
        for each in clusters:
            self.cluster_empty.labels(each.cluster).set(each.empty)
            for purpose, least in zip(PURPOSES, each.thresholds.row, strict=True):
                self.thresholds.labels(each.cluster, purpose).set(least)
        for purpose in PURPOSES:
            self.reached.labels(purpose).set(sum(purpose in each.reached for each in clusters))
            for name in gone:
                self.thresholds.labels(name, purpose).set(0)

    def measure_rules(self, filters: Sequence[RuleFilter]) -> None:
        """How much each rule filters out."""
        for found in filters:
            self.filtered.labels(found.rule, found.level).set(found.filtered)

    def _more(self, *name: str, now: float) -> float:
        """How much a number has grown since it was last looked at; one that began anew has grown by all of it."""
        before = self._seen.get(name, 0.0)
        self._seen[name] = now
        return now - before if now >= before else now

    def text(self) -> bytes:
        """All of it, as Prometheus reads it; of other workers, what they told last."""
        self.pour()
        if os.environ.get(SHARED):
            shared = CollectorRegistry()
            MultiProcessCollector(shared)  # type: ignore[no-untyped-call]
            return generate_latest(shared)
        return generate_latest(self.registry)
