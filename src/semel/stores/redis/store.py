"""The Redis store (and Valkey's, and a cluster's): one script on one slot for a claim, a settlement, a replay.

A record is one string: the scripts read and write its head, and ``decide`` rules on it. An open or UNKNOWN record has
no time to live. Redis may lose acknowledged writes that are not on disk, or not on a replica that takes over, and their
fences with them: read ``docs/redis.md`` before money depends on it.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any, Final, TypeVar

from semel.core.contract import Capabilities, DoctorCheck, Identity, Known, Observed
from semel.core.decide import decide, find_replay, first_grant, is_grant_new
from semel.core.flow import Ask, Flow, ask
from semel.core.model import (
    ANSWERED_STATES,
    Audit,
    Claim,
    Find,
    Found,
    Proceed,
    Purged,
    QuotaExceeded,
    Record,
    Renewal,
    Replay,
    Resolution,
    Resolved,
    Resolving,
    Settled,
    Settlement,
    Settling,
    Verdict,
)
from semel.core.settle import abandon_row, mark_row, renew_row, settle_row
from semel.core.timing import PURGE_GRACE_US
from semel.errors import SchemaError
from semel.reconciliation.resolutions import action_of, resolve_row
from semel.sealing.rows import Reseal, reseal_row
from semel.steps.findings import steps_after
from semel.stores.memory.store import grant_row
from semel.stores.redis import doctor
from semel.stores.redis.arguments import encode_claim, encode_settlement
from semel.stores.redis.keys import TAGS, Keys, marker_name
from semel.stores.redis.layout import decode_any, kept_answer, names_of_kept, number
from semel.stores.redis.pages import Pages, audit_line, operation_calls
from semel.stores.redis.remedies import refusal
from semel.stores.redis.rows import LUA, Rows
from semel.stores.redis.scripts import Calls, RedisCall
from semel.stores.redis.settings import observe
from semel.workers.rules import Turn

MIGRATIONS: Final = ("0001_first", "0002_markers", "0003_named_markers")
SCHEMA_VERSION: Final = len(MIGRATIONS)
MARKED: Final = 2  # the first version with markers
NAMED: Final = 3  # the first version whose markers have the store's name
MARKER_MS: Final = 100 * 365 * 86_400_000  # with a time to live, so that every eviction policy may choose it
LOST: Final = (
    "the server has lost keys of this store (it evicts, was flushed, or keys were deleted by hand): records may be "
    "gone, and a retry of their keys would run again"
)
LOST_REMEDY: Final = (
    "set maxmemory-policy noeviction, find out from your own systems which commands ran, then run: "
    "semel migrate --records-may-be-lost"
)
_CLAIM: Final = LUA["claim"]
_SETTLE: Final = LUA["settle"]
_LOOK_KEPT: Final = LUA["look_kept"]
_SETTLED: Final = Settled()
_id_of: Final[Callable[[Claim | Settlement | Known], bytes]] = itemgetter(0)


T = TypeVar("T")
_Request = TypeVar("_Request", Claim, Settlement, Known)


class RedisStore:
    """The store contract in Redis scripts.

    Parameters: ``prefix`` of every key, so that several stores share a server; ``wait_replicas`` how many replicas the
    driver waits for, which :meth:`observe` reports; ``accepts_loss`` whether EXTERNAL commands may run on a
    server that has lost records.
    """

    migrations: tuple[str, ...] = MIGRATIONS
    capabilities = Capabilities(
        survives_process_crash=True,
        survives_server_crash=False,
        shared_between_processes=True,
        atomic_with_business_writes=False,
        forgets_by_itself=True,
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
        self._opened: Identity | None = None  # the store whose records this process relies on
        self._marker: bytes | None = None  # the name of its markers; None: one of the first version has none
        self._due_by_node: list[list[bytes]] | None = None  # a cluster's due sets; first the turns' node
        self._newest = 0  # the last place that this process has seen: its next claims come after it

    # --- a command's life -------------------------------------------------------------------

    def claim(self, claims: Sequence[Claim]) -> Flow[list[Verdict]]:
        groups, marker = self._groups(claims), self._marker
        asked = [self._claim_call(group) for group in groups]
        replies = (yield from ask(Calls(tuple([call for call, _ in asked])))) if asked else []
        verdicts: list[Verdict] = []
        for group, (_, named), (now, *met) in zip(groups, asked, replies, strict=True):
            for claim, names, reply in zip(group, named, met, strict=True):
                if type(reply) is bytes:
                    verdict: Verdict | None = kept_answer(reply, names, now)
                    if verdict is None:
                        verdict = yield from self._decide(claim, now, decode_any(reply, claim.id))
                    verdicts.append(verdict)
                elif type(reply) is int:
                    if reply > self._newest:
                        self._newest = reply
                    verdicts.append(Proceed(first_grant(claim, now)))
                else:
                    code, _, text = bytes(reply[0]).decode().partition(" ")
                    if code == "LOSTRECORDS" and self._marker == marker:
                        yield from self.identity()  # an operator may have accepted the loss meanwhile
                    if code != "LOSTRECORDS" or self._marker == marker:
                        raise refusal(code, text)
                    verdicts += yield from self.claim((claim,))
        return verdicts if len(groups) < 2 else _in_order(claims, verdicts)

    def _groups(self, requests: Sequence[_Request]) -> Sequence[Sequence[_Request]]:
        """Group the requests that share a call: all on one server, those of one tag in a cluster."""
        if not self._cluster or len(requests) < 2:
            return (requests,) if requests else ()
        groups: dict[int, list[_Request]] = {}
        for request in requests:
            groups.setdefault(_id_of(request)[0] % TAGS, []).append(request)
        return [groups[tag] for tag in sorted(groups)]

    def _claim_call(self, claims: Sequence[Claim]) -> tuple[RedisCall, list[bytes]]:
        """Make the call, and return each claim's names in the form of its record."""
        marker = None if self.accepts_loss else self._marker
        arguments: list[bytes | int] = [self._newest]
        named: list[bytes] = []
        for claim in claims:
            told, names = encode_claim(claim, marker)
            arguments += told
            named.append(names)
        keys = self.keys.each_record(map(_id_of, claims))
        if self._cluster:
            keys += [self.keys.operation(claim.id, hexlify(claim.operation_id)) for claim in claims]
            id = claims[0].id
            keys += (*self._lists(id), self.keys.marker(id, marker or b""))
        return RedisCall(_CLAIM, tuple(keys), tuple(arguments)), named

    def _lists(self, id: bytes) -> tuple[bytes, ...]:
        return self.keys.all(id), self.keys.open(id), self.keys.due(id)

    def _decide(self, claim: Claim, now: int, row: Record | None) -> Flow[Verdict]:
        """Decide on an existing record, and write the grant; if another writer was first, decide again."""
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

    @property
    def look_kept(self) -> Callable[[Sequence[Known]], Flow[list[Replay | None]]] | None:
        """As :class:`~semel.core.contract.LooksForKept`. None where replicas are waited for, as claims do."""
        return None if self._wait_replicas else self._look_kept

    def _look_kept(self, asked: Sequence[Known]) -> Flow[list[Replay | None]]:
        groups = self._groups(asked)
        calls = [RedisCall(_LOOK_KEPT, tuple(self.keys.each_record(map(_id_of, group))), ()) for group in groups]
        replies = (yield from ask(Calls(tuple(calls)))) if calls else []
        kept: list[Replay | None] = []
        for group, (now, *met) in zip(groups, replies, strict=True):
            kept += _kept_among(group, met, now)
        return kept if len(groups) < 2 else _in_order(asked, kept)

    def claim_in_unit(self, claim: Claim) -> Flow[Verdict]:
        return (yield from self.claim((claim,)))[0]

    def settle_within(self, settlement: Settlement) -> Ask[Any]:
        raise NotImplementedError("Redis holds no transaction with the handler's writes")

    def commit_together(self) -> Flow[None]:
        yield from ()

    def take_place(self, claim: Claim) -> Flow[QuotaExceeded | None]:
        raise NotImplementedError("this store does not count new keys: it declares no counts_new_keys")

    def settle(self, settlements: Sequence[Settlement]) -> Flow[list[Settling]]:
        # Only an answer ends any record; the rules decide on all other settlements.
        ends = [settlement for settlement in settlements if settlement.state in ANSWERED_STATES]
        groups = self._groups(ends)
        calls = [self._settle_call(group) for group in groups]
        replies = (yield from ask(Calls(tuple(calls)))) if calls else []
        done: list[int] = [each for met in replies for each in met]
        ended = iter(done if len(groups) < 2 else _in_order(ends, done))
        settled: list[Settling] = []
        for settlement in settlements:
            if settlement.state in ANSWERED_STATES and next(ended) == 1:
                settled.append(_SETTLED)
            else:
                settled.append((yield from self._settle_by_rule(settlement)))
        return settled

    def _settle_call(self, settlements: Sequence[Settlement]) -> RedisCall:
        keys = self.keys.each_record(map(_id_of, settlements))
        if self._cluster:
            keys += self._lists(settlements[0].id)[1:]
        arguments: list[bytes | int] = [PURGE_GRACE_US]
        for settlement in settlements:
            arguments += encode_settlement(settlement)
        return RedisCall(_SETTLE, tuple(keys), tuple(arguments))

    def _settle_by_rule(self, settlement: Settlement) -> Flow[Settling]:
        while True:
            now, row = yield from self._rows.look(settlement.id)
            reply, written = settle_row(row, settlement, now)
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
                _ = steps_after(row, resolution, None, now)  # this store keeps no steps, so none can be answered
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

    def turn(self, kind: str, mine: int | None, every_us: int, reaps: bool) -> Flow[Turn]:
        """As :class:`~semel.workers.rules.TakesTurns`, in one script for each server: only reapers take turns here."""
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
        """Report how the server's settings limit the store's promise, and whether it has lost keys already."""
        observed = yield from observe(self.keys.tags, self._wait_replicas)
        gone = 0 if self._marker is None else (yield from self._count_missing(self._marker))
        if gone:
            observed.append(
                Observed("records", "forgets", f"{LOST} ({gone} of {TAGS} markers are missing)", LOST_REMEDY)
            )
        return observed

    def _count_missing(self, name: bytes) -> Flow[int]:
        """Count the tags that lack their marker, with or without the store's name."""
        wanted = [tuple({marker, marker + name}) for marker in self.keys.markers]
        replies = yield from ask(Calls(tuple([RedisCall(None, keys, (), "EXISTS") for keys in wanted])))
        return sum(int(reply) < len(keys) for reply, keys in zip(replies, wanted, strict=True))

    def doctor(self, *, full: bool, quick: bool) -> Sequence[DoctorCheck]:
        return doctor.checks(self.keys.tags)

    def missing_additions(self) -> Flow[list[str]]:
        yield from ()
        return []

    def now(self) -> Flow[int]:
        return self._rows.now()

    def identity(self) -> Flow[Identity | None]:
        [pairs] = yield from ask(Calls((RedisCall(None, (self.keys.meta,), (), "HGETALL"),)))
        fields = {bytes(name).decode(): bytes(value) for name, value in zip(pairs[::2], pairs[1::2], strict=True)}
        if not fields:
            return None
        found = Identity(
            fields["store_id"].decode(),
            int(fields["schema_version"]),
            int(fields["epoch"]),
            int(fields["id_format"]),
            fields["secret_check"],
        )
        self._rely_on(found)
        return found

    def _rely_on(self, found: Identity) -> None:
        """Take the markers that claims rely on from the store that was opened first.

        A store that was created anew in its place has other markers. It is accepted only in a new epoch, which an
        operator begins with ``semel migrate --records-may-be-lost``.
        """
        opened, version = self._opened or found, found.schema_version
        is_forgiven = found.epoch > 1 and found.secret_check == opened.secret_check
        if opened.store_id != found.store_id and not is_forgiven:
            return
        self._opened = found
        self._marker = marker_name(found.store_id) if version >= NAMED else b"" if version >= MARKED else None

    def migrate(self, store_id: str, secret_check: bytes) -> Flow[list[str]]:
        known = yield from self.identity()
        if known is None:  # a flush removes the markers too: those that remain show that there was a store
            is_lost = self._opened is not None or (yield from self._count_missing(b"")) < TAGS
        else:
            is_lost = self._marker is not None and (yield from self._count_missing(self._marker)) > 0
        if is_lost:
            raise SchemaError(f"{LOST}. Not migrated: {LOST_REMEDY}")
        return (yield from self._write_identity(known, store_id, secret_check, 0 if known is None else known.epoch - 1))

    def restore(self, store_id: str, secret_check: bytes) -> Flow[list[str]]:
        """Migrate a store that has lost keys, so that its claims are granted again.

        Engines that had opened the former store grant claims again, too.
        """
        known = yield from self.identity()
        if known is not None:
            known = replace(known, schema_version=1)
        return (yield from self._write_identity(known, store_id, secret_check, 1 if known is None else known.epoch))

    def _write_identity(
        self, known: Identity | None, store_id: str, secret_check: bytes, epoch: int
    ) -> Flow[list[str]]:
        """Write the markers before the version that claims rely on: a process that dies midway leaves version 1."""
        done = 0 if known is None else known.schema_version
        if known is None:
            yield from ask(Calls((RedisCall(LUA["migrate"], (self.keys.meta,), (store_id.encode(), secret_check)),)))
            known = yield from self.identity()  # another process may have been first
        assert known is not None
        if done < SCHEMA_VERSION:
            name = marker_name(known.store_id)
            marked = [RedisCall(LUA["mark"], (marker, marker + name), (MARKER_MS,)) for marker in self.keys.markers]
            yield from ask(Calls(tuple(marked)))
            yield from ask(Calls((RedisCall(LUA["version"], (self.keys.meta,), (SCHEMA_VERSION, epoch + 1)),)))
        yield from self.identity()
        return list(MIGRATIONS[done:])


def _kept_among(asked: Sequence[Known], strings: Sequence[bytes | None], now: int) -> Sequence[Replay | None]:
    """Return the kept answer in each string, if it is this request's."""
    return [_find_kept(*each, now) for each in zip(asked, strings, strict=True)]


def _find_kept(known: Known, data: bytes | None, now: int) -> Replay | None:
    if data is None:
        return None
    names = names_of_kept(data, *known)
    kept = None if names is None else kept_answer(data, names, now)
    return kept or find_replay(decode_any(data, known[0]), *known, now=now)


def _earliest_call(sets: Sequence[bytes]) -> RedisCall:
    return RedisCall(LUA["earliest"], (sets[0],), tuple(sets[1:]))


def _in_order(requests: Sequence[_Request], replies: Sequence[T]) -> list[T]:
    """Sort replies by tag into the order of the requests."""
    ordered = list(replies)
    by_tag = sorted(range(len(requests)), key=lambda place: _id_of(requests[place])[0] % TAGS)
    for place, reply in zip(by_tag, replies, strict=True):
        ordered[place] = reply
    return ordered


def _mark(row: Record | None, now: int, renewal: Renewal) -> Record | None:
    return mark_row(row, renewal)


def _reseal_rule(row: Record | None, now: int, change: Reseal) -> Record | None:
    return reseal_row(row, change)


def _renew_rule(row: Record | None, now: int, renewal: Renewal) -> Record | None:
    return renew_row(row, renewal, now)


def _abandon_rule(row: Record | None, now: int, nonce: bytes) -> Record | None:
    return abandon_row(row, nonce, now)


__all__ = ["LUA", "MIGRATIONS", "RedisStore"]
