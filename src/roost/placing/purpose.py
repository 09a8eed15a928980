"""What a request is for, if nobody says so."""

from __future__ import annotations

from roost.model.thresholds import Purpose
from roost.placing.books import Tenant

NEW, SCALE_OUT = Purpose.NEW, Purpose.SCALE_OUT  # Python 3.11 takes long to find a member of an enumeration


def purpose_of(tenant: Tenant, given: Purpose | None) -> Purpose:
    """What a request of a tenant is for, as it is said or as one can tell."""
    if given is not None:
        return given
    return SCALE_OUT if tenant.vms else NEW
