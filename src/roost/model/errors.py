"""Every error Roost raises on purpose, in one tree.

    RoostError
    ├── InvalidInput        the caller's mistake: says where, what is wrong, and what would be right
    │   ├── Mistaken        several of them in one file, all that were found
    │   ├── UnknownName     a name that is not in the zone or the policy, with the nearest names that are
    │   ├── Taken           a name that somebody else has
    │   ├── NoZone          a store that holds no zone yet
    │   ├── InUse           a store that another process writes
    │   └── Outdated        somebody changed it since the caller looked
    ├── StoreUnavailable    the store cannot be reached or used just now; what was asked may or may not have been done
    │   └── StoreBroken     and waiting will not help: says what is wrong with it, and what to do
    └── InvariantBroken     a bug in Roost: the state contradicts itself

A request that does not fit is no error: it is a decision that says why. Codes never change once released.
"""

import difflib
from collections.abc import Iterable, Sequence
from itertools import islice

MANY = 500  # names to look for the nearest among
MOST_TOLD = 20  # mistakes, one a line


class RoostError(Exception):
    """Anything Roost raises on purpose."""

    code = "roost.error"


class InvalidInput(RoostError):
    """The input cannot be used; nothing was changed."""

    code = "roost.invalid_input"

    def __init__(self, where: str, problem: str, remedy: str = "") -> None:
        self.where, self.problem, self.remedy = where, problem, remedy
        super().__init__(f"{where}: {problem}" + (f"; {remedy}" if remedy else ""))


class Mistaken(InvalidInput):
    """Several mistakes, each with its own place; where and what is those of the first."""

    def __init__(self, mistakes: Sequence[InvalidInput]) -> None:
        first, more = mistakes[0], len(mistakes) - MOST_TOLD
        super().__init__(first.where, first.problem, first.remedy)
        self.mistakes = tuple(mistakes)
        told = [*map(str, mistakes[:MOST_TOLD]), *([f"and {more:,} more"] if more > 0 else [])]
        self.args = ("\n".join([*told, f"{len(mistakes):,} mistakes"]),)


class UnknownName(InvalidInput):
    """A name nobody has heard of."""

    code = "roost.unknown_name"

    def __init__(self, where: str, kind: str, name: object, known: Iterable[str] | None) -> None:
        """`known`: names to compare it with; None: nobody here knows them all."""
        if known is None:
            super().__init__(where, f"no {kind} is called {str(name)!r}", "check the name")
            return
        known = list(known)
        start = str(name)[: max(1, len(str(name)) // 2)]
        if len(known) > MANY:  # comparing with all of a zone's machines would take seconds
            known = list(islice((k for k in known if k.startswith(start)), MANY)) or known[:MANY]
        names = sorted(known)
        close = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
        shown = close or names[:8]
        more = "" if close or len(names) <= 8 else f" and {len(names) - 8} more"
        remedy = f"{'did you mean' if close else 'known are'} {', '.join(shown)}{more}" if names else "none are defined"
        super().__init__(where, f"no {kind} is called {str(name)!r}", remedy)


class Taken(InvalidInput):
    """Somebody else has the name."""

    code = "roost.taken"


class NoZone(InvalidInput):
    """There is no zone in a store."""

    code = "roost.no_zone"

    def __init__(self, problem: str) -> None:
        super().__init__("store", problem, "make one with `roost store create`")


class InUse(InvalidInput):
    """Another process writes the store."""

    code = "roost.in_use"


class Outdated(InvalidInput):
    """What the caller saw is no longer so."""

    code = "roost.outdated"


class StoreUnavailable(RoostError):
    """The store cannot be reached or used. Ask again with the same key: it is never done twice."""

    code = "roost.store_unavailable"


class StoreBroken(StoreUnavailable):
    """The store cannot be used until somebody mends it."""

    code = "roost.store_broken"

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem, self.remedy = problem, remedy
        super().__init__(f"{problem}; {remedy}")


class InvariantBroken(RoostError):
    """The state contradicts itself; this is a bug."""

    code = "roost.invariant_broken"
