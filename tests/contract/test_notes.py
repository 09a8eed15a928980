"""What is told to others for a while: heard by all of them, in no feed, and forgotten when it is too old."""

from __future__ import annotations

from roost.store.contract import Store
from tests.contract.conftest import Home

KEEP = 3_600.0


def test_what_was_told_last_is_heard_by_others_with_its_age_and_not_by_oneself(store: Store) -> None:
    assert store.exchange("beats", "a", b"\x00one", KEEP) == {}
    assert store.exchange("beats", "a", b"two\xff", KEEP) == {}
    heard = store.exchange("beats", "b", b"", KEEP)
    assert {name: note.value for name, note in heard.items()} == {"a": b"two\xff"}
    assert 0.0 <= heard["a"].age < 60.0
    assert store.exchange("other", "c", b"", KEEP) == {}, "of another kind"


def test_what_is_too_old_is_forgotten(store: Store) -> None:
    store.exchange("beats", "a", b"one", KEEP)
    assert store.exchange("beats", "b", b"", 0.0) == {}
    assert set(store.exchange("beats", "c", b"", KEEP)) == {"b"}


def test_it_is_no_part_of_the_zone(store: Store) -> None:
    before = store.load()
    store.exchange("beats", "a", b"one", KEEP)
    assert not list(store.load().differences(before))
    assert store.head() == (before.revision, 0)


def test_another_process_hears_it(home: Home) -> None:
    home.store.exchange("beats", "a", b"one", KEEP)
    assert home.another().exchange("beats", "b", b"two", KEEP)["a"].value == b"one"
    assert home.store.exchange("beats", "a", b"one", KEEP)["b"].value == b"two"
