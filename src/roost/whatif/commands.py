"""Commands of the user's own, with words in braces for what they are about."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from roost.model.errors import InvalidInput

TOLD = 200  # characters of what a command that failed said last


def command(text: str, words: Sequence[str], example: str) -> Callable[[Mapping[str, Any]], str]:
    """Runs a command for what the words stand for; returns what went wrong, if its exit code says that it did."""
    try:
        parts = shlex.split(text)
    except ValueError as error:
        raise InvalidInput("--run", f"is {text!r}: {error}", "quote it as for a shell") from None
    if not parts:
        raise InvalidInput("--run", "is empty", f"write {example}")
    try:
        " ".join(parts).format(**dict.fromkeys(words, ""))
    except (LookupError, ValueError, AttributeError):
        raise InvalidInput("--run", f"is {text!r}", f"in braces it can name {', '.join(words)}") from None

    def run(said: Mapping[str, Any]) -> str:
        filled = [part.format(**{name: said[name] for name in words}) for part in parts]
        try:
            done = subprocess.run(  # in a session of its own: whoever interrupts us lets it finish
                filled,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                start_new_session=True,
            )
        except OSError as error:
            return f"{filled[0]}: {error.strerror}"
        last = (done.stderr or done.stdout).strip()[-TOLD:]
        return f"{filled[0]} ended with {done.returncode}: {last}" if done.returncode else ""

    return run
