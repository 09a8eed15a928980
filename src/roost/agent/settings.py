"""How an agent works. What the service's settings document too has its default and its range from there."""

from __future__ import annotations

import random
from dataclasses import dataclass

from roost.model.errors import InvalidInput
from roost.settings import SETTINGS
from roost.settings import AgentSection as Documented

ROUND_SECONDS = 0.01  # for which a round decides at the most; then the one that it is at is its last

_DEFAULT = Documented()
_RANGED = ("retries", "group", "group_vms", "window")
_SHARED = (*_RANGED, "top")
ENOUGH, PATIENCE = 16, 0.5  # where many ask at once, and a commit costs nearly the same whatever its size


@dataclass(frozen=True)
class AgentSettings:
    """How an agent works. What `roost.settings.AgentSection` has too means what is said there."""

    retries: int = _DEFAULT.retries
    group: int = _DEFAULT.group
    group_vms: int = _DEFAULT.group_vms
    pipeline: int = 2  # rounds that may be under way: 2 decides one while the other is committed, 1 waits
    enough: int = 1  # operations that are worth a round while another is under way: fewer wait for its answer
    patience: float = 0.0  # how long to wait for those who were just answered, as a share of what their commit took
    top: int = _DEFAULT.top
    favourites: bool = True  # avoid conflicts by keeping to machines of one's own; else by random draws (Protean)
    window: int = _DEFAULT.window
    strict: bool = False  # refuse what was decided on an outdated machine, even if it fits

    @classmethod
    def of(cls, given: Documented) -> AgentSettings:
        """As a section of settings says."""
        return cls(
            **{name: getattr(given, name) for name in _SHARED}, enough=min(ENOUGH, given.group), patience=PATIENCE
        )

    def __post_init__(self) -> None:
        ranges = {name: between for name in _RANGED if (between := SETTINGS[f"agent.{name}"].about.between)}
        for name, (low, high) in {**ranges, "pipeline": (1, 8)}.items():
            if not low <= getattr(self, name) <= high:
                raise InvalidInput(f"agent.{name}", f"is {getattr(self, name)}", f"use {low} to {high:,}")
        if self.strict and self.pipeline > 1:
            raise InvalidInput("agent.strict", "needs an agent that waits", "set agent.pipeline to 1")


def seed_of(given: Documented, place: int = 0) -> int:
    """Where the random choices of an agent begin. `place`: among the agents of a host, which begin elsewhere each."""
    return given.seed + place if given.seed else random.SystemRandom().getrandbits(62)
