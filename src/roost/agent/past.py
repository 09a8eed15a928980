"""A past decision, rebuilt from the store exactly as it was made: what the agent saw, and why it chose as it did."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from roost.agent.replica import Replica
from roost.agent.verbs.table import read_operation, verb_of
from roost.engine.recheck import rows_of
from roost.engine.ruleset import RulePolicy
from roost.model.change import PlacedVM
from roost.model.errors import InvalidInput
from roost.model.request import Placement, heeding
from roost.model.thresholds import Purpose
from roost.placing.books import RunningVM
from roost.placing.decision import Decision
from roost.placing.gang import Trial, closed_units
from roost.placing.seating import seating
from roost.store.columns import ZoneColumns
from roost.store.contract import Decided, Round, Store, Victim
from roost.store.history import ledger_at


def recall(store: Store, key: str, policy_of: Callable[[str], RulePolicy]) -> Decision:
    """The decision on a key, to be explained. `policy_of` finds a policy by the name and digest that are recorded."""
    decided = store.decided(key)
    if decided is None:
        raise InvalidInput("key", f"{key!r} was never decided, or is forgotten", "use the key of a recent request")
    operation = read_operation(decided.request)
    if (wanted_by := verb_of(operation).wanted) is None:
        raise InvalidInput("key", f"{key!r} placed nothing", "only placements are explained")
    record = decided.record
    seen = _round(store, record.agent, record.round)
    replica = Replica(ZoneColumns.of(ledger_at(store, seen.revision)), policy_of(record.policy), seen.seed)
    _see_what_it_saw(store, replica, seen, record.position)
    allocator = replica.allocator
    allocator.engine.rng[0] = record.lots
    index = allocator.zone.machine_index
    wanted = wanted_by(allocator, operation)
    request = heeding(wanted.request, record.constraints)
    tenant = allocator.tenants.get(request.tenant)
    if tenant is not None:
        tenant.constraints = record.constraints
    order = record.order or tuple(range(len(request.vms)))
    names = [decided.placed[i].machine for i in order] if decided.placed else record.found
    shapes = allocator.shapes_of(request, allocator.arms[0], Purpose[record.purpose.upper()])
    beside = seating(record.constraints, request.vms, tenant.vms.values() if tenant else (), wanted.leaving)
    trial = Trial(
        order=order,
        shapes=shapes,
        seating=beside,
        machines=tuple(index[name] for name in names),
        failed_vm=order[len(names)] if len(names) < len(order) else None,
        refused=closed_units(allocator.engine, shapes, order, beside, record.refused),
        tried=record.refused,
        rungs=record.rungs,
        hits=record.hits,
        updated=record.updated,
        aside=wanted.aside,
        sought=record.sought,
    )
    victims = tuple(allocator.vms[victim.vm.vm] for victim in record.victims)
    return allocator.recall(request, trial, _placements(decided), victims)


def _placements(decided: Decided) -> tuple[Placement, ...]:
    return tuple(Placement(each.vm, each.spec.type, each.machine) for each in decided.placed)


def _round(store: Store, agent: str, number: int) -> Round:
    if (found := store.round(agent, number)) is None:
        raise InvalidInput("key", f"what {agent} saw in round {number} is forgotten", "keep more revisions")
    return found


def _see_what_it_saw(store: Store, replica: Replica, seen: Round, position: int) -> None:
    """Put on a copy what the agent knew besides the feed when it decided.

    That is: what it had placed itself and the feed had not brought, machines as a lost race had shown them, and the
    requests of the same round before this one.
    """
    earlier: dict[int, Round] = {}
    for number, place in seen.ahead:
        if number not in earlier:
            earlier[number] = _round(store, seen.agent, number)
        tenant, placed = earlier[number].placed[place]
        _place(replica, tenant, placed)
        _give_way(replica, earlier[number].victims.get(place, ()))
    allocator = replica.allocator
    for row in seen.adopted:
        machine = allocator.zone.machine_index[row.spec.name]
        replica.view.adopt(machine, rows_of(allocator.zone, [row], allocator.numbers))
    for i, (tenant, placed) in enumerate(seen.placed[:position]):
        _place(replica, tenant, placed)
        _give_way(replica, seen.victims.get(i, ()))


def _place(replica: Replica, tenant: str, placed: Iterable[PlacedVM]) -> None:
    allocator = replica.allocator
    for each in placed:
        machine, shape = allocator.zone.machine_index[each.machine], allocator.running_shape(each.spec, tenant)
        replica.view.place(machine, shape)
        allocator.enter(RunningVM(each, tenant, machine, shape))


def _give_way(replica: Replica, victims: Iterable[Victim]) -> None:
    """Off their machines' rows, and in the books still, as the agent had them; unless the feed had taken them away."""
    allocator = replica.allocator
    for victim in victims:
        running = allocator.vms.get(victim.vm.vm)
        if running and running.machine == allocator.zone.machine_index[victim.vm.machine]:
            replica.view.remove(running.machine, running.shape)
            replica.leaving[running.name] = running
