"""A wait for the standby that is cut short: the server says OK, and warns that a failover may lose what it committed.

The commit is then not believed: it is visible on this server, which proves nothing. The warning is raised by a
trigger at the commit, so that no servers of its own are needed: Semel knows it by its words.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from semel import Answer, Command, Permit, Policy
from semel.errors import NotReplicated
from tests.engine.shells import MADE, command
from tests.postgres.conftest import ATOMIC, Fellow, Handler, Outside, Writes, insert_and_answer, never

WARNING = "canceling wait for synchronous replication due to user request"
REFUSED = Answer(409, (), b"out of stock")


@pytest.fixture
def cut_short(outside: Outside) -> Callable[[str], None]:
    """From now on the commits of such writes to the records are followed by the warning."""

    def cut(when: str) -> None:
        outside.connection.execute(
            "CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$BEGIN RAISE WARNING '{WARNING}'; RETURN NULL; END$$"
        )
        outside.connection.execute(
            f"CREATE CONSTRAINT TRIGGER cut_short AFTER {when} ON semel_record DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION warn()"
        )

    return cut


def stop_cutting_short(outside: Outside) -> None:
    outside.connection.execute("DROP TRIGGER cut_short ON semel_record")


async def plain(permit: Permit, db: Writes) -> Answer:
    return MADE


async def refuse(permit: Permit, db: Writes) -> Answer:
    return REFUSED


def not_believed(fellow: Fellow, what: Command, handler: Handler) -> None:
    with pytest.raises(NotReplicated, match="not known to be on the standby"):
        fellow.run(what, handler)


def test_an_unreplicated_claim_is_released(fellow: Fellow, outside: Outside, cut_short: Callable[[str], None]) -> None:
    fellow.run(command("before"), plain)
    cut_short("INSERT")
    not_believed(fellow, command("k"), never)
    stop_cutting_short(outside)
    assert fellow.run(command("k"), plain, wait_seconds=10).answer == MADE


@pytest.mark.parametrize("policy", [Policy(), ATOMIC], ids=["external", "atomic"])
def test_an_unreplicated_answer_is_not_sent(
    fellow: Fellow, outside: Outside, cut_short: Callable[[str], None], policy: Policy
) -> None:
    """It is there for the retry, as long as this server is."""
    fellow.run(command("before", policy=policy), plain)
    cut_short("UPDATE")
    not_believed(fellow, command("k", policy=policy), insert_and_answer if policy is ATOMIC else plain)
    assert outside.rows() == ([1] if policy is ATOMIC else [])
    stop_cutting_short(outside)
    replay = fellow.run(command("k", policy=policy), never)
    assert (replay.answer, replay.replayed) == (MADE, True)
    assert fellow.run(command("next", policy=policy), plain).answer == MADE  # on another connection: that one heard it
    assert fellow.units[0] == fellow.units[1]


def test_an_unreplicated_refusal_is_not_sent(
    fellow: Fellow, outside: Outside, cut_short: Callable[[str], None]
) -> None:
    fellow.run(command("before", policy=ATOMIC), plain)
    cut_short("UPDATE")
    not_believed(fellow, command("k", policy=ATOMIC), refuse)
    stop_cutting_short(outside)
    assert fellow.run(command("k", policy=ATOMIC), never).answer == REFUSED
