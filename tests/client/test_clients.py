"""Both clients: one key for each intent, the draft's requirements of clients, the journal, and what is never shown."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from fastapi import FastAPI

from semel import AsyncEngine, AsyncPermit
from semel.client import (
    AsyncClient,
    AsyncIntent,
    AsyncRetryTransport,
    Breaker,
    Budget,
    Client,
    Done,
    InDoubt,
    Intent,
    Journal,
    NotYet,
    PayloadMismatch,
    Refused,
    RetryTransport,
    deadline,
)
from semel.client.intents import no_answer
from semel.client.journal import SendingClaim
from semel.client.plan import LIFETIME_OVER, Outcome
from semel.errors import ConfigurationError, InvalidKey
from semel.extras import install_command
from semel.http import single_caller
from semel.integrations.fastapi import Semel
from tests.client.conftest import Colour, Server

CREATED = httpx.Response(201, json={"paymentId": "p-1"})
LOST = httpx.ReadError("the connection was reset")
PROBLEM = {"content-type": "application/problem+json"}
CANARY = "4111-1111"


def sent_key(server: Server) -> str:
    [key] = set(server.keys)
    assert key is not None
    return key


# --- the draft's requirements of clients ---


def test_every_intent_has_its_own_key(colour: Colour) -> None:
    server = Server([CREATED])
    for _ in range(20):
        colour.send(server)
    assert len(set(server.keys)) == 20


def test_every_attempt_of_an_intent_carries_its_key_and_the_same_bytes(colour: Colour) -> None:
    server = Server([LOST, httpx.Response(503), CREATED])
    assert isinstance(colour.send(server), Done)
    assert re.fullmatch(r'"[0-9a-f-]{36}"', sent_key(server))
    assert {request.content for request in server.received} == {b'{"amount":"5.00"}'}


def test_an_intent_keeps_its_key_and_its_bytes_however_often_it_is_sent(colour: Colour) -> None:
    """By its name and by ``resume()``, over many processes: another key would be another payment."""
    server = Server([LOST] * 12 + [CREATED])
    for _ in range(3):
        assert isinstance(colour.send(server, intent={"name": "rent"}, budget=Budget(attempts=2)), NotYet)
        [(_, outcome)] = colour.run(server, lambda api: api.resume(), budget=Budget(attempts=2))
        assert isinstance(outcome, NotYet)
    [entry] = colour.journal.open()
    assert entry.sends == 12  # each is noted before it leaves
    assert isinstance(colour.send(server, intent={"name": "rent"}), Done)
    assert len(server.received) == 13
    sent_key(server)
    assert {request.content for request in server.received} == {b'{"amount":"5.00"}'}


def test_a_key_is_never_used_for_another_payload(colour: Colour) -> None:
    server = Server([CREATED])
    colour.send(server, intent={"name": "rent"})
    before = len(server.received)
    for changed in (
        {"name": "rent", "json": {"amount": "6.00"}},
        {"name": "rent", "params": {"x": "1"}},
        {"name": "rent", "json": None, "content": b'{"amount":"5.00"}', "headers": {"Content-Type": "text/plain"}},
    ):
        with pytest.raises(PayloadMismatch):
            colour.send(server, intent=changed)
    with pytest.raises(PayloadMismatch):
        colour.send(server, intent={"key": sent_key(server).strip('"'), "json": {"amount": "7.00"}})
    assert len(server.received) == before


def test_a_refused_request_is_corrected_before_it_is_sent_again(colour: Colour) -> None:
    """A 422 is final for this key: the same intent sends nothing more, and a corrected one is a new intent."""
    server = Server([httpx.Response(422, headers=PROBLEM, json={"code": "X", "keyAction": "new"}), CREATED])
    assert isinstance(colour.send(server, intent={"name": "rent"}), Refused)
    again = colour.send(server, intent={"name": "rent"})
    assert isinstance(again, Refused)
    assert len(server.received) == 1
    assert isinstance(colour.send(server, intent={"name": "rent, corrected", "json": {"amount": "6.00"}}), Done)
    assert len(set(server.keys)) == 2


def test_a_refused_caller_may_send_the_same_intent_again(colour: Colour) -> None:
    server = Server([httpx.Response(401), CREATED])
    first = colour.send(server, intent={"name": "rent"})
    assert isinstance(first, Refused)
    assert first.key_action == "keep"
    assert isinstance(colour.send(server, intent={"name": "rent"}), Done)
    sent_key(server)


def test_a_caller_who_is_refused_twice_is_not_in_doubt(colour: Colour) -> None:
    for _ in range(2):
        assert isinstance(colour.send(Server([httpx.Response(401)]), intent={"name": "rent"}), Refused)
    assert isinstance(colour.send(Server([LOST]), intent={"name": "rent"}), NotYet)
    assert isinstance(colour.send(Server([httpx.Response(401)]), intent={"name": "rent"}), InDoubt)


# --- intents ---


def test_the_intent_is_in_the_journal_before_the_first_byte_leaves(colour: Colour) -> None:
    seen: list[Any] = []

    def look(request: httpx.Request) -> httpx.Response:
        seen.extend(colour.journal.open())
        return httpx.Response(201)

    server = Server([look])
    colour.send(server)
    [entry] = seen
    assert f'"{entry.key}"' == sent_key(server)
    assert (entry.sends, len(entry.digest)) == (1, 32)


def test_a_name_finds_the_same_intent_again_and_an_ended_one_sends_nothing(colour: Colour) -> None:
    server = Server([LOST])
    budget = Budget(attempts=1)
    assert isinstance(colour.send(server, intent={"name": "rent"}, budget=budget), NotYet)
    server.replies = [LOST, CREATED]
    done = colour.send(server, intent={"name": "rent", "json": {"amount": "5.00"}}, budget=budget)
    assert isinstance(done, Done)
    again = colour.send(server, intent={"name": "rent"})
    assert isinstance(again, Done)
    assert again.replayed
    assert again.answer is not None
    assert again.answer.json() == {"paymentId": "p-1"}
    assert len(server.received) == 2
    sent_key(server)


def test_a_journal_without_payloads_still_never_sends_an_ended_intent(colour: Colour) -> None:
    server = Server([CREATED])
    journal = Journal("memory://")
    for _ in range(2):
        outcome = colour.send(server, intent={"name": "rent"}, journal=journal)
    assert outcome == Done(None, replayed=True)
    assert len(server.received) == 1
    journal.close()


def test_json_that_means_the_same_is_the_same_payload(colour: Colour) -> None:
    server = Server([CREATED])
    colour.send(server, intent={"name": "n", "json": {"a": 1, "b": 2}})
    assert isinstance(colour.send(server, intent={"name": "n", "json": {"b": 2, "a": 1}}), Done)


def test_resume_sends_what_is_open_with_its_own_key(colour: Colour) -> None:
    server = Server([LOST])
    for number in range(3):
        colour.send(server, intent={"json": {"n": number}}, budget=Budget(attempts=1))
    keys = set(server.keys)
    after = Server([CREATED])
    outcomes = colour.run(after, lambda api: api.resume())
    assert [type(outcome) for _, outcome in outcomes] == [Done] * 3
    assert set(after.keys) == keys
    assert colour.journal.open() == []


def test_resume_without_a_kept_payload_sends_nothing_and_says_what_to_do(colour: Colour, tmp_path: Path) -> None:
    journal = Journal(f"sqlite:///{tmp_path / 'digests.db'}")
    server = Server([LOST, CREATED])
    colour.send(server, intent={"name": "rent"}, journal=journal, budget=Budget(attempts=1))
    [(_, outcome)] = colour.run(server, lambda api: api.resume(), journal=journal)
    assert outcome.code == "PAYLOAD_NEEDED"
    assert "payloads=True" in outcome.detail
    assert isinstance(colour.send(server, intent={"name": "rent"}, journal=journal), Done)
    sent_key(server)


def test_a_child_has_a_key_that_is_derived_and_stable(colour: Colour) -> None:
    server = Server([CREATED])

    def use(api: Any) -> list[str]:
        parent = api.intent("POST", "/payments", json={"amount": "5.00"}, name="rent")
        mail = parent.child("mail", "POST", "/mails", json={"to": "x"})
        mail.send()
        assert mail.key == parent.key_for("mail")
        assert len({parent.key, mail.key, parent.key_for("mail", 1), parent.key_for("sms")}) == 4
        with pytest.raises(ConfigurationError, match="needs a name"):
            parent.key_for("")
        return [mail.key]

    assert colour.run(server, use) == colour.run(server, use)
    assert len(server.received) == 1  # the second time it had ended


def test_an_intent_that_another_process_is_sending_is_not_sent(colour: Colour) -> None:
    server = Server([CREATED])

    def use(api: Any) -> Any:
        intent = api.intent("POST", "/payments", json={})
        assert isinstance(colour.journal.claim(intent.key, 30), SendingClaim)
        return intent.send()

    outcome = colour.run(server, use)
    assert outcome.code == "BUSY"
    assert 0 < outcome.retry_after <= 30
    assert server.received == []


def test_an_interrupted_send_releases_its_claim(colour: Colour) -> None:
    def interrupt(request: httpx.Request) -> httpx.Response:
        raise ZeroDivisionError

    server = Server([interrupt, CREATED])
    with pytest.raises(ZeroDivisionError):
        colour.send(server, intent={"name": "rent"})
    assert isinstance(colour.send(server, intent={"name": "rent"}), Done)


def test_nothing_is_sent_after_the_keys_lifetime(colour: Colour, tmp_path: Path) -> None:
    hour = 3600.0
    now = [1_800_000_000.0]
    journal = Journal(f"sqlite:///{tmp_path / 'old.db'}", wall=lambda: now[0])
    server = Server([httpx.Response(503, headers={"idempotency-key-lifetime": str(int(hour))}), CREATED])
    options: dict[str, Any] = {"journal": journal, "budget": Budget(attempts=1)}
    colour.send(server, intent={"name": "rent"}, **options)
    now[0] += hour
    outcome = colour.send(server, intent={"name": "rent"}, **options)
    assert isinstance(outcome, InDoubt)
    assert outcome.code == LIFETIME_OVER
    now[0] -= 2 * hour  # the clock is set back: the intent has ended all the same
    assert isinstance(colour.send(server, intent={"name": "rent"}, **options), InDoubt)
    assert len(server.received) == 1


def test_the_status_of_an_unknown_outcome_is_queried_with_credentials_and_without_a_key(colour: Colour) -> None:
    unknown = {"code": "IDEMPOTENCY_OUTCOME_UNKNOWN", "retryable": False, "operation": "/operations/1"}
    server = Server(
        [
            httpx.Response(409, headers=PROBLEM, json=unknown),
            httpx.Response(200, json={"state": "UNKNOWN"}),
            httpx.Response(200, json={"state": "SUCCEEDED"}),
            CREATED,
        ]
    )
    assert isinstance(colour.send(server), Done)
    assert [request.method for request in server.received] == ["POST", "GET", "GET", "POST"]
    assert [key is None for key in server.keys] == [False, True, True, False]


def test_the_request_states_how_long_the_server_may_wait(colour: Colour) -> None:
    server = Server([CREATED])
    colour.send(server, budget=Budget(attempts=1, seconds=20))
    assert server.received[0].headers["prefer"] == "wait=19"
    colour.send(server, intent={"headers": {"Prefer": "return=minimal"}})
    assert server.received[1].headers["prefer"] == "return=minimal"


def test_an_inbound_deadline_bounds_every_send(colour: Colour) -> None:
    server = Server([LOST])
    journal = Journal("memory://")
    with deadline(60), deadline(1.0), deadline(30):
        client = Client("https://x.example", journal=journal, http=httpx.Client(transport=httpx.MockTransport(server)))
        client._sleep = colour.slept.append
        client.core.jitter = lambda: 1.0
        outcome = client.intent("POST", "/", json={}).send(seconds=10)
    assert isinstance(outcome, NotYet)
    assert server.received[0].extensions["timeout"]["read"] <= 1.0 / 3
    with deadline(-1):
        over = client.intent("POST", "/", json={"n": 2}).send()
    assert isinstance(over, NotYet)
    assert (over.code, over.may_have_happened) == ("DEADLINE", False)
    journal.close()


def test_the_breaker_and_the_retry_budget_belong_to_the_origin(colour: Colour) -> None:
    server = Server([LOST])

    def use(api: Any) -> list[str]:
        return [api.intent("POST", "/payments", json={"n": n}).send().code for n in range(3)]

    assert colour.run(server, use, breaker=Breaker(failures=2), budget=Budget(attempts=2)) == [
        "NO_ANSWER",
        "BREAKER_OPEN",
        "BREAKER_OPEN",
    ]
    assert len(server.received) == 2
    other = Server([LOST])
    codes = colour.run(other, use, budget=Budget(attempts=2, retries_at_once=1, retries_per_second=0))
    assert codes == ["NO_ANSWER", "RETRY_BUDGET", "RETRY_BUDGET"]


def test_a_bare_key_has_no_quotes(colour: Colour) -> None:
    server = Server([CREATED])
    colour.send(server, intent={"key": "order-4711-payment-1"}, bare=True)
    colour.send(server, intent={"key": "order-4711-payment-2"})
    assert server.keys == ["order-4711-payment-1", '"order-4711-payment-2"']


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_of_a_command_is_never_followed(colour: Colour, status: int) -> None:
    server = Server([httpx.Response(status, headers={"location": "https://evil.example/"}), CREATED])
    outcome = colour.send(server)
    assert isinstance(outcome, Refused | InDoubt)
    assert outcome.code == "REDIRECT"
    assert len(server.received) == 1


def test_a_stored_redirect_is_in_doubt_and_not_asked_for_again(colour: Colour) -> None:
    stored = httpx.Response(302, headers={"location": "/done", "idempotency-replayed": "true"})
    server = Server([stored, CREATED])

    for _ in range(2):
        outcome = colour.send(server, intent={"name": "rent"})
        assert isinstance(outcome, InDoubt)
        assert outcome.code == "REDIRECT"
    assert len(server.received) == 1


def test_a_name_that_does_not_resolve_proves_that_nothing_happened(colour: Colour) -> None:
    outcome = colour.send(Server([httpx.ConnectError("[Errno -2] Name or service not known")]))
    assert isinstance(outcome, NotYet)
    assert not outcome.may_have_happened
    assert "Name or service" in outcome.detail


# --- bad input ---


def parts() -> Iterator[bytes]:
    yield b"x"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"content": parts()}, "content=b''.join"),
        ({"content": Path(__file__).open("rb")}, "read_bytes"),  # noqa: SIM115
        ({"json": object()}, "json="),
        ({"json": float("nan")}, "json="),
        ({"json": {}, "content": b""}, "one of json="),
        ({"json": {}, "headers": {"idempotency-key": "x"}}, "key="),
        ({"json": {}, "headers": {"Authorization": "Bearer x"}}, "credential"),
        ({"json": {}, "headers": {"X-Shop": "a\nb"}}, "the value of the header X-Shop"),
        ({"json": {}, "headers": {"X-Shop": "é"}}, "percent-encode"),
        ({"json": {}, "headers": {"X-Shop": 1}}, "the value of the header X-Shop"),
        ({"json": {}, "headers": {"X Shop": "a"}}, "'X Shop' is not the name of a header"),
        ({"json": {}, "headers": {1: "a"}}, "1 is not the name of a header"),
        ({"json": {}, "name": ""}, "name"),
        ({"json": {}, "name": "x" * 201}, "name"),
    ],
)
def test_an_intent_that_cannot_be_repeated_is_refused_with_the_remedy(
    colour: Colour, options: dict[str, Any], named: str
) -> None:
    server = Server([CREATED])
    with pytest.raises(ConfigurationError, match=re.escape(named)):
        colour.send(server, intent={"json": None, **options})
    assert server.received == []
    assert colour.journal.open() == []
    if hasattr(options.get("content"), "close"):
        options["content"].close()


def test_a_key_for_all_requests_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="one key for all requests"):
        Client("https://x.example", headers={"idempotency-key": "x"})


@pytest.mark.parametrize("secret", ["Bearer \u0141", "Bearer secret\n", "a\rb"])
def test_a_credential_that_cannot_be_sent_is_refused_and_not_quoted(secret: str) -> None:
    """As one that was read from a file, with its line break."""
    for client in (Client, AsyncClient):
        with pytest.raises(ConfigurationError, match="the value of the header Authorization") as raised:
            client("https://x.example", headers={"Authorization": secret})
        assert secret.strip() not in str(raised.value)
    with pytest.raises(ConfigurationError, match="a value that HTTP cannot carry") as raised:
        no_answer(httpx.LocalProtocolError(f"Illegal header value {secret.encode()!r}"))
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("method", ["", "PO ST", "GET\n", "É"])
def test_an_invalid_http_method_is_refused_before_it_is_stored(method: str) -> None:
    """Kept in the journal it would end each resume()."""
    journal = Journal("memory://")
    with pytest.raises(ConfigurationError, match="is not an HTTP method"):
        Client("https://x.example", journal=journal).intent(method, "/payments", json={})
    assert journal.open() == []


@pytest.mark.parametrize("key", ["", "a b", "é", "x" * 256])
def test_an_invalid_key_is_refused_before_it_is_sent(colour: Colour, key: str) -> None:
    with pytest.raises(InvalidKey):
        colour.send(Server([CREATED]), intent={"key": key})


@pytest.mark.parametrize(
    "url", ["http://[", "http://[::1", "http://a b/x", "https://..", "http://a..b/", "http://h:0/"]
)
def test_a_url_that_no_resolver_takes_is_refused_before_anything_is_kept(url: str, tmp_path: Path) -> None:
    journal = Journal(f"sqlite:///{tmp_path / 'intents.db'}")
    with Client(journal=journal) as client:
        with pytest.raises(ConfigurationError, match=r"cannot be used: its (host|port)"):
            client.intent("POST", url, json={})
        assert journal.open() == []


@pytest.mark.parametrize("url", ["", "/payments", "ftp://x.example/", "https://", "mailto:x", "//x.example"])
def test_a_url_without_scheme_and_host_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        Client(journal=Journal("memory://")).intent("POST", url, json={})


def test_a_url_inside_a_query_is_not_the_whole_url() -> None:
    core = Client("https://x.example/v1", journal=Journal("memory://")).core
    made = core.make_request("POST", "/payments?next=https://shop.example/", json={})
    assert made.url == "https://x.example/v1/payments?next=https://shop.example/"
    assert core.make_request("POST", "http://y.example/", json={}).url == "http://y.example/"


# --- secrets ---


def test_no_representation_and_no_log_line_shows_a_key_or_a_payload(
    colour: Colour, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = Server([LOST, httpx.Response(503), CREATED])
    shown: list[str] = []

    def use(api: Any) -> None:
        intent = api.intent("POST", f"/payments?card={CANARY}", json={"card": CANARY}, name="rent")
        outcome = intent.send()
        shown.extend([repr(api.inner), repr(intent.inner), repr(outcome)])

    reports: list[Any] = []
    colour.run(server, use, progress=reports.append)
    key = sent_key(server).strip('"')
    text = "\n".join([*shown, repr(reports), *(r.getMessage() for r in caplog.records if r.name != "httpx")])
    assert "attempt 3" in text
    assert key not in text + caplog.text
    assert CANARY not in text


@pytest.mark.anyio
async def test_a_cancelled_send_releases_its_claim() -> None:
    async def hang(request: httpx.Request) -> httpx.Response:
        await anyio.Event().wait()
        raise AssertionError

    journal = Journal("memory://")
    async with httpx.AsyncClient(transport=httpx.MockTransport(hang)) as http:
        api = AsyncClient("https://x.example", http=http, journal=journal)
        intent = await api.intent("POST", "/", json={})
        with anyio.move_on_after(0.05):
            await intent.send()
    assert isinstance(journal.claim(intent.key, 1), SendingClaim)
    journal.close()


@pytest.mark.parametrize(
    "use",
    [
        "import semel.client; semel.client.Client",
        "from semel.cli.main import main; main(['send', 'POST', 'http://x/'])",
    ],
)
def test_without_httpx_the_remedy_is_named_and_the_plan_works(use: str, tmp_path: Path) -> None:
    program = f"import sys; sys.modules['httpx'] = None\nimport semel.client.plan, semel.client.journal\n{use}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert install_command("client") in done.stderr.splitlines()[-1]


# --- one surface in two colours ---


@pytest.mark.parametrize(
    ("sync", "other"),
    [(Client, AsyncClient), (Intent, AsyncIntent), (RetryTransport, AsyncRetryTransport)],
    ids=lambda kind: kind.__name__,
)
def test_sync_and_async_have_the_same_names_and_parameters(sync: type, other: type) -> None:
    def surface(kind: type) -> dict[str, list[str]]:
        renamed = {"handle_async_request": "handle_request", "aclose": "close"}
        return {
            renamed.get(name, name): list(inspect.signature(value).parameters) if callable(value) else []
            for name, value in vars(kind).items()
            if name == "__init__" or not name.startswith("_")
        }

    assert surface(sync) == surface(other)


# --- beneath clients that exist already ---


def test_the_transport_gives_each_call_one_key_and_retries_it() -> None:
    server = Server([LOST, httpx.Response(503), CREATED, CREATED])
    transport = RetryTransport(httpx.MockTransport(server))
    transport._sleep = lambda seconds: None
    with httpx.Client(transport=transport) as http:
        assert http.post("https://shop.example/payments", json={"a": 1}).json() == {"paymentId": "p-1"}
        http.post("https://shop.example/payments", json={"a": 1})
    assert len(set(server.keys[:3])) == 1
    assert len(set(server.keys)) == 2


@pytest.mark.anyio
async def test_the_async_transport_does_the_same() -> None:
    server = Server([LOST, httpx.Response(503), CREATED])

    async def at_once(seconds: float) -> None: ...

    transport = AsyncRetryTransport(httpx.MockTransport(server))
    transport._sleep = at_once
    async with httpx.AsyncClient(transport=transport) as http:
        assert (await http.post("https://shop.example/payments", json={"a": 1})).status_code == 201
    assert len(server.received) == 3
    assert len(set(server.keys)) == 1


def test_the_transport_does_not_retry_unsafe_requests_without_a_key() -> None:
    server = Server([LOST])
    transport = RetryTransport(httpx.MockTransport(server), add_key=False)
    transport._sleep = lambda seconds: None
    with httpx.Client(transport=transport) as http:
        for method, sends in (("POST", 1), ("PUT", 1), ("DELETE", 1), ("GET", 3)):
            server.received.clear()
            with pytest.raises(httpx.ReadError):
                http.request(method, "https://shop.example/")
            assert len(server.received) == sends, method
        server.received.clear()
        with pytest.raises(httpx.ReadError):
            http.put("https://shop.example/", content=b"x", headers={"Idempotency-Key": "my-own-key"})
        assert server.keys == ["my-own-key"] * 3


def test_the_transport_refuses_a_body_that_can_be_sent_once_only() -> None:
    server = Server([CREATED])
    with (
        httpx.Client(transport=RetryTransport(httpx.MockTransport(server))) as http,
        pytest.raises(ConfigurationError, match="add_key=False"),
    ):
        http.post("https://shop.example/", content=parts())
    assert server.received == []


def test_a_read_whose_body_can_be_sent_once_only_is_sent_once() -> None:
    asked: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.read())
        return httpx.Response(503)

    with httpx.Client(transport=RetryTransport(httpx.MockTransport(answer))) as http:
        assert http.request("GET", "https://shop.example/", content=parts()).status_code == 503
    assert asked == [b"x"]


def test_the_transport_returns_the_last_answer() -> None:
    server = Server([httpx.Response(503, content=b"busy", headers={"retry-after": "1"})])
    transport = RetryTransport(httpx.MockTransport(server))
    transport._sleep = lambda seconds: None
    with httpx.Client(transport=transport) as http:
        answer = http.post("https://shop.example/", json={})
    assert (answer.status_code, answer.text, len(server.received)) == (503, "busy", 3)


# --- time that really passes: a server that never ends its answer ---


def test_a_server_that_trickles_cannot_delay_the_caller_past_its_deadline() -> None:
    """Every read comes in time, and the answer never ends: only a total deadline ends this."""
    stopped = threading.Event()

    class Trickle(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            while not stopped.wait(0.02):
                yield b"."

    http = httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(200, stream=Trickle())))
    journal = Journal("memory://")
    with Client("https://x.example", http=http, journal=journal, budget=Budget(attempts=1, seconds=0.3)) as api:
        outcome = api.intent("POST", "/", json={}).send()
    stopped.set()
    assert isinstance(outcome, NotYet)
    assert outcome.may_have_happened
    assert "no whole answer within" in outcome.detail
    journal.close()


def test_a_client_waits_for_a_command_that_the_server_has_accepted(tmp_path: Path) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()
    first: asyncio.Task[httpx.Response] | None = None
    engine = AsyncEngine.connect(f"sqlite:///{tmp_path}/shop.db")
    app = FastAPI()
    semel = Semel(engine, caller=single_caller)

    @app.post("/payments", status_code=201)
    @semel.command("payments.create", steps=True, resumable=True)
    async def pay(permit: AsyncPermit = semel.permit) -> dict[str, str]:
        async def charge() -> str:
            begun.set()
            await may_end.wait()
            return "ch_1"

        return {"charge": await permit.step("charge", charge, repeat=True)}

    semel.install(app)

    async def end_it(_: float) -> None:
        may_end.set()
        assert first is not None
        await first

    async def main() -> Outcome:
        nonlocal first
        await engine.migrate()
        async with engine, httpx.AsyncClient(transport=httpx.ASGITransport(app)) as http:
            headers = {"Idempotency-Key": "rent-may", "Prefer": "respond-async", "Content-Type": "application/json"}
            first = asyncio.create_task(http.post("http://shop.example/payments", headers=headers, content=b"{}"))
            await begun.wait()
            budget = Budget(attempts=1, seconds=60, attempt_seconds=1)
            client = AsyncClient("http://shop.example", http=http, budget=budget, journal=Journal("memory://"))
            client._sleep = end_it
            return await (await client.intent("POST", "/payments", json={}, key="rent-may")).send()

    outcome = asyncio.run(main())
    assert isinstance(outcome, Done)
    assert outcome.answer is not None
    assert (outcome.answer.status, outcome.answer.json(), outcome.replayed) == (201, {"charge": "ch_1"}, True)
