"""Who carries a move out: the seam between a plan and the zone that it is for."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

MoverStep = Literal["hold", "finish", "cancel"]


class StepOutcome(msgspec.Struct, frozen=True):
    """What came of a step: it was done, or why not."""

    done: bool
    detail: str = ""
    again: bool = False  # others were faster: it may be done if it is asked for again


class Mover(Protocol):
    """Moves VMs, step by step.

    hold ─▶ (the VM is copied) ─▶ finish     it runs on the target, and its old place is free
      └────────────────────────▶ cancel     it runs where it ran, and the target is free

    - The same key is never done twice: a step that was done before is answered as it was the first time.
    - A refusal is a value. Whoever cannot be reached raises, and nobody knows whether the step was done.
    - May be called by several threads.
    """

    def machine_of(self, vm: str) -> str | None:
        """Where a VM runs now; None: it is gone."""

    def move(self, tenant: str, vm: str, machine: str, step: MoverStep, key: str) -> StepOutcome:
        """One step of the move of a VM to a machine."""
