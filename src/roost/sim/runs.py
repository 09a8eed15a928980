"""Runs an experiment: each policy with each seed, side by side on all cores, into a folder that can be resumed.

FOLDER/experiment.yaml
FOLDER/default-seed1/{run.json, timeline.parquet, …}      a finished run; see result.py
FOLDER/default-seed2/checkpoint.bin                       one that was interrupted
FOLDER/report.html
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
import yaml

from roost.model.errors import InvalidInput
from roost.model.zone import Zone
from roost.rules.own import OwnRules
from roost.rules.policy import Policy
from roost.sim.checkpoint import keeper
from roost.sim.differences import DifferenceLog
from roost.sim.experiment import Experiment, Generated
from roost.sim.fleet import zone_for
from roost.sim.processes import ENDED, NEARLY, Tell, Told, perform_in_turn, perform_together
from roost.sim.report import report
from roost.sim.result import RUN, RunResult
from roost.sim.simulation import Simulation
from roost.traces.generate import WorkloadShape, generate, rate_for
from roost.traces.sources import find_workload
from roost.traces.workload import Workload
from roost.wiring import find_policy, find_zone

EXPERIMENT, CHECKPOINT, REPORT = "experiment.yaml", "checkpoint.bin", "report.html"


@dataclass(frozen=True)
class Run:
    """One policy with one seed."""

    policy: str
    seed: int
    shadow: str = ""  # a policy that is asked what it would have decided otherwise

    @property
    def label(self) -> str:
        """What tells its policy from others: a name, or that of a file."""
        return Path(self.policy).stem if self.policy.endswith((".yaml", ".yml")) else self.policy

    @property
    def folder(self) -> str:
        """Where its result is, in the folder of the experiment."""
        return f"{self.label}-seed{self.seed}"


Progress = Callable[[Told[Run]], None]


def runs_of(experiment: Experiment) -> list[Run]:
    """All runs of an experiment."""
    runs = [Run(policy, seed) for policy in experiment.policies for seed in experiment.seeds]
    runs[0] = replace(runs[0], shadow=experiment.shadow)
    if len({run.folder for run in runs}) < len(runs):
        raise InvalidInput("policies", "two have the same name", "give their files different names")
    return runs


def begin(experiment: Experiment, folder: Path) -> str:
    """Make the folder of an experiment, once all that it names is found and right; what was done to its workload."""
    if folder.is_dir() and any(folder.iterdir()):
        raise InvalidInput(str(folder), "is not empty", "choose another folder, or go on with `roost sim resume`")
    runs_of(experiment)
    find, changes = _finder(experiment), (change.policy for change in experiment.policy_changes)
    for policy in (*experiment.policies, *changes, *([experiment.shadow] if experiment.shadow else [])):
        find(policy)
    workload, zone, _ = stage(experiment, experiment.seeds[0])
    experiment.check(workload, zone)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / EXPERIMENT).write_text(yaml.safe_dump(experiment.as_data(), sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise InvalidInput(str(folder), f"cannot be written: {error.strerror}", "choose another folder") from None
    return workload.notice


def stage(experiment: Experiment, seed: int) -> tuple[Workload, Zone, Callable[[str], Policy]]:
    """What a run of an experiment is made of: the workload, the zone, and how to find policies."""
    given = experiment.workload
    if isinstance(given, str):
        workload = find_workload(given)
        return workload, zone_for(experiment, workload), _finder(experiment)
    zone = find_zone(experiment.zone) if experiment.zone else None
    workload = generate(_shape(given, zone, filled=experiment.fill > 0), seed, zone)
    return workload, zone or zone_for(experiment, workload), _finder(experiment)


def _finder(experiment: Experiment) -> Callable[[str], Policy]:
    """How an experiment finds policies."""
    return partial(find_policy, own=OwnRules.find(experiment.rules))


def _shape(given: Generated, zone: Zone | None, *, filled: bool) -> WorkloadShape:
    """What a workload is like that brings a zone to the utilisation that was asked for, if one was."""
    if given.utilisation is None or zone is None:
        return given
    rate = rate_for(given, zone.cores, given.utilisation, filled=filled, zone=zone)
    return msgspec.structs.replace(given, requests_per_day=rate)


def perform(folder: Path, progress: Progress, processes: int = 0, *, page: bool = True) -> list[RunResult]:
    """All runs of an experiment that are not finished, from where each stopped; then the report, if it is to have one.

    `processes`: how many at once; 0: as many as there are cores.
    """
    experiment, runs = _open(folder)
    left = [run for run in runs if not (folder / run.folder / RUN).exists()]
    workers = min(processes or os.cpu_count() or 1, len(left))
    if workers == 1:
        perform_in_turn({run: partial(_perform, experiment, run, folder) for run in left}, progress)
    elif left:
        jobs = {run: partial(_perform_anew, run, folder) for run in left}
        for run, problem in perform_together(jobs, progress, workers).items():
            short = f"perhaps memory is short: go on with `roost sim resume {folder} --processes 1`"
            raise InvalidInput(f"run {run.folder}", problem, short if problem == ENDED else "")
    return finish(folder) if page else results_in(folder)


def _open(folder: Path) -> tuple[Experiment, list[Run]]:
    """The experiment of a folder, and its runs."""
    if not (folder / EXPERIMENT).exists():
        problem = "holds no experiment" if folder.is_dir() else "no such folder"
        raise InvalidInput(str(folder), problem, "give the folder of `roost sim run`")
    experiment = Experiment.load(folder / EXPERIMENT)
    return experiment, runs_of(experiment)


def finish(folder: Path) -> list[RunResult]:
    """Write the report of the runs of a folder."""
    results = results_in(folder)
    (folder / REPORT).write_text(report(results), encoding="utf-8")
    return results


def results_in(folder: Path) -> list[RunResult]:
    """The finished runs of an experiment, in its order; or the run, if it is the folder of one."""
    if (folder / RUN).exists():
        return [RunResult.load(folder)]
    _, runs = _open(folder)
    found = [RunResult.load(folder / run.folder) for run in runs if (folder / run.folder / RUN).exists()]
    if not found:
        raise InvalidInput(str(folder), "has no finished run", f"go on with `roost sim resume {folder}`")
    return found


def unfinished(folder: Path) -> int:
    """How many runs of an experiment are still to be done; of the folder of one run, none."""
    if (folder / RUN).exists():
        return 0
    return sum(not (folder / run.folder / RUN).exists() for run in _open(folder)[1])


def side_by_side(folders: Sequence[Path]) -> list[RunResult]:
    """The runs of several experiments, with names that tell them apart."""
    results = [(folder, result) for folder in folders for result in results_in(folder)]
    together = {(result.name, result.seed) for _, result in results}
    if len(together) == len(results):
        return [result for _, result in results]
    alike = len({folder.name for folder in folders}) < len(folders)
    return [replace(result, name=f"{folder if alike else folder.name}: {result.name}") for folder, result in results]


def _perform(experiment: Experiment, run: Run, folder: Path, progress: Tell) -> None:
    """One run, from its checkpoint if it has one."""
    started = time.perf_counter()
    progress(0.0, 0)
    own, saved = folder / run.folder, folder / run.folder / CHECKPOINT
    own.mkdir(parents=True, exist_ok=True)
    shadow = DifferenceLog(_finder(experiment)(run.shadow)) if run.shadow else None
    staged = stage(experiment, run.seed)
    simulation = Simulation(experiment, run.policy, run.seed, *staged, name=run.label, shadow=shadow)
    if shadow is not None:
        shadow.clock = simulation.clock
    if saved.exists():
        try:
            simulation.go_on(saved.read_bytes())
        except InvalidInput as error:
            raise InvalidInput(str(saved), error.problem, "remove it, and the run begins anew") from None

    simulation.timing["prepare_s"] = time.perf_counter() - started
    # What a shadow has found is in no checkpoint: such a run begins anew.
    result = simulation.run(lambda share, done: progress(min(share, NEARLY), done), None if shadow else keeper(saved))
    simulation.timing["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if shadow is not None:
        shadow.save(own)
    result.save(own)
    saved.unlink(missing_ok=True)
    progress(1.0, simulation.operations)


def _perform_anew(run: Run, folder: Path, tell: Tell) -> None:
    """One run in a process of its own.

    The experiment is read anew: one that was sent here would no longer know which of its values are defaults.
    """
    _perform(Experiment.load(folder / EXPERIMENT), run, folder, tell)
