"""Reads the Azure trace of 2017 (AzurePublicDataset V1), converted to CSV: a row per VM.

The trace knows times to five minutes only. Within them
- each request gets an instant by seed; the order of requests stays as it is;
- a lifetime is drawn by seed between the bounds that the trace gives, and within five minutes if it gives 0. VMs of a
  request with the same bounds leave together.
A VM that was still there when the trace ended stays. Without columns of durations all of them stay.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from roost.traces.assembly import assemble
from roost.traces.reading import AS_IT_IS, Reading, Table, check_columns, read_table
from roost.traces.times import from_beginning
from roost.traces.workload import ANY, Workload, WorkloadType

if TYPE_CHECKING:
    from numpy.typing import NDArray

STEP = 300.0  # seconds that times are known to
COLUMNS = ("batch_id", "arrival_s", "flavor", "vcpus", "mem_gb")
DURATIONS = ("censored", "dur_lo_s", "dur_hi_s")
SOURCE = (
    "Azure VM trace of 2017 (AzurePublicDataset V1, CC-BY-4.0): Cortez et al., Resource Central, SOSP 2017; "
    "as processed in huaweicloud/trace_generation_rnn"
)


def read_azure_v1(path: Path, how: Reading = AS_IT_IS, name: str = "") -> Workload:
    """The workload in a converted trace; batches are requests, flavors are VM types."""
    table = read_table(path, COLUMNS, DURATIONS, skip=how.skip)
    lasts = any(column in table.frame.columns for column in DURATIONS)
    if lasts:
        check_columns(str(path), table.frame.columns, (*COLUMNS, *DURATIONS))
    _check(table, lasts)
    request = table.groups("batch_id", "arrival_s")
    times = from_beginning(table, "arrival_s")
    bins = times.seconds - times.seconds.min()
    rng = np.random.default_rng(how.seed)
    time = _instants(bins, request, rng)
    firsts, kinds = np.unique(table.groups("flavor"), return_inverse=True)
    flavors, cores, memory = table.frame["flavor"], table.floats("vcpus"), table.floats("mem_gb")
    return assemble(
        name or path.name,
        types=[WorkloadType(flavors[i], {ANY: (float(cores[i]), float(memory[i]))}) for i in firsts.tolist()],
        resources=("cores", "memory"),
        request=request,
        time=time,
        tenant=[f"b{batch}" for batch in table.frame["batch_id"].to_list()],
        type=kinds,
        lifetime=_lifetimes(table, rng) if lasts else np.full(len(table), np.inf),
        source=SOURCE,
        skipped=table.reasons(),
        notice=times.notice,
    )


def _check(table: Table, lasts: bool) -> None:
    table.check_names("batch_id", "flavor")
    table.check_numbers("arrival_s", remedy="give seconds from 0 up, in steps of 300")
    off = table.floats("arrival_s") % STEP != 0
    table.refuse("arrival_s", {"is no multiple of 300": off}, "the converted trace has steps of 5 minutes")
    table.check_numbers("vcpus", "mem_gb", remedy="give cores, and GiB of memory", high=1e6)
    table.check_same(["flavor"], ["vcpus", "mem_gb"], "flavor", "a flavor has one size")
    if lasts:
        table.check_numbers("censored", remedy="0: it left, 1: it stayed to the end", high=1, whole=True)
        table.check_numbers("dur_lo_s", "dur_hi_s", remedy="give seconds from 0 up")
        ends_early = table.floats("dur_hi_s") < table.floats("dur_lo_s")
        table.refuse("dur_hi_s", {"is below dur_lo_s": ends_early}, "a VM leaves after it came")


def _instants(bins: NDArray[np.float64], request: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float64]:
    """When each VM is asked for: instants within the five minutes of requests, in their order."""
    firsts, number = np.unique(request, return_inverse=True)
    begin = bins[firsts]
    by_time = np.argsort(begin, kind="stable")
    offsets = rng.random(len(firsts)) * STEP
    instants = np.empty(len(firsts))
    instants[by_time] = begin[by_time] + offsets[np.lexsort((offsets, begin[by_time]))]
    return instants[number]


def _lifetimes(table: Table, rng: np.random.Generator) -> NDArray[np.float64]:
    firsts, number = np.unique(table.groups("batch_id", "arrival_s", "dur_lo_s", "dur_hi_s"), return_inverse=True)
    low, high = table.floats("dur_lo_s"), table.floats("dur_hi_s")
    share = 1.0 - rng.random(len(firsts))[number]  # never 0
    drawn = np.where(high > 0, low + (high - low) * share, STEP * share)
    return np.where(table.floats("censored") == 1, np.inf, drawn)
