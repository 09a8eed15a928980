"""Who may do what: bearer tokens, kept hashed in the zone's registry.

A token is `roost_NAME_SECRET`. Only the SHA-256 of the secret is stored: a secret of 256 random bits cannot be guessed,
so nothing slower is needed. `allocate` and `operate` imply `read`; `admin` implies everything.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from roost.model.errors import InvalidInput, Taken
from roost.model.registry import ACCESS
from roost.model.spans import DAY
from roost.model.stored import StoredToken, TokenScope
from roost.model.tokens import PREFIX
from roost.wire.tokens import NewToken, TokenMade, TokenView

CLOSED = (ACCESS, "anonymous")  # there, from the first time a token is revoked: that there are none opens nothing
LAST_ADMIN = "is the last token with scope admin: nobody could make others; make one first, or revoke it with force"
MOST = 10_000  # tokens of a zone
IMPLIED: dict[TokenScope, frozenset[TokenScope]] = {
    "read": frozenset({"read"}),
    "allocate": frozenset({"read", "allocate"}),
    "operate": frozenset({"read", "operate"}),
    "admin": frozenset({"read", "allocate", "operate", "admin"}),
}


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who asks."""

    name: str
    scopes: frozenset[TokenScope]
    namespace: str = ""  # bound to tenants of this one; empty: to none
    digest: str = ""  # of the secret that was shown

    def owns(self, tenant: str) -> bool:
        """Whether a tenant is within the namespace."""
        return not self.namespace or tenant == self.namespace or tenant.startswith(f"{self.namespace}.")

    def key(self, given: str) -> str:
        """The store's key for a key that this one chose: namespaces cannot see each other's."""
        return f"{self.namespace}:{given}" if self.namespace and given else given


ANYBODY = Principal("anonymous", IMPLIED["admin"])
_decode = msgspec.json.Decoder(StoredToken).decode


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class TokenBook:
    """The tokens of a zone, as its registry has them."""

    def __init__(self, registry: Mapping[str, str], *, closed: bool = False) -> None:
        """`closed`: there were tokens, so that without any nobody is let in."""
        self.tokens, self.closed = {name: _decode(value) for name, value in registry.items()}, closed

    def make(self, wanted: NewToken, now: float, by: str) -> tuple[TokenMade, str]:
        """A new token to hand out, and what the registry keeps of it; refuses what makes no sense."""
        if wanted.name in self.tokens:
            raise Taken("name", f"there is a token {wanted.name}", "revoke it first, or choose another name")
        if len(self.tokens) >= MOST:
            raise InvalidInput("name", f"a zone keeps {MOST:,} tokens", "revoke some first")
        if not self.tokens and "admin" not in wanted.scopes:
            raise InvalidInput("scopes", "the first token must have scope admin", "nobody else could make more")
        if wanted.namespace and {"operate", "admin"} & set(wanted.scopes):
            raise InvalidInput("namespace", "goes with read and allocate only", "leave it out, or the other scopes")
        secret = secrets.token_urlsafe(32)
        expires = now + wanted.days * DAY if wanted.days else 0.0
        kept = StoredToken(
            digest=_digest(secret),
            scopes=wanted.scopes,
            namespace=wanted.namespace,
            created=now,
            expires=expires,
            created_by=by,
        )
        made = TokenMade(
            token=f"{PREFIX}_{wanted.name}_{secret}",
            name=wanted.name,
            scopes=wanted.scopes,
            namespace=wanted.namespace,
            expires=expires,
        )
        return made, msgspec.json.encode(kept).decode()

    def views(self) -> list[TokenView]:
        """All of them, without secrets."""
        return [
            TokenView(
                name=name,
                scopes=token.scopes,
                namespace=token.namespace,
                created=token.created,
                expires=token.expires,
                created_by=token.created_by,
            )
            for name, token in sorted(self.tokens.items())
        ]

    def __bool__(self) -> bool:
        return bool(self.tokens)

    @property
    def never_any(self) -> bool:
        """Whether nobody has made a token yet."""
        return not self.tokens and not self.closed

    def is_last_admin(self, name: str, now: float) -> bool:
        """Whether nobody could make tokens without this one."""
        admins = {each for each, token in self.tokens.items() if "admin" in token.scopes and token.valid(now)}
        return admins == {name}

    def admits(self, principal: Principal, now: float) -> bool:
        """Whether somebody who was let in earlier still would be."""
        if principal is ANYBODY:
            return not self.tokens
        known = self.tokens.get(principal.name)
        return known is not None and known.digest == principal.digest and known.valid(now)

    def principal(self, token: str, now: float) -> Principal | None:
        """Whose token this is; nobody's if it is unknown or expired."""
        start, name, secret = [*token.split("_", 2), "", ""][:3]  # a name has no underscore, a secret may
        known = self.tokens.get(name)
        if start != PREFIX or known is None or not hmac.compare_digest(known.digest, _digest(secret)):
            return None
        if not known.valid(now):
            return None
        scopes = frozenset(scope for each in known.scopes for scope in IMPLIED[each])
        return Principal(name, scopes, known.namespace, known.digest)
