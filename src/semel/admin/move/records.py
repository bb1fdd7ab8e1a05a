"""Copy one record to another store: the same key, request, outcome and answer, written by the verbs of every store.

A copy is claimed and settled as a command is, with the original's operation id and remaining retentions. The mover
reads a copy that exists and only completes it, so you can run an interrupted move again, and a finished one does
nothing. It reads every copy back and compares it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from typing import Final

from semel.admin.failures import CommandFailed
from semel.core.identity import uuid_text
from semel.core.model import (
    OPEN_STATES,
    STORED_ANSWERS,
    AfterExpiry,
    Answer,
    AnswerKind,
    Claim,
    Effects,
    Record,
    Resolution,
    Scope,
    Settlement,
    State,
    Terms,
)
from semel.core.record import answer_of
from semel.engine.sync_engine import Engine
from semel.sealing.rules import key_name

HOLDER: Final = "semel move"
MOMENT_US: Final = 60_000_000  # the lease and the deadline of a copy: no other process runs it, even after they end
STEPS_MAX: Final = 8
_ALIKE: Final = (
    *("id", "tenant", "caller", "operation", "key_hash", "recipe", "fingerprint", "state", "effects", "generation"),
    *("operation_id", "after_expiry", "business_ref", "resource_type", "resource_id", "answer_kind", "status"),
    *("error_code", "headers", "body"),
)


_SEALED: Final = ("answer_kind", "headers", "body")  # fields that sealing an answer changes, beside its digest


class Mover:
    """Copies records from one store into another.

    Parameters: both engines, open; ``now`` the time of the source's store in microseconds.
    """

    def __init__(self, source: Engine, target: Engine, now: int) -> None:
        self._source = source
        self._target = target
        self._ahead = now - time.monotonic_ns() // 1000
        self.copied = self.there = self.over = 0

    def move(self, ids: Sequence[bytes]) -> None:
        """Copy the records of these ids, and verify the copies.

        Raises CommandFailed where a record cannot be copied, or the target has a different one; StoreError.
        """
        found = self._source.perform("read", lambda: self._source.store.read(ids))
        now = time.monotonic_ns() // 1000 + self._ahead
        wanted = {}
        for record in found:
            if record is None or (record.forget_after is not None and record.forget_after <= now):
                self.over += 1
                continue
            check_movable(record)
            wanted[record.id] = record
        there = self._look(wanted)
        for id in [id for id, copy in there.items() if copy is not None and is_sealed_anew(wanted[id], copy)]:
            del wanted[id], there[id]
            self.there += 1
        known = {id for id, copy in there.items() if copy is not None and is_copy(wanted[id], copy)}
        for generation in range(max((record.generation for record in wanted.values()), default=0) + 1):
            for _ in range(STEPS_MAX):
                left = [id for id, record in wanted.items() if not _is_done(record, there[id], generation)]
                if not left:
                    break
                self._step([(wanted[id], there[id]) for id in left], generation, now)
                there |= self._look(left)
        for id, record in wanted.items():
            copy = there[id]
            if copy is None or not is_copy(record, copy):
                raise CommandFailed(
                    f"{describe_record(record)} could not be verified in the target; run semel move again"
                )
        self.there += len(known)
        self.copied += len(wanted) - len(known)

    def _look(self, ids: Sequence[bytes] | dict[bytes, Record]) -> dict[bytes, Record | None]:
        asked = list(ids)
        if not asked:
            return {}
        rows = self._target.perform("read", lambda: self._target.store.read(asked))
        return dict(zip(asked, rows, strict=True))

    def _step(self, pairs: Sequence[tuple[Record, Record | None]], generation: int, now: int) -> None:
        """Take each copy one step further: claim, settle or resolve it."""
        claims: list[Claim] = []
        settlements: list[Settlement] = []
        for record, copy in pairs:
            if copy is not None and not _is_ours(record, copy):
                raise CommandFailed(
                    f"{describe_record(record)}: the target has a different record under its id; compare both stores"
                )
            last = generation == record.generation
            if copy is None or (copy.state == State.FAILED_NOT_REPLAYABLE and copy.generation == generation):
                claims.append(claim_of(record, generation, now))
            elif copy.state in OPEN_STATES or (copy.state == State.UNKNOWN and last):
                settlements.append(copy_settlement(record, copy) if last else _doubtful(copy))
            elif copy.state == State.UNKNOWN:
                self._resolve(copy)
            else:
                raise CommandFailed(
                    f"{describe_record(record)}: its copy in the target has a different outcome; compare both stores"
                )
        if claims:
            self._target.perform("claim", lambda: self._target.store.claim(claims))
        if settlements:
            self._target.perform("settle", lambda: self._target.store.settle(settlements))

    def _resolve(self, copy: Record) -> None:
        resolution = Resolution(copy.id, copy.fence, False, None, HOLDER, "an earlier generation did not happen", True)
        self._target.perform("resolve", lambda: self._target.store.resolve(resolution))


def describe_record(record: Record) -> str:
    """Describe a record for people."""
    return f"operation {uuid_text(record.operation_id)} ({record.operation})"


def obstacles(record: Record) -> Iterator[str]:
    """Return the reason that a record cannot be copied; empty if it can."""
    if record.state in OPEN_STATES:
        yield "is open: it may be running, or its outcome is not known yet"
    elif record.state not in tuple(State):
        yield "is damaged"
    if record.answer_kind not in tuple(AnswerKind) or record.sealing_key_id:
        yield "has an answer of a kind that this version cannot copy"


def check_movable(record: Record) -> None:
    """Raise CommandFailed where a record cannot be copied."""
    for why in obstacles(record):
        raise CommandFailed(f"{describe_record(record)} {why}; stop all writers, then see: semel doctor")
    if record.answer_kind in STORED_ANSWERS and answer_of(record) is None:
        raise CommandFailed(
            f"{describe_record(record)} is damaged: its answer does not match its checksum; see: semel doctor"
        )


def is_copy(record: Record, copy: Record) -> bool:
    """Return whether a target record equals the source's; each store has its own times, fences and holders."""
    alike = all(getattr(record, name) == getattr(copy, name) for name in _ALIKE)
    digests = record.answer_kind not in STORED_ANSWERS or record.answer_digest == copy.answer_digest
    return alike and digests and (record.state != State.UNKNOWN or record.doubt == copy.doubt)


def is_sealed_anew(record: Record, copy: Record) -> bool:
    """Return whether a copy differs in the seal alone: `semel reseal` ran on one of the stores after the copy.

    Raises CommandFailed, with the remedy, where the two are under different keys, or one is not sealed.
    """
    both = (record, copy)
    if AnswerKind.SEALED not in (each.answer_kind for each in both) or not _is_ours(record, copy):
        return False
    if is_copy(record, copy):
        return False  # nothing has changed
    if any(each.answer_kind not in STORED_ANSWERS or answer_of(each) is None for each in both):
        return False
    if any(getattr(record, name) != getattr(copy, name) for name in _ALIKE if name not in _SEALED):
        return False
    here, there = (_seal_of(each) for each in both)
    if here != there:
        plain = "--plain --operation NAME " if None in (here, there) else ""
        raise CommandFailed(
            f"{describe_record(record)} was sealed again since it was copied: it is {_under(here)} in the source and "
            f"{_under(there)} in the target. Run semel reseal {plain}on both stores with one ring "
            "(SEMEL_SEAL_KEYS_FILE), and then semel move again"
        )
    return True


def _seal_of(record: Record) -> str | None:
    """Return the key's name that a stored answer is sealed under, "" for a sealer's own; None if it is not sealed."""
    return None if record.answer_kind != AnswerKind.SEALED else (key_name(record.body or b"") or "")


def _under(key: str | None) -> str:
    return "as it is" if key is None else f"under {key!r}"


def _is_ours(record: Record, copy: Record) -> bool:
    return copy.holder == HOLDER and copy.operation_id == record.operation_id and copy.recipe == record.recipe


def _is_done(record: Record, copy: Record | None, generation: int) -> bool:
    """Return whether a copy has completed this generation."""
    if copy is None:
        return False
    if generation >= record.generation:
        return is_copy(record, copy)
    return copy.generation > generation or is_copy(record, copy)


def claim_of(record: Record, generation: int, now: int) -> Claim:
    """Return the claim of a copy. Its nonce never changes: repeating a claim whose reply was lost reads it back."""
    seed = b"semel.move.1:" + record.id + record.operation_id + generation.to_bytes(8, "big")
    return Claim(
        record.id,
        hashlib.sha256(seed).digest()[:16],
        Scope(record.tenant, record.caller, record.operation),
        record.key_hash,
        record.recipe,
        record.fingerprint,
        record.operation_id,
        HOLDER,
        _terms(record, now),
    )


def _terms(record: Record, now: int) -> Terms:
    """Return the remaining durations of the original; full ones for a record that never expires."""
    answer_us, tombstone_us, deadline_us = record.answer_us, record.tombstone_us, MOMENT_US
    if record.answer_until is not None and record.forget_after is not None:
        answer_us, tombstone_us = max(1, record.answer_until - now), max(1, record.forget_after - now)
    if record.state == State.UNKNOWN:
        deadline_us = max(MOMENT_US, record.deadline_at - now)
    return Terms(
        Effects(record.effects),
        MOMENT_US,
        deadline_us,
        max(0, record.dedup_until - now),
        record.attempts_max,
        answer_us,
        tombstone_us,
        AfterExpiry(record.after_expiry),
        State.PROCESSING,
    )


def copy_settlement(record: Record, copy: Record) -> Settlement:
    """Return the settlement that gives a copy the original's outcome."""
    answer = answer_of(record)
    if answer is None and record.status is not None:
        answer = Answer(record.status, (), b"")  # not kept: only its status is left
    return Settlement(
        copy.id,
        copy.fence,
        copy.nonce,
        State(record.state),
        answer,
        AnswerKind(record.answer_kind),
        record.doubt,
        record.error_code,
        record.business_ref,
        record.resource_type,
        record.resource_id,
    )


def _doubtful(copy: Record) -> Settlement:
    return Settlement(copy.id, copy.fence, copy.nonce, State.UNKNOWN, doubt="moving")
