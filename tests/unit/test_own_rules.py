"""Rules of one's own: named in policies by their names, found only where the settings list them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from roost import InvalidInput, Policy
from roost.rules.own import OwnRules
from roost.rules.policy import PolicySource

RULE = '''from roost.engine.rule import preference


@preference()
def {name}(machine, vm):
    """All are alike."""
    return {score}
'''
TEXT = """name: ours
machines:
  validators: [has_room]
  preferences:
    - {rule: RULE, buckets: 2}
"""


def write_rule(folder: Path, name: str = "mine", score: str = "0.0") -> str:
    """A file with a rule."""
    path = folder / f"{name}.py"
    path.write_text(RULE.format(name=name, score=score))
    return str(path)


def policy_with(rule: str, own: OwnRules, *, only_named: bool = False) -> Policy:
    """A policy with one preference."""
    return Policy.parse(TEXT.replace("RULE", rule), own=own, only_named=only_named)


def test_a_policy_names_rules_of_files_and_modules_that_are_listed(tmp_path: Path) -> None:
    own = OwnRules.find(f"{write_rule(tmp_path)}, tests.property.own_rules")
    assert policy_with("mine", own, only_named=True).rules.preferences[0].rule.name == "mine"
    assert set(own.rules()) > {"mine"}
    with pytest.raises(InvalidInput, match=r"policy.yaml:5: .*no rule here is called 'mine'"):
        policy_with("mine", OwnRules.find(""))
    with pytest.raises(InvalidInput, match=r"called 'mime'; did you mean mine"):
        policy_with("mime", own)


@pytest.mark.parametrize("where", ["mine.py:mine", "os:system", "/etc/passwd.py:mine", "tests.property.own_rules:x"])
def test_a_text_from_others_cannot_say_where_a_rule_is_though_it_be_listed(tmp_path: Path, where: str) -> None:
    own = OwnRules.find(write_rule(tmp_path))
    with pytest.raises(InvalidInput, match=r"policy.yaml:5: .*says where a rule is.*mine"):
        policy_with(f'"{where}"', own, only_named=True)


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ("none.py", "none.py: cannot be imported: FileNotFoundError"),
        ("nowhere.at.all", "cannot be imported"),
        ("empty.py", "there is no rule in .*empty.py"),
        ("broken.py", "broken.py: cannot be imported: SyntaxError"),
        ("mine.py, again/mine.py", "two of them are called mine"),
        ("best_fit.py", "a rule that comes with Roost and one in .*best_fit.py are called best_fit"),
    ],
)
def test_a_list_with_a_mistake_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str, words: str
) -> None:
    (tmp_path / "again").mkdir()
    for folder, name in ((tmp_path, "mine"), (tmp_path / "again", "mine"), (tmp_path, "best_fit")):
        write_rule(folder, name)
    (tmp_path / "empty.py").write_text("from roost.rules.preferences.best_fit import best_fit  # not one's own\n")
    (tmp_path / "broken.py").write_text("def")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=f"^agent.rules: .*{words}"):
        OwnRules.find(listed)


def test_another_process_has_the_same_rules_or_refuses_to_name_them(tmp_path: Path) -> None:
    file = write_rule(tmp_path)
    source: PolicySource = pickle.loads(pickle.dumps(PolicySource.find("fast", OwnRules.find(file))))
    source.policy()
    assert policy_with("mine", source.own).rules
    write_rule(tmp_path, score="1.0")
    for use in (source.policy, lambda: policy_with("mine", source.own)):
        with pytest.raises(InvalidInput, match="restart the service"):
            use()
    assert policy_with("best_fit", source.own).rules, "what comes with Roost can still be named"


def test_a_digest_tells_of_the_code_of_ones_own_rules_and_of_no_other(tmp_path: Path) -> None:
    before = OwnRules.find(write_rule(tmp_path))
    digests = policy_with("mine", before).digest, policy_with("best_fit", before).digest
    after = OwnRules.find(write_rule(tmp_path, score="1.0"))
    assert policy_with("mine", after).digest != digests[0]
    assert policy_with("best_fit", after).digest == digests[1] == policy_with("best_fit", OwnRules.find("")).digest
