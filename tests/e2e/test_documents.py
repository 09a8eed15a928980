"""README and docs say what is true: their code runs, their links lead somewhere, and every rule and word is real."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_python_of_the_readme_runs() -> None:
    (block,) = re.findall(r"## In Python\n+```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "acme" in done.stdout


def test_the_store_of_the_readme_works(tmp_path: Path) -> None:
    section = (ROOT / "README.md").read_text().partition("## With a store")[2].partition("\n## ")[0]
    (shell,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    (python,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    folder = Path(sys.executable).parent
    path = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-ec", shell], cwd=tmp_path, env=path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"status":"done"' in done.stdout
    assert "clean" in done.stdout
    (tmp_path / "zone.db").unlink()
    done = subprocess.run([sys.executable, "-c", python], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_rule_of_the_readme_is_the_rule_that_is_shipped() -> None:
    (block,) = re.findall(r"## A rule\n+```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    shipped = (ROOT / "src/roost/rules/validators/has_room.py").read_text()
    code = [line for line in block.splitlines() if line.strip() and '"""' not in line]
    assert all(line in shipped for line in code)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_no_page_names_a_module_that_is_not_there() -> None:
    for page in PAGES:
        for module in re.findall(r"`(?:src/)?(roost/[\w/]+\.py)`", page.read_text()):
            assert (ROOT / "src" / module).is_file(), f"{page}: {module}"


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = [int(path.name[:4]) for path in sorted((ROOT / "docs/decisions").glob("*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))
