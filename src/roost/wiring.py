"""Opens stores, policies and agents by their names: the only file that knows SQLite and PostgreSQL."""

from __future__ import annotations

import gc
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from roost.agent.agent import Agent, Loaded
from roost.agent.courier import Courier, DiskCourier, InlineCourier, ThreadCourier
from roost.agent.settings import AgentSettings
from roost.agent.verbs.entry import SetEntry
from roost.engine.ruleset import PolicySplit
from roost.model.errors import InvalidInput, NoZone, RoostError, Taken
from roost.model.inventory import catalogue_of, machine_specs
from roost.model.zone import Zone
from roost.rules.own import NONE, OwnRules
from roost.rules.policy import Policy, file_of
from roost.settings import POSTGRES, StoreSection, without_password
from roost.store.columns import ZoneColumns
from roost.store.contract import Commission, Record, Register, Store
from roost.store.ledger import STARTING
from roost.store.memory import MemoryStore
from roost.store.plainly import NoMachines, insist
from roost.store.sqlite import SqliteStore

SYNTHETIC = "synthetic:"
USUAL_ZONE = "synthetic:1000"  # of a new store, if nobody names one
CHUNK = 5_000  # machines added at once


def find_policy(name_or_file: str, own: OwnRules = NONE) -> Policy:
    """A shipped policy by name, or the one in a .yaml file, which may name rules of one's own."""
    return Policy.load(file_of(name_or_file), own)


def find_zone(file_or_size: str, seed: int = 1) -> Zone:
    """The zone in a file, or a made-up one: synthetic:20000."""
    if not file_or_size.startswith(SYNTHETIC):
        return Zone.load(file_or_size)
    size = file_or_size.removeprefix(SYNTHETIC).replace("_", "")
    if not (size.isascii() and size.isdigit()):
        raise InvalidInput("zone", f"{file_or_size!r} has no size", "write synthetic:20000")
    return Zone.synthetic(int(size), seed)


def ensure_store(url: str, zone: str = "", tell: Callable[[str], None] = lambda _: None) -> str:
    """Make a store with a zone, unless there is one; `tell` hears what takes long.

    A store of another zone is refused, and so is what an earlier version left half-made. Returns what else is to be
    said of a zone that is named for a store that there is already.
    """
    try:
        with closing(open_store(url)) as store:
            return _check_zone(store, url, zone)
    except NoZone:
        wanted = find_zone(zone or USUAL_ZONE)
        tell(f"making a store with {len(wanted.machines):,} machines")
        with suppress(Taken):  # somebody else was making it
            open_store(url, create=wanted).close()
    return ""


def open_store(url: str, *, read_only: bool = False, create: Zone | None = None) -> Store:
    """The store at an address: `postgresql://…`, `memory:`, or the path of an SQLite file.

    `create`: a new one, with all machines of a zone, or nothing at all.
    """
    catalogue = catalogue_of(create) if create is not None else None
    stock = _additions(create) if create is not None else ()
    if url.startswith(POSTGRES):
        try:
            from roost.store.postgres import PostgresStore
        except ImportError:
            raise InvalidInput("store", "PostgreSQL needs psycopg", "pip install 'roost[postgres]'") from None
        return PostgresStore(url, create=catalogue, stock=stock)
    if url == "memory:":
        if catalogue is None:
            raise InvalidInput("store", "a store in memory begins empty", "give it a zone")
        store = MemoryStore(catalogue)
        for proposal in stock:
            insist(store.commit([proposal], NoMachines()))
        return store
    if "://" in url:
        raise InvalidInput("store", f"is {url!r}", "use postgresql://…, or the path of a file")
    return SqliteStore(Path(url), create=catalogue, stock=stock, read_only=read_only)


def _check_zone(store: Store, url: str, zone: str) -> str:
    """Refuse a store that holds another zone than the one that is named, or only a part of it."""
    holds = f"{without_password(url)} holds zone {store.catalogue.name}"
    try:
        wanted = find_zone(zone or USUAL_ZONE)
    except InvalidInput as error:  # the file that it was made from is elsewhere by now: nobody can tell
        return f"{holds}; {zone} was not compared with it: {error}"
    _check_whole(store, wanted)
    if not zone:
        return ""
    if wanted.name != store.catalogue.name:
        remedy = "leave the zone out to serve the one that is there, or name another store"
        raise InvalidInput("store.zone", f"{zone} is zone {wanted.name}, but {holds}", remedy)
    if catalogue_of(wanted) != store.catalogue:
        return f"{holds}, which {zone} describes otherwise by now; what the store holds is served"
    return ""


def _check_whole(store: Store, wanted: Zone) -> None:
    """Refuse a store that has only the first machines of its zone, and nothing else was ever done to it.

    A version that added them in transactions of their own was ended halfway.
    """
    store.changes(0, 1, patient=True)  # which gives all that was committed its revision
    (chunks, _), name = store.head(), store.catalogue.name
    if chunks and store.decided(_stocking(name, (chunks - 1) * CHUNK)) is None:
        return  # something else has happened since
    if wanted.name == name and len(wanted.machines) > chunks * CHUNK:
        problem = f"it holds {chunks * CHUNK:,} of the {len(wanted.machines):,} machines of zone {name}"
        remedy = "making it was cut short and nothing has been placed: begin with an empty file or database"
        raise InvalidInput("store", problem, remedy)


def _stocking(zone: str, start: int) -> str:
    """The key under which machines of a zone, from the one at `start`, are added to a new store."""
    return f"zone {zone} machines {start}"


def _additions(zone: Zone) -> Iterator[Commission]:
    specs = machine_specs(zone)
    columns = {name: zone.machines[name].tolist() for name in STARTING}
    for start in range(0, len(specs), CHUNK):
        conditions = {}
        for m in range(start, min(start + CHUNK, len(specs))):
            if odd := {name: column[m] for name, column in columns.items() if column[m] != STARTING[name]}:
                conditions[specs[m].name] = odd
        chunk = tuple(specs[start : start + CHUNK])
        key = _stocking(zone.name, start)
        yield Commission(key=key, request=b"{}", record=Record(), machines=chunk, conditions=conditions)


def register(store: Store, kind: str, name: str, value: str | None, by: str) -> None:
    """Set an entry of a store's registry, or remove it, without an agent: before there is a service, or beside it."""
    request = msgspec.json.encode(SetEntry(kind, name, value))
    record = Record(at=time.time(), by=by)
    proposal = Register(key=uuid.uuid4().hex, request=request, record=record, kind=kind, name=name, value=value)
    insist(store.commit([proposal], NoMachines()))


def calm_collector() -> None:
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
    patience: float = StoreSection.patience_seconds,
    notify: Callable[[], None] = lambda: None,
    background: Callable[[Callable[[], Loaded]], Future[Loaded]] | None = None,
    prepare: Callable[[ZoneColumns], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], float] = time.time,
) -> Agent:
    """An agent on a store. With `threads` it commits in a thread of its own, which pays where committing is waiting.

    That is so with PostgreSQL. SQLite computes in this very process, where two threads only get in each other's way:
    there another thread only waits for the disk. `patience`, `notify`: see ThreadCourier; `background`, `prepare`: see
    Agent. `clock`: seconds that only go on; `now`: seconds since 1970. Duties beside it go by the same two.
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
            store, courier, policy or Policy.default(), name,
            seed=seed, settings=settings, background=background, prepare=prepare, clock=clock, now=now,
        )  # fmt: skip
    except RoostError:
        courier.close()
        raise
