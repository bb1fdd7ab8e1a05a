"""One command over HTTP: what runs, what is stored, what leaves. On ASGI and WSGI alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from semel.core.model import AnswerKind, State, Superseded
from semel.core.record import unpack_headers
from semel.errors import EarlyCommit, IdentityMismatch, NothingHappened, SchemaError, StoreTimeout, StoreUnavailable
from semel.http.fingerprint.fingerprinter import Members, Recipe
from semel.http.outage import EVERY_SECONDS, Outage
from semel.http.routing import Operation
from semel.http.settings import HttpSettings
from semel.policy import NEVER_REPLAYED, Policy
from tests.web.conftest import MakeWeb
from tests.web.driving import ALICE, BOB, BODY, KEY, AsgiWeb, Reply, Response, Seen, Web

UNKNOWN = "IDEMPOTENCY_OUTCOME_UNKNOWN"


def link_of(answer: Response) -> str:
    link = answer.link()
    assert link is not None
    assert link.startswith("/operations/")
    return link


def state(web: Web) -> State:
    [record] = web.records()
    return State(record.state)


# --- once, and again ---


def test_a_retry_gets_the_first_answer(web: Web) -> None:
    first, again = web.call(), web.call()
    assert (first.status, first.body, first.replayed) == (201, b"paid", False)
    assert (again.status, again.body, again.replayed) == (201, b"paid", True)
    assert again.header("location") == "/payments/1"
    assert again.header("content-length") == "4"
    assert again.header("cache-control") == "no-store"
    assert len(web.seen) == 1
    assert web.seen[0].body == BODY


@pytest.mark.parametrize("status", [200, 202, 203])
def test_a_replay_has_the_first_status(make_web: MakeWeb, status: int) -> None:
    web = make_web(lambda seen: Reply(status=status))
    first, again = web.call(), web.call()
    assert (first.status, again.status, again.replayed) == (status, status, True)


def test_the_handler_finds_its_permit(web: Web) -> None:
    web.call()
    [record] = web.records()
    permit = web.seen[0].permit
    assert permit.grant.operation_id == record.operation_id
    assert permit.key_for("charge") != permit.key_for("refund")


@pytest.mark.parametrize(
    ("reply", "state", "action"),
    [
        (Reply(), "SUCCEEDED", "new"),
        (Reply(status=422), "FAILED_REPLAYABLE", "new"),
        (Reply(status=401), "FAILED_NOT_REPLAYABLE", "new"),
        (Reply(status=500), "UNKNOWN", "query"),
    ],
)
def test_another_payload_is_refused_with_the_state_of_the_first(
    make_web: MakeWeb, reply: Reply, state: str, action: str
) -> None:
    web = make_web(lambda seen: reply)
    web.call()
    answer = web.call(body=b'{"amount":9}')
    assert (answer.status, answer.code) == (422, "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST")
    [record] = web.records()
    operation = str(UUID(bytes=record.operation_id))
    assert (answer.problem["operationId"], answer.problem["operation"]) == (operation, f"/operations/{operation}")
    assert (answer.problem["state"], answer.problem["keyAction"]) == (state, action)
    assert operation in link_of(answer)
    assert len(web.seen) == 1


def test_another_caller_learns_nothing_about_a_key(make_web: MakeWeb) -> None:
    web = make_web(lambda seen: Reply(status=500))
    web.call()
    other = web.call(body=b'{"amount":9}', caller=BOB)
    assert (other.status, len(web.seen)) == (500, 2)  # it is a command of its own
    assert str(UUID(bytes=web.records()[0].operation_id)) not in str(other)


def test_another_spelling_of_the_same_payload_is_a_retry(web: Web) -> None:
    web.call(body=b'{"a":1,"b":[2,3]}')
    assert web.call(body=b'{ "b": [2, 3],\n"a": 1 }').replayed


@pytest.mark.parametrize("change", [{"query": "dry=1"}, {"headers": [("Content-Type", "text/plain")]}])
def test_every_counted_fact_distinguishes_requests(web: Web, change: dict[str, Any]) -> None:
    web.call()
    assert web.call(**change).status == 422


def test_a_body_in_many_pieces_reaches_the_application_whole(web: Web) -> None:
    pieces = [b"x" * 300_000] * 9
    assert web.call(body=pieces, headers=[("Content-Type", "application/pdf")]).status == 201
    assert web.call(body=b"".join(pieces), headers=[("Content-Type", "application/pdf")]).replayed
    assert web.seen[0].body == b"".join(pieces)


def test_two_callers_never_see_each_other(web: Web) -> None:
    web.handler = lambda seen: Reply(chunks=[f"for call {len(web.seen)}".encode()])
    assert web.call(caller=ALICE).body == b"for call 1"
    other = web.call(caller=BOB, body=b'{"amount":7}')
    assert (other.status, other.body, other.replayed) == (201, b"for call 2", False)
    assert web.call(caller=ALICE).body == b"for call 1"


def test_two_operations_never_see_each_other(make_web: MakeWeb) -> None:
    web = make_web(operations=[Operation("/payments"), Operation("/refunds")])
    assert not web.call(path="/payments").replayed
    assert not web.call(path="/refunds").replayed


def test_a_former_recipe_is_still_recognised(make_web: MakeWeb) -> None:
    old, new = Recipe(), Recipe(body=Members(("amount",)))
    for body in (b'{"amount":1,"note":"x"}', [b'{"amount":1,', b'"note":"x"}']):
        web = make_web(policy=Policy(fingerprint=old))
        web.call(body=body)
        known = HttpSettings(
            engine=web.engine,
            caller=lambda request: ALICE,
            operations=[Operation("/payments", Policy(fingerprint=new, fingerprints_known=(old,)))],
        )
        use(web, known)
        assert web.call(body=body).replayed
        assert web.call(body=b'{"amount":1,"note":"y"}').status == 422
        use(web, HttpSettings(engine=web.engine, caller=lambda request: ALICE, operations=[forgetful(new)]))
        assert web.call(body=body).code == "IDEMPOTENCY_RECORD_UNREADABLE"
        assert len(web.seen) == 1


def forgetful(recipe: Recipe) -> Operation:
    return Operation("/payments", Policy(fingerprint=recipe))


def use(web: Any, surface: HttpSettings) -> None:
    web.middleware.surface = surface
    if isinstance(web, AsgiWeb):
        web.middleware._exact = surface.routes.exact


# --- what is stored ---


def test_no_session_and_no_credential_reaches_the_store(make_web: MakeWeb) -> None:
    canary = "canary-7f3a"
    never = [(name.decode(), canary) for name in sorted(NEVER_REPLAYED - {b"content-length"})]
    own = [("Set-Cookie", canary), ("X-Request-Id", canary), ("Content-Type", "text/plain"), ("ETag", '"1, 2"')]
    web = make_web(lambda seen: Reply(headers=[*own, *never, ("Vary", f"a\r\nX: {canary}")]))
    first, again = web.call(), web.call()
    assert {name.lower() for name, _ in first.headers} >= {name for name, _ in never}  # the first caller gets all
    [record] = web.records()
    assert canary.encode() not in record.headers
    assert unpack_headers(record.headers) == ((b"content-type", b"text/plain"), (b"etag", b'"1, 2"'))
    names = [name for name, _ in again.headers]
    added = ["cache-control", "idempotency-key-lifetime", "idempotency-replayed", "link"]
    assert sorted(names) == sorted([*added, "content-length", "content-type", "etag"])


def test_a_policy_may_store_more_headers(make_web: MakeWeb) -> None:
    reply = Reply(headers=[("X-Total", "3"), ("Cache-Control", "private, max-age=5")])
    web = make_web(lambda seen: reply, policy=Policy(replay_headers=frozenset({"X-Total", "cache-control"})))
    web.call()
    again = web.call()
    assert (again.header("x-total"), again.header("cache-control")) == ("3", "private, max-age=5")


def test_an_answer_without_a_body_is_replayed_so(make_web: MakeWeb) -> None:
    web = make_web(lambda seen: Reply(status=204, headers=[], chunks=[b"not for the client"]))
    for answer in (web.call(), web.call()):
        assert (answer.status, answer.body, answer.header("content-length")) == (204, b"", None)


# --- failures ---


@pytest.mark.parametrize("status", [400, 404, 409, 410, 422])
def test_a_definite_refusal_is_replayed(make_web: MakeWeb, status: int) -> None:
    web = make_web(lambda seen: Reply(status=status, chunks=[b"no"]))
    assert web.call().status == status
    again = web.call()
    assert (again.status, again.body, again.replayed) == (status, b"no", True)
    assert state(web) is State.FAILED_REPLAYABLE


@pytest.mark.parametrize("status", [401, 403, 408, 425, 429])
def test_a_temporary_refusal_status_frees_the_key(make_web: MakeWeb, status: int) -> None:
    replies = iter([Reply(status=status), Reply()])
    web = make_web(lambda seen: next(replies), policy=Policy(marks_effects=True))
    assert web.call().status == status
    assert web.call().status == 201
    assert len(web.seen) == 2


def test_a_failed_external_command_is_unknown_and_links_to_its_status(make_web: MakeWeb) -> None:
    web = make_web(lambda seen: Reply(status=502, headers=[("Set-Cookie", "a=b")], chunks=[b"upstream"]))
    first = web.call()
    assert (first.status, first.body, first.header("set-cookie")) == (502, b"upstream", "a=b")
    again = web.call()
    assert (again.status, again.code) == (409, UNKNOWN)
    assert link_of(first) == link_of(again)
    assert again.problem["operation"] in link_of(again)
    assert again.problem["retryable"] is False
    assert again.header("retry-after") is None
    assert len(web.seen) == 1


def test_an_exception_after_the_answer_is_not_a_success(make_web: MakeWeb) -> None:
    web = make_web(lambda seen: Reply(error=ValueError("the commit failed")))
    with pytest.raises(ValueError, match="the commit failed"):
        web.call()
    assert web.call().code == UNKNOWN


def test_an_exception_that_proves_that_nothing_happened_frees_the_key(make_web: MakeWeb) -> None:
    replies = iter([Reply(error=NothingHappened("refused")), Reply()])
    web = make_web(lambda seen: next(replies))
    with pytest.raises(NothingHappened):
        web.call()
    assert web.call().status == 201


def test_an_idempotent_command_runs_again_with_the_same_derived_keys(make_web: MakeWeb) -> None:
    replies = iter([Reply(error=ValueError("broken")), Reply(status=503), Reply()])
    web = make_web(lambda seen: next(replies), policy=Policy(effects="idempotent"))
    with pytest.raises(ValueError, match="broken"):
        web.call()
    assert web.call().status == 503
    assert web.call().status == 201
    assert len({seen.permit.key_for("charge") for seen in web.seen}) == 1


def test_a_stored_error_is_replayed_where_declared(make_web: MakeWeb) -> None:
    web = make_web(lambda seen: Reply(status=500, chunks=[b"broken"]), policy=Policy(on_error="replay"))
    first, again = web.call(), web.call()
    assert (first.status, again.status, again.body, again.replayed) == (500, 500, b"broken", True)
    assert link_of(first) == link_of(again)


def test_a_success_is_never_the_stored_error_of_an_exception(make_web: MakeWeb) -> None:
    web = make_web(lambda seen: Reply(error=ValueError("broken")), policy=Policy(on_error="replay"))
    with pytest.raises(ValueError, match="broken"):
        web.call()
    assert web.call().code == UNKNOWN


# --- answers that cannot be held ---


@pytest.mark.parametrize(
    "reply",
    [
        Reply(chunks=[b"x" * 60, b"y" * 60, b"", b"z" * 60]),
        Reply(chunks=[b"x" * 180], headers=[("Content-Length", "180")]),
        Reply(chunks=[b"data: 1\n\n", b"data: 2\n\n"], headers=[("Content-Type", "text/event-stream; charset=utf-8")]),
    ],
    ids=["long", "announced", "endless"],
)
def test_a_long_answer_reaches_its_first_caller_whole_and_is_never_run_again(make_web: MakeWeb, reply: Reply) -> None:
    web = make_web(policy=Policy(answer_bytes_max=100))
    marks: list[tuple[State, AnswerKind]] = []

    def handler(seen: Seen) -> Reply:
        def chunks() -> Any:
            for chunk in list(reply.chunks):
                yield chunk
                [record] = web.records()
                marks.append((State(record.state), AnswerKind(record.answer_kind)))

        return Reply(headers=reply.headers, chunks=chunks())

    web.handler = handler
    first = web.call()
    assert (first.status, first.body, first.replayed) == (201, b"".join(reply.chunks), False)
    assert (State.PROCESSING, AnswerKind.NOT_KEPT) in marks  # it stays open while it streams
    assert state(web) is State.SUCCEEDED
    again = web.call()
    assert (again.status, again.code) == (409, "IDEMPOTENCY_RESPONSE_NOT_REPLAYABLE")
    assert again.problem["keyAction"] == "query"
    link_of(again)
    assert len(web.seen) == 1


def test_a_streamed_answer_that_breaks_is_unknown(make_web: MakeWeb) -> None:
    web = make_web(
        lambda seen: Reply(chunks=[b"x" * 200], error=ValueError("mid-stream")), Policy(answer_bytes_max=100)
    )
    with pytest.raises(ValueError, match="mid-stream"):
        web.call()
    assert web.call().code == UNKNOWN


def test_a_long_answer_whose_mark_fails_is_not_sent(make_web: MakeWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    web = make_web(lambda seen: Reply(chunks=[b"x" * 200]), Policy(answer_bytes_max=100))
    monkeypatch.setattr(web.engine.backend.store, "mark_not_kept", raising(StoreUnavailable("down")), raising=False)
    first = web.call()
    assert first.code == "IDEMPOTENCY_RESPONSE_NOT_REPLAYABLE"
    assert state(web) is State.SUCCEEDED


# --- the store fails ---


def raising(error: Exception) -> Callable[..., Any]:
    def raise_it(*_: object, **__: object) -> Any:
        raise error

    return raise_it


def not_at_once(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every settlement goes through the engine's verb."""
    monkeypatch.setattr(web.engine.core, "succeed_at_once", lambda *_: False)


def failing(web: Web, monkeypatch: pytest.MonkeyPatch, verb: str, error: Exception) -> None:
    async def raise_later(*_: object, **__: object) -> Any:
        raise error

    not_at_once(web, monkeypatch)
    if isinstance(web, AsgiWeb):
        monkeypatch.setattr(web.engine, verb, raise_later)
    else:  # which claims into a hold of its own
        monkeypatch.setattr(web.engine, "_claim_into" if verb == "claim" else verb, raising(error))


def answering(web: Web, monkeypatch: pytest.MonkeyPatch, verb: str, value: object) -> None:
    async def answer_later(*_: object, **__: object) -> Any:
        return value

    not_at_once(web, monkeypatch)
    monkeypatch.setattr(web.engine, verb, answer_later if isinstance(web, AsgiWeb) else lambda *_, **__: value)


@pytest.mark.parametrize("kind", [StoreUnavailable, StoreTimeout, SchemaError, IdentityMismatch])
def test_without_a_store_nothing_runs_and_the_reason_is_logged(
    web: Web, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: type[Exception]
) -> None:
    failing(web, monkeypatch, "claim", kind("host=db.internal: start it"))
    for _ in range(3):
        answer = web.call()
        assert (answer.status, answer.code) == (503, "IDEMPOTENCY_STORE_UNAVAILABLE")
        assert 1 <= answer.problem["retryAfter"] <= 5
        assert b"internal" not in answer.body
    assert web.seen == []
    [line] = [each.getMessage() for each in caplog.records if each.name == "semel"]
    assert line.endswith(": host=db.internal: start it")


def test_the_log_repeats_an_outage_after_a_while() -> None:
    now = [0.0]
    outage = Outage(lambda: now[0])
    told = []
    for now[0] in (0, 1, EVERY_SECONDS - 0.1, EVERY_SECONDS, EVERY_SECONDS + 1):
        told.append(outage.tell(StoreUnavailable("away")))
    assert told == [True, False, False, True, False]


@pytest.mark.parametrize("body", [BODY, [b'{"amount"', b":1250}"]])
def test_a_command_declared_so_runs_unprotected_and_is_marked(
    make_web: MakeWeb, monkeypatch: pytest.MonkeyPatch, body: Any
) -> None:
    web = make_web(policy=Policy(on_unprotected="mark"))
    failing(web, monkeypatch, "claim", StoreUnavailable("down"))
    answer = web.call(body=body)
    assert (answer.status, answer.header("semel-unprotected")) == (201, "store-unavailable")
    assert web.seen[0].body == BODY
    anonymous = web.call(caller=None)
    assert (anonymous.status, anonymous.header("semel-unprotected")) == (201, "no-caller")
    assert web.counting.counts["unprotected", ("POST /payments", "store-unavailable")] == web.is_observed
    assert web.counting.counts["unprotected", ("POST /payments", "no-caller")] == web.is_observed


@pytest.mark.parametrize("status", [201, 422, 401])
@pytest.mark.parametrize("error", [StoreTimeout("not confirmed"), StoreUnavailable("down"), EarlyCommit("early")])
def test_an_unconfirmed_commit_is_not_reported_as_done(
    make_web: MakeWeb, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    web = make_web(lambda seen: Reply(status=status, chunks=[b"told"]))
    failing(web, monkeypatch, "settle", error)
    answer = web.call()
    assert (answer.status, answer.code) == (409, UNKNOWN)
    assert b"told" not in answer.body
    link_of(answer)


def test_an_applications_own_error_needs_no_confirmation(make_web: MakeWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    web = make_web(lambda seen: Reply(status=500, chunks=[b"broken"]))
    failing(web, monkeypatch, "settle", StoreTimeout("not confirmed"))
    answer = web.call()
    assert (answer.status, answer.body) == (500, b"broken")
    link_of(answer)


def test_a_superseded_holder_sends_the_settled_answer(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    web.call(key="another-key-1")
    winner = web.records()[0]
    answering(web, monkeypatch, "settle", Superseded(State.SUCCEEDED))
    permit = web.seen[0].permit
    web.handler = lambda seen: Reply(chunks=[b"the loser's"])
    reread = web.engine.reread

    def reread_winner(_: object) -> Any:
        return reread(permit)

    monkeypatch.setattr(web.engine, "reread", reread_winner)
    answer = web.call()
    assert (answer.status, answer.body, answer.replayed) == (201, b"paid", True)
    assert winner.operation_id != web.seen[1].permit.grant.operation_id


def test_a_superseded_holder_without_a_settled_answer_sends_unknown(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(web, monkeypatch, "settle", Superseded(None))
    assert web.call().code == UNKNOWN  # read again it is still ours: its outcome is unknown


# --- what is not protected ---


def test_a_request_without_its_optional_key_is_counted(make_web: MakeWeb) -> None:
    web = make_web(policy=Policy(key="optional"))
    assert web.call(key=None, caller=None).status == 201
    assert web.counting.counts["unprotected", ("POST /payments", "no-key")] == web.is_observed
    assert web.call().status == 201
    assert web.call().replayed


def test_a_key_without_an_operation_is_counted(web: Web) -> None:
    assert web.call(path="/elsewhere").status == 201
    assert web.counting.counts["unprotected", ("POST *", "no-operation")] == web.is_observed
    web.call(path="/elsewhere", key=None)
    web.call(path="/elsewhere", method="GET")
    assert web.counting.total("unprotected") == web.is_observed


def test_the_default_policy_protects_every_request_with_a_key(make_web: MakeWeb) -> None:
    web = make_web(operations=[], default=Policy())
    assert web.call(path="/a/1").status == 201
    assert web.call(path="/a/1").replayed
    assert web.call(path="/a/2").status == 422  # without a template the path is part of the request
    assert web.call(path="/a/1", method="PATCH").replayed is False
    assert web.call(path="/a/1", key=None, caller=None).status == 201
    assert web.counting.counts["unprotected", ("POST *", "no-key")] == web.is_observed
    assert {record.operation for record in web.records()} == {"POST *", "PATCH *"}


def test_names_of_headers_can_be_changed(make_web: MakeWeb) -> None:
    web = make_web(key_header="X-Once", replayed_header="X-Again")
    assert web.call(key=None, headers=[("X-Once", KEY)]).status == 201
    assert web.call(key=None, headers=[("X-Once", KEY)]).header("x-again") == "true"
    assert web.call().code == "MISSING_IDEMPOTENCY_KEY"
