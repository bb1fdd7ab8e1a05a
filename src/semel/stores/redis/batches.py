"""What the scripts of claims and settlements are told of a batch.

Commands of one operation and caller have their names and terms in common, and most answers their status and headers. Of
such a batch that is written down once, and all else a column at a time, without a step of Python for each record.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain, repeat
from operator import add
from typing import Final

from semel.core.model import STORED_ANSWERS, Claim, Effects, Scope, Settlement, State, Terms
from semel.core.record import DIGEST_BYTES, answer_digest, digest_answers, pack_headers
from semel.stores.redis.layout import frames, number

_NEVER_SETTLED: Final = frames((None,) * 8)
_NOTHING_YET: Final = _NEVER_SETTLED + frames((None,) * 3)
_SAYS_NOTHING: Final = (None,) * 5
_UNSAID: Final = frames(_SAYS_NOTHING)
_NO_DIGEST: Final = frames((None,) * 3)
_NO_ANSWER: Final = frames((None,) * 3)
_DIGEST_LENGTH: Final = b"%d:" % DIGEST_BYTES
_NEVER_LENGTH: Final = b"%08d" % len(_NEVER_SETTLED)
_REST_OF_CLAIM: Final[Callable[[tuple[object, ...]], bytes]] = (b"%%08d%b%%b%%b" % _NEVER_LENGTH).__mod__
_REST_OF_SETTLEMENT: Final[Callable[[tuple[object, ...]], bytes]] = b"%b%b%b%d:%b".__mod__

Told = Iterable[bytes]


def tell_claims(claims: Sequence[Claim], marker: bytes | None) -> tuple[Told, list[bytes]]:
    """What the script is told of each claim, and what each is about as its record has it.

    Parameters: ``marker`` the name of the markers that claims rely on where forgetting would be a second effect.
    """
    if len(claims) == 1:
        return _tell_claim(claims[0], marker)
    ids, nonces, scopes, key_hashes, recipes, fingerprints, operation_ids, holders, terms, *_ = zip(
        *claims, strict=True
    )
    count, scope, recipe, holder, term = len(ids), scopes[0], recipes[0], holders[0], terms[0]
    named: Sequence[tuple[object, ...]]
    named = list(zip(ids, map(len, key_hashes), key_hashes, map(len, fingerprints), fingerprints, strict=True))
    if scopes.count(scope) == recipes.count(recipe) == count:
        names = list(map(_names(scope, recipe).__mod__, named))
    else:
        names = [_names(scopes[at], recipes[at]) % each for at, each in enumerate(named)]
    granting: Iterable[tuple[bytes, int, bytes]]
    if holders.count(holder) == terms.count(term) == count:
        granting = repeat(_terms(term, holder, marker), count)
    else:
        granting = [_terms(*each, marker) for each in zip(terms, holders, strict=True)]
    told, granted_lengths, granted = zip(*granting, strict=True)
    lengths = map(add, map(len, names), granted_lengths)
    own = map(hexlify, map(add, nonces, operation_ids))
    rest = map(_REST_OF_CLAIM, zip(lengths, names, granted, strict=True))
    return chain.from_iterable(zip(told, own, rest, strict=True)), names


def _tell_claim(claim: Claim, marker: bytes | None) -> tuple[Told, list[bytes]]:
    id, nonce, scope, key_hash, recipe, fingerprint, operation_id, holder, terms, *_ = claim
    told, granted_length, granted = _terms(terms, holder, marker)
    names = _names(scope, recipe) % (id, len(key_hash), key_hash, len(fingerprint), fingerprint)
    rest = _REST_OF_CLAIM((len(names) + granted_length, names, granted))
    return (told, hexlify(nonce + operation_id), rest), [names]


def tell_settlements(settlements: Sequence[Settlement]) -> Told:
    """What the script is told of each settlement."""
    if len(settlements) == 1:
        return _tell_settlement(settlements[0])
    ids, fences, nonces, states, answers, kinds, *says, _, _ = zip(*settlements, strict=True)
    count, state, kind = len(ids), states[0], kinds[0]
    if (
        kind in STORED_ANSWERS
        and states.count(state) == kinds.count(kind) == count
        and None not in answers
        and says == [(None,) * count] * len(says)
    ):
        statuses, headers, bodies = zip(*answers, strict=True)
        status = statuses[0]
        if statuses.count(status) == headers.count(headers[0]) == count:
            block = pack_headers(headers[0])
            framed = _status(status)
            small = b"%b%b" % (_UNSAID, _DIGEST_LENGTH)
            large = b"%b%d:%b-1:" % (framed, len(block), block)
            length = len(small) + DIGEST_BYTES + len(framed)
            write: Callable[[tuple[object, ...]], bytes] = (b"%%b%%016d%%b%02d%d%08d" % (state, kind, length)).__mod__
            told = map(write, zip(ids, fences, map(hexlify, nonces), strict=True))
            digests = digest_answers(status, block, bodies)
            rest = map(
                _REST_OF_SETTLEMENT,
                zip(repeat(small, count), digests, repeat(large, count), map(len, bodies), bodies, strict=True),
            )
            return chain.from_iterable(zip(told, rest, strict=True))
    return chain.from_iterable(map(_tell_settlement, settlements))


def _tell_settlement(settlement: Settlement) -> tuple[bytes, bytes]:
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


# What is the same in many claims is written down once: a process has few policies, and its callers come again.
_TEXTS_MAX: Final = 1024


@lru_cache(maxsize=_TEXTS_MAX)
def _names(scope: Scope, recipe: str) -> bytes:
    """What the names of a claim are written by, as a format: id, key's hash and fingerprint are left out."""
    framed, meant = frames(scope).replace(b"%", b"%%"), frames((recipe,)).replace(b"%", b"%%")
    return b"16:%%b%b%%d:%%b%b%%d:%%b" % (framed, meant)


@lru_cache(maxsize=_TEXTS_MAX)
def _terms(terms: Terms, holder: str, marker: bytes | None) -> tuple[bytes, int, bytes]:
    """What a claim's script has to know of its terms; the framed fields that they fix, and how long these are."""
    granted = frames((int(terms.effects), holder, 1, 0, 0, terms.attempts_max, int(terms.after_expiry)))
    if terms.effects != Effects.EXTERNAL:
        marker = None
    told = b"%02d%b%b" % (terms.starts, b"-" if marker is None else b"m", _first_due(terms))
    spans = (terms.lease_us, terms.answer_us, terms.tombstone_us, terms.deadline_us, terms.dedup_us)
    return told + b"".join(map(number, spans)) + (marker or b""), len(granted), granted + _NOTHING_YET


@lru_cache
def _status(status: int | None) -> bytes:
    """The key of a seal, of which there is none, and the status."""
    return frames((None, status))


def _first_due(terms: Terms) -> bytes:
    """As ``due_at`` of the record that a first grant writes, of which only the script knows the times."""
    if terms.starts != State.PROCESSING:
        return b"-"
    return b"d" if terms.effects == Effects.IDEMPOTENT and terms.attempts_max > 1 else b"l"


__all__ = ["tell_claims", "tell_settlements"]
