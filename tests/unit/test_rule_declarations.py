"""A rule that contradicts its own declaration is refused before it can be cached wrongly."""

from typing import Any

import pytest

from roost import InvalidInput
from roost.engine.rule import Rule, derived, preference, rule_of, tenant_rule, validator


def test_a_decorated_function_stays_a_function_and_carries_its_description() -> None:
    @validator(traits=("priority",), reason="no")
    def mine(machine: Any, vm: Any, least: int = 3) -> bool:
        """Mine."""
        return bool(machine.vms < least + vm.priority)

    rule = rule_of(mine)
    assert isinstance(rule, Rule)
    assert (rule.name, rule.kind, rule.scope, rule.summary) == ("mine", "validator", "machine", "Mine.")
    assert rule.defaults == {"least": 3}


def test_reading_a_trait_that_is_not_declared_is_refused_with_its_name() -> None:
    with pytest.raises(InvalidInput, match=r"reads vm\.demand without declaring it; add vm_type to its traits"):

        @preference(traits=("priority",))
        def greedy(machine: Any, vm: Any) -> float:
            return float(vm.demand[0][0] + vm.priority)


def test_an_own_trait_must_be_declared_by_its_name() -> None:
    with pytest.raises(InvalidInput, match=r"reads vm\.gpu_model .* add gpu_model"):

        @preference()
        def modelled(machine: Any, vm: Any) -> float:
            return float(vm.gpu_model)


def test_handing_the_vm_on_hides_what_is_read_and_is_refused() -> None:
    with pytest.raises(InvalidInput, match="hands vm on as a whole"):

        @preference(traits=("vm_type",))
        def sly(machine: Any, vm: Any) -> float:
            other = vm
            return float(other.priority)


def test_the_detail_function_may_read_no_more_than_the_rule() -> None:
    def detail(machine: Any, vm: Any) -> int:
        return int(vm.cluster)

    with pytest.raises(InvalidInput, match=r"reads vm\.cluster"):

        @validator(reason="short of {resource}", detail=detail)
        def picky(machine: Any, vm: Any) -> bool:
            return True


def test_a_parameter_without_a_default_is_refused() -> None:
    with pytest.raises(InvalidInput, match="parameter limit has no default"):

        @validator(reason="no")
        def strict(machine: Any, vm: Any, limit: int) -> bool:
            return True


def test_too_few_arguments_are_refused() -> None:
    with pytest.raises(InvalidInput, match="takes 1 arguments"):

        @preference()
        def lonely(machine: Any) -> float:
            return 0.0


def test_only_derived_columns_can_be_needed() -> None:
    @derived()
    def fact(machine: Any, vm: Any) -> float:
        return 0.0

    @preference(needs=(fact,))
    def fine(machine: Any, vm: Any, fact: float) -> float:
        return fact

    with pytest.raises(InvalidInput, match="without @derived"):

        @preference(needs=(fine,))
        def wrong(machine: Any, vm: Any, fine: float) -> float:
            return fine


def test_a_tenant_rule_takes_the_tenant_alone() -> None:
    @tenant_rule(domain="rack", reason="no", constraint="max_per_rack")
    def few(tenant: Any) -> bool:
        return bool(tenant.here < 2)

    rule = rule_of(few)
    assert rule is not None
    assert rule.domain == "rack"


def test_a_rule_that_is_checked_again_at_commit_may_not_ask_what_a_request_is_for() -> None:
    with pytest.raises(InvalidInput, match="a commit does not know the purpose of a request"):

        @validator(reason="no", traits=("purpose",), recheck=True)
        def forgetful(machine: Any, vm: Any) -> bool:
            return bool(vm.purpose == 0)
