"""What may be an event, what its bytes are, and the names and partitions that consumers and relays hang on."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from semel.errors import PolicyError
from semel.outbox.event import Event
from semel.outbox.rules import (
    HEADERS_BYTES_MAX,
    PARTITIONS,
    PAYLOAD_BYTES_MAX,
    check_text,
    event_id,
    make_event,
    pack_headers,
    partition_of,
    payload_bytes,
    receiver_of,
    receiver_topic,
    unpack_headers,
)

ORDER = ("order", "7")


def make_one(topic: Any = "orders.placed", payload: Any = b"x", aggregate: Any = ORDER, **options: Any) -> Event:
    return make_event("id", topic, payload, aggregate=aggregate, **options)


def test_ids_and_lanes_are_the_same_in_every_version() -> None:
    """Consumers tell repetitions by the ids, and two relays of two versions share the partitions."""
    assert event_id(bytes(16), 0, "order.placed", 0) == "42779056-ed14-803c-9b9c-eb2bd1fff126"
    assert event_id(bytes(range(16)), 3, "order.placed", 12) == "c28a9c69-fdf1-8646-b559-d90a98bbea4a"
    assert [partition_of("order", str(number)) for number in range(8)] == [5, 11, 1, 21, 6, 22, 7, 5]
    assert {partition_of("order", str(number)) for number in range(1000)} == set(range(PARTITIONS))


def test_an_id_is_a_uuid_whatever_the_digest() -> None:
    ids = [uuid.UUID(event_id(bytes(16), 0, "order.placed", ordinal)) for ordinal in range(64)]
    assert {each.version for each in ids} == {8}
    assert {each.variant for each in ids} == {uuid.RFC_4122}
    assert {str(each)[19] for each in ids} == set("89ab")
    assert len(set(ids)) == 64
    digest = hashlib.sha256(repr([str(each) for each in ids]).encode()).hexdigest()
    assert digest == "1bf8f35f3c3f6f60c12221868306ea23ea0b0b885e6e5c203ecf78a973338513"


def test_an_event_is_what_was_given() -> None:
    assert make_one(tenant="acme", operation_id=b"o" * 16, headers={"Trace": "1"}) == Event(
        "id",
        "orders.placed",
        "orders.placed",
        "order",
        "7",
        b"x",
        (("content-type", "application/octet-stream"), ("trace", "1")),
        "acme",
        b"o" * 16,
    )
    assert make_one(type="placed").type == "placed"
    assert (make_one().tenant, make_one().operation_id) == ("", None)


@pytest.mark.parametrize("topic", ["a", "A-z_9", "a.b.c", "x" * 249])
def test_valid_topics(topic: str) -> None:
    assert make_one(topic).topic == topic


@pytest.mark.parametrize("topic", ["", ".", "a.", ".a", "a..b", "a b", "a/b", "ü", "x" * 250, 7, None, b"a"])
def test_an_invalid_topic_is_refused(topic: object) -> None:
    with pytest.raises(PolicyError, match=r"topic is 1 to 249 letters.*such as 'orders\.placed'; it is"):
        make_one(topic)


@pytest.mark.parametrize("aggregate", [("order",), ("order", "7", "8"), ["order", "7"], "order", None])
def test_an_invalid_aggregate_is_refused(aggregate: object) -> None:
    with pytest.raises(PolicyError, match=r"pair \(type, id\), such as \('order', order_id\); it is"):
        make_one(aggregate=aggregate)


@pytest.mark.parametrize("text", ["", "x" * 256, "a\nb", "a\x7fb", "\ud800", 7, None])
def test_an_invalid_event_name_is_refused(text: object) -> None:
    with pytest.raises(PolicyError, match="an event's thing is a text of 1 to 255 letters without control characters"):
        check_text("thing", text)
    for aggregate, what in (((text, "7"), "aggregate's type"), (("order", text), "aggregate's id")):
        with pytest.raises(PolicyError, match=what):
            make_one(aggregate=aggregate)
    if text is not None:
        with pytest.raises(PolicyError, match="an event's type"):
            make_one(type=text)


@pytest.mark.parametrize("text", ["x", "x" * 255, "ü €", "a b"])
def test_a_valid_event_name_is_accepted(text: str) -> None:
    assert check_text("thing", text) == text


@pytest.mark.parametrize(
    ("payload", "raw", "content_type"),
    [
        (b"\0", b"\0", "application/octet-stream"),
        (bytearray(b"a"), b"a", "application/octet-stream"),
        (memoryview(b"a"), b"a", "application/octet-stream"),
        ("ü", "ü".encode(), "text/plain; charset=utf-8"),
        ({"a": [1, "ü", None, (True, 1.5)]}, '{"a":[1,"ü",null,[true,1.5]]}'.encode(), "application/json"),
        (None, b"null", "application/json"),
    ],
)
def test_payloads_are_bytes_text_or_json(payload: Any, raw: bytes, content_type: str) -> None:
    assert payload_bytes("t", payload) == (raw, content_type)


@pytest.mark.parametrize(
    "payload",
    [{1: 2}, [{"a": {2: 1}}], ({3: 1},), float("nan"), float("inf"), object(), "\ud800", {"a": "\ud800"}, {1, 2}],
)
def test_a_payload_that_json_cannot_encode_is_refused(payload: Any) -> None:
    with pytest.raises(
        PolicyError, match=r"the payload of the event 't' cannot be written \((Type|Value|Unicode)\w*Error"
    ):
        payload_bytes("t", payload)


def test_a_refused_payload_names_the_value_and_the_event() -> None:
    with pytest.raises(
        PolicyError, match=r"the event 'orders.placed' cannot be written \(TypeError: an int as a key\)"
    ):
        make_one(payload={"a": [{1: 2}]})
    with pytest.raises(
        PolicyError, match=r"give bytes, .* JSON value: dicts with .*, finite numbers, True, False and None$"
    ):
        make_one(payload={1: 2})
    with pytest.raises(PolicyError, match="an event's aggregate's type is a text"):
        make_one(aggregate=("", "7"))
    with pytest.raises(PolicyError, match="an event's aggregate's id is a text"):
        make_one(aggregate=("order", ""))
    with pytest.raises(PolicyError, match=r"a header of the event 'orders.placed' is named 'a b'"):
        make_one(headers={"a b": "x"})
    with pytest.raises(PolicyError, match=r"not beginning with semel-, nats-, webhook-$"):
        make_one(headers={"semel-id": "x"})


def test_a_payload_has_a_size_limit() -> None:
    assert len(payload_bytes("t", b"x" * PAYLOAD_BYTES_MAX)[0]) == 1_000_000
    with pytest.raises(
        PolicyError, match="has 1000001 bytes, and an event takes 1000000; store it elsewhere, and send a reference"
    ):
        payload_bytes("t", b"x" * (PAYLOAD_BYTES_MAX + 1))


@pytest.mark.parametrize(
    "headers",
    [
        {"": "x"},
        {"a b": "x"},
        {"ü": "x"},
        {"x" * 101: "x"},
        {"semel-id": "x"},
        {"Nats-Msg-Id": "x"},
        {"webhook-id": "x"},
        {7: "x"},
        {"a": "b\n"},
        {"a": 7},
    ],
)
def test_an_invalid_header_is_refused(headers: Mapping[str, str]) -> None:
    with pytest.raises(PolicyError, match="header"):
        make_one(headers=headers)


def test_headers_have_a_common_size_limit() -> None:
    used = len("content-type") + len("application/octet-stream") + len("a")
    assert make_one(headers={"a": "x" * (HEADERS_BYTES_MAX - used)}).headers[0][0] == "a"
    with pytest.raises(PolicyError, match="have more than 8192 bytes"):
        make_one(headers={"a": "x" * (HEADERS_BYTES_MAX - used + 1)})
    with pytest.raises(PolicyError, match="8192"):
        make_one(headers={"a": "ü" * (HEADERS_BYTES_MAX // 2)})  # bytes are counted, not letters


def test_a_given_content_type_is_kept() -> None:
    assert make_one(headers={"Content-Type": "text/csv"}).headers == (("content-type", "text/csv"),)


def test_headers_are_stored_for_people_and_read_back() -> None:
    headers = (("a", "ü"), ("b", "2"))
    assert pack_headers(headers) == '{"a":"ü","b":"2"}'.encode()
    assert unpack_headers(pack_headers(headers[::-1])) == headers


def test_a_topic_of_copies_names_its_receiver() -> None:
    assert receiver_topic("shop") == "receiver.shop"
    assert receiver_of("receiver.shop.receiver.") == "shop.receiver."
    assert receiver_of("orders.placed") is receiver_of("orders.receiver.") is receiver_of("receivers") is None
