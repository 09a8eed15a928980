"""A page about runs that one forwards: what was simulated and what came out; alone or side by side.

One file of HTML, with its plots in it: it needs no script, no other file and no network.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from statistics import fmean

from roost.sim.comparison import Row, SummaryTable, summary_table, variants
from roost.sim.panels import colour
from roost.sim.plots import plots
from roost.sim.prose import fact, headline, in_a_sentence, key_text, listed, value_text, verdict_html
from roost.sim.result import RunResult

# What a reader looks at first.
KEY = (
    "density",
    "utilisation",
    "peak_utilisation",
    "empty_machines",
    "acceptance",
    "fulfilment",
    "declined",
    "gave_up",
    "conflicts_per_minute_p99",
    "queueing_p99",
    "latency_p50",
    "latency_p99",
    "cache_hit_ratio",
    "machine_failures",
    "vms_displaced",
)
GOOD_ZEROS = ("declined",)  # told although nothing happened
DASHED = {"-": "solid", "--": "dashed", "-.": "dashed", ":": "dotted"}  # Matplotlib's names of lines, and CSS's


def report(results: Sequence[RunResult], title: str = "") -> str:
    """The page. Runs of one name are one variant with several seeds; the others are compared with the first."""
    table = summary_table(results)
    title = title or " / ".join(_names(results))
    told = [row for row in table.rows if not row.zero or row.measure.name in GOOD_ZEROS]
    key = [row for row in told if row.measure.name in KEY and any(row.estimates)]
    sections = [
        f"<h1>{escape(title)}</h1>",
        headline(results, table),
        "<h2>Key figures</h2>",
        _figures(table, key),
        _how_to_read(results, table),
        *_plots(results, table),
        "<h2>All measures</h2>",
        _figures(table, table.rows, meanings=True),
        *_what_was_simulated(results),
        *_how_to_repeat(results),
    ]
    return _page(title, "\n".join(sections))


def _page(title: str, body: str) -> str:
    style = files("roost.sim").joinpath("report.css").read_text(encoding="utf-8")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


# -------------------------------------------------------------------------------------------------------------- tables


def _figures(table: SummaryTable, rows: Sequence[Row], *, meanings: bool = False) -> str:
    kind = ' class="single"' if len(table.variants) == 1 else ""
    heads = "".join(f'<th scope="col">{_named(table.variants, at)}</th>' for at in range(len(table.variants)))
    lines = "\n".join(f"<tr>{_row(row, meanings=meanings)}</tr>" for row in rows)
    return f"""<div class="scroll"><table{kind}>
<thead><tr><th scope="col">Measure</th>{heads}</tr></thead>
<tbody>
{lines}
</tbody>
</table></div>"""


def _row(row: Row, *, meanings: bool) -> str:
    meaning = f'<span class="meaning">{escape(row.measure.meaning)}</span>' if meanings else ""
    cells = [f'<th scope="row" class="words">{escape(SummaryTable.label(row))}{meaning}</th>']
    for text, difference, verdict in zip(row.figures(), row.differences(), row.verdicts(), strict=True):
        by = f"<span>{escape(difference)}</span>" if difference.strip("0.") else ""
        told = ": ".join(filter(None, (by, verdict and verdict_html(verdict))))
        cells.append(f"<td>{escape(text)}" + (f'<span class="against">{told}</span></td>' if told else "</td>"))
    return "".join(cells)


def _how_to_read(results: Sequence[RunResult], table: SummaryTable) -> str:
    several = _several_seeds(results)
    told = any(row.measure.name.startswith("latency") and not row.zero for row in table.rows)
    said = [
        "" if told else "Decisions took no time in this simulation, so that nobody waited.",
        "The warm-up does not count." if _has_warm_up(results) else "",
        "± is the 95 % confidence interval over the seeds (Student's t); where there is none, the seeds do not differ "
        "in the digits shown."
        if several
        else "With one seed nobody knows how much of this is chance; several give intervals.",
        "Variants are compared seed by seed, on the seeds that both have, and called better or worse if the interval "
        "of the difference does not hold 0; of twenty such verdicts one may be chance."
        if several and len(table.variants) > 1
        else "",
    ]
    return f'<p class="note">{" ".join(filter(None, said))}</p>'


# --------------------------------------------------------------------------------------------------------------- plots


def _plots(results: Sequence[RunResult], table: SummaryTable) -> list[str]:
    drawn, empty = plots(results)
    bands = "the lowest to the highest seed" if _several_seeds(results) else "the lowest to the highest value"
    names = "".join(f"<span>{_named(table.variants, at)}</span>" for at in range(len(table.variants)))
    legend = f'<div class="legend">{names}</div>\n' if len(table.variants) > 1 else ""
    shaded = " The warm-up is shaded." if _has_warm_up(results) else ""
    note = f"Lines are means, and the bands about them reach from {bands}.{shaded}"
    lines = ["<h2>Plots</h2>", f'<p class="note">{note}</p>']
    for plot in drawn:
        image = plot.svg.replace("<svg", f'<svg role="img" aria-label="{escape(plot.title)}"', 1)
        caption = f"<figcaption><b>{escape(plot.title)}</b><span>{escape(plot.caption)}</span></figcaption>"
        lines.append(f"<figure>{caption}\n{legend}{image}</figure>")
    if empty:
        missing = listed(in_a_sentence(name) for name in empty)
        lines.append(f'<p class="note">Not drawn, as there is nothing to show: {missing}.</p>')
    return lines


def _named(names: Sequence[str], at: int) -> str:
    """A variant's name, with its colour if there are several."""
    if len(names) == 1:
        return escape(names[at])
    shade, dash = colour(at)
    return f'<i class="swatch" style="border-color: {shade}; border-top-style: {DASHED[dash]}"></i>{escape(names[at])}'


def _has_warm_up(results: Sequence[RunResult]) -> bool:
    return any((result.timeline["warm"] == 0).any() for result in results)


def _several_seeds(results: Sequence[RunResult]) -> bool:
    return max(map(len, variants(results).values())) > 1


# -------------------------------------------------------------------------------------------------------------- origin


def _what_was_simulated(results: Sequence[RunResult]) -> list[str]:
    keys = dict.fromkeys(key for result in results for key in result.facts)
    facts = {key_text(key): fact(results, key) for key in keys}
    seeds = sorted({result.seed for result in results})
    facts["Seeds"] = ", ".join(map(str, seeds))
    rows = "\n".join(f"<dt>{escape(key)}</dt><dd>{escape(text)}</dd>" for key, text in facts.items() if text)
    files = (f"<details><summary>The experiment</summary>\n<pre>{escape(e)}</pre></details>" for e in _files(results))
    return ["<h2>What was simulated</h2>", f"<dl>\n{rows}\n</dl>", *files]


def _how_to_repeat(results: Sequence[RunResult]) -> list[str]:
    commands = "\n".join(f"roost sim run {shlex.quote(f'{name}.yaml')}" for name in _names(results))
    keys = dict.fromkeys(key for result in results for key in result.timing)
    means = {key: fmean(r.timing[key] for r in results if key in r.timing) for key in keys}
    took = ", ".join(f"{in_a_sentence(key_text(key))} {value_text(key, value)}" for key, value in means.items())
    each = "The run took" if len(results) == 1 else f"Each of the {len(results)} runs took, on the average"
    expected = (
        "Same experiment and seeds, same figures."
        if all(result.facts.get("repeatable", True) for result in results)
        else "Its latencies are measured as it runs: figures that depend on them will differ."
    )
    return [
        "<h2>How to repeat it</h2>",
        f"<p>Save the experiment above under its name and run it. {expected}</p>",
        f"<pre>{escape(commands)}</pre>",
        f'<p class="note">{each}: {escape(took)}.</p>' if took else "",
    ]


def _names(results: Sequence[RunResult]) -> list[str]:
    """Of the experiments."""
    return list(dict.fromkeys(str(result.experiment.get("name") or result.name) for result in results))


def _files(results: Sequence[RunResult]) -> list[str]:
    """The experiments as they are written."""
    import yaml

    texts = (yaml.safe_dump(dict(r.experiment), sort_keys=False, allow_unicode=True) for r in results)
    return list(dict.fromkeys(texts))
