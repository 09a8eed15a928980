"""What the studies of caches and of the size of a zone make of rows, and how they drive an allocator."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from roost.experiments import caches, inventory
from roost.experiments.driven import Drive, prepare
from roost.experiments.study import FigureRow, Findings
from roost.rules.policy import Policy

HOURS = range(1, 4)
SIZES = (1_000, 10_000, 100_000)


def texts(found: Findings) -> str:
    """Everything that its tables say."""
    return "\n".join(" | ".join(row) for table in found.tables for row in table.rows)


def ratios(column_hits: int, asked: int = 20, top_hits: int = 95) -> list[FigureRow]:
    """Three hours of a hundred VMs each."""
    rows: list[FigureRow] = []
    for varied in (0.0, 0.25):
        for hour in HOURS:
            common = {
                "varied": varied, "hour": hour, "requests": 80, "requests_hit": 75, "refused": 0, "allocations": 100,
                "evaluations": 40, "updated_on_hit": 50, "updated_on_miss": 5_000, "updated_idle": 950,
            }  # fmt: skip
            rows.append({**common, "cache": "evaluation", "hits": top_hits, "misses": 100 - top_hits})
            rows.append({**common, "cache": "ranking", "hits": 90, "misses": 10})
            rows.append({**common, "cache": "column risk", "hits": column_hits, "misses": asked - column_hits})
    return rows


def test_hits_are_as_in_the_paper_if_evaluations_hit_most_and_what_is_below_is_asked_less() -> None:
    found = caches.find_ratios(ratios(column_hits=4))
    assert found.holds
    assert "95.0% of the VMs" in found.verdict
    assert "90 (RuleEvaluation, as simulated)" in texts(found)
    assert "about 20 (NodeResources) | 20.0 | 0.16" in texts(found)
    assert "about 50" in texts(found)
    assert "about 2,000" in texts(found)
    assert "95 | 95 | –" in texts(found), "of what catches up, in idle time"


@pytest.mark.parametrize(
    "rows",
    [ratios(column_hits=20), ratios(column_hits=10, asked=100), ratios(column_hits=4, top_hits=89)],
    ids=["columns hit more", "columns asked by all", "evaluations hit too rarely"],
)
def test_hits_are_not_as_in_the_paper_otherwise(rows: list[FigureRow]) -> None:
    assert not caches.find_ratios(rows).holds


def latencies(hit: float, miss: float) -> list[FigureRow]:
    rows: list[FigureRow] = []
    for hour in HOURS:
        for case, mean, n in (("hit", hit, 90), ("miss", miss, 10), ("all", 0.9 * hit + 0.1 * miss, 100)):
            rows.append({"hour": hour, "case": case, "n": n, "mean_ms": mean, "deviation_ms": 0.1, "median_ms": mean})
    return rows


def test_a_miss_has_to_take_several_times_as_long_as_a_hit() -> None:
    found = caches.find_latency(latencies(hit=0.03, miss=0.3))
    assert found.holds
    assert "10.0 times as long as a hit (paper: 6.3 times" in found.verdict
    assert "70–80 (88 as simulated)" in texts(found)
    assert not caches.find_latency(latencies(hit=0.2, miss=0.3)).holds


def test_an_hour_without_a_miss_is_left_out() -> None:
    rows = latencies(hit=0.03, miss=0.3)
    empty = [{**row, "hour": 9, "n": 0, "mean_ms": None, "deviation_ms": None, "median_ms": None} for row in rows[1:2]]
    full = [{**row, "hour": 9} for row in (rows[0], rows[2])]
    found = caches.find_latency([*rows, *empty, *full])
    assert found.holds
    assert "9 | 90 | 0.030 ± 0.100 | 0 | – ± –" in texts(found)


def by_size(hit: float, baseline: float) -> list[FigureRow]:
    """Medians that grow with these powers of the machines."""
    return [
        {"machines": n, "case": case, "median_ms": 0.01 * (n / 100) ** power}
        for n in SIZES
        for case, power in (("hit", hit), ("miss", 0.4), ("baseline", baseline))
    ]


def test_only_the_baseline_may_grow_with_the_zone() -> None:
    found = inventory.find_latency(by_size(hit=0.1, baseline=1.0))
    assert found.holds
    assert "grow by 0.10, 0.40 and 1.00" in found.verdict
    assert "about 1,000" in texts(found)
    assert not inventory.find_latency(by_size(hit=0.6, baseline=1.0)).holds
    assert not inventory.find_latency(by_size(hit=0.1, baseline=0.5)).holds


def memory(power: float) -> list[FigureRow]:
    common = {"vms": 5_000, "evaluations": 50}
    return [
        {"machines": n, **common, **dict.fromkeys(("engine_mb", "evaluations_mb", "resident_mb"), n**power)}
        for n in SIZES
    ]


def test_memory_has_to_grow_more_slowly_than_the_zone() -> None:
    found = inventory.find_memory(memory(0.73))
    assert found.holds
    assert "the power of 0.73" in found.verdict
    assert not inventory.find_memory(memory(1.0)).holds


def test_one_size_of_zone_alone_shows_no_growth() -> None:
    assert not inventory.find_memory(memory(0.73)[:1]).holds
    assert not inventory.find_latency(by_size(hit=0.1, baseline=1.0)[:3]).holds


def test_a_drive_is_by_seed_keeps_the_zone_as_full_as_it_was_and_asks_for_more_than_types() -> None:
    scene = prepare(500, 0.6, seed=3)
    drives = [Drive(scene, varied=0.5, seed=3) for _ in range(2)]
    before = drives[0].allocator.usage().utilisation
    outcomes = [[each._replace(ms=0.0) for each in islice(drive.run(), 200)] for drive in drives]
    assert outcomes[0] == outcomes[1]
    assert drives[0].allocator.usage().utilisation == pytest.approx(before, abs=0.05)
    assert any(vm.vm.requires or vm.vm.colocation for vm in drives[0].allocator.vms.values())
    assert 0 < sum(outcome.hit for outcome in outcomes[0]) < 200


def test_the_best_machine_from_scratch_is_one_that_has_room() -> None:
    drive = Drive(prepare(500, 0.6, seed=3), varied=0.0, seed=3)
    request = drive.request(0)
    shape = drive.allocator.shape(request.vms[0], request.tenant)
    machine = inventory.best_from_scratch(drive.allocator.engine, shape)
    judged = drive.allocator.engine.judge(drive.allocator.view, shape, drive.allocator.engine.desk)
    assert judged.verdicts[machine] < 0
    assert judged.keys[machine] == judged.keys[judged.verdicts < 0].min()


def test_what_is_said_of_hits_speaks_of_every_column_of_the_default_policy_and_the_report_says_the_same() -> None:
    columns = {column.name for column in Policy.named("default").rules.columns}
    said = " ".join(caches.REMARKS_RATIOS)
    assert {name for name in columns if f"`{name}`" in said} == columns
    report = (Path(__file__).parents[2] / "docs/experiments/protean-fig9/report.md").read_text()
    assert [remark for remark in caches.REMARKS_RATIOS if f"- {remark}\n" not in report] == []
