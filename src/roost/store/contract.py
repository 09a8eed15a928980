"""What a store promises, and the values that cross the seam.

proposals ──▶ commit ──▶ Committed   it is durable; the feed will bring it to every follower
                    └──▶ Conflict    nothing of it was done: somebody was faster; here are the fresh rows
                    └──▶ Replayed    the key was answered before; here is that answer
                    └──▶ Rejected    it makes no sense to this store, whoever asks
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Literal, Protocol

import msgspec

from roost.model.availability import Short, Spread
from roost.model.change import Eviction, PlacedVM
from roost.model.errors import InvalidInput
from roost.model.inventory import Catalogue, MachineSpec
from roost.model.request import UNCONSTRAINED, Constraints, hold_of
from roost.model.thresholds import PurposeName
from roost.store.columns import ZoneColumns
from roost.store.feed import Feed
from roost.store.ledger import Ledger, MachineRow, TenantRow, VMRow
from roost.store.recheck import Recheck

LARGEST_GROUP = 1_024  # proposals that can share a transaction
MOST_RESOURCES = 8  # columns that the tables have for amounts
NOTHING: Mapping[str, int] = MappingProxyType({})


# --------------------------------------------------------------------------------------------------------- proposals


class Premise(msgspec.Struct, frozen=True, gc=False):
    """What whoever asks was told of a tenant, and rests on: it is so when the proposal is committed, or it is not.

    The stamps that proposals carry besides say what an agent knew when it decided; that is another matter.
    """

    existing: bool = False  # the tenant has VMs
    generation: int | None = None  # its stamp; 0: it has no VMs

    def holds(self, stamp: int) -> bool:
        """Whether it is so of a tenant with this stamp; 0: it has no VMs."""
        return (stamp > 0 or not self.existing) and self.generation in (None, stamp)


NO_PREMISE, EXISTING = Premise(), Premise(existing=True)


class Victim(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A VM that is to give way, as it runs."""

    tenant: str
    vm: PlacedVM
    stamp: int = 0  # of the tenant, as the agent knows it: where VMs go together, there must be no other by now


class Proposal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Anything that a store can be asked to do: `store.settle.table` says how each kind is settled.

    What others have to know of a proposal is told by the properties, whatever kind it is. A new kind need not speak of
    them: what it says without that is never too little, but that it puts VMs somewhere it has to say (`placed`).
    """

    key: str  # once committed, it is never done again
    request: bytes  # what was asked for, as JSON: the same key with another request is a mistake

    changes: ClassVar[bool] = True  # it may change rows
    declines: ClassVar[bool] = False  # it only notes that a request is refused
    asks: ClassVar[bool] = False  # whoever asks looks again: its answer comes with all that was committed before

    @property
    def tenant(self) -> str:
        """Whose VMs it is about; empty: nobody's."""
        return ""

    @property
    def placed(self) -> Sequence[PlacedVM]:
        """What comes to machines. No verb can put a VM anywhere that its proposal does not tell here."""
        return ()

    @property
    def going(self) -> Sequence[tuple[str, PlacedVM]]:
        """What leaves its machines for what comes, and whose it is."""
        return ()

    @property
    def purpose(self) -> PurposeName:
        """What that comes for; by this, thresholds hold it."""
        return "new"

    @property
    def plain(self) -> bool:
        """Whether the feed will have nothing of it but what the agent's copy has assumed already."""
        return not self.changes


class Recorded(Proposal, frozen=True, kw_only=True, gc=False):
    """A proposal of which the store remembers what came of it."""

    record: Record  # how it came about

    @property
    def purpose(self) -> PurposeName:
        """As it is recorded."""
        return self.record.purpose


class Place(Recorded, frozen=True, kw_only=True, gc=False):
    """Put all these VMs of a tenant on these machines, or none of them.

    `victims` give way to them: of lower priority, as they are when this is decided, and none but those whose room is
    needed, or who have to go with one of those. `leaving` are the same VMs where they were, on machines that are not
    ready, and what is held for them: they are there no longer.
    """

    tenant: str
    premise: Premise = NO_PREMISE
    constraints: Constraints = UNCONSTRAINED
    stamp: int = 0  # the tenant's when this was decided; 0: it had no VMs
    placed: tuple[PlacedVM, ...]
    leaving: tuple[PlacedVM, ...] = ()
    victims: tuple[Victim, ...] = ()
    grace: float = 0.0  # seconds that victims are left to finish
    requeued: bool = False  # the VMs waited for room since they had to give way; they wait no longer
    seen: Mapping[str, int] = NOTHING  # versions of the machines before this group; only a strict commit asks

    @property
    def going(self) -> Sequence[tuple[str, PlacedVM]]:
        """The same VMs where they were, and those that give way."""
        return [*((self.tenant, each) for each in self.leaving), *((each.tenant, each.vm) for each in self.victims)]

    @property
    def plain(self) -> bool:
        """Nobody gives way or leaves, and nobody waited."""
        return not (self.victims or self.leaving or self.requeued)


class Release(Recorded, frozen=True, kw_only=True, gc=False):
    """Take all these VMs of a tenant off their machines, or none of them; what is held for them must go with them."""

    tenant: str
    premise: Premise = NO_PREMISE
    released: tuple[PlacedVM, ...]
    stamp: int | None = None  # if given, these are all VMs that the tenant has, and it must be as it was then
    waiting: tuple[str, ...] = ()  # VMs of the tenant that wait for room: they wait no longer
    eviction: Eviction | None = None  # they did not want to go: those that want to be placed again wait for that


class Move(Recorded, frozen=True, kw_only=True, gc=False):
    """Take a VM off its machine and put it on another, where room may be held for it; or only hold that room.

    It rests on where the VM runs and on whether room is held for it. What is so already is done, and changes nothing.
    """

    tenant: str
    premise: Premise = NO_PREMISE
    constraints: Constraints = UNCONSTRAINED
    stamp: int  # the tenant's when this was decided
    vm: PlacedVM  # as it runs
    machine: str  # where it is to run
    held: bool = False  # room is held for it there
    hold: bool = False  # only hold room
    seen: Mapping[str, int] = NOTHING  # the target's version before this group; only a strict commit asks

    @property
    def placed(self) -> Sequence[PlacedVM]:
        """The VM on the target, or what is held for it there: to machines it is the same."""
        return (self._there,)

    @property
    def going(self) -> Sequence[tuple[str, PlacedVM]]:
        """The VM where it runs, unless room is only held, and what was held for it."""
        gone = () if self.hold else (self.vm, self._there) if self.held else (self.vm,)
        return [(self.tenant, each) for each in gone]

    @property
    def purpose(self) -> PurposeName:
        """As good as healing: its VM is admitted already."""
        return "healing"

    @property
    def _there(self) -> PlacedVM:
        return PlacedVM(hold_of(self.vm.vm), self.vm.spec, self.machine)


class SetCondition(Recorded, frozen=True, kw_only=True, gc=False):
    """Say how a machine is: its state, health, failures or versions_behind.

    Unless its failures are said, they are counted as of then: one more if it goes from ready to down, and fewer as time
    goes by. If nothing is said, that is all.
    """

    machine: str
    condition: Mapping[str, int]
    version: int | None = None  # if given, the machine must have it still


class SetQuarantine(Recorded, frozen=True, kw_only=True, gc=False):
    """Take a cluster out of use for new VMs, or back."""

    cluster: str
    quarantined: bool


class Commission(Recorded, frozen=True, kw_only=True, gc=False):
    """Add machines; a cluster begins with its first machine."""

    machines: tuple[MachineSpec, ...]
    conditions: Mapping[str, Mapping[str, int]] = {}  # of those that are not as good as new


class Decommission(Recorded, frozen=True, kw_only=True, gc=False):
    """Remove machines that run nothing; a cluster ends with its last machine."""

    machines: tuple[str, ...]


class Register(Recorded, frozen=True, kw_only=True, gc=False):
    """Set an entry of the zone's registry, where those around the store keep what they all have to agree on."""

    kind: str
    name: str  # unique among those of its kind
    value: str | None  # None removes it
    expected: str | None = None
    guarded: bool = False  # refuse unless the present value is the expected one; None: there is none


class Decline(Recorded, frozen=True, kw_only=True, gc=False):
    """Note that a request was refused. It changes nothing, and the same key may be tried again."""

    changes: ClassVar[bool] = False
    declines: ClassVar[bool] = True


class Ask(Proposal, frozen=True, kw_only=True, gc=False):
    """Only ask whether a key was answered before. An agent asks before it says that a request makes no sense."""

    changes: ClassVar[bool] = False
    asks: ClassVar[bool] = True


# ---------------------------------------------------------------------------------------------------------- decisions


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How a decision came about."""

    agent: str = ""
    by: str = ""  # who asked
    round: int = 0  # of the agent; (agent, round) names a Round
    position: int = 0  # in the round
    at: float = 0.0  # seconds since 1970
    policy: str = ""  # name and digest
    retries: int = 0
    hits: int = 0  # evaluations that were cached
    updated: int = 0  # machines looked at to bring caches up to date
    waited_us: int = 0  # in the queue, the earlier tries included
    decided_us: int = 0
    constraints: Constraints = UNCONSTRAINED  # the tenant's then
    order: tuple[int, ...] = ()  # in which the VMs were placed, unless as they came
    found: tuple[str, ...] = ()  # of a request that was declined: the machines that its first VMs found, in that order
    refused: tuple[int, ...] = ()  # units found too small for VMs that stay together
    rungs: tuple[int, ...] = ()  # in that order: what VMs placed by best effort were held to, 0 for all of the terms
    short: tuple[Short, ...] = ()  # what best effort could not reach
    spread: tuple[Spread, ...] = ()  # how VMs of the tenant lay then that were held to any terms
    sought: bool = False  # not each VM by itself got the best machine: only so all of them found one
    victims: tuple[Victim, ...] = ()  # what gave way
    lots: int = 0  # the state of its random numbers afterwards
    avoiding: bool = False  # drew among the top N instead of the best, to avoid conflicts
    purpose: PurposeName = "new"  # of a request to place
    generation: int = 0  # of the tenant or the machine afterwards, as it was answered: the store writes it


class Round(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What an agent saw when it decided a group of requests: the zone at a revision, and what it knew beyond that.

    The first decision of a round saw exactly this; each later one saw, besides, what those before it had placed.
    """

    agent: str
    number: int
    revision: int
    seed: int = 0
    ahead: tuple[tuple[int, int], ...] = ()  # (round, position) of its own placements that the feed had not brought
    adopted: tuple[MachineRow, ...] = ()  # rows learnt from conflicts, with its own placements on them
    placed: tuple[tuple[str, tuple[PlacedVM, ...]], ...] = ()  # by position: a tenant, and what was placed for it
    victims: Mapping[int, tuple[Victim, ...]] = {}  # by position: what gave way to that


class Decided(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the store remembers of one key."""

    key: str
    outcome: Literal["committed", "declined"]
    request: bytes
    record: Record
    placed: tuple[PlacedVM, ...] = ()  # what gave way to these is in the record


class PolicyResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What came of the requests that a policy decided."""

    policy: str  # name and digest
    requests: int
    committed: int
    declined: int
    vms: int  # that were placed
    retries: int
    mean_decided_us: float
    p99_decided_us: int  # by nearest rank: the lowest that at least 99 of 100 do not exceed


# ----------------------------------------------------------------------------------------------------------- outcomes


class Committed(msgspec.Struct, frozen=True, gc=False):
    """Done and durable."""

    versions: Mapping[str, int] = NOTHING  # of the machines touched
    stamp: int = 0  # the tenant's from now on
    changed: bool = True  # the feed has an entry of it; else everything was so already
    before: int = 0  # of what was placed: the tenant's stamp until now, which may be news to the agent


class Conflict(msgspec.Struct, frozen=True, gc=False):
    """Nothing was done: what the proposal rests on has changed. `machines` are as they are now."""

    reason: str  # a word by which conflicts are counted; verbs and checks of sums have theirs
    detail: str
    machines: tuple[MachineRow, ...] = ()
    stamp: int | None = None  # the tenant's, now; of a machine that is not as whoever asks was told, its version
    behind: bool = False  # the agent has to hear more, to go on


class Replayed(msgspec.Struct, frozen=True, gc=False):
    """The key was answered before: this is what it got."""

    decided: Decided


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """It can never be done as it stands."""

    error: InvalidInput


Outcome = Committed | Conflict | Replayed | Rejected


# --------------------------------------------------------------------------------------------------- beside proposals


class Note(msgspec.Struct, frozen=True, gc=False):
    """What somebody told."""

    age: float  # seconds, by the store's own clock
    value: bytes


@dataclass(frozen=True)
class Mending:
    """What an audit overwrites: sums that rows keep. It never places or removes a VM."""

    machines: Sequence[MachineRow] = ()
    tenants: Mapping[str, TenantRow | None] = field(default_factory=dict)  # None: it has no VMs


# --------------------------------------------------------------------------------------------------------------- seam


class Store(Protocol):
    """The truth about one zone.

    - `commit` does each proposal wholly or not at all, on the freshest rows, locked in one order; one proposal's
      conflict does not touch its neighbours. What it says is committed survives a crash.
    - A key that was committed is never done again: it is answered as it was the first time.
    - The feed has every commit exactly once, under consecutive revisions, in one order for every follower, and an
      entry follows whatever it rests on. A revision once seen never changes.
    - `load` and the feed fit together: the ledger loaded at a revision, and the entries after it, make the tables.
    - Methods may be called from any thread; one thread may commit while another follows the feed, and neither waits
      for those who look things up.
    - Lists are in the order of names, which are compared by code point. What was committed before a call is in them,
      whether the feed has a revision for it or not.
    """

    @property
    def catalogue(self) -> Catalogue:
        """The zone, without its machines."""

    def load(self) -> Ledger:
        """Everything, as of one revision, in rows that can change."""

    def columns(self) -> ZoneColumns:
        """Everything, as of one revision, in columns: what an agent makes its copy of, and is made sooner."""

    def commit(
        self,
        group: Sequence[Proposal],
        recheck: Recheck,
        *,
        strict: bool = False,
        round_: Round | None = None,
        dry: bool = False,
    ) -> list[Outcome]:
        """Do what can be done, in order. `strict` refuses what was decided on an outdated machine, though it fits.

        `dry`: only say what would come of it at this moment. Nothing at all is written.
        """

    def changes(self, since: int, limit: int = 1_000, *, patient: bool = False) -> Feed:
        """What was committed after a revision, as far as the feed is numbered; at most `limit` transactions.

        `patient`: all that was committed before this call, even if that means to wait for whoever is numbering it.
        """

    def head(self) -> tuple[int, int]:
        """The revision of the last entry of the feed, and of the last that was trimmed away."""

    def wait(self, since: int, seconds: float) -> bool:
        """Sleep until there may be changes after a revision, or the time is up. Only a hint."""

    def try_writing(self) -> None:
        """Raise what keeps the store from being written, if anything does. Nothing changes that anybody could see."""

    def trim(self, keep: int, decisions_seconds: float = math.inf) -> int:
        """Forget all but the last `keep` revisions, and decisions that were committed longer ago than so many seconds.

        Returns the oldest revision that can be followed from. How long ago something was is told by the store's own
        clock, not by the clocks of those who decide.
        """

    def decided(self, key: str) -> Decided | None:
        """What came of a key."""

    def round(self, agent: str, number: int) -> Round | None:
        """What an agent saw."""

    def decisions(
        self, limit: int = 100, *, before: tuple[float, str] | None = None, prefix: str = ""
    ) -> list[Decided]:
        """The latest decisions, latest first by (record.at, key); `before` that, and of keys with a prefix."""

    def policy_results(self, since: float) -> list[PolicyResult]:
        """How each policy fared with the requests that were decided since a time."""

    def tenant(self, name: str) -> TenantRow | None:
        """A tenant that has VMs."""

    def tenants(self, after: str = "", limit: int = 100, prefix: str = "") -> list[tuple[str, TenantRow]]:
        """Tenants after a name, those with a prefix."""

    def vm(self, name: str) -> VMRow | None:
        """A VM that runs."""

    def vms(
        self,
        after: str = "",
        limit: int = 100,
        *,
        tenant: str | None = None,
        machine: str | None = None,
        prefix: str = "",
    ) -> list[tuple[str, VMRow]]:
        """VMs after a name: of a tenant, on a machine, of tenants with a prefix."""

    def machine(self, name: str) -> MachineRow | None:
        """A machine as it is now."""

    def registry(self, kind: str) -> dict[str, str]:
        """The present values of a kind, by name."""

    def exchange(self, kind: str, name: str, value: bytes, keep: float) -> dict[str, Note]:
        """Tell others something that is good for a while, under a name, and hear what they told last, by theirs.

        It is no part of the zone, in no feed, and may be lost. What was told more than `keep` seconds ago is forgotten.
        """

    def amounts(self) -> dict[str, tuple[Sequence[int], Sequence[int]]]:
        """What is used of each machine and what it has, by resource, as the database itself compares them."""

    def counted(self) -> dict[str, tuple[str, bool]]:
        """The cluster of each machine, and whether it is empty, as sums at the commit count it."""

    def repair(self, mend: Callable[[Ledger], Mending]) -> Mending:
        """Write what `mend` makes of the ledger, while nobody else writes, and make every follower reload."""

    def close(self) -> None:
        """Let go of files and connections."""
