"""What is wrong with JSON, in plain words: what msgspec says of it is for those who wrote the types."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import inspect

from roost.model.errors import InvalidInput, UnknownName
from roost.wire.basics import FORMS

PLACE = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
STEP = re.compile(r"(\w+)|\[")
KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
BOUNDS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}


_encode = msgspec.json.Encoder().encode


def _named(kinds: str) -> str:
    return " or ".join(KINDS.get(kind, kind) for kind in kinds.removesuffix(" | null").split(" | "))


def _other_kind(found: re.Match[str], _: Any) -> str:
    return f"is {_named(found[2])}, but must be {_named(found[1])}"


def _bounded(found: re.Match[str], _: Any) -> str:
    return f"must be {BOUNDS[found[2]]} {found[3]}"


def _sized(found: re.Match[str], _: Any) -> str:
    what = "characters" if found[1].startswith("str") else "entries"
    one = what if found[3] != "1" else what.replace("entries", "entry").removesuffix("s")
    return f"must have {BOUNDS[found[2]]} {found[3]} {one}"


def _formed(found: re.Match[str], _: Any) -> str:
    return FORMS.get(found[1].replace("\\\\", "\\"), "is not written as it must be")


def _unknown(found: re.Match[str], kind: Any) -> str:
    known = [field.encode_name for field in getattr(kind, "fields", ())]
    mistake = UnknownName("", "field", found[1], known or None)
    return f"{mistake.problem}; {mistake.remedy}"


def _chosen(found: re.Match[str], kind: Any) -> str:
    allowed = [str(value) for each in _alternatives(kind) for value in getattr(each, "values", ()) if value]
    return f"is {found[1]}" + (f"; use one of {', '.join(allowed)}" if allowed else ", which nobody knows")


# What msgspec says, and what is said instead; the type there is, if it was found, tells what would be right.
WORDS: Sequence[tuple[str, Callable[[re.Match[str], Any], str]]] = (
    (r"Expected `([^`]*)`, got `([^`]*)`", _other_kind),
    (r"Expected `(?:int|float)()(?: \| null)?` (>=|<=|>|<) (\S+)", _bounded),
    (r"Expected `(str|array|object)(?: \| null)?` of length (>=|<=) (\d+)", _sized),
    (r"Expected `str(?: \| null)?` matching regex ['\"](.*)['\"]", _formed),
    (r"Object contains unknown field `([^`]*)`", _unknown),
    (r"Object missing required field `([^`]*)`", lambda found, _: f"lacks the field {found[1]}"),
    (r"Invalid (?:enum|literal) value ('?[^']*'?)", _chosen),
)


def in_words(message: str, kind: Any = None) -> tuple[str, str]:
    """Where in a document something is wrong, and what; `kind`: the type that the document was to have."""
    where = found[1] if (found := PLACE.search(message)) else ""
    said = PLACE.sub("", message)
    there = _type_at(inspect.type_info(kind), where) if kind is not None else None
    for pattern, words in WORDS:
        if match := re.fullmatch(pattern, said):
            return where, words(match, there)
    return where, "is cut off, or empty" if said == "Input data was truncated" else said


def refused(error: Exception, kind: Any, whole: str) -> InvalidInput:
    """The error to raise for one of msgspec's; `whole`: what to call the document itself."""
    where, words = in_words(str(error), kind)
    return InvalidInput(where or whole, words)


def check_keys(text: bytes, value: object = None) -> None:
    """Refuse a document in which an object has a key twice: one of the two would be ignored.

    `value`: what it was read as, if it was. A key has a colon, so that one that got lost is missed when the value is
    written again; that takes a fraction of the time of going through the document.
    """
    if value is not None and b"\\" not in text and text.count(b":") == _encode(value).count(b":"):
        return
    try:
        json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return  # whoever reads it says what is wrong


def _once(pairs: list[tuple[str, Any]]) -> None:
    if len(pairs) > 1 and len({key for key, _ in pairs}) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise InvalidInput(twice, "is given twice in one object", "one of the two would be ignored")


def _type_at(kind: Any, where: str) -> Any:
    """The type of a place in a document, as far as types say."""
    for step in STEP.finditer(where.replace("]", "")):
        name = step[1]
        inner = [each for one in _alternatives(kind) for each in _inside(one, name)]
        if name is not None and name.isdigit():
            continue
        kind = inner[0] if inner else None
    found = _alternatives(kind)
    return found[0] if len(found) == 1 else kind


def _inside(kind: Any, name: str | None) -> Iterator[Any]:
    """What a type has under a name, or as an entry."""
    if name is None:
        yield from (getattr(kind, each) for each in ("item_type", "value_type") if hasattr(kind, each))
    for field in getattr(kind, "fields", ()):
        if field.encode_name == name:
            yield field.type


def _alternatives(kind: Any) -> list[Any]:
    """The types that something may have, but for none at all."""
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        return [one for each in kind.types for one in _alternatives(each) if not isinstance(one, inspect.NoneType)]
    return [kind]


class Reader:
    """Reads documents of one type; what is wrong is told in words."""

    def __init__(self, kind: Any) -> None:
        self.kind, self._decode = kind, msgspec.json.Decoder(kind).decode

    def read(self, text: bytes, whole: str = "body") -> Any:
        """The document, or an error that says where it is wrong."""
        try:
            return self._decode(text)
        except msgspec.MsgspecError as error:
            raise refused(error, self.kind, whole) from None
