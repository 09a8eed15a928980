"""The reference pages are what the code says: routes, forms, problems, settings, metrics and commands."""

import subprocess
import sys
from pathlib import Path

import pytest

from roost.api.app import ROUTES
from roost.api.problems import KINDS
from roost.settings import SETTINGS

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
MAKERS = {
    "api": ("-m", "roost.api.reference", "api"),
    "settings": ("-m", "roost.api.reference", "settings"),
    "metrics": ("-m", "roost.api.reference", "metrics"),
    "commands": ("docs/reference/commands.py",),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_page_is_what_the_code_makes(name: str) -> None:
    done = subprocess.run([sys.executable, *MAKERS[name]], cwd=ROOT, capture_output=True, text=True, check=True)
    made_anew = f"python {' '.join(MAKERS[name])} > docs/reference/{name}.md"
    assert (REFERENCE / f"{name}.md").read_text() == done.stdout, made_anew


def test_every_page_of_the_reference_is_made() -> None:
    assert {page.stem for page in REFERENCE.glob("*.md")} == set(MAKERS)


def test_every_route_is_on_the_page() -> None:
    api = (REFERENCE / "api.md").read_text()
    paths = {path.replace(":str", "").replace(":path", "") for route in ROUTES for path in route.paths}
    assert not [path for path in paths if f" {path}`" not in api]


def test_no_code_and_no_setting_is_missing() -> None:
    api, settings = (REFERENCE / "api.md").read_text(), (REFERENCE / "settings.md").read_text()
    assert not [code for code in KINDS if f"| `{code}` |" not in api]
    assert not [name for name in SETTINGS if f"| `{name}` |" not in settings]
