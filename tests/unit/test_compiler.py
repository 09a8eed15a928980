"""A kernel is found again on disk when nothing changed, and never when something did."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numba
import pytest
from numba import types

from roost import VM, Allocator, InvalidInput, Policy, Request, Zone
from roost.engine.kernel import compiler
from roost.engine.kernel.asking import addresses
from roost.engine.kernel.compiler import compile_rules
from roost.model.errors import InvariantBroken

POLICY = """\
name: tiny
machines:
  validators: [has_room, evicts_nobody]
  preferences:
    - {rule: "liked.py:liked", buckets: 2}
"""
RULE = """\
from helper import share
from roost.engine.rule import preference

@preference()
def liked(machine, vm):
    return share(machine.vms)
"""
HELPER = "def share(vms):\n    return 0.0\n"
SCRIPT = """
import sys
sys.path.insert(0, ".")
from roost import Policy, Zone
from roost.engine.kernel.compiler import compile_rules
print(compile_rules(Policy.load("policy.yaml").rules, Zone.synthetic(100, seed={seed})).__name__)
"""
# A little of both modules, which does not take long to compile.
TOUCH = """
import numpy as np
from roost import VM, Policy, Zone
from roost.engine.kernel.compiler import compile_rules
from roost.engine.shape import Shapes
zone, rules, journal = Zone.synthetic(100), Policy.named("fast").rules, np.zeros(5, np.int64)
kernel = compile_rules(rules, zone)
kernel.touch_cluster(journal, 1)
print(journal.tolist(), kernel.cluster_detail(zone.clusters[0], Shapes(zone, rules).of(VM("A1"), 0).record, 0))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("policy.yaml", POLICY), ("liked.py", RULE), ("helper.py", HELPER)):
        (tmp_path / name).write_text(text)
    return tmp_path


def kernel_name(folder: Path, seed: int = 1) -> str:
    script = SCRIPT.format(seed=seed)
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_another_process_and_another_zone_of_the_same_shape_get_the_same_kernel(folder: Path) -> None:
    assert kernel_name(folder, seed=1) == kernel_name(folder, seed=2)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("policy.yaml", "buckets: 2", "buckets: 3"),
        ("liked.py", "share(machine.vms)", "1 - share(machine.vms)"),
        ("helper.py", "0.0", "1.0"),
    ],
)
def test_a_changed_policy_rule_or_helper_gets_a_new_kernel(folder: Path, file: str, old: str, new: str) -> None:
    before = kernel_name(folder)
    path = folder / file
    path.write_text(path.read_text().replace(old, new))
    assert kernel_name(folder) != before


def test_a_kernel_is_loaded_once_per_process() -> None:
    rules = Policy.named("fast").rules
    assert compile_rules(rules, Zone.synthetic(100)) is compile_rules(rules, Zone.synthetic(200))


def test_policies_share_what_asks_no_rule_whatever_traits_they_have(tmp_path: Path) -> None:
    (tmp_path / "spread.py").write_text(
        "from roost.engine.rule import preference\n\n"
        "@preference(traits=('workload',))\ndef spread(machine, vm):\n    return vm.workload % 2\n"
    )
    (tmp_path / "policy.yaml").write_text(POLICY.replace("liked.py:liked", "spread.py:spread"))
    zone, own = Zone.synthetic(100), Policy.load(tmp_path / "policy.yaml").rules
    fast, default = (compile_rules(Policy.named(name).rules, zone) for name in ("fast", "default"))
    assert own.own_traits == ("workload",)
    assert fast is not default
    assert fast.assign is default.assign is compile_rules(own, zone).assign


@pytest.mark.parametrize("part", ["body", "journal", "evaluation", "tenants", "choosing"])
def test_a_changed_engine_gets_a_new_kernel(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules, zone = Policy.named("fast").rules, Zone.synthetic(100)
    before = compile_rules(rules, zone)
    edited = tmp_path / f"{part}.py"
    edited.write_text(compiler.BODY.with_name(edited.name).read_text() + "\nEDITED = True\n")
    monkeypatch.setattr(compiler, "COMMON", tuple(edited if p.stem == part else p for p in compiler.COMMON))
    monkeypatch.setattr(compiler, "BODY", edited if part == "body" else compiler.BODY)
    after = compile_rules(rules, zone)
    assert after.EDITED
    assert after.__name__ != before.__name__


def test_a_function_that_does_not_answer_as_asked_is_never_called() -> None:
    kernel = ModuleType("kernel")
    kernel.__dict__.update(
        ASKED={"cluster_key": types.int64(types.int64)}, cluster_key=numba.njit(lambda cluster: cluster / 2)
    )
    with pytest.raises(InvariantBroken, match="cluster_key"):
        addresses(kernel, ("cluster_key",))


def test_processes_that_compile_the_same_at_once_and_one_that_can_keep_nothing_all_work(tmp_path: Path) -> None:
    kept, nowhere = tmp_path / "kernels", tmp_path / "file"
    nowhere.write_text("no folder")
    started = [
        subprocess.Popen(
            [sys.executable, "-c", TOUCH], env={**os.environ, "ROOST_CACHE_DIR": str(each)}, stdout=subprocess.PIPE
        )
        for each in (kept, kept, nowhere)
    ]
    said = [process.communicate()[0].decode() for process in started]
    assert said == ["[1, 0, 0, 0, 1] 0\n"] * 3
    assert {path.name.split("_")[0] for path in kept.glob("*.py")} == {"common", "kernel"}


def test_a_score_outside_0_to_1_is_refused_by_the_name_of_its_rule(tmp_path: Path) -> None:
    (tmp_path / "liked.py").write_text(
        "from roost.engine.rule import preference\n\n"
        "@preference()\ndef liked(machine, vm):\n    return 1.0 / (machine.vms - machine.vms)\n"
    )
    (tmp_path / "policy.yaml").write_text(POLICY)
    with pytest.raises(InvalidInput, match="rule liked: gave a score outside 0 to 1"):
        Allocator(Zone.synthetic(100), Policy.load(tmp_path / "policy.yaml"))


def test_a_fault_in_the_middle_of_a_gang_leaves_no_half_tenant_and_is_named_every_time(tmp_path: Path) -> None:
    (tmp_path / "liked.py").write_text(
        "from roost.engine.rule import preference\n\n"
        "@preference()\ndef liked(machine, vm):\n    return 2.0 if machine.vms > 1 else 0.0\n"
    )
    (tmp_path / "policy.yaml").write_text(POLICY)
    allocator = Allocator(Zone.synthetic(100), Policy.load(tmp_path / "policy.yaml"))
    for _ in range(2):
        with pytest.raises(InvalidInput, match="rule liked"):
            allocator.allocate(Request("t", [VM("A1")] * 300))
        assert not allocator.vms
        assert not allocator.view.machines["vms"].any()
