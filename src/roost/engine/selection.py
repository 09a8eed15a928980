"""Choosing a machine: the compiled rules, the cached evaluations they keep, and what each of them cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from roost.engine.choice import BEST, MOST_AMONG, Choice
from roost.engine.huge_pages import zeros
from roost.engine.kernel.asking import ASKED, CHOOSING, addresses
from roost.engine.kernel.codes import BITS, CLUSTER_FAULT, INVALID, LISTED, SEEN
from roost.engine.kernel.native import Direct
from roost.engine.pools import Pool, PoolStats
from roost.engine.ruleset import RuleSet
from roost.engine.shape import Shape
from roost.engine.side_tables import TABLES
from roost.engine.tenant import TenantDesk
from roost.engine.view import View
from roost.model.errors import InvalidInput

# What it costs, on each of some machines, that others give way to a VM there; None where that cannot be asked of them.
Prices = Callable[[Shape, Sequence[int]], Sequence[tuple[float, ...] | None]]


@dataclass(frozen=True)
class CacheLimits:
    """How much an agent may remember."""

    evaluations: int = 256
    rankings: int = 1_024
    columns: int = 64  # derived columns, of all kinds together
    max_idle: float = 3_600.0  # seconds without use

    def __post_init__(self) -> None:
        for field in ("evaluations", "rankings", "columns"):
            if getattr(self, field) < 1:
                raise InvalidInput(f"limits.{field}", f"is {getattr(self, field)}", "use at least 1")


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """The outcome of one choice."""

    machine: int  # -1: no machine is valid
    updated: int  # machines looked at to bring the caches up to date
    hit: bool  # the evaluation was there already
    tied: int  # how many machines the draw was among
    clusters: int  # how many clusters had a valid machine, up to the policy's bound


class Look(NamedTuple):
    """What would be chosen for a VM, and how another machine compares. Keys and verdicts as in a `Judgement`."""

    machine: int  # one of the best; -1: no machine is valid
    key: int
    verdict: int  # on the other machine
    detail: int
    other_key: int
    cluster_key: int  # of the other machine's cluster
    selected: int  # 1: that is among the clusters that were looked at
    last_cluster_key: int  # of the last of these

    def agrees(self, placed: int) -> bool:
        """Whether it is plain that a VM that was placed there, -1 for nowhere, would be again."""
        if placed < 0:
            return self.machine < 0
        return self.verdict < 0 and self.selected > 0 and self.other_key == self.key


class Evaluation:
    """Every machine's key for one vector of trait values, cluster by cluster as they are asked for."""

    __slots__ = (
        "arrays", "clusters", "column_keys", "columns_version", "keys", "place", "racks", "ranked_for", "ranking",
        "shape", "slots", "uses",
    )  # fmt: skip

    def __init__(self, shape: Shape, place: int, arrays: tuple[NDArray[np.int64], ...]) -> None:
        self.shape, self.place = shape, place
        self.keys, self.racks, self.clusters = (array[place] for array in arrays)
        self.clusters[:] = INVALID, 0, -1, 0
        self.slots = np.empty(0, np.int64)
        self.arrays = (self.keys, self.racks, self.clusters, self.slots)  # as the kernel takes them
        self.ranked_for: Shape | None = None  # the shape that used it last, and the ranking of that shape
        self.ranking = np.empty((0, 0), np.int64)
        self.column_keys: list[tuple[int, ...]] = []
        self.columns_version = -1
        self.uses = 0

    @property
    def nbytes(self) -> int:
        """Memory of the clusters that were asked for; the rest is never touched."""
        touched = float(np.mean(self.clusters[:, SEEN] >= 0))
        return int((self.keys.nbytes + self.racks.nbytes) * touched + self.clusters.nbytes)


class Engine:
    """Chooses machines on one view by one set of rules. Deterministic: same seed and same calls, same choices."""

    def __init__(
        self,
        view: View,
        rules: RuleSet,
        seed: int = 0,
        limits: CacheLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        kernel: ModuleType | None = None,
    ) -> None:
        """`kernel`: of these rules, if the view's is of others."""
        if not 0 <= seed < 2**63:
            raise InvalidInput("seed", f"is {seed}", "use a whole number from 0 to 2^63 - 1")
        self.view, self.rules, self.seed = view, rules, seed
        self.kernel: ModuleType = kernel or view.kernel
        limits = limits or CacheLimits()
        # Room for all evaluations at once: large arrays are on huge pages, and unused places take no memory.
        places, sizes = limits.evaluations, (len(view.machines), len(view.racks), len(view.clusters))
        self._evaluation_arrays = (
            zeros((places, sizes[0]), np.int64),
            zeros((places, sizes[1], 4), np.int64),
            zeros((places, sizes[2], 4), np.int64),
        )
        self._free_places = list(range(places))
        self.evaluations: Pool[Evaluation] = Pool(places, limits.max_idle, clock, self._free_evaluation)
        self.rankings: Pool[NDArray[np.int64]] = Pool(limits.rankings, limits.max_idle, clock)
        slots = max(limits.columns, len(rules.columns)) if rules.columns else 0
        self._free_slots = list(range(slots))
        self._columns = zeros((slots, len(view.machines)), np.float64)
        self._column_seen = np.full((slots, len(view.clusters)), -1, np.int64)
        self._columns_version = 0  # grows when a column is evicted, so that evaluations look for theirs again
        self.column_pool: Pool[int] = Pool(slots, limits.max_idle, clock, self._free_column)
        self._column_stats = [PoolStats() for _ in rules.columns]
        self._column_of_slot: dict[int, int] = {}
        self._column_updates = np.zeros((2, len(rules.columns)), np.int64)  # of what was there, of what was not
        self._versions, self._replaced = list(view.table_versions), view.tables_replaced
        self._numbers = rules.numbers(view.zone)
        self.data = (self._numbers, *view.tables)  # what rules are given besides rows, in the kernel's order
        self.desk = TenantDesk(view)
        self.rng = np.array([seed, seed], np.uint64)
        self._scratch = np.zeros((5, max(MOST_AMONG, len(view.clusters))), np.int64)
        self._undo = zeros((3 * len(view.machines) + 2 * len(view.racks) + len(view.clusters) + 8, 4), np.int64)

        self._assign = Direct(self.kernel.assign)
        self._look = self.kernel.look
        # What the kernel is given every time, in its order.
        looking = (
            *view.rows, self._columns, self._column_seen, self._column_updates, self.desk.row, self.desk.counts,
            self._scratch, self._undo,
        )  # fmt: skip
        self._standing = (*looking, self.rng, view.placing, rules.top_clusters, rules.last_resort)
        self._looking = (*looking, rules.top_clusters, rules.last_resort)
        self.prices: Prices | None = None  # see `pricing`
        self._among = rules.evictions.among
        self.sparing = False  # no machine will do on which others have to give way
        # Where it finds the rules; compiled when first needed, where a rule that cannot be is caught.
        self._choosing: tuple[NDArray[np.int64], tuple[Any, ...]] | None = None
        self._comparing: tuple[NDArray[np.int64], tuple[Any, ...]] | None = None

    def assign(self, shape: Shape, choice: Choice = BEST) -> Assignment:
        """Choose a machine for one VM of the tenant at the desk and put it there."""
        view, desk = self.view, self.desk
        if view.tables_replaced != self._replaced:
            self._look_anew()
        evaluation = self.evaluations.get(shape.machine_key)
        hit = evaluation is not None
        if evaluation is None:
            evaluation = self._new_evaluation(shape)
        known = evaluation.columns_version == self._columns_version
        if not known:
            self._find_columns(evaluation)
        if evaluation.ranked_for is not shape:  # mostly the same shape again
            evaluation.ranked_for, evaluation.ranking = shape, self.ranking(shape)
        else:
            self.rankings.stats.hits += 1
        evaluation.uses += 1
        view.placing_shape = shape
        if self._choosing is None:
            self._choosing = addresses(self.kernel, CHOOSING), self.data
        machine, updated, fault, tied, clusters, listed = self._assign.call(
            self._choosing, *self._standing, desk.homes, desk.constrained, shape.plain, *evaluation.arrays,
            evaluation.ranking, choice.code, self._among if self.prices or self.sparing else -1.0,
        )  # fmt: skip
        if fault:
            raise self._forget(shape, fault)
        if listed and self.sparing:
            machine = -1
        elif listed:
            machine, tied = self._cheapest(shape, evaluation, listed)
            self.kernel.put_listed(
                *view.rows, desk.row, desk.counts, view.placing, desk.homes, desk.constrained, shape.plain, machine
            )
        if hit:
            self.evaluations.stats.updated_on_hit += updated
            if updated and known:
                for key in evaluation.column_keys:
                    self.column_pool.get(key)
                    self._column_stats[key[0]].hits += 1
        else:
            self.evaluations.stats.updated_on_miss += updated
        if machine >= 0:
            view.note_placed(machine)
        return Assignment(machine, updated, hit, tied, clusters)

    @contextmanager
    def sparing_others(self) -> Iterator[None]:
        """Choose no machine on which others have to give way, if the policy makes that the last resort."""
        self.sparing = self.rules.spares_first
        try:
            yield
        finally:
            self.sparing = False

    @contextmanager
    def pricing(self, prices: Prices) -> Iterator[None]:
        """Where others have to give way, let these prices choose among the best machines."""
        self.prices = prices
        try:
            yield
        finally:
            self.prices = None

    def _cheapest(self, shape: Shape, evaluation: Evaluation, listed: int) -> tuple[int, int]:
        """Of the machines that the kernel has listed, the one with the lowest price, then key; and how many tie."""
        assert self.prices is not None
        machines = self._scratch[LISTED, :listed]
        keys = evaluation.keys[machines] | evaluation.racks[self.view.machines["rack"][machines], BITS]
        order = np.argsort(keys, kind="stable")
        best_first = machines[order].tolist()
        found = self.prices(shape, best_first)
        priced = zip(found, keys[order].tolist(), best_first, strict=True)
        known = [(price, key, m) for price, key, m in priced if price is not None]
        if not known:  # whoever would have to go cannot be asked to, wherever that is
            return best_first[0], 1
        price, key, _ = min(known, key=lambda each: each[:2])
        tied = [machine for *ours, machine in known if ours == [price, key]]
        return tied[self.kernel.lot(self.rng, len(tied))], len(tied)

    def look(self, shape: Shape, held: int = -1, other: int = -1) -> Look:
        """What would be chosen for a VM of the tenant at the desk that is on machine `held` now, were it not there.

        -1: it is nowhere. Nothing is placed, drawn or counted. `other`: a machine to compare with what is chosen.
        """
        if self.view.tables_replaced != self._replaced:
            self._look_anew()
        evaluation = self.evaluations.find(shape.machine_key) or self._new_evaluation(shape)
        if evaluation.columns_version != self._columns_version:
            self._find_columns(evaluation)
        if evaluation.ranked_for is not shape:
            evaluation.ranked_for, evaluation.ranking = shape, self.ranking(shape)
        if self._comparing is None:
            self._comparing = addresses(self.kernel, ASKED), self.data
        found = self._look(
            self._comparing, *self._looking, self.desk.constrained, shape.plain, *evaluation.arrays,
            evaluation.ranking, held, other,
        )  # fmt: skip
        if found[0]:
            raise self._forget(shape, found[0])
        return Look._make(found[1:])

    def _look_anew(self) -> None:
        """There is another version of a side table: what rests on it has to be worked out again, all of it."""
        view, known = self.view, zip(self._versions, self.view.table_versions, TABLES, strict=True)
        changed = {table for mine, version, table in known if mine != version}
        self._versions, self._replaced = list(view.table_versions), view.tables_replaced
        for slot, column in self._column_of_slot.items():
            if self.rules.columns[column].rests_on & changed:
                self._column_seen[slot] = -1
        if self.rules.rests_on & changed:
            for evaluation in self.evaluations.newest_first():
                evaluation.clusters[:] = INVALID, 0, -1, 0

    def _forget(self, shape: Shape, fault: int) -> InvalidInput:
        """Forget what a faulty rule said, so that it is named again next time."""
        self.evaluations.discard(shape.machine_key)
        self.rankings.discard(shape.cluster_key)
        return self._fault(fault)

    def ranking(self, shape: Shape) -> NDArray[np.int64]:
        """The order of clusters for a shape; brought up to date by the kernel when it is used."""
        ranking = self.rankings.get(shape.cluster_key)
        if ranking is None:
            self.rankings.expire()
            self.rankings.make_room()
            ranking = np.empty((4, len(self.view.clusters)), np.int64)
            ranking[0], ranking[1], ranking[2] = INVALID, np.arange(ranking.shape[1]), -1
            ranking[3] = self.cluster_lots(shape)
            self.rankings.put(shape.cluster_key, ranking)
        return ranking

    def cluster_lots(self, shape: Shape) -> NDArray[np.int64]:
        """How ties between clusters fall for a shape: drawn once, so that an agent keeps to clusters it knows."""
        lots = np.random.default_rng([self.seed % 2**32, *(value % 2**32 for value in shape.lots)])
        return lots.permutation(len(self.view.clusters))

    def _new_evaluation(self, shape: Shape) -> Evaluation:
        self.evaluations.expire()
        self.evaluations.make_room()
        evaluation = Evaluation(shape, self._free_places.pop(), self._evaluation_arrays)
        self._find_columns(evaluation)
        self.evaluations.put(shape.machine_key, evaluation)
        return evaluation

    def _free_evaluation(self, evaluation: Evaluation) -> None:
        self._free_places.append(evaluation.place)

    def _find_columns(self, evaluation: Evaluation) -> None:
        """Give an evaluation the derived columns of its trait values, shared with every other that has the same."""
        evaluation.column_keys = [
            (i, *(evaluation.shape.traits[t] for t in column.depends_on)) for i, column in enumerate(self.rules.columns)
        ]
        self.column_pool.expire()  # now, and not in between: the ones found first must stay until all are found
        slots = []
        for key in evaluation.column_keys:
            slot = self.column_pool.get(key)
            stats = self._column_stats[key[0]]
            if slot is None:
                stats.misses += 1
                self.column_pool.make_room()
                slot = self._free_slots.pop()
                self._column_seen[slot] = -1
                self._column_of_slot[slot] = key[0]
                self.column_pool.put(key, slot)
            else:
                stats.hits += 1
            slots.append(slot)
        evaluation.slots = np.array(slots, np.int64)
        evaluation.arrays = (evaluation.keys, evaluation.racks, evaluation.clusters, evaluation.slots)
        evaluation.columns_version = self._columns_version

    def _free_column(self, slot: int) -> None:
        self._free_slots.append(slot)
        self._column_stats[self._column_of_slot[slot]].evictions += 1
        self._columns_version += 1

    def refresh(self, steps: int = 1) -> int:
        """Use idle time: bring up to `steps` evaluations up to date, the most recently used first.

        Returns how many machines were looked at; 0 means that everything is up to date.
        """
        if self.view.tables_replaced != self._replaced:
            self._look_anew()
        for pool in (self.evaluations, self.rankings, self.column_pool):
            pool.expire()
        looked = 0
        for evaluation in list(self.evaluations.newest_first()):
            if steps == 0:
                break
            if updated := self._refresh(evaluation):
                looked += updated
                steps -= 1
        return looked

    def _refresh(self, evaluation: Evaluation) -> int:
        if evaluation.columns_version != self._columns_version:
            self._find_columns(evaluation)
        view = self.view
        updated, fault = self.kernel.refresh_known_clusters(
            *view.rows, evaluation.shape.row,
            evaluation.keys, evaluation.racks, evaluation.clusters,
            self._columns, self._column_seen, evaluation.slots, self._column_updates, self.data,
        )  # fmt: skip
        if fault:
            self.evaluations.discard(evaluation.shape.machine_key)
            raise self._fault(fault)
        self.evaluations.stats.updated_idle += updated
        return int(updated)

    def judge(self, view: View, shape: Shape, desk: TenantDesk) -> Judgement:
        """Every cluster and machine judged from scratch on any view, for explanations and as the uncached baseline."""
        result = Judgement(
            np.empty(len(view.clusters), np.int64),
            np.empty(len(view.machines), np.int16),
            np.empty(len(view.machines), np.int16),
            np.empty(len(view.machines), np.int64),
        )
        n = len(self.rules.columns)
        slots, tally = np.arange(n), np.zeros((2, n), np.int64)
        columns, seen = np.empty((n, len(view.machines))), np.full((n, len(view.clusters)), -1, np.int64)
        fault = self.kernel.judge(
            *view.rows, shape.row, columns, seen, slots, tally,
            (self._numbers, *view.tables), desk.row, desk.counts, desk.constrained, *result,
        )  # fmt: skip
        if fault:
            raise self._fault(fault)
        return result

    def _fault(self, fault: int) -> InvalidInput:
        of_clusters = fault > CLUSTER_FAULT
        rules = self.rules.cluster_preferences if of_clusters else self.rules.preferences
        guilty = rules[(fault - CLUSTER_FAULT if of_clusters else fault) - 1].rule.name
        return InvalidInput(f"rule {guilty}", "gave a score outside 0 to 1", "correct the rule")

    def cache_stats(self) -> dict[str, PoolStats]:
        """Requests, hits, misses and machines updated, for each class of cached objects."""
        classes = {"evaluation": self.evaluations.stats, "ranking": self.rankings.stats}
        for i, (column, stats) in enumerate(zip(self.rules.columns, self._column_stats, strict=True)):
            stats.updated_on_hit, stats.updated_on_miss = (int(count) for count in self._column_updates[:, i])
            classes[f"column {column.name}"] = stats
        return classes

    def memory(self) -> dict[str, int]:
        """Bytes held, by what holds them."""
        view = self.view
        return {
            "rows": view.machines.nbytes + view.racks.nbytes + view.clusters.nbytes,
            "journal": view.links.nbytes + view.journal.nbytes,
            "evaluations": sum(e.nbytes for e in self.evaluations.newest_first()),
            "rankings": len(self.rankings) * 4 * len(view.clusters) * 8,
            "columns": len(self.column_pool) * 8 * len(view.machines),
            "tenant desk": self.desk.counts.nbytes + self.desk.homes.nbytes,
        }


class Judgement(NamedTuple):
    """Keys and verdicts of a whole zone for one VM; see `judge` in the kernel."""

    cluster_keys: NDArray[np.int64]
    verdicts: NDArray[np.int16]
    details: NDArray[np.int16]
    keys: NDArray[np.int64]
