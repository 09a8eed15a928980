"""Rows to ask rules about: builders with sensible defaults, random ones, and the records that compiled rules read."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from roost.engine.rule import Rule, rule_of
from roost.engine.ruleset import BoundRule
from roost.engine.shape import vm_row_type
from roost.engine.side_tables import FORESIGHT
from roost.engine.tenant_row import TENANT_TYPE
from roost.model.rows import PACKINGS
from roost.model.thresholds import Purpose
from roost.model.zone import Zone

ZONE = Zone.synthetic(machines=100, seed=0)
RESOURCES = [r.name for r in ZONE.resources]
BANDS, CLASSES, GENERATIONS, TYPES = len(ZONE.bands), len(ZONE.classes), len(ZONE.generations), len(ZONE.vm_types)
REGULAR, SPOT = range(BANDS)
TYPE_OF = {
    "machine": ZONE.machines.dtype,
    "rack": ZONE.racks.dtype,
    "cluster": ZONE.clusters.dtype,
    "foresight": FORESIGHT.row_type(ZONE),
    "vm": vm_row_type(ZONE),
    "tenant": TENANT_TYPE,
}
CAPACITY = {"cores": 16, "memory": 64, "disk": 1000, "ssd": 400, "nic": 10}


def amounts(given: dict[str, int] | None = None, default: int = 0) -> tuple[int, ...]:
    """An amount of each resource, in the zone's order."""
    return tuple((given or {}).get(name, default) for name in RESOURCES)


def _row(kind: str, **fields: Any) -> SimpleNamespace:
    unknown = set(fields) - set(TYPE_OF[kind].names or ())
    assert not unknown, f"a {kind} has no {', '.join(unknown)}"
    return SimpleNamespace(**(dict.fromkeys(TYPE_OF[kind].names or (), 0) | fields))


def _use(
    capacity: dict[str, int] | None, regular: dict[str, int] | None, spot: dict[str, int] | None
) -> dict[str, tuple[Any, ...]]:
    """Capacity, and what each band sees as free when regular and spot VMs hold so much of it."""
    full = amounts(CAPACITY | (capacity or {}))
    seen = tuple(c - r for c, r in zip(full, amounts(regular), strict=True))
    left = (seen, tuple(s - u for s, u in zip(seen, amounts(spot), strict=True)))
    return {"capacity": full, "free": left}


def _used(room: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """The same with what each band and those above it use."""
    used = tuple(tuple(c - f for c, f in zip(room["capacity"], band, strict=True)) for band in room["free"])
    return room | {"used": used}


def machine(
    *,
    capacity: dict[str, int] | None = None,
    regular: dict[str, int] | None = None,
    spot: dict[str, int] | None = None,
    **fields: Any,
) -> SimpleNamespace:
    """A healthy machine with `CAPACITY`, empty unless regular or spot VMs hold some of it."""
    defaults = {"vms": int(bool(regular or spot)), "health": 100, "classes": (0,) * CLASSES}
    return _row("machine", **(defaults | _use(capacity, regular, spot) | fields))


def rack(
    *, capacity: dict[str, int] | None = None, used: dict[str, int] | None = None, **fields: Any
) -> SimpleNamespace:
    """A rack of ten machines, as large as one of `CAPACITY`, empty unless regular VMs use some of it."""
    defaults = {"machines": 10, "empty": (10,) * BANDS}
    return _row("rack", **(defaults | _used(_use(capacity, used, None)) | fields))


def cluster(
    *,
    capacity: dict[str, int] | None = None,
    regular: dict[str, int] | None = None,
    spot: dict[str, int] | None = None,
    **fields: Any,
) -> SimpleNamespace:
    """A cluster that takes every type, as large as one machine of `CAPACITY`."""
    defaults = {"machines": 10, "empty": (10,) * BANDS, "supports": (1,) * TYPES, "thresholds": (0, 0, 0)}
    return _row("cluster", **(defaults | _used(_use(capacity, regular, spot)) | fields))


def vm(*, demand: dict[str, int] | Sequence[dict[str, int]] | None = None, **fields: Any) -> SimpleNamespace:
    """A regular VM of type 0 that is pinned nowhere. `demand` is for all generations, or a list for the first few."""
    given = [demand or {}] * GENERATIONS if demand is None or isinstance(demand, dict) else list(demand)
    defaults = {
        "demand": tuple(amounts(d) for d in given + [{}] * (GENERATIONS - len(given))),
        "supported": (1,) * GENERATIONS,
        "colocation": -1,
        "avoids": (0,) * CLASSES,
        "datacenter": -1,
        "cluster": -1,
        "generation": -1,
    }
    return _row("vm", **(defaults | fields))


def tenant(
    *,
    in_racks: Sequence[int] = (),
    in_update_domains: Sequence[int] = (),
    here: int = 0,
    remaining: int = 1,
    **fields: Any,
) -> SimpleNamespace:
    """A tenant by how many VMs it has in each of its racks or update domains (an unused one is written as 0)."""
    defaults: dict[str, int] = {"placed": max(sum(in_racks), sum(in_update_domains))}
    for unit, counts in (("rack", in_racks), ("update_domain", in_update_domains)):
        held = [c for c in counts if c]
        defaults |= {f"{unit}s": len(held), f"least_in_{unit}": min(held, default=0)}
        defaults |= {f"most_in_{unit}": max(held, default=0)}
    return _row("tenant", **(defaults | {"here": here, "remaining": remaining} | fields))


def ask(function: Callable[..., Any], *rows: Any, **parameters: Any) -> Any:
    """What an uncompiled rule says, given the derived values it needs and its parameters as the engine gives them.

    The cluster comes third, and then what is foreseen, for rules that read them, or need something that does.
    """
    rule = described(function)
    derived = [ask(need.function, *rows) for need in rule.needs]
    own = rows if rule.of_cluster or rule.kind == "tenant" else rows[:2]
    return function(*own, *derived, *BoundRule(rule, parameters).constants(ZONE))


def allows(function: Callable[..., Any], *rows: Any, **parameters: Any) -> bool:
    """What a hard rule says."""
    verdict = ask(function, *rows, **parameters)
    assert isinstance(verdict, bool)
    return verdict


def score(function: Callable[..., Any], *rows: Any, **parameters: Any) -> float:
    """What a soft rule says."""
    value = ask(function, *rows, **parameters)
    assert isinstance(value, float)
    return value


def described(function: Callable[..., Any]) -> Rule:
    """A rule's description."""
    rule = rule_of(function)
    assert rule is not None
    return rule


def record(kind: str, row: SimpleNamespace) -> Any:
    """The row as the record that a compiled rule reads."""
    rows = np.zeros(1, TYPE_OF[kind])
    for name, value in vars(row).items():
        rows[name] = value
    return rows[0]


# ------------------------------------------------------------------------------------------------------- random rows

_amount = st.integers(0, 100)
_flag = st.integers(0, 1)
_bits = st.integers(0, 2**31 - 1)
_few = st.integers(0, 3)


def _each(size: int, of: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(*[of] * size)


@st.composite
def _rooms(draw: st.DrawFn) -> dict[str, tuple[Any, ...]]:
    """Capacity (0 at times) and free, of which a lower band never sees more than a higher one."""
    capacity = draw(_each(len(RESOURCES), st.sampled_from((0, 1, 7, 16, 100))))
    above, free = capacity, []
    for _ in range(BANDS):
        above = tuple(draw(st.integers(0, c)) for c in above)
        free.append(above)
    return _used({"capacity": capacity, "free": tuple(free)})


@st.composite
def machines(draw: st.DrawFn) -> SimpleNamespace:
    """Any machine."""
    room = draw(_rooms())
    fields = {
        "vms": st.integers(0, 200),
        "owner": _few,
        "features": _bits,
        "versions_behind": st.integers(0, 9),
        "failures": st.integers(0, 50),
        "state": _few,
        "health": st.integers(0, 100),
        "generation": st.integers(0, GENERATIONS - 1),
        "classes": _each(CLASSES, _few),
    }
    values = {name: draw(strategy) for name, strategy in fields.items()}
    return _row("machine", capacity=room["capacity"], free=room["free"], **values)


@st.composite
def racks(draw: st.DrawFn) -> SimpleNamespace:
    """Any rack, one without machines included."""
    count = draw(st.integers(0, 40))
    return _row("rack", machines=count, empty=draw(_each(BANDS, st.integers(0, count))), **draw(_rooms()))


@st.composite
def clusters(draw: st.DrawFn) -> SimpleNamespace:
    """Any cluster."""
    fields = {
        "index": _few,
        "datacenter": _few,
        "generation": st.integers(0, GENERATIONS - 1),
        "quarantined": _flag,
        "features": _bits,
        "supports": _each(TYPES, _flag),
        "demands": _each(TYPES, _each(len(RESOURCES), st.integers(0, 20))),
        "per_demand": _each(TYPES, _each(len(RESOURCES), st.floats(0, 1))),
        "takes": _each(TYPES, st.floats(0, 2)),
        "empty": _each(BANDS, _few),
        "thresholds": _each(len(Purpose), _few),
    }
    return _row("cluster", **{name: draw(strategy) for name, strategy in fields.items()}, **draw(_rooms()))


@st.composite
def foresights(draw: st.DrawFn) -> SimpleNamespace:
    """Whatever may be foreseen."""
    arrivals = draw(_each(BANDS, _each(TYPES, st.integers(0, 3))))
    return _row("foresight", arrivals=arrivals, ahead=draw(_each(TYPES, _each(PACKINGS, st.integers(0, 50)))))


@st.composite
def vms(draw: st.DrawFn) -> SimpleNamespace:
    """Any VM, whether it fits anywhere or not."""
    fields = {
        "type": st.integers(0, TYPES - 1),
        "demand": st.tuples(*[_each(len(RESOURCES), st.one_of(st.just(0), _amount))] * GENERATIONS),
        "supported": _each(GENERATIONS, _flag),
        "features": st.one_of(st.just(0), _bits),
        "isolation": _few,
        "cluster": st.integers(-1, 3),
        "datacenter": st.integers(-1, 3),
        "colocation": st.integers(-1, CLASSES - 1),
        "priority": st.integers(0, BANDS - 1),
        "generation": st.integers(-1, GENERATIONS - 1),
        "avoids": _each(CLASSES, _flag),
        "purpose": st.integers(0, len(Purpose) - 1),
    }
    return _row("vm", **{name: draw(strategy) for name, strategy in fields.items()})


def tenants() -> st.SearchStrategy[SimpleNamespace]:
    """Any tenant, whether its numbers are consistent or not; a negative count marks a unit found too small."""
    fields = {name: st.integers(0, 5) for name in TENANT_TYPE.names or ()}
    return st.builds(SimpleNamespace, **(fields | {"here": st.integers(-1, 5), "remaining": st.integers(1, 5)}))


RANDOM = {
    "machine": machines(),
    "rack": racks(),
    "cluster": clusters(),
    "foresight": foresights(),
    "vm": vms(),
    "tenant": tenants(),
}
