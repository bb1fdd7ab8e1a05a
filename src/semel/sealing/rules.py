"""The stored form of an answer with a secret: sealed, redacted, rebuilt or forgotten; and how it is read again.

Sealed data is recognised by its first bytes; a driver does the sealing. A sealed answer uses the columns of any other:
its status in clear, one header without a name that holds the name of the sealing key, and a body that holds the sealed
headers and body. It opens only for its own record, state and status.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, Protocol

from semel.core.model import Answer, AnswerKind, Replay, Resolution, Settlement, State, Unreadable, Unseal
from semel.errors import ConfigurationError, PolicyError, SemelError
from semel.sealing.redaction import redact

if TYPE_CHECKING:
    from semel.policy import Policy

MARK: Final = b"\x00semel sealed 1\x00"
UNSEALED: Final = "unsealed"
SEALING_KEY: Final = "sealing-key"
SEAL: Final = "seal"
_REMEDIES: Final = {
    UNSEALED: "a stored answer is sealed under the key {key}, and this process has no sealer: give the engine its "
    "sealer, Engine.connect(..., sealer=Sealer(ring))",
    SEALING_KEY: "a stored answer is sealed under the key {key}, which is not in this process's ring: add it behind "
    "the others",
    SEAL: "a stored answer cannot be decrypted with the key {key}: the data were changed, belong to another record, "
    "or {key} names a different key here; see semel doctor",
}
SEALED_REASONS: Final = tuple(_REMEDIES)
_ABOUT: Final = b"semel.answer.1:"
_LENGTH: Final = Struct(">I")
_STATUS: Final = Struct(">bi")
# Headers that a redacted body makes wrong, or that reveal it: a short secret's digest can be brute-forced.
_OF_THE_BODY: Final = frozenset(
    {b"content-length", b"content-digest", b"repr-digest", b"digest", b"content-md5", b"etag", b"signature"}
)


class Seals(Protocol):
    """The sealer that an engine needs. ``about``: the owner of the text, such as a record's id."""

    def seal(self, text: bytes, about: bytes) -> bytes: ...

    def open(self, kept: bytes, about: bytes) -> bytes: ...


def validate_sealer(sealer: Seals | None) -> Seals | None:
    """Validate an engine's sealer. Raises ConfigurationError, before the first request."""
    if sealer is None or all(callable(getattr(sealer, name, None)) for name in ("seal", "open")):
        return sealer
    raise ConfigurationError(
        f"sealer must be a Sealer, such as sealer=Sealer({{'2026-01': key}}); it is of type {type(sealer).__name__}"
    )


def seal_request(request: bytes, about: bytes, sealer: Seals | None) -> bytes:
    """Seal a request to be kept. Raises PolicyError for one that would pass for a sealed one."""
    if sealer is not None:
        return sealer.seal(request, about)
    if request.startswith(MARK):
        raise PolicyError(f"a command's request must not begin with {MARK!r}, which marks sealed ones")
    return request


def open_request(kept: bytes, about: bytes, sealer: Seals | None) -> bytes:
    """Open a kept request.

    Raises ConfigurationError if it was sealed and there is no sealer, and the sealer's errors.
    """
    if sealer is not None:
        return sealer.open(kept, about)
    if kept.startswith(MARK):
        raise ConfigurationError(
            "a stored request is sealed: give the engine its sealer, Engine.connect(..., sealer=...)"
        )
    return kept


def key_name(kept: bytes) -> str | None:
    """Return the name of the sealing key; None if the data is not sealed, or by a sealer of your own.

    >>> key_name(MARK + bytes([4]) + b"2026" + b"...")
    '2026'
    """
    if not kept.startswith(MARK) or len(kept) <= len(MARK):
        return None
    begin = len(MARK) + 1
    return kept[begin : begin + kept[begin - 1]].decode(errors="replace")


# --- answers --------------------------------------------------------------------------------------


def check_sealer(operation: str, policy: Policy, sealer: Seals | None) -> None:
    """Raise ConfigurationError if an operation's answers are to be sealed without a sealer."""
    if policy.answers == "seal" and sealer is None:
        raise ConfigurationError(
            f"{operation!r} is declared with answers='seal', and the engine has no sealer: "
            "Engine.connect(..., sealer=Sealer({'2026-01': key})), or answers='forget'"
        )


def seal_answer(answer: Answer, id: bytes, state: State, sealer: Seals) -> Answer:
    """Seal an answer for storage, for this record in this state alone."""
    # Its own form of the headers, which stores never see: names and values in one frame, and then the body.
    frames = b"".join([_LENGTH.pack(len(part)) + part for pair in answer.headers for part in pair])
    text = _LENGTH.pack(len(answer.headers)) + frames + answer.body
    kept = sealer.seal(text, about_answer(id, state, answer.status))
    return Answer(answer.status, ((b"", (key_name(kept) or "").encode()),), kept)


def about_answer(id: bytes, state: State, status: int | None) -> bytes:
    """Return the binding of a sealed answer."""
    return _ABOUT + id + _STATUS.pack(state, -1 if status is None else status)


def open_answer(sealed: Answer, id: bytes, state: State, sealer: Seals) -> Answer:
    """Decrypt an answer. Raises the sealer's errors, and PolicyError if the content is not an answer."""
    text = sealer.open(sealed.body, about_answer(id, state, sealed.status))
    try:
        [count] = _LENGTH.unpack_from(text, 0)
        parts, at = [], _LENGTH.size
        for _ in range(2 * count):
            [length] = _LENGTH.unpack_from(text, at)
            at += _LENGTH.size
            parts.append(text[at : at + length])
            at += length
    except Exception as error:
        raise PolicyError("the decrypted data is not an answer") from error
    return Answer(sealed.status, tuple(zip(parts[::2], parts[1::2], strict=True)), text[at:])


def reveal(verdict: Unseal, sealer: Seals | None) -> Replay | Unreadable:
    """Return the replay of a sealed answer if a key opens it, otherwise Unreadable."""
    name = key_name(verdict.answer.body)
    if sealer is None:
        return Unreadable(verdict.operation_id, UNSEALED, key=name)
    noted = verdict.answer.headers
    if len(noted) != 1 or noted[0] != (b"", (name or "").encode()):
        return Unreadable(verdict.operation_id, SEAL, key=name)
    try:
        answer = open_answer(verdict.answer, verdict.id, verdict.state, sealer)
    except ConfigurationError:
        return Unreadable(verdict.operation_id, SEALING_KEY, key=name)
    except SemelError:
        return Unreadable(verdict.operation_id, SEAL, key=name)
    return Replay(answer, verdict.operation_id, verdict.state)


def sealed_text(seen: Unreadable) -> str:
    """Say why a sealed answer does not open here, and what to do; for one of :data:`SEALED_REASONS`."""
    return _REMEDIES[seen.reason].format(key=repr(seen.key))


def cover(settlement: Settlement, policy: Policy, sealer: Seals | None) -> Settlement:
    """Put a settlement's answer into its stored form. Once for each permit, because each seal differs.

    The caller gets the answer itself.
    """
    answer = settlement.answer
    if answer is None:
        return settlement
    kept, kind = cover_answer(answer, settlement.answer_kind, settlement.id, settlement.state, policy, sealer)
    return settlement._replace(answer=kept, answer_kind=kind)


def cover_answer(
    answer: Answer, kind: AnswerKind, id: bytes, state: State, policy: Policy, sealer: Seals | None
) -> tuple[Answer, AnswerKind]:
    """Return the stored form of an answer, and its kind."""
    bare = Answer(answer.status, (), b"")  # no digest of the body either: a short secret could be tried out
    if kind != AnswerKind.KEPT or policy.answers == "forget":
        return bare, AnswerKind.NOT_KEPT
    if policy.answers == "rebuild":
        if state == State.SUCCEEDED:
            return bare, AnswerKind.REBUILT
        if sealer is None:  # a refusal made no resource to rebuild it from
            return bare, AnswerKind.NOT_KEPT
    if policy.redact and answer.body:
        body = redact(answer.body, policy.redact_paths)
        if body is None:  # the secret may be in it
            return bare, AnswerKind.NOT_KEPT
        if body != answer.body:
            headers = tuple(pair for pair in answer.headers if pair[0].lower() not in _OF_THE_BODY)
            answer = Answer(answer.status, headers, body)
    if policy.answers == "keep" or sealer is None:
        return answer, kind
    return seal_answer(answer, id, state, sealer), AnswerKind.SEALED


def cover_resolution(resolution: Resolution, policy: Policy | None, sealer: Seals | None) -> Resolution:
    """Put the answer of an operator's, a reconciler's or a webhook's settlement into its stored form.

    Parameters: ``policy`` of the operation; None if it is not declared here: then all that can be sealed is.
    """
    answer = resolution.answer
    if resolution.result is not None and resolution.step is not None:
        answers = "seal" if policy is None else policy.answers
        resolution = resolution._replace(
            result=seal_part(resolution.result, about_step(resolution.id, resolution.step), answers, sealer)
        )
    if answer is None or resolution.answer_kind != AnswerKind.KEPT:
        return resolution
    if policy is None:
        if sealer is None:
            return resolution
        sealed_answer = seal_answer(answer, resolution.id, resolution.state, sealer)
        return resolution._replace(answer=sealed_answer, answer_kind=AnswerKind.SEALED)
    kept, kind = cover_answer(answer, AnswerKind.KEPT, resolution.id, resolution.state, policy, sealer)
    return resolution._replace(answer=kept, answer_kind=kind)


# --- results of steps and details of items --------------------------------------------------------


def about_step(id: bytes, step: str) -> bytes:
    """Return the binding of a step's sealed result: its record, and its displayed name."""
    return b"semel.step.1:" + id + step.encode()


def about_item(operation_id: bytes, place: int) -> bytes:
    """Return the binding of an item's sealed detail."""
    return b"semel.item.1:" + operation_id + place.to_bytes(8, "big")


def seal_part(text: bytes, about: bytes, answers: str, sealer: Seals | None) -> bytes:
    """Seal a step's result or an item's detail for storage; both are needed, so none is forgotten."""
    return text if answers == "keep" or sealer is None else sealer.seal(text, about)


def open_part(kept: bytes, about: bytes, sealer: Seals | None, what: str) -> bytes:
    """Open a step's result or an item's detail. Raises ConfigurationError and RecordUnreadableError.

    Only data marked as sealed is opened: data stored before there was a sealer is plain.
    """
    if not kept.startswith(MARK):
        return kept
    if sealer is None:
        raise ConfigurationError(
            f"{what} is sealed under the key {key_name(kept)!r}: give the engine its sealer, "
            "Engine.connect(..., sealer=...)"
        )
    return sealer.open(kept, about)
