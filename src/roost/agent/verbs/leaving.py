"""Which VMs go when some of a tenant are named: what is held for them goes with them."""

from __future__ import annotations

from collections.abc import Sequence

from roost.model.errors import InvalidInput, UnknownName
from roost.model.request import hold_of
from roost.placing.books import Tenant


def leaving(of: str, vms: Sequence[str], tenant: Tenant) -> Sequence[str]:
    """The names of the VMs to release, with what is held for them."""
    if not vms:
        return list(tenant.vms)
    named: set[str] = set()
    for i, name in enumerate(vms):
        if name not in tenant.vms:
            raise UnknownName(f"vms[{i}]", f"VM of tenant {of}", name, tenant.vms)
        if name in named:
            raise InvalidInput(f"vms[{i}]", f"{name} is named twice", "name each once")
        named.add(name)
    return [*vms, *_held_for(vms, tenant)]


def _held_for(vms: Sequence[str], tenant: Tenant) -> list[str]:
    """What is held for these VMs of a tenant, and not among them itself."""
    return [hold for name in vms if (hold := hold_of(name)) in tenant.vms and hold not in vms]
