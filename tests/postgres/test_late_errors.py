"""What a trigger of the application's does wrong at COMMIT is the handler's failure, whatever its error is called.

The settle proves by a division by zero that its claim is this transaction's own, and Semel's tables may be missing:
neither is to be mistaken for a trigger that divides by zero, or that reads a table which is not there.
"""

from __future__ import annotations

import pytest

from semel.errors import HandlerRefused
from tests.engine.shells import MADE
from tests.postgres.conftest import WHAT, Fellow, Outside, insert_and_answer


@pytest.mark.parametrize(
    ("does", "told"),
    [
        ("PERFORM 1 / 0", "division by zero"),
        ("PERFORM 1 FROM nowhere", '"nowhere" does not exist'),
        ("PERFORM nothing()", "nothing() does not exist"),
        ("RAISE EXCEPTION 'sold out'", "sold out"),
    ],
)
def test_an_error_of_a_deferred_trigger_is_the_handlers(fellow: Fellow, outside: Outside, does: str, told: str) -> None:
    outside.connection.execute(
        f"CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {does}; RETURN NULL; END $$".encode()
    )
    outside.connection.execute(
        "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION late()"
    )
    with pytest.raises(HandlerRefused) as refused:
        fellow.run(WHAT, insert_and_answer)
    assert told in str(refused.value)
    assert (outside.rows(), outside.states) == ([], [])
    outside.connection.execute("DROP TRIGGER late ON effect")
    assert fellow.run(WHAT, insert_and_answer).answer == MADE
    assert outside.rows() == [1]
