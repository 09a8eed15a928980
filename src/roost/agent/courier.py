"""Carries proposals to a store and brings back outcomes and news, so that deciding never waits for I/O."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

import msgspec

from roost.model.errors import RoostError, StoreUnavailable
from roost.settings import StoreSection
from roost.store.contract import Conflict, Outcome, Proposal, Round, Store
from roost.store.feed import Feed
from roost.store.recheck import Recheck

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0  # seconds between attempts to reach the store
ROWS = 1_000  # of the feed, at once
HINT_SECONDS = 0.5  # how long to wait for a hint before asking anyway
# Seconds between looks at the feed that nobody waits for: so many times as long as the last one took, within bounds.
# One look serves many commits, and takes little of a machine that is busy.
REST, SHORTEST_REST, LONGEST_REST = 10.0, 0.003, 0.05


class Group(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The proposals of one round."""

    round: Round
    proposals: Sequence[Proposal]
    recheck: Recheck
    strict: bool = False

    def wants_news(self, outcomes: Sequence[Outcome]) -> bool:
        """Whether its answer has to come with all that was committed before.

        Whoever asks looks again afterwards; so does an agent that knew too little, and one that is refused whatever it
        decides on an outdated machine.
        """
        return (
            self.strict
            or any(proposal.asks for proposal in self.proposals)
            or any(isinstance(outcome, Conflict) and outcome.behind for outcome in outcomes)
        )

    @property
    def plain(self) -> bool:
        """Whether the feed will bring nothing of it that the agent's copy has not assumed already."""
        return all(proposal.plain for proposal in self.proposals)

    def commit(self, store: Store) -> list[Outcome]:
        """What a store makes of it."""
        return store.commit(self.proposals, self.recheck, strict=self.strict, round_=self.round)


class Delivery(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What came back: outcomes of a group, in its order, or why there are none; and the feed since."""

    round: int | None = None
    outcomes: Sequence[Outcome] = ()
    feed: Feed | None = None
    error: RoostError | None = None
    seconds: float = 0.0  # the store took
    behind: bool = False  # there are news that should have come with it, and did not


class Courier(Protocol):
    """Takes groups to the store, one after another, in order. Who wants news gets them with the answer."""

    def send(self, group: Group) -> None:
        """Commit this when its turn comes."""

    def receive(self, seconds: float = 0.0) -> list[Delivery]:
        """What came back so far; waits up to `seconds` for something."""

    def follow(self, revision: int) -> None:
        """Bring news after this revision from now on."""

    def close(self) -> None:
        """Stop."""


def _as_roost_error(error: Exception) -> RoostError:
    """Whatever a store raises that is not an error of ours: it counts as a store that is away, outcome unknown."""
    return error if isinstance(error, RoostError) else StoreUnavailable(f"the store failed: {error!r}")


class _Reader:
    """Reads the feed in the caller's thread, whenever something is received."""

    def __init__(self, store: Store) -> None:
        self._feed, self._revision = store, 0

    def follow(self, revision: int) -> None:
        """Bring news after this revision from now on."""
        self._revision = revision

    def _with_news(self, back: list[Delivery]) -> list[Delivery]:
        """What came back, and then the feed."""
        try:
            feed = self._feed.changes(self._revision)
        except StoreUnavailable:  # the news can wait, the outcomes cannot
            return [msgspec.structs.replace(each, behind=True) for each in back]
        if feed.rows:
            self._revision = feed.rows[-1].last
        return [*back, Delivery(feed=feed)] if feed.rows or feed.reload else back


class InlineCourier(_Reader):
    """Commits at once, in the caller's thread: where a commit is computing rather than waiting, and in simulations."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._store = store
        self._back: list[Delivery] = []

    def send(self, group: Group) -> None:
        """Commit this now; the outcomes wait to be received."""
        started = time.perf_counter()
        try:
            outcomes = group.commit(self._store)
            self._back.append(Delivery(group.round.number, outcomes, seconds=time.perf_counter() - started))
        except Exception as error:
            self._back.append(Delivery(group.round.number, error=_as_roost_error(error)))

    def receive(self, seconds: float = 0.0) -> list[Delivery]:
        """The outcomes so far, and the feed."""
        back, self._back = self._back, []
        if not back and seconds > 0:
            self._store.wait(self._revision, seconds)
        return self._with_news(back)

    def close(self) -> None:
        """Nothing to stop."""


class PreparingStore(Store, Protocol):
    """A store that can leave waiting for the disk to another thread."""

    @property
    def writing(self) -> bool:
        """Whether whoever prepares something has to wait."""

    def prepare(
        self, group: Sequence[Proposal], recheck: Recheck, *, strict: bool = False, round_: Round | None = None
    ) -> Callable[[], list[Outcome]]:
        """Settle a group, all but for the disk; what is returned makes it durable, in any thread."""


class DiskCourier(_Reader):
    """Settles in the caller's thread, and waits for the disk in another: the caller decides meanwhile.

    Where settling is computing in this process, two threads that both compute would only get in each other's way.
    """

    def __init__(self, store: PreparingStore, notify: Callable[[], None] = lambda: None) -> None:
        """`notify` is called, in the other thread, when there is something to receive."""
        super().__init__(store)
        self._store, self._notify = store, notify
        self._waiting: deque[Group] = deque()  # groups to settle when the one before is on the disk
        self._busy = False
        self._back: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self._disk = ThreadPoolExecutor(1, "roost-disk")

    def send(self, group: Group) -> None:
        """Commit this when its turn comes: not now, as whoever sends it has computed enough."""
        self._waiting.append(group)

    def _go_on(self) -> None:
        """Settle the next group: none is on its way to the disk."""
        group, started = self._waiting.popleft(), time.perf_counter()
        self._busy = True
        if self._store.writing:  # by somebody who does not pass here: not for the caller to wait for
            self._disk.submit(self._finish, group, partial(group.commit, self._store), started)
            return
        try:
            finish = self._store.prepare(group.proposals, group.recheck, strict=group.strict, round_=group.round)
        except Exception as error:
            self._busy = False
            self._back.put(Delivery(group.round.number, error=_as_roost_error(error)))
            self._notify()
        else:
            self._disk.submit(self._finish, group, finish, started)

    def _finish(self, group: Group, finish: Callable[[], Sequence[Outcome]], started: float) -> None:
        """In the other thread."""
        try:
            back = Delivery(group.round.number, finish(), seconds=time.perf_counter() - started)
        except Exception as error:
            back = Delivery(group.round.number, error=_as_roost_error(error))
        self._busy = False
        self._back.put(back)
        self._notify()

    def receive(self, seconds: float = 0.0) -> list[Delivery]:
        """The outcomes so far, and the feed."""
        back = self._came_back() if not self._back.empty() else []
        if not back:  # else whoever called has something to do, and comes again
            if self._waiting and not self._busy:
                self._go_on()
            if seconds > 0:
                back = self._came_back(seconds) if self._busy else []
                if not back:
                    self._store.wait(self._revision, seconds)
        try:
            return self._with_news(back)
        except Exception:
            if not back:
                raise
            return [msgspec.structs.replace(each, behind=True) for each in back]  # a bug shows the next time

    def _came_back(self, seconds: float = 0.0) -> list[Delivery]:
        found: list[Delivery] = []
        with contextlib.suppress(queue.Empty):
            if seconds > 0:
                found.append(self._back.get(timeout=seconds))
            while True:
                found.append(self._back.get_nowait())
        return found

    def close(self) -> None:
        """Stop, after what is being committed."""
        self._disk.shutdown()


class ThreadCourier:
    """Commits in a thread of its own, reads the feed in another, and listens for hints in a third.

    Keeps trying while the store is away. Who waits for news (an answer that the feed has to bring) has them at once;
    else looks at the feed keep a distance, and while they bring something nobody has to listen for hints.
    """

    def __init__(
        self,
        store: Store,
        *,
        patience: float = StoreSection.patience_seconds,
        clock: Callable[[], float] = time.monotonic,
        notify: Callable[[], None] = lambda: None,
    ) -> None:
        """`patience`: seconds to try to reach a store that is away before a group is given back.

        `notify` is called, in a thread of the courier's, when there is something to receive.
        """
        self._store, self._patience, self._clock, self._notify = store, patience, clock, notify
        self._out: queue.SimpleQueue[Group | None] = queue.SimpleQueue()
        self._back: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self._closing, self._news = threading.Event(), threading.Event()
        self._hurry = threading.Event()  # set: somebody waits for news
        self._quiet = threading.Event()  # set: the last look brought nothing
        self._quiet.set()
        self._revision = 0
        self._in_order = threading.Lock()  # held from reading a stretch of the feed until it is on its way
        self._threads = [
            threading.Thread(target=work, name=f"roost-{name}", daemon=True)
            for name, work in (("courier", self._carry), ("reader", self._read), ("listener", self._listen))
        ]
        for thread in self._threads:
            thread.start()

    def send(self, group: Group) -> None:
        """Commit this when its turn comes."""
        self._out.put(group)

    def receive(self, seconds: float = 0.0) -> list[Delivery]:
        """What came back so far; waits up to `seconds` for something."""
        found: list[Delivery] = []
        try:
            found.append(self._back.get(timeout=seconds) if seconds > 0 else self._back.get_nowait())
            while True:
                found.append(self._back.get_nowait())
        except queue.Empty:
            return found

    def follow(self, revision: int) -> None:
        """Bring news after this revision from now on."""
        self._revision = revision

    def close(self) -> None:
        """Stop, after what is being committed."""
        for each in (self._closing, self._news, self._hurry, self._quiet):
            each.set()
        self._out.put(None)
        for thread in self._threads:
            thread.join()

    def _carry(self) -> None:
        """Commit group after group."""
        while True:
            group = self._out.get()
            if group is None or self._closing.is_set():
                return
            started = self._clock()
            outcomes: Sequence[Outcome] = ()
            error: RoostError | None = None
            try:
                outcomes = self._persist(group, started)
            except Exception as failure:  # nothing may end this thread: whoever sent the group waits for an answer
                error = _as_roost_error(failure)
            seconds = self._clock() - started
            if group.wants_news(outcomes):
                with self._in_order:
                    feed = self._more(patient=True)
                    behind = feed is None or len(feed.rows) == ROWS
                    self._deliver(Delivery(group.round.number, outcomes, feed, error, seconds, behind))
            else:
                self._deliver(Delivery(group.round.number, outcomes, None, error, seconds))
                self._news.set()
                if not group.plain:
                    self._hurry.set()

    def _deliver(self, delivery: Delivery) -> None:
        self._back.put(delivery)
        self._notify()

    def _persist(self, group: Group, started: float) -> list[Outcome]:
        """Commit a group, again and again while the store is away: what it did before, it only repeats."""
        pause = FIRST_PAUSE
        while True:
            try:
                return group.commit(self._store)
            except StoreUnavailable:
                if self._clock() - started > self._patience or self._closing.wait(pause):
                    raise
                pause = min(2 * pause, LONGEST_PAUSE)

    def _read(self) -> None:
        """Bring the feed whenever there may be news."""
        while True:
            self._news.wait()
            self._news.clear()
            self._hurry.clear()
            if self._closing.is_set():  # looked at after that: whoever closes says so first
                return
            started = self._clock()
            with self._in_order:
                feed = self._more()
                if feed and (feed.rows or feed.reload):
                    self._deliver(Delivery(feed=feed))
            if feed and feed.rows:
                self._quiet.clear()
                self._news.set()  # there will be more
            else:
                self._quiet.set()
            self._hurry.wait(min(LONGEST_REST, max(SHORTEST_REST, REST * (self._clock() - started))))

    def _more(self, *, patient: bool = False) -> Feed | None:
        """The next stretch of the feed."""
        try:
            feed = self._store.changes(self._revision, ROWS, patient=patient)
        except Exception:
            self._closing.wait(FIRST_PAUSE)
            return None
        if feed.rows:
            self._revision = feed.rows[-1].last
        if len(feed.rows) == ROWS:  # there is more
            self._news.set()
            self._hurry.set()
        return feed

    def _listen(self) -> None:
        """Have the feed read when somebody else has committed, and now and then in any case."""
        while not self._closing.is_set():
            idle = self._quiet.wait(HINT_SECONDS)
            try:  # a busy one only lets go of the hints that have come: else they would pile up in the store
                self._store.wait(self._revision, HINT_SECONDS if idle else 0.0)
            except Exception:
                self._closing.wait(LONGEST_PAUSE)
            if idle:
                self._quiet.clear()  # until the look has shown whether it is
                self._news.set()
