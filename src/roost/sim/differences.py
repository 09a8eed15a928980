"""All decisions that another policy would have made otherwise, as they are found and as a table.

FOLDER/differences.parquet, differences.csv     a row for each
FOLDER/differences.json                         how many decisions were looked at
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from roost.engine.ruleset import RulePolicy
from roost.model.errors import InvalidInput
from roost.placing.arms import Arms
from roost.placing.contrast import Contrast, Difference
from roost.placing.decision import Decision

if TYPE_CHECKING:
    import polars as pl

TABLE, COUNT = "differences", "differences.json"
EXPLAINED = 3  # differences of each rule and VM type that are told in a sentence


@dataclass(frozen=True)
class RuleDifferences:
    """Decisions that one rule changes."""

    kind: str
    rule: str
    decisions: int
    share: float  # of all that were looked at
    types: dict[str, int]  # by VM type, most first
    kept_by: dict[str, int]  # by the rule that had kept the VM from where the other policy would have put it
    example: str


@dataclass(frozen=True)
class PolicyDifferences:
    """What another policy would have decided otherwise."""

    decisions: int  # that were looked at
    rows: Sequence[Difference]

    @property
    def share(self) -> float:
        """Of the decisions."""
        return len(self.rows) / self.decisions if self.decisions else 0.0

    def groups(self) -> list[RuleDifferences]:
        """By how and by which rule, most first."""
        found: dict[tuple[str, str], list[Difference]] = {}
        for row in self.rows:
            found.setdefault((row.kind, row.rule), []).append(row)
        return [
            RuleDifferences(
                kind=kind,
                rule=rule,
                decisions=len(rows),
                share=len(rows) / self.decisions,
                types=_counts([row.vm_type for row in rows]),
                kept_by=_counts([row.kept_by for row in rows]),
                example=next((row.text for row in rows if row.text), ""),
            )
            for (kind, rule), rows in sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
        ]

    def table(self) -> pl.DataFrame:
        """A row for each."""
        import polars as pl

        schema: dict[str, Any] = dict.fromkeys(Difference.__struct_fields__, pl.String) | {"at": pl.Float64}
        columns = {name: [getattr(row, name) for row in self.rows] for name in schema}
        return pl.DataFrame(columns, schema | {"vm": pl.Int64})

    def save(self, folder: Path) -> None:
        """Write the table and the count."""
        table = self.table()
        table.write_parquet(folder / f"{TABLE}.parquet", compression="zstd", statistics=False)
        table.write_csv(folder / f"{TABLE}.csv", float_precision=3)
        (folder / COUNT).write_bytes(msgspec.json.encode({"decisions": self.decisions}) + b"\n")

    @classmethod
    def load(cls, folder: Path) -> PolicyDifferences:
        """Read what `save` wrote."""
        import polars as pl

        try:
            count = msgspec.json.decode((folder / COUNT).read_bytes(), type=dict[str, int])
            table = pl.read_parquet(folder / f"{TABLE}.parquet")
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, pl.exceptions.PolarsError) as error:
            raise InvalidInput(str(folder), f"cannot be read: {error}", "compare the policies anew") from None
        return cls(count["decisions"], [Difference(**row) for row in table.iter_rows(named=True)])


def _counts(names: Sequence[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


class DifferenceLog:
    """Looks at every decision from time 0 on, and keeps all differences; the first of each kind with a sentence."""

    clock: Callable[[], float] = staticmethod(lambda: 0.0)

    def __init__(self, policy: RulePolicy) -> None:
        self.policy = policy
        self.decisions = 0
        self.rows: list[Difference] = []
        self._contrasts: dict[Arms, Contrast] = {}
        self._explained: dict[tuple[str, str, str], int] = {}

    def _contrast(self, allocator: Arms) -> Contrast:
        """The policy, on an allocator's copy of the zone."""
        if (known := self._contrasts.get(allocator)) is None:
            known = self._contrasts[allocator] = Contrast(allocator, self.policy)
        return known

    def look(self, decision: Decision) -> None:
        """A decision was made, just now."""
        if self.clock() >= 0:  # what is there before the beginning does not count
            self.look_with(self._contrast(decision.allocator), decision)

    def look_with(self, contrast: Contrast, decision: Decision) -> None:
        """The same, with one that knows who decided."""
        self.decisions += 1
        if found := contrast.compare(decision, self._explains, self.clock()):
            self.rows.append(found)

    def _explains(self, found: Difference) -> bool:
        kind = found.kind, found.rule, found.vm_type
        self._explained[kind] = told = self._explained.get(kind, 0) + 1
        return told <= EXPLAINED

    def save(self, folder: Path) -> None:
        """Write what was found."""
        self.found.save(folder)

    @property
    def found(self) -> PolicyDifferences:
        """So far."""
        return PolicyDifferences(self.decisions, self.rows)
