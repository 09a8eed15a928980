"""All VMs of a request or none: the loop of Protean's Algorithm 1, without the commit."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from roost.engine.selection import Engine
from roost.engine.shape import Shape
from roost.model.request import Constraints
from roost.model.thresholds import Purpose


class Trial(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One attempt at a request: which machines its VMs found, in the order of placing."""

    order: tuple[int, ...]  # indexes of the request's VMs
    shapes: tuple[Shape, ...]  # by index in the request
    homes: tuple[int, ...]  # where the tenant's VMs were before
    machines: tuple[int, ...]  # shorter than `order` if a VM found none
    refused: tuple[int, ...] = ()  # units (see `TenantDesk.unit_of`) tried before and found too small
    hits: int = 0  # evaluations that were there already
    updated: int = 0  # machines looked at to bring caches up to date
    top: int = 1  # see `Engine.assign`

    @property
    def failed_vm(self) -> int | None:
        """Index in the request of the VM that found no machine."""
        return None if len(self.machines) == len(self.order) else self.order[len(self.machines)]

    @property
    def purpose(self) -> Purpose:
        """What the request is for."""
        return Purpose(self.shapes[0].traits["purpose"])


def place_gang(
    engine: Engine,
    shapes: tuple[Shape, ...],
    order: Sequence[int],
    constraints: Constraints,
    homes: tuple[int, ...],
    top: int = 1,
) -> Trial:
    """Place the VMs one by one, in order. If one finds no machine, nothing stays placed. `top`: see `Engine.assign`.

    VMs that must stay together may start in a place too small for all of them; then the other places are tried, too.
    The trial returned for a failure is the one that got furthest.
    """
    desk, order = engine.desk, tuple(order)
    desk.open(constraints, homes, len(order))
    try:
        trial = furthest = _attempt(engine, shapes, order, homes, (), top)
        free_to_start = bool(constraints.colocate) and not homes
        while trial.failed_vm is not None and trial.machines and free_to_start:
            unit = desk.unit_of(trial.machines[0])
            assert unit not in trial.refused, "no rule of the policy keeps VMs out of a refused unit"
            refused = (*trial.refused, unit)
            desk.restart(len(order), refused)
            trial = _attempt(engine, shapes, order, homes, refused, top)
            furthest = max(furthest, trial, key=lambda t: len(t.machines))
        return trial if trial.failed_vm is None else furthest
    finally:
        desk.close()


def _attempt(
    engine: Engine,
    shapes: tuple[Shape, ...],
    order: tuple[int, ...],
    homes: tuple[int, ...],
    refused: tuple[int, ...],
    top: int,
) -> Trial:
    before = engine.view.attempt()
    machines: list[int] = []
    hits = updated = 0
    whole = False
    try:
        for i in order:
            machine, looked, hit, _, _ = engine.assign(shapes[i], top)
            hits += hit
            updated += looked
            if machine < 0:
                break
            machines.append(machine)
        whole = len(machines) == len(order)
    finally:  # a rule's fault or an interrupt leaves no half tenant either
        if whole:
            engine.view.keep()
        else:
            engine.view.rewind(before)
    return Trial(order, shapes, homes, tuple(machines), refused, hits, updated, top)
