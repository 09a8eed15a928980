"""The pump: has the agent decide what is queued, as soon as every turn of the event loop brings no more.

soon ──▶ gather: a turn that brings more requests is followed by another ──▶ step: one round of the agent ──▶ soon …
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import structlog

from roost.agent.agent import Agent

TURN_SECONDS = 0.002  # between looks whether it is the turn of something that waits

log = structlog.get_logger()


class Pump:
    """Steps an agent in the thread of an event loop."""

    agent: Agent  # once there is one

    def __init__(self, loop: asyncio.AbstractEventLoop, stepped: Callable[[], None]) -> None:
        """`stepped` is called after each step: the agent may have seen more."""
        self._loop, self._stepped = loop, stepped
        self.on = False  # whether there is an agent to step
        self.begun = False  # a step is to come in one of the next turns of the loop
        self.arrived = self._gathered = 0  # requests since the last step, and those of them that it will have
        self._waiting_for_turn = False

    def poke(self) -> None:
        """From any thread: there is something to do."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.soon)

    def soon(self) -> None:
        """Step, once no more requests come."""
        if not self.begun and self.on:
            self.begun = True
            self._loop.call_soon(self._gather)

    def _gather(self) -> None:
        """Wait for as long as every turn of the loop brings more requests: together they cost less."""
        if self._gathered < self.arrived < self.agent.settings.group:
            self._gathered = self.arrived
            self._loop.call_soon(self._gather)
        else:
            self.step()

    def step(self) -> None:
        """Decide what is queued, answer what is committed; then let the loop turn before the next round."""
        self.begun, agent = False, self.agent
        self.arrived = self._gathered = 0
        try:
            if agent.step():
                self.soon()
            elif agent.waiting and not agent.gathering.full and not self._waiting_for_turn:
                self._waiting_for_turn = True
                self._loop.call_later(min(TURN_SECONDS, agent.gathering.due_in), self._take_turn)
            self._stepped()
        except Exception:  # a bug: the next turn may do better, and nobody else must suffer
            log.exception("the agent stumbled")

    def _take_turn(self) -> None:
        self._waiting_for_turn = False
        self.soon()
