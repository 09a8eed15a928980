"""The policies of a zone: those that come with Roost, those in the zone's registry, and which of them decide."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from roost.engine.ruleset import PolicySplit
from roost.model.errors import InvalidInput, UnknownName
from roost.model.registry import ACTIVE, PAST_POLICY, POLICY
from roost.rules.own import NONE, OwnRules
from roost.rules.policy import SHIPPED, Policy, shipped_policies
from roost.wire.policies import Active, ShadowPolicy

OF_POLICIES = (POLICY, PAST_POLICY, ACTIVE)  # kinds of the registry
IN_FORCE, SHADOW = "policies", "shadow"  # the entries of kind ACTIVE: an `Active` and a `ShadowPolicy` as JSON


@lru_cache(maxsize=1_024)
def _parsed(text: str, name: str, rules: OwnRules) -> Policy:
    return Policy.parse(text, name, rules, only_named=True)


class PolicyBook:
    """What a zone's registry says of policies."""

    def __init__(
        self, registry: Mapping[tuple[str, str], str], own: Policy | None = None, rules: OwnRules = NONE
    ) -> None:
        """`own`: the policy of the settings. `rules`: those that policies may name besides Roost's."""
        self._own, self._rules = own, rules
        self.texts = {name: text for (kind, name), text in registry.items() if kind == POLICY}
        self._past = {digest: text for (kind, digest), text in registry.items() if kind == PAST_POLICY}
        chosen = registry.get((ACTIVE, IN_FORCE))
        self.in_force = msgspec.json.decode(chosen, type=Active) if chosen else None
        beside = registry.get((ACTIVE, SHADOW))
        self.shadow = msgspec.json.decode(beside, type=ShadowPolicy) if beside else None

    def names(self) -> list[str]:
        """Every policy that can be activated."""
        return sorted({*shipped_policies(), *self.texts})

    def find(self, name: str) -> Policy:
        """A policy by name: the registry's own before a shipped one."""
        if name not in self.names():
            raise UnknownName("policy", "policy", name, self.names())
        return _parsed(self.texts[name], f"{name}.yaml", self._rules) if name in self.texts else Policy.named(name)

    def text(self, name: str) -> str:
        """A policy as YAML."""
        return self.texts.get(name) or (SHIPPED / f"{name}.yaml").read_text()

    def recorded(self, recorded: str) -> Policy:
        """The policy that decided something, by the name and digest recorded then."""
        name, _, digest = recorded.rpartition(" ")
        policy = self._chosen(name, digest)
        if policy.digest != digest:
            raise InvalidInput("policy", f"{name} {digest}, which decided it, had rules that are others here")
        return policy

    def _chosen(self, name: str, digest: str) -> Policy:
        """The policy of a name and digest, as its text was; rules of one's own are what they are here."""
        if self._own is not None and self._own.digest == digest:
            return self._own
        if digest in self._past:
            return _parsed(self._past[digest], f"{name}.yaml", self._rules)
        policy = self.find(name)
        if policy.digest != digest:
            raise InvalidInput("policy", f"{name} {digest} is not known here any more")
        return policy

    def in_shadow(self) -> Policy | None:
        """What decides beside the policy in force, if anything does."""
        return self._chosen(self.shadow.policy, self.shadow.digest) if self.shadow else None

    def split(self, otherwise: Policy) -> PolicySplit:
        """What decides: as the registry says, else the policy of the settings."""
        chosen = self.in_force
        if chosen is None:
            return PolicySplit(otherwise)
        main = self._chosen(chosen.policy, chosen.digest)
        if not chosen.against:
            return PolicySplit(main)
        return PolicySplit(main, self._chosen(chosen.against, chosen.against_digest), chosen.share)
