"""Hard rules on where a tenant's VMs are: case by case, and over whole requests placed at random."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.rules.tenants.colocate_cluster import colocate_cluster
from roost.rules.tenants.colocate_datacenter import colocate_datacenter
from roost.rules.tenants.colocate_rack import colocate_rack
from roost.rules.tenants.fault_domain_skew import fault_domain_skew
from roost.rules.tenants.max_fault_domains import max_fault_domains
from roost.rules.tenants.max_per_machine import max_per_machine
from roost.rules.tenants.max_per_rack import max_per_rack
from roost.rules.tenants.min_fault_domains import min_fault_domains
from roost.rules.tenants.min_update_domains import min_update_domains
from roost.rules.tenants.update_domain_skew import update_domain_skew
from tests.unit.rules.rows import allows, tenant

COLOCATE_RULES = {1: colocate_rack, 2: colocate_cluster, 3: colocate_datacenter}
COLOCATE_CASES = pytest.mark.parametrize(("active", "rule"), COLOCATE_RULES.items())


@pytest.mark.parametrize(("rule", "limit"), [(max_per_machine, "max_per_machine"), (max_per_rack, "max_per_rack")])
def test_a_tenant_reaches_its_limit_per_unit_and_no_more(rule: Callable[..., Any], limit: str) -> None:
    for most in (1, 2):
        limited: dict[str, Any] = {limit: most}
        assert allows(rule, tenant(here=most - 1, placed=9, **limited))
        assert not allows(rule, tenant(here=most, placed=9, **limited))


def test_racks_are_added_up_to_the_maximum() -> None:
    assert allows(max_fault_domains, tenant(in_racks=(4,), here=0, max_fault_domains=2))
    assert not allows(max_fault_domains, tenant(in_racks=(4, 4), here=0, max_fault_domains=2))


def test_a_rack_in_use_stays_open_at_the_maximum_and_beyond() -> None:
    assert allows(max_fault_domains, tenant(in_racks=(4, 4), here=4, max_fault_domains=2))
    assert allows(max_fault_domains, tenant(in_racks=(4, 4, 4), here=4, max_fault_domains=2))


@dataclass(frozen=True)
class Kind:
    """The rules on fault domains and those on update domains are alike: a tenant's counts in the one or the other."""

    minimum: Callable[..., Any]
    skew: Callable[..., Any]
    counts: str

    def tenant(self, counts: Sequence[int], here: int, remaining: int, fewest: int, skew: int = 0) -> SimpleNamespace:
        """A tenant with so many VMs in each of its domains, looking at one where it has `here`."""
        fields: dict[str, Any] = {self.counts: counts, self.minimum.__name__: fewest, self.skew.__name__: skew}
        return tenant(here=here, remaining=remaining, **fields)

    def spreads(self, counts: Sequence[int], here: int, remaining: int, fewest: int) -> bool:
        """Whether the minimum allows it."""
        return allows(self.minimum, self.tenant(counts, here, remaining, fewest))

    def evens(self, counts: Sequence[int], here: int, skew: int, remaining: int = 1, fewest: int = 0) -> bool:
        """Whether the skew allows it."""
        return allows(self.skew, self.tenant(counts, here, remaining, fewest, skew))


FAULT_DOMAINS = Kind(min_fault_domains, fault_domain_skew, "in_racks")
UPDATE_DOMAINS = Kind(min_update_domains, update_domain_skew, "in_update_domains")
both_kinds = pytest.mark.parametrize("kind", [FAULT_DOMAINS, UPDATE_DOMAINS], ids=["fault domains", "update domains"])


@both_kinds
def test_a_new_domain_is_always_fine_for_the_minimum(kind: Kind) -> None:
    assert kind.spreads((), here=0, remaining=1, fewest=5)
    assert kind.spreads((3, 3, 3), here=0, remaining=1, fewest=2)


@both_kinds
def test_a_used_domain_is_fine_while_the_vms_that_remain_can_reach_the_minimum(kind: Kind) -> None:
    assert kind.spreads((1,), here=1, remaining=3, fewest=3)  # two more go to two new ones
    assert not kind.spreads((2,), here=2, remaining=2, fewest=3)
    assert kind.spreads((1, 1, 1), here=1, remaining=1, fewest=3)


@both_kinds
def test_a_tenant_with_fewer_vms_than_the_minimum_has_one_in_each_domain(kind: Kind) -> None:
    assert not kind.spreads((1,), here=1, remaining=1, fewest=5)
    assert not kind.spreads((1, 1), here=1, remaining=2, fewest=5)


@both_kinds
def test_a_tenant_that_removals_left_short_of_the_minimum_grows_only_into_new_domains(kind: Kind) -> None:
    assert not kind.spreads((6,), here=6, remaining=1, fewest=3)
    assert kind.spreads((6,), here=0, remaining=1, fewest=3)


@both_kinds
def test_the_first_vm_of_a_tenant_is_even_anywhere(kind: Kind) -> None:
    assert kind.evens((), here=0, skew=1)
    assert kind.evens((), here=0, skew=1, remaining=9, fewest=3)


@both_kinds
def test_a_used_domain_may_get_ahead_by_the_skew_and_no_more(kind: Kind) -> None:
    assert kind.evens((1, 1), here=1, skew=1)
    assert not kind.evens((2, 1), here=2, skew=1)
    assert kind.evens((2, 1), here=2, skew=2)


@both_kinds
def test_a_tenant_in_one_domain_is_even_however_many_it_has_there(kind: Kind) -> None:
    assert kind.evens((7,), here=7, skew=1)


@both_kinds
def test_a_new_domain_starts_with_one_and_must_not_be_behind_by_more_than_the_skew(kind: Kind) -> None:
    assert kind.evens((2, 2), here=0, skew=1)
    assert not kind.evens((3, 3), here=0, skew=1)
    assert kind.evens((3, 3), here=0, skew=2)


@both_kinds
def test_domains_still_lacking_for_the_minimum_hold_none(kind: Kind) -> None:
    assert not kind.evens((1,), here=1, skew=1, remaining=5, fewest=3)
    assert kind.evens((1,), here=1, skew=2, remaining=5, fewest=3)
    assert kind.evens((1,), here=0, skew=1, remaining=5, fewest=3)


@both_kinds
def test_no_more_domains_lack_than_there_are_vms(kind: Kind) -> None:
    assert kind.evens((1,), here=1, skew=1, remaining=1, fewest=1)
    assert not kind.evens((1,), here=1, skew=1, remaining=1, fewest=9)


@both_kinds
def test_where_removals_left_a_larger_skew_the_domain_with_the_fewest_takes_vms(kind: Kind) -> None:
    assert kind.evens((5, 1), here=1, skew=1)
    assert not kind.evens((5, 1), here=5, skew=1)
    assert not kind.evens((5, 2, 1), here=2, skew=2)
    assert kind.evens((5,), here=0, skew=1, remaining=1, fewest=2)


@both_kinds
@given(data=st.data())
@settings(deadline=None)
def test_requests_placed_at_random_within_the_rules_end_spread_and_even(kind: Kind, data: st.DataObject) -> None:
    """The rules see one VM at a time; what the tenant asked for is about all of them, a scale-out included."""
    fewest, skew = data.draw(st.integers(0, 4), "fewest"), data.draw(st.integers(0, 3), "skew")
    most = data.draw(st.integers(fewest, 6), "most") if kind is FAULT_DOMAINS else 0
    counts = [0] * 8
    for size in data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3), "requests"):
        for remaining in range(size, 0, -1):
            allowed = [
                unit
                for unit, here in enumerate(counts)
                if kind.spreads(counts, here, remaining, fewest)
                and kind.evens(counts, here, skew, remaining, fewest)
                and allows(max_fault_domains, tenant(in_racks=counts, here=here, max_fault_domains=most))
            ]
            assert allowed, "a tenant that kept the rules so far can always go on"
            counts[data.draw(st.sampled_from(allowed))] += 1
        held = [count for count in counts if count]
        assert len(held) >= min(fewest, sum(held))
        assert most == 0 or len(held) <= most
        assert skew == 0 or max(held) - min(held) <= skew


@COLOCATE_CASES
def test_the_first_vm_chooses_where_a_colocated_tenant_lives(active: int, rule: Callable[..., Any]) -> None:
    assert allows(rule, tenant(here=0, placed=0, colocate=active))


@COLOCATE_CASES
def test_later_vms_of_a_colocated_tenant_follow_the_first(active: int, rule: Callable[..., Any]) -> None:
    assert allows(rule, tenant(here=1, placed=1, colocate=active))
    assert not allows(rule, tenant(here=0, placed=1, colocate=active))


@COLOCATE_CASES
def test_a_unit_found_too_small_for_a_colocated_tenant_is_not_tried_again(
    active: int, rule: Callable[..., Any]
) -> None:
    assert not allows(rule, tenant(here=-1, placed=0, colocate=active))
    assert not allows(rule, tenant(here=-1, placed=3, colocate=active))


@COLOCATE_CASES
def test_colocation_binds_only_at_the_level_asked_for(active: int, rule: Callable[..., Any]) -> None:
    others = [level for level in (0, *COLOCATE_RULES) if level != active]
    assert all(allows(rule, tenant(here=n, placed=3, colocate=level)) for level in others for n in (-1, 0, 1))
