"""What a request is for, if nobody says so."""

from __future__ import annotations

from roost.model.thresholds import Purpose
from roost.placing.books import Tenant


def purpose_of(tenant: Tenant, given: Purpose | None) -> Purpose:
    """What a request of a tenant is for, as it is said or as one can tell."""
    if given is not None:
        return given
    return Purpose.SCALE_OUT if tenant.vms else Purpose.NEW
