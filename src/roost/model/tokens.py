"""What a token looks like, so that none is ever shown by mistake: `roost_NAME_SECRET`."""

import re

from roost.model.errors import InvalidInput

PREFIX = "roost"
HIDDEN = "***"
TOKEN = re.compile(rf"{PREFIX}_([A-Za-z0-9.-]+)_[A-Za-z0-9_-]{{20,}}")


def without_tokens(text: str) -> str:
    """The same text with *** for the secret of each token in it."""
    return TOKEN.sub(rf"{PREFIX}_\1_{HIDDEN}", text) if f"{PREFIX}_" in text else text


def check_name(where: str, given: str) -> None:
    """Refuse a whole token where its name belongs: what is in a path is written down by all it comes past."""
    if whole := TOKEN.fullmatch(given.strip()):
        raise InvalidInput(where, "is a whole token, with its secret", f"give its name alone: {whole[1]}")
