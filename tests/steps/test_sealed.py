"""Kept requests: seal_request in the row, bound to their record, gone with the outcome. 6 s."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from semel import Answer, Command, Engine, Permit, Policy
from semel.core.model import Find, Resolution, State
from semel.core.outcomes import Unprovable, classify_answer
from semel.errors import ConfigurationError, PolicyError, RecordUnreadableError, RequestTooLarge
from semel.extras import install_command
from semel.resuming.worker import Completer
from semel.sealing.rules import MARK, open_request, seal_request
from semel.sealing.sealer import Sealer
from tests.engine.shells import SCOPE
from tests.steps.conftest import Kind, Run, World

SERVERS: tuple[Kind, ...] = ("sqlite", "psycopg", "pymysql")
POLICY = Policy(steps=True, resumable=True)
SECRET = b"4111 1111 1111 1111"
OLD, NEW = bytes(32), bytes(range(32))
SEALER = Sealer({"2026": NEW, "2025": OLD})
LEASE_US = 30_000_000


def paying(key: str = "k", request: bytes = SECRET) -> Command:
    return Command(SCOPE, key, bytes(32), "1.tests", POLICY, request=request)


def read_column(process: Any) -> list[bytes | None]:
    """Return the content of the column."""
    page = process.perform("find", lambda: process.engine.store.find(Find()))
    rows = process.perform("read", lambda: process.engine.store.read(tuple(row.id for row in page.records)))
    return [row.request for row in rows]


def claim(world: World, **options: Any) -> tuple[Any, Permit]:
    process = world.process(**options)
    permit = process.engine.claim(paying())
    assert isinstance(permit, Permit)
    return process, permit


def complete(process: Any, seen: list[bytes]) -> tuple[int, list[BaseException]]:
    told: list[BaseException] = []

    def handler(permit: Permit, request: bytes) -> Answer:
        seen.append(request)
        permit.step("note", lambda: None, repeat=True)
        return Answer(201, (), b"paid")

    async def once() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what["exception"]))
        completer = Completer(process.engine, rest_seconds=0.001)
        completer.register(SCOPE.operation, POLICY, handler)
        return await completer.run_once()

    return asyncio.run(once()), told


@pytest.mark.parametrize("kind", SERVERS)
def test_a_request_is_unreadable_in_the_row_and_a_completer_opens_it(world: World) -> None:
    claim(world, sealer=Sealer({"2025": OLD}))
    [kept] = read_column(world.process())
    assert kept is not None
    assert kept.startswith(MARK + b"\x042025")
    assert SECRET not in kept
    world.clock.advance(LEASE_US + 1)
    seen: list[bytes] = []
    assert complete(world.process(sealer=SEALER), seen) == (1, [])
    assert (seen, read_column(world.process())) == ([SECRET], [None])


def _answers(process: Any, permit: Permit) -> None:
    process.run(paying("other"), _with_step)
    process.engine.settle(permit, _outcome(Answer(201, (), b"paid")))


def _refuses(process: Any, permit: Permit) -> None:
    process.engine.settle(permit, _outcome(Answer(409, (), b"no")))


def _is_settled_by_an_operator(process: Any, permit: Permit) -> None:
    process.engine.settle(permit, Unprovable("nobody knows"))
    row = process.row(paying())
    resolution = Resolution(row.id, row.fence, True, Answer(201, (), b"paid"), "operator:ann", "asked")
    process.perform("resolve", lambda: process.engine.store.resolve(resolution))


def _outcome(answer: Answer) -> Any:
    return classify_answer(answer, POLICY, begun=True)


async def _with_step(run: Run) -> Answer:
    await run.step("note", lambda: None)
    return Answer(201, (), b"paid")


@pytest.mark.parametrize("ends", [_answers, _refuses, _is_settled_by_an_operator])
@pytest.mark.parametrize("kind", SERVERS)
def test_the_stored_request_is_deleted_with_the_outcome(ends: Callable[..., None], world: World) -> None:
    process, permit = claim(world)
    assert read_column(world.process()) == [SECRET]
    ends(process, permit)
    assert set(read_column(world.process())) == {None}


@pytest.mark.parametrize("kind", SERVERS[:1])
@pytest.mark.parametrize(
    ("keeps", "opens", "error", "said"),
    [
        (SEALER, None, ConfigurationError, "give the engine its sealer"),
        (SEALER, Sealer({"2025": OLD}), ConfigurationError, "'2026', which is not in the ring"),
        (SEALER, Sealer({"2026": OLD}), RecordUnreadableError, "cannot be decrypted"),
        (None, SEALER, ConfigurationError, "opens_plain=True"),
    ],
)
def test_a_request_that_does_not_open_is_reported_and_not_run(
    keeps: Any, opens: Any, error: type[Exception], said: str, world: World
) -> None:
    claim(world, sealer=keeps)
    world.clock.advance(LEASE_US + 1)
    seen: list[bytes] = []
    ended, told = complete(world.process(sealer=opens), seen)
    assert (ended, seen, [type(each) for each in told]) == (0, [], [error])
    assert said in str(told[0])
    row = world.process().row(paying())
    assert (row.state, row.attempt) == (State.CLAIMED, 1)  # a process with the key continues
    assert complete(world.process(sealer=keeps), seen) == (1, [])
    assert seen == [SECRET]


@pytest.mark.parametrize("kind", SERVERS[:1])
def test_requests_from_before_the_sealer_continue_where_allowed(world: World) -> None:
    claim(world)
    world.clock.advance(LEASE_US + 1)
    seen: list[bytes] = []
    assert complete(world.process(sealer=Sealer({"2026": NEW}, opens_plain=True)), seen) == (1, [])
    assert seen == [SECRET]


def test_a_sealed_request_opens_only_for_its_record_and_unchanged() -> None:
    kept = SEALER.seal(SECRET, b"record 1")
    assert SEALER.open(kept, b"record 1") == SECRET
    assert SEALER.seal(SECRET, b"record 1") != kept
    with pytest.raises(RecordUnreadableError):
        SEALER.open(kept, b"record 2")
    for n in range(len(MARK), len(kept)):
        changed = kept[:n] + bytes([kept[n] ^ 1]) + kept[n + 1 :]
        with pytest.raises((RecordUnreadableError, ConfigurationError)):
            SEALER.open(changed, b"record 1")
    for n in range(len(MARK), len(kept)):
        with pytest.raises((RecordUnreadableError, ConfigurationError)):
            SEALER.open(kept[:n], b"record 1")


def test_a_request_that_looks_sealed_is_refused() -> None:
    with pytest.raises(PolicyError, match="must not begin"):
        seal_request(MARK + b"x", b"record", None)
    assert seal_request(b"x", b"record", None) == open_request(b"x", b"record", None) == b"x"
    assert open_request(seal_request(MARK, b"record", SEALER), b"record", SEALER) == MARK


def test_a_request_that_is_too_large_says_how_large_it_may_be() -> None:
    with pytest.raises(RequestTooLarge, match=r"has 1048577 bytes with its head, and at most 1048576 can be stored"):
        paying(request=b"x" * 1_048_577)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, "newest first"),
        ([OLD], "newest first"),
        ({"": OLD}, "1 to 64 bytes"),
        ({"x" * 65: OLD}, "1 to 64 bytes"),
        ({"2026": OLD[1:]}, r"32 random bytes.*it is 31 bytes"),
        ({"2026": "0" * 32}, "it is str"),
    ],
)
def test_invalid_keys_are_refused(keys: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Sealer(keys)


def test_an_invalid_sealer_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"sealer must be a Sealer.*it is of type dict"):
        Engine.connect("memory://", sealer={"2026": NEW})  # type: ignore[arg-type]


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(ConfigurationError, match=re.escape(install_command("sealing"))):
        Sealer({"2026": NEW})
    assert "2026" in repr(SEALER)
    assert repr(NEW) not in repr(SEALER)
