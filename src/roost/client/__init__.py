"""Clients of the HTTP API, for people who write Python; the command line uses them, too.

    from roost.client import Client, VMWish

    with Client("http://127.0.0.1:7117", token) as client:
        client.create_tenant("web", [VMWish(type="D2", count=2)])

May call the model, the settings and the forms on the wire, nothing else. Names are loaded when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roost.client.async_client import AsyncClient
    from roost.client.call import Call
    from roost.client.client import Client
    from roost.client.errors import ServiceProblem, ServiceUnreachable
    from roost.model.availability import AvailabilitySet
    from roost.model.request import Constraints
    from roost.wire.healing import HealingWish
    from roost.wire.machines import MachineChange, NewMachine
    from roost.wire.problems import Problem
    from roost.wire.tenants import BatchItem, VMWish
    from roost.wire.thresholds import ThresholdTargets, ThresholdWish

__all__ = [
    "AsyncClient",
    "AvailabilitySet",
    "BatchItem",
    "Call",
    "Client",
    "Constraints",
    "HealingWish",
    "MachineChange",
    "NewMachine",
    "Problem",
    "ServiceProblem",
    "ServiceUnreachable",
    "ThresholdTargets",
    "ThresholdWish",
    "VMWish",
]

_HOMES = {
    "AsyncClient": "roost.client.async_client",
    "AvailabilitySet": "roost.model.availability",
    "BatchItem": "roost.wire.tenants",
    "Call": "roost.client.call",
    "Client": "roost.client.client",
    "Constraints": "roost.model.request",
    "HealingWish": "roost.wire.healing",
    "MachineChange": "roost.wire.machines",
    "NewMachine": "roost.wire.machines",
    "Problem": "roost.wire.problems",
    "ServiceProblem": "roost.client.errors",
    "ServiceUnreachable": "roost.client.errors",
    "ThresholdTargets": "roost.wire.thresholds",
    "ThresholdWish": "roost.wire.thresholds",
    "VMWish": "roost.wire.tenants",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'roost.client' has no attribute {name!r}")
