"""`semel settle`: an operator's word, its rules and its refusals."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from semel import Permit
from semel.core.identity import uuid_text
from semel.core.model import Answer, Find
from semel.errors import NotReplayableError
from semel.policy import Policy
from tests.cli.conftest import HOUR_US, Ran, Shelf

Run = Callable[..., Ran]
NEVER_RUN = "the handler must not run"


def replay(shelf: Shelf, key: str) -> Answer:
    def handler(permit: object) -> Answer:
        raise AssertionError(NEVER_RUN)

    with shelf.engine() as engine:
        return engine.run(shelf.command(key), handler).answer


def test_a_success_with_an_answer_is_replayed(semel: Run, shelf: Shelf, tmp_path: Path) -> None:
    operation_id = shelf.unknown("key-1", ago_us=HOUR_US)
    body = tmp_path / "answer.json"
    body.write_bytes(b'{"paymentId":"pay_1"}')
    answer = ["--status", "201", "--body-file", str(body), "--header", "Content-Type: application/json"]
    ran = semel("settle", operation_id, "--succeeded", *answer, "--reason", "seen at the provider", "--actor", "ops")
    assert (ran.code, ran.err) == (0, "")
    assert replay(shelf, "key-1") == Answer(201, ((b"content-type", b"application/json"),), b'{"paymentId":"pay_1"}')
    [line] = semel("show", operation_id, "--json").document["audit"]
    assert (line["actor"], line["action"], line["reason"]) == ("ops", "resolve:succeeded", "seen at the provider")
    assert "by ops: seen at the provider" in semel("show", operation_id).out


def test_a_json_body_gets_its_content_type_automatically(semel: Run, shelf: Shelf, tmp_path: Path) -> None:
    body = tmp_path / "answer.json"
    body.write_bytes(b'{"paymentId":"pay_1"}')
    given = ("--succeeded", "--status", "201", "--body-file", str(body), "--reason", "seen")
    ran = semel("settle", shelf.unknown("key-1", ago_us=HOUR_US), *given)
    assert (ran.code, ran.err) == (0, "")
    assert "content type: application/json" in ran.out
    assert replay(shelf, "key-1").headers == ((b"content-type", b"application/json"),)
    other = ("--header", "content-type: application/vnd.shop+json", "--header", "X-Note: 1")
    ran = semel("settle", shelf.unknown("key-2", ago_us=HOUR_US), *given, *other)
    assert (ran.code, "content type" in ran.out) == (0, False)
    assert replay(shelf, "key-2").headers[0] == (b"content-type", b"application/vnd.shop+json")


def test_a_body_of_another_type_requires_a_content_type(semel: Run, shelf: Shelf, tmp_path: Path) -> None:
    operation_id = shelf.unknown("key-1", ago_us=HOUR_US)
    body = tmp_path / "answer.txt"
    body.write_bytes(b"paid")
    given = ("--succeeded", "--status", "201", "--body-file", str(body), "--reason", "seen")
    refused = semel("settle", operation_id, *given)
    assert (refused.code, "--header 'Content-Type: text/plain'" in refused.err) == (2, True)
    assert semel("settle", operation_id, *given, "--header", "Content-Type: text/plain").code == 0


def test_a_status_without_a_body_gets_none(semel: Run, shelf: Shelf, tmp_path: Path) -> None:
    operation_id = shelf.unknown("key-1", ago_us=HOUR_US)
    body = tmp_path / "answer.json"
    body.write_bytes(b"{}")
    refused = semel(
        *("settle", operation_id, "--succeeded", "--status", "204", "--body-file", str(body), "--reason", "seen")
    )
    assert (refused.code, "status 204 has no body" in refused.err) == (2, True)
    assert semel("show", operation_id, "--json").document["state"] == "UNKNOWN"


def test_a_prefix_is_enough_if_it_matches_one_record(semel: Run, shelf: Shelf) -> None:
    first, second = shelf.unknown("key-1", ago_us=HOUR_US), shelf.unknown("key-2", ago_us=HOUR_US)
    given = ("--did-not-happen", "--reason", "no charge")
    ran = semel("settle", first[:-1], *given)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"{first} (")
    assert "settled: it did not happen" in ran.out
    both = next(first[:n] for n in range(36, 5, -1) if second.startswith(first[:n]))
    ran = semel("settle", both, *given)
    assert ran.code != 0
    assert "fits several records" in ran.err
    assert semel("settle", "ffffffff", *given).code != 0
    assert semel("show", second, "--json").document["state"] == "UNKNOWN"


def test_a_success_without_an_answer_is_stored(semel: Run, shelf: Shelf) -> None:
    operation_id = shelf.unknown("key-1", ago_us=HOUR_US)
    refused = semel("settle", operation_id, "--succeeded", "--reason", "seen")
    assert refused.code == 2
    assert "is final" in refused.err
    assert "--no-answer" in refused.err
    assert semel("show", operation_id, "--json").document["state"] == "UNKNOWN"
    ran = semel("settle", operation_id, "--succeeded", "--no-answer", "--reason", "seen")
    assert ran.code == 0
    assert "gets no answer; this is final" in ran.out
    with pytest.raises(NotReplayableError):
        replay(shelf, "key-1")


def test_a_command_that_did_not_happen_runs_on_retry(semel: Run, shelf: Shelf) -> None:
    operation_id = shelf.unknown("key-1", ago_us=HOUR_US)
    ran = semel("settle", operation_id, "--did-not-happen", "--reason", "no charge", "--json")
    assert ran.document["state"] == "FAILED_NOT_REPLAYABLE"
    with shelf.engine() as engine:
        result = engine.run(shelf.command("key-1"), lambda permit: Answer(201, (), b"now"))
    assert (result.replayed, result.answer.body) == (False, b"now")


def test_a_lapsed_command_is_settled_too(semel: Run, shelf: Shelf) -> None:
    operation_id = shelf.abandon("key-1", ago_us=HOUR_US)
    assert semel("settle", operation_id, "--did-not-happen", "--reason", "the host is gone").code == 0


def test_settle_waits_for_the_deadline_unless_forced(semel: Run, shelf: Shelf) -> None:
    operation_id = shelf.unknown("key-1")
    refused = semel("settle", operation_id, "--did-not-happen", "--reason", "no charge")
    assert refused.code == 1
    assert "--force" in refused.err
    assert "deadline" in refused.err
    assert Policy().deadline_seconds == 300
    assert semel("show", operation_id, "--json").document["audit"] == []
    assert semel("settle", operation_id, "--did-not-happen", "--reason", "no charge", "--force").code == 0


def test_a_known_outcome_is_not_settled_by_hand(semel: Run, shelf: Shelf) -> None:
    for operation_id, state in (
        (shelf.succeed("a", ago_us=HOUR_US), "SUCCEEDED"),
        (shelf.abandon("b"), "PROCESSING"),
    ):
        ran = semel("settle", operation_id, "--did-not-happen", "--reason", "x", "--force", "--json")
        assert ran.code == 1
        assert state in ran.document["error"]


def test_settle_refuses_a_second_settlement(semel: Run, shelf: Shelf) -> None:
    operation_id = shelf.unknown("key-1", ago_us=HOUR_US)
    assert semel("settle", operation_id, "--succeeded", "--no-answer", "--reason", "first").code == 0
    assert semel("settle", operation_id, "--did-not-happen", "--reason", "second").code == 1
    assert len(semel("show", operation_id, "--json").document["audit"]) == 1


# --- a step in doubt -----------------------------------------------------------------------------


class Shop:
    """Charges and ships; a parcel listed in ``lost`` gets no answer."""

    def __init__(self, lost: int) -> None:
        self.calls: list[str] = []
        self.results: list[str] = []
        self.lost = lost

    def buy(self, permit: Permit) -> Answer:
        permit.step("charge", lambda: self.calls.append("charge"))
        self.results.append(permit.step("ship", self.ship))
        return Answer(201, (), b"done")

    def ship(self) -> str:
        self.calls.append("ship")
        if self.calls.count("ship") <= self.lost:
            raise TimeoutError
        return "parcel 1"


def in_doubt(shelf: Shelf, shop: Shop) -> str:
    """A command that has charged and whose parcel is in doubt; returns its operation id."""
    engine = shelf.engine(ago_us=HOUR_US)
    with pytest.raises(TimeoutError):
        engine.run(shelf.command("k", steps=True), shop.buy)
    [row] = engine.perform("find", lambda: engine.store.find(Find())).records
    engine.close()
    return uuid_text(row.operation_id)


def retry(shelf: Shelf, shop: Shop) -> bytes:
    with shelf.engine() as engine:
        return engine.run(shelf.command("k", steps=True), shop.buy).answer.body


def test_only_the_step_that_did_not_happen_runs_again(semel: Run, shelf: Shelf) -> None:
    shop = Shop(lost=1)
    operation_id = in_doubt(shelf, shop)
    told = " ".join(semel("explain", operation_id, "--json").document["story"]["operator"])
    assert f"semel show {operation_id} --derived ship" in told
    assert "--step-succeeded" in told
    ran = semel("settle", operation_id, "--did-not-happen", "--reason", "no parcel", "--actor", "olga")
    assert ran.out == "settled: step 'ship' did not happen; a retry continues, and repeats no finished step\n"
    happened = " ".join(semel("explain", operation_id, "--json").document["story"]["happened"])
    assert "olga settled it (did-not-happen step:ship): no parcel" in happened
    assert retry(shelf, shop) == b"done"
    assert shop.calls == ["charge", "ship", "ship"]


def test_a_step_settled_as_succeeded_does_not_run_again(semel: Run, shelf: Shelf) -> None:
    shop = Shop(lost=1)
    operation_id = in_doubt(shelf, shop)
    given = ("settle", operation_id, "--reason", "parcel 7 is on its way", "--step-succeeded")
    for wrong in ("parcel 7", "[" * 100_000):
        refused = semel(*given, wrong)
        assert refused.code == 2
        assert "--step-succeeded" in refused.err
    ran = semel(*given, '"parcel 7"', "--json")
    assert (ran.document["state"], ran.document["step"]) == ("CLAIMED", "ship")
    assert retry(shelf, shop) == b"done"
    assert (shop.calls, shop.results) == (["charge", "ship"], ["parcel 7"])


def test_step_succeeded_is_refused_if_no_step_is_in_doubt(semel: Run, shelf: Shelf) -> None:
    operation_id = shelf.unknown("k", ago_us=HOUR_US)
    refused = semel("settle", operation_id, "--step-succeeded", "1", "--reason", "x")
    assert refused.code == 1
    assert "no step of this command is in doubt" in refused.err


def test_an_unreadable_list_of_steps_is_refused_with_a_remedy(semel: Run, shelf: Shelf) -> None:
    operation_id = in_doubt(shelf, Shop(lost=1))
    with closing(sqlite3.connect(shelf.path)) as db, db:
        db.execute("UPDATE semel_record SET steps = x'00'")
    refused = semel("settle", operation_id, "--did-not-happen", "--reason", "x")
    assert refused.code == 1
    assert "settle the whole command as succeeded" in refused.err


ID = "0199e0c4-7d3a-7a52-9f0e-6f2f4e1f6a55"
WRONG = {
    "no word": ([ID, "--reason", "x"], "--succeeded --refused --did-not-happen"),
    "two words": ([ID, "--succeeded", "--did-not-happen", "--reason", "x"], "--did-not-happen"),
    "no reason": ([ID, "--succeeded"], "--reason"),
    "blank reason": ([ID, "--succeeded", "--reason", "  "], "--reason"),
    "endless reason": ([ID, "--succeeded", "--reason", "x" * 1001], "--reason"),
    "blank actor": ([ID, "--succeeded", "--reason", "x", "--actor", ""], "--actor"),
    "no answer and one": ([ID, "--succeeded", "--no-answer", "--status", "201", "--reason", "x"], "--no-answer"),
    "no answer to nothing": ([ID, "--did-not-happen", "--no-answer", "--reason", "x"], "--no-answer"),
    "no uuid": (["17", "--succeeded", "--reason", "x"], "OPERATION_ID"),
    "status 99": ([ID, "--succeeded", "--reason", "x", "--status", "99"], "--status"),
    "status text": ([ID, "--succeeded", "--reason", "x", "--status", "ok"], "--status"),
    "body without status": ([ID, "--succeeded", "--reason", "x", "--body-file", "f"], "--status"),
    "header without status": ([ID, "--succeeded", "--reason", "x", "--header", "A: b"], "--status"),
    "no such file": ([ID, "--succeeded", "--reason", "x", "--status", "201", "--body-file", "/no/file"], "--body-file"),
    "no colon": ([ID, "--succeeded", "--reason", "x", "--status", "201", "--header", "A"], "--header"),
    "split header": ([ID, "--succeeded", "--reason", "x", "--status", "201", "--header", "A: b\r\nC: d"], "--header"),
    "cookie": ([ID, "--succeeded", "--reason", "x", "--status", "201", "--header", "Set-Cookie: a=b"], "Set-Cookie"),
    "answer to nothing": ([ID, "--did-not-happen", "--reason", "x", "--status", "201"], "--status"),
}


@pytest.mark.parametrize(("arguments", "named"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_named(semel: Run, arguments: list[str], named: str) -> None:
    ran = semel("settle", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert named in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_body_that_is_too_large_is_refused(semel: Run, shelf: Shelf, tmp_path: Path) -> None:
    body = tmp_path / "large"
    body.write_bytes(bytes(1024 * 1024 + 1))
    ran = semel("settle", ID, "--succeeded", "--reason", "x", "--status", "200", "--body-file", str(body))
    assert ran.code == 2
    assert "larger" in ran.err
