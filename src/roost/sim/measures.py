"""What a run is measured by: the name, unit and meaning of each figure, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Measure:
    """A figure of a run's summary."""

    name: str
    unit: str  # "share": from 0 to 1
    better: Literal["higher", "lower", ""]  # empty: neither
    meaning: str


MEASURES = (
    Measure("density", "share", "higher", "cores allocated, of those of machines that run something; mean over time"),
    Measure("utilisation", "share", "higher", "cores allocated, of all cores; mean over time"),
    Measure("peak_utilisation", "share", "", "the highest utilisation at a sample"),
    Measure("empty_machines", "machines", "higher", "machines that run nothing; mean over time"),
    Measure("fewest_empty_machines", "machines", "higher", "the fewest at a sample"),
    Measure("vms", "VMs", "", "VMs on machines; mean over time"),
    Measure("requests", "requests", "", "that were answered"),
    Measure("acceptance", "share", "higher", "requests that were placed, of those answered"),
    Measure("fulfilment", "share", "higher", "VMs that were placed, of those asked for: the capacity-fulfilment rate"),
    Measure("declined", "requests", "lower", "requests for which no machine was found"),
    Measure("gave_up", "requests", "lower", "requests that lost too many races"),
    Measure("invalid", "requests", "lower", "requests that make no sense to the zone or the policy"),
    Measure("vms_placed", "VMs", "", "VMs that were placed"),
    Measure("throughput", "VMs/s", "", "VMs placed in a second of virtual time; mean"),
    Measure("peak_throughput", "VMs/s", "higher", "the same in the busiest bin of the rates"),
    Measure("conflicts", "commits", "lower", "commits that lost a race"),
    Measure("conflict_ratio", "share", "lower", "of the attempts to commit a placement"),
    Measure("conflicts_per_minute_p99", "commits/min", "lower", "99th percentile over the minutes"),
    Measure("retries_per_minute_p99", "retries/min", "lower", "99th percentile over the minutes"),
    Measure("queueing_mean", "s", "lower", "from a request's arrival to the start of its last try; mean"),
    Measure("queueing_p99", "s", "lower", "the same; 99th percentile"),
    Measure("latency_mean", "s", "lower", "from a request's arrival to its answer; mean"),
    Measure("latency_p50", "s", "lower", "the same; median"),
    Measure("latency_p99", "s", "lower", "the same; 99th percentile"),
    Measure("cache_hit_ratio", "share", "higher", "decisions that found their evaluation cached"),
    Measure("updates_per_decision", "machines", "lower", "machines looked at to bring caches up to date"),
    Measure("utilisation_highest", "share", "", "cores of VMs of the highest priority, of all cores; mean over time"),
    Measure(
        "density_highest",
        "share",
        "higher",
        "the same, of the cores of machines that run such VMs: how well those are packed, whatever else runs",
    ),
    Measure("evictions", "VMs", "lower", "VMs that had to give way to a higher priority"),
    Measure("evictions_per_vm_hour", "1/h", "lower", "the same, for each hour that a VM of lower priority ran"),
    Measure("machine_failures", "failures", "", "machines that failed"),
    Measure("vms_displaced", "VMs", "lower", "VMs that ran on machines which failed"),
    Measure("vms_healed", "VMs", "", "of these, those that were placed elsewhere, at once or later"),
    Measure("vms_returned", "VMs", "", "of these, those that waited until their machine was repaired"),
    Measure(
        "vms_unhealed",
        "VMs",
        "lower",
        "of these, all others: their time was over, they had to give way, or the run ended while they waited",
    ),
    Measure("healing_mean", "s", "lower", "from the failure of a VM's machine to its commit on another one; mean"),
    Measure("healing_p99", "s", "lower", "the same; 99th percentile"),
    Measure("vms_requeued", "VMs", "", "VMs that were placed again after they had to give way"),
)
# Only of runs that look at how rules narrow the zone (there is a `left_by_<rule>` for each preference beside it), and
# of runs that move VMs.
OPTIONAL = (
    Measure(
        "candidates", "share", "", "valid machines of the clusters selected, of all; mean over the requests looked at"
    ),
    Measure("vms_moved", "VMs", "", "VMs that were moved to another machine"),
)
BY_NAME = {measure.name: measure for measure in MEASURES}


def stranded(resource: str) -> Measure:
    """There is one of these for each resource."""
    meaning = f"{resource} left over on machines in use that are too full for every VM type asked for; mean over time"
    return Measure(f"stranded_{resource}", "share", "lower", meaning)


def left_by(rule: str) -> Measure:
    """There is one of these for each preference, if an experiment asks how rules narrow the zone."""
    meaning = f"candidates that {rule} and the preferences before it find best; mean over the requests looked at"
    return Measure(f"left_by_{rule}", "share", "", meaning)


def measure_of(name: str) -> Measure:
    """By its name in a summary."""
    for family in (stranded, left_by):
        if name.startswith(beginning := family("").name):
            return family(name.removeprefix(beginning))
    return next((measure for measure in OPTIONAL if measure.name == name), None) or BY_NAME[name]


# One row per sample. Counts are since the sample before. For each resource there are beside these `used_<resource>`,
# `density_<resource>` (of the capacity of machines that run something) and `stranded_<resource>`.
TIMELINE = {
    "time_s": "of the sample, from the beginning of the workload; below 0: when the zone was filled",
    "warm": "1 once the warm-up is over: only these rows count in the summary",
    "utilisation": "cores allocated, of all cores",
    "density": "cores allocated, of the cores of machines that run something; 0 if none does",
    "empty_machines": "machines that run nothing",
    "machines_down": "machines that have failed and are not repaired",
    "vms": "VMs on machines, also on those that are down",
    "vms_lower": "of these, those below the highest priority",
    "vms_lost": "of all VMs, those whose machine is down: they wait to be healed",
    "vms_waiting": "VMs that had to give way and wait to be placed again; they are on no machine",
    "utilisation_highest": "cores allocated to VMs of the highest priority, of all cores",
    "density_highest": "the same, of the cores of machines that run such VMs; 0 if none does",
    "evictions": "VMs that had to give way to a higher priority",
    "requests": "requests answered",
    "placed": "requests placed",
    "declined": "requests for which no machine was found",
    "gave_up": "requests that lost too many races",
    "vms_asked": "VMs of the requests answered",
    "vms_placed": "VMs of the requests placed",
    "queued": "requests without an answer, at this moment",
    "conflicts": "commits that lost a race",
    "retries": "tries after the first",
    "cache_hits": "decisions of VMs that found their evaluation cached",
    "cache_misses": "decisions of VMs that did not",
    "updated": "machines looked at to bring caches up to date",
}
# One row per bin of virtual time (a minute, unless the experiment says otherwise).
RATES = {
    "time_s": "at which the bin begins",
    "warm": "1 once the warm-up is over",
    "arrivals": "requests that arrived",
    "placed": "requests placed",
    "vms_placed": "VMs placed",
    "conflicts": "commits that lost a race",
    "retries": "tries after the first",
}
# One row per request, in the order of arrival.
REQUESTS = {
    "request": "its number in the workload; -1: the zone was filled with it, -2: it healed VMs of failed machines, "
    "-3: it placed VMs again that had to give way, -4: another duty asked for it",
    "time_s": "when it arrived",
    "vms": "VMs it asked for",
    "status": "placed, declined, gave_up, or invalid",
    "agent": "that answered it",
    "queued_s": "from its arrival to the start of its last try",
    "latency_s": "from its arrival to its answer",
    "retries": "tries after the first",
}
