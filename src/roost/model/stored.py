"""What the registry keeps for those around the store: tokens, policies in force, maintenance walks."""

from __future__ import annotations

from typing import Literal

import msgspec

TokenScope = Literal["read", "allocate", "operate", "admin"]


class StoredToken(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept of a token: not the secret itself."""

    digest: str
    scopes: tuple[TokenScope, ...]
    namespace: str = ""
    created: float = 0.0
    expires: float = 0.0  # 0: never
    created_by: str = ""

    def valid(self, now: float) -> bool:
        """Whether it has not expired."""
        return not self.expires or now < self.expires


class Activated(msgspec.Struct, frozen=True, kw_only=True):
    """The policy in force, with its digest; and the one it is compared with."""

    policy: str
    digest: str
    against: str = ""
    against_digest: str = ""
    share: float = 0.0
    since: float = 0.0
    problem: str = ""  # why the worker that answers does not decide by what was activated


class Shadowed(msgspec.Struct, frozen=True, kw_only=True):
    """The policy that decides beside the one in force; the name is empty if there is none."""

    policy: str = ""
    digest: str = ""
    share: float = 0.0
    since: float = 0.0


class StoredWalk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept of a maintenance walk."""

    walk: str  # its own name for itself
    owner: str
    by: str  # the token
    since: float  # seconds since 1970; only to be shown
    seconds: float  # it is held again more often than this
    beat: int = 0  # how often it was
    domain: int | None = None
