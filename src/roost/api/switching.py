"""Which policy decides: as the registry says, once all that needs is compiled; and which decides in the shadow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import structlog

from roost.agent.agent import Agent
from roost.agent.warm_up import warm_up
from roost.api.policies import PolicyBook
from roost.api.problems import Refused
from roost.model.errors import RoostError
from roost.model.zone import Zone
from roost.placing.contrast import Shadow
from roost.rules.own import OwnRules
from roost.rules.policy import Policy, PolicySource
from roost.wire.policies import Active

COMPILES_WAITING = 8  # policies that may wait to be compiled

log = structlog.get_logger()


class PolicySwitch:
    """What decides in a service, and what becomes of that."""

    agent: Agent  # once there is one

    def __init__(self, loop: asyncio.AbstractEventLoop, source: PolicySource) -> None:
        """`source`: the policy of the settings, and the rules that policies may name."""
        self._loop, self.own, self.rules = loop, source.policy(), source.own
        self.book = PolicyBook({})  # what the registry says
        self.unusable = ""  # why what was activated does not decide here as it was activated
        self.no_shadow = ""  # why what was put in the shadow does not decide there
        self.shadow: Shadow | None = None  # what decides beside the policy in force
        self._switching: asyncio.Task[None] | None = None
        self._compiler = ThreadPoolExecutor(1, "roost-compiler")
        self._compiles = 0  # that wait

    def take_in(self, book: PolicyBook, *, act: bool) -> None:
        """The registry says something else; `act`: and that is to decide as soon as it can."""
        before, self.book = self.book, book
        if act:
            self.catch_up(before.in_force, shadow=book.shadow != before.shadow)

    def catch_up(self, decides: Active | None, *, shadow: bool) -> None:
        """Begin what is needed so that what the registry says decides. `decides`: what does now; `shadow`: that too."""
        if self.book.in_force != decides:
            self._begin(self._switch)
        if shadow:
            self._begin(self._cast_shadow)

    def _begin(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something once what was begun before is done."""
        self._switching = asyncio.create_task(self._after(self._switching, work))
        self._switching.add_done_callback(lambda task: task.cancelled() or task.exception())  # whoever waits is told

    async def _after(self, earlier: asyncio.Task[None] | None, work: Callable[[], Awaitable[None]]) -> None:
        if earlier is not None and not earlier.done():
            await asyncio.wait([earlier])
        await work()

    async def _switch(self) -> None:
        """Decide as the registry says, once all that needs is compiled."""
        book = self.book
        try:
            split = book.split(self.own)
            for policy in split.policies:
                await self._compile(policy, looking=book.shadow is not None)
            self.agent.switch(split)
            self.unusable = self.told_otherwise(book)
            log.info("policies in force", policies=[each.name for each in split.policies], share=split.share)
        except RoostError as error:
            if book.in_force is not None:
                self.cannot_use(book.in_force, error, self.agent.split.main.name)
            raise

    def cannot_use(self, active: Active, error: RoostError, instead: str) -> None:
        """What was activated does not work here: what decided before goes on, and whoever looks is told."""
        wanted = " and ".join(name for name in (active.policy, active.against) if name)
        self.unusable = f"{wanted} cannot decide here, {instead} does: {error}"
        log.error(
            "a policy was activated that does not work here", policy=wanted, decides=instead, detail=str(error),
            remedy="list its rules in agent.rules and restart the service, or activate another one",
        )  # fmt: skip

    def told_otherwise(self, book: PolicyBook) -> str:
        """Which of the policies in force have rules of one's own that are not those they were activated with."""
        chosen = book.in_force
        if chosen is None:
            return ""
        split, told = book.split(self.own), (chosen.digest, chosen.against_digest)
        others = [each.name for each, digest in zip(split.policies, told, strict=False) if each.digest != digest]
        if not others:
            return ""
        problem = f"{' and '.join(others)} decides by rules that are not what they were when it was activated"
        log.warning(problem, remedy="activate it again, if that is what is wanted")
        return problem

    async def _cast_shadow(self) -> None:
        """Let decide beside the policy in force what the registry says, once it is compiled."""
        try:
            policy, wanted = self.book.in_shadow(), self.book.shadow
            shadow = None
            if policy is not None and wanted is not None:
                for each in (policy, *self.agent.split.policies):
                    await self._compile(each, looking=True)
                shadow = Shadow(policy, wanted.share, stopped=partial(_say_stopped, policy.name))
                shadow.join(self.agent.allocator)
            self.shadow, self.no_shadow = shadow, ""
            self.agent.context.shadow = shadow
            log.info("policy in the shadow", policy=policy.name if policy else "")
        except RoostError as error:
            self.shadow = self.agent.context.shadow = None  # what was there before was ended
            self.no_shadow = str(error)
            log.error("a policy was put in the shadow that does not work here", detail=str(error))
            raise

    async def prepare(self, text_or_policy: str | Policy) -> Policy:
        """Read a policy and compile it; one that does not work raises. Only so many wait for it at a time."""
        if self._compiles >= COMPILES_WAITING:
            raise Refused("roost.overloaded", f"{self._compiles} policies are waiting to be compiled")
        self._compiles += 1
        try:
            return await self._compile(text_or_policy)
        finally:
            self._compiles -= 1

    async def _compile(self, text_or_policy: Any, *, looking: bool = False) -> Policy:
        """In a thread of its own: it may take half a minute."""
        job = partial(_compiled, self.agent.allocator.zone, text_or_policy, self.rules, looking)
        return await self._loop.run_in_executor(self._compiler, job)

    async def switched(self) -> None:
        """Until what the registry says is what decides; raises if that did not work."""
        if self._switching is not None:
            await self._switching

    async def stop(self) -> None:
        """Begin nothing any more."""
        if self._switching is not None:
            self._switching.cancel()
            await asyncio.gather(self._switching, return_exceptions=True)
        self._compiler.shutdown(wait=False, cancel_futures=True)


def _compiled(zone: Zone, text_or_policy: str | Policy, rules: OwnRules, looking: bool) -> Policy:
    policy = text_or_policy
    if isinstance(policy, str):
        policy = Policy.parse(policy, own=rules, only_named=True)
    warm_up(zone, policy, looking=looking)
    return policy


def _say_stopped(policy: str, problem: str) -> None:
    log.error("the policy in the shadow is switched off: it does not work here", policy=policy, detail=problem)
