"""Claims and the AUTO-INC lock of their table, which INSERT … SELECT holds to its end.

Semel's own statements take none. Another's is waited for, by claims that wait for no other lock as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pymysql
import pytest

from semel.core.model import Proceed, State
from semel.errors import StatementRefused
from semel.stores.mariadb import protocol, rows, transaction
from semel.stores.mariadb.errors import AUTOINC_BUSY, MariadbRefused
from semel.stores.mariadb.protocol import MariadbServer, converse
from semel.stores.mariadb.store import MariadbStore
from semel.testing.attempts import attempt
from tests.engine.shells import MADE, command
from tests.mariadb.conftest import PLAIN, WHAT, Fellow, Outside, insert_and_answer, plain
from tests.mariadb.test_joined import User
from tests.servers.mariadb import MARK, connect

pytestmark = MARK
CLAIMS = [attempt(f"k{number}", nonce=number) for number in range(4)]
STOP = (
    "BEGIN NOT ATOMIC\nDECLARE CONTINUE HANDLER FOR 1094 BEGIN END;\n"  # 1094: it is gone, and still rolls back
    "KILL CONNECTION {id};\nDO SLEEP(0.1);\nEND"
)


def wait_until(outside: Outside, condition: str) -> None:
    """Until a session of this database is as the condition says."""
    for _ in range(20_000):
        if outside.fetch(
            f"SELECT 1 FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID() "
            f"AND {condition}"
        ):
            return
    pytest.fail("it never did")


@pytest.mark.parametrize("count", [1, len(CLAIMS)], ids=["alone", "in a batch"])
def test_a_claim_that_waits_for_its_record_holds_up_no_other(
    count: int, make_fellow: Callable[..., Fellow], outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "WAIT_SECONDS", 60)
    fellow, waiting = make_fellow(), make_fellow(patience_seconds=60)
    for each in (fellow, waiting):
        each.performs("identity", each.engine.store.identity)
    fellow.performs("claim", lambda: fellow.engine.store.claim(CLAIMS[:1]))
    cursor = outside.connection.cursor()
    cursor.execute("START TRANSACTION")
    cursor.execute("UPDATE semel_record SET holder = 'unit' WHERE id = %s", [CLAIMS[0].id])
    verdicts: list[Any] = []
    thread = threading.Thread(
        target=lambda: verdicts.extend(
            waiting.performs("claim", lambda: waiting.engine.store.claim(sorted(CLAIMS[:count], reverse=True)))
        )
    )
    thread.start()
    try:
        wait_until(outside, "info LIKE '%INSERT INTO semel_record%' AND time_ms > 200")
        assert fellow.run(WHAT, insert_and_answer).answer == MADE
        assert fellow.run(command("plain"), plain).answer == MADE
        others = [attempt(f"other-{number}") for number in range(3)]
        told = fellow.performs("claim", lambda: fellow.engine.store.claim(others))
        assert [type(verdict) for verdict in told] == [Proceed] * 3
    finally:
        cursor.execute("ROLLBACK")
        thread.join()
    assert [type(verdict) for verdict in verdicts] == [Proceed] * count


def _is_held(outside: Outside, probe: str) -> bool:
    """Whether the table's AUTO-INC lock is."""
    outside.fetch("START TRANSACTION")
    try:
        outside.fetch(f"SET STATEMENT innodb_lock_wait_timeout = 0, sql_mode = '' FOR {probe}")
    except pymysql.Error as error:
        if error.args[0] != AUTOINC_BUSY:
            raise
        return True
    finally:
        outside.fetch("ROLLBACK")
    return False


class Filling:
    """Another's INSERT … SELECT into the table of records: it has begun, and waits for the lock of the first claim's.

    Parameters: ``lock`` takes that lock by a statement.
    """

    def __init__(self, server: MariadbServer, outside: Outside, lock: Callable[[str], object]) -> None:
        self._connection = connect(server.port, database=server.database)
        self.id = self._connection.thread_id()
        columns = [name for (name, *_) in outside.fetch("SHOW COLUMNS FROM semel_record") if name not in ("id", "seq")]
        names = ", ".join(columns)
        outside.fetch("CREATE OR REPLACE TABLE plain ENGINE = InnoDB SELECT * FROM semel_record")
        self._text = (  # many rows, so that a deadlock ends the other transaction
            f"INSERT INTO semel_record (id, {names}) SELECT UNHEX(MD5(s.seq)), {names} FROM plain, seq_1_to_100 AS s "
            f"UNION ALL SELECT id, {names} FROM plain"
        )
        lock(f"SELECT id FROM semel_record WHERE id = x'{CLAIMS[0].id.hex()}' FOR UPDATE")
        self._thread = threading.Thread(target=self._fill)
        self._thread.start()
        probe = f"INSERT INTO semel_record (id, {names}) VALUES ('', {', '.join(['1'] * len(columns))})"
        while not _is_held(outside, probe):
            assert self._thread.is_alive()

    def _fill(self) -> None:
        with suppress(pymysql.Error):  # it is killed
            self._connection.cursor().execute(self._text)

    def stop(self, outside: Outside) -> None:
        with suppress(pymysql.Error):  # it is gone
            outside.fetch(f"KILL CONNECTION {self.id}")
        self._thread.join()
        if self._connection.open:
            self._connection.close()


@pytest.fixture
def first(fellow: Fellow) -> None:
    """The first claim's record is there."""
    fellow.performs("claim", lambda: fellow.engine.store.claim(CLAIMS[:1]))


@pytest.fixture
def filling(first: None, server: MariadbServer, outside: Outside) -> Iterator[Filling]:
    with connect(server.port, database=server.database) as locking:
        locking.begin()
        filling = Filling(server, outside, locking.cursor().execute)
        yield filling
        filling.stop(outside)
    outside.fetch("DROP TABLE plain")


@pytest.fixture
def user(kind: Any, server: MariadbServer) -> Iterator[User]:
    made = User(kind, server, autocommit=False)
    yield made
    made.close()


def change(monkeypatch: pytest.MonkeyPatch, name: str, value: object) -> None:
    for module in (protocol, transaction):
        monkeypatch.setattr(module, name, value)


class TestBesideAnothersStatement:
    @pytest.mark.parametrize("what", [PLAIN, WHAT], ids=["external", "atomic"])
    def test_a_claim_waits_for_the_auto_inc_lock_and_is_written_once(
        self, what: Any, fellow: Fellow, filling: Filling, outside: Outside, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rows, "WAIT_SECONDS", 0)  # the claim of an external command would wait for a second
        change(monkeypatch, "AUTOINC_PAUSE", STOP.format(id=filling.id))
        assert fellow.run(what, insert_and_answer if what is WHAT else plain).answer == MADE
        assert outside.rows() == ([1] if what is WHAT else [])
        assert outside.states[-1] == State.SUCCEEDED

    def test_a_claim_that_never_gets_the_auto_inc_lock_writes_nothing(
        self, fellow: Fellow, filling: Filling, outside: Outside, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        change(monkeypatch, "AUTOINC_TRIES_MAX", 3)
        with pytest.raises(StatementRefused, match="fills Semel's table"):
            fellow.run(WHAT, insert_and_answer)
        assert outside.rows() == []
        filling.stop(outside)
        assert fellow.run(WHAT, insert_and_answer).answer == MADE

    def test_a_joined_claim_waits_for_the_auto_inc_lock_and_is_written_once(
        self, user: User, filling: Filling, outside: Outside, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        change(monkeypatch, "AUTOINC_PAUSE", STOP.format(id=filling.id))
        user.execute("INSERT INTO effect VALUES (1)")
        assert not user.join(lambda: user.execute("INSERT INTO effect VALUES (2)"))
        user.say("commit")
        assert user.join(lambda: None)
        assert outside.rows() == [1, 2]

    def test_a_joined_claim_that_never_gets_the_auto_inc_lock_keeps_the_users_writes(
        self, user: User, filling: Filling, outside: Outside, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        change(monkeypatch, "AUTOINC_TRIES_MAX", 2)
        user.execute("INSERT INTO effect VALUES (1)")
        with pytest.raises(StatementRefused, match="fills Semel's table"):
            user.join(lambda: None)
        user.say("commit")
        assert outside.rows() == [1]

    def test_a_deadlock_with_the_auto_inc_lock_is_reported_as_a_deadlock(
        self, first: None, user: User, server: MariadbServer, outside: Outside
    ) -> None:
        """MariaDB reports none, and goes on as if the user's transaction was open: a claim in it would commit alone."""
        user.execute("INSERT INTO effect VALUES (1)")
        filling = Filling(server, outside, user.execute)
        try:
            with pytest.raises(StatementRefused, match="a deadlock with another transaction"):
                user.join(lambda: user.execute("INSERT INTO effect VALUES (2)"), key="other")
            user.say("commit")
        finally:
            filling.stop(outside)
            outside.fetch("DROP TABLE plain")
        assert (outside.rows(), len(outside.states)) == ([], 1)


def test_a_claim_is_repeated_after_pauses_up_to_a_limit() -> None:
    talk = converse(lambda: MariadbStore().claim(CLAIMS), None, 10_000_000)
    busy = MariadbRefused(1467, "Failed to read auto-increment value from storage engine")
    text = next(talk)
    for _ in range(protocol.AUTOINC_TRIES_MAX - 1):
        assert talk.throw(busy) == protocol.AUTOINC_PAUSE
        assert talk.send([0]) == text
    with pytest.raises(MariadbRefused):
        talk.throw(busy)
