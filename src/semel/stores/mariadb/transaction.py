"""An ATOMIC unit on MariaDB: one transaction that holds the record and the handler's own writes.

BEGIN travels with the claim and COMMIT with the settle. A savepoint with a random name follows the claim:
COMMIT, ROLLBACK and DDL (which commits by itself) remove it, and no one else knows its name. So the settle releases it
first. If that fails, the claim is no longer this transaction's own, and the server stops there.
"""

from __future__ import annotations

import secrets
from typing import Any, Final, TypeVar

from semel.core.flow import Ask, MakeFlow
from semel.errors import HandlerRefused, StoreError, StoreTimeout
from semel.stores.clock import Clock
from semel.stores.failures import with_causes
from semel.stores.mariadb.errors import (
    AUTOINC_BUSY,
    CLOSED,
    CONFLICTS,
    DEADLOCK,
    ELSEWHERE,
    GONE,
    LOCK_WAIT_TIMEOUT,
    SAVEPOINT_MISSING,
    SIGNALLED,
    STOPPED,
    UNDECIDED,
    Lost,
    MariadbRefused,
    is_elsewhere,
)
from semel.stores.mariadb.protocol import (
    AUTOINC_PAUSE,
    AUTOINC_TRIES_MAX,
    Conversation,
    Greeting,
    Result,
    converse,
    literal,
    render,
)
from semel.stores.mariadb.requests import SettleAnd
from semel.stores.sql.statements import Execute

T = TypeVar("T")

LATE: Final = "this command's transaction is over; nothing more can be written in it"
BUSY: Final = "a statement is under way on this command's connection; await each one, also where another call fails"
NOT_ROLLED_BACK: Final = 1196  # the server's warning: a table without transactions keeps what was written
POLL_SECONDS: Final = 0.02  # between two checks of a session that is about to end
_UNSETTLED: Final = "semel: nothing was settled"
_HERE: Final = (
    "IF NOT (BINARY DATABASE() <=> {database}) THEN "
    f"SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '{ELSEWHERE}'; END IF;\n"
)
_OPEN: Final = "BEGIN NOT ATOMIC\n{here}{begin}{claim};\nSAVEPOINT {name};\nEND"
_SETTLE: Final = (
    "BEGIN NOT ATOMIC\n{here}RELEASE SAVEPOINT {name};\n{settle};\n"
    f"IF ROW_COUNT() <> 1 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '{_UNSETTLED}'; END IF;\n"
    "{also}{end}END"
)
_END: Final = "COMMIT AND NO CHAIN NO RELEASE;\n"  # whatever the server's completion_type
_KEEP: Final = (
    f"BEGIN NOT ATOMIC\nDECLARE EXIT HANDLER FOR {SAVEPOINT_MISSING} BEGIN END;\n"
    "RELEASE SAVEPOINT {name};\nSAVEPOINT {name};\nEND"
)
_STOP: Final = (
    "BEGIN NOT ATOMIC\nDECLARE turns INT DEFAULT {turns};\n"
    "BEGIN\nDECLARE CONTINUE HANDLER FOR 1094 BEGIN END;\nKILL CONNECTION {id};\nEND;\n"  # 1094: it is gone
    "WHILE turns > 0 AND EXISTS (SELECT 1 FROM information_schema.processlist WHERE id = {id}) DO\n"
    "DO SLEEP({pause});\nSET turns = turns - 1;\nEND WHILE;\n"
    "SELECT EXISTS (SELECT 1 FROM information_schema.processlist WHERE id = {id});\nEND"
)
_WATCH: Final = _STOP.replace("KILL CONNECTION {id}", "DO 0")
_PLAIN_TABLES: Final = (
    "SELECT EXISTS (SELECT 1 FROM information_schema.tables AS t\n"
    "LEFT JOIN information_schema.engines AS e ON e.engine = t.engine\n"
    "WHERE t.table_schema = DATABASE() AND t.table_type = 'BASE TABLE' AND COALESCE(e.transactions, 'NO') <> 'YES')"
)


class Transaction:
    """The statements of one unit. ``joined``: the transaction is the user's, who begins and ends it."""

    def __init__(self, clock: Clock | None, greeting: Greeting, *, joined: bool = False) -> None:
        self.name = f"semel_{secrets.token_hex(8)}"
        self._clock = clock
        self._packet_max = greeting.packet_max
        name = greeting.database
        self._here = _HERE.format(database=literal(None if name is None else name.encode()))
        self._joined = joined
        self._begin = f"SAVEPOINT {self.name};\n" if joined else "START TRANSACTION;\n"
        self._saved = False

    def run(self, make: MakeFlow[T]) -> Conversation[T]:
        """Run a flow inside the transaction, before the savepoint: no rollback to it undoes the flow's writes."""
        inner = converse(make, self._clock, self._packet_max, inside=True)
        try:
            text = next(inner)
            while True:
                try:
                    results = yield from self._say(text)
                except MariadbRefused as error:
                    text = inner.throw(error)
                else:
                    text = inner.send(results)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _say(self, text: str) -> Conversation[list[Result]]:
        if self._saved:
            results = yield text
            _ = yield f"SAVEPOINT {self.name}"
            return results
        results = yield from self._open(text)
        self._saved = True
        return results[:1]

    def _open(self, claim: str) -> Conversation[list[Result]]:
        text = _OPEN.format(here=self._here, begin=self._begin, claim=claim, name=self.name)
        for again in range(AUTOINC_TRIES_MAX):
            try:
                return (yield text)
            except MariadbRefused as error:
                if is_elsewhere(error) and not self._joined:  # an earlier handler left it there: treat it as lost
                    raise Lost(error.code, error.text) from error
                if error.code != AUTOINC_BUSY:
                    raise
                if self._joined:
                    yield from self._check_whole(error)
                if again == AUTOINC_TRIES_MAX - 1:
                    raise
            _ = yield AUTOINC_PAUSE
        raise AssertionError("unreachable")

    def _check_whole(self, error: MariadbRefused) -> Conversation[None]:
        """Check that the user's transaction still exists.

        The server does not report a deadlock at the AUTO-INC lock as one, and assumes an open transaction. InnoDB has
        rolled it back, with the user's writes and with the savepoint that was set before the claim.

        Raises Refused as for any other deadlock.
        """
        try:
            _ = yield self.undo()
        except MariadbRefused as missing:
            _ = yield "ROLLBACK"
            raise MariadbRefused(DEADLOCK, error.text) from missing

    def undo(self) -> str:
        """Undo the handler's writes; the record stays claimed."""
        return f"ROLLBACK TO SAVEPOINT {self.name}"

    def keep(self) -> str:
        """Keep the handler's writes, whatever is undone later. If the transaction is over, set no savepoint: the next
        transaction would pass for it.
        """
        return _KEEP.format(name=self.name)

    def settle(self, needed: Ask[Any]) -> Conversation[bool]:
        """Settle, and end the transaction unless it is joined; False where the claim is not its own any more."""
        assert isinstance(needed, Execute)
        text = render(needed.statement, needed.params, self._clock)
        more = needed.also if isinstance(needed, SettleAnd) else ()
        also = "".join([f"{render(each.statement, each.params, self._clock)};\n" for each in more])
        try:
            _ = yield _SETTLE.format(
                here=self._here, name=self.name, settle=text, also=also, end="" if self._joined else _END
            )
        except MariadbRefused as error:
            if is_not_ours(error):
                return False
            raise
        return True


def witness_end(session: int | None, seconds: float, *, is_there: bool, stops: bool) -> Conversation[tuple[bool, bool]]:
    """Find out if a handler's session, whose ROLLBACK was not answered, has ended, and if its writes may remain.

    It asks on another connection of the same user, who may stop their own sessions. While a server runs a statement it
    does not notice that the client has gone. Once a session is no longer listed, its transaction is rolled back.

    Parameters: ``session`` that may still be at a statement; None where none can be. ``is_there`` whether this
    connection is to the session's own server: another one would stop a stranger's. ``stops`` whether it is stopped:
    not where the connection was lost, since a server that has started again gives its number to another. ``seconds``
    to wait for its end.
    """
    has_ended = session is None
    if session is not None and is_there:
        [rows, *_] = yield (_STOP if stops else _WATCH).format(
            id=session, turns=max(1, int(seconds / POLL_SECONDS)), pause=POLL_SECONDS
        )
        assert isinstance(rows, list)
        has_ended = not rows[0][0]
    [rows] = yield _PLAIN_TABLES
    assert isinstance(rows, list)
    return has_ended, bool(rows[0][0])


def undoes_all(error: Exception) -> bool:
    """Whether an error of either library says that the server has rolled back the whole transaction by itself.

    The warnings that belong to this error, and no later ROLLBACK, then say whether some of the writes remain.
    """
    code = error.args[0] if error.args else None
    return isinstance(code, int) and (code in CONFLICTS or code == LOCK_WAIT_TIMEOUT)


def is_incomplete(warnings: Any) -> bool:
    """Whether the warnings of a ROLLBACK say that some of the writes remain."""
    return any(int(code) == NOT_ROLLED_BACK for _, code, *_ in warnings or ())


def is_not_ours(error: MariadbRefused) -> bool:
    """Whether a settle met another transaction than that of its claim."""
    return error.code == SAVEPOINT_MISSING or (error.code == SIGNALLED and _UNSETTLED in error.text)


def undone(*, has_ended: bool) -> StoreError:
    """Make the error to raise if a handler ended before its statement did, whose connection was then closed.

    Parameters: ``has_ended`` whether its session was seen to have ended.
    """
    if not has_ended:
        return StoreTimeout(f"{BUSY}: the server has not ended its transaction in time: not known yet")
    return HandlerRefused(f"{BUSY}: its transaction was rolled back, and nothing of it remains")


def is_conflict(error: BaseException) -> bool:
    """Whether the server rolled back a handler's transaction because of another one, so that it may run again."""
    return not _codes(error).isdisjoint(CONFLICTS)


def is_stopped(error: BaseException) -> bool:
    """Whether a handler's statement failed for now: its time was over, or its connection has ended."""
    has_ended = any(each.args in CLOSED for each in _theirs(error))
    return has_ended or not _codes(error).isdisjoint(STOPPED | GONE | UNDECIDED)


def _codes(error: BaseException) -> set[object]:
    """Return the server's error numbers in an error of either library, or in its causes."""
    return {each.args[0] for each in _theirs(error) if each.args and isinstance(each.args[0], int)}


def _theirs(error: BaseException) -> list[BaseException]:
    return [each for each in with_causes(error) if type(each).__module__.split(".")[0] in ("pymysql", "asyncmy")]
