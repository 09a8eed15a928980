"""Trying requests out on a copy of the zone, so that the real one and its caches never notice."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

from roost.engine.kernel.compiler import uncompilable
from roost.engine.ruleset import RuleSet
from roost.engine.selection import Engine
from roost.engine.shape import Shape, Shapes
from roost.engine.steps import Steps
from roost.engine.view import View
from roost.model.errors import RoostError
from roost.model.request import Request
from roost.model.thresholds import NONE, Purpose, of_row
from roost.placing.gang import Trial, placing_gang
from roost.placing.order import placing_order
from roost.placing.search import Search
from roost.placing.seating import Seating


def try_out(view: View, kernel: ModuleType, rules: RuleSet, shapes: Shapes) -> None:
    """Place and explain something by these rules on a copy of a view, so that what does not work shows now."""
    copy = view.at(view.revision)
    zone = view.zone
    smallest = min((t for t in zone.vm_types if t.demand), key=lambda t: min(t.demand.values()))
    engine, shape = Engine(copy, rules, kernel=kernel), shapes.sample(smallest.name)
    try:
        engine.judge(copy, shape, engine.desk)
        engine.assign(shape)
    except RoostError:
        raise
    except Exception as error:  # Numba raises all sorts of things for code that it cannot compile
        raise uncompilable(rules, zone, shape, error) from error


class Rehearsal:
    """A copy of an engine's view, now or as it was, that places as the engine would, starting with the same lots."""

    def __init__(self, engine: Engine, shapes: Shapes, copy: View | None = None, as_of: int | None = None) -> None:
        """`copy`: of the view as it was `as_of` a revision, for this alone; else it is copied as it is."""
        self.shapes = shapes
        view = copy or engine.view.at(engine.view.revision)
        self.engine = Engine(view, engine.rules, engine.seed, kernel=engine.kernel)
        self._lots = engine.rng.copy()
        self._as_of = engine.view.revision if as_of is None else as_of

    def trying_out(
        self, request: Request, tenant: int, beside: Seating, purpose: Purpose, search: Search | None = None
    ) -> Steps[Trial]:
        """What would come of a request, a step at a time; nothing stays placed. `search`: see `place_gang`."""
        shapes = tuple(self.shapes.of(vm, tenant, f"request.vms[{i}]", purpose) for i, vm in enumerate(request.vms))
        self.engine.rng[:] = self._lots
        order = placing_order(self.engine.view.zone, shapes, beside.sets)
        trial = yield from placing_gang(self.engine, shapes, tuple(order), beside, search=search)
        if trial.failed_vm is None:
            for machine, shape in trial.places:
                self.engine.view.remove(machine, shape)
        return trial

    def unchanged(self, machines: Sequence[int], view: View) -> list[int]:
        """Those of some machines that are in the view as they are in the copy of it."""
        return [m for m in machines if view.links["revision"][m] <= self._as_of]

    @contextmanager
    def lifted(self, clusters: Iterable[int]) -> Iterator[None]:
        """As if these clusters kept no empty machines."""
        view, before = self.engine.view, {c: of_row(self.engine.view.clusters[c]["thresholds"]) for c in clusters}
        for cluster in before:
            view.set_thresholds(cluster, NONE)
        try:
            yield
        finally:
            for cluster, kept in before.items():
                view.set_thresholds(cluster, kept)

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
