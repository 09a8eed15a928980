"""A worker: one agent that is fed with lines of JSON and answers with lines of JSON.

    {"key": "a1", "do": "place", "request": {"tenant": "web", "vms": [{"type": "D2"}]}}
    {"key":"a1","status":"done","placements":[{"vm":"web/0","type":"D2","machine":"c000-r01-m07"}]}

Answers come when they are ready, not in the order of the questions. A line that cannot be understood is answered with
status `invalid`. When the input ends, what is under way is finished.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from roost.agent.agent import Agent
from roost.agent.operation import Answer, Operation
from roost.agent.verbs.table import convert_operation, verb_of
from roost.duties.duty import Roster
from roost.duties.table import DUTIES, Runner, make_roster
from roost.model.errors import InvalidInput
from roost.settings import Settings

IDLE_SECONDS = 0.1  # between looks at the feed
BUSY_SECONDS = 0.005
READ_AHEAD = 1_000  # lines
DEFAULTS = Settings()

_line = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


def parse(line: bytes | str) -> tuple[str, dict[str, Any]]:
    """The key of a line, and the rest, which says what to do."""
    try:
        given = _line(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput("line", f"is no JSON object: {error}", 'write {"key": …, "do": "place", …}') from None
    key = given.pop("key", "")
    if not isinstance(key, str):
        raise InvalidInput("key", f"is {key!r}", "use a text")
    return key, given


def operation_of(given: dict[str, Any]) -> Operation:
    """What to do."""
    try:
        operation = convert_operation(given)
    except msgspec.ValidationError as error:
        raise InvalidInput("line", str(error), "see `roost worker --help` for what can be asked") from None
    verb_of(operation).check(operation)
    return operation


def serve(agent: Agent, lines: Iterable[bytes], write: Callable[[bytes], None], settings: Settings = DEFAULTS) -> None:
    """Work until the input ends and everything is answered. `settings`: by which duties go."""
    inbox: queue.Queue[bytes | None] = queue.Queue(READ_AHEAD)
    threading.Thread(target=_read, args=(lines, inbox), name="roost-reader", daemon=True).start()

    def answer(given: Answer) -> None:
        write(_encode(given) + b"\n")

    aside = ThreadPoolExecutor(len(DUTIES), "roost-duty")
    clock, time_of_day = agent.context.clock, agent.context.now
    roster = make_roster(Runner(agent, settings, clock=clock, time_of_day=time_of_day, executor=aside))
    try:
        _work(agent, inbox, answer, roster)
    finally:
        aside.shutdown(wait=False, cancel_futures=True)


def _work(agent: Agent, inbox: queue.Queue[bytes | None], answer: Callable[[Answer], None], roster: Roster) -> None:
    ended = False
    while not (ended and agent.idle):
        try:
            line = inbox.get(timeout=IDLE_SECONDS) if agent.idle and not ended else inbox.get_nowait()
            while True:
                if line is None:
                    ended = True
                elif line.strip():
                    _submit(agent, line, answer)
                line = inbox.get_nowait()
        except queue.Empty:
            if not ended:
                roster.step(agent.context.clock())
            agent.step(0.0 if agent.idle else BUSY_SECONDS)


def _read(lines: Iterable[bytes], inbox: queue.Queue[bytes | None]) -> None:
    for line in lines:
        inbox.put(line)
    inbox.put(None)


def _submit(agent: Agent, line: bytes, answer: Callable[[Answer], None]) -> None:
    key = ""
    try:
        key, given = parse(line)
        agent.submit(operation_of(given), key, answer)
    except InvalidInput as error:
        answer(Answer(key=key, status="invalid", detail=str(error)))
