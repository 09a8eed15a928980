"""Two policies on the same requests: which decisions differ, by which rules, and what that does to the zone.

FOLDER/differences.parquet, differences.csv     every changed decision
FOLDER/summary.json                             groups and measures, for programs
FOLDER/report.md                                the same for people
FOLDER/runs/                                    the simulations behind the measures; see runs.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from roost.model.errors import InvalidInput
from roost.sim.comparison import SummaryTable, summary_table
from roost.sim.differences import PolicyDifferences
from roost.sim.experiment import Experiment
from roost.sim.result import RunResult, pretty
from roost.sim.runs import Progress, begin, perform, runs_of

SUMMARY, REPORT, RUNS = "summary.json", "report.md", "runs"
# What a policy is judged by before it is rolled out.
OF_RACES = ("gave_up", "conflicts")  # that only several agents can lose
MEASURES = ("density", "utilisation", "empty_machines", "fulfilment", "declined", *OF_RACES)


@dataclass(frozen=True)
class Diff:
    """What another policy would change."""

    first: str
    second: str
    over: str  # what they were compared on
    differences: PolicyDifferences
    results: Sequence[RunResult]  # of both, with each seed
    agents: int = 1  # that decided in parallel
    notice: str = ""  # what was done to the workload when it was read

    def measures(self) -> SummaryTable:
        """Both side by side."""
        table = summary_table(self.results)
        told = MEASURES if self.agents > 1 else MEASURES[: -len(OF_RACES)]
        return replace(table, rows=[row for row in table.rows if row.measure.name in told])

    def as_data(self) -> dict[str, Any]:
        """For programs."""
        found = self.differences
        return {
            "first": self.first,
            "second": self.second,
            "over": self.over,
            "decisions": found.decisions,
            "changed": len(found.rows),
            "share": found.share,
            "groups": [asdict(group) for group in found.groups()],
            "measures": self.measures().as_data(),
        }

    def save(self, folder: Path, page: str) -> None:
        """Write everything; `page`: for people."""
        folder.mkdir(parents=True, exist_ok=True)
        self.differences.save(folder)
        (folder / SUMMARY).write_bytes(pretty(self.as_data()))
        (folder / REPORT).write_text(page, encoding="utf-8")


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something."""
    if folder.is_dir() and any(folder.iterdir()):
        raise InvalidInput(str(folder), "is not empty", "choose another folder")


def diff_workload(experiment: Experiment, folder: Path, progress: Progress, processes: int = 0) -> Diff:
    """Simulate both policies of an experiment; in the first run the second policy is asked about each decision."""
    experiment = msgspec.structs.replace(experiment, shadow=experiment.policies[1])
    notice = begin(experiment, folder / RUNS)
    results = perform(folder / RUNS, progress, processes, page=False)
    runs = runs_of(experiment)
    facts = results[0].facts
    over = f"{facts['workload']} on {facts['machines']:,} machines of {facts['zone']}"
    differences = PolicyDifferences.load(folder / RUNS / runs[0].folder)
    return Diff(runs[0].label, runs[-1].label, over, differences, results, experiment.agents.count, notice)
