"""The world outside: who asks for VMs when, and when they leave. What was there before the beginning belongs to it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from roost.agent.operation import Answer
from roost.agent.ticket import Ticket
from roost.agent.verbs.entry import SetEntry
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.agent.verbs.table import verb_of
from roost.duties import healing, requeue
from roost.engine.funnel import chosen_clusters, machine_stages
from roost.model.errors import InvalidInput, InvariantBroken, Outdated, UnknownName
from roost.model.registry import WAITING
from roost.model.request import Placement, Request
from roost.sim.crew import Crew
from roost.sim.events import LEAVE, Events
from roost.sim.experiment import Experiment
from roost.sim.guests import Guest, Guests
from roost.sim.tracker import Tracker
from roost.sim.virtual import NEVER, Clock, SimulatedWorker
from roost.traces.standing import standing_population
from roost.traces.workload import Workload

STANDING, OTHERWISE = -1, -4  # in place of the number of a request
ASKED_BY = {healing.BY: -2, requeue.BY: -3}  # the same of what duties asked for
PLACED, DECLINED, GAVE_UP, INVALID = range(4)
STATUS = {"done": PLACED, "declined": DECLINED, "conflicts": GAVE_UP, "invalid": INVALID, "unavailable": INVALID}
GONE = (Outdated.code, UnknownName.code)
STANDING_CHUNK = 128  # VMs that are asked for at once to fill a zone
BEFORE = -1.0  # the time at which that is


class World:
    """Arrivals and departures of a workload."""

    def __init__(
        self,
        experiment: Experiment,
        workload: Workload,
        clock: Clock,
        events: Events,
        crew: Crew,
        guests: Guests,
        tracker: Tracker,
        warm_up: float,
    ) -> None:
        self._experiment, self._clock, self._events = experiment, clock, events
        self._workload = replace(workload, requeue=True) if experiment.requeue else workload
        self._crew, self._guests, self._tracker, self._warm_up = crew, guests, tracker, warm_up
        self.arrival = workload.arrival / experiment.speed
        self._lifetime = workload.lifetime / experiment.speed
        self.next = 0  # arrival
        self.open = 0  # requests that have no answer

    # ------------------------------------------------------------------------------------------------- arrivals

    def arrive(self) -> None:
        """The next request of the workload."""
        number, self.next = self.next, self.next + 1
        request = self._workload.request(number)
        every = self._experiment.funnel
        if every and number % every == 0 and self._clock.now >= self._warm_up:
            self._look_at_funnel(request)
        self._ask(request, number)

    def _ask(self, request: Request, number: int, lifetime: float = NEVER) -> None:
        self.open += 1
        self._crew.submit(PlaceVMs(request), partial(self._placed, number, self._clock.now, len(request.vms), lifetime))

    def _placed(self, number: int, arrived: float, vms: int, lifetime: float, answer: Answer) -> None:
        """A request is answered. `lifetime`: of one that fills the zone."""
        self.open -= 1
        self._log(number, arrived, vms, answer)
        if answer.ok and number == STANDING:
            self._stay(answer.placements, [lifetime])
        elif answer.ok:
            low = int(self._workload.first[number])
            self._stay(answer.placements, self._lifetime[low : low + vms].tolist())

    def _log(self, number: int, arrived: float, vms: int, answer: Answer) -> None:
        self._tracker.answered(
            number,
            arrived,
            self._clock.now,
            vms,
            STATUS[answer.status],
            self._crew.answering,
            answer.waited_us / 1e6,
            answer.retries,
        )

    def _stay(self, placements: Sequence[Placement], lifetimes: Sequence[float]) -> None:
        """VMs run; they will leave when their time is over, together with those whose time is over then, too."""
        leaving: dict[float, list[Guest]] = {}
        by_name = self._guests.by_name
        for placement, lifetime in zip(placements, lifetimes, strict=True):
            if lifetime == NEVER or (guest := by_name.get(placement.vm)) is None:
                continue  # it stays, or had to give way at once
            if lifetime in leaving:
                leaving[lifetime].append(guest)
            else:
                leaving[lifetime] = [guest]
        for lifetime, together in leaving.items():
            self._events.after(lifetime, LEAVE, together)

    def _look_at_funnel(self, request: Request) -> None:
        """How the rules narrow the zone for the first VM of a request, on the first agent's copy."""
        allocator = self._crew.workers[0].agent.allocator
        arm = allocator.arm_of(request.tenant)
        engine, view = arm.engine, allocator.view
        with suppress(InvalidInput):  # a type that the zone does not know
            shape = arm.shapes.of(request.vms[0], 0, "vm")
            judged = engine.judge(view, shape, engine.desk)
            self._tracker.narrowed(machine_stages(engine, view, judged, chosen_clusters(engine, view, shape, judged)))

    def note(self, worker: SimulatedWorker, ticket: Ticket) -> None:
        """Duties have placed VMs again; tries in vain count nowhere, as what waits does."""
        answer = ticket.answer
        if answer is not None and answer.ok and not answer.replayed and verb_of(ticket.operation).places:
            self._crew.answering = worker.number
            self._log(ASKED_BY.get(ticket.by, OTHERWISE), ticket.submitted, len(answer.placements), answer)

    # ----------------------------------------------------------------------------------------------- departures

    def leave(self, guests: Sequence[Guest]) -> None:
        """The time of VMs of one tenant is over."""
        over = [guest for guest in guests if self._is_there(guest)]
        for guest in over:
            guest.leaving = True
        self._take_off(over)

    def _is_there(self, guest: Guest) -> bool:
        """Another VM may have its name by now."""
        return self._guests.by_name.get(guest.name) is guest

    def _take_off(self, guests: Sequence[Guest]) -> None:
        """Take VMs of one tenant off their machines, up or down; who waits for room, waits no more."""
        running = [guest for guest in guests if not guest.waits]
        if running:
            release = ReleaseVMs(running[0].tenant, tuple([guest.name for guest in running]))
            self._crew.submit(release, partial(self._taken_off, running))
        if len(running) < len(guests):
            for guest in guests:
                if guest.waits:
                    self._crew.submit(SetEntry(WAITING, guest.name), partial(self._taken_off, [guest]))

    def _taken_off(self, guests: Sequence[Guest], answer: Answer) -> None:
        """Some may be there still: they gave way, or were placed again, just before; or an agent knew no better."""
        if not (answer.ok or answer.status == "conflicts" or answer.code in GONE):
            raise InvariantBroken(f"VM {guests[0].name} of {guests[0].tenant} cannot be released: {answer.detail}")
        if not answer.ok:
            self._crew.hurry()
        if left := [guest for guest in guests if self._is_there(guest)]:
            self._take_off(left)

    # ------------------------------------------------------------------------------------------ before the beginning

    def fill(self, cores: float, seed: int) -> None:
        """Ask for VMs like those of the workload, as one would find them running, just before the beginning."""
        standing = standing_population(self._workload, cores, seed)
        lifetimes = (standing.lifetime / self._experiment.speed).tolist()
        for number in range(standing.requests):
            self._ask(standing.request(number), STANDING, lifetimes[number] - BEFORE)
            if number % STANDING_CHUNK == STANDING_CHUNK - 1:
                self._crew.let_work()
        self._crew.let_work()
