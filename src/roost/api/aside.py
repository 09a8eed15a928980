"""Work in a thread that nobody waits for when the process ends: a store may keep it for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def aside(work: Callable[[], T]) -> T:
    """Do something in a thread that nobody waits for when the process ends: it may wait for what never comes."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # whoever gives up waiting does not stop it

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="roost-aside", daemon=True).start()
    return await asyncio.wrap_future(done)
