"""Map MariaDB errors to Semel's, for both client libraries, with the remedy in the message.

The question is always the same: is it certain that the statement did nothing? An error that the server reports has
rolled the statement back. A connection that was lost, a time-out and an interrupted statement leave it open: not
known yet (https://mariadb.com/kb/en/mariadb-error-code-reference/).
"""

from __future__ import annotations

from typing import Final

from semel.errors import (
    ConfigurationError,
    SchemaError,
    StatementRefused,
    StoreError,
    StoreReadOnly,
    StoreTimeout,
    StoreUnavailable,
)

LOCK_WAIT_TIMEOUT: Final = 1205
AUTOINC_BUSY: Final = 1467
DEADLOCK: Final = 1213
CONFLICTS: Final = frozenset({DEADLOCK, 1020})  # 1020: changed since its snapshot. All of the transaction is undone
STOPPED: Final = frozenset({LOCK_WAIT_TIMEOUT, 1317, 1969})  # its wait or its time was over, or it was killed
GONE: Final = frozenset({2006, 2013, 2055})  # the libraries' errors for a connection that has ended
CLOSED: Final = frozenset({(0, ""), (0, "Not connected")})  # and for one that was found ended before
SAVEPOINT_MISSING: Final = 1305
SIGNALLED: Final = 1644
ELSEWHERE: Final = "semel: another database"  # signalled by a unit's own statements

_REMEDIES: Final = {
    1020: "a conflict with another transaction: retry with the same key",
    1021: "the server's disk is full: make room; answers already stored are still replayed",
    1040: "the server has no connection left: raise max_connections, or lower the URL's connections_max",
    1041: "the server is out of memory",
    1044: "this user may not use the database: GRANT SELECT, INSERT, UPDATE, DELETE ON its semel_ tables",
    1045: "the server refuses this user or password: check the URL",
    1047: "this node has left its cluster: point the URL at one that has a quorum",
    1049: "the database does not exist: create it, or check the URL",
    1114: "the server's disk is full: make room; answers already stored are still replayed",
    1129: "the server blocks this host after many errors: run mariadb-admin flush-hosts",
    1130: "the server lets no one in from this host: check the user's host part",
    1142: "this user may not use Semel's tables: GRANT SELECT, INSERT, UPDATE, DELETE ON them",
    1153: "the answer is too large for the server: raise max_allowed_packet there",
    1203: "the user has no connection left: raise max_user_connections, or lower the URL's connections_max",
    1205: "a row is locked by another transaction: retry with the same key",
    1213: "a deadlock with another transaction: retry with the same key",
    1226: "the user has used up a resource that was granted to it",
    1290: "the server is read-only (a replica, or a failover is on its way): point the URL at the primary",
    1406: "a text is longer than its column may be",
    1467: "another statement, such as INSERT … SELECT, fills Semel's table: retry with the same key once it has ended",
    1698: "the server refuses this user or password: check the URL",
    1792: "the transaction is read-only: point the URL at the primary",
    1836: "the server is read-only (a replica, or a failover is on its way): point the URL at the primary",
    2026: "TLS failed: check the URL's tls options and the server's certificate",
}
_MIGRATING: Final = ("CREATE ", "ALTER ", "INDEX ", "DROP ")  # command denied
UNDECIDED: Final = frozenset(  # the connection or the commit ended during the statement
    {1053, 1079, 1152, 1158, 1159, 1160, 1161, 1180, 1184, 1317, 1927, 1969}
)
# The server takes no writes, or no statements: the name may lead to another one by now, which connecting finds.
_READ_ONLY: Final = frozenset({1290, 1792, 1836})
_TAKEN_OVER: Final = frozenset({1047, *_READ_ONLY})


class Lost(Exception):
    """The connection ended during a statement, without an error from the server."""


class MariadbRefused(Exception):
    """The server answered a statement with an error; the connection is still usable."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


def parse_refusal(error: Exception) -> MariadbRefused | None:
    """Parse the server's error out of a client library's exception; None if the connection was lost.

    Both libraries put the number first. Those from 2000 to 2999 are the client's, and so is 0.
    """
    code = error.args[0] if error.args else None
    if not isinstance(code, int) or code == 0 or 2000 <= code < 3000:
        return None
    return MariadbRefused(code, str(error.args[1]) if len(error.args) > 1 else "")


def ends_connection(error: MariadbRefused) -> bool:
    """Whether the connection must not be used again."""
    return error.code in UNDECIDED or error.code in _TAKEN_OVER or is_elsewhere(error)


def is_elsewhere(error: MariadbRefused) -> bool:
    """Whether a unit's connection is in another database than it was opened in."""
    return error.code == SIGNALLED and ELSEWHERE in error.text


def store_error(error: MariadbRefused) -> StoreError | SchemaError:
    """Make the error for a server's error reply to a statement."""
    if error.code in UNDECIDED:
        return StoreTimeout(f"MariaDB: the statement was interrupted ({_line(error.text)}): not known yet")
    if error.code == 1146:
        return SchemaError("this database has no Semel tables; run: semel migrate")
    if error.code == 1054:
        return SchemaError("this database's Semel tables are of another version; run: semel migrate")
    if is_elsewhere(error):
        return StatementRefused(
            "the connection was left in another database (USE, select_db), where its record is not: nothing of it "
            "remains; name that database's tables in full (other.table)"
        )
    remedy = _REMEDIES.get(error.code, "run: semel doctor")
    if error.code == 1142 and error.text.startswith(_MIGRATING):
        remedy = "the user who migrates needs more rights than the service: GRANT CREATE, ALTER, INDEX on the database"
    refusal = StoreReadOnly if error.code in _READ_ONLY else StatementRefused
    return refusal(f"MariaDB: {_line(error.text)} [{error.code}] ({remedy})")


def connection_lost(error: Exception | None = None) -> StoreTimeout:
    """Make the error to raise if the connection ended or timed out after a statement was sent."""
    reason = "no answer in time" if error is None else _line(str(error.args[-1]) if error.args else "")
    return StoreTimeout(f"MariaDB: the connection was lost ({reason}): whether it took effect is not known yet")


def cannot_connect(error: Exception) -> StoreUnavailable:
    """Make the error to raise if no connection could be opened: nothing was sent."""
    code = error.args[0] if error.args else None
    text = _line(str(error.args[-1]) if error.args else str(error))
    remedy = _REMEDIES.get(code if isinstance(code, int) else 0, "check that it runs, and the URL's host and port")
    return StoreUnavailable(f"MariaDB cannot be reached: {text} ({remedy})")


def another_server(version: str) -> ConfigurationError:
    """Make the error for a server without a feature that every claim needs."""
    return ConfigurationError(
        f"this server is {_line(version)}; Semel needs MariaDB 10.6 or newer (INSERT … RETURNING and SKIP LOCKED, "
        "the first of which MySQL does not have)"
    )


def _line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no answer"
