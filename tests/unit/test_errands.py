"""What takes long is done a slice at a time, by only so many at once, and not for ever."""

import asyncio

import pytest

from roost.api import errands
from roost.api.errands import MOST_WAITING, SLOTS, Errands
from roost.api.problems import Refused
from roost.engine.steps import CutShort, Steps, finish


def counting(steps: int, seen: list[int]) -> Steps[str]:
    for i in range(steps):
        seen.append(i)
        yield
    return f"{steps} steps"


def patient(seen: list[str]) -> Steps[str]:
    """Something that tells what it has when it is cut short."""
    try:
        while True:
            seen.append("step")
            yield
    except CutShort:
        return "half of it"


def stubborn() -> Steps[str]:
    """Something that has nothing to tell before its end."""
    while True:
        yield


@pytest.fixture(autouse=True)
def _one_step_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errands, "SLICE_SECONDS", 0.0)


def test_all_at_once_or_step_by_step_the_outcome_is_the_same() -> None:
    assert finish(counting(3, [])) == "3 steps"
    assert asyncio.run(Errands(lambda: True).run(lambda: counting(3, []), 1.0)) == "3 steps"


def test_others_have_their_turn_between_two_slices() -> None:
    seen: list[int] = []

    async def both() -> list[int]:
        working = asyncio.create_task(Errands(lambda: False).run(lambda: counting(1_000, seen), 10.0))
        progress = []
        while not working.done():
            progress.append(len(seen))
            await asyncio.sleep(0)
        return progress

    progress = asyncio.run(both())
    assert len(set(progress)) > 100, "it was done in a few large pieces"


def test_an_errand_that_takes_too_long_tells_what_it_has_or_nothing() -> None:
    seen: list[str] = []
    desk = []

    async def ask() -> str:
        desk.append(Errands(lambda: False))
        return await desk[0].run(lambda: patient(seen), 0.001)

    assert asyncio.run(ask()) == "half of it"
    assert desk[0].cut_short == 1
    with pytest.raises(CutShort):
        asyncio.run(Errands(lambda: False).run(stubborn, 0.001))


def test_only_so_many_are_done_at_once_and_only_so_many_wait() -> None:
    begun: list[int] = []
    over = asyncio.Event()

    def one(number: int) -> Steps[int]:
        begun.append(number)
        while not over.is_set():
            yield
        return number

    async def crowd() -> None:
        desk = Errands(lambda: False)
        asked = [asyncio.create_task(desk.run(lambda i=i: one(i), 100.0)) for i in range(SLOTS + MOST_WAITING)]  # type: ignore[misc]
        for _ in range(5):
            await asyncio.sleep(0)
        assert begun == list(range(SLOTS))
        assert desk.waiting == MOST_WAITING
        with pytest.raises(Refused, match="others wait") as refused:
            await desk.run(lambda: one(-1), 1.0)
        assert refused.value.code == "roost.overloaded"
        over.set()
        assert await asyncio.gather(*asked) == list(range(SLOTS + MOST_WAITING))
        assert desk.waiting == 0

    asyncio.run(crowd())


def test_an_errand_that_fails_gives_its_slot_back() -> None:
    def broken() -> Steps[None]:
        yield
        raise ValueError("a bug")

    async def again_and_again() -> None:
        desk = Errands(lambda: False)
        for _ in range(SLOTS + 1):
            with pytest.raises(ValueError, match="a bug"):
                await desk.run(broken, 1.0)
        assert await desk.run(lambda: counting(1, []), 1.0) == "1 steps"

    asyncio.run(again_and_again())


def test_who_has_no_patience_is_refused_while_others_have_the_slots() -> None:
    async def crowd() -> None:
        desk = Errands(lambda: False)
        others = [asyncio.create_task(desk.run(stubborn, 100.0)) for _ in range(SLOTS)]
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="took too long"):
            await desk.run(lambda: counting(1, []), 1.0, patience=0.001)
        assert (desk.waiting, desk.refused) == (0, 1)
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        assert await desk.run(lambda: counting(1, []), 1.0) == "1 steps"

    asyncio.run(crowd())
