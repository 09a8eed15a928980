"""Where tests keep kernels, how Hypothesis works here, and the order in which workers take files.

The same examples in every run, no wall clock, and a blob to repeat a failure with. How many: tests/property/effort.py.
`pytest --hypothesis-profile=explore` looks for new examples instead; ROOST_TEST_EFFORT=10 looks ten times as hard.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]
# Kernels that tests compile stay with the checkout, apart from the user's own; all workers of a run share them.
os.environ.setdefault("ROOST_CACHE_DIR", str(ROOT / ".cache"))

_usual = settings(
    deadline=None,  # the first example may compile a kernel
    print_blob=True,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
)
settings.register_profile("ci", _usual, derandomize=True)
settings.register_profile("explore", _usual, derandomize=False)
settings.load_profile("ci")

# Files that take longest, longest first. Workers begin with them, so that none is left for the end.
LONG = (
    "e2e/test_documents_commands.py",
    "e2e/test_experiments_quick.py",
    "e2e/test_service_commands.py",
    "property/test_explanations_agree_with_oracle.py",
    "property/test_engine_agrees_with_oracle.py",
    "e2e/test_worker.py",
    "e2e/test_command_line.py",
    "e2e/test_healing.py",
    "contract/test_store_state_machine.py",
    "scenario/test_simulation_repeats.py",
    "e2e/test_maintenance.py",
    "e2e/test_openapi.py",
    "e2e/test_http_survives_kills.py",
    "unit/rules/test_every_rule.py",
)
# Compiles what many files need: policies that most tests use, for the two shapes of zone that most of them have.
COMPILE = """
import sys
from roost.agent.warm_up import warm_up
from roost.model.zone import Zone
from tests.property.zones import MIDDLE, TINY, ClusterPlan, build, policy
zones = {"synthetic": Zone.synthetic(100), "tiny": build(TINY, (ClusterPlan(0, 0, (3, 3)),))}
for name in sys.argv[2:]:
    warm_up(zones[sys.argv[1]], policy(MIDDLE if name == "MIDDLE" else name))
"""
COMMON = (("synthetic", "default", "fast", "dense"), ("tiny", "fast", "MIDDLE"))


def pytest_configure(config: pytest.Config) -> None:
    """Before workers begin, compile what they would otherwise compile each for itself at the same time."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        begun = [subprocess.Popen([sys.executable, "-c", COMPILE, *what], cwd=ROOT) for what in COMMON]
        ended = [process.wait() for process in begun]
        if any(ended):
            raise pytest.UsageError("the rules that ship cannot be compiled; see above")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Workers take files in this order."""
    if hasattr(config, "workerinput"):
        places = {ROOT / "tests" / name: place for place, name in enumerate(LONG)}
        items.sort(key=lambda item: places.get(item.path, len(LONG)))
