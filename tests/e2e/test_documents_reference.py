"""The reference pages are what the code says: routes, forms, problems, settings, metrics and commands."""

import subprocess
import sys
from pathlib import Path

import pytest

from roost.api.problems import KINDS
from roost.api.reference import PAGES, page
from roost.settings import SETTINGS

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
COMMANDS = "docs/reference/commands.py"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_makes(name: str) -> None:
    made = f"make it anew: python -m roost.api.reference {name} > docs/reference/{name}.md"
    assert (REFERENCE / f"{name}.md").read_text() == page(name), made


def test_the_page_of_commands_is_what_the_commands_make() -> None:
    done = subprocess.run([sys.executable, COMMANDS], cwd=ROOT, capture_output=True, text=True, check=True)
    made = f"make it anew: python {COMMANDS} > docs/reference/commands.md"
    assert (REFERENCE / "commands.md").read_text() == done.stdout, made


def test_no_code_and_no_setting_is_missing() -> None:
    assert not [code for code in KINDS if f"| `{code}` |" not in page("api")]
    assert not [name for name in SETTINGS if f"| `{name}` |" not in page("settings")]
