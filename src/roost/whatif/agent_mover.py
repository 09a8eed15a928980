"""Moves made by an agent of this process, on a store that no service has."""

from __future__ import annotations

import threading

from roost.agent.agent import Agent
from roost.agent.verbs.move import MoveVM
from roost.model.errors import StoreUnavailable
from roost.whatif.mover import MoverStep, StepOutcome


class AgentMover:
    """Moves VMs through an agent of this process."""

    def __init__(self, agent: Agent) -> None:
        self._agent, self._turn = agent, threading.Lock()  # an agent is not for several threads

    def machine_of(self, vm: str) -> str | None:
        """Where the store says that a VM runs."""
        row = self._agent.store.vm(vm)
        return row.machine if row else None

    def move(self, tenant: str, vm: str, machine: str, step: MoverStep, key: str) -> StepOutcome:
        """Submit the step, and work until it is answered."""
        with self._turn:
            ticket = self._agent.submit(MoveVM(tenant, vm, machine, step), key, by="roost whatif")
            try:
                (answer,) = self._agent.run(ticket)
            except TimeoutError as error:
                raise StoreUnavailable(f"the store does not answer: {error}") from None
        if answer.status == "unavailable":
            raise StoreUnavailable(answer.detail)
        return StepOutcome(answer.ok, answer.detail, again=answer.status == "conflicts")
