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
from collections.abc import Collection, Iterable, Sequence
from itertools import islice

from roost.model.readable import as_counted

MANY = 500  # names to look for the nearest among
MOST_TOLD = 20  # mistakes, one a line
SHOWN, MOST_SHOWN = 12, 40  # names that are told one by one, where there is a list of them and where there is none
# Nobody is led to one of these by a slip: what they take away may not come back.
DESTRUCTIVE = frozenset({"delete", "down", "evict", "remove", "remove_machines", "revoke", "scale-in", "trim"})
# How to see all names of a kind that has many.
LISTS = {
    "machine": "roost machine list",
    "rack": "roost machine list",
    "cluster": "roost cluster list",
    "running VM": "roost vm list",
    "tenant with VMs": "roost tenant list",
    "VM type": "roost capacity",
    "setting": "roost config describe",
}


def nearest(name: str, known: Collection[str]) -> list[str]:
    """Those of some names that somebody may have meant; never one that would destroy something."""
    safe = sorted((each for each in known if each not in DESTRUCTIVE), key=as_counted)
    return difflib.get_close_matches(name, safe, n=3, cutoff=0.5)


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
        every = list(known)
        near = nearest(str(name), _that_begin_like(str(name), every) if len(every) > MANY else every)
        remedy = f"did you mean {', '.join(near)}" if near else _told(kind, every)
        super().__init__(where, f"no {kind} is called {str(name)!r}", remedy)


def _that_begin_like(name: str, known: Collection[str]) -> list[str]:
    """Those that share most of a name's beginning, half of it at least: comparing with all machines takes seconds."""
    half = max(1, len(name) // 2)
    alike = [each for each in known if each.startswith(name[:half])]
    for length in range(half + 1, len(name) + 1):
        if not (nearer := [each for each in alike if each.startswith(name[:length])]):
            break
        alike = nearer
    return alike[:MANY]


def _told(kind: str, known: Collection[str]) -> str:
    """What names there are; if they are many, how many, what they look like, and where to see them."""
    if not known:
        return "none are defined"
    if len(known) <= (SHOWN if kind in LISTS else MOST_SHOWN):
        return f"known are {', '.join(sorted(known, key=as_counted))}"
    where = f"; see them with `{LISTS[kind]}`" if kind in LISTS else ""
    return f"there are {len(known):,}, such as {', '.join(islice(known, 4))}{where}"


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
