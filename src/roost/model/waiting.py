"""VMs that had to give way and wait to be placed again, as the registry keeps them."""

from __future__ import annotations

import msgspec

from roost.model.request import VM, Constraints


class Waiting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A VM that waits for room, as the registry keeps it."""

    tenant: str
    spec: VM
    constraints: Constraints  # the tenant's
    since: float  # when it had to give way
    cause: str  # the key of what was placed instead
