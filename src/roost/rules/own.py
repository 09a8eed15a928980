"""Rules of one's own: where they are, and which of them policies may name.

A file or module that the operator lists (the setting `agent.rules`) is trusted: its rules can be named in any policy,
by their names alone, by whoever may keep policies. Nobody else's word makes Roost run code.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from roost.engine.rule import Rule, rule_of
from roost.model.errors import InvalidInput

WHERE = "agent.rules"
PACKAGE = "roost.rules"  # where the rules are that come with Roost, in these:
KINDS = ("clusters", "validators", "preferences", "tenants")


@dataclass(frozen=True)
class OwnRules:
    """The rules in the files and modules that an operator lists, as they were when they were found.

    It is handed to other processes, which load the code for themselves: that it is the same is checked at each use.
    """

    sources: tuple[str, ...] = ()  # modules, and files by their absolute paths
    code: str = ""  # a hash of all of it

    @classmethod
    def find(cls, listed: str | Iterable[str]) -> OwnRules:
        """Those of a list, or of a text with commas between them; a mistake is refused."""
        given = [each.strip() for each in (listed.split(",") if isinstance(listed, str) else listed)]
        found = tuple([str(Path(each).absolute()) if is_file(each) else each for each in given if each])
        return cls(found, _hash(_by_name(found).values()))

    def rules(self) -> Mapping[str, Rule]:
        """By name; refused if they are no longer what they were."""
        found = _by_name(self.sources)
        if _hash(found.values()) != self.code:
            problem = "the rules in its files are not what they were when the service started"
            raise InvalidInput(WHERE, problem, "restart the service")
        return found


NONE = OwnRules()


def is_file(source: str) -> bool:
    """Whether rules are in a file, not in a module."""
    return source.endswith(".py")


def is_own(rule: Rule) -> bool:
    """Whether a rule does not come with Roost."""
    return not rule.function.__module__.startswith(f"{PACKAGE}.")


def shipped_in(kind: str) -> list[str]:
    """The names of the rules of a kind that come with Roost: a rule is found by the name of its file."""
    return [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent / kind)])]


def code_of(rules: Iterable[Rule]) -> bytes:
    """What is in the files of rules and of the columns that they need, each once."""
    functions = [each.function for rule in rules for each in (rule, *rule.needs)]
    files = {file for function in functions if (file := inspect.getsourcefile(function))}
    return b"".join(Path(file).read_bytes() for file in sorted(files))


def load_module(source: str, folder: Path) -> ModuleType:
    """A module by its name, or the one in a file, from a folder on; whatever goes wrong in it is refused."""
    try:
        return _load(folder / source) if is_file(source) else importlib.import_module(source)
    except InvalidInput:
        raise
    except Exception as error:  # whatever a user's module does when it is imported
        said = f"{type(error).__name__}: {error}"
        raise InvalidInput(source, f"cannot be imported: {said}", "check the module or the path") from None


def _by_name(sources: Iterable[str]) -> dict[str, Rule]:
    found: dict[str, Rule] = {}
    for source in sources:
        rules = list(_rules_in(_module(source)))
        if not rules:
            raise InvalidInput(WHERE, f"there is no rule in {source}", "list files and modules that hold some")
        for rule in rules:
            if rule.name in found or any(rule.name in shipped_in(kind) for kind in KINDS):
                where = "two of them" if rule.name in found else f"a rule that comes with Roost and one in {source}"
                raise InvalidInput(WHERE, f"{where} are called {rule.name}", "give one of them another name")
            found[rule.name] = rule
    return found


def _module(source: str) -> ModuleType:
    try:
        return load_module(source, Path())
    except InvalidInput as error:
        raise InvalidInput(WHERE, f"{error.where}: {error.problem}", error.remedy) from None


def _rules_in(module: ModuleType) -> Iterator[Rule]:
    """The rules that a module defines, or that a package has from the modules in it."""
    for value in vars(module).values():
        rule = rule_of(value) if inspect.isfunction(value) else None
        if rule is not None and rule.kind != "derived" and f"{value.__module__}.".startswith(f"{module.__name__}."):
            yield rule


def _hash(rules: Iterable[Rule]) -> str:
    code = code_of(rules)
    return hashlib.sha256(code).hexdigest() if code else ""


def _load(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    return _load_file(path.resolve(), path.stat().st_mtime_ns)


@cache
def _load_file(path: Path, _changed: int) -> ModuleType:
    """The module in a file, loaded once until it changes, so that its rules can share a derived column."""
    # Named by what it says, not by where it is: a kernel on disk looks its rules' modules up by name.
    name = f"roost_user_rules_{path.stem}_{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
