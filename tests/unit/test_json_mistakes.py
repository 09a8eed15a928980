"""What is wrong with JSON is told in plain words: where it is, what is wrong there, and what would be right."""

from __future__ import annotations

from typing import Any

import pytest

from roost.json_mistakes import Reader, check_keys, in_words
from roost.model.errors import InvalidInput
from roost.wire.basics import FORMS
from roost.wire.machines import MachineChange
from roost.wire.tenants import Batch, TenantWish
from roost.wire.tokens import NewToken

WRONG = [
    (
        TenantWish,
        '{"tenant": "web", "vms": [{"type": "D2", "count": "3"}]}',
        "vms[0].count: is a text, but must be a whole number",
    ),
    (TenantWish, '{"tenant": "web", "vms": [{"type": 2}]}', "vms[0].type: is a whole number, but must be a text"),
    (
        TenantWish,
        '{"tenant": "web", "vms": [{"type": "D2", "isolated": "yes"}]}',
        "isolated: is a text, but must be true or false",
    ),
    (
        TenantWish,
        '{"tenant": "a b", "vms": [{"type": "D2"}]}',
        "tenant: is no name: use letters, digits, dots, dashes and underscores",
    ),
    (
        TenantWish,
        '{"tenant": "web", "vms": [{"type": "D2", "coun": 1}]}',
        "vms[0]: no field is called 'coun'; did you mean count",
    ),
    (TenantWish, '{"tenant": "web"}', "body: lacks the field vms"),
    (TenantWish, '{"tenant": "web", "vms": []}', "vms: must have at least 1 entry"),
    (TenantWish, '{"tenant": "web", "vms": [{"type": "D2", "count": 0}]}', "vms[0].count: must be at least 1"),
    (TenantWish, "[]", "body: is a list, but must be an object"),
    (TenantWish, '{"tenant"', "body: is cut off"),
    (
        TenantWish,
        '{"tenant": "web", "vms": [{"type": "D2"}], "constraints": {"colocate": "room"}}',
        "use one of cluster, datacenter, rack",
    ),
    (MachineChange, '{"state": "cordon"}', "state: is 'cordon'; use one of down, draining, quarantined, ready"),
    (MachineChange, '{"health": "80"}', "health: is a text, but must be a whole number"),
    (MachineChange, '{"health": 101}', "health: must be at most 100"),
    (NewToken, '{"name": "a_b", "scopes": ["read"]}', "name: use letters, digits, dots and dashes"),
    (NewToken, '{"name": "a", "scopes": ["write"]}', "use one of admin, allocate, operate, read"),
]


@pytest.mark.parametrize(("kind", "text", "words"), WRONG)
def test_a_mistake_is_told_in_words(kind: Any, text: str, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Reader(kind).read(text.encode())
    assert words in str(caught.value)
    assert not {"`", "Expected", "regex", "^["} & set(str(caught.value).split())


@pytest.mark.parametrize("pattern", FORMS)
def test_no_pattern_is_told_as_it_is(pattern: str) -> None:
    assert in_words(f"Expected `str` matching regex {pattern!r} - at `$.name`") == ("name", FORMS[pattern])


@pytest.mark.parametrize(
    ("text", "twice"),
    [
        ('{"a": 1, "a": 1}', "a"),
        ('{"a": {"b": [{"c": 1, "d": 2, "c": 3}]}}', "c"),
        ('{"a:\\\\u003a": 1, "b" : 2, "b": 3}', "b"),
    ],
)
def test_a_key_that_is_given_twice_is_refused(text: str, twice: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{twice}: is given twice"):
        check_keys(text.encode())


@pytest.mark.parametrize(
    ("text", "twice"),
    [
        ('{"tenant": "web", "vms": [{"type": "D2", "count": 3, "count": 2}]}', True),
        ('{"tenant": "web", "vms": [{"type": "D2", "count": 3, "count": 1}]}', True),
        ('{"tenant": "web", "vms": [{"type": "D:2", "type": "D2"}]}', True),
        ('{"tenant" : "web", "vms": [{"type": "D2"}], "vms": [{"type": "D\\u003a2"}]}', True),
        ('{"tenant" : "web", "vms": [{"type": "D2", "count": 1, "colocation": "a:b"}]}', False),
        ('{"tenant": "web", "vms": [{"type": "D\\u003a2"}]}', False),
    ],
)
def test_a_document_that_was_read_is_gone_through_only_if_a_key_got_lost(text: str, twice: bool) -> None:
    one = text.encode()
    many = b'{"requests": [%s, %s]}' % (one, b'{"tenant": "t", "vms": [{"type": "D2"}]}')
    for kind, document in ((TenantWish, one), (Batch, many)):
        value = Reader(kind).read(document)
        if twice:
            with pytest.raises(InvalidInput, match="is given twice"):
                check_keys(document, value)
        else:
            check_keys(document, value)


def test_what_is_no_json_is_left_to_whoever_reads_it() -> None:
    check_keys(b'{"a": 1, "a":')
