"""Encodes the arguments of the claim and settlement scripts. Shared parts are written once."""

from __future__ import annotations

from binascii import hexlify
from functools import lru_cache
from typing import Final

from semel.core.model import STORED_ANSWERS, Claim, Effects, Scope, Settlement, State, Terms
from semel.core.record import DIGEST_BYTES, answer_digest, pack_headers
from semel.stores.redis.layout import frames, number

_NEVER_SETTLED: Final = frames((None,) * 8)
_NOTHING_YET: Final = _NEVER_SETTLED + frames((None,) * 3)
_SAYS_NOTHING: Final = (None,) * 5
_UNSAID: Final = frames(_SAYS_NOTHING)
_NO_DIGEST: Final = frames((None,) * 3)
_NO_ANSWER: Final = frames((None,) * 3)
_DIGEST_LENGTH: Final = b"%d:" % DIGEST_BYTES
_NEVER_LENGTH: Final = b"%08d" % len(_NEVER_SETTLED)

Arguments = tuple[bytes, ...]


def encode_claim(claim: Claim, marker: bytes | None) -> tuple[Arguments, bytes]:
    """Encode a claim's arguments, and its names in the form of its record.

    Parameters: ``marker`` the name of the markers that claims rely on where forgetting would be a second effect.
    """
    id, nonce, scope, key_hash, recipe, fingerprint, operation_id, holder, terms, *_ = claim
    told, granted_length, granted = _terms(terms, holder, marker)
    names = _names(scope, recipe) % (id, len(key_hash), key_hash, len(fingerprint), fingerprint)
    length = b"%08d" % (len(names) + granted_length)
    return (told, hexlify(nonce + operation_id), length + _NEVER_LENGTH + names + granted), names


def encode_settlement(settlement: Settlement) -> Arguments:
    """Encode a settlement's arguments."""
    id, fence, nonce, state, answer, kind, doubt, error_code, business_ref, resource_type, resource_id = settlement[:11]
    said = doubt, business_ref, resource_type, resource_id, error_code
    small = _UNSAID if said == _SAYS_NOTHING else frames(said)
    large = _NO_ANSWER
    if answer is None:
        small += _NO_DIGEST
    else:
        status, headers, body = answer
        block = pack_headers(headers)
        small += _DIGEST_LENGTH + answer_digest(status, block, body) + _status(status)
        if kind in STORED_ANSWERS:
            large = b"%d:%b-1:%d:%b" % (len(block), block, len(body), body)
    return b"%b%016d%b%02d%d%08d" % (id, fence, hexlify(nonce), state, kind, len(small)), small + large


# The parts that many claims share are encoded once: a process has few policies, and callers send many commands.
_TEXTS_MAX: Final = 1024


@lru_cache(maxsize=_TEXTS_MAX)
def _names(scope: Scope, recipe: str) -> bytes:
    """Make the format of a claim's names, with places for the id, the key's hash and the fingerprint."""
    framed, meant = frames(scope).replace(b"%", b"%%"), frames((recipe,)).replace(b"%", b"%%")
    return b"16:%%b%b%%d:%%b%b%%d:%%b" % (framed, meant)


@lru_cache(maxsize=_TEXTS_MAX)
def _terms(terms: Terms, holder: str, marker: bytes | None) -> tuple[bytes, int, bytes]:
    """Encode the terms for a claim's script: the framed fields that they fix, and the length of these."""
    granted = frames((int(terms.effects), holder, 1, 0, 0, terms.attempts_max, int(terms.after_expiry)))
    if terms.effects != Effects.EXTERNAL:
        marker = None
    told = b"%02d%b%b" % (terms.starts, b"-" if marker is None else b"m", _first_due(terms))
    spans = (terms.lease_us, terms.answer_us, terms.tombstone_us, terms.deadline_us, terms.dedup_us)
    return told + b"".join(map(number, spans)) + (marker or b""), len(granted), granted + _NOTHING_YET


@lru_cache
def _status(status: int | None) -> bytes:
    """Encode the sealing key, of which there is none, and the status."""
    return frames((None, status))


def _first_due(terms: Terms) -> bytes:
    """Compute ``due_at`` for the record that a first grant writes, whose times only the script knows."""
    if terms.starts != State.PROCESSING:
        return b"-"
    return b"d" if terms.effects == Effects.IDEMPOTENT and terms.attempts_max > 1 else b"l"


__all__ = ["encode_claim", "encode_settlement"]
