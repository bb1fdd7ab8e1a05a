"""What every adapter does alike. A case is written once and runs for each adapter that can, at each of its doors."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from tests.frameworks.suite.adapters import Feature
from tests.frameworks.suite.door import Door, Shop, fresh
from tests.frameworks.suite.shop import BARRED, PAGE, STREAM_BYTES_MAX
from tests.integrations.driving import multipart
from tests.service.served import Answered, await_true

F = TypeVar("F", bound=Callable[..., Any])
REUSED = "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"


def shows(*features: Feature) -> Callable[[F], F]:
    """The features that a case is about."""

    def mark(case: F) -> F:
        case.shows = features  # type: ignore[attr-defined]
        return case

    return mark


def code(answer: Answered) -> str:
    """The code of a problem document, which is whole."""
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    document = answer.json
    assert (document["status"], document["code"]) == (answer.status, answer.headers["semel-code"])
    return str(document["code"])


def same(first: Answered, again: Answered) -> None:
    """The second is a replay of the first, byte for byte."""
    assert (first.replayed, again.replayed) == (False, True), (first, again)
    assert (again.status, again.body) == (first.status, first.body)
    for name in ("content-type", "location"):
        assert again.headers.get(name) == first.headers.get(name)


# --- once, and its replay -------------------------------------------------------------------------


@shows(Feature.REPLAY)
@pytest.mark.parametrize("path", ["/pay", "/book"])
def test_a_retry_gets_the_first_answer(door: Door, path: str) -> None:
    what, key = fresh(), fresh()
    first = door.ask(path, {"what": what}, key=key)
    assert first.status == 201
    assert first.headers.get("location") == (f"/paid/{what}" if path == "/pay" else None)
    for _ in range(2):
        same(first, door.ask(path, {"what": what}, key=key))
    assert (door.effects(what), door.state(key)) == (1, "SUCCEEDED")
    assert int(first.headers["idempotency-key-lifetime"]) > 0


@shows(Feature.REPLAY)
def test_a_definite_refusal_is_the_answer_of_a_retry_too(door: Door) -> None:
    what, key = fresh(), fresh()
    first = door.ask("/pay", {"what": what, "do": "refuse"}, key=key)
    assert first.status == 409
    same(first, door.ask("/pay", {"what": what, "do": "refuse"}, key=key))
    assert (door.effects(what), door.state(key)) == (1, "FAILED_REPLAYABLE")


@shows(Feature.REPLAY)
def test_a_replay_has_no_cookie_of_the_first(door: Door) -> None:
    body, key = {"what": fresh(), "do": "cookie"}, fresh()
    first, again = (door.ask("/pay", body, key=key) for _ in range(2))
    same(first, again)
    assert "session=secret" in first.headers["set-cookie"]
    assert "set-cookie" not in again.headers


@shows(Feature.REPLAY)
def test_a_key_is_required_and_has_a_form(door: Door) -> None:
    what = fresh()
    assert code(door.ask("/pay", {"what": what})) == "MISSING_IDEMPOTENCY_KEY"
    for key in ("", "x" * 300, "a\tb"):
        refused = door.ask("/pay", {"what": what}, key=key)
        assert (refused.status, code(refused)[:7]) in ((400, "INVALID"), (400, "MISSING"), (400, "IDEMPOT")), refused
    assert door.effects(what) == 0


@shows(Feature.REPLAY)
def test_a_request_that_may_be_an_attackers_copy_is_refused(door: Door) -> None:
    what, key = fresh(), fresh()
    assert code(door.ask("/pay", {"what": what}, key=key, Early_Data="1")) == "IDEMPOTENCY_TOO_EARLY"
    assert (door.effects(what), door.state(key)) == (0, None)


@shows(Feature.REPLAY)
def test_a_key_is_its_callers_own(door: Door) -> None:
    what, key = fresh(), fresh()
    answers = [door.ask("/pay", {"what": what}, key=key, caller=name) for name in ("alice", "bob")]
    assert [(each.status, each.replayed) for each in answers] == [(201, False)] * 2
    assert door.effects(what) == 2
    assert answers[0].json["key"] != answers[1].json["key"]


@shows(Feature.REPLAY)
def test_an_unknown_caller_learns_nothing(door: Door) -> None:
    what, key = fresh(), fresh()
    assert door.ask("/pay", {"what": what}, key=key, caller=None).status == 401
    assert (door.effects(what), door.state(key)) == (0, None)
    assert door.ask("/pay", {"what": what}, key=key).status == 201
    refused = door.ask("/pay", {"what": what}, key=key, caller=None)
    assert (refused.status, refused.replayed) == (401, False)


@shows(Feature.OTHER)
@pytest.mark.parametrize("path", ["/pay", "/book"])
def test_another_payload_under_the_key_is_refused(door: Door, path: str) -> None:
    what, other, key = fresh(), fresh(), fresh()
    assert door.ask(path, {"what": what}, key=key).status == 201
    for refused in (
        door.ask(path, {"what": other}, key=key),
        door.ask(f"{path}?currency=EUR", {"what": what}, key=key),
    ):
        assert (refused.status, code(refused), refused.json["state"]) == (422, REUSED, "SUCCEEDED")
    assert (door.effects(what), door.effects(other)) == (1, 0)
    assert door.ask(path, f'{{ "what" :"{what}"}}'.encode(), key=key).replayed  # the same, written otherwise


# --- at once --------------------------------------------------------------------------------------


@shows(Feature.RACE)
@pytest.mark.parametrize("path", ["/pay", "/book"])
def test_duplicates_at_once_have_one_effect_and_one_answer(shop: Shop, path: str) -> None:
    what, key, many = fresh(), fresh(), 12
    with ThreadPoolExecutor(many) as pool:
        asked = [pool.submit(shop.server.until_final, path, {"what": what}, key) for _ in range(many)]
        answers = [each.result() for each in asked]
    assert {(each.status, each.body) for each in answers} == {(201, answers[0].body)}
    assert sum(not each.replayed for each in answers) == 1
    assert shop.server.effects(what) == 1


# --- before the claim -----------------------------------------------------------------------------


@shows(Feature.BEFORE)
@pytest.mark.parametrize("path", ["/pay", "/book"])
def test_what_a_guard_or_validation_refuses_leaves_no_record(door: Door, path: str) -> None:
    what, key = fresh(), fresh()
    assert door.ask(path, {"what": what}, key=key, caller=BARRED).status == 403
    for body in (b"{", b'{"do": "raise"}', b"[]"):
        assert door.ask(path, body, key=key).status in (400, 422)
    assert (door.effects(what), door.state(key)) == (0, None)
    first = door.ask(path, {"what": what}, key=key)
    assert (first.status, first.replayed, door.effects(what)) == (201, False, 1)
    refused = door.ask(path, {"what": what}, key=key, caller=BARRED)
    assert (refused.status, refused.replayed) == (403, False)


# --- keys and paths -------------------------------------------------------------------------------


@shows(Feature.DERIVED)
def test_a_key_may_be_in_the_path(door: Door) -> None:
    number = int(fresh()[:7], 16)
    first, again = (door.ask(f"/orders/{number}/close", {}) for _ in range(2))
    same(first, again)
    assert door.ask(f"/orders/{number + 1}/close", {}).replayed is False
    spelled = door.ask(f"/orders/0{number}/close", {})  # where it is routed, it is the same order
    assert spelled.replayed or spelled.status in (400, 404)
    assert door.effects(f"close {number}") == 1
    assert code(door.ask(f"/orders/{number}/close", {"now": True})) == REUSED


@shows(Feature.DERIVED)
def test_a_key_may_be_in_the_body(door: Door) -> None:
    what = fresh()
    first, again = (door.ask("/orders", {"what": what}, method="PUT") for _ in range(2))
    same(first, again)
    assert code(door.ask("/orders", {"what": what, "do": "other"}, method="PUT")) == REUSED
    assert door.effects(what) == 1


@shows(Feature.SPELLING)
def test_another_spelling_of_the_path_is_the_same_command(door: Door) -> None:
    what, key = fresh(), fresh()
    assert door.ask("/pay", {"what": what}, key=key).status == 201
    for path in ("/pay/", "//pay", "/p%61y", "/PAY", "/pay?", "/./pay", "/pay;a=1", "/pay%2F", "/pay%00"):
        answer = door.ask(path, {"what": what}, key=key)
        assert answer.replayed or answer.status in (301, 307, 308, 400, 404, 405, 422), (path, answer)
    assert door.effects(what) == 1


# --- the permit -----------------------------------------------------------------------------------


@shows(Feature.PERMIT)
def test_the_permit_belongs_to_the_operation(door: Door) -> None:
    key, other = fresh(), fresh()
    first, second = (door.ask("/pay", {"what": fresh()}, key=each).json for each in (key, other))
    assert first["key"] != second["key"]
    assert first["operation"] == door.status(key)["operationId"] != second["operation"]


@shows(Feature.STEPS)
def test_a_retry_continues_where_the_first_attempt_ended(door: Door) -> None:
    body, key = {"what": fresh(), "do": "raise once"}, fresh()
    assert door.ask("/ship", body, key=key).status in (0, 500)
    ended = door.until_final("/ship", body, key)
    assert (ended.status, door.state(key)) == (201, "SUCCEEDED")
    assert [door.effects(f"{step} {body['what']}") for step in ("charge", "ship")] == [1, 1]


# --- ATOMIC ---------------------------------------------------------------------------------------


@shows(Feature.ATOMIC)
@pytest.mark.parametrize("do", ["raise once", "swallow once"])
def test_an_atomic_command_that_fails_has_written_nothing(door: Door, do: str) -> None:
    body, key = {"what": fresh(), "do": do}, fresh()
    failed = door.ask("/book", body, key=key)
    assert (failed.status in (0, 200, 500), failed.replayed) == (True, False)
    assert (door.effects(body["what"]), door.state(key)) == (0, None)
    again = door.ask("/book", body, key=key)
    assert (again.status, again.replayed, door.effects(body["what"])) == (201, False, 1)
    same(again, door.ask("/book", body, key=key))


@shows(Feature.ATOMIC)
def test_an_atomic_command_that_is_too_late_may_be_sent_again(door: Door) -> None:
    body, key = {"what": fresh(), "do": "late once"}, fresh()
    late = door.ask("/book", body, key=key)
    if late.status:  # a middleware's test client may show the exception instead
        assert (late.status, code(late)) == (503, "IDEMPOTENCY_STORE_UNAVAILABLE")
        assert (late.json["retryable"], "operation" in late.json, "mayHaveHappened" in late.json) == (
            True,
            False,
            False,
        )
        assert "retry-after" in late.headers
    assert (door.effects(body["what"]), door.state(key)) == (0, None)
    again = door.ask("/book", body, key=key)
    assert (again.status, again.replayed, door.effects(body["what"])) == (201, False, 1)


@shows(Feature.ATOMIC)
def test_an_atomic_command_that_refuses_has_written_nothing(door: Door) -> None:
    body, key = {"what": fresh(), "do": "refuse"}, fresh()
    first = door.ask("/book", body, key=key)
    assert first.status == 409
    same(first, door.ask("/book", body, key=key))
    assert (door.effects(body["what"]), door.state(key)) == (0, "FAILED_REPLAYABLE")


@shows(Feature.ATOMIC, Feature.SESSION)
def test_the_rows_were_written_by_the_frameworks_own_session(door: Door) -> None:
    by = door.ask("/book", {"what": fresh()}, key=fresh()).json["by"]
    assert by.split(".")[0] in ("sqlalchemy", "flask_sqlalchemy", "django")


@shows(Feature.KILL)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_around_the_commit_leaves_all_or_nothing(shop: Shop, when: str) -> None:
    door, what, key = shop.server, fresh(), fresh()
    (door.folder / "to-die").touch()
    path, body = ("/book", {"what": what, "do": "kill"}) if when == "before" else ("/book?die=after", {"what": what})
    assert door.ask(path, body, key=key).status == 0
    assert not (door.folder / "to-die").exists()
    assert door.effects(what) == (when == "after")
    answer = door.until_final(path, body, key)
    assert (answer.status, answer.replayed, door.effects(what)) == (201, when == "after", 1)


# --- exceptions, streams, forms -------------------------------------------------------------------


@shows(Feature.REPLAY)
def test_an_exception_leaves_the_outcome_unknown(door: Door) -> None:
    body, key = {"what": fresh(), "do": "raise"}, fresh()
    first = door.ask("/pay", body, key=key)
    assert first.status in (0, 500)  # the middlewares leave it to the server, and a test client shows it
    assert b"secret" not in first.body
    again = door.ask("/pay", body, key=key)
    assert (again.status, code(again)) == (409, "IDEMPOTENCY_OUTCOME_UNKNOWN")
    assert (door.effects(body["what"]), door.state(key)) == (1, "UNKNOWN")


@shows(Feature.REPLAY)
def test_a_command_without_an_effect_runs_again(door: Door) -> None:
    body, key = {"what": fresh(), "do": "nothing once"}, fresh()
    assert door.ask("/pay", body, key=key).status in (0, 500, 503)
    again = door.ask("/pay", body, key=key)
    assert (again.status, again.replayed) == (201, False)


@shows(Feature.EXCEPTION)
def test_an_exception_turned_into_an_answer_is_not_a_success(door: Door) -> None:
    body, key = {"what": fresh(), "do": "swallow"}, fresh()
    first = door.ask("/pay", body, key=key)
    assert (first.status, PAGE.encode() in first.body) == (200, True)
    assert f"/operations/{door.status(key)['operationId']}" in first.headers["link"]
    again = door.ask("/pay", body, key=key)
    assert (again.status, code(again)) == (409, "IDEMPOTENCY_OUTCOME_UNKNOWN")
    assert (door.effects(body["what"]), door.state(key)) == (1, "UNKNOWN")


@shows(Feature.STREAM)
def test_a_short_stream_is_kept(door: Door) -> None:
    body, key = {"what": fresh()}, fresh()
    first, again = (door.ask("/stream", body, key=key) for _ in range(2))
    assert first.body == b"first second"
    same(first, again)
    assert door.effects(body["what"]) == 1


@shows(Feature.STREAM)
def test_a_long_stream_reaches_its_first_client_whole(door: Door) -> None:
    body, key = {"what": fresh(), "do": "long"}, fresh()
    first, again = (door.ask("/stream", body, key=key) for _ in range(2))
    assert (first.status, len(first.body)) == (201, 6 + 2 * STREAM_BYTES_MAX)
    assert (again.status // 100, again.body == first.body, door.effects(body["what"])) == (4, False, 1), again
    assert door.state(key) == "SUCCEEDED"


@shows(Feature.STREAM)
def test_a_stream_that_breaks_is_not_a_success(door: Door) -> None:
    body, key = {"what": fresh(), "do": "break"}, fresh()
    first = door.ask("/stream", body, key=key)
    assert first.status in (0, 500)
    again = door.ask("/stream", body, key=key)
    assert (again.status, code(again)) == (409, "IDEMPOTENCY_OUTCOME_UNKNOWN")
    assert (door.effects(body["what"]), door.state(key)) == (1, "UNKNOWN")


@shows(Feature.FORM)
def test_a_form_with_a_file_is_compared_by_its_parts(door: Door) -> None:
    what, key = fresh(), fresh()

    def send(boundary: str, content: bytes) -> Answered:
        body, headers = multipart([("what", None, what.encode()), ("file", "a.txt", content)], boundary)
        return door.ask("/upload", body, key=key, content_type=dict(headers)["Content-Type"])

    first = send("one", b"a file's bytes")
    assert (first.status, first.json) == (201, {"bytes": 14})
    same(first, send("another", b"a file's bytes"))
    assert code(send("one", b"other bytes")) == REUSED
    assert door.effects(what) == 1


# --- beside the answer ----------------------------------------------------------------------------


@shows(Feature.STATUS)
def test_the_status_is_only_for_its_caller(door: Door) -> None:
    body, key = {"what": fresh(), "do": "raise"}, fresh()
    door.ask("/pay", body, key=key)
    found = door.status(key)
    assert (found["state"], found["operation"]) == ("UNKNOWN", "pay")
    path = f"/operations/{found['operationId']}"
    assert path in door.ask("/pay", body, key=key).headers["link"]
    assert door.get(path).json == found
    assert door.get(path, caller="bob").status == 404
    assert door.get(path, caller=None).status == 401
    assert door.get("/operations/018f2b7e-4a10-7c3e-9b1a-0c6f5a2d9e41").status == 404


@shows(Feature.BULK)
def test_every_item_has_its_outcome_and_a_retry_gets_the_same_answer(door: Door) -> None:
    items, key = [fresh(), "locked", fresh()], fresh()
    first = door.ask("/approvals", items, key=key)
    assert first.status == 207
    assert [each["state"] for each in first.json["items"]] == ["SUCCEEDED", "FAILED", "SUCCEEDED"]
    same(first, door.ask("/approvals", items, key=key))
    assert code(door.ask("/approvals", items[::-1], key=key)) == REUSED
    assert code(door.ask("/approvals", items)) == "MISSING_IDEMPOTENCY_KEY"
    assert door.ask("/approvals", items, key=fresh(), caller=None).status in (401, 403)
    assert [door.effects(items[0]), door.effects(items[2]), door.state(key)] == [1, 1, "SUCCEEDED"]


@shows(Feature.ACCEPTED)
def test_a_client_that_does_not_wait_gets_a_status_link(door: Door) -> None:
    body, key = {"what": fresh()}, fresh()
    first = door.ask("/ship", body, key=key, Prefer="respond-async")
    assert (first.status, first.headers["preference-applied"]) == (202, "respond-async")
    assert first.json["state"] == "CLAIMED"  # as its status says, until a step that may not be repeated has begun
    link = first.headers["location"]
    await_true(lambda: door.get(link).json["state"] == "SUCCEEDED", "the end of what was accepted")
    ended = door.ask("/ship", body, key=key, Prefer="respond-async")
    assert (ended.status, ended.replayed) == (201, True)
    assert [door.effects(f"{step} {body['what']}") for step in ("charge", "ship")] == [1, 1]


@shows(Feature.IMPORTS)
def test_the_same_file_is_one_import(door: Door) -> None:
    rows = [fresh(), fresh()]
    path, file = "/suppliers/ACME/imports", "\r\n".join(["what", *rows, ""]).encode()
    first = door.ask(path, file, content_type="text/csv")
    assert (first.status, first.headers["semel-import"]) == (202, "created")
    again = door.ask(path, file, content_type="text/csv")
    assert (again.status, again.json["id"]) == (200, first.json["id"])
    job = first.headers["location"]
    await_true(lambda: door.get(job).json["state"] not in ("QUEUED", "RUNNING"), "the import to end")
    assert (door.get(job).json["state"], [door.effects(each) for each in rows]) == ("DONE", [1, 1])
    assert door.ask("/suppliers/BETA/imports", file, content_type="text/csv").status == 403
    assert door.ask(path, file, content_type="text/csv", caller=None).status in (401, 403)


def check_document(shop: Shop, kind: str) -> None:
    """Each command of the shop is described in its document."""
    document = shop.client.document(kind)
    pay = document["paths"]["/pay"]["post"]
    [key] = [each for each in pay["parameters"] if each["name"] == "Idempotency-Key"]
    assert (key["in"], key["required"]) == ("header", True)
    assert {"400", "409", "422"} <= set(pay["responses"])
    assert pay["x-semel"]["operation"] == "pay"
    assert json.dumps(document).count('"x-semel"') >= 7


@shows(Feature.OPENAPI)
def test_the_frameworks_own_document_describes_each_command(shop: Shop) -> None:
    check_document(shop, "own")


@shows(Feature.COMMAND)
def test_semel_openapi_describes_each_command(shop: Shop) -> None:
    check_document(shop, "command")
