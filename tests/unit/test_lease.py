"""A walk has the zone for as long as it says so, and does nothing more once it cannot be sure of that."""

from __future__ import annotations

from typing import Any, cast

import pytest

from roost.client import Client, Problem, ServiceProblem
from roost.client.lease import Lease
from roost.wire.maintenance import WalkHold, WalkView


class Desk:
    """A service that lets somebody have the zone, or not."""

    def __init__(self) -> None:
        self.holds: list[WalkHold] = []
        self.ended: list[str] = []
        self.refuses = ""

    def hold_walk(self, hold: WalkHold) -> WalkView:
        if self.refuses:
            said: dict[str, Any] = {"type": "", "title": "No", "status": 409, "detail": "taken", "retryable": False}
            raise ServiceProblem(Problem(**said, code=self.refuses))
        self.holds.append(hold)
        return WalkView(walk=hold.walk, owner=hold.owner, by="", since=0.0, seconds=60.0, silent=0.0, machines=("m9",))

    def end_walk(self, walk: str) -> None:
        self.ended.append(walk)


def lease_on(desk: Desk, now: list[float], **more: Any) -> Lease:
    return Lease(cast(Client, desk), clock=lambda: now[0], **more)


def test_it_is_had_until_its_end_and_tells_what_is_out_of_use_beside_what_another_left() -> None:
    desk = Desk()
    with lease_on(desk, [0.0], take_over=True) as lease:
        assert desk.holds[0].take_over
        lease.tell(3, ["m1"])
        lease.settled(["m9"])
        lease.tell(3, [])
    assert [(hold.domain, hold.machines) for hold in desk.holds] == [(None, None), (3, ("m1", "m9")), (3, ())]
    assert desk.ended == [desk.holds[0].walk]


def test_whoever_could_not_say_that_it_goes_on_asks_before_it_does_anything() -> None:
    desk, now = Desk(), [0.0]
    with lease_on(desk, now, seconds=60.0) as lease:
        now[0] = 29.0
        lease.check()
        assert len(desk.holds) == 1
        now[0] = 31.0
        lease.check()
        assert len(desk.holds) == 2
        now[0], desk.refuses = 70.0, "roost.conflict"
        for _ in range(2):
            with pytest.raises(ServiceProblem, match="taken"):
                lease.check()


def test_a_service_that_is_away_for_a_while_takes_nothing_from_anybody() -> None:
    desk, now = Desk(), [0.0]
    with lease_on(desk, now) as lease:
        now[0], desk.refuses = 40.0, "roost.store_unavailable"
        with pytest.raises(ServiceProblem):
            lease.check()
        desk.refuses = ""
        lease.check()
