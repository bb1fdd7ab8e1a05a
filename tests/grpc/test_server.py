"""A declared unary method happens once for each key, on both servers of gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo, RequestInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode as Code

from semel import AsyncEngine, Engine, Policy, errors
from semel.errors import ConfigurationError, PolicyError, StoreTimeout
from semel.http.refused import RefusedCall
from semel.integrations.grpc import AsyncSemelInterceptor, Rpc, SemelInterceptor, permit_of, single_caller
from semel.integrations.grpc.context import CapturedContext
from semel.integrations.grpc.rpc import declare
from semel.integrations.grpc.server import _call
from semel.integrations.grpc.status import RpcEnd, refuse, retry_delay
from tests.grpc.conftest import METHOD, OTHER, STREAM, Service, trailing

Serve = Callable[..., Service]


def reason(call: Any) -> tuple[str, dict[str, str], bool]:
    """What the details of an error say: the reason, its members, and whether a retry is asked for."""
    status = Status.FromString(trailing(call)["grpc-status-details-bin"])
    info, retries = ErrorInfo(), False
    for detail in status.details:
        if detail.Is(ErrorInfo.DESCRIPTOR):
            detail.Unpack(info)
        retries = retries or detail.Is(RetryInfo.DESCRIPTOR)
    return info.reason, dict(info.metadata), retries


def ends(code: Code, text: str = "no") -> Callable[[RequestInfo, Any], Any]:
    """A method that ends its call with a code, in the way of its server."""
    return lambda request, context: context.abort(code, text)


def test_a_retry_gets_the_first_response_and_nothing_happens_again(serve: Serve) -> None:
    service = serve()
    first, second = service.send(), service.send()
    assert first.result() == second.result() == Status(message="paid one")
    assert len(service.seen) == 1
    assert "idempotency-replayed" not in trailing(first)
    assert trailing(second)["idempotency-replayed"] == "true"
    assert trailing(first)["semel-operation"] == trailing(second)["semel-operation"]


def test_key_caller_and_method_distinguish_commands(serve: Serve) -> None:
    service = serve(operations={METHOD: Policy(), OTHER: Policy()})
    calls = [
        service.send("one"),
        service.send("two", key="another-key-of-alice"),
        service.send("three", account="bob"),
        service.send("four", method=OTHER),
    ]
    assert [call.result().message for call in calls] == ["paid one", "paid two", "paid three", "paid four"]


def test_a_reused_key_is_refused_with_the_state_of_the_first(serve: Serve) -> None:
    service = serve()
    first = service.send("one")
    call = service.send("two")
    assert call.code() is Code.FAILED_PRECONDITION
    said, members, retries = reason(call)
    assert said == "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"
    assert members == {
        "keyAction": "new",
        "state": "SUCCEEDED",
        "operationId": trailing(first)["semel-operation"],
    }
    assert not retries
    assert len(service.seen) == 1


@pytest.mark.parametrize(
    ("key", "said"),
    [(None, "MISSING_IDEMPOTENCY_KEY"), ("", "INVALID_IDEMPOTENCY_KEY"), ("a b", "INVALID_IDEMPOTENCY_KEY")],
)
def test_a_call_without_a_sound_key_does_nothing(serve: Serve, key: str | None, said: str) -> None:
    service = serve()
    call = service.send(key=key)
    assert (call.code(), reason(call)[0], service.seen) == (Code.INVALID_ARGUMENT, said, [])


def test_two_keys_in_one_call_are_refused(serve: Serve) -> None:
    service = serve()
    call = service.send(more=(("idempotency-key", "another-key-of-alice"),))
    assert (call.code(), service.seen) == (Code.INVALID_ARGUMENT, [])


def test_a_call_without_a_caller_does_nothing(serve: Serve) -> None:
    service = serve()
    call = service.send(account=None)
    assert (call.code(), reason(call)[0], service.seen) == (
        Code.UNAUTHENTICATED,
        "IDEMPOTENCY_CALLER_UNKNOWN",
        [],
    )


def test_without_its_optional_key_a_call_runs_each_time(serve: Serve) -> None:
    service = serve(operations={METHOD: Policy(key="optional")})
    assert [service.send(key=None).code() for _ in range(2)] == [Code.OK, Code.OK]
    assert len(service.seen) == 2


def test_an_undeclared_method_passes_unchanged(serve: Serve) -> None:
    service = serve()
    assert [service.send(method=OTHER).code() for _ in range(2)] == [Code.OK, Code.OK]
    assert len(service.seen) == 2


def test_the_key_may_be_a_field_of_the_request(serve: Serve) -> None:
    service = serve(operations={METHOD: Rpc(policy=Policy(), key_field="request_id")})
    calls = [service.send(key=None, request_id="a-request-id-of-alice") for _ in range(2)]
    assert [call.code() for call in calls] == [Code.OK, Code.OK]
    assert len(service.seen) == 1
    empty = service.send(key="ignored-in-metadata", request_id="")
    assert (empty.code(), reason(empty)[0]) == (Code.INVALID_ARGUMENT, "MISSING_IDEMPOTENCY_KEY")


def test_counted_metadata_distinguishes_requests(serve: Serve) -> None:
    service = serve(operations={METHOD: Rpc(policy=Policy(), counts=("region",))})
    sent = [service.send(more=(("region", where),)).code() for where in ("eu", "eu", "us")]
    assert sent == [Code.OK, Code.OK, Code.FAILED_PRECONDITION]


def test_twenty_calls_at_once_have_one_effect(serve: Serve, colour: str) -> None:
    threads: dict[str, int] = {"waiters_max": 20} if colour == "sync" else {}
    service = serve(operations={METHOD: Policy(wait_seconds=10)}, threads=32, **threads)
    with ThreadPoolExecutor(20) as pool:
        calls = list(pool.map(lambda _: service.send(), range(20)))
    assert {call.code() for call in calls} == {Code.OK}
    assert len(service.seen) == 1
    assert sum("idempotency-replayed" not in trailing(call) for call in calls) == 1


def test_a_running_command_is_aborted_with_the_time_to_retry_after(serve: Serve, colour: str) -> None:
    entered, go = threading.Event(), threading.Event()

    def method(request: RequestInfo, context: Any) -> Any:
        if colour == "sync":
            entered.set()
            assert go.wait(20)
            return Status(message="late")

        async def waits() -> Status:
            import asyncio

            entered.set()
            assert await asyncio.to_thread(go.wait, 20)
            return Status(message="late")

        return waits()

    service = serve(method)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(service.send)
        assert entered.wait(20)
        call = service.send()
        go.set()
        assert first.result(20).result().message == "late"
    assert call.code() is Code.ABORTED
    said, members, retries = reason(call)
    assert (said, members["keyAction"], retries) == ("IDEMPOTENCY_REQUEST_IN_PROGRESS", "keep", True)
    assert retry_delay(call.trailing_metadata()) == 1  # of the lease 30 s are left


# --- what an end means ---------------------------------------------------------------------------


@pytest.mark.parametrize("code", [Code.NOT_FOUND, Code.FAILED_PRECONDITION, Code.ALREADY_EXISTS])
def test_a_definite_refusal_is_replayed_with_its_code_and_text(serve: Serve, code: Code) -> None:
    service = serve(ends(code, "out of stock ü"))
    calls = [service.send() for _ in range(2)]
    assert [(call.code(), call.details()) for call in calls] == [(code, "out of stock ü")] * 2
    assert len(service.seen) == 1
    assert trailing(calls[1])["idempotency-replayed"] == "true"


@pytest.mark.parametrize("code", [Code.PERMISSION_DENIED, Code.UNAUTHENTICATED, Code.RESOURCE_EXHAUSTED])
def test_a_temporary_refusal_frees_the_key(serve: Serve, code: Code) -> None:
    service = serve(ends(code))
    assert [service.send().code() for _ in range(2)] == [code, code]
    assert len(service.seen) == 2


@pytest.mark.parametrize("code", [Code.UNAVAILABLE, Code.CANCELLED, Code.INTERNAL, Code.DEADLINE_EXCEEDED])
def test_an_ambiguous_code_is_unknown(serve: Serve, code: Code) -> None:
    service = serve(ends(code))
    assert service.send().code() is code
    call = service.send()
    assert (call.code(), reason(call)[0]) == (Code.FAILED_PRECONDITION, "IDEMPOTENCY_OUTCOME_UNKNOWN")
    assert len(service.seen) == 1


def test_an_exception_is_unknown_and_reaches_the_first_caller_unchanged(serve: Serve) -> None:
    def method(request: RequestInfo, context: Any) -> Any:
        raise RuntimeError("the provider went away")

    service = serve(method)
    assert service.send().code() is Code.UNKNOWN
    assert reason(service.send())[0] == "IDEMPOTENCY_OUTCOME_UNKNOWN"
    assert len(service.seen) == 1


def test_a_code_that_is_set_without_abort_counts_too(serve: Serve) -> None:
    def method(request: RequestInfo, context: Any) -> Any:
        context.set_code(Code.NOT_FOUND)
        context.set_details("no such order")
        return Status()

    service = serve(method)
    assert [(call.code(), call.details()) for call in (service.send(), service.send())] == [
        (Code.NOT_FOUND, "no such order")
    ] * 2
    assert len(service.seen) == 1


def test_a_caught_abort_still_ends_the_call(serve: Serve) -> None:
    def method(request: RequestInfo, context: Any) -> Any:
        def answer_anyway() -> Status:
            return Status(message="as if nothing had been")

        try:
            made = context.abort(Code.NOT_FOUND, "gone")
        except Exception:  # noqa: BLE001 - what a broad handler does
            return answer_anyway()

        async def awaits() -> Status:
            with contextlib.suppress(Exception):  # what a broad handler does
                await made
            return answer_anyway()

        return awaits() if inspect.isawaitable(made) else answer_anyway()

    service = serve(method)
    assert [service.send().code() for _ in range(2)] == [Code.NOT_FOUND, Code.NOT_FOUND]


def test_only_named_trailing_metadata_is_stored(serve: Serve) -> None:
    def method(request: RequestInfo, context: Any) -> Any:
        context.set_trailing_metadata((("receipt", "r-1"), ("trace-bin", b"\x00\xff"), ("secret", "s")))
        return Status(message="paid")

    service = serve(method, operations={METHOD: Policy(replay_headers=frozenset({"receipt", "trace-bin"}))})
    first, second = trailing(service.send()), trailing(service.send())
    assert (first["receipt"], first["trace-bin"], first["secret"]) == ("r-1", b"\x00\xff", "s")
    assert (second["receipt"], second["trace-bin"], second.get("secret")) == ("r-1", b"\x00\xff", None)


def test_an_answer_that_is_too_long_is_sent_once_and_never_again(serve: Serve) -> None:
    service = serve(operations={METHOD: Policy(answer_bytes_max=1024)})
    long = "x" * 2000
    assert service.send(long).result().message == f"paid {long}"
    call = service.send(long)
    assert (call.code(), reason(call)[0]) == (Code.FAILED_PRECONDITION, "IDEMPOTENCY_RESPONSE_NOT_REPLAYABLE")
    assert len(service.seen) == 1


def test_a_request_that_is_too_long_does_nothing(serve: Serve) -> None:
    service = serve(operations={METHOD: Policy(body_bytes_max=1024)})
    call = service.send("x" * 2000)
    assert (call.code(), reason(call)[0]) == (Code.INVALID_ARGUMENT, "IDEMPOTENCY_REQUEST_TOO_LARGE")
    assert service.seen == []


def test_a_forgotten_answer_is_sent_once(serve: Serve) -> None:
    service = serve(operations={METHOD: Policy(answers="forget")})
    assert service.send().result() == Status(message="paid one")
    assert reason(service.send())[0] == "IDEMPOTENCY_RESPONSE_NOT_REPLAYABLE"
    assert len(service.seen) == 1


@pytest.mark.parametrize("made", [None, "no message"])
def test_an_invalid_response_leaves_a_doubt_and_is_not_repeated(serve: Serve, made: Any) -> None:
    """The method ran: what it returns cannot be sent, and whether it had its effect is not known."""
    service = serve(lambda request, context: made)
    assert service.send().code() is Code.UNKNOWN
    assert reason(service.send())[0] == "IDEMPOTENCY_OUTCOME_UNKNOWN"
    assert len(service.seen) == 1


def test_an_unparsable_request_claims_nothing(serve: Serve) -> None:
    service = serve()
    stub = service.channel.unary_unary(METHOD, None, Status.FromString)
    metadata = (("idempotency-key", "8e03978e-40d5-43dd-bc93-6894a57f9324"), ("account", "alice"))
    call = stub.future(b"\xff\xff", timeout=20, metadata=metadata)
    assert call.code() is not Code.OK
    assert service.send().code() is Code.OK
    assert len(service.seen) == 1


# --- the permit, and rows in the same commit ------------------------------------------------------


def test_a_method_reaches_its_permit(serve: Serve) -> None:
    def method(request: RequestInfo, context: Any) -> Any:
        return Status(message=permit_of(context).key_for("charge"))

    service = serve(method)
    assert service.send().result().message == service.send().result().message != ""


def test_a_method_without_protection_has_no_permit() -> None:
    with pytest.raises(ConfigurationError, match="declare its method"):
        permit_of(object())


@pytest.mark.parametrize("refuses", [False, True])
def test_rows_and_record_are_committed_together_or_not_at_all(serve: Serve, tmp_path: Path, refuses: bool) -> None:
    file = tmp_path / "shop.db"
    with sqlite3.connect(file) as made:
        made.execute("CREATE TABLE effect (n integer)")
    made.close()

    def method(request: RequestInfo, context: Any) -> Any:
        permit_of(context).connection.execute("INSERT INTO effect VALUES (1)")
        if refuses:
            return context.abort(Code.FAILED_PRECONDITION, "out of stock")
        return Status(message="paid")

    service = serve(method, f"sqlite:///{file}", operations={METHOD: Policy(effects="atomic")})
    calls = [service.send() for _ in range(3)]
    assert {call.code() for call in calls} == {Code.FAILED_PRECONDITION if refuses else Code.OK}
    reading = sqlite3.connect(file)
    assert reading.execute("SELECT count(*) FROM effect").fetchone() == (0 if refuses else 1,)
    reading.close()
    assert len(service.seen) == 1


def test_a_refused_commit_is_the_methods_failure_not_an_outage(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    with sqlite3.connect(file) as made:
        made.execute("CREATE TABLE effect (n INTEGER UNIQUE)")
        made.execute("INSERT INTO effect VALUES (1)")
    made.close()

    def method(request: RequestInfo, context: Any) -> Any:
        with contextlib.suppress(sqlite3.IntegrityError):
            permit_of(context).connection.execute("INSERT OR ROLLBACK INTO effect VALUES (1)")
        return Status(message="paid")

    service = serve(method, f"sqlite:///{file}", operations={METHOD: Policy(effects="atomic")})
    calls = [service.send() for _ in range(2)]
    assert [call.code() for call in calls] == [Code.UNKNOWN, Code.UNKNOWN]  # as of any exception: no client retries it
    assert all("nothing of it remains, and the key is free" in call.details() for call in calls)
    assert len(service.seen) == 2  # nothing of the first one remained


def test_waiting_calls_leave_threads_for_others() -> None:
    begun, go = threading.Event(), threading.Event()

    def method(request: RequestInfo, context: Any) -> Any:
        begun.set()
        assert go.wait(20)
        return Status(message="paid")

    operations = {METHOD: Policy(wait_seconds=20)}
    with Service("sync", "memory://", operations=operations) as service, ThreadPoolExecutor(8) as pool:
        service.methods[METHOD] = method
        running = pool.submit(service.send)
        assert begun.wait(20)
        waiting = [pool.submit(service.send) for _ in range(7)]  # as many as the server has threads beside
        refused = wait(waiting, 10, return_when=FIRST_COMPLETED).done
        go.set()
        assert {call.result().code() for call in refused} == {Code.ABORTED}
        assert {call.result().code() for call in waiting} == {Code.ABORTED, Code.OK}
        assert running.result().result() == Status(message="paid")


def test_unstored_trailing_metadata_is_reported_once_with_the_remedy(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    def method(request: RequestInfo, context: Any) -> Any:
        context.set_trailing_metadata((("receipt", "r-1"), ("kept", "yes")))
        return Status(message="paid")

    service = serve(method, operations={METHOD: Policy(replay_headers=frozenset({"kept"}))})
    for key in ("one-intent", "another-intent"):
        assert service.send(key=key).code() is Code.OK
    [told] = [each.getMessage() for each in caplog.records if "replay_headers" in each.getMessage()]
    assert "the first caller gets the trailing metadata 'receipt', and replays do not" in told


# --- deadlines -------------------------------------------------------------------------------------


def test_the_clients_deadline_ends_neither_the_effect_nor_its_answer(serve: Serve, colour: str) -> None:
    go = threading.Event()

    def method(request: RequestInfo, context: Any) -> Any:
        if colour == "sync":
            assert go.wait(20)
            return Status(message="paid late")

        async def waits() -> Status:
            import asyncio

            assert await asyncio.to_thread(go.wait, 20)
            return Status(message="paid late")

        return waits()

    service = serve(method, operations={METHOD: Policy(wait_seconds=20)})
    assert service.send(timeout=0.3).code() is Code.DEADLINE_EXCEEDED
    with ThreadPoolExecutor(1) as pool:
        retry = pool.submit(service.send)
        go.set()
        assert retry.result(20).result().message == "paid late"
    assert len(service.seen) == 1


@pytest.mark.parametrize(("left", "waits"), [(None, 30), (2.0, 1.6), (0.0, 0.0), (-1.0, 0.0), (float("inf"), 30)])
def test_a_duplicate_waits_less_than_its_client(left: float | None, waits: float) -> None:
    policy = Policy(wait_seconds=30)
    declared = declare({METHOD: policy}, Engine.connect("memory://"), single_caller, ())[METHOD]
    assert declared.wait_seconds(left) == pytest.approx(waits)


# --- what is refused where it is declared ----------------------------------------------------------


def test_a_streaming_method_is_refused(serve: Serve) -> None:
    service = serve(operations={STREAM: Policy()})
    stub = service.channel.unary_stream(STREAM, RequestInfo.SerializeToString, Status.FromString)
    with pytest.raises(grpc.RpcError) as caught:
        list(stub(RequestInfo(), timeout=20))
    assert caught.value.code() is Code.UNIMPLEMENTED


class Described:
    """A service's descriptor, as protobuf has them."""

    full_name = "shop.Pay"

    class _Method:
        def __init__(self, name: str, streams: bool) -> None:
            self.name = name
            self.client_streaming = False
            self.server_streaming = streams
            self.input_type = RequestInfo.DESCRIPTOR

    methods = (_Method("Create", False), _Method("Watch", True))


@pytest.mark.parametrize(
    ("operations", "said"),
    [
        ({STREAM: Policy()}, "streams"),
        ({"/shop.Pay/Craete": Policy()}, "not a method of the services"),
        ({"shop.Pay/Create": Policy()}, "is not a method; write its path"),
        ({METHOD: Rpc(policy=Policy(), key_field="id")}, "has no field 'id'"),
        ({METHOD: Policy(effects="atomic")}, "memory"),
    ],
)
def test_a_wrong_declaration_is_refused_at_once(operations: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        SemelInterceptor(
            Engine.connect("memory://"), caller=single_caller, operations=operations, services=(Described(),)
        )


def test_a_caller_function_is_required() -> None:
    with pytest.raises(ConfigurationError, match="caller= is missing"):
        SemelInterceptor(Engine.connect("memory://"), operations={METHOD: Policy()})


def test_each_server_has_its_engine() -> None:
    plain: Any = Engine.connect("memory://")
    looped: Any = AsyncEngine.connect("memory://")
    with pytest.raises(ConfigurationError, match="needs an Engine"):
        SemelInterceptor(looped, caller=single_caller, operations={METHOD: Policy()})
    with pytest.raises(ConfigurationError, match="needs an AsyncEngine"):
        AsyncSemelInterceptor(plain, caller=single_caller, operations={METHOD: Policy()})


def test_two_methods_with_one_name_are_refused() -> None:
    one = Rpc(policy=Policy(), name="pay")
    with pytest.raises(ConfigurationError, match="both named 'pay'"):
        SemelInterceptor(Engine.connect("memory://"), caller=single_caller, operations={METHOD: one, OTHER: one})


@pytest.mark.parametrize(
    "options", [{"key_from": "body:/id"}, {"redact": ("card",)}, {"json": "any"}, {"counts": ("if-match",)}]
)
def test_options_of_http_are_refused_with_what_to_do_instead(options: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match="is for HTTP operations"):
        Rpc(policy=Policy(**options))


def test_metadata_of_grpcs_own_cannot_be_named() -> None:
    with pytest.raises(PolicyError, match="gRPC handles its own metadata"):
        Rpc(policy=Policy(replay_headers=frozenset({"grpc-status"})))


def test_an_unconfirmed_commit_is_not_reported_as_nothing_done() -> None:
    before, after = (refuse(StoreTimeout("db1 is silent"), maybe_done=done) for done in (False, True))

    assert before is not None
    assert after is not None
    assert (before.code, after.code) == (Code.UNAVAILABLE, Code.UNAVAILABLE)
    assert before.details.startswith("Nothing was done.")
    assert after.details.startswith("The commit was not confirmed: all of it was done, or nothing.")


@pytest.mark.parametrize("kind", [each for each in vars(errors).values() if isinstance(each, type)])
def test_every_refusal_has_a_code_of_grpcs(kind: type) -> None:
    if issubclass(kind, errors.SemelError):
        error = kind.__new__(kind)
        Exception.__init__(error, "why")

        assert (refuse(error) is None) is (RefusedCall.of(error) is None)


def test_bytes_in_text_metadata_are_replayed_unchanged() -> None:
    end = RpcEnd(Code.OK, "", (("receipt", b"\xff\xfe"),), b"body")
    assert RpcEnd.of_answer(end.answer(frozenset({"receipt"}))) == end


def test_an_object_with_an_async_call_method_is_awaited() -> None:
    class Method:
        async def __call__(self, request: RequestInfo, context: Any) -> Status:
            return Status(message=f"paid {request.serving_data}")

    assert asyncio.run(_call(Method(), RequestInfo(serving_data="one"), None)) == Status(message="paid one")


@pytest.mark.parametrize("code", list(Code))
def test_every_code_can_be_stored_and_sent_again(code: Code) -> None:
    end = RpcEnd(code, "" if code is Code.OK else "a text", (("a", "b"),), b"body" if code is Code.OK else b"")
    assert RpcEnd.of_answer(end.answer(frozenset({"a"}))) == end


def test_a_number_as_code_and_details_that_are_no_text_are_kept_as_an_answer() -> None:
    context = CapturedContext(None, None)  # type: ignore[arg-type]  # neither is asked for how a call ends
    context.set_code(5)
    context.set_details(b"gone")  # type: ignore[arg-type]  # and bytes
    answer = context.end(b"").answer(frozenset())
    assert answer.status == 404
    assert RpcEnd.of_answer(answer) == RpcEnd(grpc.StatusCode.NOT_FOUND, "gone")
    context.set_details("cut \ud83d")
    assert RpcEnd.of_answer(context.end(b"").answer(frozenset())).details == "cut ?"
