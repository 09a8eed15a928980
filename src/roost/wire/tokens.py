"""Tokens: who may do what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from roost.model.names import NAME_OR_NOTHING, TOKEN_NAME
from roost.model.stored import TokenScope
from roost.wire.basics import LONGEST_NAMESPACE, Asked, Wire


class NewToken(Asked, frozen=True):
    """A token to make."""

    name: Annotated[str, Meta(pattern=TOKEN_NAME, max_length=60)]
    scopes: Annotated[tuple[TokenScope, ...], Meta(min_length=1, max_length=4)]
    namespace: Annotated[str, Meta(pattern=NAME_OR_NOTHING, max_length=LONGEST_NAMESPACE)] = ""
    days: Annotated[float, Meta(ge=0.0, le=36_500, description="Until it expires; 0: never.")] = 0.0


class TokenView(Wire, frozen=True):
    """A token, without its secret."""

    name: str
    scopes: Sequence[str]
    namespace: str
    created: float
    expires: float  # 0: never
    created_by: str


class TokenMade(Wire, frozen=True):
    """A token with its secret, which is shown this once."""

    token: str
    name: str
    scopes: Sequence[str]
    namespace: str
    expires: float


class Tokens(Wire, frozen=True):
    """All tokens."""

    items: Sequence[TokenView]
