"""`roost policy diff`, as a person runs it, on a workload and on a store, and what it says to mistakes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from roost.agent.verbs.entry import SetEntry
from roost.agent.verbs.place import PlaceVMs
from roost.cli.main import commands, main
from roost.model.registry import POLICY
from roost.model.request import VM, Request
from roost.model.zone import Zone
from roost.rules.policy import SHIPPED, Policy
from roost.wiring import open_agent, open_store

Diff = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def made() -> Callable[[], object]:
    return commands()


@pytest.fixture
def diff(
    made: Callable[[], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Diff:
    """`roost policy diff` in a folder of its own; returns the exit code, the answer and the complaints."""
    monkeypatch.setattr("roost.cli.main.commands", lambda: made)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["roost", "policy", "diff", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return run


def test_policies_are_compared_on_a_workload(diff: Diff, tmp_path: Path) -> None:
    lines = [f"{60 * i},t{i},{('D2', 'A1', 'D13')[i % 3]},{600 + 60 * i}" for i in range(40)]
    (tmp_path / "mine.csv").write_text("\n".join(["time_s,tenant,vm_type,lifetime_s", *lines]) + "\n")
    stage = ("--workload", "mine.csv", "--zone", "synthetic:100", "--seeds", "2", "--processes", "1", "--to", "found")
    code, out, err = diff("fast", "spread", *stage)
    assert code == 0, err
    assert out.startswith("spread instead of fast, on mine.csv on 100 machines")
    assert "Of 40 decisions " in out
    assert "spread prefers " in out
    found = tmp_path / "found"
    summary = json.loads((found / "summary.json").read_text())
    assert summary["decisions"] == 40
    assert summary["changed"] == sum(group["decisions"] for group in summary["groups"]) > 0
    table = pl.read_parquet(found / "differences.parquet")
    assert len(table) == summary["changed"]
    assert set(table["rule"]) == {group["rule"] for group in summary["groups"]}
    density = next(row for row in summary["measures"] if row["measure"] == "density")
    assert density["variants"]["fast"]["mean"] > density["variants"]["spread"]["mean"]
    assert density["variants"]["fast"]["n"] == 2
    assert "## What that does to the zone" in (found / "report.md").read_text()
    assert "is not empty" in diff("fast", "spread", *stage)[2]
    assert "Conflicts (commits)" in out
    alone = diff("fast", "spread", *stage[:-2], "--agents", "1", "--latency", "none")[1]
    assert "Conflicts (commits)" not in alone
    assert "so that there are no conflicts to compare" in alone


def test_a_policy_is_compared_with_what_a_store_has_recorded(diff: Diff, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "zone.db"), create=Zone.synthetic(100))
    agent = open_agent(store, Policy.named("fast"), seed=1)
    agent.run(*(agent.submit(PlaceVMs(Request(f"t{i}", [VM("A1")]))) for i in range(10)))
    ours = (SHIPPED / "spread.yaml").read_text().replace("name: spread", "name: ours")
    agent.run(agent.submit(SetEntry(POLICY, "ours", ours)))
    agent.close()
    store.close()
    code, out, err = diff("spread", "--store", "zone.db", "-o", "json")
    assert code == 0, err
    recorded = json.loads(out)
    assert (recorded["first"], recorded["second"], recorded["decisions"]) == ("recorded", "spread", 10)
    assert recorded["changed"] > 0
    code, out, err = diff("fast", "ours", "--store", "zone.db", "--seeds", "1")
    assert code == 0, err
    assert out.startswith("ours instead of fast")
    assert "so that there are no conflicts to compare" in out
    assert "does not go with --store" in diff("fast", "spread", "--store", "zone.db", "--until", "1d")[2]
    (tmp_path / "other.yaml").write_text(ours.replace("name: ours", "name: fast"))
    assert "two have the same name" in diff("fast", "other.yaml", "--store", "zone.db")[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("default",), "is missing"),
        (("default", "default"), "is the same policy"),
        (("default", "default", "--store", "none.db"), "is the same policy"),
        (("default", "nothing"), "nothing"),
        (("default", "dense", "--since", "3"), "goes with --store"),
        (("default", "dense", "--store", "none.db"), "none.db"),
        (("default", "dense", "--workload", "none.csv"), "none.csv"),
    ],
)
def test_a_mistake_is_told_and_nothing_is_made(
    diff: Diff, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    code, _, err = diff(*arguments, "--to", "found")
    assert code == 2
    assert said in err
    assert "Traceback" not in err
    assert not (tmp_path / "found").exists()
