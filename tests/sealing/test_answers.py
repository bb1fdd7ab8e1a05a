"""Answers that keep a secret: sealed, redacted, rebuilt and forgotten, on every store and both engines. 10 s."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from semel import Answer, Permit, Policy, Rebuilding, Sealer
from semel.core.model import AlreadyMine, AnswerKind, Record, Settled, State
from semel.core.outcomes import Succeeded
from semel.core.record import answer_of
from semel.core.timing import PURGE_GRACE_US
from semel.errors import ConfigurationError, NotReplayableError, PolicyError, RecordUnreadableError
from semel.sealing.rows import Reseal
from semel.sealing.rules import MARK
from tests.sealing.conftest import NEW, OLD, PAID, RING, SECRET, Place, command, rows_of

SEAL = Policy(answers="seal")
REDACTED = b'{"id": 7, "card": {"number": null}}'
EACH = ("memory", "sqlite-async", "psycopg", "pymysql", "redis")
LOCAL = ("memory", "memory-async", "sqlite")


def never(permit: Permit) -> Answer:
    raise AssertionError("the handler must not run")


def pay(permit: Permit) -> Answer:
    permit.result("payment", "7")
    return PAID


def give(said: Answer, permit: Permit) -> Answer:
    return said


def read_payment(done: Rebuilding) -> dict[str, Any]:
    return {"id": done.resource_id, "state": "settled", "by": f"{done.tenant}/{done.caller}/{done.operation}"}


REBUILD = Policy(answers="rebuild", rebuild=read_payment)


def test_a_sealed_answer_is_replayed_and_is_in_clear_nowhere_in_its_row(place: Place) -> None:
    process = place.process()
    first = process.run(command(policy=SEAL), pay)
    again = place.process().run(command(policy=SEAL), never)
    assert (first.answer, first.replayed, again.answer, again.replayed) == (PAID, False, PAID, True)
    [row] = rows_of(process)
    assert (row.answer_kind, row.status, row.resource_id) == (AnswerKind.SEALED, 201, "7")
    assert SECRET not in repr(row)
    assert row.body is not None
    assert row.body.startswith(MARK + b"\x042026")


def test_an_old_key_behind_a_new_one_opens_and_the_new_one_seals(place: Place) -> None:
    place.process({"2025": OLD}).run(command("old", SEAL), pay)
    process = place.process({"2026": NEW, "2025": OLD})
    place.clock.advance(1_000_000)  # so that the records have an order
    assert process.run(command("old", SEAL), never).answer == PAID
    process.run(command("new", SEAL), pay)
    old, new = rows_of(process)
    assert (old.body or b"").startswith(MARK + b"\x042025")
    assert (new.body or b"").startswith(MARK + b"\x042026")


def test_a_settlement_is_sealed_once_so_that_it_may_be_repeated(place: Place) -> None:
    process = place.process()
    permit = process.permit(command(policy=SEAL))
    settlement = process.engine.core.make_settlement(permit, Succeeded(PAID))
    replies = [process.perform("settle", lambda: process.engine.store.settle((settlement,))) for _ in range(2)]
    assert replies == [[Settled()], [AlreadyMine()]]
    process.engine.core.conclude(permit)
    assert process.run(command(policy=SEAL), never).answer == PAID


def test_what_is_redacted_is_stored_and_replayed_as_null(place: Place) -> None:
    process = place.process(None)
    policy = Policy(redact=("card.number",))
    assert process.run(command(policy=policy), lambda permit: PAID._replace(headers=())).answer.body == PAID.body
    assert process.run(command(policy=policy), never).answer.body == REDACTED
    [row] = rows_of(process)
    assert SECRET not in repr(row)


def test_a_rebuilt_answer_is_the_resource_of_today_under_the_first_status(place: Place) -> None:
    process = place.process(None)
    assert process.run(command(policy=REBUILD), pay).answer == PAID
    again = process.run(command(policy=REBUILD), never)
    assert (again.answer.status, again.replayed) == (201, True)
    assert json.loads(again.answer.body) == {"id": "7", "state": "settled", "by": "acme/alice/pay"}
    [row] = rows_of(process)
    assert (row.answer_kind, row.body, row.headers, SECRET in repr(row)) == (AnswerKind.REBUILT, None, None, False)


def test_an_answer_that_is_not_stored_is_never_run_again(place: Place) -> None:
    process = place.process(None)
    policy = Policy(answers="forget")
    assert process.run(command(policy=policy), pay).answer == PAID
    with pytest.raises(NotReplayableError):
        process.run(command(policy=policy), never)
    [row] = rows_of(process)
    assert (row.answer_kind, row.status, SECRET in repr(row)) == (AnswerKind.NOT_KEPT, 201, False)


@pytest.mark.parametrize("kind", EACH, indirect=True)
def test_a_sealed_answer_is_dropped_when_its_time_is_over(place: Place) -> None:
    process = place.process()
    process.run(command(policy=SEAL), pay)
    place.clock.advance(SEAL.terms.answer_us + PURGE_GRACE_US)
    purged = process.perform("purge", lambda: process.engine.store.purge(None, 100))
    assert purged.answers_dropped == 1
    [row] = rows_of(process)
    assert (row.answer_kind, row.body, row.headers) == (AnswerKind.NOT_KEPT, None, None)


# --- what does not open ---------------------------------------------------------------------------


def flip_bit(row: Record, other: Record) -> Answer:
    body = bytearray(row.body or b"")
    body[-1] ^= 1
    return answer(row)._replace(body=bytes(body))


def swap_answers(row: Record, other: Record) -> Answer:
    return answer(other)


def rename_key(row: Record, other: Record) -> Answer:
    body = (row.body or b"").replace(b"\x042026", b"\x042025", 1)
    return Answer(row.status, ((b"", b"2025"),), body)


def said_to_be_another_key(row: Record, other: Record) -> Answer:
    return answer(row)._replace(headers=((b"", b"2025"),))


def of_another_status(row: Record, other: Record) -> Answer:
    return answer(row)._replace(status=200)


def cut(row: Record, other: Record) -> Answer:
    return answer(row)._replace(body=(row.body or b"")[:30])


def answer(row: Record) -> Answer:
    found = answer_of(row)
    assert found is not None
    return found


Damage = Callable[[Record, Record], Answer]


def write(process: Any, row: Record, changed: Answer, kind: AnswerKind = AnswerKind.SEALED) -> None:
    """What an attacker can do who may write the table: the digest over the row is right, since it needs no key."""
    assert row.answer_digest is not None
    change = Reseal(row.id, row.answer_digest, changed, kind)
    assert process.perform("reseal", lambda: process.engine.store.reseal((change,))) == [True]


@pytest.mark.parametrize("kind", EACH, indirect=True)
@pytest.mark.parametrize("damage", [flip_bit, swap_answers, rename_key, said_to_be_another_key, cut])
def test_a_sealed_answer_that_was_changed_is_unreadable_and_never_shown(place: Place, damage: Damage) -> None:
    process = place.process({"2026": NEW, "2025": OLD})
    for key in ("one", "two"):
        process.run(command(key, SEAL), pay)
    one, two = rows_of(process)
    write(process, one, damage(one, two))
    with pytest.raises(
        RecordUnreadableError, match=r"cannot be decrypted with .* see semel doctor.*never run again"
    ) as told:
        process.run(command("one", SEAL), never)
    assert SECRET not in str(told.value)
    assert process.run(command("two", SEAL), never).answer == PAID


@pytest.mark.parametrize("kind", LOCAL, indirect=True)
def test_the_status_is_sealed_too_and_a_seal_relabelled_as_plain_is_not_shown(place: Place) -> None:
    process = place.process()
    process.run(command("status", SEAL), pay)
    process.run(command("kind", SEAL), pay)
    status, kind = rows_of(process)
    if place.kind == "sqlite":  # a statement by hand; the verb takes the status from nowhere
        import sqlite3
        from contextlib import closing

        from semel.core.record import answer_digest

        digest = answer_digest(200, status.headers or b"", status.body or b"")
        with closing(sqlite3.connect(place.folder / "semel.db")) as outside:
            outside.execute("UPDATE semel_record SET status = 200, answer_digest = ? WHERE id = ?", (digest, status.id))
            outside.commit()
        with pytest.raises(RecordUnreadableError, match="cannot be decrypted"):
            process.run(command("status", SEAL), never)
    write(process, kind, answer(kind), AnswerKind.KEPT)
    with pytest.raises(RecordUnreadableError, match="corrupt"):
        process.run(command("kind", SEAL), never)


@pytest.mark.parametrize("place", LOCAL, indirect=True)
def test_sealing_does_not_prevent_a_forged_answer_in_clear(place: Place) -> None:
    """As docs/security.md says: what a record holds decides how it is replayed, so write access is trusted."""
    process = place.process()
    process.run(command(policy=SEAL), pay)
    [row] = rows_of(process)
    forged = Answer(201, (), b"forged")
    write(process, row, forged, AnswerKind.KEPT)
    assert process.run(command(policy=SEAL), never).answer == forged


@pytest.mark.parametrize("kind", EACH, indirect=True)
@pytest.mark.parametrize(
    ("ring", "said"),
    [
        (None, "sealed under the key '2026', and this process has no sealer: give the engine its sealer"),
        ({"2025": NEW}, "the key '2026', which is not in this process's ring: add it behind the others"),
        ({"2026": OLD}, "the data were changed, belong to another record, or '2026' names a different key here"),
    ],
    ids=["no sealer", "another name", "another key"],
)
def test_without_its_key_a_record_is_unreadable_and_the_reason_is_logged_once(
    place: Place, ring: dict[str, bytes] | None, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    place.process().run(command(policy=SEAL), pay)
    process = place.process(ring)
    for _ in range(2):
        with pytest.raises(RecordUnreadableError) as told:
            process.run(command(), never)
        assert said in str(told.value)
    [line] = [
        each.getMessage()
        for each in caplog.records
        if "sealed" in each.getMessage() or "decrypted" in each.getMessage()
    ]
    assert "'2026'" in line
    assert (
        place.process().run(command(), never).answer == PAID
    )  # every process with the key replays, under any declaration


# --- declarations that change ---------------------------------------------------------------------

WAYS = {
    "keep": Policy(),
    "redact": Policy(redact=("card.number",)),
    "seal": SEAL,
    "rebuild": REBUILD,
    "forget": Policy(answers="forget"),
}
CHANGED = {  # what a retry gets whose operation was declared as the row says, and is as the column says
    "keep": {"keep": "stored", "redact": "stored", "seal": "stored", "rebuild": "stored", "forget": "stored"},
    "redact": dict.fromkeys(WAYS, "redacted"),
    "seal": dict.fromkeys(WAYS, "stored"),
    "rebuild": {**dict.fromkeys(WAYS, "done"), "rebuild": "rebuilt"},
    "forget": dict.fromkeys(WAYS, "done"),
}


@pytest.mark.parametrize("kind", LOCAL, indirect=True)
@pytest.mark.parametrize("was", WAYS)
def test_a_record_is_replayed_as_it_was_stored_whatever_is_declared_now(place: Place, was: str) -> None:
    process = place.process()
    process.run(command(policy=WAYS[was]), pay)
    met = {}
    for now, policy in WAYS.items():
        try:
            body = process.run(command(policy=policy), never).answer.body
        except NotReplayableError:
            met[now] = "done"
        else:
            met[now] = {PAID.body: "stored", REDACTED: "redacted"}.get(body, "rebuilt")
    assert met == CHANGED[was]


# --- what fails -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LOCAL, indirect=True)
def test_a_failed_or_slow_builder_makes_the_answer_not_replayable(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    process = place.process()
    process.run(command(policy=REBUILD), pay)
    ends = threading.Event()

    def fails(done: Rebuilding) -> Answer:
        raise LookupError(SECRET)

    def hangs(done: Rebuilding) -> Answer:
        ends.wait()
        return PAID

    for build, seconds in ((fails, 5.0), (hangs, 0.01), (lambda done: object(), 5.0)):
        policy = Policy(answers="rebuild", rebuild=build, rebuild_seconds=seconds)
        with pytest.raises(NotReplayableError):
            process.run(command(policy=policy), never)
    ends.set()
    logged = "".join(each.getMessage() for each in caplog.records)
    assert "LookupError" in logged
    assert "TimeoutError" in logged
    assert SECRET not in caplog.text


@pytest.mark.parametrize("kind", ["memory-async", "sqlite-async"], indirect=True)
def test_on_an_event_loop_a_builder_may_be_a_coroutine_function(place: Place) -> None:
    async def read(done: Rebuilding) -> Answer:
        return Answer(500, ((b"x-made", b"again"),), (done.resource_id or "").encode())

    policy = Policy(answers="rebuild", rebuild=read)
    process = place.process(None)
    process.run(command(policy=policy), pay)
    assert process.run(command(policy=policy), never).answer == Answer(201, ((b"x-made", b"again"),), b"7")


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
def test_an_engine_in_threads_refuses_a_coroutine_as_an_answer(place: Place) -> None:
    async def read(done: Rebuilding) -> Answer:
        return PAID

    policy = Policy(answers="rebuild", rebuild=read)
    process = place.process(None)
    process.run(command(policy=policy), pay)
    with pytest.raises(NotReplayableError):
        process.run(command(policy=policy), never)


@pytest.mark.parametrize("kind", ["memory", "sqlite"], indirect=True)
def test_a_refusal_is_not_rebuilt_but_sealed_or_not_stored(place: Place) -> None:
    refused = PAID._replace(status=422)
    process = place.process()
    process.run(command("sealed", REBUILD), lambda permit: refused)
    assert process.run(command("sealed", REBUILD), never).answer == refused
    process = place.process(None)
    process.run(command("bare", REBUILD), lambda permit: refused)
    with pytest.raises(NotReplayableError):
        process.run(command("bare", REBUILD), never)
    assert [row.answer_kind for row in rows_of(process)] == [AnswerKind.SEALED, AnswerKind.NOT_KEPT]


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
def test_an_answer_that_cannot_be_redacted_is_not_stored(place: Place) -> None:
    process = place.process(None)
    policy = Policy(redact=("card.number",))
    process.run(command(policy=policy), lambda permit: PAID._replace(headers=(), body=f"card={SECRET}".encode()))
    with pytest.raises(NotReplayableError):
        process.run(command(policy=policy), never)
    assert SECRET not in repr(rows_of(process))


def test_redaction_drops_headers_that_describe_the_whole_body() -> None:
    from semel.sealing.rules import cover_answer

    headers = ((b"ETag", b'"1"'), (b"content-digest", b"sha-256=:x:"), (b"x-total", b"1"))
    kept, kind = cover_answer(
        PAID._replace(headers=headers),
        AnswerKind.KEPT,
        bytes(16),
        State.SUCCEEDED,
        Policy(redact=("card.number",)),
        None,
    )
    assert (kept.headers, kept.body, kind) == (((b"x-total", b"1"),), REDACTED, AnswerKind.KEPT)


@pytest.mark.parametrize("kind", ["sqlite", "sqlite-async", "psycopg", "asyncpg", "pymysql", "asyncmy"], indirect=True)
def test_answers_of_atomic_commands_are_sealed_and_so_are_their_refusals(place: Place) -> None:
    process = place.process()
    atomic = Policy(effects="atomic", answers="seal")
    refused = PAID._replace(status=409)
    for key, said in (("paid", PAID), ("refused", refused)):
        assert process.run(command(key, atomic), partial(give, said)).answer == said
        assert process.run(command(key, atomic), never).answer == said
    rows = rows_of(process)
    assert [row.answer_kind for row in rows] == [AnswerKind.SEALED, AnswerKind.SEALED]
    assert SECRET not in repr(rows)


def test_the_sealed_answer_of_a_superseding_settlement_is_opened(place: Place) -> None:
    """Another process has settled it: the loser sends what the store holds, in clear."""
    process = place.process()
    permit = process.permit(command(policy=SEAL))
    settlement = process.engine.core.make_settlement(permit, Succeeded(PAID))
    process.perform("settle", lambda: process.engine.store.settle((settlement,)))
    seen = process._end(process.engine.reread(permit)) if process.mode == "async" else process.engine.reread(permit)
    process.engine.core.conclude(permit)
    assert seen.answer == PAID


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_a_reported_outcome_is_stored_as_its_operation_declares(place: Place) -> None:
    from semel.workers import SucceededWith

    process = place.process()
    process.engine.core.needs.declare("pay", Policy(answers="seal"))
    operation_ids = []

    def in_doubt(permit: Permit) -> Answer:
        operation_ids.append(permit.operation_id)
        raise TimeoutError

    with pytest.raises(TimeoutError):
        process.run(command(policy=SEAL), in_doubt)
    process.engine.settle_by(operation_ids[0], SucceededWith(PAID), "webhook")
    assert process.run(command(policy=SEAL), never).answer == PAID
    assert SECRET not in repr(rows_of(process))


# --- what is refused at once ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"answers": "hide"}, "answers must be 'keep' or 'seal' or 'rebuild' or 'forget'; it is 'hide'"),
        ({"answers": "rebuild"}, "answers='rebuild' needs rebuild=, a function"),
        ({"rebuild": read_payment}, "rebuild= is for answers='rebuild'; answers is 'keep'"),
        ({"answers": "forget", "redact": ("a",)}, "redact means nothing with answers='forget'"),
        ({"redact": "card.number"}, r"redact must be a tuple of members, such as \('card.number',\)"),
        ({"redact": ("card..number",)}, "it has 'card..number'"),
        ({"answers": "rebuild", "rebuild": read_payment, "rebuild_seconds": 0}, "rebuild_seconds must be more than 0"),
    ],
)
def test_a_policy_that_cannot_be_kept_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        Policy(**options)


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
def test_sealing_without_a_sealer_is_refused_before_anything_runs(place: Place) -> None:
    process = place.process(None)
    with pytest.raises(ConfigurationError, match="'pay' is declared with answers='seal', and the engine has no sealer"):
        process.run(command(policy=SEAL), never)
    with pytest.raises(ConfigurationError, match="the engine has no sealer"):
        process.engine.core.needs.declare("pay", SEAL)


@pytest.mark.parametrize("kind", LOCAL, indirect=True)
def test_a_custom_sealer_may_seal(place: Place) -> None:
    class Turned:
        def seal(self, text: bytes, about: bytes) -> bytes:
            return (about + text)[::-1]

        def open(self, kept: bytes, about: bytes) -> bytes:
            text = kept[::-1]
            if not text.startswith(about):
                raise RecordUnreadableError("not mine")
            return text[len(about) :]

    process = place.process(None)
    process.engine.core.sealer = Turned()
    process.run(command(policy=SEAL), pay)
    assert process.run(command(policy=SEAL), never).answer == PAID
    assert SECRET not in repr(rows_of(process))


def test_a_sealer_reports_mistakes_of_its_file(tmp_path: Any) -> None:
    file = tmp_path / "keys"
    file.write_text("# newest first\n2026 " + "A" * 43 + "=\n\n2025 " + "B" * 43 + "=  # old\n")
    assert Sealer.from_file(file).key_names == ("2026", "2025")
    for text, said in (
        ("2026", "line 1 of the file of sealing keys must be NAME BASE64"),
        ("2026 ???", "line 1 of the file of sealing keys has no base64"),
        ("2026 AAAA", "must be 32 random bytes"),
        ("", "a Sealer needs its keys"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigurationError, match=said):
            Sealer.from_file(file)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Sealer.from_file(tmp_path / "none")


assert set(RING) == {"2026"}
