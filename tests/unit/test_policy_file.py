"""A policy file with a mistake is refused with its line and what would be right; nothing is half-loaded."""

from pathlib import Path

import pytest

from roost import InvalidInput, Policy
from roost.rules.policy import shipped_policies, shipped_rules

GOOD = """\
name: test
machines:
  validators: [is_ready, has_room, evicts_nobody]
  preferences:
    - {rule: non_empty, buckets: 1}
    - {rule: best_fit, buckets: 3, weights: {cores: 1.0}}
tenants: [max_per_rack]
"""


@pytest.mark.parametrize("name", shipped_policies())
def test_every_shipped_policy_loads_and_says_what_it_is_for(name: str) -> None:
    policy = Policy.named(name)
    assert policy.name == name
    assert policy.description


def test_at_least_25_rules_are_shipped_and_each_says_a_sentence() -> None:
    assert len(shipped_rules()) >= 25
    assert all(rule.summary.endswith(".") for rule in shipped_rules())


def test_a_good_policy_keeps_order_buckets_and_parameters() -> None:
    rules = Policy.parse(GOOD).rules
    assert [b.rule.name for b in rules.preferences] == ["non_empty", "best_fit"]
    assert [b.buckets for b in rules.preferences] == [1, 3]
    assert dict(rules.preferences[1].parameters["weights"]) == {"cores": 1.0}


def test_a_file_with_a_name_that_nothing_could_address_is_refused_and_a_text_that_a_store_holds_is_not(
    tmp_path: Path,
) -> None:
    text = GOOD.replace("name: test", "name: a/b")
    (tmp_path / "policy.yaml").write_text(text)
    with pytest.raises(InvalidInput, match=r"policy\.yaml:1: name: 'a/b' has '/' in it; use letters"):
        Policy.load(tmp_path / "policy.yaml")
    assert Policy.parse(text).name == "a/b"


def test_the_digest_changes_with_the_text() -> None:
    assert Policy.parse(GOOD).digest != Policy.parse(GOOD.replace("buckets: 3", "buckets: 4")).digest


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("best_fit", "best_fitt", 6, ["no rule here is called 'best_fitt'", "did you mean best_fit"]),
        ("buckets: 3", "bucket: 3", 6, ["parameter", "'bucket'"]),
        ("buckets: 3", "buckets: 0", 6, ["buckets: is 0", "use 1 to"]),
        ("buckets: 3", "buckets: many", 6, ["'many'", "whole number"]),
        ("{cores: 1.0}", "7", 6, ["weights", "mapping of resources"]),
        ("is_ready,", "is_ready, is_ready,", 3, ["listed twice"]),
        ("is_ready,", "best_fit,", 3, ["no rule here is called 'best_fit'"]),
        ("has_room, ", "", 3, ["has_room is missing", "over-filled"]),
        ("name: test", "nam: test", 1, ["unknown field `nam`"]),
        ("name: test", "name: 3", 1, ["Expected `str`"]),
        ("name: test", "name: test\nname: again", 2, ["appears twice"]),
        ("name: test", "name: test\ntop_clusters: 0", 2, ["top_clusters: is 0", "1 to 1,000"]),
        ("{rule: non_empty, buckets: 1}", "{buckets: 1}", 5, ["names no rule"]),
        ("{rule: non_empty, buckets: 1}", "nowhere.at.all:rule", 5, ["cannot be imported"]),
        ("{rule: non_empty, buckets: 1}", "missing.py:rule", 5, ["cannot be imported", "no file"]),
        ("{rule: non_empty, buckets: 1}", "math:sqrt", 5, ["is not a rule", "@preference"]),
        ("{rule: non_empty, buckets: 1}", "math:nothing", 5, ["has no nothing"]),
        ("[max_per_rack]", "[max_per_rock]", 7, ["did you mean max_per_rack"]),
        ("  preferences:", "  preferences: {}\n  x:", 4, ["Expected `array`"]),
        ("[is_ready,", "]is_ready,", 3, ["not valid YAML"]),
    ],
)
def test_a_mistake_is_refused_with_its_line_and_a_remedy(old: str, new: str, line: int, words: list[str]) -> None:
    assert GOOD.count(old) == 1
    with pytest.raises(InvalidInput) as caught:
        Policy.parse(GOOD.replace(old, new), "my-policy.yaml")
    message = str(caught.value)
    assert message.startswith(f"my-policy.yaml:{line}"), message
    for word in words:
        assert word in message


def test_too_many_continuous_preferences_are_refused_with_the_number_of_bits() -> None:
    continuous = "[best_fit, balanced, emptiest, healthy]"
    with pytest.raises(InvalidInput, match=r"preferences.*80 bits of a 62-bit key"):
        Policy.parse(GOOD.partition("  preferences")[0] + f"  preferences: {continuous}\n")


def test_a_rule_file_is_found_beside_the_policy(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from roost.engine.rule import preference\n\n"
        "@preference()\ndef mine(machine, vm):\n    'Mine.'\n    return 0.5\n"
    )
    (tmp_path / "policy.yaml").write_text(GOOD.replace("{rule: non_empty, buckets: 1}", "mine.py:mine"))
    assert Policy.load(tmp_path / "policy.yaml").rules.preferences[0].rule.name == "mine"


def test_a_missing_or_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such file"):
        Policy.load(tmp_path / "none.yaml")
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(InvalidInput, match="mapping"):
        Policy.load(tmp_path / "empty.yaml")
