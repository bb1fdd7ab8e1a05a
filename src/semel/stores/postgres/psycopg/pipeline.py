"""Sends one or more statements in one round trip on a psycopg connection, by libpq's own pipeline.

psycopg's pipeline mode works statement by statement: each one communicates and waits by itself, which was half of what
an ATOMIC command cost its process. Here all statements are written, sent once and waited for once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from operator import call
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection, Connection, generators
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.pq import ExecStatus, Format, PipelineStatus
from psycopg.pq.abc import PGconn, PGresult

Said = tuple[bytes, Sequence[Any] | None]  # a statement with its values; None where it takes none
Names = dict[bytes, bytes]  # a session's prepared statements: names by text
Values = tuple[list[bytes | None], list[Format]]

_NOTHING: Final[Values] = ([], [])
_PREPARED_MAX: Final = 100  # far more than there are statements; any beyond it are not prepared
_OUTDATED: Final = frozenset({"0A000", "26000"})  # columns have other types than in its plan; its name was dropped
_OFF: Final = PipelineStatus.OFF
_BINARY: Final = Format.BINARY
_DONE, _TUPLES, _REFUSED = ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK, ExecStatus.FATAL_ERROR
_ADAPTERS: Final = AdaptersMap(psycopg.adapters)  # as they were before the application registered more
_NUMBERS: Final = itertools.count()  # no name is used twice, also after a prepared statement was dropped


def names_of(connection: Connection[Any] | AsyncConnection[Any]) -> Names:
    """Return the statements that this session has prepared for pipelines, by name."""
    names: Names = vars(connection).setdefault("semel_names", {})
    return names


def is_outdated(error: BaseException) -> bool:
    """Whether the session's prepared plan is out of date: a repetition of the statement prepares it again."""
    return getattr(error, "sqlstate", None) in _OUTDATED


def execute(connection: Connection[Any], *statements: Said, prepared: bool = True) -> list[Any]:
    """Perform a trip. Raises as ``trip``."""
    with connection.lock:
        rows: list[Any] = connection.wait(trip(connection, statements, prepared=prepared))
    return rows


async def execute_async(connection: AsyncConnection[Any], *statements: Said, prepared: bool = True) -> list[Any]:
    """As ``execute``, on an event loop."""
    async with connection.lock:
        rows: list[Any] = await connection.wait(trip(connection, statements, prepared=prepared))
    return rows


def trip(
    connection: Connection[Any] | AsyncConnection[Any], statements: Sequence[Said], *, prepared: bool
) -> Generator[Any, Any, list[Any]]:
    """Yield the waits for the connection's ``wait`` to perform; return the rows of the statement that has values.

    An interrupted pipeline closes the connection, because the replies still on their way are unknown.

    Raises:
        psycopg.Error: the first refusal; the server performed none of the statements behind it.
        UnicodeEncodeError: a text that cannot be encoded; nothing was sent.
    """
    pgconn, names = connection.pgconn, names_of(connection)
    encoding = None if pgconn.parameter_status(b"client_encoding") == b"UTF8" else connection.info.encoding
    wanted = [_NOTHING if values is None else to_libpq(values, encoding) for _, values in statements]
    if pgconn.pipeline_status != _OFF:
        raise psycopg.InterfaceError("a pipeline on this connection was not ended")
    if len(statements) == 1 and statements[0][0] in names:
        answers = yield from _answers_of_one(pgconn, names[statements[0][0]], wanted[0])
        return _rows(connection, answers, names, encoding)
    pgconn.enter_pipeline_mode()
    try:
        made: dict[int, tuple[bytes, bytes]] = {}  # by the place of its answer: a text, and the name that it prepares
        count = 0
        for (text, _), (data, forms) in zip(statements, wanted, strict=True):
            name = names.get(text)
            if name is None and prepared and len(names) + len(made) < _PREPARED_MAX:
                name = b"semel_%d" % next(_NUMBERS)
                pgconn.send_prepare(name, text)
                made[count] = text, name
                count += 1
            if name is None:
                pgconn.send_query_params(text, data, None, forms, _BINARY)
            else:
                pgconn.send_query_prepared(name, data, forms, _BINARY)
            count += 1
        pgconn.pipeline_sync()
        yield from generators.send(pgconn)
        answers = []
        for _ in range(count):
            answers += (yield from generators.fetch_many(pgconn))[:1]
        if len(answers) < count:
            raise psycopg.OperationalError("the connection was lost")
        for place, (text, name) in made.items():
            if answers[place].status == _DONE:
                names[text] = name
        yield from generators.fetch(pgconn)  # the end of the trip
        pgconn.exit_pipeline_mode()
    except BaseException:
        pgconn.finish()
        raise
    return _rows(connection, answers, names, encoding)


def _answers_of_one(pgconn: PGconn, name: bytes, values: Values) -> Generator[Any, Any, list[PGresult]]:
    """Execute a prepared statement that is sent alone, which takes no pipeline."""
    try:
        pgconn.send_query_prepared(name, *values, _BINARY)
        answers: list[PGresult] = yield from generators.execute(pgconn)
    except BaseException:
        pgconn.finish()
        raise
    return answers


class _Writers(dict[type, Callable[[Any], Any]]):
    """The function that writes a value of each type for libpq; no lookup takes a step of Python."""

    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        writer = self[kind] = bytes if issubclass(kind, bytes) else _NUMBER if issubclass(kind, int) else _text
        return writer


class _Forms(dict[type, Format]):
    """The form in which values of each type are sent: an array is a kind of bytes."""

    def __missing__(self, kind: type) -> Format:
        form = self[kind] = _BINARY if issubclass(kind, bytes) else Format.TEXT
        return form


def _text(value: Any, encoding: str = "utf-8") -> bytes:
    if "\x00" in value:
        raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    data: bytes = value.encode(encoding)
    return data


_NUMBER: Final[Callable[[Any], bytes]] = b"%d".__mod__
_FORMS: Final = _Forms()
# Most texts are repeated: names of operations and callers, the holder. The cache of them is small.
_WRITERS: Final = _Writers({type(None): {None: None}.get, bytes: bytes, str: lru_cache(maxsize=1024)(_text)})


def to_libpq(values: Sequence[Any], encoding: str | None) -> Values:
    """Return values as libpq takes them, each with its form; the statement names their types.

    Parameters: ``encoding`` of the connection where it is not UTF-8.
    """
    kinds = list(map(type, values))
    forms = list(map(_FORMS.__getitem__, kinds))
    if encoding is not None:
        values = [_text(value, encoding) if kind is str else value for value, kind in zip(values, kinds, strict=True)]
        kinds = list(map(type, values))
    return list(map(call, map(_WRITERS.__getitem__, kinds), values)), forms


def _reader(connection: Connection[Any] | AsyncConnection[Any], encoding: str | None) -> Any:
    """Return the reader of this connection's rows: psycopg's own loaders, even if a handler has set others."""
    if encoding is not None:
        return Transformer(connection)
    kept = vars(connection)
    reader = kept.get("semel_reader")
    if reader is None:
        reader = kept["semel_reader"] = Transformer(_ADAPTERS)
    return reader


def _rows(
    connection: Connection[Any] | AsyncConnection[Any],
    answers: Sequence[PGresult],
    names: Names,
    encoding: str | None,
) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for answer in answers:
        status = answer.status
        if status == _DONE:
            continue
        if status == _TUPLES:
            reader = _reader(connection, encoding)
            reader.set_pgresult(answer)
            rows = reader.load_rows(0, answer.ntuples, tuple)
        elif status == _REFUSED:
            error = psycopg.errors.error_from_result(answer, encoding=connection.info.encoding)
            if is_outdated(error):
                names.clear()
            raise error
        else:
            raise psycopg.InternalError(f"an answer that none of these statements gives: {status}")
    return rows


__all__ = ["Said", "execute", "is_outdated", "names_of", "to_libpq", "trip"]
