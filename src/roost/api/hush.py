"""What a token bound to a namespace may read: no message that names others, or a machine that it did not name.

Messages are written where nobody knows who will read them, so they are looked at where they leave: every problem
document (`roost.api.problems`), and every other answer that passes on a text of the agent's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roost.api.gate import Asking

WORD = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._~/-]*[A-Za-z0-9])?")
VM = re.compile(r"(?!\d+/)[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._~-]*")
NO_VMS = frozenset({"application/json"})
BEFORE = frozenset({"tenant", "machine", "on", "VM"})  # what follows is a name, even if it looks like any other word


def is_for(asking: Asking, text: str) -> bool:
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


def _is_of_others(asking: Asking, word: str) -> bool:
    owns, service = asking.principal.owns, asking.service
    if VM.fullmatch(word) and word not in NO_VMS:  # it may be gone by now
        return not owns(word.partition("/")[0])
    if not service.ready:
        return False
    allocator = service.agent.allocator
    if word in allocator.tenants:
        return not owns(word)
    return word in allocator.zone.machine_index  # whose VMs are there would take long to find out
