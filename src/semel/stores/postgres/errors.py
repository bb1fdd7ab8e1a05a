"""Maps PostgreSQL errors to Semel's, for all client libraries, with the remedy in the message.

The question is always the same: is it certain that the statement did nothing? An error that the server
reports has rolled the statement back. A connection that was lost, a time-out and a cancelled wait for a
standby leave it open: not known yet (https://www.postgresql.org/docs/current/errcodes-appendix.html).
"""

from __future__ import annotations

from typing import Final

from semel.errors import (
    HandlerRefused,
    SchemaError,
    StatementRefused,
    StoreError,
    StoreReadOnly,
    StoreTimeout,
    StoreUnavailable,
)
from semel.stores.backend import hide_password
from semel.stores.failures import BROKEN_RULE, WENT_ON, with_causes

READ_ONLY: Final = "25006"
_REMEDIES: Final = {
    READ_ONLY: "the server is read-only (a standby, or a failover is on its way): point the URL at the primary",
    "28000": "the server refuses this user: check the URL's user and pg_hba.conf",
    "28P01": "the password is wrong: check the URL",
    "3D000": "the database does not exist: create it, or check the URL",
    "40001": "a conflict with another transaction: retry with the same key",
    "40P01": "a deadlock with another transaction: retry with the same key",
    "42501": "this user may not use Semel's tables: grant it SELECT, INSERT, UPDATE and DELETE on them",
    "42701": "some of Semel's tables exist, but their version is missing: restore them all from one backup",
    "42P07": "some of Semel's tables exist, but their version is missing: restore them all from one backup",
    "53100": "the server's disk is full: make room; answers already stored are still replayed",
    "53200": "the server is out of memory",
    "53300": "the server has no connection left: raise max_connections, or lower the URL's connections_max",
    "55P03": "a row is locked by another transaction: retry with the same key",
    "57P03": "the server is starting up or shutting down: retry with the same key",
}
_MIGRATES: Final = "migrate as the schema's owner, or GRANT USAGE, CREATE on it to this user"
_CONNECTS: Final = "this user may not connect to the database: GRANT CONNECT on it"
_CONFLICTS: Final = frozenset({"40001", "40P01"})  # another transaction was first: a retry may well succeed
# A statement was cancelled, or waited too long for a lock; a transaction was idle, or open, for too long.
_STOPPED: Final = frozenset({"57014", "55P03", "25P03", "25P04"})
# What a handler's own writes can be refused for, also at the commit: constraints, and triggers that raise.
_OF_THE_HANDLER: Final = ("23", "44", "P0")
_OF_A_FUNCTION: Final = ("22", "38", "39", "42")  # of values, of routines, of names; a conflict or a time-out is not
_WENT_ON: Final = frozenset({"25P02", "3B001"})  # in a failed transaction; the unit's savepoint is gone
_UNDECIDED: Final = frozenset({"40003", "57P01", "57P02", "57P05"})  # the connection ended during a statement
# libpq refuses to send these; the connection stays sound.
_UNSENDABLE: Final = ("number of parameters must be", "another command is already in progress")


def store_error(sqlstate: str | None, text: str) -> StoreError | SchemaError:
    """Make the error to raise for an exception of a client library while a statement was on its way."""
    text = text.strip().splitlines()[0] if text.strip() else "no answer"
    if sqlstate is None or _ends_connection(sqlstate):
        return StoreTimeout(f"PostgreSQL: the connection was lost ({text}): whether it took effect is not known yet")
    if sqlstate == "3F000":
        return SchemaError(
            "there is no schema to make Semel's tables in, or it is closed to this user: CREATE SCHEMA for the URL's "
            "schema= or the search_path, GRANT USAGE, CREATE on it to the user who migrates; then run: semel migrate"
        )
    if sqlstate == "42501" and "for schema" in text:
        return StatementRefused(f"PostgreSQL: {text} ({_MIGRATES})")
    if sqlstate == "42P01":
        return SchemaError("this database has no Semel tables (or they are not on the search_path); run: semel migrate")
    if sqlstate == "42703":
        return SchemaError("this database's Semel tables are of another version; run: semel migrate")
    if sqlstate == "57014":
        return StoreTimeout("PostgreSQL: the statement was cancelled: whether it took effect is not known yet")
    if sqlstate in _WENT_ON:
        return HandlerRefused(WENT_ON)
    if sqlstate.startswith(_OF_THE_HANDLER):
        return HandlerRefused(f"PostgreSQL: {text} ({BROKEN_RULE})")
    refusal = StoreReadOnly if sqlstate == READ_ONLY else StatementRefused
    return refusal(f"PostgreSQL: {text} ({_REMEDIES.get(sqlstate, 'run: semel doctor')})")


def of_a_trigger(error: BaseException) -> HandlerRefused | None:
    """Make the error for a failed database function of the application's while Semel settled and committed.

    Semel has no functions in the database, so an error that a function raised (it has a context) comes from a trigger;
    a deferred one runs at COMMIT. None for every other error, and for one that does not say what went wrong.
    """
    context = getattr(getattr(error, "diag", error), "context", None)
    if not context or not str(getattr(error, "sqlstate", "")).startswith(_OF_A_FUNCTION):
        return None
    return HandlerRefused(f"PostgreSQL: {str(error).strip().splitlines()[0]} ({BROKEN_RULE})")


def is_conflict(error: BaseException) -> bool:
    """Whether the server rolled back because of another transaction, in an error of any library (or wrapper)."""
    return any(getattr(each, "sqlstate", None) in _CONFLICTS for each in with_causes(error))


def is_stopped(error: BaseException) -> bool:
    """Whether a handler's statement failed for now: its time was over, or its connection has ended.

    >>> is_stopped(ValueError("the connection is closed"))
    False
    """
    return any(_is_for_now(each) for each in with_causes(error))


def _is_for_now(error: BaseException) -> bool:
    sqlstate = getattr(error, "sqlstate", None)
    if sqlstate is not None:
        return sqlstate in _STOPPED or _ends_connection(str(sqlstate))
    match type(error).__module__.partition(".")[0], type(error).__name__:
        case "psycopg", "OperationalError":
            is_unsendable = any(words in str(error) for words in _UNSENDABLE)
            # The pgconn is that of an attempt to connect, perhaps elsewhere.
            return not is_unsendable and getattr(error, "pgconn", None) is None
        case "asyncpg", "InterfaceError":
            return "connection is closed" in str(error)
        case _:
            return False


def _ends_connection(sqlstate: str) -> bool:
    return sqlstate in _UNDECIDED or sqlstate.startswith("08")


# libpq reports a refused connection by text alone, asyncpg by its SQLSTATE.
_WORDS: Final = (
    ("password authentication failed", "28P01"),
    ("no pg_hba.conf entry", "28000"),
    ("is starting up", "57P03"),
    ("is shutting down", "57P03"),
    ('role "', "28000"),
    ('database "', "3D000"),
    ("too many clients", "53300"),
    ("remaining connection slots", "53300"),
    ("too many connections", "53300"),
)


_OPTION: Final = "an option of the URL is wrong: correct it, or leave it out"
_TLS: Final = "TLS failed: check the URL's sslmode and sslrootcert, and whether the server has TLS at all"
_SESSION: Final = "the URL's target_session_attrs asks for another kind of server: name that server, or leave it out"
# Errors that the library finds by itself, whether or not a server runs.
_OF_THE_LIBRARY: Final = (
    (" for connection option", _OPTION),
    ("invalid sslmode", _OPTION),
    ("_attrs value", _OPTION),
    ("definition of service", _OPTION),
    ("unrecognized configuration parameter", _OPTION),
    ("invalid value for parameter", _OPTION),
    ("SSL", _TLS),
    ("certificate", _TLS),
    ("hot standby mode", _SESSION),
    ("session is", _SESSION),
)


def _by_words(text: str) -> str:
    said = text.partition("FATAL:")[2]
    return next((_REMEDIES[sqlstate] for words, sqlstate in _WORDS if words in said), "") or next(
        (remedy for words, remedy in _OF_THE_LIBRARY if words in text),
        "check that the server runs and that the URL names its host and port",
    )


def cannot_connect(text: str, sqlstate: str | None = None) -> StoreUnavailable:
    """Make the error for a connection that could not be opened: nothing was sent."""
    text = text.strip().splitlines()[0] if text.strip() else "no answer"
    remedy = _CONNECTS if "permission denied for database" in text else _REMEDIES.get(sqlstate or "") or _by_words(text)
    # libpq quotes a URL that it cannot read, including its secrets
    return StoreUnavailable(f"PostgreSQL cannot be reached: {hide_password(text)} ({remedy})")
