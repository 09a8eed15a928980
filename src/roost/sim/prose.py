"""What runs were about and what came of them, in sentences; as HTML, whatever the names in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

from roost.model.readable import plain
from roost.sim.comparison import Row, SummaryTable, label, variants
from roost.sim.experiment import Fleet
from roost.sim.formats import figure, span
from roost.sim.result import RunResult
from roost.sim.statistics import Verdict

# What is told of one variant, and which measures of a comparison.
TOLD = {
    "fulfilment": "{} of the VMs asked for were placed",
    "utilisation": "{} of all cores were taken on the average",
    "peak_utilisation": "{} at the peak",
    "density": "machines in use were filled to {} of their cores",
    "empty_machines": "{} machines stood empty on the average",
    "latency_p99": "99 % of the requests were answered within {}",
}
NAMES = {  # of facts whose keys do not say enough
    "requests": "Requests of the workload",
    "vms": "VMs of the workload",
    "span_s": "Simulated time",
    "warm_up_s": "Warm-up",
    "load_s": "Reading the workload",
    "prepare_s": "Preparing",
    "run_s": "Simulating",
    "peak_mb": "Memory",
}
MANY = 0.01  # of the requests: if so many have no answer, it is told
COMPARED = ("density", "empty_machines", "acceptance", "fulfilment", "conflicts_per_minute_p99", "latency_p99")


def headline(results: Sequence[RunResult], table: SummaryTable) -> str:
    """What was run on what, and what came out."""
    rows = {row.measure.name: row for row in table.rows}
    if len(table.variants) == 1:
        return f'<p class="lead">{_what_was_run(results)} {_outcome(rows)}</p>'
    shown = [rows[name] for name in COMPARED if name in rows and not rows[name].zero]
    items = "\n".join(f"<li>{_against(table.variants, shown, at)}</li>" for at in range(1, len(table.variants)))
    return f'<p class="lead">{_what_was_run(results)}</p>\n<ul>\n{items}\n</ul>'


def verdict_html(verdict: str) -> str:
    """Coloured where it is good or bad."""
    return f'<span class="verdict-{verdict.partition(" ")[0]}">{verdict}</span>'


def fact(results: Sequence[RunResult], key: str) -> str:
    """What all runs have in common, or what they differ by; not yet HTML."""
    found: list[Any] = []
    for value in (result.facts.get(key) for result in results):
        if value is not None and value not in found:
            found.append(value)
    if len(found) > 1 and all(isinstance(value, int | float) for value in found):
        return f"{value_text(key, min(found))} to {value_text(key, max(found))}"
    return ", ".join(value_text(key, value) for value in found)


def value_text(key: str, value: Any) -> str:
    """Seconds are told by the ending of the name."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {value_text(str(name), each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(value_text(key, each) for each in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    if key.endswith("_s"):
        return span(value)
    return figure(float(value)) + (" MB" if key.endswith("_mb") else "")


def key_text(key: str) -> str:
    """The name of a fact as people write it: its unit stands with the value."""
    return NAMES.get(key) or label(key.removesuffix("_s"))


def in_a_sentence(title: str) -> str:
    """With a small letter, unless it is an abbreviation."""
    return title if title[:2].isupper() else title[:1].lower() + title[1:]


def listed(parts: Iterable[str]) -> str:
    """`a, b and c`."""
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


def circumstances(results: Sequence[RunResult]) -> str:
    """`azure-2017 over 3 hours on 3,000 machines of 16 cores and 128 GiB (48,000 cores in all)`; not yet HTML."""
    workload, lasted, machines, cores = (fact(results, key) for key in ("workload", "span_s", "machines", "cores"))
    parts = [
        workload,
        lasted and f"over {lasted}",
        machines and f"on {machines} machines{_size(results)}",
        machines and cores and f"({cores} cores in all)",
    ]
    return " ".join(filter(None, parts))


def _size(results: Sequence[RunResult]) -> str:
    """Of a machine, if all are equal."""
    usual = Fleet(machines=1)
    fleets = [result.experiment.get("fleet") or {} for result in results]
    sizes = {(fleet.get("cores", usual.cores), fleet.get("memory", usual.memory)) for fleet in fleets}
    if len(sizes) > 1 or not all(fleets):
        return ""
    ((cores, memory),) = sizes
    asked = "stranded_memory" in results[0].timeline.columns  # else machines have none
    return f" of {plain(cores)} cores" + (f" and {plain(memory)} GiB" if asked else "")


def _what_was_run(results: Sequence[RunResult]) -> str:
    found = variants(results)
    where = escape(circumstances(results))
    asked = [result.requests.filter(result.requests["request"] >= 0) for result in results]
    requests, vms = _range([len(each) for each in asked]), _range([int(each["vms"].sum()) for each in asked])
    seeds = sorted(len(runs) for runs in found.values())
    parts = [
        listed(f"<b>{escape(name)}</b>" for name in found),
        "each answered" if len(found) > 1 else "answered",
        f"{requests} requests for {vms} VMs",
        where and f"from {where}",
        f"with {_range(seeds)} seeds" if seeds[-1] > 1 else "",
    ]
    return f"{' '.join(filter(None, parts))}.{_unanswered(results)}"


def _unanswered(results: Sequence[RunResult]) -> str:
    """An overloaded run looks better than it is: those who wait longest are in none of its latencies."""
    waiting = [int(result.timeline["queued"][-1]) for result in results if len(result.timeline)]
    if not waiting or max(waiting) < MANY * max(len(result.requests) for result in results):
        return ""
    return f" At the end {_range(waiting)} requests had no answer yet; they are in no figure of requests and latency."


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _outcome(rows: Mapping[str, Row]) -> str:
    """Of a variant that stands alone."""
    told = ((name, row) for name, row in rows.items() if not (row.zero and name.startswith("latency")))
    found = {name: _together(row.figures()[0]) for name, row in told if row.estimates[0]}
    parts = [text.format(found[name]) for name, text in TOLD.items() if name in found]
    return f"{listed(parts)}." if parts else ""


def _against(names: Sequence[str], rows: Sequence[Row], at: int) -> str:
    """One variant against the first: `better in density (+2.1 points); worse in …`."""
    order = list(Verdict)
    found = [(each.verdict, row) for row in rows if (each := row.comparisons[at])]
    parts = []
    for verdict, group in groupby(sorted(found, key=lambda each: order.index(each[0])), key=lambda each: each[0]):
        told = [(escape(in_a_sentence(label(row.measure.name))), _together(row.changes()[at])) for _, row in group]
        names_told = listed(name if verdict is Verdict.SAME else f"{name} ({by})" for name, by in told)
        unknown = verdict is Verdict.UNKNOWN
        parts.append(f"{names_told}, with {verdict}" if unknown else f"{verdict_html(verdict)} in {names_told}")
    return f"<b>{escape(names[at])}</b> against {escape(names[0])}: {'; '.join(parts) or 'nothing to compare'}."


def _together(text: str) -> str:
    return f'<span class="nowrap">{escape(text)}</span>'
