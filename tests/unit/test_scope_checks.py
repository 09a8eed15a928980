"""A check of a scope is its own module and one line of the table: every store holds proposals to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest

from roost.bench.postgres import ThrowawayPostgres
from roost.store.contract import Place, Proposal, Store
from roost.store.ledger import Accounts, VMRow
from roost.store.memory import MemoryStore
from roost.store.postgres import PostgresStore
from roost.store.scopes import table
from roost.store.scopes.check import ScopeCheck
from roost.store.settle.settling import Settling
from roost.store.sql_text import for_psycopg
from roost.store.sqlite import SqliteStore
from tests.contract.tiny import CATALOGUE, MACHINES, add, names, place, recheck_of, register, release

RECHECK = recheck_of(MACHINES)


class MostVMs:
    """A zone runs no more VMs than an entry of the registry says; those of tenants called free are not counted."""

    rows: Literal["vms"] = "vms"
    limits: str = "most VMs"
    reason = "threshold"
    statement = "SELECT count(*) FROM vms WHERE tenant NOT LIKE 'free%' AND :scope = 'zone'"

    def weight(self, row: VMRow, accounts: Accounts) -> tuple[str, int]:
        return "zone", int(not row.tenant.startswith("free"))

    def scopes(self, group: Sequence[Proposal], settling: Settling) -> Mapping[str, int]:
        counts = any(isinstance(each, Place) and not each.tenant.startswith("free") for each in group)
        return {"zone": 1_000} if counts and settling.limit(self.limits, "zone") else {}

    def refuses(self, proposal: Proposal, settling: Settling, sum_of: Callable[[str], int]) -> str | None:
        if not isinstance(proposal, Place) or proposal.tenant.startswith("free"):
            return None
        most = settling.limit(self.limits, "zone")
        return None if most is None or sum_of("zone") + len(proposal.placed) <= int(most) else "too many VMs"


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, int]]:
    """The one line; and how often something was asked to be counted."""
    asked: list[Mapping[str, int]] = []

    class Watched(MostVMs):
        def refuses(self, proposal: Proposal, settling: Settling, sum_of: Callable[[str], int]) -> str | None:
            asked.append({"zone": sum_of("zone")})
            return super().refuses(proposal, settling, sum_of)

    check: ScopeCheck = Watched()
    monkeypatch.setitem(table.CHECKS, "most VMs", check)
    return asked


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with ThrowawayPostgres() as server:
        yield server.url


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    found: Store
    if request.param == "memory":
        found = MemoryStore(CATALOGUE)
    elif request.param == "sqlite":
        found = SqliteStore(tmp_path / "zone.db", create=CATALOGUE)
    else:
        found = PostgresStore(request.getfixturevalue("database"), create=CATALOGUE)
    with closing(found):
        found.commit([add("first", *MACHINES)], RECHECK)
        yield found


def test_a_check_is_one_line_and_every_store_holds_to_it(store: Store, toy: list[Mapping[str, int]]) -> None:
    def commit(*group: Proposal) -> list[str]:
        return names(store.commit(group, RECHECK))

    assert commit(place("1", "t", {"a": "m1", "b": "m2"})) == ["committed"]
    assert toy == [], "nothing limits it: nothing is counted"
    assert commit(register("2", "zone", "4", kind="most VMs"), place("3", "t", {"c": "m1"})) == ["committed"] * 2
    assert commit(place("4", "free", {"d": "m1", "e": "m2"})) == ["committed"]
    assert toy == [], "neither is what was not limited before, nor what does not count"
    group = [place("5", "u", {"f": "m3", "g": "m3"}), place("6", "u", {"h": "m3"}), place("7", "v", {"i": "m4"})]
    assert commit(*group) == ["threshold", "committed", "threshold"]
    later = [place("8", "v", {"i": "m4"}), release("9", "t", {"a": "m1"}), place("10", "v", {"i": "m4"})]
    assert commit(*later) == ["threshold", "committed", "committed"]
    assert [each["zone"] for each in toy] == [3, 3, 4, 4, 3]
    assert commit(register("11", "zone", None, kind="most VMs")) == ["committed"]
    assert commit(place("12", "w", {"j": "m5", "k": "m5", "l": "m5"})) == ["committed"]
    assert len(toy) == 5


def test_statements_take_values_by_name_in_every_dialect() -> None:
    assert for_psycopg("SELECT :scope LIKE 'a%' LIMIT :most") == "SELECT %(scope)s LIKE 'a%%' LIMIT %(most)s"


def test_every_check_of_the_table_says_what_it_counts() -> None:
    for check in table.CHECKS.values():
        assert check.statement.startswith("SELECT ")
        assert check.limits
