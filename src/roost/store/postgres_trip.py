"""One trip to PostgreSQL: statements that are sent together, answered together, and prepared once a connection.

A commit is two of these, so what a statement costs by itself counts. The driver's own way makes a cursor for each,
looks for a way to write each value, and talks to the server each time. Here all are written to libpq's buffer and go in
one packet. Values go as text, lists as the literals of arrays.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from functools import cache
from typing import Any

from psycopg import DataError, errors, pq
from psycopg.adapt import Transformer
from psycopg.waiting import Ready, Wait

from roost.store.postgres_line import Hearing

Rows = list[tuple[Any, ...]]
NUL = b"\0"
SEPARATOR = "\x1f"  # hardly in any text: JSON writes it otherwise
UTF8 = "utf-8"  # what sessions ask for


class Trip:
    """Statements on their way to the server."""

    def __init__(self, connection: Hearing) -> None:
        self._connection = connection
        self._statements: list[tuple[str, list[bytes | None]]] = []

    def add(self, statement: str, *values: object) -> int:
        """Take a statement along, with a value for each of its `%s` and `%b`; says which of the answers is its own."""
        self._statements.append((statement, [written(value) for value in values]))
        return len(self._statements) - 1

    def go(self) -> list[Rows]:
        """The rows of each statement. If one fails, its error is raised, and those after it were not done."""
        return self._rows(self._connection.wait(self._go()))

    def _rows(self, answers: Sequence[pq.abc.PGresult]) -> list[Rows]:
        reader, found = Transformer(self._connection), list[Rows]()
        for answer in answers:
            if answer.status == pq.ExecStatus.TUPLES_OK:
                reader.set_pgresult(answer)
                found.append(reader.load_rows(0, answer.ntuples, tuple))
            else:
                found.append([])
        return found

    def _go(self) -> Generator[Wait, Ready, list[pq.abc.PGresult]]:
        connection, server = self._connection, self._connection.pgconn
        made: list[str] = []  # for each answer to come: what it prepares; empty if it is one that somebody waits for
        server.enter_pipeline_mode()
        for statement, values in self._statements:
            name = connection.prepared.get(statement) or connection.named.get(statement)
            if name is None:
                connection.named[statement] = name = b"roost_%d" % connection.names
                connection.names += 1
                server.send_prepare(name, _numbered(statement))
                made.append(statement)
            server.send_query_prepared(name, values)
            made.append("")
        server.pipeline_sync()
        while server.flush():
            if (yield Wait.RW) & Ready.R:
                server.consume_input()
        answers: list[pq.abc.PGresult] = []
        while True:
            while server.is_busy():
                yield Wait.R
                server.consume_input()
            if (answer := server.get_result()) is None:
                continue  # the end of what one statement answers
            if answer.status == pq.ExecStatus.PIPELINE_SYNC:
                break
            answers.append(answer)
        server.exit_pipeline_mode()
        return self._sorted(answers, made)

    def _sorted(self, answers: Sequence[pq.abc.PGresult], made: Sequence[str]) -> list[pq.abc.PGresult]:
        """The answers that somebody waits for; what was prepared is remembered. The first error is raised."""
        connection = self._connection
        failed = [answer for answer in answers if answer.status == pq.ExecStatus.FATAL_ERROR]
        for answer, statement in zip(answers, made, strict=False):  # one more, if it failed when all was to be kept
            if statement and answer.status == pq.ExecStatus.COMMAND_OK:
                connection.prepared[statement] = connection.named[statement]
        connection.named.clear()
        if failed:
            raise errors.error_from_result(failed[0], UTF8)
        return [answer for answer, statement in zip(answers, made, strict=True) if not statement]


@cache
def _numbered(statement: str) -> bytes:
    """A statement as the server wants it: values are `$1`, `$2`, …"""
    parts = [part.replace("%%", "%") for part in re.split("%[sb]", statement)]
    return "".join(f"{part}${i}" for i, part in enumerate(parts[:-1], 1)).encode() + parts[-1].encode()


def written(value: object) -> bytes | None:
    """A value as text that the server reads: a number, a text, or a list of either."""
    if value is None:
        return None
    if isinstance(value, str):
        text = value.encode()
    elif isinstance(value, list):
        text = _array(value)
    else:
        assert isinstance(value, int | float), "nothing else is sent"
        text = str(value).encode()
    if NUL in text:
        raise DataError("PostgreSQL keeps no text with a NUL in it")
    return text


def _array(values: Sequence[Any]) -> bytes:
    """A list of texts, or of numbers, as the literal of an array."""
    if not values:
        return b"{}"
    if not isinstance(values[0], str):
        return ("{" + ",".join(map(str, values)) + "}").encode()
    joined = SEPARATOR.join(values)
    if joined.count(SEPARATOR) == len(values) - 1:  # as nearly always: all in one go
        return ('{"' + _escaped(joined).replace(SEPARATOR, '","') + '"}').encode()
    return ('{"' + '","'.join(map(_escaped, values)) + '"}').encode()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
