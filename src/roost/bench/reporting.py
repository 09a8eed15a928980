"""How a measurement says what it is doing, while somebody waits for it."""

from collections.abc import Callable

ReportProgress = Callable[[str, float], None]  # told what is done now, and how much of all is done already
