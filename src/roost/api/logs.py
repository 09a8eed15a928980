"""Logs as lines of JSON for programs, or of text for people. No line ever holds a token."""

from __future__ import annotations

import logging
import sys
from typing import Any

import msgspec
import structlog

from roost.settings import Log

_encode = msgspec.json.Encoder(enc_hook=str).encode


def set_up(settings: Log) -> None:
    """From now on, log as the settings say. May be called again."""
    text = settings.format == "text" or (settings.format == "auto" and sys.stderr.isatty())
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    render: Any = structlog.dev.ConsoleRenderer() if text else structlog.processors.JSONRenderer(_dumps)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    # What the server underneath has to say.
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s", force=True
    )


def _dumps(event: dict[str, Any], **_: object) -> str:
    return _encode(event).decode()
