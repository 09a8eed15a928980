"""Who is let in without a token."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from roost.api.gate import Gate
from roost.api.problems import Refused
from roost.api.tokens import ANYBODY, TokenBook
from roost.settings import ServerSection, Settings

SOME = {"root": '{"digest":"0","scopes":["admin"]}'}


def _app(*_: Any) -> Any:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("loopback", "allowed", "tokens", "closed", "is_let_in"),
    [
        (True, False, {}, False, True),
        (True, False, {}, True, False),  # there were tokens, and all were revoked
        (True, False, SOME, False, False),
        (True, True, {}, True, True),
        (True, True, SOME, True, False),
        (False, False, {}, False, False),
        (False, True, {}, False, True),
        (False, True, {}, True, True),
        (False, True, SOME, False, False),
    ],
)
def test_without_a_token_somebody_is_let_in_until_there_was_one_or_where_it_is_set_so(
    loopback: bool, allowed: bool, tokens: dict[str, str], closed: bool, is_let_in: bool
) -> None:
    service: Any = SimpleNamespace(
        ready=True,
        tokens=TokenBook(tokens, closed=closed),
        settings=Settings(server=ServerSection(allow_anonymous=allowed)),
    )
    gate = Gate(_app, service, loopback=loopback)
    if is_let_in:
        assert gate._identify({b"host": b"localhost"}) is ANYBODY
    else:
        with pytest.raises(Refused, match=r"roost\.unauthorised"):
            gate._identify({b"host": b"localhost"})
