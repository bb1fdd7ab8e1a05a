"""The look for kept answers on MariaDB reads a few columns, and says what the rules say of the whole records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pymysql
import pytest

from semel.core.contract import Known
from semel.core.decide import KEPT_COLUMNS, find_replay
from semel.core.model import Claim, Proceed, Record, Replay
from semel.stores.mariadb.rows import SQL
from semel.testing.attempts import OK, attempt, settlement
from tests.mariadb.conftest import Fellow, Outside
from tests.servers.mariadb import MARK

pytestmark = MARK

CLAIMS = [attempt(f"k{number}") for number in range(3)]
# What a flipped bit or a statement by hand may leave, as SQL.
DAMAGE = (
    *("NULL", "0", "1", "2", "3", "6", "-1", "7", "1 << 57", "(1 << 57) - 1"),
    *("''", "'1'", "'soon'", "x'01'", "x'00000000000000000000000000000000'"),
)


def known(claim: Claim) -> Known:
    return claim.id, claim.recipe, claim.fingerprint


@pytest.fixture
def kept(fellow: Fellow) -> Fellow:
    """With answers of three commands: two of one length, one with other headers."""
    store = fellow.engine.store
    verdicts = fellow.performs("claim", lambda: store.claim(CLAIMS))
    assert all(isinstance(verdict, Proceed) for verdict in verdicts)
    answers = (OK, OK._replace(body=b"else"), OK._replace(headers=()))
    said = [settlement(verdict.grant, answer=answer) for verdict, answer in zip(verdicts, answers, strict=True)]
    fellow.performs("settle", lambda: store.settle(said))
    return fellow


def by_the_look(fellow: Fellow, asked: Sequence[Known]) -> list[Any]:
    return list(fellow.performs("look_kept", lambda: fellow.engine.store.look_kept(asked)))


def by_the_rules(fellow: Fellow, asked: Sequence[Known]) -> list[Any]:
    now = CLAIMS[0].terms.answer_us  # long before any answer is over
    rows = fellow.performs("read", lambda: fellow.engine.store.read([id for id, _, _ in asked]))
    return [find_replay(row, *each, now=now) for row, each in zip(rows, asked, strict=True)]


def test_it_reads_the_columns_of_the_rules() -> None:
    columns = SQL["look_kept"].text.partition(">> 57 = 0,")[2].partition("FROM")[0]
    assert tuple(name.strip() for name in columns.split(",")) == KEPT_COLUMNS


def test_it_finds_what_the_rules_find(kept: Fellow) -> None:
    first, second, third = map(known, CLAIMS)
    missing, other = known(attempt("never")), known(attempt("k0", request=1))
    for asked in ([first], [first, second], [second, first, first], [first, third], [missing], [first, missing, third]):
        seen = by_the_look(kept, asked)
        assert seen == by_the_rules(kept, asked)
        assert [isinstance(each, Replay) for each in seen] == [each != missing for each in asked]
    assert by_the_look(kept, [second, other]) == [*by_the_look(kept, [second]), None]
    assert by_the_look(kept, [(first[0], "2.tests", first[2]), second])[0] is None


@pytest.mark.parametrize("column", [name for name in Record._fields if name != "id"])
def test_damage_is_seen_as_the_rules_see_it(column: str, kept: Fellow, outside: Outside) -> None:
    asked = list(map(known, CLAIMS[:2]))
    cursor = outside.connection.cursor()
    cursor.execute(f"SELECT {column} FROM semel_record WHERE id = %s", [CLAIMS[1].id])
    [(before,)] = cursor.fetchall()
    changed = 0
    for value in DAMAGE:
        try:
            cursor.execute(f"UPDATE semel_record SET {column} = {value} WHERE id = %s", [CLAIMS[1].id])
        except pymysql.MySQLError:  # the column takes none such
            continue
        changed += 1
        assert by_the_look(kept, asked) == by_the_rules(kept, asked), value
        cursor.execute(f"UPDATE semel_record SET {column} = %s WHERE id = %s", [before, CLAIMS[1].id])
    assert changed
    assert None not in by_the_look(kept, asked)


def test_an_answer_that_is_over_is_not_found(kept: Fellow, outside: Outside) -> None:
    asked = list(map(known, CLAIMS[:2]))
    cursor = outside.connection.cursor()
    cursor.execute("UPDATE semel_record SET answer_until = settled_at WHERE id = %s", [CLAIMS[1].id])
    first, second = by_the_look(kept, asked)
    assert isinstance(first, Replay)
    assert second is None
    cursor.execute("UPDATE semel_record SET answer_until = NULL WHERE id = %s", [CLAIMS[1].id])
    assert None not in by_the_look(kept, asked)
