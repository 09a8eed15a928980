"""A shorter way for the requests that come by the thousand: the same functions, without the framework around them.

It takes only what it understands at once; anything else, whatever is wrong with it included, goes the ordinary way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from roost.api.gate import Asking, Express, Send
from roost.api.routes import tenants
from roost.json_mistakes import check_keys
from roost.model.errors import InvalidInput
from roost.wire.basics import LONGEST_KEY
from roost.wire.tenants import Batch, BatchResults, Placed, TenantWish

T = TypeVar("T")
IDEMPOTENCY_KEY = b"idempotency-key"

_encode = msgspec.json.Encoder().encode


def _batch(asking: Asking, wish: Batch, key: str | None) -> Awaitable[BatchResults]:
    del key  # each request has its own
    return tenants.do_batch(asking, wish)


def _express(
    route: Any, kind: type[T], do: Callable[[Asking, T, str | None], Awaitable[Placed | BatchResults]], status: int
) -> Express:
    (template,), wanted = route.paths, route.opt["scope"]
    decode = msgspec.json.Decoder(kind).decode

    async def answer(scope: Any, headers: Mapping[bytes, bytes], body: bytes, send: Send) -> bool:
        """Whether it was answered."""
        asking: Asking = scope["roost"]
        key = headers.get(IDEMPOTENCY_KEY)
        if wanted not in asking.principal.scopes or (key and (len(key) > LONGEST_KEY or not key.isalnum())):
            return False
        try:
            wish = decode(body)
            check_keys(body, wish)
        except (msgspec.MsgspecError, InvalidInput):
            return False
        scope["path_template"] = template
        found = await do(asking, wish, key.decode() if key else None)
        written = _encode(found)
        answered = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(written))]
        if isinstance(found, Placed):
            answered.append((b"etag", b'"%d"' % found.generation))
        await send({"type": "http.response.start", "status": status, "headers": answered})
        await send({"type": "http.response.body", "body": written})
        return True

    return answer


EXPRESS: dict[tuple[str, str], Express] = {
    ("POST", "/v1/tenants"): _express(tenants.create_tenant, TenantWish, tenants.create, 201),
    ("POST", "/v1/batch"): _express(tenants.batch, Batch, _batch, 200),
}
