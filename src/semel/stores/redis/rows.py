"""Read one record at a time, with the server's time, and overwrite it only if it has not changed since."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from semel.core.decide import count_crash
from semel.core.flow import Flow, ask
from semel.core.model import Effects, Record, State
from semel.core.timing import PURGE_GRACE_US
from semel.stores.redis.keys import Keys
from semel.stores.redis.layout import SMALL_READ, decode_any, encode, record_prefix, small_bytes, write_places
from semel.stores.redis.scripts import Calls, RedisCall, scripts

LUA: Final = scripts("semel.stores.redis", "scripts.lua", write_places)
UNENDED: Final = frozenset({State.CLAIMED, State.PROCESSING, State.UNKNOWN})
_EMPTY: Final = b""

Rule = Callable[[Record | None, int], Record | None]


class Rows:
    """The records of one store, by id."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys

    def now(self) -> Flow[int]:
        """Read the store's time, in microseconds."""
        [reply] = yield from ask(Calls((RedisCall(LUA["look"], (self.keys.meta + b":none",), ()),)))
        return int(reply[0])

    def look(self, id: bytes) -> Flow[tuple[int, Record | None]]:
        """Read the time, and the record or None."""
        return (yield from self.look_all((id,)))[0]

    def look_all(self, ids: Iterable[bytes]) -> Flow[list[tuple[int, Record | None]]]:
        """As :meth:`look`, for each id."""
        ids = tuple(ids)
        calls = tuple([RedisCall(LUA["look"], (self.keys.record(id),), ()) for id in ids])
        if not calls:
            return []
        replies = yield from ask(Calls(calls))
        return [
            (int(reply[0]), None if len(reply) < 2 or reply[1] is None else decode_any(reply[1], id))
            for id, reply in zip(ids, replies, strict=True)
        ]

    def read_small(self, ids: Sequence[bytes]) -> Flow[list[Record | None]]:
        """Read records without headers, request and body; None for those that are gone."""
        calls = tuple([RedisCall(None, (self.keys.record(id),), (0, SMALL_READ - 1), "GETRANGE") for id in ids])
        rows: list[Record | None] = []
        for id, data in zip(ids, (yield from ask(Calls(calls))) if calls else (), strict=True):
            wanted = small_bytes(data) if data else 0
            if wanted > len(data):
                call = RedisCall(None, (self.keys.record(id),), (0, wanted - 1), "GETRANGE")
                [data] = yield from ask(Calls((call,)))
            rows.append(decode_any(data, id, small=True) if data else None)
        return rows

    # --- writing ----------------------------------------------------------------------------

    def replace(self, old: Record, written: Record, now: int, audit: bytes = _EMPTY) -> Flow[bool]:
        """Overwrite the version that was seen, with a line of the audit trail; False if it has changed."""
        [done] = yield from ask(Calls((self.replace_call(old, written, now, audit),)))
        return int(done) == 1

    def replace_call(self, old: Record, written: Record, now: int, audit: bytes = _EMPTY) -> RedisCall:
        """Return the call that :meth:`replace` makes."""
        keys, id = self.keys, old.id
        due = due_at(written)
        ttl: bytes | int = _EMPTY
        if written.forget_after is not None:
            ttl = max(1, -(-(written.forget_after - now + PURGE_GRACE_US) // 1000))
        named = keys.operation(id, written.operation_id.hex().encode())
        former = keys.operation(id, old.operation_id.hex().encode())
        return RedisCall(
            LUA["replace"],
            (keys.record(id), named, keys.all(id), keys.open(id), keys.due(id), keys.audit(id)),
            (
                *(id, record_prefix(old), encode(written), ttl, b"1" if written.state in UNENDED else b"0"),
                *(_EMPTY if due is None else due, audit, _EMPTY if former == named else former),
            ),
        )

    def forget_call(self, id: bytes, row: Record | None) -> RedisCall:
        """Return the call that drops this version of a record, or the places that an expired one has left behind."""
        keys = self.keys
        named = keys.record(id) if row is None else keys.operation(id, row.operation_id.hex().encode())
        return RedisCall(
            LUA["forget"],
            (keys.record(id), named, keys.all(id), keys.open(id), keys.due(id)),
            (id, _EMPTY if row is None else record_prefix(row)),
        )

    def rewrite(self, id: bytes, rule: Rule) -> Flow[bool]:
        """Apply a rule and overwrite the version that it was given; False if the rule returns nothing."""
        while True:
            now, row = yield from self.look(id)
            written = rule(row, now)
            if row is None or written is None:
                return False
            if (yield from self.replace(row, written, now)):
                return True


def due_at(row: Record) -> int | None:
    """Return when a reaper must look at this record: when ``lapsed_row`` may first make it UNKNOWN; None: never."""
    if row.state != State.PROCESSING:
        return None
    if row.effects == Effects.IDEMPOTENT and row.lapses + count_crash(row) < row.attempts_max:
        return max(row.lease_until, row.dedup_until)
    return row.lease_until
