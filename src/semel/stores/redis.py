"""The Redis store (and Valkey's, and a cluster's): one script on one slot for a claim, a settlement, a replay.

A record is one string; the scripts read and write its head, and ``decide`` says what it means. Records share their
slot with a few small keys of the same *tag*: a sorted set of what is open, one of what is UNKNOWN, the operation's
own key. Nothing that is open or UNKNOWN has a time to live. What Redis may lose (what was acknowledged and not on
disk, or not on a replica that takes over) is lost with its fences: see ``docs/guarantees.md`` before money hangs on it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from semel.flow import Ask, Flow, ask
from semel.model import (
    ANSWERED_STATES,
    AnswerKind,
    Audit,
    Claim,
    Find,
    Found,
    Proceed,
    Purged,
    Record,
    Renewal,
    Resolution,
    Resolved,
    Resolving,
    Settled,
    Settlement,
    Settling,
    State,
    Verdict,
)
from semel.rules.decide import decide, first_grant, is_grant_new
from semel.rules.lease import PURGE_GRACE_US, may_drop_answer, may_forget
from semel.rules.settle import abandoned_row, lapsed_row, marked_row, renewed_row, resolved_row, settled_row
from semel.rules.stored import answer_digest, matches, pack_headers
from semel.stores.base import Capabilities, Identity
from semel.stores.memory import granted_row
from semel.stores.redis_layout import (
    BLANK,
    HEAD_BYTES,
    PLACES,
    SMALL_READ,
    decode,
    decode_any,
    encode,
    frames,
    number,
    seen,
    small_bytes,
)
from semel.stores.scripts import Call, Calls, Scan, scripts

TAGS: Final = 64  # slots that the records are spread over; part of the layout, never to be changed
SCHEMA_VERSION: Final = 1
FIND_CHUNK: Final = 200
AUDIT_MOST: Final = 10_000
_EMPTY: Final = b""


def _constants() -> str:
    places = ", ".join(f"{name} = {{{begin + 1}, {end}}}" for name, (begin, end) in PLACES.items())
    return f"local AT = {{{places}}}\nlocal HEAD = {HEAD_BYTES}\nlocal BLANK = '{BLANK.decode()}'\n"


LUA: Final = scripts("semel.stores", "redis.lua", _constants())
_OPEN: Final = frozenset({State.CLAIMED, State.PROCESSING})
_SEARCHED: Final = _OPEN | {State.UNKNOWN}
_NEVER_SETTLED: Final = frames((None,) * 8)

Rule = Callable[[Record | None, int], Record | None]


class RedisStore:
    """The store contract in Redis scripts.

    Parameters: ``prefix`` of every key, so that several stores share a server.
    """

    capabilities = Capabilities(
        survives_process_crash=True,
        survives_server_crash=False,
        shared_between_processes=True,
        atomic_with_business_writes=False,
    )

    def __init__(self, prefix: str = "semel") -> None:
        self._prefix = prefix.encode()
        self._tags = tuple(b"{%s:%02x}:" % (self._prefix, tag) for tag in range(TAGS))
        self._meta = b"%s:meta" % self._prefix

    # --- keys -------------------------------------------------------------------------------

    def _tag(self, id: bytes) -> bytes:
        return self._tags[id[0] % TAGS]

    def _record_key(self, id: bytes) -> bytes:
        return b"%sr:%s" % (self._tag(id), id.hex().encode())

    def _operation_key(self, id: bytes, operation_id: bytes) -> bytes:
        return b"%so:%s" % (self._tag(id), operation_id.hex().encode())

    # --- a command's life -------------------------------------------------------------------

    def claim(self, claims: Sequence[Claim]) -> Flow[list[Verdict]]:
        replies = yield from ask(Calls(tuple(self._claim_call(claim) for claim in claims)))
        verdicts: list[Verdict] = []
        for claim, reply in zip(claims, replies, strict=True):
            now = int(reply[0])
            if len(reply) == 1:
                verdicts.append(Proceed(first_grant(claim, now)))
            else:
                verdicts.append((yield from self._decide(claim, now, decode_any(reply[1]))))
        return verdicts

    def _claim_call(self, claim: Claim) -> Call:
        terms, scope = claim.terms, claim.scope
        tag = self._tag(claim.id)
        operation = claim.operation_id.hex().encode()
        claimed = frames(
            (
                *(claim.id, scope.tenant, scope.caller, scope.operation, claim.key_hash, claim.recipe),
                *(claim.fingerprint, int(terms.effects), claim.holder, 1, 0, 0, terms.lease_us, terms.attempts_max),
                int(terms.after_expiry),
            )
        )
        return Call(
            LUA["claim"],
            (self._record_key(claim.id), tag + b"open", b"%so:%s" % (tag, operation)),
            (
                *(claim.id, b"%02d" % terms.starts, claim.nonce.hex().encode(), operation),
                *(
                    terms.lease_us,
                    terms.deadline_us,
                    terms.dedup_us,
                    number(terms.answer_us),
                    number(terms.tombstone_us),
                ),
                *(b"%08d%08d" % (len(claimed), len(_NEVER_SETTLED)), claimed, _NEVER_SETTLED + frames((None,) * 3)),
            ),
        )

    def _decide(self, claim: Claim, now: int, row: Record | None) -> Flow[Verdict]:
        """Decide on a record that is there, and write what that grants; if somebody is quicker, decide again."""
        while row is not None:
            verdict = decide(row, claim, now)
            if type(verdict) is not Proceed or not is_grant_new(row, verdict.grant):
                return verdict
            if (yield from self._replace(row, granted_row(row, claim, verdict.grant), now)):
                return verdict
            now, row = yield from self._look(claim.id)
        return (yield from self.claim((claim,)))[0]  # forgotten in the meantime

    def look(self, claims: Sequence[Claim]) -> Flow[list[Verdict | None]]:
        found = yield from self._look_all([claim.id for claim in claims])
        verdicts: list[Verdict | None] = []
        for claim, (now, row) in zip(claims, found, strict=True):
            verdict = None if row is None else decide(row, claim, now)
            writes = type(verdict) is Proceed and is_grant_new(row, verdict.grant)
            verdicts.append(None if writes else verdict)
        return verdicts

    def claim_here(self, claim: Claim) -> Flow[Verdict]:
        return (yield from self.claim((claim,)))[0]

    def settle_within(self, settlement: Settlement) -> Ask[Any]:
        raise NotImplementedError("Redis holds no transaction with the handler's writes")

    def together(self) -> Flow[None]:
        yield from ()

    def settle(self, settlements: Sequence[Settlement]) -> Flow[list[Settling]]:
        # Only an answer ends a record whatever was before it; the rules say what else may become of it.
        ends = [word for word in settlements if word.state in ANSWERED_STATES]
        done: dict[int, int] = {}
        if ends:
            replies = yield from ask(Calls(tuple(self._settle_call(word) for word in ends)))
            done = {id(word): int(reply) for word, reply in zip(ends, replies, strict=True)}
        settled: list[Settling] = []
        for word in settlements:
            settled.append(Settled() if done.get(id(word)) == 1 else (yield from self._settle_by_rule(word)))
        return settled

    def _settle_call(self, word: Settlement) -> Call:
        answer = word.answer
        block = None if answer is None else pack_headers(answer.headers)
        digest = None if answer is None or block is None else answer_digest(answer.status, block, answer.body)
        keep = word.answer_kind == AnswerKind.KEPT and answer is not None
        small = frames(
            (
                *(word.doubt, word.business_ref, word.resource_type, word.resource_id, word.error_code, digest, None),
                None if answer is None else answer.status,
            )
        )
        large = frames((block if keep else None, None, answer.body if keep and answer is not None else None))
        tag = self._tag(word.id)
        return Call(
            LUA["settle"],
            (self._record_key(word.id), tag + b"open"),
            (
                *(word.id, number(word.fence), word.nonce.hex().encode(), b"%02d" % word.state, int(word.answer_kind)),
                *(b"%08d" % len(small), small + large, PURGE_GRACE_US, tag + b"o:"),
            ),
        )

    def _settle_by_rule(self, word: Settlement) -> Flow[Settling]:
        while True:
            now, row = yield from self._look(word.id)
            reply, written = settled_row(row, word, now)
            if row is None or written is None or (yield from self._replace(row, written, now)):
                return reply

    def mark_not_kept(self, renewals: Sequence[Renewal]) -> Flow[list[bool]]:
        done: list[bool] = []
        for renewal in renewals:
            done.append((yield from self._rewrite(renewal.id, partial(_marked, renewal=renewal))))
        return done

    def renew(self, renewals: Sequence[Renewal]) -> Flow[list[bool]]:
        found = yield from self._look_all([renewal.id for renewal in renewals])
        rows: list[tuple[Record, Record, int] | None] = []
        for renewal, (now, row) in zip(renewals, found, strict=True):
            written = renewed_row(row, renewal, now)
            rows.append(None if row is None or written is None else (row, written, now))
        calls = tuple(self._replace_call(*each) for each in rows if each is not None)
        replies = iter((yield from ask(Calls(calls))) if calls else ())
        done: list[bool] = []
        for renewal, each in zip(renewals, rows, strict=True):
            if each is None or int(next(replies)) == 1:
                done.append(each is not None)
            else:  # another write of its own came between: the rule is asked again
                done.append((yield from self._rewrite(renewal.id, partial(_renewed, renewal=renewal))))
        return done

    def abandon(self, nonces: Sequence[tuple[bytes, bytes]]) -> Flow[list[bool]]:
        done: list[bool] = []
        for id, nonce in nonces:
            done.append((yield from self._rewrite(id, partial(_abandoned, nonce=nonce))))
        return done

    # --- lists and upkeep -------------------------------------------------------------------

    def read(self, ids: Sequence[bytes]) -> Flow[list[Record | None]]:
        return [row for _, row in (yield from self._look_all(ids))]

    def read_operations(self, operation_ids: Sequence[bytes]) -> Flow[list[Record | None]]:
        rows: list[Record | None] = []
        for operation_id in operation_ids:
            name = operation_id.hex().encode()
            keys = [b"%so:%s" % (tag, name) for tag in self._tags]
            replies = yield from ask(Calls(tuple(Call(None, (key,), (), "GET") for key in keys)))
            ids = [reply for reply in replies if reply is not None]
            found = (yield from self.read(ids)) if ids else []
            rows.append(next((row for row in found if row is not None and row.operation_id == operation_id), None))
        return rows

    def find(self, query: Find) -> Flow[Found]:
        small = bool(query.states) and _SEARCHED.issuperset(query.states)
        now = yield from self._now()
        page: list[Record] = []
        chunks = self._open_ids if small else self._all_ids
        after: int | None = 0
        while after is not None:
            after, ids = yield from chunks(after)
            rows = yield from self._read_small(ids)
            page += [row for row in rows if _before(row, query.before) and matches(row, query, now)]
            page = sorted({row.id: row for row in page}.values(), key=_cursor, reverse=True)[: query.limit + 1]
        more = len(page) > query.limit
        page = page[: query.limit]
        return Found(tuple(page), _cursor(page[-1]) if more else None, now)

    def resolve(self, resolution: Resolution) -> Flow[Resolving]:
        while True:
            now, row = yield from self._look(resolution.id)
            reply, written = resolved_row(row, resolution, now)
            if row is None or written is None or not isinstance(reply, Resolved):
                return reply
            action = "resolve:succeeded" if resolution.happened else "resolve:did-not-happen"
            line = [now, resolution.id.hex(), resolution.actor, action, resolution.reason, written.fence]
            if (yield from self._replace(row, written, now, json.dumps(line).encode())):
                return reply

    def lapse(self, limit: int) -> Flow[list[Record]]:
        calls = tuple(Call(LUA["due"], (tag + b"open",), (limit,)) for tag in self._tags)
        replies = yield from ask(Calls(calls))
        ids = [id for _, due in replies for id in due]
        found = yield from self._look_all(ids)
        lapsed = [(row, written, now) for now, row in found if row and (written := lapsed_row(row, now)) is not None]
        lapsed.sort(key=lambda each: each[0].lease_until)
        marked: list[Record] = []
        for row, written, now in lapsed[:limit]:
            if (yield from self._replace(row, written, now)):
                marked.append(written)
        return marked

    def purge(self, after: int | None, chunk: int) -> Flow[Purged]:
        """Redis forgets tombstones by itself; this drops answers before that, and what a set clock has overtaken."""
        following, ids = yield from self._all_ids(after or 0, chunk)
        found = yield from self._look_all(ids)
        dropped = forgotten = scanned = 0
        for now, row in found:
            if row is None:
                continue
            scanned += 1
            if may_forget(row.forget_after, now):
                keys = (self._record_key(row.id), self._operation_key(row.id, row.operation_id))
                [gone] = yield from ask(Calls((Call(LUA["forget"], keys, (seen(row),)),)))
                forgotten += int(gone)
            elif may_drop_answer(row.answer_until, now) and row.answer_kind == AnswerKind.KEPT:
                bare = row._replace(answer_kind=AnswerKind.NOT_KEPT, headers=None, body=None)
                dropped += yield from self._replace(row, bare, now)
        return Purged(scanned, dropped, forgotten, following)

    def counts(self) -> Flow[dict[int, int]]:
        found: dict[int, int] = {}
        met: set[bytes] = set()
        after: int | None = 0
        begin, end = PLACES["state"]
        while after is not None:
            after, ids = yield from self._all_ids(after)
            new = [id for id in dict.fromkeys(ids) if id not in met]
            met.update(new)
            calls = tuple(Call(None, (self._record_key(id),), (begin, end - 1), "GETRANGE") for id in new)
            for state in (yield from ask(Calls(calls))) if calls else ():
                if state:
                    found[int(state)] = found.get(int(state), 0) + 1
        return dict(sorted(found.items()))

    def audit(self, record: bytes | None, limit: int) -> Flow[list[Audit]]:
        tags = self._tags if record is None else (self._tag(record),)
        calls = tuple(Call(None, (tag + b"audit",), (-AUDIT_MOST, -1), "LRANGE") for tag in tags)
        lines: list[Audit] = []
        for reply in (yield from ask(Calls(calls))):
            for line in reply:
                at, id, actor, action, reason, fence = json.loads(line)
                lines.append(Audit(at, bytes.fromhex(id), actor, action, reason, fence))
        lines = [line for line in reversed(lines) if record is None or line.record_id == record]
        return sorted(lines, key=lambda line: -line.at)[:limit]

    def identity(self) -> Flow[Identity | None]:
        [reply] = yield from ask(Calls((Call(None, (self._meta,), (), "HGETALL"),)))
        pairs = reply.items() if isinstance(reply, Mapping) else zip(reply[::2], reply[1::2], strict=True)
        fields = {bytes(name).decode(): bytes(value) for name, value in pairs}
        if not fields:
            return None
        return Identity(
            fields["store_id"].decode(),
            int(fields["schema_version"]),
            int(fields["epoch"]),
            int(fields["id_format"]),
            fields["secret_check"],
        )

    def migrate(self, store_id: str, secret_check: bytes) -> Flow[list[str]]:
        call = Call(LUA["migrate"], (self._meta,), (store_id.encode(), SCHEMA_VERSION, secret_check))
        [new] = yield from ask(Calls((call,)))
        return ["0001_first"] if int(new) == 1 else []

    # --- rows -------------------------------------------------------------------------------

    def _now(self) -> Flow[int]:
        [reply] = yield from ask(Calls((Call(LUA["look"], (self._meta + b":none",), ()),)))
        return int(reply[0])

    def _look(self, id: bytes) -> Flow[tuple[int, Record | None]]:
        return (yield from self._look_all((id,)))[0]

    def _look_all(self, ids: Iterable[bytes]) -> Flow[list[tuple[int, Record | None]]]:
        calls = tuple(Call(LUA["look"], (self._record_key(id),), ()) for id in ids)
        if not calls:
            return []
        replies = yield from ask(Calls(calls))
        return [
            (int(reply[0]), None if len(reply) < 2 or reply[1] is None else decode_any(reply[1])) for reply in replies
        ]

    def _read_small(self, ids: Sequence[bytes]) -> Flow[list[Record]]:
        calls = tuple(Call(None, (self._record_key(id),), (0, SMALL_READ - 1), "GETRANGE") for id in ids)
        rows: list[Record] = []
        for id, data in zip(ids, (yield from ask(Calls(calls))) if calls else (), strict=True):
            if not data:
                continue
            wanted = small_bytes(data)
            if wanted > len(data):
                call = Call(None, (self._record_key(id),), (0, wanted - 1), "GETRANGE")
                [data] = yield from ask(Calls((call,)))
                if len(data) < wanted:
                    continue  # gone, or written anew, in the meantime: the next list has it
            rows.append(decode(data, small=True))
        return rows

    def _all_ids(self, after: int, count: int = FIND_CHUNK) -> Flow[tuple[int | None, list[bytes]]]:
        following, keys = yield from ask(Scan(b"{%s:" % self._prefix, after, count))
        ids = [bytes.fromhex(key.rsplit(b":", 1)[1].decode()) for key in keys if b"}:r:" in key]
        return following, ids

    def _open_ids(self, after: int) -> Flow[tuple[int | None, list[bytes]]]:
        """The open and unknown records of one tag."""
        tag = self._tags[after]
        calls = tuple(Call(None, (tag + name,), (0, -1), "ZRANGE") for name in (b"open", b"unknown"))
        ids = [id for reply in (yield from ask(Calls(calls))) for id in reply]
        return (after + 1 if after + 1 < TAGS else None), ids

    def _replace(self, old: Record, written: Record, now: int, audit: bytes = _EMPTY) -> Flow[bool]:
        """Write over the version that was seen, with a line of the audit trail; False where it is another."""
        [done] = yield from ask(Calls((self._replace_call(old, written, now, audit),)))
        return int(done) == 1

    def _replace_call(self, old: Record, written: Record, now: int, audit: bytes = _EMPTY) -> Call:
        tag = self._tag(old.id)
        keys = (self._record_key(old.id), tag + b"open", tag + b"unknown")
        ttl: bytes | int = _EMPTY
        if written.forget_after is not None:
            ttl = max(1, -(-(written.forget_after - now + PURGE_GRACE_US) // 1000))
        return Call(
            LUA["replace"],
            (*keys, self._operation_key(old.id, written.operation_id), tag + b"audit"),
            (old.id, seen(old), encode(written), ttl, b"%02d" % written.state, written.lease_until, audit),
        )

    def _rewrite(self, id: bytes, rule: Rule) -> Flow[bool]:
        while True:
            now, row = yield from self._look(id)
            written = rule(row, now)
            if row is None or written is None:
                return False
            if (yield from self._replace(row, written, now)):
                return True


def _marked(row: Record | None, now: int, renewal: Renewal) -> Record | None:
    return marked_row(row, renewal)


def _renewed(row: Record | None, now: int, renewal: Renewal) -> Record | None:
    return renewed_row(row, renewal, now)


def _abandoned(row: Record | None, now: int, nonce: bytes) -> Record | None:
    return abandoned_row(row, nonce, now)


def _cursor(row: Record) -> int:
    """Where a record stands in lists: by its time, and among those of one time by its id."""
    return row.created_at << 32 | int.from_bytes(row.id[:4], "big")


def _before(row: Record, before: int | None) -> bool:
    return before is None or _cursor(row) < before


__all__ = ["LUA", "TAGS", "RedisStore"]
