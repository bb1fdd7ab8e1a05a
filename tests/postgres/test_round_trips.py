"""Round trips, counted on the wire: what a command costs through each client library, and that nothing chatters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from semel import Answer, Permit
from semel.errors import KeyReusedError
from tests.engine.shells import MADE, command
from tests.postgres.conftest import ATOMIC, Fellow, Kind, Outside, Writes
from tests.postgres.users import (
    AlchemySession,
    AsyncAlchemySession,
    Asyncpg,
    AsyncpgAlchemySession,
    AsyncPsycopg,
    Django,
    Psycopg,
    User,
)
from tests.servers.relay import Relay, Trip

MakeFellow = Callable[..., Fellow]
CLAIM, SETTLE, LOOK, BUSINESS = "claim", "settle", "look", "business"


async def handler(permit: Permit, db: Writes) -> Answer:
    await db.execute("SELECT 'business'")
    return MADE


async def nothing(permit: Permit, db: Writes) -> Answer:
    return MADE


def words(trips: list[Trip]) -> list[str]:
    """Each round trip by the names of its statements."""
    return [" + ".join(_name(text) for text in trip) for trip in trips]


def _name(text: str) -> str:
    if "INSERT INTO semel_record" in text:
        return CLAIM
    if "UPDATE semel_record" in text:
        return SETTLE
    if "semel_record AS r" in text:
        return LOOK
    return BUSINESS if "business" in text else text.strip(";").removesuffix(" semel_unit")


@pytest.fixture
def warm_fellow(make_fellow: MakeFellow, relay: Relay) -> Fellow:
    """An engine behind the relay, whose connections are warm: a server and its clients have met each statement."""
    fellow = make_fellow(conninfo=relay.conninfo())
    for number in range(2):
        fellow.run(command(f"warm-{number}"), nothing)
        fellow.run(command(f"warm-atomic-{number}", policy=ATOMIC), handler)
        fellow.run(command(f"warm-{number}"), nothing)
    return fellow


def test_a_fresh_command_is_two_round_trips_and_a_replay_one(warm_fellow: Fellow, relay: Relay) -> None:
    """No BEGIN, no COMMIT, no reset of the session."""
    for number in range(3):
        with relay.counting() as fresh:
            warm_fellow.run(command(f"key-{number}"), nothing)
        with relay.counting() as replayed:
            assert warm_fellow.run(command(f"key-{number}"), nothing).replayed
        assert words(fresh) == [CLAIM, SETTLE]
        assert words(replayed) == [CLAIM if warm_fellow.runner is None else LOOK]


def test_an_answer_of_another_process_is_claimed_once_and_then_looked_up(
    warm_fellow: Fellow, relay: Relay, make_fellow: MakeFellow
) -> None:
    """A process looks where it knows of an answer: a fresh command must not pay for a look."""
    make_fellow().run(command("theirs"), nothing)
    with relay.counting() as trips:
        for _ in range(3):
            assert warm_fellow.run(command("theirs"), nothing).replayed
    looks = CLAIM if warm_fellow.runner is None else LOOK
    assert words(trips) == [CLAIM, looks, looks]


def test_a_look_that_finds_no_answer_is_made_once(warm_fellow: Fellow, relay: Relay, outside: Outside) -> None:
    """The record was deleted, or is another request's: a claim tells, and the next one does not look."""
    if warm_fellow.runner is None:
        return  # threads claim
    warm_fellow.run(command("gone"), nothing)
    outside.fetch("DELETE FROM semel_record RETURNING 1")
    with relay.counting() as trips:
        assert not warm_fellow.run(command("gone"), nothing).replayed
        for _ in range(2):
            with pytest.raises(KeyReusedError):
                warm_fellow.run(command("gone", request=2), nothing)
    assert words(trips) == [LOOK, CLAIM, SETTLE, LOOK, CLAIM, CLAIM]


FRESH: dict[Kind, list[str]] = {
    "psycopg": [f"BEGIN + {CLAIM} + SAVEPOINT", BUSINESS, f"{SETTLE} + COMMIT"],
    "psycopg-async": [f"BEGIN + {CLAIM} + SAVEPOINT", BUSINESS, f"{SETTLE} + COMMIT"],
    "asyncpg": [f"BEGIN + {CLAIM}", BUSINESS, f"{SETTLE} + COMMIT"],
}
REPLAYED: dict[Kind, list[str]] = {
    "psycopg": [f"BEGIN + {CLAIM} + SAVEPOINT", "ROLLBACK"],
    "psycopg-async": [LOOK],
    "asyncpg": [LOOK],
}


RESET = "BEGIN + RESET ALL + RESET ROLE + END + "


def first_after_a_handler(fellow: Fellow, trips: list[str], *, looked: bool = False) -> list[str]:
    """The trips of a command whose connection a handler had before.

    Parameters: ``looked``: a replay came between, which takes that connection in threads alone.
    """
    if looked is (fellow.runner is None):
        return trips
    return [RESET + trips[0], *trips[1:]] if trips != [LOOK] else trips


def test_an_atomic_command_costs_what_the_page_says(warm_fellow: Fellow, relay: Relay) -> None:
    """What a handler may have set on its session is reset on the way of the next command's BEGIN, once."""
    warm_fellow.run(command("warm-atomic-0", policy=ATOMIC), handler)
    for number in range(2):  # with the tenth unit their text changes, and is prepared anew
        what = command(f"atomic-{number}", policy=ATOMIC)
        with relay.counting() as fresh:
            warm_fellow.run(what, handler)
        with relay.counting() as replayed:
            assert warm_fellow.run(what, handler).replayed
        with relay.counting() as again:
            assert warm_fellow.run(what, handler).replayed
        assert words(fresh) == first_after_a_handler(warm_fellow, FRESH[warm_fellow.kind], looked=True)
        assert words(again) == REPLAYED[warm_fellow.kind]
        assert words(replayed) == first_after_a_handler(warm_fellow, REPLAYED[warm_fellow.kind])


def test_a_replay_drops_nothing_that_was_prepared(warm_fellow: Fellow, relay: Relay) -> None:
    """psycopg prepares a handler's statement the sixth time, and where it sees a ROLLBACK it says DEALLOCATE ALL."""
    for number in range(10):  # until the units' own text has changed
        warm_fellow.run(command(f"often-{number}", policy=ATOMIC), handler)
    with relay.counting() as replayed:
        assert warm_fellow.run(command("often-9", policy=ATOMIC), handler).replayed
    assert words(replayed) == first_after_a_handler(warm_fellow, REPLAYED[warm_fellow.kind])


def test_a_crowd_of_claims_travels_together(warm_fellow: Fellow, relay: Relay) -> None:
    """Forty commands at once: as many batches as there are answers to wait for, not as many as there are commands."""
    if warm_fellow.runner is None:
        return  # threads send their own
    claims = [warm_fellow.engine.core.attempt(command(f"crowd-{number}")) for number in range(40)]
    engine = warm_fellow.engine

    async def all_at_once() -> None:
        performer = engine._performer
        await asyncio.gather(*[performer.store_one("claim", engine.store.claim, claim) for claim in claims])

    with relay.counting() as trips:
        warm_fellow.tell(all_at_once())
    assert len(trips) <= 2


JOINED: dict[type[User], list[str]] = {
    Psycopg: ["BEGIN", CLAIM, BUSINESS, SETTLE, "COMMIT"],  # psycopg waits for its own BEGIN
    AsyncPsycopg: ["BEGIN", CLAIM, BUSINESS, SETTLE, "COMMIT"],
    Asyncpg: ["BEGIN", CLAIM, BUSINESS, SETTLE, "COMMIT"],
    AlchemySession: ["BEGIN", CLAIM, BUSINESS, SETTLE, "COMMIT"],
    AsyncAlchemySession: ["BEGIN", CLAIM, BUSINESS, SETTLE, "COMMIT"],
    AsyncpgAlchemySession: ["BEGIN", CLAIM, BUSINESS, SETTLE, "COMMIT"],
    Django: ["BEGIN", CLAIM, BUSINESS, SETTLE, "COMMIT"],
}


@pytest.mark.parametrize("made", JOINED, ids=lambda made: made.__name__)
def test_a_join_adds_two_round_trips_to_the_users_transaction(
    made: type[User], relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once their connection is known and, where the library prepares, has met the statements."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    seen: list[Trip] = []

    async def one(user: User, key: str) -> None:
        await user.begin()
        async with user.join(command(key, policy=ATOMIC)) as once:
            await user.execute("SELECT 'business'")
            once.answer = MADE
        await user.commit()

    async def story() -> None:
        user = made(relay.conninfo())
        await user.open()
        for number in range(6):
            await one(user, f"warm-{number}")
        with relay.counting() as trips:
            await one(user, "counted")
        seen.extend(trips)
        await user.end()

    asyncio.run(story())
    assert words(seen) == JOINED[made]
