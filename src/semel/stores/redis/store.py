"""The Redis store (and Valkey's, and a cluster's): one script on one slot for a claim, a settlement, a replay.

A record is one string; the scripts read and write its head, and ``decide`` says what it means. Nothing that is open
or UNKNOWN has a time to live. What Redis may lose (what was acknowledged and not on disk, or not on a replica that
takes over) is lost with its fences: see ``docs/redis.md`` before money hangs on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final

from semel.core.contract import Capabilities, Identity, Observed, Turn
from semel.core.decide import decide, first_grant, is_grant_new
from semel.core.flow import Ask, Flow, ask
from semel.core.model import (
    ANSWERED_STATES,
    STORED_ANSWERS,
    Audit,
    Claim,
    Effects,
    Find,
    Found,
    Proceed,
    Purged,
    QuotaExceeded,
    Record,
    Renewal,
    Reseal,
    Resolution,
    Resolved,
    Resolving,
    Scope,
    Settled,
    Settlement,
    Settling,
    State,
    Terms,
    Verdict,
)
from semel.core.record import DIGEST_BYTES, answer_digest, pack_headers
from semel.core.settle import abandon_row, action_of, mark_row, renew_row, reseal_row, resolve_row, settle_row
from semel.core.timing import PURGE_GRACE_US
from semel.errors import SchemaError
from semel.steps.findings import steps_after
from semel.stores.memory.store import grant_row
from semel.stores.redis.keys import TAGS, Keys
from semel.stores.redis.layout import Names, decode_any, frames, number
from semel.stores.redis.pages import Pages, audit_line, operation_calls
from semel.stores.redis.rows import LUA, Rows
from semel.stores.redis.scripts import Calls, RedisCall
from semel.stores.redis.settings import memory, observe, setting

MIGRATIONS: Final = ("0001_first", "0002_markers")
SCHEMA_VERSION: Final = len(MIGRATIONS)
MARKER_MS: Final = 100 * 365 * 86_400_000  # with a time to live, so that every eviction policy may choose it
LOST: Final = (
    "the server has lost keys of this store (it evicts, was flushed, or keys were deleted by hand): records may be "
    "gone, and a retry of their keys would run again"
)
LOST_REMEDY: Final = (
    "set maxmemory-policy noeviction, find out from your own systems which commands ran, then run: "
    "semel migrate --records-may-be-lost"
)
_NEVER_SETTLED: Final = frames((None,) * 8)
_NOTHING_YET: Final = _NEVER_SETTLED + frames((None,) * 3)
_CLAIM: Final = LUA["claim"]
_SETTLE: Final = LUA["settle"]
_SAYS_NOTHING: Final = (None,) * 5
_UNSAID: Final = frames(_SAYS_NOTHING)
_NO_DIGEST: Final = frames((None,) * 3)
_NO_ANSWER: Final = frames((None,) * 3)


class RedisStore:
    """The store contract in Redis scripts.

    Parameters: ``prefix`` of every key, so that several stores share a server; ``wait_replicas`` how many replicas the
    driver waits for, of which :meth:`observe` speaks; ``accepts_loss`` whether EXTERNAL commands may run on a
    server that has lost records.
    """

    capabilities = Capabilities(
        survives_process_crash=True,
        survives_server_crash=False,
        shared_between_processes=True,
        atomic_with_business_writes=False,
    )

    def __init__(
        self, prefix: str = "semel", *, wait_replicas: int = 0, accepts_loss: bool = False, cluster: bool = False
    ) -> None:
        self.keys = Keys(prefix)
        self._wait_replicas = wait_replicas
        self._rows = Rows(self.keys)
        self._pages = Pages(self._rows)
        self.accepts_loss = accepts_loss
        self._cluster = cluster
        self._marked = False  # whether the store is known to have its markers: one of the first version has none
        self._due_by_node: list[list[bytes]] | None = None  # a cluster's due sets; first the turns' node
        self._newest = 0  # the last place that this process has seen: what it claims next is listed after it

    # --- a command's life -------------------------------------------------------------------

    def claim(self, claims: Sequence[Claim]) -> Flow[list[Verdict]]:
        named = [frame_names(claim) for claim in claims]
        pairs = zip(claims, named, strict=True)
        calls = [self._claim_call(*pair, place) for place, pair in enumerate(pairs, self._newest)]
        replies = yield from ask(Calls(tuple(calls)))
        verdicts: list[Verdict] = []
        for claim, names, reply in zip(claims, named, replies, strict=True):
            now = int(reply[0])
            if reply[1] is None:
                self._newest = max(self._newest, int(reply[2]))
                verdicts.append(Proceed(first_grant(claim, now)))
            else:
                row = decode_any(reply[1], claim.id, names=names_of(claim, names))
                verdicts.append((yield from self._decide(claim, now, row)))
        return verdicts

    def _claim_call(self, claim: Claim, names: bytes, after: int) -> RedisCall:
        id, nonce = claim.id, claim.nonce
        operation = claim.operation_id.hex().encode()
        granted, starts, spans, due = _terms(claim.terms, claim.holder)
        claimed = names + granted
        tag, lengths = self.keys.tag(id), b"%08d%08d" % (len(claimed), len(_NEVER_SETTLED))
        keys = (_record(tag, id), b"%bo:%b" % (tag, operation), tag + b"all", tag + b"open", tag + b"due")
        if self._marked and claim.terms.effects == Effects.EXTERNAL and not self.accepts_loss:
            keys = (*keys, self.keys.marker(id))  # type: ignore[assignment]
        return RedisCall(
            _CLAIM,
            keys,
            (
                *(id, starts, nonce.hex().encode(), operation, *spans),
                *(lengths, claimed, _NOTHING_YET, due, after),
            ),
        )

    def _decide(self, claim: Claim, now: int, row: Record | None) -> Flow[Verdict]:
        """Decide on a record that is there, and write what that grants; if another writer was first, decide again."""
        while row is not None:
            verdict = decide(row, claim, now, begun=False)  # there are no steps on Redis
            if type(verdict) is not Proceed or not is_grant_new(row, verdict.grant):
                return verdict
            if (yield from self._rows.replace(row, grant_row(row, claim, verdict.grant), now)):
                return verdict
            now, row = yield from self._rows.look(claim.id)
        return (yield from self.claim((claim,)))[0]  # forgotten in the meantime

    def look(self, claims: Sequence[Claim]) -> Flow[list[Verdict | None]]:
        found = yield from self._rows.look_all([claim.id for claim in claims])
        verdicts: list[Verdict | None] = []
        for claim, (now, row) in zip(claims, found, strict=True):
            verdict = None if row is None else decide(row, claim, now, begun=False)
            writes = type(verdict) is Proceed and is_grant_new(row, verdict.grant)
            verdicts.append(None if writes else verdict)
        return verdicts

    def claim_here(self, claim: Claim) -> Flow[Verdict]:
        return (yield from self.claim((claim,)))[0]

    def settle_within(self, settlement: Settlement) -> Ask[Any]:
        raise NotImplementedError("Redis holds no transaction with the handler's writes")

    def together(self) -> Flow[None]:
        yield from ()

    def take_place(self, claim: Claim) -> Flow[QuotaExceeded | None]:
        raise NotImplementedError("this store does not count new keys: it declares no counts_new_keys")

    def settle(self, settlements: Sequence[Settlement]) -> Flow[list[Settling]]:
        # Only an answer ends a record whatever was before it; the rules say what else may become of it.
        ends = [word for word in settlements if word.state in ANSWERED_STATES]
        replies = iter((yield from ask(Calls(tuple([self._settle_call(word) for word in ends])))) if ends else ())
        settled: list[Settling] = []
        for word in settlements:
            if word.state in ANSWERED_STATES and int(next(replies)) == 1:
                settled.append(Settled())
            else:
                settled.append((yield from self._settle_by_rule(word)))
        return settled

    def _settle_call(self, word: Settlement) -> RedisCall:
        answer, large = word.answer, _NO_ANSWER
        said = (word.doubt, word.business_ref, word.resource_type, word.resource_id, word.error_code)
        small = _UNSAID if said == _SAYS_NOTHING else frames(said)
        if answer is None:
            small += _NO_DIGEST
        else:
            block = pack_headers(answer.headers)
            small += b"%d:%b-1:%b" % (
                DIGEST_BYTES,
                answer_digest(answer.status, block, answer.body),
                _status(answer.status),
            )
            if word.answer_kind in STORED_ANSWERS:
                large = b"%d:%b-1:%d:%b" % (len(block), block, len(answer.body), answer.body)
        id, tag = word.id, self.keys.tag(word.id)
        return RedisCall(
            _SETTLE,
            (_record(tag, id), tag + b"open", tag + b"due"),
            (
                *(id, number(word.fence), word.nonce.hex().encode(), b"%02d" % word.state, b"%d" % word.answer_kind),
                *(b"%08d" % len(small), small + large, PURGE_GRACE_US, tag + b"o:"),
            ),
        )

    def _settle_by_rule(self, word: Settlement) -> Flow[Settling]:
        while True:
            now, row = yield from self._rows.look(word.id)
            reply, written = settle_row(row, word, now)
            if row is None or written is None or (yield from self._rows.replace(row, written, now)):
                return reply

    def mark_not_kept(self, renewals: Sequence[Renewal]) -> Flow[list[bool]]:
        done: list[bool] = []
        for renewal in renewals:
            done.append((yield from self._rows.rewrite(renewal.id, partial(_mark, renewal=renewal))))
        return done

    def reseal(self, changes: Sequence[Reseal]) -> Flow[list[bool]]:
        done: list[bool] = []
        for change in changes:
            done.append((yield from self._rows.rewrite(change.id, partial(_reseal_rule, change=change))))
        return done

    def renew(self, renewals: Sequence[Renewal]) -> Flow[list[bool]]:
        replies = (yield from ask(Calls(tuple([self._renew_call(each) for each in renewals])))) if renewals else []
        done: list[bool] = []
        for renewal, reply in zip(renewals, replies, strict=True):
            by_rule = partial(_renew_rule, renewal=renewal)
            done.append(int(reply) == 1 or (yield from self._rows.rewrite(renewal.id, by_rule)))
        return done

    def _renew_call(self, renewal: Renewal) -> RedisCall:
        id = renewal.id
        names = (id, number(renewal.fence), renewal.nonce.hex().encode())
        return RedisCall(LUA["renew"], (self.keys.record(id), self.keys.due(id)), names)

    def abandon(self, nonces: Sequence[tuple[bytes, bytes]]) -> Flow[list[bool]]:
        done: list[bool] = []
        for id, nonce in nonces:
            done.append((yield from self._rows.rewrite(id, partial(_abandon_rule, nonce=nonce))))
        return done

    def resolve(self, resolution: Resolution) -> Flow[Resolving]:
        while True:
            now, row = yield from self._rows.look(resolution.id)
            if resolution.ends is not None:
                _ = steps_after(row, resolution, None, now)  # there are no steps, and none can be answered for
            reply, written = resolve_row(row, resolution, now)
            if row is None or written is None or not isinstance(reply, Resolved):
                return reply
            line = audit_line(now, resolution, action_of(resolution, row), written.fence)
            if (yield from self._rows.replace(row, written, now, line)):
                return reply

    # --- lists and upkeep -------------------------------------------------------------------

    def read(self, ids: Sequence[bytes]) -> Flow[list[Record | None]]:
        return [row for _, row in (yield from self._rows.look_all(ids))]

    def read_operations(self, operation_ids: Sequence[bytes]) -> Flow[list[Record | None]]:
        calls = operation_calls(self._rows, operation_ids)
        replies = (yield from ask(Calls(calls))) if calls else []
        places = [[id for id in replies[at : at + TAGS] if id is not None] for at in range(0, len(replies), TAGS)]
        rows = yield from self.read([id for ids in places for id in ids])
        found = {row.operation_id: row for row in rows if row is not None}
        return [found.get(operation_id) for operation_id in operation_ids]

    def find(self, query: Find) -> Flow[Found]:
        return self._pages.find(query)

    def lapse(self, limit: int) -> Flow[list[Record]]:
        return self._pages.lapse(limit)

    def turn(self, kind: str, mine: int | None, every_us: int) -> Flow[Turn]:
        """As :class:`~semel.core.contract.TakesTurns`, in one script for each server: only reapers take turns here."""
        due = [tag + b"due" for tag in self.keys.tags]
        arguments = (b"" if mine is None else mine, every_us)
        if not self._cluster:
            call = RedisCall(LUA["turn"], (self.keys.turns, *due), arguments)
            [(now, turn, earliest, _)] = yield from ask(Calls((call,)))
            return Turn(int(now), int(turn), None if earliest == b"" else int(earliest))
        known = self._due_by_node or [due]
        taking = RedisCall(LUA["turn"], (self.keys.turns,), (*arguments, *known[0]))
        first, *others = yield from ask(Calls((taking, *map(_earliest_call, known[1:]))))
        answers = [(first[2], first[3]), *((earliest, elsewhere) for _, earliest, elsewhere in others)]
        unread = [each for _, elsewhere in answers for each in elsewhere]
        by_node = [[each for each in sets if each not in unread] for sets in known]
        while unread:
            [(_, earliest, elsewhere)] = yield from ask(Calls((_earliest_call(unread),)))
            answers.append((earliest, elsewhere))
            by_node.append([each for each in unread if each not in elsewhere])
            unread = list(elsewhere)
        # Where slots have moved, the next turn asks each node anew.
        is_known = len(by_node) == len(known) or self._due_by_node is None
        self._due_by_node = by_node if is_known else None
        found = [int(earliest) for earliest, _ in answers if earliest != b""]
        return Turn(int(first[0]), int(first[1]), min(found, default=None))

    def purge(self, after: int | None, chunk: int) -> Flow[Purged]:
        return self._pages.purge(after, chunk)

    def forget_quotas(self) -> Flow[int]:
        raise NotImplementedError("this store does not count new keys: it declares no counts_new_keys")

    def counts(self) -> Flow[dict[int, int]]:
        return self._pages.counts()

    def audit(self, record: bytes | None, limit: int) -> Flow[list[Audit]]:
        return self._pages.audit(record, limit)

    def observe(self) -> Flow[list[Observed]]:
        """What the server's settings make of the store's promise, and whether it has lost keys already."""
        observed = yield from observe(self.keys.tags, self._wait_replicas)
        gone = (yield from self._missing_markers()) if self._marked else 0
        if gone:
            observed.append(
                Observed("records", "forgets", f"{LOST} ({gone} of {TAGS} markers are missing)", LOST_REMEDY)
            )
        return observed

    def _missing_markers(self) -> Flow[int]:
        calls = tuple([RedisCall(None, (marker,), (), "EXISTS") for marker in self.keys.markers])
        replies = yield from ask(Calls(calls))
        return TAGS - sum(int(reply) for reply in replies)

    def memory(self) -> Flow[set[tuple[int, int]]]:
        """Bytes in use and allowed (0: no bound), of each server that holds a part of the records."""
        return memory(self.keys.tags)

    def setting(self, name: str) -> Flow[set[str]]:
        """What a setting is on every server that holds a part of the records. Refused where CONFIG GET is."""
        return setting(self.keys.tags, name)

    def identity(self) -> Flow[Identity | None]:
        [pairs] = yield from ask(Calls((RedisCall(None, (self.keys.meta,), (), "HGETALL"),)))
        fields = {bytes(name).decode(): bytes(value) for name, value in zip(pairs[::2], pairs[1::2], strict=True)}
        if not fields:
            # A flush takes the markers too: what is left of them tells that there was a store.
            self._marked = (yield from self._missing_markers()) < TAGS
            return None
        version = int(fields["schema_version"])
        self._marked = version >= SCHEMA_VERSION
        return Identity(
            fields["store_id"].decode(),
            version,
            int(fields["epoch"]),
            int(fields["id_format"]),
            fields["secret_check"],
        )

    def migrate(self, store_id: str, secret_check: bytes) -> Flow[list[str]]:
        known = yield from self.identity()
        if self._marked and (known is None or (yield from self._missing_markers())):
            raise SchemaError(f"{LOST}. Not migrated: {LOST_REMEDY}")
        return (yield from self._write_identity(known, store_id, secret_check))

    def restore(self, store_id: str, secret_check: bytes) -> Flow[list[str]]:
        """As :meth:`migrate` of a store that has lost keys: from now on its claims are granted again."""
        known = yield from self.identity()
        if known is not None:
            known = replace(known, schema_version=1)
        return (yield from self._write_identity(known, store_id, secret_check))

    def _write_identity(self, known: Identity | None, store_id: str, secret_check: bytes) -> Flow[list[str]]:
        """The markers go before the version that claims rely on: one that dies in between has written version 1."""
        done = 0 if known is None else known.schema_version
        if known is None:
            yield from ask(Calls((RedisCall(LUA["migrate"], (self.keys.meta,), (store_id.encode(), secret_check)),)))
        if done < SCHEMA_VERSION:
            marked = [RedisCall(LUA["mark"], (marker,), (MARKER_MS,)) for marker in self.keys.markers]
            yield from ask(Calls(tuple(marked)))
            yield from ask(Calls((RedisCall(LUA["version"], (self.keys.meta,), (SCHEMA_VERSION,)),)))
        self._marked = True
        return list(MIGRATIONS[done:])


def _earliest_call(sets: Sequence[bytes]) -> RedisCall:
    return RedisCall(LUA["earliest"], (sets[0],), tuple(sets[1:]))


def _record(tag: bytes, id: bytes) -> bytes:
    """As ``Keys.record``, and the names above as the others of ``Keys``, whose tag is looked up once."""
    return b"%br:%b" % (tag, id.hex().encode())


# What is the same in many claims is written down once: a process has few policies, and its callers come again.
_TEXTS_MAX: Final = 1024


def frame_names(claim: Claim) -> bytes:
    """What a claim is about, as its record has it."""
    id, _, scope, key_hash, recipe, fingerprint = claim[:6]
    return b"%d:%b%b%d:%b%b%d:%b" % (
        *(len(id), id, _scope(scope), len(key_hash), key_hash, _recipe(recipe)),
        *(len(fingerprint), fingerprint),
    )


def names_of(claim: Claim, framed: bytes) -> Names:
    """The same, with what is read of it: a text, also where the claim's was an enumeration's."""
    id, _, scope, key_hash, recipe, fingerprint = claim[:6]
    return Names(framed, (id, *map(str, scope), key_hash, str(recipe), fingerprint))


@lru_cache(maxsize=_TEXTS_MAX)
def _scope(scope: Scope) -> bytes:
    return frames(scope)


@lru_cache(maxsize=_TEXTS_MAX)
def _recipe(recipe: str) -> bytes:
    return frames((recipe,))


@lru_cache(maxsize=_TEXTS_MAX)
def _terms(terms: Terms, holder: str) -> tuple[bytes, bytes, tuple[bytes | int, ...], bytes]:
    """The framed fields of a claim that its terms fix, its first state, its spans, and what a reaper must wait for."""
    granted = frames((int(terms.effects), holder, 1, 0, 0, terms.attempts_max, int(terms.after_expiry)))
    spans = (terms.lease_us, terms.deadline_us, terms.dedup_us, number(terms.answer_us), number(terms.tombstone_us))
    return granted, b"%02d" % terms.starts, spans, _first_due(terms)


@lru_cache
def _status(status: int | None) -> bytes:
    return frames((status,))


def _first_due(terms: Terms) -> bytes:
    """As ``due_at`` of the record that a first grant writes, of which only the script knows the times."""
    if terms.starts != State.PROCESSING:
        return b""
    return b"dedup" if terms.effects == Effects.IDEMPOTENT and terms.attempts_max > 1 else b"lease"


def _mark(row: Record | None, now: int, renewal: Renewal) -> Record | None:
    return mark_row(row, renewal)


def _reseal_rule(row: Record | None, now: int, change: Reseal) -> Record | None:
    return reseal_row(row, change)


def _renew_rule(row: Record | None, now: int, renewal: Renewal) -> Record | None:
    return renew_row(row, renewal, now)


def _abandon_rule(row: Record | None, now: int, nonce: bytes) -> Record | None:
    return abandon_row(row, nonce, now)


__all__ = ["LUA", "MIGRATIONS", "RedisStore", "frame_names", "names_of"]
