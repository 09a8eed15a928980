"""What is said while a service starts: what it is doing, and then that it serves."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

from roost.cli.output import advise, errors, progress

if TYPE_CHECKING:
    from roost.settings import Settings


class Starting:
    """A line that changes on a terminal, else lines of the log; once it serves, one that says so and where.

    `tell` may be called from any thread.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings, self._url, self._fallen_back = settings, "", False
        self._shown = ExitStack()

    def __enter__(self) -> Starting:
        self._live = errors().is_terminal
        self._show = self._shown.enter_context(progress("starting"))
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.close()

    def tell(self, doing: str) -> None:
        """It is doing something that may take long."""
        import structlog

        if self._live:
            self._show(doing, 0.0)
        else:
            structlog.get_logger().info("starting", doing=doing, **({"url": self._url} if self._url else {}))

    def listens(self, bound: socket.socket, *, fallen_back: bool) -> None:
        """The port is open; `fallen_back`: on loopback only, as there are no tokens."""
        address, port = bound.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        self._url = f"{'https' if self._settings.server.tls_cert else 'http'}://{shown}:{port}"
        self._fallen_back = fallen_back

    def ready(self) -> None:
        """It serves."""
        from roost.api import logs
        from roost.settings import without_password

        self._shown.close()
        logs.set_up(self._settings.log)  # which wrote above the line that changed, and that is gone
        if self._fallen_back:
            advise(
                f"There are no tokens yet, so Roost listens on loopback only, not on {self._settings.server.host}. "
                "Make one with: roost token create admin --scope admin"
            )
        advise(f"Roost serves {without_password(self._settings.store.url)} at {self._url}")
