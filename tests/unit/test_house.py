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
LARGE_CLASSES: dict[str, str] = {}


def trees() -> Iterator[tuple[str, ast.Module]]:
    """Every module, by its path below the package."""
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text())


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Every class of the package, by its file."""
    for file, tree in trees():
        yield from ((file, node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def methods(node: ast.ClassDef) -> int:
    return sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)


def test_a_file_is_short_or_defended() -> None:
    long = {
        path.relative_to(SOURCE).as_posix(): lines
        for path in SOURCE.rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > LINES
    }
    assert long.keys() == LARGE_FILES.keys(), f"longer than {LINES} lines: {long}"


def test_a_class_has_few_methods_or_is_defended() -> None:
    large = {node.name: methods(node) for _, node in classes() if methods(node) > METHODS}
    assert large.keys() == LARGE_CLASSES.keys(), f"more than {METHODS} methods: {large}"


def test_a_class_name_has_one_home() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for file, node in classes():
        homes[node.name].append(file)
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
