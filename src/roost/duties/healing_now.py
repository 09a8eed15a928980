"""VMs are placed elsewhere now, since somebody says so: `roost heal now`, and what-if questions that clear machines.

together ──▶ asked for ──▶ declined: each VM by itself ──▶ declined: it stays where it is
    ▲                                                          │
    └──── the same again, on the machines that were set aside ◀┘ (if any were)
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING

from roost.agent.verbs.heal import HealVMs, Later
from roost.duties.healing import together
from roost.placing.books import RunningVM

if TYPE_CHECKING:
    from roost.agent.ticket import Ticket

Try = tuple[list[RunningVM], "Ticket"]  # VMs that go together, and what came of it
HealingTries = Generator[list[HealVMs], Sequence["Ticket"], list[Try]]


def heal_now(vms: Iterable[RunningVM], later: Later | None = None) -> HealingTries:
    """The last try of each VM. `later`: machines that get only what no other has room for.

    Yields what is to be asked for, and goes on with the tickets once all of them are answered: whoever runs this may
    wait for that, or not.
    """
    groups, done = together(vms), list[Try]()
    for aside in (later, None) if later else (None,):
        tries = yield from _ask(groups, aside)
        alone = [[vm] for group, ticket in tries if len(group) > 1 and is_declined(ticket) for vm in group]
        tries = [each for each in tries if len(each[0]) == 1 or not is_declined(each[1])]
        tries += yield from _ask(alone, aside)
        if aside is not None:
            groups = together(vm for group, ticket in tries if is_declined(ticket) for vm in group)
            tries = [each for each in tries if not is_declined(each[1])]
        done += tries
    return done


def is_declined(ticket: Ticket) -> bool:
    """Whether no machine was found."""
    assert ticket.answer is not None
    return ticket.answer.status == "declined"


def _ask(groups: Sequence[list[RunningVM]], aside: Later | None) -> HealingTries:
    tickets = yield [HealVMs(group[0].tenant, tuple(vm.name for vm in group), aside) for group in groups]
    return list(zip(groups, tickets, strict=True))
