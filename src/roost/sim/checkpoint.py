"""A run at a quiet moment, as bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from roost.agent.agent import AgentMemory
from roost.duties.foresight import ForecastMemory
from roost.model.change import PlacedVM
from roost.model.errors import InvalidInput
from roost.model.inventory import Catalogue
from roost.model.request import VM
from roost.store.ledger import ClusterRow, Ledger, MachineRow, TenantRow, VMRow


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """All that the rest of a run depends on, but for what the store holds."""

    fingerprint: str  # of the experiment, the workload and the zone
    now: float
    next: int  # arrival
    number: int
    operations: int
    turn: int
    policy: str
    random: dict[str, str]
    state: list[int]  # of each machine
    broken: list[int]  # outages that each machine is in
    events: list[tuple[float, int, int, Any]]  # those who leave by their place among the guests
    guests: list[tuple[str, str, int, float | None, bool]]  # see Guest
    agents: list[AgentMemory]
    tracker: dict[str, Any]
    forecast: ForecastMemory | None
    due: dict[str, float]  # when each duty that has a period has its next turn
    run_s: float


class _Holdings(msgspec.Struct, frozen=True):
    """A ledger, with each kind of VM once."""

    revision: int
    machines: list[MachineRow]
    tenants: dict[str, TenantRow]
    clusters: dict[str, ClusterRow]
    registry: list[tuple[str, str, str]]
    kinds: list[VM]
    vms: dict[str, tuple[str, str, int, float]]  # tenant, machine, kind, since when


class _CheckpointFile(msgspec.Struct, frozen=True):
    checkpoint: Checkpoint
    holdings: _Holdings


def packed(checkpoint: Checkpoint, ledger: Ledger) -> bytes:
    """A checkpoint and what the store holds."""
    numbers: dict[bytes, int] = {}
    by_object: dict[int, int] = {}  # most VMs of a kind are one object
    kinds: list[VM] = []
    vms = {}
    for name, row in ledger.vms.items():
        spec = row.spec
        number = by_object.get(id(spec))
        if number is None:
            number = numbers.setdefault(msgspec.msgpack.encode(spec), len(kinds))
            if number == len(kinds):
                kinds.append(spec)
            by_object[id(spec)] = number
        vms[name] = row.tenant, row.machine, number, row.since
    holdings = _Holdings(
        ledger.revision,
        list(ledger.machines.values()),
        ledger.tenants,
        ledger.clusters,
        [(*place, value) for place, value in ledger.registry.items()],
        kinds,
        vms,
    )
    return msgspec.msgpack.encode(_CheckpointFile(checkpoint, holdings))


def unpacked(data: bytes, catalogue: Catalogue) -> tuple[Checkpoint, Ledger]:
    """What `packed` made bytes of."""
    try:
        file = msgspec.msgpack.decode(data, type=_CheckpointFile)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidInput("checkpoint", f"cannot be read: {error}", "run the experiment anew") from None
    holdings, ledger = file.holdings, Ledger(catalogue, file.holdings.revision)
    ledger.machines = {row.spec.name: row for row in holdings.machines}
    ledger.tenants, ledger.clusters = holdings.tenants, holdings.clusters
    ledger.registry = {(kind, name): value for kind, name, value in holdings.registry}
    kinds = holdings.kinds
    ledger.vms = {
        name: VMRow(tenant, PlacedVM(name, kinds[kind], machine, since))
        for name, (tenant, machine, kind, since) in holdings.vms.items()
    }
    return file.checkpoint, ledger


def keeper(path: Path) -> Callable[[bytes], None]:
    """Keeps each checkpoint in place of the one before; an interruption leaves one of the two."""

    def keep(data: bytes) -> None:
        part = path.with_suffix(".part")
        part.write_bytes(data)
        part.replace(path)

    return keep
