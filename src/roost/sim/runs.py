"""Runs an experiment: each policy with each seed, side by side on all cores, into a folder that can be resumed.

FOLDER/experiment.yaml
FOLDER/default-seed1/{run.json, timeline.parquet, …}      a finished run; see result.py
FOLDER/default-seed2/checkpoint.bin                       one that was interrupted
FOLDER/report.html
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.sharedctypes import SynchronizedArray
from pathlib import Path
from typing import Any

import msgspec
import yaml

from roost.model.errors import InvalidInput, RoostError
from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.sim.experiment import Experiment
from roost.sim.fleet import zone_for
from roost.sim.report import report
from roost.sim.result import RUN, Result
from roost.sim.simulation import Simulation
from roost.traces.generate import WorkloadShape, generate, rate_for
from roost.traces.sources import find_workload
from roost.traces.workload import Workload
from roost.wiring import find_policy, find_zone, settle_memory

EXPERIMENT, CHECKPOINT, REPORT = "experiment.yaml", "checkpoint.bin", "report.html"
LOOK_SECONDS = 0.2  # between two looks at how far the runs are
NUMBERS = 2  # that a run tells of its progress: the share that is done, and operations so far


@dataclass(frozen=True)
class Run:
    """One policy with one seed."""

    policy: str
    seed: int

    @property
    def label(self) -> str:
        """What tells its policy from others: a name, or that of a file."""
        return Path(self.policy).stem if self.policy.endswith((".yaml", ".yml")) else self.policy

    @property
    def folder(self) -> str:
        """Where its result is, in the folder of the experiment."""
        return f"{self.label}-seed{self.seed}"


Progress = Callable[[Mapping[Run, tuple[float, int]]], None]  # of each run: the share that is done, operations so far


def runs_of(experiment: Experiment) -> list[Run]:
    """All runs of an experiment."""
    runs = [Run(policy, seed) for policy in experiment.policies for seed in experiment.seeds]
    if len({run.folder for run in runs}) < len(runs):
        raise InvalidInput("policies", "two have the same name", "give their files different names")
    return runs


def begin(experiment: Experiment, folder: Path) -> None:
    """Make the folder of an experiment, once all that it names is found and right."""
    if any(path.is_file() and path.name != EXPERIMENT for path in folder.rglob("*")):
        raise InvalidInput(str(folder), "is not empty", "choose another folder, or go on with `roost sim resume`")
    for run in runs_of(experiment):
        find_policy(run.policy)
    stage(experiment, experiment.seeds[0])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / EXPERIMENT).write_text(yaml.safe_dump(experiment.as_data(), sort_keys=False), encoding="utf-8")


def stage(experiment: Experiment, seed: int) -> tuple[Workload, Zone, Callable[[str], Policy]]:
    """What a run of an experiment is made of: the workload, the zone, and how to find policies."""
    given = experiment.workload
    if isinstance(given, str):
        workload = find_workload(given)
        return workload, zone_for(experiment, workload), find_policy
    zone = find_zone(experiment.zone) if experiment.zone else None
    workload = generate(_shape(given, zone, filled=experiment.fill > 0), seed, zone)
    return workload, zone or zone_for(experiment, workload), find_policy


def _shape(given: Mapping[str, Any], zone: Zone | None, *, filled: bool) -> WorkloadShape:
    """The shape of a workload to be generated; `utilisation` stands for the rate that brings the zone there."""
    given = dict(given)
    utilisation = given.pop("utilisation", None)
    try:
        shape = msgspec.convert(given, WorkloadShape)
    except msgspec.ValidationError as error:
        known = ", ".join(WorkloadShape.__struct_fields__)
        raise InvalidInput("workload", str(error), f"it may have {known}, utilisation") from None
    if utilisation is None:
        return shape
    if zone is None or not isinstance(utilisation, int | float):
        raise InvalidInput("workload.utilisation", f"is {utilisation!r}", "give a share, and a zone")
    cores = float(zone.machines["capacity"][:, 0].sum()) / zone.resources[0].per_unit
    rate = rate_for(shape, cores, utilisation, filled=filled, zone=zone)
    return msgspec.structs.replace(shape, requests_per_day=rate)


def perform(folder: Path, progress: Progress, processes: int = 0) -> list[Result]:
    """All runs of an experiment that are not finished, from where each stopped; then the report.

    `processes`: how many at once; 0: as many as there are cores.
    """
    experiment = Experiment.load(folder / EXPERIMENT)
    runs = runs_of(experiment)
    open_ = [run for run in runs if not (folder / run.folder / RUN).exists()]
    workers = min(processes or os.cpu_count() or 1, len(open_))
    if workers == 1:
        for run in open_:
            _perform(experiment, run, folder, partial(_tell_of, progress, run))
    elif open_:
        _perform_together(experiment, open_, folder, progress, workers)
    return finish(folder)


def _tell_of(progress: Progress, run: Run, share: float, done: int) -> None:
    progress({run: (share, done)})


def finish(folder: Path) -> list[Result]:
    """Write the report of the runs of a folder."""
    results = results_in(folder)
    (folder / REPORT).write_text(report(results), encoding="utf-8")
    return results


def results_in(folder: Path) -> list[Result]:
    """The finished runs of an experiment, in its order; or the run, if it is the folder of one."""
    if (folder / RUN).exists():
        return [Result.load(folder)]
    if not (folder / EXPERIMENT).exists():
        raise InvalidInput(str(folder), "holds no experiment and no run", "give the folder of `roost sim run`")
    runs = runs_of(Experiment.load(folder / EXPERIMENT))
    found = [Result.load(folder / run.folder) for run in runs if (folder / run.folder / RUN).exists()]
    if not found:
        raise InvalidInput(str(folder), "has no finished run", "go on with `roost sim resume`")
    return found


def side_by_side(folders: Sequence[Path]) -> list[Result]:
    """The runs of several experiments, with names that tell them apart."""
    results = [(folder, result) for folder in folders for result in results_in(folder)]
    together = {(result.name, result.seed) for _, result in results}
    if len(together) == len(results):
        return [result for _, result in results]
    return [replace(result, name=f"{folder.name}: {result.name}") for folder, result in results]


def _perform(experiment: Experiment, run: Run, folder: Path, progress: Callable[[float, int], None]) -> None:
    """One run, from its checkpoint if it has one."""
    started = time.perf_counter()
    own, saved = folder / run.folder, folder / run.folder / CHECKPOINT
    own.mkdir(parents=True, exist_ok=True)
    simulation = Simulation(experiment, run.policy, run.seed, *stage(experiment, run.seed), name=run.label)
    if saved.exists():
        simulation.go_on(saved.read_bytes())

    def keep(data: bytes) -> None:
        part = saved.with_suffix(".part")
        part.write_bytes(data)
        part.replace(saved)

    settle_memory()
    simulation.timing["prepare_s"] = time.perf_counter() - started
    result = simulation.run(progress, keep)
    simulation.timing["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    result.save(own)
    saved.unlink(missing_ok=True)
    progress(1.0, simulation.operations)


# ---------------------------------------------------------------------------------------------------------- processes

_shared: SynchronizedArray[float]  # how far each run is


def _join(shared: SynchronizedArray[float]) -> None:
    global _shared
    _shared = shared


def _perform_apart(experiment: Experiment, run: Run, folder: Path, at: int) -> str:
    """One run in a process of its own; returns what went wrong, if anything did."""

    def tell(share: float, done: int) -> None:
        _shared[at * NUMBERS], _shared[at * NUMBERS + 1] = share, done

    try:
        _perform(experiment, run, folder, tell)
    except RoostError as error:
        return str(error)
    return ""


def _perform_together(
    experiment: Experiment, runs: Sequence[Run], folder: Path, progress: Progress, workers: int
) -> None:
    context = multiprocessing.get_context("spawn")
    shared: SynchronizedArray[float] = context.Array("d", NUMBERS * len(runs))
    with ProcessPoolExecutor(workers, context, _join, (shared,)) as pool:
        futures: list[Future[str]] = [
            pool.submit(_perform_apart, experiment, run, folder, at) for at, run in enumerate(runs)
        ]
        try:
            while wait(futures, LOOK_SECONDS).not_done:
                progress({run: (shared[i * NUMBERS], int(shared[i * NUMBERS + 1])) for i, run in enumerate(runs)})
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    for run, future in zip(runs, futures, strict=True):
        if problem := future.result():
            raise InvalidInput(f"run {run.folder}", problem)
