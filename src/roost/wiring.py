"""Puts the parts together: the only file that knows every one of them."""

from __future__ import annotations

import gc
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec

from roost.agent.agent import Agent, AgentSettings, Loaded
from roost.agent.courier import Courier, DiskCourier, InlineCourier, ThreadCourier
from roost.agent.operation import SetEntry
from roost.engine.recheck import Recheck
from roost.engine.ruleset import PolicySplit
from roost.model.errors import InvalidInput, NoZone, RoostError
from roost.model.inventory import catalogue_of, machine_specs
from roost.model.request import VM
from roost.model.zone import Zone
from roost.rules.policy import Policy, file_of
from roost.settings import POSTGRES
from roost.store.contract import AddMachines, Record, Register, Rejected, Store
from roost.store.ledger import STARTING, MachineRow
from roost.store.memory import MemoryStore
from roost.store.sqlite import SqliteStore

SYNTHETIC = "synthetic:"
CHUNK = 5_000  # machines added at once


def find_policy(name_or_file: str) -> Policy:
    """A shipped policy by name, or the one in a .yaml file."""
    return Policy.load(file_of(name_or_file))


def find_zone(file_or_size: str, seed: int = 1) -> Zone:
    """The zone in a file, or a made-up one: synthetic:20000."""
    if not file_or_size.startswith(SYNTHETIC):
        return Zone.load(file_or_size)
    size = file_or_size.removeprefix(SYNTHETIC).replace("_", "")
    if not (size.isascii() and size.isdigit()):
        raise InvalidInput("zone", f"{file_or_size!r} has no size", "write synthetic:20000")
    return Zone.synthetic(int(size), seed)


def ensure_store(url: str, zone: str) -> None:
    """Make a store with a zone, unless there is one."""
    if not url.startswith(POSTGRES) and Path(url).exists():
        return
    try:
        open_store(url).close()
    except NoZone:
        open_store(url, create=find_zone(zone)).close()


def open_store(url: str, *, read_only: bool = False, create: Zone | None = None) -> Store:
    """The store at an address: `postgresql://…`, `memory:`, or the path of an SQLite file. `create`: a new one."""
    catalogue = catalogue_of(create) if create is not None else None
    store: Store
    if url.startswith(POSTGRES):
        try:
            from roost.store.postgres import PostgresStore
        except ImportError:
            raise InvalidInput("store", "PostgreSQL needs psycopg", "pip install 'roost[postgres]'") from None
        store = PostgresStore(url, create=catalogue)
    elif url == "memory:":
        if catalogue is None:
            raise InvalidInput("store", "a store in memory begins empty", "give it a zone")
        store = MemoryStore(catalogue)
    elif "://" in url:
        raise InvalidInput("store", f"is {url!r}", "use postgresql://…, or the path of a file")
    else:
        store = SqliteStore(Path(url), create=catalogue, read_only=read_only)
    if create is not None:
        try:
            _stock(store, create)
        except BaseException:
            store.close()
            raise
    return store


def _stock(store: Store, zone: Zone) -> None:
    """Add all machines of a zone to a store that has none."""
    recheck = Recheck(zone, Policy.default().rules)
    for proposal in _additions(zone):
        (outcome,) = store.commit([proposal], recheck)
        if isinstance(outcome, Rejected):
            raise outcome.error


def _additions(zone: Zone) -> Iterator[AddMachines]:
    specs = machine_specs(zone)
    columns = {name: zone.machines[name].tolist() for name in STARTING}
    for start in range(0, len(specs), CHUNK):
        conditions = {}
        for m in range(start, min(start + CHUNK, len(specs))):
            if odd := {name: column[m] for name, column in columns.items() if column[m] != STARTING[name]}:
                conditions[specs[m].name] = odd
        chunk = tuple(specs[start : start + CHUNK])
        key = f"zone {zone.name} machines {start}"
        yield AddMachines(key=key, request=b"{}", record=Record(), machines=chunk, conditions=conditions)


def register(store: Store, kind: str, name: str, value: str | None, by: str) -> None:
    """Set an entry of a store's registry, or remove it, without an agent: before there is a service, or beside it."""
    request = msgspec.json.encode(SetEntry(kind, name, value))
    record = Record(at=time.time(), by=by)
    proposal = Register(key=uuid.uuid4().hex, request=request, record=record, kind=kind, name=name, value=value)
    (outcome,) = store.commit([proposal], _NoMachines())
    if isinstance(outcome, Rejected):
        raise outcome.error


class _NoMachines:
    """What a commit is re-checked by that touches no machine."""

    def bench(self, rows: Sequence[MachineRow]) -> _NoMachines:
        assert not rows
        return self

    def place(self, machine: str, vm: VM, tenant: str) -> str | None:
        raise NotImplementedError

    def replace(self, machine: str, vm: VM, tenant: str) -> str | None:
        raise NotImplementedError

    def remove(self, machine: str, vm: VM, tenant: str) -> None:
        raise NotImplementedError

    def keep(self, machines: Iterable[str]) -> Any:
        raise NotImplementedError

    def put_back(self, kept: Any) -> None:
        raise NotImplementedError

    def set_condition(self, machine: str, field: str, value: int) -> None:
        raise NotImplementedError

    def standing(self) -> _NoMachines:
        return self

    def written(self, rows: Iterable[MachineRow]) -> None:
        """Nothing was."""


def settle_memory() -> None:
    """For a process that has loaded its zone and goes on for long: what it holds is not looked through for garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 5, 2_000)  # often and short: a request must not wait for a long one


def recorded_policy(recorded: str, given: Policy | None = None) -> Policy:
    """The policy that decided something, by the name and digest recorded then; `given` if it is not shipped."""
    name, _, digest = recorded.rpartition(" ")
    policy = given or Policy.named(name)
    if policy.digest != digest:
        raise InvalidInput(
            "policy",
            f"it was decided by {name} {digest}, this is {policy.name} {policy.digest}",
            "give the file as it was",
        )
    return policy


def open_agent(
    store: Store,
    policy: Policy | PolicySplit | None = None,
    name: str = "",
    *,
    seed: int = 0,
    settings: AgentSettings | None = None,
    threads: bool | None = None,
    patience: float = 30.0,
    notify: Callable[[], None] = lambda: None,
    background: Callable[[Callable[[], Loaded]], Future[Loaded]] | None = None,
) -> Agent:
    """An agent on a store. With `threads` it commits in a thread of its own, which pays where committing is waiting.

    That is so with PostgreSQL. SQLite computes in this very process, where two threads only get in each other's way:
    there another thread only waits for the disk. `patience`, `notify`: see ThreadCourier; `background`: see Agent.
    """
    courier: Courier
    if threads is None and isinstance(store, SqliteStore):
        courier = DiskCourier(store, notify)
    elif threads or (threads is None and not isinstance(store, MemoryStore)):
        courier = ThreadCourier(store, patience=patience, notify=notify)
    else:
        courier = InlineCourier(store)
    try:
        return Agent(
            store, courier, policy or Policy.default(), name, seed=seed, settings=settings, background=background
        )
    except RoostError:
        courier.close()
        raise
