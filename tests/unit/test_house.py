"""The house stays one that people find their way in: small files and classes, and one home for every name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import roost

SOURCE = Path(roost.__file__).parent
LINES, METHODS = 500, 25  # that a file and a class may have
# Those that may have more, each with the sentence that defends it.
LARGE_FILES = {
    "client/calls.py": "A list of every call that there is, a few lines each: whoever looks for one looks there."
}
LARGE_CLASSES = {
    "Allocator": "To decide takes who runs what, the rows and the policies at once. Each is a base with a file of its "
    "own (Books, ZoneCopy, Arms); the file of the allocator only decides.",
    "PreparingStore": "Two more than a store promises, who are asked by one courier alone.",
    "PostgresStore": "More than twenty are the contract of a store; most of them, what only reads, are written once "
    "for every dialect, in Tables.",
    "SqliteStore": "The same, and a connection for each kind of reader.",
}

# Names of types that still have several meanings.
SEVERAL_MEANINGS = {"Done", "Progress", "Told"}


def trees() -> Iterator[tuple[str, ast.Module]]:
    """Every module, by its path below the package."""
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text())


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Every class of the package, by its file."""
    for file, tree in trees():
        yield from ((file, node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def bases_by_class() -> dict[str, tuple[ast.ClassDef, list[str]]]:
    """Every class by its name, with those of its bases that are ours: a name has one home."""
    found = {}
    for _, tree in trees():
        nodes = list(ast.walk(tree))
        ours = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("roost."):
                ours.update(each.asname or each.name for each in node.names)
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                names = {each.id for base in node.bases for each in ast.walk(base) if isinstance(each, ast.Name)}
                found[node.name] = node, sorted(names & ours)
    return found


def methods(name: str, classes: dict[str, tuple[ast.ClassDef, list[str]]]) -> set[str]:
    """The methods that a class has, its own and inherited ones: whoever reads it has to know them all."""
    if name not in classes:  # an alias
        return set()
    node, bases = classes[name]
    own = {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    return own.union(*(methods(base, classes) for base in bases))


def test_a_file_is_short_or_defended() -> None:
    long = {
        path.relative_to(SOURCE).as_posix(): lines
        for path in SOURCE.rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > LINES
    }
    assert long.keys() == LARGE_FILES.keys(), f"longer than {LINES} lines: {long}"


def test_a_class_has_few_methods_or_is_defended() -> None:
    known = bases_by_class()
    large = {name: len(found) for name in known if len(found := methods(name, known)) > METHODS}
    assert large.keys() == LARGE_CLASSES.keys(), f"more than {METHODS} methods: {large}"


def test_a_class_name_has_one_home() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for file, node in classes():
        homes[node.name].append(file)
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def aliases() -> Iterator[tuple[str, str]]:
    """Every name that a module gives to a type, by its file; routes and commands give such names to what people say."""
    for file, tree in trees():
        for node in tree.body:
            if file.startswith(("cli/", "api/routes/")) or not isinstance(node, ast.Assign):
                continue
            target, value = node.targets[0], node.value
            if isinstance(target, ast.Name) and isinstance(value, ast.Subscript | ast.BinOp | ast.Name):
                name = target.id
                if not name.isupper() and name[0].isupper():
                    yield file, name


def test_a_name_of_a_type_is_no_other_type_elsewhere() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for file, name in aliases():
        homes[name].append(file)
    for file, node in classes():
        if node.name in homes and not file.startswith("cli/"):
            homes[node.name].append(file)
    assert {name: files for name, files in homes.items() if len(files) > 1}.keys() == SEVERAL_MEANINGS
