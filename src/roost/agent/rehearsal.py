"""Trying requests out on a copy of the zone, so that the real one and its caches never notice."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from roost.agent.gang import Trial, place_gang, take_back
from roost.agent.order import placing_order
from roost.engine.selection import Engine
from roost.engine.shape import Shape, Shapes
from roost.model.request import Constraints, Request


class Rehearsal:
    """A copy of an engine's view that places as the engine would, starting with the same lots."""

    def __init__(self, engine: Engine, shapes: Shapes) -> None:
        self.shapes = shapes
        self.engine = Engine(engine.view.at(engine.view.revision), engine.rules, engine.seed)
        self._lots = engine.rng.copy()

    def try_out(self, request: Request, tenant: int, constraints: Constraints, homes: tuple[int, ...]) -> Trial:
        """What would come of a request; nothing stays placed."""
        shapes = tuple(self.shapes.of(vm, tenant, f"request.vms[{i}]") for i, vm in enumerate(request.vms))
        self.engine.rng[:] = self._lots
        order = placing_order(self.engine.view.zone, shapes)
        trial = place_gang(self.engine, shapes, order, constraints, homes)
        if trial.failed_vm is None:
            take_back(self.engine.view, trial)
        return trial

    @contextmanager
    def without(self, vms: Iterable[tuple[int, Shape]]) -> Iterator[None]:
        """As if these VMs (machine, shape) were not there."""
        vms = list(vms)
        for machine, shape in vms:
            self.engine.view.remove(machine, shape)
        try:
            yield
        finally:
            for machine, shape in vms:
                self.engine.view.place(machine, shape)
