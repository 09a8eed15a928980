"""`roost whatif` as a person runs it: what it refuses, and what it leaves for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roost.store.snapshot import encode_snapshot
from roost.whatif.plan import read_plan
from tests.e2e.test_command_line import roost
from tests.scenario.fragmented import fragmented


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a snapshot of a fragmented zone."""
    found = tmp_path_factory.mktemp("whatif")
    (found / "now.json").write_bytes(encode_snapshot(fragmented(100)))
    return found


def test_a_plan_for_programs_is_the_plan_in_the_file(folder: Path) -> None:
    done = roost("whatif", "migrate", "--snapshot", "now.json", "--to", "plan.json", "-o", "json", folder=folder)
    assert done.returncode == 0, done.stderr
    shown, plan = json.loads(done.stdout), read_plan(folder / "plan.json")
    assert shown["id"] == plan.id
    assert len(shown["moves"]) == len(plan.moves) > 0
    elsewhere = roost("store", "create", "other.db", "--zone", "synthetic:200", folder=folder)
    assert elsewhere.returncode == 0, elsewhere.stderr
    refused = roost("whatif", "apply", "plan.json", "--store", "other.db", folder=folder)
    assert refused.returncode == 2
    assert "is for zone synthetic-100-0, and this is synthetic-200-1" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("migrate", "--budget", "many"), "write a number of VMs as 200, or a share of them as 2%"),
        (("migrate", "--zone", "synthetic:100"), "name one zone"),
        (("lose",), "names nothing, or several things"),
        (("policy", "defualt"), "did you mean default"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    done = roost("whatif", *arguments, "--snapshot", "now.json", folder=folder)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_no_plan_or_no_snapshot_is_refused(folder: Path) -> None:
    for arguments in (("apply", "now.json"), ("migrate", "--snapshot", "nothing.json")):
        done = roost("whatif", *arguments, folder=folder)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
