"""Where the processor's time of a worker goes, by stages of a request: samples of its stacks, told apart by a table.

A timer counts what the process computes, all its threads together (ITIMER_PROF), and after every 5 ms of it the kernel
interrupts the thread that is computing just then. `faulthandler` writes down that thread's stack on the spot: in C,
without taking the interpreter's lock. So a sample lands where time is spent, in a long call of compiled code or in the
kernel too. A sampling thread would have to wait for the lock, and would find the others where they let go of it: at
sockets, between two callbacks of the loop, after a kernel of ours.

A sample counts for the stage of the innermost frame that the table knows; helpers that several stages call are not in
it, so their callers decide. A call of C has no frame: it counts for the Python function that called it.

It is good for shares of some percent: 1,000 samples tell 10 % from 12 %, not from 10.5 %. It is not good for absolute
times, as to write a stack down takes some hundredths of the time sampled: those are measured without it.
"""

from __future__ import annotations

import faulthandler
import re
import signal
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import IO

SECONDS = 0.005  # of computing between samples
PARSE, DECIDE, SETTLE, ENCODE = "parse and gate", "decide", "settle", "encode"
COMMIT, FETCH, FOLLOW, ANSWER, LOOP, OTHER = "commit", "fetch", "follow", "answer", "loop", "other"
ALL = (PARSE, DECIDE, SETTLE, ENCODE, COMMIT, FETCH, FOLLOW, ANSWER, LOOP, OTHER)
# By file and function, by file, or by folder: the first that is known counts.
STAGES = {
    # A request comes in: its bytes are parsed, it passes the gate, and is queued.
    "uvicorn/protocols/http/": PARSE,
    "roost/api/protocol.py": PARSE,
    "roost/api/gate.py": PARSE,
    "roost/api/express.py": PARSE,
    "roost/api/routes/": PARSE,
    "roost/api/service.py:submit": PARSE,
    # A round is decided on the agent's own copy, and handed to the courier.
    "roost/agent/agent.py:_decide_round": DECIDE,
    # The proposals of a group are settled on the rows that were read.
    "roost/store/settle/": SETTLE,
    "roost/store/scopes/": SETTLE,
    # Values become what the database takes, and rows become values.
    "roost/store/codec.py": ENCODE,
    "roost/store/postgres_trip.py:add": ENCODE,
    "roost/store/postgres_trip.py:_rows": ENCODE,
    # The rest of a commit: talking to the database.
    "roost/agent/courier.py:_carry": COMMIT,
    "roost/store/postgres.py:commit": COMMIT,
    "roost/store/postgres.py:_commit": COMMIT,
    "roost/store/postgres.py:_settle": COMMIT,
    # The feed is fetched, by threads of its own.
    "roost/agent/courier.py:_read": FETCH,
    "roost/agent/courier.py:_listen": FETCH,
    "roost/agent/courier.py:_more": FETCH,
    "roost/store/postgres.py:changes": FETCH,
    "roost/store/postgres.py:wait": FETCH,
    "roost/store/codec.py:feed_row": FETCH,
    # The copy is brought up to date with what the feed says that others did.
    "roost/agent/agent.py:_follow": FOLLOW,
    "roost/agent/agent.py:_reload": FOLLOW,
    # What the store said is taken in, and whoever asked is answered.
    "roost/agent/agent.py:_take_in": ANSWER,
    "roost/agent/outcomes.py": ANSWER,
    "roost/api/service.py:_done": ANSWER,
    "roost/api/routes/common.py:placed": ANSWER,
    "roost/api/routes/common.py:concluded": ANSWER,
    "roost/api/gate.py:answer": ANSWER,
    "roost/api/gate.py:_note": ANSWER,
    "uvicorn/protocols/http/httptools_impl.py:send": ANSWER,
    "roost/api/protocol.py:write": ANSWER,
    "roost/api/protocol.py:flush": ANSWER,
}
TURNING = "asyncio/runners.py"  # no other frame inside: the loop itself, which waits, reads and writes sockets
ROOTS = ("/roost/", "/psycopg/", "/uvicorn/", "/asyncio/")
HEAD = "Stack (most recent call first):\n"
FRAME = re.compile(r'^  File "(.*)", line \d+ in (?:.*\.)?(.*)$', re.MULTILINE)


def prepare(samples: IO[bytes]) -> None:
    """Where this process is to write its samples, once it takes any."""
    faulthandler.register(signal.SIGPROF, file=samples, all_threads=False)


def sample(on: bool) -> None:
    """Begin to take samples of this process, or stop."""
    seconds = SECONDS if on else 0.0
    signal.setitimer(signal.ITIMER_PROF, seconds, seconds)


def shares(samples: Iterable[str]) -> dict[str, float]:
    """The share of each stage, of what processes have written."""
    found = Counter(stage_of(FRAME.findall(stack)) for text in samples for stack in text.split(HEAD)[1:])
    return {stage: found[stage] / max(1, found.total()) for stage in ALL}


def stage_of(frames: Sequence[tuple[str, str]]) -> str:
    """The stage of a stack: files and functions, innermost first."""
    for number, (path, function) in enumerate(frames):
        file = path[max(path.rfind(root) for root in ROOTS) + 1 :]
        if file == TURNING and number == 0:
            return LOOP
        for key in (f"{file}:{function}", file, file[: file.rfind("/") + 1]):
            if key in STAGES:
                return STAGES[key]
    return OTHER
