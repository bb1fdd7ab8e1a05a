"""The webhook sink on a real receiver: signatures, answers, headers, and addresses that it does not reach. 3 s."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from semel.outbox.run import own_event
from semel.outbox.sinks.base import Unreached
from semel.outbox.sinks.webhook import VARIABLE, WebhookSink, is_public, look_up, signature
from tests.outbox.sink_stories import SECRET, WRITTEN, assert_refused, event, run_story, sink_of

# --- webhooks ---


class Receiver:
    """An HTTP server with scripted answers that records its requests."""

    def __init__(self, status: int = 204, extra: str = "") -> None:
        self.status, self.extra = status, extra
        self.requests: list[tuple[dict[str, str], bytes]] = []

    async def __aenter__(self) -> Receiver:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/hooks"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        await self.server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("utf-8").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers["content-length"]))
        self.requests.append((headers, body))
        writer.write(f"HTTP/1.1 {self.status} x\r\n{self.extra}connection: close\r\ncontent-length: 0\r\n\r\n".encode())
        writer.close()
        await writer.wait_closed()


def test_a_webhook_is_signed_and_carries_its_id_as_idempotency_key() -> None:
    async def story() -> None:
        sent = event("orders.placed", {"n": 1})
        async with Receiver() as receiver:
            sink = WebhookSink(receiver.url, SECRET, private=True)
            assert await sink.publish([sent]) == [None]
            await sink.close()
        [(headers, body)] = receiver.requests
        assert json.loads(body) == {"n": 1}
        assert headers["webhook-id"] == sent.id
        assert headers["idempotency-key"] == f'"{sent.id}"'
        assert headers["webhook-signature"] == signature(SECRET, sent.id, int(headers["webhook-timestamp"]), body)
        assert headers["semel-topic"] == "orders.placed"
        assert headers["semel-aggregate-id"] == "7%C3%A9"

    run_story(story)


def test_a_secret_is_rotated_with_both_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver that knows the old one, or the new one, takes the message."""
    new = b"fedcba9876543210fedcba9876543210"
    monkeypatch.setenv(VARIABLE, f"whsec_{base64.b64encode(new).decode()} {WRITTEN}")

    async def story() -> None:
        sent = event("orders.placed", {"n": 1})
        async with Receiver() as receiver, sink_of(f"{receiver.url}?private=yes") as sink:
            assert await sink.publish([sent]) == [None]
        [(headers, body)] = receiver.requests
        at = int(headers["webhook-timestamp"])
        assert headers["webhook-signature"].split() == [signature(each, sent.id, at, body) for each in (new, SECRET)]

    run_story(story)


@pytest.mark.parametrize(
    ("status", "for_good"), [(500, False), (409, False), (400, False), (404, False), (302, False), (410, True)]
)
def test_a_refusal_of_a_receiver_is_reported(status: int, for_good: bool) -> None:
    async def story() -> None:
        async with Receiver(status, "location: http://127.0.0.1:1/\r\n") as receiver:
            sink = WebhookSink(receiver.url, SECRET, private=True)
            [reply] = await sink.publish([event("a")])
            await sink.close()
        assert_refused(reply, str(status), for_good=for_good)
        assert len(receiver.requests) == 1  # no redirect was followed

    run_story(story)


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_receiver_is_an_outage(status: int) -> None:
    async def story() -> None:
        async with Receiver(status, "retry-after: 120\r\n") as receiver:
            sink = WebhookSink(receiver.url, SECRET, private=True)
            [reply] = await sink.publish([event("a")])
            await sink.close()
        assert reply == Unreached(f"the receiver answered {status}", wait_seconds=120)

    run_story(story)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-note", " ends with a space "),
        ("content-length", "1"),
        ("transfer-encoding", "chunked"),
        ("host", "b.example"),
    ],
)
def test_a_header_that_http_cannot_carry_stops_no_other_event(name: str, value: str) -> None:
    """It is the event's fault and not the receiver's: an outage would never end."""

    async def story() -> None:
        async with Receiver() as receiver:
            sink = WebhookSink(receiver.url, SECRET, private=True)
            odd = own_event(None, "a", {}, None, None, {name: value}, "")
            reply, other = await sink.publish([odd, event("b")])
            await sink.close()
        assert other is None
        assert reply is None
        for headers, body in receiver.requests:
            assert headers["host"].startswith("127.0.0.1")  # the event has no say in where it goes
            assert len(body) == int(headers["content-length"])

    run_story(story)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "0x7f.1", "169.254.169.254", "10.0.0.1", "0.0.0.0"]
)
def test_a_webhook_reaches_no_private_address(host: str) -> None:
    async def story() -> None:
        async with Receiver() as receiver:
            port = receiver.url.rpartition(":")[2].partition("/")[0]
            sink = WebhookSink(f"http://{host}:{port}/hooks", SECRET)
            [reply] = await sink.publish([event("a")])
            await sink.close()
        assert isinstance(reply, Unreached)
        assert "not a public one" in reply.reason
        assert receiver.requests == []

    run_story(story)


@pytest.mark.parametrize(
    "address",
    [
        "::ffff:127.0.0.1",
        "fe80::1",
        "fd00::1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "100.64.0.1",
        "224.0.0.1",
        "fec0::1",
        "::127.0.0.1",
    ],
)
def test_addresses_that_only_look_public_are_not(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("host", ["a..example", f"{'a' * 64}.example", "a b.example"])
def test_an_invalid_host_is_an_outage(host: str) -> None:
    """Refused, each event would be parked in the end."""

    async def story() -> None:
        sink = WebhookSink(f"https://{host}/hooks", SECRET, private=True)
        [reply] = await sink.publish([event("a")])
        await sink.close()
        assert isinstance(reply, Unreached)

    run_story(story)


def test_an_address_is_looked_up_by_the_sink_itself() -> None:
    async def story() -> None:
        assert await look_up("127.0.0.1", 80, private=True) == "127.0.0.1"

    run_story(story)
