"""A secret is in no file of the store: not in the database's, its log or its temporary files, nor in Redis' dump. 6 s.

Each look is checked first: an answer that is kept as it is must be found there.
"""

from __future__ import annotations

import logging
import subprocess
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from redis import Redis

from semel import Answer, Bulk, Done, Permit, Policy
from semel.core.outcomes import Unprovable
from semel.engine.sync_engine import Engine
from semel.errors import ItemFailed, NotReplayableError, SemelError
from tests.sealing.conftest import RING, Place, command
from tests.servers import redis as redis_servers
from tests.servers.mariadb import connect, mariadb
from tests.servers.postgres import postgres

KINDS = ("sqlite", "psycopg", "pymysql", "redis")


def answer(canary: str) -> Answer:
    headers = ((b"content-type", b"application/json"), (b"x-token", f"header-{canary}".encode()))
    return Answer(201, headers, f'{{"id": 7, "card": {{"number": "body-{canary}"}}}}'.encode())


def files_of(kind: str, folder: Path) -> Path:
    """Return the files of a store after its server has written all to disk; SQLite's are in ``folder``."""
    match kind:
        case "sqlite" | "sqlite-async":
            return folder
        case "psycopg" | "psycopg-async" | "asyncpg":
            with psycopg.connect(postgres(), autocommit=True) as plain:
                plain.execute("CHECKPOINT")
                [data] = plain.execute("SHOW data_directory").fetchone() or ("",)
            return Path(data)
        case "pymysql" | "asyncmy":
            server = mariadb()
            with closing(connect(server.port, database=server.database)) as plain, closing(plain.cursor()) as cursor:
                cursor.execute("FLUSH TABLES")
                cursor.execute("SELECT @@datadir")
                return Path(str(cursor.fetchone()[0]))
        case _:
            with Redis(port=redis_servers.valkey()) as client:
                client.save()
                return Path(str(client.config_get("dir")["dir"]))


def found_in(folder: Path, text: str) -> list[str]:
    """The files that hold a text."""
    grep = ["grep", "-rlaF", "-e", text, str(folder)]
    return subprocess.run(grep, capture_output=True, text=True, check=False).stdout.splitlines()


def run_all(process: Any, canary: str, **declared: Any) -> None:
    """An answer and a refusal, a failure, and what is kept for an execution that continues: in steps, and in a bulk."""
    said = answer(canary)
    process.run(command(f"{canary} plain", **declared), lambda permit: said)
    with suppress(NotReplayableError):
        process.run(command(f"{canary} plain", **declared), lambda permit: said)
    process.run(command(f"{canary} refused", **declared), lambda permit: said._replace(status=422))
    with suppress(RuntimeError):
        process.run(command(f"{canary} failed", **declared), lambda permit: _raise(canary))
    if not process.engine.core.emits:
        return
    process.run(command(f"{canary} atomic", effects="atomic", **declared), lambda permit: said)
    process.run(
        command(f"{canary} rolled back", effects="atomic", **declared), lambda permit: said._replace(status=409)
    )


def run_parts(process: Any, canary: str, answers: Any) -> None:
    policy = Policy(steps=True, answers=answers)
    permit = process.permit(command(f"{canary} steps", policy))
    permit.steps = process.engine._performer.steps_of(permit)
    assert permit.step("charge", lambda: f"result-{canary}") == f"result-{canary}"
    permit.step("mail", lambda: "sent", repeat=True)  # what is behind is written with its start
    process.settle(permit, Unprovable("lapsed"))
    bulk = Bulk(process.engine, operation="approve", answers=answers)
    done = bulk.run([{"n": 1}], lambda item: Done("7", detail=f"detail-{canary}".encode()), key=canary, caller="alice")
    assert [each.detail for each in bulk.outcomes(done.operation_id)] == [f"detail-{canary}".encode()]


def _fail() -> None:
    raise ItemFailed("ACCOUNT_CLOSED", detail=b"why it failed")


def _raise(canary: str) -> Answer:
    raise RuntimeError(f"error-{canary}")


@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_a_secret_is_in_no_file_of_the_store(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    process = place.process(RING)
    run_all(process, "CanaryKept")
    run_all(process, "CanarySealed", answers="seal")
    run_all(process, "CanaryForgotten", answers="forget")
    run_all(process, "CanaryRebuilt", answers="rebuild", rebuild=lambda done: {"id": done.resource_id})
    run_all(process, "CanaryRedacted", redact=("card.number",))
    if process.engine.core.emits:
        run_parts(process, "CanaryKeptPart", "keep")
        run_parts(process, "CanarySealedPart", "seal")
    folder = files_of(place.kind, place.folder)
    for part in ("body", "header"):
        assert found_in(folder, f"{part}-CanaryKept"), "the look itself finds what is there"
        for how in ("Sealed", "Forgotten", "Rebuilt"):
            assert found_in(folder, f"{part}-Canary{how}") == []
    assert found_in(folder, "body-CanaryRedacted") == []
    assert found_in(folder, "error-Canary") == []
    if process.engine.core.emits:
        for part in ("result", "detail"):
            assert found_in(folder, f"{part}-CanaryKeptPart")
            assert found_in(folder, f"{part}-CanarySealedPart") == []
    assert not any(each in caplog.text for each in ("body-Canary", "header-Canary", "result-Canary", "detail-Canary"))


@pytest.mark.parametrize("kind", ["sqlite", "psycopg", "pymysql"], indirect=True)
def test_results_of_steps_open_in_the_next_run_and_nowhere_else(place: Place) -> None:
    policy = Policy(steps=True, answers="seal")
    calls: list[str] = []

    def in_steps(permit: Permit, until: str | None = None) -> Answer:
        def charge() -> str:
            calls.append("charge")
            return "receipt-7"

        def mail() -> None:
            calls.append("mail")
            if until is not None:
                raise KeyError(until)

        receipt = permit.step("charge", charge)
        permit.step("mail", mail, repeat=True)
        return Answer(201, (), receipt.encode())

    what = command("steps", policy)
    with suppress(KeyError):
        place.process().run(what, lambda permit: in_steps(permit, "mail"))
    for ring in (None, {"2026": bytes(32)}, {"2027": RING["2026"]}):
        process = place.process({"x": bytes(32)} if ring is None else ring)
        if ring is None:
            process.engine.core.sealer = None
            what_now = command("steps", Policy(steps=True))
        else:
            what_now = what
        with pytest.raises(SemelError):
            process.run(what_now, in_steps)
    assert calls == ["charge", "mail"]
    assert place.process().run(what, in_steps).answer.body == b"receipt-7"
    assert calls == ["charge", "mail", "mail"]


def test_the_details_of_items_open_with_their_key_alone(tmp_path: Path) -> None:
    with ExitStack() as stack:
        place = Place("sqlite", tmp_path, stack)
        engine: Engine = place.process().engine
        bulk = Bulk(engine, operation="approve", answers="seal")
        forgets = Bulk(engine, operation="forget", answers="forget")
        handled = lambda item: Done("7", detail=b"secret")  # noqa: E731
        done = bulk.run([{"n": 1}, {"n": 2}], handled, key="k", caller="alice")
        gone = forgets.run([{"n": 1}], handled, key="k", caller="alice")
        assert [each.detail for each in bulk.outcomes(done.operation_id)] == [b"secret", b"secret"]
        assert [each.detail for each in forgets.outcomes(gone.operation_id)] == [None]
        assert bulk.run([{"n": 1}, {"n": 2}], handled, key="k", caller="alice").replayed
        fails = lambda item: _fail()  # noqa: E731
        failed = bulk.run([{"n": 1}], fails, key="f", caller="alice")
        assert [each.detail for each in bulk.outcomes(failed.operation_id)] == [b"why it failed"]
        gone = forgets.run([{"n": 1}], fails, key="f", caller="alice")
        assert [each.detail for each in forgets.outcomes(gone.operation_id)] == [None]
        for effects in ("atomic", "idempotent"):
            other = Bulk(engine, operation=f"approve.{effects}", answers="seal", effects=effects)
            assert other.run([{"n": 1}], fails, key="f", caller="alice").tally.failed == 1
        assert found_in(tmp_path, "why it failed") == []
        without = Bulk(place.process({"2025": bytes(32)}).engine, operation="approve", answers="seal")
        with pytest.raises(SemelError, match="'2026', which is not in the ring"):
            without.page(done.operation_id)
