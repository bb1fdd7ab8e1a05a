"""The rules of events: validity, payload encoding, id and partition.

An event's id is derived from the record, its generation, a name and an ordinal, so that it is the same for every run of
the same execution: consumers recognize duplicates by it. Topics are limited to what every broker accepts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from semel.articles import name_type
from semel.core.identity import frame
from semel.errors import PolicyError
from semel.outbox.event import Event

PAYLOAD_BYTES_MAX: Final = 1_000_000  # Kafka and NATS accept this much by default, with room for headers
HEADERS_BYTES_MAX: Final = 8_192
NAME_LETTERS_MAX: Final = 255
PARTITIONS: Final = 32
JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
BYTES: Final = "application/octet-stream"
CONTENT_TYPE: Final = "content-type"
RECEIVER: Final = "semel-receiver"  # the header of a copy that names its receiver
GONE: Final = "the receiver answered 410 Gone"  # prefix of the reason why a webhook's endpoint is disabled
DISABLED: Final = "the receiver is disabled"  # prefix of the reason of an event that was parked without being sent
_COPIES: Final = "receiver."

_TOPIC: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_TOPIC_LETTERS_MAX: Final = 249
_HEADER: Final = re.compile(r"[a-z0-9_.-]{1,100}")
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_RESERVED: Final = ("semel-", "nats-", "webhook-")

Headers = tuple[tuple[str, str], ...]


def event_id(record: bytes, generation: int, name: str, ordinal: int) -> str:
    """Return the id of an execution's event, as a UUID's text.

    >>> event_id(bytes(16), 0, "order.placed", 0) == event_id(bytes(16), 0, "order.placed", 0)
    True
    >>> event_id(bytes(16), 0, "order.placed", 0) == event_id(bytes(16), 0, "order.placed", 1)
    False
    """
    h = hashlib.sha256(frame(b"semel.event.1", record, str(generation), name, str(ordinal))).hexdigest()[:32]
    return f"{h[:8]}-{h[8:12]}-8{h[13:16]}-{'89ab'[int(h[16], 16) % 4]}{h[17:20]}-{h[20:]}"


def receiver_topic(name: str) -> str:
    """Return the topic of a receiver's copies.

    >>> receiver_topic("shop")
    'receiver.shop'
    """
    return f"{_COPIES}{name}"


def receiver_of(topic: str) -> str | None:
    """Return the receiver whose copies have this topic; None for any other topic.

    >>> receiver_of("receiver.shop"), receiver_of("orders.placed")
    ('shop', None)
    """
    return topic.removeprefix(_COPIES) if topic.startswith(_COPIES) else None


def partition_of(aggregate_type: str, aggregate_id: str) -> int:
    """Return the partition of an aggregate's events: from 0, below ``PARTITIONS``."""
    return hashlib.sha256(frame(aggregate_type, aggregate_id)).digest()[0] % PARTITIONS


def make_event(
    id: str,
    topic: str,
    payload: Any,
    *,
    type: str | None = None,
    aggregate: tuple[str, str],
    headers: Mapping[str, str] | None = None,
    tenant: str = "",
    operation_id: bytes | None = None,
) -> Event:
    """Check and return an event.

    Parameters: ``payload`` bytes, a text, or any JSON value; ``type`` the topic by default; ``aggregate`` the type and
    id of the event's subject; the events of one aggregate keep their order.

    Raises PolicyError, naming what is wrong.

    >>> make_event("0", "orders", {"total": 10}, aggregate=("order", "7")).payload
    b'{"total":10}'
    """
    if not isinstance(topic, str) or len(topic) > _TOPIC_LETTERS_MAX or not _TOPIC.fullmatch(topic):
        raise PolicyError(
            f"an event's topic is 1 to {_TOPIC_LETTERS_MAX} letters, digits, '-' and '_' in parts joined by dots, such "
            f"as 'orders.placed'; it is {topic!a}"
        )
    if not isinstance(aggregate, tuple) or len(aggregate) != 2:
        raise PolicyError(f"aggregate is a pair (type, id), such as ('order', order_id); it is {aggregate!a}")
    raw, content_type = payload_bytes(topic, payload)
    return Event(
        id,
        topic,
        check_text("type", topic if type is None else type),
        check_text("aggregate's type", aggregate[0]),
        check_text("aggregate's id", aggregate[1]),
        raw,
        _headers(topic, headers or {}, content_type),
        tenant,
        operation_id,
    )


def check_text(what: str, text: object) -> str:
    """Return a text if brokers and databases accept it unchanged. Raises PolicyError."""
    if not isinstance(text, str) or not 0 < len(text) <= NAME_LETTERS_MAX or _UNPRINTABLE.search(text):
        raise PolicyError(
            f"an event's {what} is a text of 1 to {NAME_LETTERS_MAX} letters without control characters; it is "
            f"{text!a:.80}"
        )
    return text


def payload_bytes(topic: str, payload: Any) -> tuple[bytes, str]:
    """Return a payload's bytes and their content type. Raises PolicyError.

    >>> payload_bytes("orders", "paid")
    (b'paid', 'text/plain; charset=utf-8')
    """
    try:
        match payload:
            case bytes() | bytearray() | memoryview():
                raw, content_type = bytes(payload), BYTES
            case str():
                raw, content_type = payload.encode(), TEXT
            case _:
                _check_names(payload)
                text = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
                raw, content_type = text.encode(), JSON
    except (TypeError, ValueError, RecursionError) as error:
        raise PolicyError(
            f"the payload of the event {topic!a} cannot be written ({error.__class__.__name__}: {error!s:.200}); "
            "give bytes, a text, or a JSON value: dicts with text keys, lists, texts, finite numbers, True, False "
            "and None"
        ) from None
    if len(raw) > PAYLOAD_BYTES_MAX:
        raise PolicyError(
            f"the payload of the event {topic!a} has {len(raw)} bytes, and an event takes {PAYLOAD_BYTES_MAX}; "
            "store it elsewhere, and send a reference to it"
        )
    return raw, content_type


def _check_names(value: Any) -> None:
    """Refuse keys that are not texts: JSON would write the key 1 as "1", beside another "1"."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{name_type(key)} as a key")
            _check_names(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _check_names(inner)


def _headers(topic: str, headers: Mapping[str, str], content_type: str) -> Headers:
    found = {CONTENT_TYPE: content_type}
    for name, value in headers.items():
        low = name.lower() if isinstance(name, str) else ""
        if not _HEADER.fullmatch(low) or low.startswith(_RESERVED):
            raise PolicyError(
                f"a header of the event {topic!a} is named {name!a}; use letters, digits, '-', '_' and '.', not "
                f"beginning with {', '.join(_RESERVED)}"
            )
        if not isinstance(value, str) or _UNPRINTABLE.search(value):
            raise PolicyError(f"the header {low!a} of the event {topic!a} must be a text without control characters")
        found[low] = value
    if sum(len(name) + len(value.encode()) for name, value in found.items()) > HEADERS_BYTES_MAX:
        raise PolicyError(f"the headers of the event {topic!a} have more than {HEADERS_BYTES_MAX} bytes")
    return tuple(sorted(found.items()))


def pack_headers(headers: Headers) -> bytes:
    """Encode headers for storage: a JSON object, which Debezium and people can read.

    >>> pack_headers((("content-type", "text/plain"),))
    b'{"content-type":"text/plain"}'
    """
    return json.dumps(dict(headers), ensure_ascii=False, separators=(",", ":")).encode()


def unpack_headers(raw: bytes) -> Headers:
    """Decode stored headers."""
    return tuple(sorted(json.loads(raw).items()))
