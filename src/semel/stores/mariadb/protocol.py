"""Turn the MariaDB store's requests into SQL statements, for all client libraries.

A *conversation* takes a flow and yields texts. It receives each of the server's replies; an error arrives as a
:class:`~semel.stores.mariadb.errors.MariadbRefused` exception. This module also decides what transactions need:
ROLLBACK after a lock wait that timed out, a retry after a deadlock. The libraries' modules only send and receive.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from operator import call
from typing import Any, Final, NamedTuple, TypeVar

from semel.core.flow import Ask, Flow, MakeFlow
from semel.errors import SemelError, StatementRefused
from semel.stores.clock import Clock
from semel.stores.mariadb.errors import AUTOINC_BUSY, CONFLICTS, LOCK_WAIT_TIMEOUT, Lost, MariadbRefused, another_server
from semel.stores.mariadb.requests import OfEach, Reserve, RowValues, SettleTogether, SeveralStatements
from semel.stores.sql.statements import Argument, Execute, Params, Query, Row, Script, Statement, Together

T = TypeVar("T")
Result = list[Row] | int  # the rows of a statement, or how many it found to write
Conversation = Generator[str, list[Result], T]

# UTC_TIMESTAMP ignores time zones and summer time, and does not change while a statement runs.
SERVER_CLOCK: Final = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
GREETING: Final = (
    "SELECT @@version, @@max_allowed_packet, @@innodb_rollback_on_timeout, @@character_set_results, DATABASE(), "
    "CONCAT_WS(':', @@hostname, @@port, @@server_id), CONNECTION_ID()"
)
VERSION_LEAST: Final = (10, 6)
TRIES_MAX: Final = 8  # of a statement that a deadlock rolled back
FRAME: Final = 1024  # bytes around the statements of one packet
AGGREGATE_BYTES_MAX: Final = 1024 * 1024  # of a list in one column; the server refuses a statement with a longer one
# A user's INSERT … SELECT or LOAD DATA holds the table's AUTO-INC lock to its end. A claim that must not wait for locks
# does not wait for that one either.
AUTOINC_PAUSE: Final = "DO SLEEP(0.02)"
AUTOINC_TRIES_MAX: Final = 50
_INSIDE: Final = "BEGIN NOT ATOMIC\nDECLARE {name} BIGINT DEFAULT {now};\n{text};\nEND"
# Until the commit no other session can replace the tables that were checked.
_IN_COMMIT: Final = "BEGIN NOT ATOMIC\nDECLARE {name} BIGINT DEFAULT {now};\nSTART TRANSACTION;\n{text};\nCOMMIT;\nEND"
_ALL_OR_NONE: Final = (
    "BEGIN NOT ATOMIC\nSTART TRANSACTION;\n{text};\n"
    "IF ROW_COUNT() = {count} THEN COMMIT; SELECT 1; ELSE ROLLBACK; SELECT 0; END IF;\nEND"
)
_PARAMETER: Final = re.compile(r"(?<!:):([a-z_]+)")
_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class MariadbServer:
    """The address and options of a MariaDB store's server.

    Parameters: ``host``, ``port`` or ``socket`` (a path); ``user``, ``password`` (never shown), ``database``; ``tls`` a
    context, None without; ``connections_max`` per process (and per event loop); ``patience_seconds`` how long a call
    may take, with its waits for its turn and for a connection; ``clock`` in microseconds replaces the server's own
    (tests).
    """

    host: str
    port: int
    user: str
    database: str
    password: str = field(default="", repr=False)
    socket: str | None = None
    tls: ssl.SSLContext | None = None
    connections_max: int = 8
    patience_seconds: float = 5.0
    clock: Clock | None = None

    def options(self) -> dict[str, Any]:
        """Return the arguments for either library's ``connect``, except its flags."""
        options: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": self.password.encode(),
            "database": self.database,
            "unix_socket": self.socket,
            "charset": "utf8mb4",
            "connect_timeout": max(1.0, self.patience_seconds),
            "program_name": "semel",
        }
        return options if self.tls is None else {**options, "ssl": self.tls}

    def session(self) -> str:
        """Return the session settings of Semel's own connections, which override the server's defaults."""
        return (
            "SET SESSION tx_isolation = 'READ-COMMITTED', sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', "
            f"innodb_lock_wait_timeout = {max(1, round(self.patience_seconds / 2))}, "
            f"max_statement_time = {self.patience_seconds:.3f}, autocommit = 1, completion_type = 'NO_CHAIN', "
            f"group_concat_max_len = {AGGREGATE_BYTES_MAX}"
        )


class Greeting(NamedTuple):
    """A server's info, read when a connection opens."""

    packet_max: int
    rolls_back_on_timeout: bool
    charset: str
    database: str | None  # the one that its transactions are in
    server: str  # its identity: several may share one address, such as the nodes of a cluster
    session: int  # the server's own number for it, also behind a proxy with numbers of its own


def greet(server: MariadbServer | None) -> Conversation[Greeting]:
    """Greet the server on a new connection. ``server`` sets it up as one of Semel's own; None leaves it the user's.

    Raises ConfigurationError where the server is no MariaDB of the least version.
    """
    try:
        [rows] = yield GREETING
    except MariadbRefused as error:
        if error.code == 1193:  # an unknown variable
            raise another_server("no MariaDB") from error
        raise
    assert isinstance(rows, list)
    version, packet_max, rolls_back, charset, database, name, session = rows[0]
    told = str(version)
    number = _VERSION.match(told)
    if "mariadb" not in told.lower() or number is None or (int(number[1]), int(number[2])) < VERSION_LEAST:
        raise another_server(told if "mariadb" in told.lower() else f"MySQL {told}")
    if server is not None:
        yield server.session()
    where = None if database is None else str(database)
    return Greeting(int(packet_max or 0), bool(rolls_back), str(charset), where, str(name), int(session or 0))


# --- statements written out ---------------------------------------------------------------


class _Written(str):
    """A value that is SQL already and is written as it is."""

    __slots__ = ()


class _Writers(dict[type, Callable[[Any], str]]):
    """The writer for each type of value, chosen so that most values take no step of Python."""

    def __missing__(self, kind: type) -> Callable[[Any], str]:
        if issubclass(kind, int):
            writer: Callable[[Any], str] = int.__repr__  # an enumeration's too is its number
        elif issubclass(kind, str):
            writer = _text
        else:
            writer = _bytes if issubclass(kind, (bytes, bytearray, memoryview)) else _list
        self[kind] = writer
        return writer


def _text(value: str) -> str:
    return f"_utf8mb4 x'{value.encode().hex()}'"


def _bytes(value: bytes | bytearray | memoryview) -> str:
    return f"x'{value.hex()}'"


def _list(values: Sequence[Argument]) -> str:
    return f"({','.join(map(literal, values)) or 'NULL'})"


def _rows(rows: RowValues, given: Mapping[str, Any]) -> str:
    names, own = rows.each.names, rows.own
    # Neither a text nor bytes are written with a percent sign.
    alike = tuple(["%s" if name in own else literal(given[name]) for name in names])
    row = f"({_template(rows.each.text) % alike})"
    places = [own.index(name) for name in names if name in own]
    return ",\n".join([row % tuple([literal(values[place]) for place in places]) for values in rows.values])


def _of_each(pairs: OfEach) -> str:
    return f"CASE id{''.join([f' WHEN {_bytes(id)} THEN {_WRITERS[type(value)](value)}' for id, value in pairs])} END"


# Most texts recur: names of operations and callers, the holder. The cache of them is small.
_WRITERS: Final = _Writers(
    {
        type(None): {None: "NULL"}.__getitem__,
        str: lru_cache(maxsize=1024)(_text),
        _Written: str,
        OfEach: _of_each,
    }
)
SERVER_NOW: Final = _Written(SERVER_CLOCK)
_NOW_INSIDE: Final = _Written("semel_now")  # a compound statement's variable: the clock is in the text once


def literal(value: Argument) -> str:
    """Write a value as SQL. Texts and bytes are written in hexadecimal, which every mode of the server reads alike.

    >>> literal("é'"), literal(None), literal([1, b"x"]), literal([])
    ("_utf8mb4 x'c3a927'", 'NULL', "(1,x'78')", '(NULL)')
    """
    return _WRITERS[type(value)](value)


def render(statement: Statement, params: Params | Row, clock: Clock | None, *, now: _Written | None = None) -> str:
    """Write a statement with its values; ``:now`` is the clock's where no ``now`` is given."""
    assert not isinstance(params, tuple)
    given: dict[str, Any] = {**params, "now": now or (SERVER_NOW if clock is None else clock())}
    if type(rows := given.get("rows")) is RowValues:
        given["rows"] = _Written(_rows(rows, given))
    values = list(map(given.__getitem__, statement.names))
    return _template(statement.text) % tuple(map(call, map(_WRITERS.__getitem__, map(type, values)), values))


@cache
def _template(text: str) -> str:
    """Return a statement's text with ``%s`` for each parameter, in their order."""
    return _PARAMETER.sub("%s", text.replace("%", "%%"))


# --- conversations ------------------------------------------------------------------------


def converse(make: MakeFlow[T], clock: Clock | None, packet_max: int, *, inside: bool = False) -> Conversation[T]:
    """Turn a flow into a conversation. ``inside`` a transaction that another party ends.

    Raises Refused, and StatementRefused for a request that exceeds the server's packet size.
    """
    for _ in range(TRIES_MAX):
        try:
            return (yield from _once(make(), clock, packet_max, inside=inside))
        except _Undone as undone:
            last = undone.error  # all of it was rolled back: start over
    raise last


class _Undone(Exception):
    """The server has rolled back the flow's own transaction."""

    def __init__(self, error: MariadbRefused) -> None:
        super().__init__(error)
        self.error = error


def _once(flow: Flow[T], clock: Clock | None, packet_max: int, *, inside: bool) -> Conversation[T]:
    begun = False
    try:
        needed = next(flow)
        while True:
            reply = None
            if type(needed) is Together:
                if not inside and not begun:
                    yield "START TRANSACTION"
                    begun = True
            elif type(needed) is Script:
                for text in needed.statements:
                    _ = yield text
            else:
                reply = yield from _say(needed, clock, packet_max, open=inside or begun)
            needed = flow.send(reply)
    except StopIteration as stop:
        result: T = stop.value
    except (MariadbRefused, SemelError) as error:
        if begun:
            yield from _roll_back()
            if isinstance(error, MariadbRefused) and error.code in (*CONFLICTS, AUTOINC_BUSY):
                raise _Undone(error) from error
        raise
    if begun:
        try:
            yield "COMMIT"
        except MariadbRefused as error:
            if error.code in CONFLICTS:
                raise _Undone(error) from error
            raise
    return result


def _roll_back() -> Conversation[None]:
    try:
        yield "ROLLBACK"
    except MariadbRefused as error:  # the transaction is still open: the next statement would run inside it
        raise Lost(error.code, error.text) from error


def _say(needed: Ask[Any], clock: Clock | None, packet_max: int, *, open: bool) -> Conversation[Any]:
    """Perform one ask; ``open`` in a transaction that is open already."""
    if type(needed) is Query or type(needed) is Execute:
        [result] = yield from _say_group([render(needed.statement, needed.params, clock)], packet_max, open=open)
        return result
    if type(needed) is Reserve:
        text = render(
            needed.query.statement, needed.query.params, clock, now=_NOW_INSIDE if needed.is_compound else None
        )
        if needed.is_compound:
            now = SERVER_NOW if clock is None else clock()
            text = (_INSIDE if open else _IN_COMMIT).format(text=text, name=_NOW_INSIDE, now=now)
        if needed.divides and len(text) + FRAME > packet_max:
            return None
        return (yield from _reserve(text, packet_max, open=open, begins=needed.is_compound and not open))
    if type(needed) is SettleTogether:
        if open:
            return False
        return (yield from _settle(render(needed.statement, needed.params, clock), packet_max, needed.count))
    assert isinstance(needed, SeveralStatements)
    results: list[Result] = []
    for group in _groups([render(part.statement, part.params, clock) for part in needed.parts], packet_max):
        results += yield from _say_group(group, packet_max, open=open)
    return results


def _reserve(text: str, packet_max: int, *, open: bool, begins: bool) -> Conversation[list[Row] | None]:
    for again in range(AUTOINC_TRIES_MAX):
        try:
            results = yield from _say_group([text], packet_max, open=open, begins=begins)
        except MariadbRefused as error:  # nothing of this statement is left
            if error.code == LOCK_WAIT_TIMEOUT:
                return None
            # In an open transaction the earlier writes may be gone: its owner decides.
            if error.code != AUTOINC_BUSY or open or again == AUTOINC_TRIES_MAX - 1:
                raise
            _ = yield AUTOINC_PAUSE
        else:
            return [row for rows in results if isinstance(rows, list) for row in rows]
    raise AssertionError("unreachable")


def _settle(text: str, packet_max: int, count: int) -> Conversation[bool]:
    whole = _ALL_OR_NONE.format(text=text, count=count)
    if len(whole) + FRAME > packet_max:
        return False
    [done, _] = yield from _say_again(whole, open=False, begins=True)
    return done == [(1,)]


def _say_group(texts: list[str], packet_max: int, *, open: bool, begins: bool = False) -> Conversation[list[Result]]:
    size = sum(map(len, texts)) + FRAME
    if size > packet_max:
        raise StatementRefused(
            f"MariaDB: an answer needs a packet of {size} bytes, and this server takes {packet_max}; raise its "
            "max_allowed_packet to twice the largest answer, or keep smaller ones (the policy's answer_bytes_max)"
        )
    many = len(texts) > 1 and not open
    text = ";\n".join(["START TRANSACTION", *texts, "COMMIT"] if many else texts)
    results = yield from _say_again(text, open=open, begins=many or begins)
    return results[1:-1] if many else results


def _say_again(text: str, *, open: bool, begins: bool) -> Conversation[list[Result]]:
    """Send a text, again if a deadlock undid it. ``begins`` a transaction of its own, which it ends."""
    for again in range(TRIES_MAX):
        try:
            return (yield text)
        except MariadbRefused as error:
            if begins:  # a lock wait that timed out rolled back one statement; the others still hold their locks
                yield from _roll_back()
            if open or error.code not in CONFLICTS or again == TRIES_MAX - 1:
                raise
    raise AssertionError("unreachable")


def _groups(texts: Sequence[str], packet_max: int) -> Iterator[list[str]]:
    """Group the items: as many as fit into one of the server's packets, and at least one."""
    if sum(map(len, texts)) + 2 * len(texts) + FRAME <= packet_max:
        yield list(texts)
        return
    group: list[str] = []
    size = FRAME
    for text in texts:
        if group and size + len(text) + 2 > packet_max:
            yield group
            group, size = [], FRAME
        group.append(text)
        size += len(text) + 2
    if group:
        yield group
