"""A plan of migrations as data: what to move where, in which order, and what it is good for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from roost.model.errors import InvalidInput
from roost.whatif.measures import Measures


class PlanTerms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a plan may do."""

    budget: int  # VMs that may be moved
    tenants: tuple[str, ...] = ()  # whose VMs may: patterns as tests-*; empty: everybody's
    types: tuple[str, ...] = ()  # of which types; empty: of all
    priorities: tuple[str, ...] = ()  # of which priority bands; empty: of all
    isolated: bool = False  # also VMs that have machines to themselves
    cost: float = 0.0  # cores of emptied machines that each moved VM must be worth

    def __post_init__(self) -> None:
        if self.budget < 0:
            raise InvalidInput("budget", f"is {self.budget}", "use a number of VMs from 0 on")
        if not 0 <= self.cost < float("inf"):
            raise InvalidInput("cost", f"is {self.cost}", "use a number of cores from 0 on")


class PlannedMove(msgspec.Struct, frozen=True, kw_only=True):
    """One VM to another machine. `gain` and `frees` are what it brings once those before it are done."""

    number: int  # from 1
    tenant: str
    vm: str
    type: str
    source: str
    target: str
    gain: float  # points of packing density
    frees: float = 0.0  # cores of the machine that is empty then; 0: others are still to leave it
    empties: str = ""  # the machine that this move helps to empty: its own, or that of a VM it makes room for
    after: tuple[int, ...] = ()  # moves that must be finished before


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Moves in an order in which each finds its target free, and what comes of them."""

    id: str  # the same for the same plan of the same zone at the same revision
    zone: str
    revision: int
    policy: str  # that chose the targets: name and digest
    terms: PlanTerms
    before: Measures
    after: Measures
    left: dict[str, int]  # machines in use that are not emptied, by why
    moves: tuple[PlannedMove, ...]

    @property
    def gain(self) -> float:
        """Points of packing density."""
        return 100 * (self.after.density - self.before.density)

    @property
    def frees(self) -> float:
        """Cores of the machines that are emptied."""
        return sum(move.frees for move in self.moves)

    @property
    def emptied(self) -> int:
        """Machines."""
        return sum(move.frees > 0 for move in self.moves)


def plan_id(zone: str, revision: int, moves: Sequence[PlannedMove]) -> str:
    """A name for a plan by what it says."""
    said = msgspec.json.encode((zone, revision, list(moves)))
    return hashlib.sha256(said).hexdigest()[:16]


def read_plan(path: str | Path) -> Plan:
    """The plan in a file, or an error that says what is wrong with it."""
    try:
        plan = msgspec.json.decode(Path(path).read_bytes(), type=Plan)
    except OSError as error:
        raise InvalidInput(str(path), f"cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidInput(str(path), str(error), "give what `roost whatif migrate --to` wrote") from None
    for place, move in enumerate(plan.moves, 1):
        if move.number != place or not all(0 < number < place for number in move.after):
            raise InvalidInput(str(path), f"move {move.number} is out of order", "plan anew")
    if plan.id != plan_id(plan.zone, plan.revision, plan.moves):
        raise InvalidInput(str(path), "it was changed: its id is that of another plan", "plan anew")
    return plan


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan to a file."""
    try:
        Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(plan)) + b"\n")
    except OSError as error:
        raise InvalidInput(str(path), f"cannot be written: {error.strerror}") from None
