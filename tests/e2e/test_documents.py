"""README and docs say what is true: links lead somewhere, and every rule, module and command they name is real.

What they show of commands is compared in test_documents_commands.py, reference pages in test_documents_reference.py.
"""

import re
from pathlib import Path

import pytest

from roost.rules.policy import Policy, shipped_policies, shipped_rules

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
DEPLOY = sorted(path for path in (ROOT / "deploy").iterdir() if path.is_file())
NUMBERS = {3: "Three", 4: "Four", 5: "Five"}
COMMANDS = (ROOT / "docs" / "reference" / "commands.md").read_text()


def section(page: Path, heading: str) -> str:
    return page.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def anchors(page: Path) -> set[str]:
    """What a link into a page may name: its headings, as GitHub spells them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_pages_count_the_rules_that_policies_have() -> None:
    listed = section(ROOT / "docs/policies.md", "The policies that are shipped")
    shown = {name: int(count) for name, count in re.findall(r"^(\w+) +\d+ +(\d+)  ", listed, re.MULTILINE)}
    assert shown == {name: len(Policy.named(name).rules) for name in shipped_policies()}
    for page in set(PAGES) - {ROOT / "CHANGELOG.md"}:
        told = re.findall(r"default policy(?: \(|: )(\d+) rules", page.read_text(), re.IGNORECASE)
        assert set(map(int, told)) <= {shown["default"]}, page


def test_the_readme_counts_the_rules_and_policies_that_are_shipped() -> None:
    text = (ROOT / "README.md").read_text()
    assert re.findall(r"(\d+) are shipped \(`roost policy rules`\)", text) == [str(len(shipped_rules()))]
    assert re.findall(r"(\w+) policies are shipped", text) == [NUMBERS[len(shipped_policies())]]


def test_the_rule_of_the_readme_is_the_rule_that_is_shipped() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", section(ROOT / "README.md", "A rule"), re.DOTALL)
    shipped = (ROOT / "src/roost/rules/validators/has_room.py").read_text()
    code = [line for line in block.splitlines() if line.strip() and '"""' not in line]
    assert all(line in shipped for line in code)


def test_the_policy_of_the_readme_is_the_default_one() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", section(ROOT / "README.md", "A rule"), re.DOTALL)
    assert block in (ROOT / "src/roost/rules/policies/default.yaml").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        if "://" not in target:
            found = (page.parent / target) if target else page
            assert found.exists(), target
            assert not anchor or anchor in anchors(found), f"{target}#{anchor}"


def test_no_page_names_a_module_that_is_not_there() -> None:
    for page in PAGES:
        for module in re.findall(r"`(?:src/)?(roost/[\w/]+\.py)`", page.read_text()):
            assert (ROOT / "src" / module).is_file(), f"{page}: {module}"


def test_no_page_names_a_command_or_an_option_that_is_not_there() -> None:
    known = {heading.split("`")[1] for heading in re.findall(r"^## .*$", COMMANDS, re.MULTILINE)}
    words = {tuple(word for word in name.split()[1:] if word.islower()) for name in known}
    starts = {name[:length] for name in words for length in range(1, len(name) + 1)}
    options = {*re.findall(r"`(--[\w-]+)`", COMMANDS), "--help", "--url", "--token", "--config"}
    for page in [page for page in PAGES if "reference" not in page.parts]:
        for said in re.findall(r"`roost ([^`\n]+)`", page.read_text()):
            name = tuple(re.match(r"(?:[a-z][a-z-]*(?:\s|$))*", said)[0].split())  # type: ignore[index]
            assert name == () or any(name[:length] in starts for length in (2, 1)), f"{page}: roost {said}"
            assert set(re.findall(r"(?<!\S)--[\w-]+", said)) <= options, f"{page}: roost {said}"


@pytest.mark.parametrize("page", [*PAGES, *DEPLOY], ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_names_a_place_of_the_machine_it_was_written_on(page: Path) -> None:
    assert not re.findall(rf"{re.escape(str(ROOT))}|/home/\w+|/root/|/tmp/roost-[a-z]", page.read_text())


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = [int(path.name[:4]) for path in sorted((ROOT / "docs/decisions").glob("*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))
