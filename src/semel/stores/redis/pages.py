"""Many records: pages for operators, the reaper's round, the purge, the audit trail.

Each tag has its own sorted sets, in its own slot. This module merges them, so that a list takes only a few round trips
and never walks the server's keyspace, which others may share.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from semel.core.flow import Flow, ask
from semel.core.model import STORED_ANSWERS, AnswerKind, Audit, Find, Found, Purged, Record, Resolution
from semel.core.record import matches
from semel.core.settle import lapse_row
from semel.core.timing import may_drop_answer, may_forget
from semel.stores.redis.keys import PLACE_BITS, TAGS, below, newer_first
from semel.stores.redis.layout import PLACES, record_prefix
from semel.stores.redis.rows import LUA, UNENDED, Rows, due_at
from semel.stores.redis.scripts import Calls, RedisCall

ROWS_CHUNK: Final = 200
COUNT_CHUNK: Final = 1000
EACH_MOST: Final = 64
AUDIT_MOST: Final = 10_000

Placed = tuple[int, bytes]


class Pages:
    """The lists of one store."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._keys = rows.keys

    # --- newest first -----------------------------------------------------------------------

    def find(self, query: Find) -> Flow[Found]:
        """Find a page of records."""
        now = yield from self._rows.now()
        few = query.lapsed or (bool(query.states) and UNENDED.issuperset(query.states))
        page: list[tuple[int, Record]] = []
        cursor = query.before
        each = max(4, 2 * query.limit // TAGS + 2)
        looked = 0
        narrows = any((query.states, query.tenant, query.caller, query.operation, query.lapsed))
        chunk = ROWS_CHUNK if narrows else min(ROWS_CHUNK, query.limit + 1)  # no more than the page holds
        while len(page) <= query.limit:
            placed, following = yield from self._newest(b"open" if few else b"all", cursor, each)
            for begin in range(0, len(placed), chunk):
                piece = placed[begin : begin + chunk]
                rows = yield from self._rows.read_small([id for _, id in piece])
                page += [
                    (at, row) for (at, _), row in zip(piece, rows, strict=True) if row and matches(row, query, now)
                ]
                if len(page) > query.limit:
                    break
            if following is None:
                break
            cursor, each = following, EACH_MOST
            looked += len(placed)
            if query.looks and looked >= query.looks and len(page) <= query.limit:
                return Found(tuple([row for _, row in page]), cursor, now)
        shown = page[: query.limit]
        return Found(tuple([row for _, row in shown]), shown[-1][0] if len(page) > query.limit else None, now)

    def _newest(self, name: bytes, before: int | None, each: int) -> Flow[tuple[list[Placed], int | None]]:
        """Read the records before a cursor, newest first, and the cursor of the next ones (None: there are none)."""
        calls = tuple(
            [
                RedisCall(
                    None,
                    (tag + name,),
                    (below(before, at), b"-inf", b"WITHSCORES", b"LIMIT", 0, each),
                    "ZREVRANGEBYSCORE",
                )
                for at, tag in enumerate(self._keys.tags)
            ]
        )
        found: list[Placed] = []
        reached: int | None = None  # a tag has more from this place on: only newer records are complete
        for at, reply in enumerate((yield from ask(Calls(calls)))):
            here = [(newer_first(int(place), at), id) for id, place in zip(reply[::2], reply[1::2], strict=True)]
            found += here
            if len(here) == each:
                reached = max(reached or 0, here[-1][0])
        found = sorted([one for one in found if reached is None or one[0] >= reached], reverse=True)
        return found, reached

    # --- tag after tag, the oldest first ----------------------------------------------------

    def _window(self, after: int | None, chunk: int) -> Flow[tuple[list[bytes], int | None]]:
        """Read the next ``chunk`` records, and where those after them begin (None: the end was reached)."""
        tag, place = divmod(after or 0, 1 << PLACE_BITS)
        ids: list[bytes] = []
        while tag < TAGS:
            wanted = chunk - len(ids)
            arguments = (b"(%d" % place, b"+inf", b"WITHSCORES", b"LIMIT", 0, wanted)
            call = RedisCall(None, (self._keys.tags[tag] + b"all",), arguments, "ZRANGEBYSCORE")
            [reply] = yield from ask(Calls((call,)))
            ids += reply[::2]
            if len(ids) == chunk:
                return ids, (tag << PLACE_BITS) + int(reply[-1])
            tag, place = tag + 1, 0
        return ids, None

    def purge(self, after: int | None, chunk: int) -> Flow[Purged]:
        """Purge one chunk. Redis forgets tombstones itself; this tidies their places, and drops answers before that."""
        now = yield from self._rows.now()
        ids, following = yield from self._window(after, chunk)
        rows = yield from self._rows.read_small(ids)
        gone: list[RedisCall] = []
        bare: list[RedisCall] = []
        for id, row in zip(ids, rows, strict=True):
            if row is None or may_forget(row.forget_after, now):
                gone.append(self._rows.forget_call(id, row))
            elif may_drop_answer(row.answer_until, now) and row.answer_kind in STORED_ANSWERS:
                bare.append(self._rows.replace_call(row, row._replace(answer_kind=AnswerKind.NOT_KEPT), now))
        replies = (yield from ask(Calls((*gone, *bare)))) if gone or bare else []
        forgotten = sum(map(int, replies[: len(gone)]))
        return Purged(len(ids), sum(map(int, replies[len(gone) :])), forgotten, following)

    def counts(self) -> Flow[dict[int, int]]:
        """Count the records in each state, reading a little of every record."""
        found: dict[int, int] = {}
        begin, end = PLACES["state"]
        after: int | None = 0
        while after is not None:
            ids, after = yield from self._window(after, COUNT_CHUNK)
            calls = tuple([RedisCall(None, (self._keys.record(id),), (begin, end - 1), "GETRANGE") for id in ids])
            for state in (yield from ask(Calls(calls))) if calls else ():
                if state:
                    number = int(state) if state.isdigit() else 0
                    found[number] = found.get(number, 0) + 1
        return dict(sorted(found.items()))

    # --- the reaper's round -----------------------------------------------------------------

    def lapse(self, limit: int) -> Flow[list[Record]]:
        """Mark due records, the oldest leases first; put off those not due after all, so that they hide no others."""
        asked = tuple([RedisCall(LUA["due"], (tag + b"due",), (limit,)) for tag in self._keys.tags])
        ids = [id for _, due in (yield from ask(Calls(asked))) for id in due]
        lapsed: list[tuple[Record, Record, int]] = []
        others: list[RedisCall] = []
        for id, (now, row) in zip(ids, (yield from self._rows.look_all(ids)), strict=True):
            written = None if row is None else lapse_row(row, now)
            if row is not None and written is not None:
                lapsed.append((row, written, now))
            else:
                others.append(self._rows.forget_call(id, None) if row is None else self._postpone(row, now))
        lapsed = sorted(lapsed, key=lambda each: each[0].lease_until)[:limit]
        calls = (*(self._rows.replace_call(*each) for each in lapsed), *others)
        replies = (yield from ask(Calls(calls))) if calls else []
        return [written for (_, written, _), done in zip(lapsed, replies, strict=False) if int(done) == 1]

    def _postpone(self, row: Record, now: int) -> RedisCall:
        due = due_at(row)
        later = b"" if due is None or due <= now else due  # due, but no rule will ever mark it
        keys = (self._keys.record(row.id), self._keys.due(row.id))
        return RedisCall(LUA["postpone"], keys, (row.id, record_prefix(row), later))

    # --- the audit trail --------------------------------------------------------------------

    def audit(self, record: bytes | None, limit: int) -> Flow[list[Audit]]:
        """Read the newest lines, of one record or of all."""
        tags = self._keys.tags if record is None else (self._keys.tag(record),)
        calls = tuple([RedisCall(None, (tag + b"audit",), (-AUDIT_MOST, -1), "LRANGE") for tag in tags])
        lines = [_line(text) for reply in (yield from ask(Calls(calls))) for text in reversed(reply)]
        chosen = [line for line in lines if record is None or line.record_id == record]
        return sorted(chosen, key=lambda line: -line.at)[:limit]


def audit_line(now: int, resolution: Resolution, action: str, fence: int) -> bytes:
    """Write a line of the audit trail, as it is stored."""
    return json.dumps([now, resolution.id.hex(), resolution.actor, action, resolution.reason, fence]).encode()


def _line(text: bytes) -> Audit:
    at, id, actor, action, reason, fence = json.loads(text)
    return Audit(at, bytes.fromhex(id), actor, action, reason, fence)


def operation_calls(rows: Rows, operation_ids: Sequence[bytes]) -> tuple[RedisCall, ...]:
    """Return the calls that look for each operation in every tag, since its id does not name its tag."""
    names = [operation_id.hex().encode() for operation_id in operation_ids]
    return tuple([RedisCall(None, (b"%so:%s" % (tag, name),), (), "GET") for name in names for tag in rows.keys.tags])
