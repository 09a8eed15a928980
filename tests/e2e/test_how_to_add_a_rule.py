"""The page on adding a rule, followed literally: its files, its test, its commands."""

import re
import subprocess
import sys
from pathlib import Path

from roost import VM, Allocator, Policy, Request, Zone
from roost.rules.own import OwnRules

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "add-a-rule.md"


def write_files(folder: Path) -> None:
    for name, text in re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL):
        (folder / name).write_text(text)


def test_the_files_of_the_page_work_as_they_stand(tmp_path: Path) -> None:
    write_files(tmp_path)
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_few_failures.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout
    for command, shown in re.findall(r"^\$ (roost .*)\n((?:(?!\$|```).*\n)*)", PAGE.read_text(), re.MULTILINE):
        program = str(Path(sys.executable).with_name("roost"))
        done = subprocess.run(
            [program, *command.split()[1:]], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert shown.strip() in done.stdout


def test_the_rule_of_the_page_decides_and_is_named_in_the_explanation(tmp_path: Path) -> None:
    write_files(tmp_path)
    zone = Zone.synthetic(100, seed=1)
    zone.machines["failures"] = 2
    zone.machines["failures"][40] = 0
    own = OwnRules.find(str(tmp_path / "few_failures.py"))
    allocator = Allocator(zone, Policy.load(tmp_path / "policy.yaml", own), seed=1)
    decision = allocator.allocate(Request("t", [VM("A1")]))
    assert decision.placements[0].machine == zone.machine_names[40]
    assert decision.explanation.decided_by == "few_failures"
