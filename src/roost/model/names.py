"""What things may be called: one rule for every name that enters Roost.

Names stand in paths (`/v1/machines/NAME`), in arguments (`TYPE=COUNT`, `TYPE@PRIORITY`), in lists with commas and in
lines of text. What nobody could write there is refused where it enters. What a store holds already is left alone: it
must stay possible to look at it and to remove it.
"""

import re

from roost.model.errors import InvalidInput

PLAIN = r"[A-Za-z0-9][A-Za-z0-9._-]*"
# As JSON Schema has them; in Python `$` alone would let a newline at the end through.
NAME, NAME_OR_NOTHING = rf"^{PLAIN}(?!\n)$", rf"^({PLAIN})?(?!\n)$"
TOKEN_NAME = r"^[A-Za-z0-9][A-Za-z0-9.-]*(?!\n)$"  # without underscores, which stand around it in the token
LONGEST = 200  # characters
REMEDY = "use letters, digits, dots, dashes and underscores, a letter or digit first"

_WHOLE = re.compile(rf"{PLAIN}\Z")
_STRANGE = re.compile(r"[^A-Za-z0-9._-]")


def is_name(text: str, longest: int = LONGEST) -> bool:
    """Whether something new may be called so."""
    return len(text) <= longest and _WHOLE.match(text) is not None


def check_new_name(where: str, name: object, longest: int = LONGEST) -> None:
    """Refuse what nothing new may be called."""
    if not isinstance(name, str) or not is_name(name, longest):
        raise InvalidInput(where, _problem(name, longest), REMEDY)


def check_new_vm_name(where: str, name: str) -> None:
    """The same for the whole name of a VM, TENANT/NAME."""
    for part in name.split("/", maxsplit=1):
        if not is_name(part):
            raise InvalidInput(where, _problem(part, LONGEST), f"call it TENANT/NAME, and in both {REMEDY}")


def _problem(name: object, longest: int) -> str:
    if not isinstance(name, str) or not name:
        return f"is {name!r}, which is no name" if name != "" else "is empty"
    if len(name) > longest:
        return f"has {len(name):,} characters, {longest} is the most"
    if strange := _STRANGE.search(name):
        return f"{name!r} has {strange[0]!r} in it"
    return f"{name!r} begins with {name[0]!r}"
