"""A zone of eight machines, small enough that everybody wants the same ones, and proposals about it in few words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from roost.engine.recheck import CompiledRecheck as EngineRecheck
from roost.model.change import PlacedVM
from roost.model.inventory import Catalogue, MachineSpec, zone_of
from roost.model.request import UNCONSTRAINED, VM, Constraints
from roost.model.zone import Generation, Resource, VMType
from roost.rules.policy import Policy
from roost.store.contract import (
    NO_PREMISE,
    NOTHING,
    Ask,
    Commission,
    Decline,
    Decommission,
    Move,
    Place,
    Premise,
    Proposal,
    Record,
    Register,
    Release,
    SetCondition,
    SetQuarantine,
    Store,
    Victim,
)
from roost.store.ledger import Ledger, MachineRow, replayed
from roost.store.recheck import CommitRows, Recheck, StandingRecheck

CATALOGUE = Catalogue(
    name="tiny",
    resources=(Resource("cores", "cores", 1), Resource("memory", "GiB", 1)),
    bands=("regular", "spot", "batch", "scrap"),
    generations=(Generation("old", (4, 8)), Generation("new", (6, 6), ("fast",))),
    vm_types=(
        VMType("small", "s", {"old": (1, 1), "new": (1, 1)}),
        VMType("big", "b", {"old": (3, 6), "new": (2, 3)}),
        VMType("whole", "w", {"old": (4, 8), "new": (6, 6)}),
        VMType("modern", "m", {"new": (3, 2)}),
    ),
    conflicts=(("loud", "shy"), ("single", "single")),
)
CAPACITY = {generation.name: generation.capacity for generation in CATALOGUE.generations}
SMALL, BIG, WHOLE = VM("small"), VM("big"), VM("whole")
PAIRS = Constraints(max_per_machine=2)
RULES = Policy.default().rules


def machine(name: str, cluster: str = "c1", generation: str = "old", **fields: object) -> MachineSpec:
    """A machine in a rack of its cluster: odd numbers in one, even ones in another."""
    number = int(name[1:])
    values: dict[str, object] = {
        "name": name,
        "datacenter": "dc1",
        "cluster": cluster,
        "rack": f"{cluster}-r{number % 2}",
        "generation": generation,
        "update_domain": number % 3,
        "features": ("fast",) if generation == "new" else (),
        "capacity": CAPACITY.get(generation, (4, 8)),
    }
    return MachineSpec(**(values | fields))  # type: ignore[arg-type]


# Cluster c1 is old: 4 cores and 8 GiB each; c2 is new: 6 and 6.
MACHINES = (*(machine(f"m{i}") for i in range(1, 5)), *(machine(f"m{i}", "c2", "new") for i in range(5, 9)))


def recheck_of(machines: Iterable[MachineSpec], catalogue: Catalogue = CATALOGUE) -> EngineRecheck:
    """The re-checked validators of the default policy, as an agent has them that knows these machines."""
    return EngineRecheck(zone_of(catalogue, machines), RULES)


# ---------------------------------------------------------------------------------------------------------- proposals


def asked(key: str) -> bytes:
    """What was asked for under a key."""
    return f'{{"asked":"{key}"}}'.encode()


def placed(where: Mapping[str, str], spec: VM = SMALL) -> tuple[PlacedVM, ...]:
    """VMs of one kind on machines."""
    return tuple(PlacedVM(vm, spec, on) for vm, on in where.items())


def place(
    key: str,
    tenant: str,
    where: Mapping[str, str] | tuple[PlacedVM, ...],
    spec: VM = SMALL,
    *,
    premise: Premise = NO_PREMISE,
    constraints: Constraints = UNCONSTRAINED,
    stamp: int = 0,
    victims: Sequence[Victim] = (),
    grace: float = 0.0,
    requeued: bool = False,
    leaving: Sequence[PlacedVM] = (),
    seen: Mapping[str, int] = NOTHING,
    record: Record | None = None,
    request: bytes | None = None,
) -> Place:
    """Put VMs of a tenant on machines."""
    return Place(
        key=key,
        request=asked(key) if request is None else request,
        record=record or Record(agent="a"),
        tenant=tenant,
        premise=premise,
        constraints=constraints,
        stamp=stamp,
        placed=where if isinstance(where, tuple) else placed(where, spec),
        victims=tuple(victims),
        grace=grace,
        requeued=requeued,
        leaving=tuple(leaving),
        seen=seen,
    )


def victim(tenant: str, vm: str, machine: str, spec: VM, stamp: int = 0) -> Victim:
    """A VM that is to give way."""
    return Victim(tenant, PlacedVM(vm, spec, machine), stamp)


def release(
    key: str,
    tenant: str,
    where: Mapping[str, str] | tuple[PlacedVM, ...],
    spec: VM = SMALL,
    *,
    premise: Premise = NO_PREMISE,
    stamp: int | None = None,
    waiting: Sequence[str] = (),
) -> Proposal:
    """Take VMs of a tenant off machines."""
    return Release(
        key=key,
        request=asked(key),
        record=Record(agent="a"),
        tenant=tenant,
        premise=premise,
        released=where if isinstance(where, tuple) else placed(where, spec),
        stamp=stamp,
        waiting=tuple(waiting),
    )


def move(
    key: str,
    tenant: str,
    vm: PlacedVM,
    machine: str,
    *,
    held: bool = False,
    hold: bool = False,
    premise: Premise = NO_PREMISE,
    constraints: Constraints = UNCONSTRAINED,
    stamp: int = 0,
    seen: Mapping[str, int] = NOTHING,
) -> Proposal:
    """Bring a VM to another machine, or hold room for it there."""
    return Move(
        key=key,
        request=asked(key),
        record=Record(agent="a"),
        tenant=tenant,
        premise=premise,
        constraints=constraints,
        stamp=stamp,
        vm=vm,
        machine=machine,
        held=held,
        hold=hold,
        seen=seen,
    )


def condition(key: str, name: str, version: int | None = None, **fields: int) -> Proposal:
    """Say how a machine is."""
    record = Record(agent="a")
    return SetCondition(key=key, request=asked(key), record=record, machine=name, condition=fields, version=version)


def quarantine(key: str, cluster: str, quarantined: bool = True) -> Proposal:
    """Close a cluster, or open it."""
    record = Record(agent="a")
    return SetQuarantine(key=key, request=asked(key), record=record, cluster=cluster, quarantined=quarantined)


def add(key: str, *machines: MachineSpec, conditions: Mapping[str, Mapping[str, int]] = {}) -> Proposal:
    """Add machines."""
    record = Record(agent="a")
    return Commission(key=key, request=asked(key), record=record, machines=machines, conditions=conditions)


def remove(key: str, *names: str) -> Proposal:
    """Remove machines."""
    return Decommission(key=key, request=asked(key), record=Record(agent="a"), machines=names)


ANYTHING = "whatever it is"  # what nobody registers


def register(
    key: str,
    name: str,
    value: str | None,
    *,
    kind: str = "quota",
    expected: str | None = ANYTHING,
    record: Record | None = None,
) -> Proposal:
    """Set an entry of the registry, or remove it; guarded, if something is expected."""
    guarded = expected != ANYTHING
    return Register(
        key=key,
        request=asked(key),
        record=record or Record(agent="a"),
        kind=kind,
        name=name,
        value=value,
        expected=expected if guarded else None,
        guarded=guarded,
    )


def decline(key: str, record: Record | None = None) -> Proposal:
    """Note that a request was refused."""
    return Decline(key=key, request=asked(key), record=record or Record(agent="a"))


def ask(key: str, request: bytes | None = None) -> Proposal:
    """Only ask what came of a key."""
    return Ask(key=key, request=asked(key) if request is None else request)


# One that can be done once tenant t has a small VM, a, on m1.
EVERY_KIND: dict[str, Proposal] = {
    "place": place("k", "t", {"b": "m2"}),
    "release": release("k", "t", {"a": "m1"}),
    "move": move("k", "t", PlacedVM("a", SMALL, "m1"), "m2"),
    "hold": move("k", "t", PlacedVM("a", SMALL, "m1"), "m2", hold=True),
    "condition": condition("k", "m1", health=50),
    "quarantine": quarantine("k", "c1"),
    "add": add("k", machine("m9")),
    "remove": remove("k", "m3"),
    "register": register("k", "t", "5"),
}


def history(store: Store, recheck: Recheck) -> None:
    """Something of everything, in ten transactions."""
    whole, loud = VM("small", isolated=True), VM("small", priority="spot", colocation="loud")
    machines = (machine("m9", "c3", "new"), machine("m10", "c3", "new"))
    ends = {"e": "m5", "f": "m6"}
    for group in (
        [add("h1", *machines, conditions={"m9": {"health": 70, "state": 1}})],
        [place("h2", "t1", {"a": "m1", "b": "m2"}), place("h3", "t2", {"c": "m3", "d": "m3"}, whole)],
        [place("h4", "t3", ends, loud, constraints=PAIRS), condition("h5", "m4", state=1, health=40)],
        [quarantine("h6", "c3"), quarantine("h7", "c1"), condition("h8", "m9", failures=3)],
        [release("h9", "t1", {"a": "m1"}), place("h10", "t1", {"g": "m1"}, BIG)],
        [remove("h11", "m9", "m10"), register("h20", "t1", "5"), register("h21", "t2", "6", kind="note")],
        [release("h12", "t2", {"c": "m3", "d": "m3"}, whole), release("h13", "t3", {"e": "m5"}, loud)],
        [add("h14", machine("m9", "c3", "old")), quarantine("h15", "c1", False), decline("h16")],
        [remove("h17", "m4"), place("h18", "t2", {"c": "m8"}, WHOLE)],
        [
            condition("h19", "m9", versions_behind=2),
            register("h22", "t1", "7"),
            register("h23", "t2", None, kind="note"),
        ],
    ):
        assert set(names(store.commit(group, recheck))) == {"committed"}


# ---------------------------------------------------------------------------------------------------- looking at stores


def same(left: Ledger, right: Ledger) -> None:
    """Two ledgers say the same of the same revision."""
    assert left.revision == right.revision
    assert list(left.differences(right)) == []


def followed(store: Store, ledger: Ledger, limit: int = 1_000) -> Ledger:
    """The ledger, brought as far as the feed goes."""
    while rows := store.changes(ledger.revision, limit).rows:
        for row in rows:
            assert row.first <= ledger.revision + 1 <= row.last
            for entry in row.entries[ledger.revision + 1 - row.first :]:
                ledger.apply(entry)
    return ledger


def head(store: Store) -> Ledger:
    """Everything that was committed: what PostgreSQL has not numbered yet is numbered first."""
    store.changes(2**40)
    return store.load()


@contextmanager
def unchanged(store: Store) -> Iterator[None]:
    """Whatever is done inside, nothing has changed afterwards."""
    before, decided = head(store), store.decisions()
    yield
    same(before, head(store))
    assert store.decisions() == decided


def is_sound(store: Store) -> None:
    """Tables agree with themselves and, unless it was trimmed, with the feed."""
    early = store.load()
    assert list(early.check_invariants()) == []
    feed = store.changes(0, 10_000)
    late = store.load()
    assert list(late.check_invariants()) == []
    if not feed.reload:
        assert [number for number, _ in feed.after(0)] == list(range(1, late.revision + 1))
        same(replayed(store.catalogue, (entry for _, entry in feed.after(0))), late)
    if not store.changes(early.revision).reload:
        same(followed(store, early), late)


# ------------------------------------------------------------------------------------------------------------ rechecks


class AgreeableRows:
    """Lets everything pass."""

    def place(self, machine: str, vm: VM, tenant: str) -> str | None:
        """Of course."""
        return None

    def replace(self, machine: str, vm: VM, tenant: str) -> str | None:
        """Of course."""
        return None

    def remove(self, machine: str, vm: VM, tenant: str) -> None:
        """Of course."""

    def keep(self, machines: Iterable[str]) -> Any:
        """As it is."""
        return None

    def put_back(self, kept: Any) -> None:
        """Of course."""

    def set_condition(self, machine: str, field: str, value: int) -> None:
        """Of course."""

    def has_rule(self, rule: str, tenant: str) -> bool:
        """None at all."""
        return False


class Agreeable:
    """A re-check with a bug: it lets everything pass."""

    def on(self, rows: Sequence[MachineRow]) -> CommitRows:
        """One that lets everything pass."""
        return AgreeableRows()

    def standing(self) -> StandingRecheck:
        """Remembers nothing."""
        return self

    def written(self, rows: Iterable[MachineRow]) -> None:
        """Remembers nothing."""


class Stumbling(Agreeable):
    """A re-check that breaks down after a few placements."""

    def __init__(self, after: int) -> None:
        self.left = after

    def on(self, rows: Sequence[MachineRow]) -> CommitRows:
        """One that breaks down."""
        stumbling = self

        class Stumbles(AgreeableRows):
            def place(self, machine: str, vm: VM, tenant: str) -> str | None:
                stumbling.left -= 1
                if stumbling.left < 0:
                    raise RuntimeError("stumbled")
                return None

        return Stumbles()


class Meanwhile:
    """A re-check during which something else happens: after rows were read, before anything is written."""

    def __init__(self, recheck: Recheck, happens: Callable[[], None]) -> None:
        self.recheck, self.happens, self.times = recheck, happens, 0

    def on(self, rows: Sequence[MachineRow]) -> CommitRows:
        """The usual one, after what happens the first time."""
        self.times += 1
        if self.times == 1:
            self.happens()
        return self.recheck.on(rows)

    def standing(self) -> StandingRecheck:
        """Remembers nothing."""
        return self

    def written(self, rows: Iterable[MachineRow]) -> None:
        """Remembers nothing."""


def names(outcomes: Iterable[object]) -> list[str]:
    """What came of proposals, in a word each; of conflicts, the reason."""
    return [getattr(outcome, "reason", type(outcome).__name__.lower()) for outcome in outcomes]
