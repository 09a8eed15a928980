"""A policy at work on a copy of a zone. While two policies are compared, there are two arms to choose from."""

from __future__ import annotations

from dataclasses import dataclass

from roost.engine.ruleset import RulePolicy
from roost.engine.selection import Engine
from roost.engine.shape import Shapes
from roost.model.errors import InvalidInput
from roost.model.request import UNCONSTRAINED, Constraints, Terms
from roost.placing.victims import Prices


@dataclass(frozen=True, slots=True)
class Arm:
    """A policy at work: what it asks of VMs, and the engine that decides by it."""

    policy: RulePolicy
    shapes: Shapes
    engine: Engine
    prices: Prices  # by its terms
    recorded: str  # what decisions call the policy: name and digest

    def check_enforced(self, constraints: Constraints) -> None:
        """Refuse constraints that the policy knows nothing of."""
        if constraints == UNCONSTRAINED:
            return
        for name in ("", *constraints.sets):
            self._check_terms(constraints.terms(name))

    def _check_terms(self, terms: Terms) -> None:
        policy = self.policy
        for name, value in terms.constraints.named.items():
            if not {name, f"{name}={value}"} & policy.rules.enforced:
                where = f"constraints.sets.{terms.set}" if terms.set else f"constraints.{name}"
                what = name if terms.set else "it"
                raise InvalidInput(where, f"policy {policy.name} has no rule for {what}", "use a policy that has")
