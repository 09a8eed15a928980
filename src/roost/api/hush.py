"""What a token bound to a namespace may read: no message that names others, or a machine that it did not name.

Messages are written where nobody knows who will read them, so they are looked at where they leave: every problem
document (`roost.api.problems`), and every other answer that passes on a text of the agent's.
"""

from __future__ import annotations

import re
from typing import Protocol

from roost.agent.agent import Agent
from roost.api.tokens import Principal

WORD = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._~/-]*[A-Za-z0-9])?")
VM = re.compile(r"(?!\d+/)[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._~-]*")
NO_VMS = frozenset({"application/json"})
BEFORE = frozenset({"tenant", "machine", "on", "VM"})  # what follows is a name, even if it looks like any other word


class KnowsNames(Protocol):
    """The service, as far as it knows what tenants and machines there are."""

    @property
    def ready(self) -> bool:
        """Whether it knows any yet."""

    @property
    def agent(self) -> Agent:
        """Whose copy of the zone says which."""


class Asker(Protocol):
    """Who asks, as far as it says what they may read."""

    @property
    def principal(self) -> Principal:
        """Whose token it is."""

    @property
    def request_id(self) -> str:
        """Of the request."""

    @property
    def service(self) -> KnowsNames:
        """What is asked."""

    def has_said(self, word: str) -> bool:
        """Whether a word is the asker's own."""


def is_for(asking: Asker, text: str) -> bool:
    """Whether somebody may read a text: it names what is theirs, what they said themselves, and nothing else."""
    if not asking.principal.namespace:
        return True
    before = ""
    for word in WORD.findall(text):
        is_name = before in BEFORE or not word.isalpha()  # a tenant may be called `a`
        if is_name and not asking.has_said(word) and _is_of_others(asking, word):
            return False
        before = word
    return True


def _is_of_others(asking: Asker, word: str) -> bool:
    owns, service = asking.principal.owns, asking.service
    if VM.fullmatch(word) and word not in NO_VMS:  # it may be gone by now
        return not owns(word.partition("/")[0])
    if not service.ready:
        return False
    allocator = service.agent.allocator
    if word in allocator.tenants:
        return not owns(word)
    return word in allocator.zone.machine_index  # whose VMs are there would take long to find out
