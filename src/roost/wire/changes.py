"""The feed of changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roost.model.request import Placement
from roost.wire.basics import Wire


class EvictionReason(Wire, frozen=True):
    """Why VMs had to give way."""

    priority: str  # the highest of what was placed instead
    grace: float  # seconds that they are left to finish
    tenant: str = ""  # whose that is; empty if that is none of your business


class ChangeView(Wire, frozen=True, omit_defaults=True):
    """One commit: its revision, who asked for it and when, and all that it changed."""

    revision: int
    key: str  # empty, like `by`, where others of whom you may not hear made your VMs give way
    by: str = ""
    at: float = 0.0
    tenant: str = ""
    placed: Sequence[Placement] = ()
    released: Sequence[Placement] = ()
    machines: Sequence[Mapping[str, Any]] = ()  # conditions: machine, field, before, after
    clusters: Sequence[Mapping[str, Any]] = ()  # quarantines: cluster, before, after
    added: Sequence[str] = ()
    removed: Sequence[str] = ()
    registered: Sequence[str] = ()  # "set KIND NAME" or "removed KIND NAME"
    eviction: EvictionReason | None = None  # what was released had to give way, and why


class Changes(Wire, frozen=True):
    """Changes after a revision; ask again from `revision`. `head` is the last that there is."""

    items: Sequence[ChangeView]
    revision: int
    head: int
