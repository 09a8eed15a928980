"""Work that takes long, done a step at a time, so that whoever does it can see to others between two steps.

A generator that yields whenever it can be interrupted, and returns what it was asked for. Whoever runs it may throw
`CutShort` into it: then it returns what it has so far, or lets that through if that is nothing.
"""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]


class CutShort(Exception):
    """It took longer than it may."""


def finish(work: Steps[T]) -> T:
    """Do all of it at once."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
