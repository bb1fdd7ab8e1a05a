"""One statement or several in one round trip on a psycopg connection, by libpq's own pipeline.

psycopg's pipeline mode does it too, statement by statement: each of them waits and communicates for itself, which was
half of what an ATOMIC command cost its process. Here all are written down, sent once and waited for once.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import count
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection, Connection, generators
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus, Format, PipelineStatus
from psycopg.pq.abc import PGconn, PGresult

Said = tuple[bytes, Sequence[Any] | None]  # a statement with its values; None where it takes none and answers nothing
Names = dict[bytes, bytes]  # what a session has prepared: names by text
Values = tuple[list[bytes | None], list[Format]]

_PREPARED_MAX: Final = 100  # far more than there are statements; what is beyond is not prepared
_OUTDATED: Final = frozenset({"0A000", "26000"})  # columns have other types than in its plan; somebody dropped its name
_NUMBERS: Final = count()  # no name is ever used twice, also where somebody drops what was prepared


def names_of(connection: Connection[Any] | AsyncConnection[Any]) -> Names:
    """What this session has prepared for trips."""
    names: Names = vars(connection).setdefault("semel_names", {})
    return names


def is_outdated(error: BaseException) -> bool:
    """Whether what the session had prepared for a statement is of no use any more: said again, it is prepared anew."""
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
    """To be performed by the connection's ``wait``: the rows of the statement that has values.

    A connection on which it is broken off is finished: nobody could tell what is still on its way.

    Raises:
        psycopg.Error: the first refusal; what stood behind it was not performed.
        UnicodeEncodeError: a text that cannot be written down; nothing was sent.
    """
    pgconn, names = connection.pgconn, names_of(connection)
    encoding = connection.info.encoding
    written = [(text, None if values is None else _encode_values(values, encoding)) for text, values in statements]
    if pgconn.pipeline_status != PipelineStatus.OFF:
        raise psycopg.InterfaceError("a pipeline on this connection was not ended")
    pgconn.enter_pipeline_mode()
    try:
        sent = [each for text, values in written for each in _send(pgconn, text, values, names, prepared=prepared)]
        pgconn.pipeline_sync()
        yield from generators.send(pgconn)
        answers: list[PGresult] = []
        for made in sent:
            answer = yield from generators.fetch_many(pgconn)
            if not answer:
                raise psycopg.OperationalError("the connection was lost")
            if made is not None and answer[0].status == ExecStatus.COMMAND_OK:
                names[made[0]] = made[1]
            answers.append(answer[0])
        yield from generators.fetch(pgconn)  # the end of the trip
        pgconn.exit_pipeline_mode()
    except BaseException:
        pgconn.finish()
        raise
    return _rows(connection, answers, names)


def _send(
    pgconn: PGconn, text: bytes, values: Values | None, names: Names, *, prepared: bool
) -> tuple[tuple[bytes, bytes] | None, ...]:
    """Write one statement down. For each answer of it: the text and the name that it prepares, or None."""
    if values is None:
        pgconn.send_query_params(text, None)
        return (None,)
    name = names.get(text)
    if name is None and (not prepared or len(names) >= _PREPARED_MAX):
        pgconn.send_query_params(text, values[0], None, values[1], Format.BINARY)
        return (None,)
    made = name or b"semel_%d" % next(_NUMBERS)
    if name is None:
        pgconn.send_prepare(made, text)
    pgconn.send_query_prepared(made, values[0], values[1], Format.BINARY)
    return (None,) if name is not None else ((text, made), None)


class _Forms(dict[type, Format]):
    """In which form values of a type are sent: an array is a kind of bytes."""

    def __missing__(self, kind: type) -> Format:
        form = self[kind] = Format.BINARY if issubclass(kind, bytes) else Format.TEXT
        return form


_FORMS: Final = _Forms()


def _encode_values(values: Sequence[Any], encoding: str) -> Values:
    """Values as libpq takes them, each with its form; their types are the statement's to say."""
    forms = list(map(_FORMS.__getitem__, map(type, values)))
    data: list[bytes | None] = [
        value if value is None else bytes(value) if form else _text(value, encoding)
        for value, form in zip(values, forms, strict=True)
    ]
    return data, forms


def _text(value: Any, encoding: str) -> bytes:
    if type(value) is not str:
        return b"%d" % value
    if "\x00" in value:
        raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    data: bytes = value.encode(encoding)
    return data


def _rows(
    connection: Connection[Any] | AsyncConnection[Any], answers: Sequence[PGresult], names: Names
) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for answer in answers:
        match answer.status:
            case ExecStatus.TUPLES_OK:
                reader = Transformer(connection)
                reader.set_pgresult(answer)
                rows = reader.load_rows(0, answer.ntuples, tuple)
            case ExecStatus.FATAL_ERROR:
                error = psycopg.errors.error_from_result(answer, encoding=connection.info.encoding)
                if is_outdated(error):
                    names.clear()
                raise error
            case ExecStatus.COMMAND_OK:
                pass
            case _:
                raise psycopg.InternalError(f"an answer that none of these statements gives: {answer.status}")
    return rows


__all__ = ["Said", "execute", "execute_async", "is_outdated", "names_of", "trip"]
