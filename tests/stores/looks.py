"""The look for kept answers, as each database server is asked: it finds what the rules find in the whole records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from semel.core.contract import Known
from semel.core.decide import find_replay
from semel.core.model import Claim, Proceed, Record, Replay
from semel.testing.attempts import OK, attempt, settlement

Run = Callable[[str, list[Any]], Any]  # a statement from outside, with its values
CLAIMS = [attempt(f"k{number}") for number in range(3)]
COLUMNS = [name for name in Record._fields if name != "id"]


def make_known(claim: Claim) -> Known:
    return claim.id, claim.recipe, claim.fingerprint


def keep_answers(fellow: Any) -> None:
    """Give it the answers of three commands: two of one length, one with other headers."""
    store = fellow.engine.store
    verdicts = fellow.performs("claim", lambda: store.claim(CLAIMS))
    assert all(isinstance(verdict, Proceed) for verdict in verdicts)
    answers = (OK, OK._replace(body=b"else"), OK._replace(headers=()))
    said = [settlement(verdict.grant, answer=answer) for verdict, answer in zip(verdicts, answers, strict=True)]
    fellow.performs("settle", lambda: store.settle(said))


def by_the_look(fellow: Any, asked: Sequence[Known]) -> list[Any]:
    return list(fellow.performs("look_kept", lambda: fellow.engine.store.look_kept(asked)))


def by_the_rules(fellow: Any, asked: Sequence[Known]) -> list[Any]:
    now = CLAIMS[0].terms.answer_us  # long before any answer is over
    rows = fellow.performs("read", lambda: fellow.engine.store.read([id for id, _, _ in asked]))
    return [find_replay(row, *each, now=now) for row, each in zip(rows, asked, strict=True)]


def assert_it_finds_what_the_rules_find(fellow: Any) -> None:
    first, second, third = map(make_known, CLAIMS)
    missing, other = make_known(attempt("never")), make_known(attempt("k0", request=1))
    for asked in ([first], [first, second], [second, first, first], [first, third], [missing], [first, missing, third]):
        seen = by_the_look(fellow, asked)
        assert seen == by_the_rules(fellow, asked)
        assert [isinstance(each, Replay) for each in seen] == [each != missing for each in asked]
    assert by_the_look(fellow, [second, other]) == [*by_the_look(fellow, [second]), None]
    assert by_the_look(fellow, [(first[0], "2.tests", first[2]), second])[0] is None


def assert_damage_is_seen_as_the_rules_see_it(
    fellow: Any, column: str, damage: Iterable[str], run: Run, refused: type[Exception]
) -> None:
    """``damage``: values as SQL; ``refused``: the error of a statement from outside whose value is wrong."""
    asked = list(map(make_known, CLAIMS[:2]))
    [(before,)] = run(f"SELECT {column} FROM semel_record WHERE id = %s", [CLAIMS[1].id])
    changed = 0
    for value in damage:
        try:
            run(f"UPDATE semel_record SET {column} = {value} WHERE id = %s", [CLAIMS[1].id])
        except refused:  # the column takes none such
            continue
        changed += 1
        assert by_the_look(fellow, asked) == by_the_rules(fellow, asked), value
        run(f"UPDATE semel_record SET {column} = %s WHERE id = %s", [before, CLAIMS[1].id])
    assert changed
    assert None not in by_the_look(fellow, asked)


def assert_an_answer_that_is_over_is_not_found(fellow: Any, run: Run) -> None:
    asked = list(map(make_known, CLAIMS[:2]))
    run("UPDATE semel_record SET answer_until = settled_at WHERE id = %s", [CLAIMS[1].id])
    first, second = by_the_look(fellow, asked)
    assert isinstance(first, Replay)
    assert second is None
    run("UPDATE semel_record SET answer_until = NULL WHERE id = %s", [CLAIMS[1].id])
    assert None not in by_the_look(fellow, asked)
