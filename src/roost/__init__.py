"""Roost: the allocator that a cloud zone runs on.

    from roost import Zone, Policy, Allocator, Request, VM

Names are loaded when first used, so that `import roost` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roost.client.async_client import AsyncClient
    from roost.client.client import Client
    from roost.engine.explain import Explanation, WhyNot
    from roost.model.availability import AvailabilitySet
    from roost.model.errors import InvalidInput, RoostError, UnknownName
    from roost.model.request import VM, Constraints, Placement, Request
    from roost.model.zone import Zone
    from roost.placing.allocator import Allocator
    from roost.placing.decision import Decision
    from roost.rules.policy import Policy

__version__ = "0.1.0"
__all__ = [
    "VM",
    "Allocator",
    "AsyncClient",
    "AvailabilitySet",
    "Client",
    "Constraints",
    "Decision",
    "Explanation",
    "InvalidInput",
    "Placement",
    "Policy",
    "Request",
    "RoostError",
    "UnknownName",
    "WhyNot",
    "Zone",
]

_HOMES = {
    "Allocator": "roost.placing.allocator",
    "Decision": "roost.placing.decision",
    "AsyncClient": "roost.client.async_client",
    "Client": "roost.client.client",
    "Explanation": "roost.engine.explain",
    "WhyNot": "roost.engine.explain",
    "AvailabilitySet": "roost.model.availability",
    "InvalidInput": "roost.model.errors",
    "RoostError": "roost.model.errors",
    "UnknownName": "roost.model.errors",
    "VM": "roost.model.request",
    "Constraints": "roost.model.request",
    "Placement": "roost.model.request",
    "Request": "roost.model.request",
    "Zone": "roost.model.zone",
    "Policy": "roost.rules.policy",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'roost' has no attribute {name!r}")
