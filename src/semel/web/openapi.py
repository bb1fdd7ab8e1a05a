"""What an OpenAPI document says of a protected operation: the header, the refusals, the promise."""

from __future__ import annotations

from typing import Any, Final

from semel.model import Effects
from semel.policy import Policy
from semel.web.problem import KINDS

GUARANTEES: Final = {
    Effects.ATOMIC: "one committed effect per key, under any crash: the record is in the effect's own transaction",
    Effects.IDEMPOTENT: "repeated only with the same derived keys, within the downstream's own deduplication",
    Effects.EXTERNAL: "never run twice for one key; an outcome that nobody can prove is reported as unknown",
}
_PROBLEM: Final = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "retryable": {"type": "boolean"},
        "keyAction": {"type": "string", "enum": ["keep", "new", "query"]},
        "retryAfter": {"type": "integer"},
        "operationId": {"type": "string"},
    },
    "required": ["type", "title", "status", "code", "retryable", "keyAction"],
}
STATUSES: Final = (400, 409, 422, 503)


def describe_operation(operation: dict[str, Any], name: str, policy: Policy, header: str = "Idempotency-Key") -> None:
    """Complete one operation object of an OpenAPI document in place."""
    parameters = operation.setdefault("parameters", [])
    if all(parameter.get("name", "").lower() != header.lower() for parameter in parameters):
        parameters.append(_header(policy, header))
    responses = operation.setdefault("responses", {})
    for status in STATUSES:
        codes = [kind.code for kind in KINDS if kind.status == status]
        known = responses.setdefault(str(status), {"description": "Refused by the command engine"})
        known.setdefault("content", {})["application/problem+json"] = {
            "schema": {**_PROBLEM, "properties": {**_PROBLEM["properties"], "code": {"type": "string", "enum": codes}}}  # type: ignore[dict-item]
        }
    assert isinstance(policy.effects, Effects)
    operation["x-semel"] = {
        "operation": name,
        "effects": policy.effects.name,
        "guarantee": GUARANTEES[policy.effects],
        "answerRetentionSeconds": policy.answer_seconds,
        "tombstoneRetentionSeconds": policy.tombstone_seconds,
    }


def _header(policy: Policy, header: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 255}
    if policy.key_format is not None:
        schema["minLength"] = policy.key_format.length_min
        if policy.key_format.uuid:
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
