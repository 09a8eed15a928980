"""What every form is made of: the two bases, and the names and numbers that many of them have."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from roost.model.names import LONGEST, NAME, NAME_OR_NOTHING, TOKEN_NAME
from roost.model.names import REMEDY as NAMING

KEY = r"^[\x21-\x2e\x30-\x7e]*$"  # no slash: a decision is looked up by its key, in a path
MATCH = r'^(W/)?"?[0-9]{1,19}"?$|^\*$'
EVENT = "^[0-9]*$"
FORMS = {  # what to write, in words
    NAME: f"is no name: {NAMING}",
    NAME_OR_NOTHING: f"is no name: {NAMING}",
    TOKEN_NAME: "is no name: use letters, digits, dots and dashes, a letter or digit first",
    KEY: "use printable ASCII without spaces and slashes",
    MATCH: "send the ETag of a response, or *",
    EVENT: "use a revision: digits alone",
}
MOST_COUNT = 100_000
LONGEST_KEY, LONGEST_NAMESPACE = 150, 60  # characters of what a client sends
TenantName = Annotated[
    str,
    Meta(
        pattern=NAME,
        max_length=100,
        description="Chosen by you. Letters, digits, dots, dashes and underscores.",
        examples=["web"],
    ),
]
VMName = Annotated[str, Meta(pattern=NAME_OR_NOTHING, max_length=60, description="The VM becomes TENANT/NAME.")]
NewName = Annotated[str, Meta(pattern=NAME, max_length=LONGEST)]
FullName = Annotated[str, Meta(min_length=1, max_length=200)]
Word = Annotated[str, Meta(max_length=200)]
FullNames = Annotated[tuple[FullName, ...], Meta(max_length=100_000)]
UpdateDomain = Annotated[int, Meta(ge=0, le=1_000)]
Amount = Annotated[int, Meta(ge=0, le=2**31 - 1)]
GenerationNumber = Annotated[int, Meta(ge=0, le=2**62, description="Another one after every change.")]
StateName = Literal["ready", "draining", "down", "quarantined"]
MoveStepName = Literal["hold", "finish", "cancel", "whole"]


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """What is answered."""


class Asked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is asked for. A field that nobody knows is refused."""


class Seconds(Wire, frozen=True):
    """How long something took, over so many of it."""

    count: int
    mean: float = 0.0
    p50: float = 0.0  # by nearest rank: half of them took no longer
    p90: float = 0.0
