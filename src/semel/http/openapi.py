"""OpenAPI descriptions of protected operations: the header, the refusals, the guarantee."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from semel.core.model import Effects, State
from semel.http.problems import CALLER_UNKNOWN, KINDS, RECORD_UNREADABLE, STORE_UNAVAILABLE, Kind
from semel.operations.references import Source, sources
from semel.policy import Policy

GUARANTEES: Final = {
    Effects.ATOMIC: "one committed effect per key, under any crash: the record is in the effect's own transaction",
    Effects.IDEMPOTENT: "repeated only with the same derived keys, within the downstream's own deduplication window",
    Effects.EXTERNAL: "never run twice for one key; an outcome that cannot be proven is reported as unknown",
}
_PROBLEM: Final = {
    "type": {"type": "string"},
    "title": {"type": "string"},
    "detail": {"type": "string"},
    "retryable": {"type": "boolean"},
    "keyAction": {"type": "string", "enum": ["keep", "new", "query"]},
    "retryAfter": {"type": "integer", "minimum": 0},
    "operationId": {"type": "string", "format": "uuid"},
    "operation": {"type": "string"},
    "state": {"type": "string", "enum": [state.name for state in State]},
    "mayHaveHappened": {"type": "boolean"},
    "resource": {"type": "string"},
}
PROBLEM_SCHEMA: Final = {
    "type": "object",
    "properties": {"status": {"type": "integer"}, "code": {"type": "string"}, **_PROBLEM},
    "required": ["type", "title", "status", "detail", "code", "retryable", "keyAction"],
}
PROBLEM_NAME: Final = "SemelProblem"  # among the document's components
_REPLAYED: Final = {
    "schema": {"type": "string", "enum": ["true"]},
    "description": "Present if this is the stored answer to an earlier request with the same key",
}
_SECONDS: Final = {
    "schema": {"type": "integer", "minimum": 0},
    "description": "Seconds to wait before the next attempt",
}
_LIFETIME: Final = {
    "schema": {"type": "integer", "minimum": 0},
    "description": "For at least this many seconds after the first request with it, a retry gets "
    "the first answer. Afterwards, look by your business reference",
}
_LINK: Final = {
    "schema": {"type": "string"},
    "description": "The operation's status (`status`), the resource it made (`related`), and what the problem's code "
    "means (`describedby`)",
}
_CLAIMED: Final = frozenset({409, 422})  # that follow a claim
_DESCRIPTIONS: Final = {
    400: "The key is missing or malformed, or the request contradicts itself",
    401: "The caller is not known",
    403: "The caller may not do this",
    408: "The body took too long to arrive",
    409: "The command runs, its outcome is unknown, or its answer is no longer kept",
    413: "The request is larger or nested deeper than the server accepts",
    422: "The key belongs to another request",
    425: "Commands are not accepted as TLS early data",
    500: "The record cannot be read; the command is not run again",
    503: "The command store did not answer; nothing was done",
}


def problem_content(kinds: Iterable[Kind]) -> dict[str, Any]:
    """Return the `content` of a response with these problems; :func:`add_schemas` adds the schemas that it refers to.

    >>> from semel.http.problems import TOO_LARGE
    >>> problem_content([TOO_LARGE])["application/problem+json"]["schema"]["allOf"][0]
    {'$ref': '#/components/schemas/SemelProblem'}
    """
    named = list(kinds)
    narrowed = {
        "status": {"enum": sorted({kind.status for kind in named})},
        "code": {"enum": [kind.code for kind in named]},
    }
    schema = {"allOf": [{"$ref": f"#/components/schemas/{PROBLEM_NAME}"}, {"properties": narrowed}]}
    return {"application/problem+json": {"schema": schema}}


def add_schemas(document: dict[str, Any]) -> None:
    """Add the schemas that described operations refer to, to an OpenAPI document in place."""
    document.setdefault("components", {}).setdefault("schemas", {})[PROBLEM_NAME] = PROBLEM_SCHEMA


def describe_operation(
    operation: dict[str, Any],
    name: str,
    policy: Policy,
    header: str = "Idempotency-Key",
    counts: Iterable[str] = (),
    kinds: Sequence[Kind] = KINDS,
) -> None:
    """Complete one operation object of an OpenAPI document in place: its key, its refusals, its guarantee.

    Parameters: ``header`` that carries the key; ``counts`` names of the headers that count; ``kinds`` of problems in
    its surface's answers.
    """
    parameters = operation.setdefault("parameters", [])
    describe_key(operation, policy, header, counts)
    for option, source in zip(("key", "reference"), sources(policy.key_from, policy.reference_from), strict=True):
        _describe_source(parameters, option, source)
    describe_responses(operation, kinds)
    assert isinstance(policy.effects, Effects)
    operation["x-semel"] = {
        "operation": name,
        "effects": policy.effects.name,
        "guarantee": GUARANTEES[policy.effects],
        "answerRetentionSeconds": policy.answer_seconds,
        "tombstoneRetentionSeconds": policy.tombstone_seconds,
    }
    told = {"keyFrom": policy.key_from, "referenceFrom": policy.reference_from}
    operation["x-semel"] |= {name: source for name, source in told.items() if source is not None}


def describe_key(operation: dict[str, Any], policy: Policy, header: str, counts: Iterable[str]) -> None:
    """Add the key's header, and those that count, to the parameters of an operation that does not name them itself."""
    parameters = operation.setdefault("parameters", [])
    named = {parameter.get("name", "").lower() for parameter in parameters if parameter.get("in") == "header"}
    if policy.key_from is None and header.lower() not in named:
        parameters.append(_header(policy, header))
    for name in counts:
        if name not in named:
            parameters.append({"name": name, "in": "header", "schema": {"type": "string"}, "description": _COUNTS})


def describe_responses(operation: dict[str, Any], kinds: Iterable[Kind]) -> None:
    """Add the key's headers to an operation's successful responses, and add the responses that refuse it."""
    responses = operation.setdefault("responses", {})
    for status, response in responses.items():
        if status.startswith("2"):
            headers = response.setdefault("headers", {})
            headers.setdefault("Idempotency-Replayed", _REPLAYED)
            headers.setdefault("Idempotency-Key-Lifetime", _LIFETIME)
            headers.setdefault("Link", _LINK)
    by_status: dict[int, list[Kind]] = {}
    for kind in kinds:
        by_status.setdefault(kind.status, []).append(kind)
    for number, several in sorted(by_status.items()):
        known = responses.setdefault(str(number), {"description": _DESCRIPTIONS.get(number, several[0].title)})
        known.setdefault("content", {}).update(problem_content(several))
        headers = known.setdefault("headers", {})
        headers.setdefault("Semel-Code", {"schema": {"type": "string"}, "description": "The problem's code"})
        if number in (409, 503):
            headers.setdefault("Retry-After", _SECONDS)
        headers.setdefault("Link", _LINK)
        if number in _CLAIMED:
            headers.setdefault("Idempotency-Key-Lifetime", _LIFETIME)


_COUNTS: Final = "It is part of the request: send it unchanged with every retry."
_SAID: Final = {
    "key": "This command's idempotency key: send the same one with every retry of the request.",
    "reference": "This command's business reference: each has at most one open or successful execution.",
}


def _describe_source(parameters: list[dict[str, Any]], option: str, source: Source | None) -> None:
    """Note at a path parameter that it names the command; a member of the body is noted at the operation."""
    if source is None or source.kind != "path":
        return
    for parameter in parameters:
        if parameter.get("in") == "path" and parameter.get("name") == source.steps[0]:
            parameter["description"] = f"{parameter.get('description', '')} {_SAID[option]}".strip()


def _header(policy: Policy, header: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 255}
    if policy.key_format is not None:
        schema["minLength"] = policy.key_format.length_min
        if policy.key_format.uuid or policy.key_format.uuid7_max_age is not None:
            schema["format"] = "uuid"
        if policy.key_format.pattern is not None:
            schema["pattern"] = policy.key_format.pattern
    hours = policy.answer_seconds / 3600
    return {
        "name": header,
        "in": "header",
        "required": policy.key == "required",
        "schema": schema,
        "description": (
            "One key per intent: send the same key with every retry of the same request. "
            f"The first answer is replayed for {hours:g} hours."
        ),
    }


def operation_responses(refused: Iterable[Kind]) -> dict[int, dict[str, Any]]:
    """Return the responses of the status resource; `refused` are the problems that only it has."""
    found: dict[int, list[Kind]] = {}
    for kind in (*refused, CALLER_UNKNOWN, RECORD_UNREADABLE, STORE_UNAVAILABLE):
        found.setdefault(kind.status, []).append(kind)
    responses: dict[int, dict[str, Any]] = {
        200: {"description": "Its state", "content": {"application/json": {"schema": _OPERATION}}}
    }
    for status, kinds in sorted(found.items()):
        responses[status] = {"description": kinds[0].title, "content": problem_content(kinds)}
    responses[CALLER_UNKNOWN.status]["content"]["application/json"] = {}  # the application's own check decides this
    return responses


_TIME: Final = {"type": ["string", "null"], "format": "date-time"}
_OPERATION: Final = {
    "type": "object",
    "properties": {
        "operationId": {"type": "string", "format": "uuid"},
        "operation": {"type": "string"},
        "state": {"type": "string", "enum": [*(state.name for state in State), "UNREADABLE"]},
        "running": {"type": "boolean"},
        "answerKept": {"type": "boolean"},
        "attempt": {"type": "integer", "minimum": 1},
        "createdAt": _TIME,
        "settledAt": _TIME,
        "answerUntil": _TIME,
        "doubt": {"type": ["string", "null"]},
        "businessReference": {"type": "string"},
        "errorCode": {"type": "string"},
        "status": {"type": "integer"},
        "resource": {
            "type": "object",
            "properties": {"type": {"type": ["string", "null"]}, "id": {"type": "string"}},
            "required": ["type", "id"],
        },
    },
    "required": ["operationId", "operation", "state", "running", "answerKept", "createdAt"],
}
