"""What can go wrong between a client and the service.

RoostError
├── ServiceProblem        the service says no, and why
└── ServiceUnreachable    nothing came back that could be understood
"""

from __future__ import annotations

from roost.model.errors import RoostError
from roost.wire.problems import Problem

NOBODY_THERE = "start a service with `roost serve`, or say where it is with ROOST_URL or --url"
MORE_PATIENCE = "it may be busy; have more patience with ROOST_CLIENT_TIMEOUT_SECONDS"


class ServiceProblem(RoostError):
    """The service refused: `problem` is the whole document, `code` the part of it that never changes."""

    def __init__(self, problem: Problem, retry_after: float | None = None) -> None:
        """`retry_after`: seconds after which the service wants to be asked again, if it said so."""
        self.problem, self.retry_after = problem, retry_after
        self.code, self.status, self.retryable = problem.code, problem.status, problem.retryable
        super().__init__(f"{problem.title}: {problem.detail}" if problem.detail else problem.title)


class ServiceUnreachable(RoostError):
    """No service, a connection that broke, or an answer that is none of Roost's.

    With a `key`, a write may have been done all the same: ask again with that key, and it is not done twice.
    """

    code = "roost.unreachable"

    def __init__(self, where: str, what: str, remedy: str, key: str = "") -> None:
        self.where, self.key = where, key
        super().__init__(f"{where}: {what}; {remedy}")
