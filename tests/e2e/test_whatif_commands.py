"""`roost whatif` as a person runs it: what it refuses, and what it leaves for programs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from roost.model.zone import Zone
from roost.rules.policy import SHIPPED
from roost.store.snapshot import encode_snapshot
from roost.whatif.plan import read_plan
from roost.wiring import open_store
from tests.e2e.serving import serving
from tests.e2e.test_command_line import roost
from tests.scenario.fragmented import fragmented


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a snapshot of a fragmented zone."""
    found = tmp_path_factory.mktemp("whatif")
    (found / "now.json").write_bytes(encode_snapshot(fragmented(100)))
    (found / "mine").mkdir()
    shutil.copy(SHIPPED / "default.yaml", found / "mine")
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
        (("migrate", "--budget", "nan"), "write a number of VMs as 200, or a share of them as 2%"),
        (("migrate", "--budget", "inf"), "write a number of VMs as 200, or a share of them as 2%"),
        (("migrate", "--zone", "synthetic:100"), "name one zone"),
        (("lose",), "names nothing, or several things"),
        (("policy", "defualt"), "did you mean default"),
        (("policy", "default", "mine/default.yaml"), "two are called default"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    done = roost("whatif", *arguments, "--snapshot", "now.json", folder=folder)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_zone_may_lose_all_it_has(folder: Path) -> None:
    done = roost("whatif", "lose", "--share", "1", "--snapshot", "now.json", folder=folder)
    assert done.returncode == 0, done.stderr
    assert "0 find another machine" in done.stdout


def test_where_no_policy_is_activated_the_settings_say_which_one_it_is(folder: Path) -> None:
    for said, problem in (("{}", "makes no sense"), ("", "by fast, of the settings")):
        snapshot = json.loads((folder / "now.json").read_text())
        snapshot["registry"] = [("active", "policies", said)] if said else []
        (folder / "odd.json").write_text(json.dumps(snapshot))
        (folder / "fast.toml").write_text('[agent]\npolicy = "fast"\n')
        done = roost("whatif", "weights", "--snapshot", "odd.json", "--config", "fast.toml", folder=folder)
        assert done.returncode == (2 if said else 0)
        assert problem in done.stderr
        assert "Traceback" not in done.stderr


def test_the_policy_is_the_one_that_the_service_was_started_with(folder: Path) -> None:
    store, mine = str(folder / "served.db"), folder / "mine.yaml"
    open_store(store, create=Zone.synthetic(100)).close()
    mine.write_text((SHIPPED / "default.yaml").read_text().replace("name: default", "name: mine"))
    for policy, words in (("fast", ""), (str(mine), "the service decides by mine")):
        with serving(store, "--policy", policy) as service:
            done = roost("whatif", "weights", "--url", service.url, "-o", "json", folder=folder)
            if words:
                assert words in done.stderr
            else:
                assert json.loads(done.stdout)["policy"] == "fast"


def test_a_file_that_is_no_plan_or_no_snapshot_is_refused(folder: Path) -> None:
    for arguments in (("apply", "now.json"), ("migrate", "--snapshot", "nothing.json")):
        done = roost("whatif", *arguments, folder=folder)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
