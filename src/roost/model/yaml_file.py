"""YAML files as checked values, where every mistake knows its file and line."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from roost.model.errors import InvalidInput
from roost.model.mistakes import Mistakes
from roost.model.names import check_new_name

T = TypeVar("T")
DEEPEST, MOST_NODES = 20, 100_000
PathStep = str | int


class YamlFile:
    """A parsed file: its data, the line of every key and item, and what was found wrong so far."""

    def __init__(self, path: Path | str, text: str | None = None) -> None:
        self.path, self.mistakes = Path(path), Mistakes()
        self._lines: dict[tuple[PathStep, ...], int] = {}
        self._nodes = 0
        self._scalars = yaml.SafeLoader("")
        try:
            node = yaml.compose(self.path.read_text() if text is None else text, Loader=yaml.SafeLoader)
        except FileNotFoundError:
            raise InvalidInput(str(path), "no such file") from None
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(str(path), f"cannot be read: {error}") from None
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise InvalidInput(f"{path}:{line}", f"not valid YAML: {error.problem}") from None
        except yaml.YAMLError as error:
            raise InvalidInput(str(path), f"not valid YAML: {error}") from None
        self.data: Any = None if node is None else self._build(node, ())
        if not isinstance(self.data, dict):
            raise InvalidInput(f"{path}:1", "the file must hold a mapping of keys to values")

    def _build(self, node: yaml.Node, at: tuple[PathStep, ...]) -> Any:
        self._nodes += 1
        if len(at) > DEEPEST or self._nodes > MOST_NODES:  # an alias may contain itself, or grow without end
            raise self.mistake(at[:1], "is nested too deeply or is too large", "write it without aliases")
        self._lines.setdefault(at, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            result: dict[Any, Any] = {}
            for key_node, value_node in node.value:
                if not isinstance(key_node, yaml.ScalarNode):
                    raise self.mistake(at, "a key here is a list or a mapping", "use plain names as keys")
                key = key_node.value  # as it is written: YAML would take the key `on` for true
                self._lines[(*at, key)] = key_node.start_mark.line + 1
                if key in result:
                    raise self.mistake((*at, key), "this key appears twice", "keep one of them")
                result[key] = self._build(value_node, (*at, key))
            return result
        if isinstance(node, yaml.SequenceNode):
            return [self._build(item, (*at, i)) for i, item in enumerate(node.value)]
        try:
            return self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError):
            raise self.mistake(at, f"{node.value!r} is not a {node.tag.rpartition(':')[2]}", "quote a text") from None

    def mistake(self, at: tuple[PathStep, ...], problem: str, remedy: str = "") -> InvalidInput:
        """An error that points at the line of `at`, or of the nearest thing around it that has one."""
        return InvalidInput(self.where(at), problem, remedy)

    def note(self, at: tuple[PathStep, ...], problem: str, remedy: str = "") -> None:
        """Note such an error, to be told with all others."""
        self.mistakes.note(self.mistake(at, problem, remedy))

    def note_name(self, at: tuple[PathStep, ...], name: str) -> None:
        """Note a name that nothing may be called."""
        with self.mistakes.noted():
            check_new_name(self.where(at), name)

    def where(self, at: tuple[PathStep, ...]) -> str:
        """The file, line and field of `at`; the line is that of the nearest thing around it that has one."""
        nearest = at
        while nearest not in self._lines:
            nearest = nearest[:-1]
        field = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in at).lstrip(".")
        return f"{self.path}:{self._lines[nearest]}: {field}".rstrip(": ")

    def convert(self, value: Any, kind: type[T], at: tuple[PathStep, ...] = ()) -> T:
        """`value`, found at `at`, as a checked `kind`."""
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            text, _, path = str(error).partition(" - at `$")
            steps: list[PathStep] = [
                int(index) if index else name for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", path.rstrip("`"))
            ]
            where = (*at, *steps)
            unknown = re.search(r"unknown field `([^`]+)`", text)
            known = ", ".join(getattr(kind, "__struct_fields__", ()))
            remedy = f"the fields here are {known}" if unknown and known and not steps else ""
            raise self.mistake((*where, unknown[1]) if unknown else where, text, remedy) from None

    def fields(self, value: Any, kind: type[Any], at: tuple[PathStep, ...] = ()) -> dict[str, Any]:
        """The fields of a struct that are right, each converted on its own; what is wrong with others is noted."""
        if not isinstance(value, Mapping):
            with self.mistakes.noted():
                self.convert(value, kind, at)
            return {}
        known = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        for name in value:
            if name not in known:
                remedy = f"the fields here are {', '.join(known)}"
                self.note((*at, name), f"Object contains unknown field `{name}`", remedy)
        found = {}
        for name, field in known.items():
            if name in value:
                with self.mistakes.noted():
                    found[name] = self.convert(value[name], field.type, (*at, name))
            elif field.required:
                self.note(at, f"Object missing required field `{name}`")
        return found

    def checked(self, value: Any, kind: type[T], at: tuple[PathStep, ...]) -> T | None:
        """A struct; None if anything is wrong with it, which is noted."""
        before = len(self.mistakes)
        found = self.fields(value, kind, at)
        return kind(**found) if len(self.mistakes) == before else None

    def section(self, name: str, kind: type[T]) -> dict[str, T | None]:
        """A mapping of names to structs, each checked on its own; None for those that are wrong."""
        return {str(key): self.checked(value, kind, (name, key)) for key, value in self.data.get(name, {}).items()}
