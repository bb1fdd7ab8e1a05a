"""The rows that `semel export` writes: records, operations, bulks and items, events, imports.

Payloads of events and details of items are exported only on request, as are stored answers; requests never are.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Any, Final

from semel.admin.describe import record_document, time_text
from semel.admin.failures import UsageFailed
from semel.admin.move.rows import pages_of
from semel.admin.words import Json
from semel.bulk.rules import ItemState
from semel.core.identity import uuid_text
from semel.core.model import AnswerKind, Record, State
from semel.core.record import answer_of
from semel.engine.sync_engine import Engine
from semel.errors import SemelError
from semel.imports.rules import ImportState
from semel.operations.flow import is_kept_by
from semel.outbox.rules import unpack_headers
from semel.sealing.reseal import key_of, open_stored_answer
from semel.sealing.rules import Seals
from semel.stores.sql.damage import damage_of, repair
from semel.stores.sql.tables import BULKS, EVENTS, IMPORTS, ITEMS, MESSAGES, OPERATIONS, Noun

Document = dict[str, Json]
Damaged = Callable[[str, str], None]  # a row's name, and its damage
Values = Mapping[str, Any]
# Printed by `show` but never exported: a fingerprint allows testing guesses of a request.
_LEFT_OUT: Final = ("fingerprint", "nextAttempt", "audit", "ageSeconds", "bodyBytes")


def document_of(record: Record, now: int) -> dict[str, Json]:
    """Return a record for export: the fields of `show` without the fingerprint and those that depend on the time."""
    return {name: value for name, value in record_document(record, now, []).items() if name not in _LEFT_OUT}


def answer_document(record: Record, sealer: Seals | None = None, damaged: Damaged | None = None) -> dict[str, Json]:
    """Return the stored answer, a body that is not text in base64. Empty where none is stored, or it is damaged.

    A sealed answer stays sealed, in base64 with the name of its key, unless a ``sealer`` opens it;
    ``damaged`` is called where the sealer cannot.
    """
    answer = answer_of(record)
    if answer is None:
        return {"answerHeaders": None, "answerBody": None, "answerBodyBase64": None, "answerSealedUnder": None}
    if record.answer_kind == AnswerKind.SEALED:
        stored = answer
        answer = None
        if sealer is not None:
            try:
                answer = open_stored_answer(record, stored, sealer)
            except SemelError:
                if damaged is not None:
                    damaged(f"operation {uuid_text(record.operation_id)}", f"sealed under {key_of(stored)!r}")
        if answer is None:
            body = base64.b64encode(stored.body).decode("ascii")
            key = key_of(stored)
            return {"answerHeaders": None, "answerBody": None, "answerBodyBase64": body, "answerSealedUnder": key}
    headers: Json = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in answer.headers]
    try:
        text, encoded = answer.body.decode("utf-8"), None
    except UnicodeDecodeError:
        text, encoded = None, base64.b64encode(answer.body).decode("ascii")
    return {"answerHeaders": headers, "answerBody": text, "answerBodyBase64": encoded, "answerSealedUnder": None}


def documents(engine: Engine, kind: str, *, contents: bool, damaged: Damaged) -> Iterator[Document]:
    """Yield every row of a kind, one page at a time; calls ``damaged`` for each unreadable row.

    Raises UsageFailed where the store cannot hold this kind.
    """
    if not is_kept_by(engine.store):
        raise UsageFailed(f"--of {kind} needs a SQL database: other stores have none")
    noun, shown = KINDS[kind]
    for page in pages_of(engine, noun):
        for row in page:
            values = dict(zip(noun.columns, row, strict=False))
            damage = damage_of(kind, values)
            if damage is not None:
                values = repair(kind, values)
                damaged(row_name(kind, values), damage)
            yield shown(values, contents)


def row_name(kind: str, values: Values) -> str:
    """Return a row's name for people, whether damaged or not."""
    match kind:
        case "events":
            return f"event {values['id']}"
        case "messages":
            return f"message {values['message_id']} of consumer {values['consumer']}"
        case "items":
            return f"item {values['item_id']} of operation {uuid_text(values['operation_id'])}"
        case "imports":
            return f"import {values['idempotency_key']}"
        case _:
            return f"{kind.removesuffix('s')} {uuid_text(values['operation_id'])}"


def columns(kind: str, *, contents: bool) -> list[str]:
    """Return the names of the exported columns of a kind."""
    noun, shown = KINDS[kind]
    empty: dict[str, Any] = {**dict.fromkeys(noun.columns), "operation_id": bytes(16), "record_id": b"", "state": 3}
    empty |= {"id": bytes(16), "sha256": b""} if kind == "imports" else {}
    return list(shown({**empty, "payload": b"", "headers": b"{}", "retryable": 0}, contents))


def _operation(row: Values, contents: bool) -> Document:
    return {
        "operationId": uuid_text(row["operation_id"]),
        "recordId": row["record_id"].hex(),
        "tenant": row["tenant"],
        "caller": row["caller"],
        "operation": row["operation"],
        "businessReference": row["business_ref"],
        "state": _state_name(State, row["state"]),
        "resourceType": row["resource_type"],
        "resourceId": row["resource_id"],
        "errorCode": row["error_code"],
        "createdAt": time_text(row["created_at"]),
        "settledAt": time_text(row["settled_at"]),
        "forgetAfter": time_text(row["forget_after"]),
    }


def _bulk(row: Values, contents: bool) -> Document:
    counted = {name: row[name] for name in ("total", "done", "succeeded", "failed", "retryable", "unknown")}
    times = {"createdAt": time_text(row["created_at"]), "touchedAt": time_text(row["touched_at"])}
    return {"operationId": uuid_text(row["operation_id"]), **counted, **times}


def _item(row: Values, contents: bool) -> Document:
    document: Document = {
        "operationId": uuid_text(row["operation_id"]),
        "place": row["place"],
        "id": row["item_id"],
        "state": _state_name(ItemState, row["state"]),
        "targetId": row["target_id"],
        "resultId": row["result_id"],
        "errorCode": row["error_code"],
        "retryable": bool(row["retryable"]),
        "settledAt": time_text(row["settled_at"]),
    }
    return {**document, **_bytes("detail", row["detail"])} if contents else document


def _event(row: Values, contents: bool) -> Document:
    document: Document = {
        "id": row["id"],
        "topic": row["topic"],
        "type": row["type"],
        "aggregateType": row["aggregatetype"],
        "aggregateId": row["aggregateid"],
        "tenant": row["tenant"],
        "operationId": None if row["operation_id"] is None else uuid_text(row["operation_id"]),
        "state": _event_state(row),
        "tries": row["tries"],
        "reason": row["reason"],
        "createdAt": time_text(row["created_at"]),
        "publishedAt": time_text(row["published_at"]),
    }
    if not contents:
        return document
    headers: Json = [list(pair) for pair in unpack_headers(row["headers"])] if row["headers"] else []
    return {**document, "headers": headers, **_bytes("payload", row["payload"])}


def _event_state(row: Values) -> str:
    if row["published_at"] is not None:
        return "published"
    return "parked" if row["parked_at"] is not None else "postponed" if row["tries"] else "waiting"


def _message(row: Values, contents: bool) -> Document:
    handled, parked = row["handled_at"], row["parked_at"]
    return {
        "consumer": row["consumer"],
        "messageId": row["message_id"],
        "state": "handled" if handled is not None else "parked" if parked is not None else "tried",
        "tries": row["tries"],
        "reason": row["reason"],
        "handledAt": time_text(handled),
        "parkedAt": time_text(parked),
        "forgetAfter": time_text(row["forget_after"]),
    }


def _import(row: Values, contents: bool) -> Document:
    bulk_id = row["bulk_id"]
    return {
        "id": uuid_text(row["id"]),
        "key": row["idempotency_key"],
        "tenant": row["tenant"],
        "operation": row["operation"],
        "supplier": row["supplier"],
        "sha256": row["sha256"].hex(),
        "bytes": row["bytes"],
        "mediaType": row["media_type"],
        "state": _state_name(ImportState, row["state"]),
        "generation": row["generation"],
        "submissions": row["submissions"],
        **{name: row[name] for name in ("booked", "skipped", "failed", "unknown")},
        "rows": row["row_count"],
        "errorCode": row["error_code"],
        "reason": row["reason"],
        "contentKept": row["content_ref"],
        "bulkOperationId": None if bulk_id is None else uuid_text(bulk_id),
        "createdAt": time_text(row["created_at"]),
        "lastSeenAt": time_text(row["last_seen_at"]),
        "endedAt": time_text(row["ended_at"]),
        "forgetAfter": time_text(row["forget_after"]),
    }


def _state_name(kind: type[IntEnum], value: int) -> str:
    try:
        return kind(value).name
    except ValueError:
        return f"DAMAGED ({value})"


def _bytes(name: str, value: bytes | None) -> Document:
    """Return bytes as text, or in base64 where they are not text."""
    try:
        return {name: None if value is None else value.decode(), f"{name}Base64": None}
    except UnicodeDecodeError:
        assert value is not None
        return {name: None, f"{name}Base64": base64.b64encode(value).decode("ascii")}


KINDS: Final[Mapping[str, tuple[Noun, Callable[[Values, bool], Document]]]] = {
    "operations": (OPERATIONS, _operation),
    "bulks": (BULKS, _bulk),
    "items": (ITEMS, _item),
    "events": (EVENTS, _event),
    "messages": (MESSAGES, _message),
    "imports": (IMPORTS, _import),
}
