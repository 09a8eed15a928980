"""Same experiment, same bytes: whoever runs it, in which process, and however often it was interrupted."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from roost.model.errors import InvalidInput
from roost.model.request import Constraints
from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.sim.experiment import Agents, Experiment, Faults, Latency, Maintenance, Migrations, PolicyChange
from roost.sim.result import TIMING
from roost.sim.runs import CHECKPOINT, EXPERIMENT, REPORT, begin, perform
from roost.sim.simulation import Simulation
from roost.store.audit import check_invariants
from roost.traces.own_form import write_own_form
from roost.traces.workload import Workload, WorkloadType
from roost.wiring import find_policy
from tests.property.zones import TINY
from tests.scenario.simulated import KINDS, Ask, machines, workload

EVERY = 40  # operations, between two checkpoints
ROOT = Path(__file__).parents[2]


def a_busy_day() -> Workload:
    """Requests of many tenants, some of several VMs, over five minutes; now and then there is a pause."""
    draw = random.Random(5)
    asks, now = [], 0.0
    for number in range(160):
        now += draw.choice([0.0, 0.1, 0.4, 1.0, 2.0, 12.0 if number % 10 == 0 else 0.5])
        vms = [
            (draw.choice(KINDS), draw.choice([0.0, 2.0, 15.0, 60.0, float("inf")])) for _ in range(draw.randint(1, 3))
        ]
        constraints = Constraints(max_per_machine=2) if number % 7 == 0 else None
        tenant = f"own-{number}" if constraints else draw.choice(["a", "b", f"t{number}"])
        asks.append(Ask(round(now, 3), vms, tenant, constraints, draw.choice(["", "low"])))
    return workload(asks, "busy")


EVERYTHING = Experiment(
    name="everything",
    workload="given",
    zone="given",
    policies=("fast",),
    seeds=(1,),
    agents=Agents(count=3, group=2, pipeline=2),
    latency=Latency(hit_ms=20, miss_ms=60, hit_ratio=0.8, commit_ms=30, feed_ms=150),
    faults=Faults(mtbf="3m", rack_mtbf="2m", repair="40s", maintenance=(Maintenance(at=30, lasts=60, share=0.3),)),
    policy_changes=(PolicyChange(at=70, policy="spread"),),
    migrations=Migrations(at=10, every=9, budget=0.4, copy=2.5, at_once=3),
    requeue=True,
    foresight=11,
    funnel=3,
    fill=0.2,
    warm_up=20,
    sample=5,
    bin=10,
    checkpoint=EVERY,
)
ZONE = machines(8, 8)


def new(
    given: Workload | None = None,
    seed: int = 1,
    zone: Zone = ZONE,
    find: Callable[[str], Policy] = find_policy,
    **changes: Any,
) -> Simulation:
    """The run, or one that differs in something."""
    return Simulation(msgspec.structs.replace(EVERYTHING, **changes), "fast", seed, given or a_busy_day(), zone, find)


def files_of(folder: Path) -> dict[str, bytes]:
    """All that a run left, but for how long it took, which a report tells in one line."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != TIMING]
    lines = {path: path.read_bytes().splitlines(keepends=True) for path in files}
    return {
        str(path.relative_to(folder)): b"".join(line for line in lines[path] if b"runs took, on the" not in line)
        for path in files
    }


def bytes_of(
    simulation: Simulation, folder: Path, checkpoint: Callable[[bytes], None] | None = None
) -> dict[str, bytes]:
    """What a run leaves."""
    simulation.run(checkpoint=checkpoint).save(folder)
    check_invariants(simulation.store)
    return files_of(folder)


class Interrupted(Exception):
    """Somebody pulled the plug."""


def interrupted(simulation: Simulation, after: int) -> bytes:
    """The checkpoint that a run has when it is interrupted right after so many."""
    kept: list[bytes] = []

    def keep(data: bytes) -> None:
        kept.append(data)
        if len(kept) == after:
            raise Interrupted

    with pytest.raises(Interrupted):
        simulation.run(checkpoint=keep)
    return kept[-1]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], list[bytes]]:
    """What the run leaves that nobody interrupts, and its checkpoints."""
    checkpoints: list[bytes] = []
    return bytes_of(new(), tmp_path_factory.mktemp("unbroken"), checkpoints.append), checkpoints


def test_something_of_everything_happens_in_the_run(unbroken: tuple[dict[str, bytes], list[bytes]]) -> None:
    summary = msgspec.json.decode(unbroken[0]["run.json"])["summary"]
    for name in (
        "declined",
        "conflicts",
        "machine_failures",
        "vms_displaced",
        "vms_healed",
        "vms_requeued",
        "vms_placed",
        "vms_moved",
        "candidates",
    ):
        assert summary[name] > 0, name
    assert 0 < summary["acceptance"] < 1
    assert len(unbroken[1]) > 5


def test_a_run_is_the_same_every_time(unbroken: tuple[dict[str, bytes], list[bytes]], tmp_path: Path) -> None:
    assert bytes_of(new(), tmp_path) == unbroken[0]


def test_another_seed_is_another_run(unbroken: tuple[dict[str, bytes], list[bytes]], tmp_path: Path) -> None:
    other = bytes_of(new(seed=2), tmp_path)
    for name in ("timeline.csv", "requests.parquet"):
        assert other[name] != unbroken[0][name]


@pytest.mark.parametrize("after", [1, 2, 4, -1])
def test_a_run_that_was_interrupted_goes_on_as_if_nothing_had_happened(
    after: int, unbroken: tuple[dict[str, bytes], list[bytes]], tmp_path: Path
) -> None:
    data = interrupted(new(), after if after > 0 else len(unbroken[1]))
    assert data != unbroken[1][0] or after == 1
    resumed = new()
    resumed.go_on(data)
    assert bytes_of(resumed, tmp_path) == unbroken[0]


def test_a_run_may_be_interrupted_again_and_again(
    unbroken: tuple[dict[str, bytes], list[bytes]], tmp_path: Path
) -> None:
    data = interrupted(new(), 1)
    for after in (1, 2, 1):
        again = new()
        again.go_on(data)
        data = interrupted(again, after)
    last = new()
    last.go_on(data)
    assert bytes_of(last, tmp_path) == unbroken[0]


# ------------------------------------------------------------------------------------------------------------ refusals


def other_lifetimes() -> Simulation:
    given = a_busy_day()
    return new(replace(given, lifetime=given.lifetime * 2))


def other_tenants() -> Simulation:
    given = a_busy_day()
    return new(replace(given, tenants=["x", *given.tenants[1:]]))


def other_sizes() -> Simulation:
    given = a_busy_day()
    return new(replace(given, types=[WorkloadType(kind.name, {"": (1.0, 1.0)}) for kind in given.types]))


def other_constraints() -> Simulation:
    return new(replace(a_busy_day(), constraints={0: Constraints(max_per_machine=1)}))


def other_policy() -> Simulation:
    return new(find=lambda name: replace(find_policy(name), digest="changed"))


@pytest.mark.parametrize(
    "other",
    [
        lambda: new(seed=2),
        lambda: new(until=100),
        lambda: new(agents=Agents(count=2, group=2, pipeline=2)),
        lambda: new(zone=machines(7, 8)),
        other_lifetimes,
        other_tenants,
        other_sizes,
        other_constraints,
        other_policy,
    ],
    ids=["seed", "until", "agents", "zone", "lifetimes", "tenants", "sizes", "constraints", "policy"],
)
def test_a_checkpoint_of_something_else_is_refused(
    other: Callable[[], Simulation], unbroken: tuple[dict[str, bytes], list[bytes]]
) -> None:
    with pytest.raises(InvalidInput, match="checkpoint: is of another"):
        other().go_on(unbroken[1][0])


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a_truncated_checkpoint_is_refused(share: float, unbroken: tuple[dict[str, bytes], list[bytes]]) -> None:
    data = unbroken[1][0]
    with pytest.raises(InvalidInput, match="checkpoint: cannot be read"):
        new().go_on(data[: int(share * len(data))])


# --------------------------------------------------------------------------------------------------- in other processes


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """The experiment by files: two seeds, on a zone of the shape that all tests of runs share."""
    folder = tmp_path_factory.mktemp("files")
    names = [resource.name for resource in TINY.resources]
    zone = {
        "name": "tiny",
        "resources": {resource.name: {"unit": resource.unit} for resource in TINY.resources},
        "bands": list(TINY.bands),
        "generations": {
            each.name: dict(zip(names, each.capacity, strict=True)) | {"features": list(each.features)}
            for each in TINY.generations
        },
        "vm_types": {
            kind.name: {
                "family": kind.family,
                "demand": dict.fromkeys(names, 0),
                "on": {name: dict(zip(names, demand, strict=True)) for name, demand in kind.demand.items()},
                "requires": list(kind.requires),
            }
            for kind in TINY.vm_types
        },
        "anti_colocation": [list(pair) for pair in TINY.conflicts],
        "clusters": [
            {"name": name, "generation": generation, "racks": 2, "machines_per_rack": 4}
            for name, generation in (("c0", "old"), ("c1", "new"))
        ],
    }
    (folder / "zone.yaml").write_text(yaml.safe_dump(zone))
    write_own_form(a_busy_day(), folder / "busy.csv")
    paths = {"workload": str(folder / "busy.csv"), "zone": str(folder / "zone.yaml")}
    return msgspec.structs.replace(EVERYTHING, seeds=(1, 2), **paths)


@pytest.fixture(scope="module")
def in_turn(files: Experiment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What both runs leave, one after another in this process."""
    folder = tmp_path_factory.mktemp("in-turn")
    begin(files, folder)
    perform(folder, lambda told: None, processes=1)
    assert (folder / REPORT).exists()
    return files_of(folder)


def test_runs_side_by_side_in_processes_that_hash_otherwise_leave_the_same(
    files: Experiment, in_turn: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "4242")
    begin(files, tmp_path)
    perform(tmp_path, lambda told: None, processes=2)
    left = files_of(tmp_path)
    assert set(left) == set(in_turn)
    assert [name for name in left if left[name] != in_turn[name]] == []


KILLED = """
import os, signal, sys
from pathlib import Path
from roost.sim import runs

class Doomed(runs.Simulation):
    def run(self, progress=None, checkpoint=None):
        def keep(data):
            checkpoint(data)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run(progress, keep)

runs.Simulation = Doomed
runs.perform(Path(sys.argv[1]), lambda told: None, processes=1)
"""


def test_a_run_that_was_killed_is_resumed_by_a_command_with_the_same_result(
    files: Experiment, in_turn: dict[str, bytes], tmp_path: Path
) -> None:
    begin(files, tmp_path)
    own = tmp_path / "fast-seed1"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert {path.name for path in own.iterdir()} == {CHECKPOINT}
    command = [str(Path(sys.executable).with_name("roost")), "sim", "resume", str(tmp_path), "--processes", "1"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, env=os.environ | {"PYTHONHASHSEED": "77"})
    left = files_of(tmp_path)
    assert set(left) == set(in_turn)
    assert [name for name in left if left[name] != in_turn[name]] == []


def test_a_checkpoint_file_that_is_cut_short_is_refused_by_its_name(files: Experiment, tmp_path: Path) -> None:
    begin(files, tmp_path)
    own = tmp_path / "fast-seed1"
    own.mkdir()
    (own / CHECKPOINT).write_bytes(b"\x93")
    with pytest.raises(InvalidInput, match=r"fast-seed1/checkpoint\.bin: cannot be read"):
        perform(tmp_path, lambda told: None, processes=1)
    assert (tmp_path / EXPERIMENT).exists()
