"""SQLAlchemy: sessions on the connection of a unit that Semel opened."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from semel import Answer, Permit
from semel.core.model import State
from semel.stores.sql.sqlalchemy import session_on
from tests.atomic.conftest import Outside
from tests.atomic.mapped import WHAT, Effect, Failed
from tests.engine.shells import MADE, Shell

# --- a session on a unit's connection ---


def _commits(session: Session) -> None:
    session.add(Effect(n=1))
    session.commit()


def _commits_twice(session: Session) -> None:
    _commits(session)
    session.commit()


def _flushes(session: Session) -> None:
    session.add(Effect(n=1))
    session.flush()


def _rolls_back(session: Session) -> None:
    session.add(Effect(n=7))
    session.flush()
    session.rollback()
    _commits(session)


def _write_nested(session: Session) -> None:
    _commits(session)
    nested = session.begin_nested()
    session.add(Effect(n=7))
    session.flush()
    nested.rollback()
    with session.begin_nested():
        pass
    session.commit()


def _error_in_flush(session: Session) -> None:
    _commits(session)
    session.add(Effect(n=1))
    session.expunge_all()
    session.add(Effect(n=1))
    with pytest.raises(IntegrityError):
        session.flush()
    session.rollback()
    assert [effect.n for effect in session.query(Effect)] == [1]


def _begins(session: Session) -> None:
    with session.begin():
        session.add(Effect(n=1))


def _core(session: Session) -> None:
    session.execute(text("INSERT INTO effect VALUES (:n)"), {"n": 1})
    assert session.scalars(text("SELECT n FROM effect")).all() == [1]
    session.commit()


HABITS = [_commits, _commits_twice, _flushes, _rolls_back, _write_nested, _error_in_flush, _begins, _core]


@pytest.mark.parametrize("habit", HABITS)
@pytest.mark.parametrize("ends", ["made", "fails"])
@pytest.mark.parametrize("closes", [False, True])
def test_a_session_on_a_unit_commits_with_it_or_not_at_all(
    shell: Shell, outside: Outside, habit: Callable[[Session], None], ends: str, closes: bool
) -> None:
    kept: list[Session] = []

    def handler(permit: Permit) -> Answer:
        session = session_on(permit.connection)
        habit(session)
        if closes and habit is not _flushes:  # closing undoes what was only flushed, as it always does
            session.close()
        kept.append(session)
        assert (outside.rows(), outside.states) == ([], [])
        if ends == "fails":
            raise Failed
        return MADE

    if ends == "fails":
        with pytest.raises(Failed):
            shell.run(WHAT, handler)
    else:
        assert shell.run(WHAT, handler).answer == MADE
    assert outside.rows() == ([1] if ends == "made" else [])
    assert outside.states == ([State.SUCCEEDED] if ends == "made" else [])
    outside.writes()
    kept[0].close()


def test_a_session_that_is_used_after_the_unit_fails_loudly(shell: Shell, outside: Outside) -> None:
    kept: list[Session] = []

    def handler(permit: Permit) -> Answer:
        kept.append(session_on(permit.connection))
        _commits(kept[0])
        return MADE

    shell.run(WHAT, handler)
    kept[0].add(Effect(n=9))
    with pytest.raises(SQLAlchemyError):
        kept[0].commit()
    kept[0].close()
    assert outside.rows() == [1]
