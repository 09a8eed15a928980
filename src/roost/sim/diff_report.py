"""What another policy would change, as a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from roost.placing.contrast import KINDS
from roost.sim.diff import Diff
from roost.sim.differences import RuleDifferences
from roost.sim.statistics import CONFIDENCE

TYPES = 4  # that are named of a group
HEADINGS = ("how", "rule", "decisions", "share", "VM types")


def page(diff: Diff) -> str:
    """All that there is to say."""
    groups, measures = diff.differences.groups(), diff.measures()
    lines = [
        f"# {diff.second} instead of {diff.first}",
        "",
        f"Compared on {diff.over}. {headline(diff)}",
        "",
        "## What changes the decisions",
        "",
        *_table(HEADINGS, map(group_line, groups)),
        "",
        *(f"- *{kind}*: {meaning}" for kind, meaning in KINDS.items() if any(group.kind == kind for group in groups)),
        "",
        "## Examples",
        "",
        *(f"- **{group.rule or group.kind}**: {group.example}" for group in groups),
        "",
        "## What that does to the zone",
        "",
        *_table(measures.headings(), measures.cells()),
        "",
        intervals(diff),
        "",
    ]
    return "\n".join(lines)


def headline(diff: Diff) -> str:
    """In a sentence."""
    found = diff.differences
    text = f"Of {found.decisions:,} decisions {len(found.rows):,} change ({found.share:.1%})."
    declined, placed = (sum(row.kind == kind for row in found.rows) for kind in ("declined", "placed"))
    if declined or placed:
        text += f" {diff.second} would decline {declined:,} that {diff.first} placed, and place {placed:,} it declined."
    return text


def group_line(group: RuleDifferences) -> list[str]:
    """Under `HEADINGS`."""
    types = [f"{name} {number:,}" for name, number in group.types.items()]
    more = [f"{len(types) - TYPES} more"] if len(types) > TYPES else []
    return [group.kind, group.rule, f"{group.decisions:,}", f"{group.share:.1%}", ", ".join([*types[:TYPES], *more])]


def intervals(diff: Diff) -> str:
    """How to read the measures."""
    told = {row.measure.name for row in diff.measures().rows}
    raced = "" if "conflicts" in told else " There was one who decided, so that there are no conflicts to compare."
    if len({result.seed for result in diff.results}) == 1:
        return f"Of one seed: differences may be chance.{raced}"
    return f"±: where the mean lies, with {CONFIDENCE:.0%} confidence; unclear: it may be chance.{raced}"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [headings, ["---"] * len(headings), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
