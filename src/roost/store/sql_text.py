"""SQL lives in files: named statements, and the numbered steps from an empty database to the present schema."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).with_name("sql")


@cache
def queries(dialect: str) -> dict[str, str]:
    """The statements of a dialect by name. Each begins with `-- name: …`, then a line that says what it is for."""
    found: dict[str, str] = {}
    for part in (FOLDER / dialect / "queries.sql").read_text().split("-- name: ")[1:]:
        name, _, text = part.partition("\n")
        lines = [line for line in text.splitlines() if not line.startswith("--")]
        found[name.strip()] = "\n".join(lines).strip()
    return found


@cache
def for_psycopg(statement: str) -> str:
    """A statement with values by name (`:scope`), as psycopg wants it."""
    return re.sub(r":([a-z]+)\b", r"%(\1)s", statement.replace("%", "%%"))


@cache
def migrations(dialect: str) -> list[tuple[int, str]]:
    """The steps of the schema, oldest first: the number each leads to, and its statements."""
    files = sorted((FOLDER / dialect).glob("[0-9]*.sql"))
    return [(int(path.name.partition("_")[0]), path.read_text()) for path in files]


@cache
def latest(dialect: str) -> int:
    """The version of the schema that this Roost works with."""
    return migrations(dialect)[-1][0]
