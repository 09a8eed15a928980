"""An experiment: a zone, a workload, policies and seeds, and what is simulated around them. It has a form in YAML.

name: azure
workload: azure-2017
fleet: {machines: 3000, cores: 16, memory: 128}
policies: [default, dense, spread]
seeds: [1, 2, 3]
latency: paper
warm_up: 12h
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from roost.agent.settings import AgentSettings
from roost.model.errors import InvalidInput, UnknownName
from roost.model.names import check_new_name
from roost.model.yaml_file import YamlFile
from roost.model.zone import Zone
from roost.sim.formats import span
from roost.traces.generate import WorkloadShape
from roost.traces.times import LONGEST, YEAR
from roost.traces.workload import Workload

UNITS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
LONGEST_NAME = 100  # of an experiment
Duration = float | str  # seconds, or such as 90s, 15m, 12h, 3d, 2w
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
SomeShare = Annotated[float, msgspec.Meta(gt=0, le=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Some = Annotated[int, msgspec.Meta(ge=1)]


def seconds(value: Duration, where: str) -> float:
    """A duration in seconds."""
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", value.strip())
        if match is None:
            raise InvalidInput(where, f"is {value!r}", "write seconds, or such as 90s, 15m, 12h, 3d, 2w")
        return float(match[1]) * UNITS[match[2] or "s"]
    if not 0 <= value < float("inf"):
        raise InvalidInput(where, f"is {value!r}", "a duration is 0 or more")
    return float(value)


class _Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Part of an experiment."""


class Generated(WorkloadShape, frozen=True, kw_only=True, omit_defaults=True):
    """A workload that is generated anew with each seed."""

    utilisation: SomeShare | None = None  # instead of requests_per_day: as many as bring the zone to this

    def __post_init__(self) -> None:
        try:
            super().__post_init__()
        except InvalidInput as error:
            raise InvalidInput(f"workload.{error.where}", error.problem, error.remedy) from None


class Fleet(_Spec, frozen=True):
    """Machines that suit the workload: so many, or as many as bring it to a utilisation."""

    machines: Some | None = None
    utilisation: SomeShare | None = None  # of the cores, on the average
    cores: Positive = 16
    memory: Positive = 128  # GiB
    disk: Positive = 8_000  # GiB
    ssd: Positive = 4_000  # GiB
    nic: Positive = 40  # Gbit/s

    def __post_init__(self) -> None:
        if (self.machines is None) == (self.utilisation is None):
            raise InvalidInput("fleet", "has either machines or a utilisation", "give one of them")


class Latency(_Spec, frozen=True):
    """How long things take in virtual time. A decision on a request is a hit or a miss of the cache."""

    hit_ms: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    miss_ms: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    hit_ratio: Share | None = None  # drawn with this chance; None: as the engine's own cache has it
    measured: bool = False  # a decision takes as long as it really takes here: such a run cannot be repeated exactly
    commit_ms: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # from the decision to the store's answer
    feed_ms: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # from a commit until the other agents know

    @property
    def commit_s(self) -> float:
        """In seconds."""
        return self.commit_ms / 1e3

    @property
    def feed_s(self) -> float:
        """In seconds."""
        return self.feed_ms / 1e3


# Protean §6.2: 14 ms for a hit, 88 ms for a miss, hits with p = 0.9. It does not tell how long a commit takes, and how
# long until the others know: these are ours.
LATENCIES = {
    "none": Latency(),
    "paper": Latency(hit_ms=14, miss_ms=88, hit_ratio=0.9, commit_ms=5, feed_ms=20),
    "measured": Latency(measured=True, commit_ms=5, feed_ms=20),
}


class Maintenance(_Spec, frozen=True):
    """Machines take no new VMs for a while: those of a cluster, or a share of all."""

    at: Duration
    lasts: Duration
    cluster: str = ""
    share: Share = 0.0

    def __post_init__(self) -> None:
        for name in ("at", "lasts"):
            seconds(getattr(self, name), f"faults.maintenance.{name}")
        if bool(self.cluster) == bool(self.share):
            raise InvalidInput("faults.maintenance", "needs a cluster or a share of the machines", "give one of them")


class PlannedOutage(_Spec, frozen=True):
    """Machines fail together at a known time: all of a rack, all of a cluster, or one."""

    at: Duration
    lasts: Duration
    rack: str = ""
    cluster: str = ""
    machine: str = ""

    def __post_init__(self) -> None:
        for name in ("at", "lasts"):
            seconds(getattr(self, name), f"faults.outages.{name}")
        if sum(map(bool, (self.rack, self.cluster, self.machine))) != 1:
            raise InvalidInput("faults.outages", "needs a rack, a cluster or a machine", "give one of them")

    def check(self, zone: Zone) -> None:
        """Refuse what a zone does not have."""
        known = {"rack": zone.rack_names, "cluster": zone.cluster_names, "machine": zone.machine_names}
        for what, names in known.items():
            if (name := getattr(self, what)) and name not in names:
                raise UnknownName(f"faults.outages.{what}", what, name, names)


class Faults(_Spec, frozen=True):
    """What happens to machines. VMs of those that fail are healed as in the service."""

    mtbf: Duration | None = None  # mean time between failures of one machine; None: none fails
    rack_mtbf: Duration | None = None  # the same of one rack, with all of its machines
    repair: Duration = "6h"  # mean time until what failed is ready again
    outages: tuple[PlannedOutage, ...] = ()
    maintenance: tuple[Maintenance, ...] = ()

    def __post_init__(self) -> None:
        seconds(self.repair, "faults.repair")
        for name in ("mtbf", "rack_mtbf"):
            given: Duration | None = getattr(self, name)
            if given is not None and seconds(given, f"faults.{name}") == 0:
                raise InvalidInput(f"faults.{name}", "is 0", "give a time, or leave it out: then none fails")


class PolicyChange(_Spec, frozen=True):
    """All agents switch to another policy."""

    at: Duration
    policy: str

    def __post_init__(self) -> None:
        seconds(self.at, "policy_changes.at")


class Migrations(_Spec, frozen=True):
    """VMs are moved so that machines become empty, as `roost whatif migrate` plans it."""

    at: Duration
    every: Duration | None = None  # again and again; None: once
    budget: SomeShare = 0.02  # of the VMs, each time
    cost: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # cores of emptied machines that each moved VM must be worth
    copy: Duration = 60.0  # that one takes
    at_once: Some = 20

    def __post_init__(self) -> None:
        for name in ("at", "copy"):
            seconds(getattr(self, name), f"migrations.{name}")
        if self.every is not None and seconds(self.every, "migrations.every") == 0:
            raise InvalidInput("migrations.every", "is 0", "give a time, or leave it out: then once")


class Agents(_Spec, frozen=True):
    """How many decide in parallel, each on its own copy of the zone, and how. See `roost config show` on agents."""

    count: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 1
    retries: int = 20
    group: int = 1
    pipeline: int = 1
    top: int = 100
    favourites: bool = True
    window: int = 50
    strict: bool = False

    def settings(self) -> AgentSettings:
        """As an agent takes them."""
        given = {name: getattr(self, name) for name in self.__struct_fields__ if name != "count"}
        try:
            return AgentSettings(**given)
        except InvalidInput as error:
            raise InvalidInput(error.where.replace("agent.", "agents."), error.problem, error.remedy) from None


class Experiment(_Spec, frozen=True):
    """What to simulate. Each policy with each seed is a run."""

    name: str
    workload: str | Generated  # a name or a file, or what a generated one is like
    zone: str = ""  # a zone file, or synthetic:SIZE
    fleet: Fleet | None = None
    policies: tuple[str, ...] = ("default",)
    rules: tuple[str, ...] = ()  # files and modules with rules of one's own, which the policies may name
    seeds: tuple[Annotated[int, msgspec.Meta(ge=0, lt=2**31)], ...] = (1,)
    shadow: str = ""  # a policy that is asked, in the first run, what it would have decided otherwise
    agents: Agents = Agents()
    latency: Literal["none", "paper", "measured"] | Latency = "none"
    faults: Faults = Faults()
    policy_changes: tuple[PolicyChange, ...] = ()
    migrations: Migrations | None = None
    requeue: bool = False  # VMs that had to give way ask to be placed again as soon as there is room
    foresight: Duration | None = None  # so often it is foreseen where VMs of low priority are safe; None: never
    speed: Positive = 1.0  # the workload's time passes so many times faster: arrivals come sooner, VMs leave sooner
    fill: Share = 0.0  # of the cores, taken before the beginning by VMs like those of the workload
    warm_up: Duration = 0.0  # the first part does not count in the summary
    until: Duration | None = None  # None: the last arrival
    sample: Duration | None = None  # between two rows of the timeline; None: 500 rows, but no finer than a minute
    bin: Duration = 60.0  # of the rates
    funnel: Annotated[int, msgspec.Meta(ge=0)] = 0  # of every so many requests, how rules narrow the zone; 0: of none
    checkpoint: Annotated[int, msgspec.Meta(ge=0)] = 1_000_000  # operations between two; 0: none

    def __post_init__(self) -> None:
        check_new_name("name", self.name, LONGEST_NAME)
        if bool(self.zone) == (self.fleet is not None):
            raise InvalidInput("zone", "there must be either a zone or a fleet", "give one of them")
        if isinstance(self.workload, Generated) and self.workload.utilisation is not None and not self.zone:
            raise InvalidInput("workload.utilisation", "needs a zone", "size the fleet instead: fleet.utilisation")
        for name in ("policies", "seeds"):
            given: Sequence[object] = getattr(self, name)
            if not given or len(set(given)) < len(given):
                raise InvalidInput(name, f"is {list(given)}", "give one or more, each once")
        self.agents.settings()
        for at in ("warm_up", "until", "sample", "bin", "foresight"):
            lasts: float | str | None = getattr(self, at)
            if lasts is not None and seconds(lasts, at) == 0 and at != "warm_up":
                raise InvalidInput(at, "is 0", "give a time")
        if 60 % seconds(self.bin, "bin"):
            raise InvalidInput("bin", f"is {self.bin}", "a minute must be a whole number of bins")

    def check(self, workload: Workload, zone: Zone) -> None:
        """Refuse what makes no sense with a workload and a zone."""
        ends, warm_up = self.ends(workload), seconds(self.warm_up, "warm_up")
        if ends <= 0:
            raise InvalidInput("until", "the workload is over at once", "say how long the run is to be")
        if ends > LONGEST:
            problem = f"the run would last {ends / YEAR:,.3g} years, and {LONGEST / YEAR:g} are the most"
            raise InvalidInput("until", problem, "stop earlier, or let time pass faster: speed")
        if warm_up >= ends:
            raise InvalidInput("warm_up", f"is {span(warm_up)}, the run is over after {span(ends)}", "make it shorter")
        for band in (workload.priorities[i] for i in np.unique(workload.priority).tolist()):
            if band and band not in zone.bands:
                raise UnknownName(f"workload {workload.name}: priority", "priority band", band, zone.bands)
        for outage in self.faults.outages:
            outage.check(zone)
        for maintenance in self.faults.maintenance:
            if maintenance.cluster and maintenance.cluster not in zone.cluster_names:
                raise UnknownName("faults.maintenance.cluster", "cluster", maintenance.cluster, zone.cluster_names)

    def ends(self, workload: Workload) -> float:
        """Seconds after the beginning."""
        return workload.span / self.speed if self.until is None else seconds(self.until, "until")

    @property
    def latencies(self) -> Latency:
        """Spelled out."""
        return LATENCIES[self.latency] if isinstance(self.latency, str) else self.latency

    @property
    def repeatable(self) -> bool:
        """Whether the same experiment has the same result every time."""
        return not self.latencies.measured

    @classmethod
    def load(cls, path: str | Path) -> Experiment:
        """Read a file. A mistake is refused with its line."""
        file = YamlFile(path)
        try:
            return file.convert(file.data, cls)
        except InvalidInput as error:
            if str(path) in str(error):
                raise
            raise file.mistake(tuple(error.where.split(".")), error.problem, error.remedy) from None

    def as_data(self) -> dict[str, Any]:
        """As it would be written in a file."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return data
