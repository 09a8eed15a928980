"""The page about runs: whole, self-contained, harmless whatever the names, and the same every time."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from roost.sim.comparison import summary_table
from roost.sim.panels import BINS, LEVELS, Distribution, binned
from roost.sim.plots import plots
from roost.sim.prose import headline
from roost.sim.report import report
from roost.sim.result import RunResult
from tests.unit.made_up_runs import CHARACTER, made_up

VOID = {"meta", "br", "link", "img", "hr", "input"}
ELSEWHERE = """
import hashlib, sys
from pathlib import Path
from roost.sim.report import report
from roost.sim.result import RunResult
text = report([RunResult.load(Path(folder)) for folder in sys.argv[1:]], "Three policies")
sys.stdout.write(hashlib.sha256(text.encode()).hexdigest())
"""
HOSTILE = "<script>alert('$x_1$ & \"more\"')</script>"


class Page(HTMLParser):
    """Every element is closed by its own end; what is in the page is kept to be asked for."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def runs() -> list[RunResult]:
    return [made_up(name, seed, days=2, requests=2_000) for name in CHARACTER for seed in (1, 2, 3)]


@pytest.fixture(scope="module")
def page(runs: list[RunResult]) -> str:
    return report(runs, "Three policies")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of the words on a page, whose plots would take the longest by far."""
    monkeypatch.setattr("roost.sim.report.plots", lambda _results: ([], []))


def with_columns(run: RunResult, **columns: float) -> RunResult:
    """The same run, in which these columns of the timeline and the rates always had these values."""

    def changed(table: pl.DataFrame) -> pl.DataFrame:
        return table.with_columns(pl.lit(value).alias(name) for name, value in columns.items() if name in table.columns)

    return replace(run, timeline=changed(run.timeline), rates=changed(run.rates))


def points(svg: str) -> list[int]:
    """How many each path of a figure has."""
    return [len(re.findall(r"-?[\d.]+ -?[\d.]+", path)) for path in re.findall(r' d="([^"]*)"', svg)]


def test_a_page_is_well_formed_and_needs_nothing_else(page: str) -> None:
    parsed = Page(page)
    assert {tag for tag, _ in parsed.tags}.isdisjoint({"script", "link", "img", "iframe", "object", "image"})
    for _, attributes in parsed.tags:
        assert attributes.keys().isdisjoint({"src", "onload", "onclick", "xlink:href"})
        assert (attributes.get("href") or "#").startswith("#")
    assert "http" not in page.replace("http-equiv", "")
    assert "@import" not in page
    assert set(re.findall(r"url\((.)", page)) <= {"#"}


def test_names_within_figures_are_found_and_told_apart(page: str) -> None:
    names = re.findall(r' id="([^"]*)"', page)
    assert len(names) == len(set(names))
    assert set(re.findall(r'(?:href="|url\()#([\w-]+)', page)) == set(names)


def test_every_figure_of_the_summary_is_on_the_page(runs: list[RunResult], page: str) -> None:
    text = Page(page).text
    table = summary_table(runs)
    for row in table.rows:
        assert table.label(row) in text
        assert row.measure.meaning in text
        for cell in (*row.figures(), *row.differences(), *row.verdicts()):
            assert cell in text


def test_the_first_lines_tell_what_was_run_and_what_came_out(page: str) -> None:
    text = Page(page).text
    assert text.startswith("Three policies Three policies default , dense and spread each answered 2,000 requests for")
    where = "azure-2017 over 48 hours on 3,000 machines of 48 cores and 384 GiB (144,000 cores in all)"
    assert f"from {where} with 3 seeds." in text
    assert "dense against default: better in density ( +2.2" in text
    assert "Azure Public Dataset V1, Microsoft, CC-BY 4.0" in text
    assert "roost sim run azure.yaml" in text
    assert "Each of the 9 runs took, on the average: reading the workload 0.4 seconds, simulating 33.4 seconds" in text
    assert "policies:\n- default\n- dense" in page  # the experiment, as it is written


def test_one_run_has_no_comparison_and_no_interval() -> None:
    page = report([made_up(days=2, requests=2_000)])
    text = Page(page).text
    assert text.startswith("azure azure default answered 2,000 requests")
    assert "of the VMs asked for were placed" in text
    assert "With one seed nobody knows" in text
    assert "±" not in text
    assert "against" not in text
    assert "legend" not in page.partition("</style>")[2]


def test_two_variants_with_one_seed_are_not_judged(runs: list[RunResult]) -> None:
    pair = [runs[0], runs[3]]
    text = Page(headline(pair, summary_table(pair))).text
    assert "with too few seeds to tell it from chance" in text
    assert not re.search(r"\b(better|worse) in", text)


@pytest.mark.usefixtures("undrawn")
def test_what_takes_no_time_is_not_said_to_be_quick(runs: list[RunResult]) -> None:
    timeless = dict.fromkeys(("latency_mean", "latency_p99", "queueing_p99", "declined"), 0.0)
    pair = [replace(run, summary={**run.summary, **timeless}) for run in (runs[0], runs[3])]
    key = Page(report(pair)).text.partition("Key figures")[2].partition("Plots")[0]
    assert "Latency" not in key
    assert "Declined (requests) 0" in key
    assert "Decisions took no time in this simulation" in key
    assert "latency" not in Page(headline(pair, summary_table(pair))).text
    assert "answered within" not in Page(headline(pair[:1], summary_table(pair[:1]))).text
    assert "answered within" in Page(headline(runs[:1], summary_table(runs[:1]))).text


def test_times_that_are_far_apart_keep_units_of_their_own(runs: list[RunResult]) -> None:
    pair = [replace(run, summary={"latency_p99": value}) for run, value in ((runs[0], 27.0), (runs[3], 0.112))]
    (row,) = summary_table(pair).rows
    assert row.figures() == ["27.0 s", "112 ms"]
    assert row.differences()[1] == "−26.9 s (−99.6 %)"  # noqa: RUF001
    (row,) = summary_table([replace(run, summary={"latency_p99": 0.0}) for run in pair]).rows
    assert row.figures() == ["0 ms", "0 ms"]


@pytest.mark.usefixtures("undrawn")
def test_requests_without_an_answer_are_told(runs: list[RunResult]) -> None:
    behind = with_columns(runs[0], queued=1_321)
    assert "At the end 1,321 requests had no answer yet" in Page(report([behind])).text
    assert "no answer yet" not in Page(report([with_columns(runs[0], queued=1)])).text


@pytest.mark.usefixtures("undrawn")
def test_machines_of_different_sizes_have_no_size_in_common(runs: list[RunResult]) -> None:
    other = replace(runs[3], experiment={**runs[3].experiment, "fleet": {"machines": 3_000}})
    assert "on 3,000 machines (144,000 cores in all)" in Page(report([runs[0], other])).text
    alone = Page(report([other])).text
    assert "on 3,000 machines of 16 cores and 128 GiB" in alone


def test_hostile_names_are_only_text() -> None:
    made: dict[str, Any] = {
        "experiment": {"name": HOSTILE, "workload": HOSTILE, HOSTILE: [HOSTILE]},
        "facts": {"workload": HOSTILE, "source": HOSTILE, HOSTILE: {HOSTILE: 3}, "machines": 10, "cores": 7.5},
    }
    first = made_up(HOSTILE, days=1, requests=500, **made)
    stranded = first.timeline.rename({"stranded_cores": "stranded_" + HOSTILE})
    summary = {**first.summary, "stranded_" + HOSTILE: 0.5}
    run = replace(first, timeline=stranded, summary=summary, timing={HOSTILE: 1.0})
    page = report([run, made_up("_under\nscore", days=1, requests=500)], title=HOSTILE)
    parsed = Page(page)
    assert "<script" not in page
    assert not any(tag == "script" for tag, _ in parsed.tags)
    assert parsed.words.count(HOSTILE) > 5
    assert f"Stranded {HOSTILE}" in unescape(page)


def test_only_plots_with_something_to_show_are_drawn(page: str, runs: list[RunResult]) -> None:
    assert page.count("<figure>") == 8
    nothing = with_columns(runs[0], conflicts=0, retries=0, declined=0, gave_up=0, cache_hits=0, cache_misses=0)
    without = report([nothing])
    assert without.count("<figure>") == 6
    assert "Not drawn, as there is nothing to show: conflicts and retries and caches." in Page(without).text
    assert "turned away" not in without  # a caption tells of what is drawn
    all_placed = with_columns(runs[0], declined=0, gave_up=0, requests=7, placed=7)
    assert "nothing to show: acceptance and declines." in Page(report([all_placed])).text


def test_every_resource_that_is_used_is_drawn(runs: list[RunResult]) -> None:
    used = replace(runs[0], timeline=runs[0].timeline.with_columns(used_cores=0.5, used_memory=0.25))
    drawn, _ = plots([used])
    assert "Memory in use: of all memory." in drawn[0].caption
    assert "Cores in use" not in drawn[0].caption


def test_plots_stay_small_however_long_the_run() -> None:
    long = [made_up(name, seed, days=60, requests=30_000) for name in ("default", "dense") for seed in (1, 2)]
    drawn, _ = plots(long)
    assert max(count for plot in drawn for count in points(plot.svg)) <= 2 * max(BINS, len(LEVELS)) + 3
    assert max(len(plot.svg) for plot in drawn) < 80_000


def test_a_run_without_requests_or_samples_enough_is_shown() -> None:
    run = made_up(days=1, requests=500)
    bare = replace(run, requests=run.requests.clear(), rates=run.rates.clear(), timeline=run.timeline[-1:])
    assert "Not drawn" in Page(report([bare])).text
    assert Page(report([replace(bare, timeline=run.timeline.clear())])).text


def test_distributions_are_of_the_requests_that_the_summary_counts() -> None:
    run = made_up()
    late = run.requests.filter(pl.col("time_s") >= run.facts["warm_up_s"])
    panel = Distribution("Latency", "", "latency_s")
    assert len(panel._seconds(run)) == len(late) < len(run.requests)
    odd = replace(run, facts={**run.facts, "warm_up_s": run.facts["warm_up_s"] + 100})  # between two samples
    assert len(panel._seconds(odd)) == len(run.requests.filter(pl.col("time_s") >= odd.facts["warm_up_s"])) < len(late)


def test_bins_keep_means_and_extremes() -> None:
    time = np.arange(4 * BINS, dtype=np.float64)
    value = np.where(time % 4 == 0, 8.0, 0.0)  # in each bin: 8, 0, 0, 0
    table = pl.DataFrame({"time_s": time, "value": value, "weight": np.where(time % 4 == 0, 3.0, 1.0)})
    edges = np.linspace(0, 4 * BINS, BINS + 1)
    _, mean, low, high = binned(table, edges, lambda t: t["value"].to_numpy(), None)
    assert (set(mean), set(low), set(high)) == ({2.0}, {0.0}, {8.0})
    _, mean, _, _ = binned(table, edges, lambda t: t["value"].to_numpy(), lambda t: t["weight"].to_numpy())
    assert set(mean) == {4.0}


def test_the_same_runs_give_the_same_bytes_in_every_process(tmp_path: Path, runs: list[RunResult], page: str) -> None:
    assert report(runs, "Three policies") == page
    folders = [tmp_path / f"{run.name}-{run.seed}" for run in runs]
    for run, folder in zip(runs, folders, strict=True):
        run.save(folder)
    command = [sys.executable, "-c", ELSEWHERE, *map(str, folders)]
    environment = {**os.environ, "PYTHONHASHSEED": "4242"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == hashlib.sha256(page.encode()).hexdigest()
