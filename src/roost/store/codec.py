"""Rows of a ledger as values that a database keeps, and back. The same for every dialect of SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from roost.model.change import PlacedVM
from roost.model.columns import MachineColumns
from roost.model.errors import InvalidInput
from roost.model.inventory import Catalogue, MachineSpec
from roost.model.request import VM, Constraints
from roost.store.columns import TenantColumns, VMColumns
from roost.store.contract import MOST_RESOURCES, Decided, PolicyResult, Record, Round
from roost.store.feed import FeedRow
from roost.store.ledger import ClusterRow, MachineRow, TenantRow, VMRow

T = TypeVar("T")

_texts = msgspec.json.Decoder(list[str]).decode
_numbers = msgspec.json.Decoder(list[int]).decode
_amounts = msgspec.json.Decoder(list[float]).decode
_lists = msgspec.json.Decoder(list[list[int]]).decode
_specs = msgspec.json.Decoder(list[MachineSpec]).decode
_spec = msgspec.json.Decoder(MachineSpec).decode
_vm = msgspec.json.Decoder(VM).decode
_constraints = msgspec.json.Decoder(Constraints).decode
_record = msgspec.json.Decoder(Record).decode
_placed = msgspec.json.Decoder(tuple[PlacedVM, ...]).decode
_catalogue = msgspec.json.Decoder(Catalogue).decode
_round = msgspec.json.Decoder(Round).decode
_limits = msgspec.json.Decoder(list[tuple[str, str, str]]).decode


PART = 2.0**-62  # of a second: what SQLite tells of a time beyond whole seconds is so many of these

text_of = msgspec.json.Encoder().encode  # a value as JSON; the tables keep it as text


def encode(value: Any) -> str:
    """A value as JSON text, as the tables keep it."""
    return text_of(value).decode()


class DecodedOnce(dict[str, T]):
    """Values by their text: what repeats itself in text is decoded once and shared."""

    def __init__(self, decode: Callable[[str], T]) -> None:
        self._decode = decode

    def __missing__(self, text: str) -> T:
        value = self[text] = self._decode(text)
        return value


class Codec:
    """Decodes rows, and whole columns. A column is a list in JSON, of a slice of a table."""

    def __init__(self, catalogue: Catalogue) -> None:
        if len(catalogue.resources) > MOST_RESOURCES:
            raise InvalidInput(
                "zone: resources", f"there are {len(catalogue.resources)}", f"a store keeps at most {MOST_RESOURCES}"
            )
        self._resources = len(catalogue.resources)
        self._unused = (0,) * (MOST_RESOURCES - self._resources)
        self._specs, self._vms, self._constraints = DecodedOnce(_spec), DecodedOnce(_vm), DecodedOnce(_constraints)
        self._limits: tuple[str | None, Mapping[tuple[str, str], str]] = None, {}  # the last, and how it was written

    def machine(self, row: tuple[Any, ...]) -> MachineRow:
        """A machine from its columns."""
        spec, used, classes, *rest = row
        return MachineRow(self._specs[spec], _numbers(used), _numbers(classes), *rest)

    @staticmethod
    def machines(slices: Iterable[tuple[str, ...]]) -> MachineColumns:
        """All machines. Each is another one, so there is nothing to be shared."""
        columns = MachineColumns([], [], [], [], [], [], [], [], [], [])
        decoders: tuple[Callable[[str], list[Any]], ...] = (_specs, _lists, _lists, _numbers, _texts, *[_numbers] * 5)
        for texts in slices:
            columns.extend(*[decode(text) for decode, text in zip(decoders, texts, strict=True)])
        return columns

    def machine_values(self, row: MachineRow) -> tuple[Any, ...]:
        """What changes of a machine, as columns: amounts, holdings, condition, version, emptiness; last, its name."""
        return (
            *row.taken(self._resources), *self._unused, text_of(row.used).decode(), text_of(row.classes).decode(),
            row.vms, row.owner,
            row.state, row.health, row.failures, row.versions_behind, row.version, row.is_empty(self._resources),
            row.spec.name,
        )  # fmt: skip

    def new_machine_values(self, row: MachineRow) -> tuple[Any, ...]:
        """All columns of a new machine."""
        *changing, name = self.machine_values(row)
        return (*row.spec.capacity, *self._unused, *changing, encode(row.spec), row.spec.cluster, name)

    def amounts(self, row: tuple[Any, ...]) -> tuple[str, tuple[Sequence[int], Sequence[int]]]:
        """A machine's name, and what is used of it and what it has."""
        name, *numbers = row
        used, capacity = numbers[:MOST_RESOURCES], numbers[MOST_RESOURCES:]
        return name, (used[: self._resources], tuple(capacity[: self._resources]))

    def vm(self, row: tuple[str, str, str, str, float]) -> tuple[str, VMRow]:
        """A VM and its name from its columns."""
        name, tenant, machine, spec, since = row
        return name, VMRow(tenant, PlacedVM(name, self._vms[spec], machine, since))

    def vms(self, slices: Iterable[tuple[str, ...]]) -> VMColumns:
        """All VMs. When each was placed comes as two numbers: see the statement."""
        columns = VMColumns([], [], [], [], [])
        known = self._vms.__getitem__
        for names, tenants, machines, specs, seconds, parts in slices:
            since = np.array(_amounts(seconds)) + np.array(_amounts(parts)) * PART
            columns.extend(_texts(names), _texts(tenants), _texts(machines), map(known, _texts(specs)), since.tolist())
        return columns

    @staticmethod
    def vm_values(vms: Mapping[str, VMRow | None]) -> list[tuple[str, str, str, str, float]]:
        """VMs as columns, those that are there; the VMs of a request mostly ask for the same."""
        texts: dict[int, str] = {}
        values = []
        for name, row in vms.items():
            if row is None:
                continue
            placed, spec = row.placed, row.placed.spec
            text = texts.get(id(spec))
            if text is None:
                text = texts[id(spec)] = text_of(spec).decode()
            values.append((name, row.tenant, placed.machine, text, placed.since))
        return values

    def tenant(self, row: tuple[str, str, int, int]) -> tuple[str, TenantRow]:
        """A tenant and its name from its columns."""
        name, constraints, stamp, vms = row
        return name, TenantRow(self._constraints[constraints], stamp, vms)

    def tenants(self, slices: Iterable[tuple[str, ...]]) -> TenantColumns:
        """All tenants."""
        columns = TenantColumns([], [], [], [])
        known = self._constraints.__getitem__
        for names, constraints, stamps, vms in slices:
            columns.extend(_texts(names), map(known, _texts(constraints)), _numbers(stamps), _numbers(vms))
        return columns

    @staticmethod
    def tenant_values(name: str, row: TenantRow) -> tuple[str, str, int, int]:
        """A tenant as columns."""
        return name, text_of(row.constraints).decode(), row.stamp, row.vms

    def limits(self, text: str | None) -> Mapping[tuple[str, str], str]:
        """What says which sums may not be passed, by kind and name: read with every commit, and seldom new."""
        known, limits = self._limits
        if text != known:
            limits = {(kind, name): value for kind, name, value in _limits(text or "[]")}
            self._limits = text, limits
        return limits

    @staticmethod
    def cluster(row: tuple[Any, ...]) -> tuple[str, ClusterRow]:
        """A cluster and its name from its columns."""
        name, datacenter, generation, machines, quarantined = row
        return name, ClusterRow(datacenter, generation, machines, bool(quarantined))

    @staticmethod
    def decided(row: tuple[str, Any, str, str, str]) -> Decided:
        """What came of a key, from its columns."""
        key, outcome, request, record, placed = row
        return Decided(
            key=key, outcome=outcome, request=request.encode(), record=_record(record), placed=_placed(placed)
        )

    @staticmethod
    def policy_result(row: tuple[str, int, int, int, int, int, int]) -> PolicyResult:
        """How a policy fared, from sums; the mean is divided here, so that all stores round it alike."""
        policy, requests, committed, vms, retries, total, p99 = row
        return PolicyResult(
            policy=policy,
            requests=requests,
            committed=committed,
            declined=requests - committed,
            vms=vms,
            retries=retries,
            mean_decided_us=total / requests,
            p99_decided_us=p99,
        )

    @staticmethod
    def decided_values(decided: Decided) -> tuple[Any, ...]:
        """What came of a key, as columns."""
        record = decided.record
        request = decided.request.decode()
        return (
            decided.key,
            decided.outcome,
            record.at,
            request,
            text_of(record).decode(),
            text_of(decided.placed).decode(),
        )


def decode_catalogue(text: str) -> Catalogue:
    """The zone, without its machines."""
    return _catalogue(text)


def feed_row(row: tuple[int, int, str, int, str]) -> FeedRow:
    """A stretch of the feed from its columns; its entries are decoded when somebody asks for them."""
    first, last, agent, number, text = row
    return FeedRow(first, last, agent, number, text)


def decode_round(text: str) -> Round:
    """What an agent saw."""
    return _round(text)
