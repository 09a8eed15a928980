"""Logs as lines of JSON for programs, or of text for people. No line ever holds a token."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from functools import lru_cache
from typing import Any, TextIO

import msgspec
import structlog

from roost.model.tokens import without_tokens
from roost.settings import LogSection

_lines: LogLines | None = None  # where requests go, if as JSON
_encode = msgspec.json.Encoder(enc_hook=str).encode


def set_up(settings: LogSection) -> None:
    """From now on, log as the settings say. May be called again."""
    text = settings.format == "text" or (settings.format == "auto" and sys.stderr.isatty())
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    render: Any = structlog.dev.ConsoleRenderer() if text else structlog.processors.JSONRenderer(_dumps)
    global _lines
    lines = LogLines(sys.stderr)
    _lines = None if text or level > logging.INFO else lines
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: lines,
        cache_logger_on_first_use=False,
    )
    # What the server underneath has to say.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Hiding("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


def request(line: dict[str, Any]) -> None:
    """The line of one request. There are thousands a second, so as JSON it takes a shorter way than other lines."""
    if _lines is None:
        structlog.get_logger().info("request", **line)
    else:
        now = time.time()
        line |= {"event": "request", "level": "info", "timestamp": f"{_second(int(now))}.{int(now % 1 * 1e6):06d}Z"}
        _lines.msg(_encode(line).decode())


@lru_cache(maxsize=2)
def _second(now: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))


def _dumps(event: dict[str, Any], **_: object) -> str:
    return _encode(event).decode()


class _Hiding(logging.Formatter):
    """Lines of others, without tokens."""

    def format(self, record: logging.LogRecord) -> str:
        """As it is written."""
        return without_tokens(super().format(record))


class LogLines:
    """Where log lines go: gathered, and written when the event loop has a moment, so that none waits for another."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._lines = stream, list[str]()

    def msg(self, line: str) -> None:
        """One line. All that is written comes by here, or by `_Hiding`."""
        self._lines.append(without_tokens(line))
        if len(self._lines) > 1:
            return
        try:
            asyncio.get_running_loop().call_soon(self.flush)
        except RuntimeError:  # no loop runs in this thread
            self.flush()

    debug = info = warning = error = critical = log = exception = msg

    def flush(self) -> None:
        """Write what is there."""
        lines, self._lines = self._lines, []
        if lines:
            self._stream.write("\n".join(lines) + "\n")
            self._stream.flush()
