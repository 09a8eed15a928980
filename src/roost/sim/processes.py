"""Jobs side by side, each in a process, which tell how far they are."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.sharedctypes import SynchronizedArray
from typing import TypeVar

from roost.model.errors import RoostError

K = TypeVar("K")
Tell = Callable[[float, int], None]  # the share that is done (below 0: it waits; 1: it is finished), operations so far
Told = Mapping[K, tuple[float, int]]  # the same of each job
LOOK_SECONDS = 0.2  # between two looks at how far the jobs are
WAITS = (-1.0, 0)  # how far a job is that has not begun
NEARLY = 0.999  # how far a job is at most that is not finished
ENDED = "its process ended"  # what went wrong with a job that cannot tell

_shared: SynchronizedArray[float]  # how far each job is: two numbers


def perform_in_turn(jobs: Mapping[K, Callable[[Tell], None]], progress: Callable[[Told[K]], None]) -> None:
    """Do jobs one after another in this process; what goes wrong is raised."""
    told: dict[K, tuple[float, int]] = dict.fromkeys(jobs, WAITS)
    for key, job in jobs.items():

        def tell(share: float, done: int, key: K = key) -> None:
            told[key] = share, done
            progress(told)

        job(tell)


def perform_together(
    jobs: Mapping[K, Callable[[Tell], None]], progress: Callable[[Told[K]], None], workers: int
) -> dict[K, str]:
    """Do jobs, so many at a time; returns what went wrong with which of them. Jobs are sent to processes by pickle."""
    context = multiprocessing.get_context("spawn")
    shared: SynchronizedArray[float] = context.Array("d", WAITS * len(jobs))
    with ProcessPoolExecutor(workers, context, _join, (shared,)) as pool:
        begun = [pool.submit(_perform_apart, job, at, os.getpid()) for at, job in enumerate(jobs.values())]
        try:
            going = True
            while going:
                going = bool(wait(begun, LOOK_SECONDS).not_done)
                progress({key: (shared[2 * at], int(shared[2 * at + 1])) for at, key in enumerate(jobs)})
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()  # each goes on from its checkpoint
            raise
    problems = {}
    for key, job in zip(jobs, begun, strict=True):
        try:
            problem = job.result()
        except BrokenProcessPool:
            problem = ENDED
        if problem:
            problems[key] = problem
    return problems


def _join(shared: SynchronizedArray[float]) -> None:
    """What a process begins with. An interrupt from the terminal reaches all; the one that started them stops them."""
    global _shared
    _shared = shared
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _perform_apart(job: Callable[[Tell], None], at: int, parent: int) -> str:
    """One job in a process of its own; returns what went wrong, if anything did."""

    def tell(share: float, done: int) -> None:
        if os.getppid() != parent:
            os._exit(1)  # nobody waits for it, and somebody may have resumed it
        _shared[2 * at], _shared[2 * at + 1] = share, done

    try:
        job(tell)
    except RoostError as error:
        return str(error)
    return ""
