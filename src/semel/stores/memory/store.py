"""The memory store: a table of records that executes the rules themselves.

It is the reference that SQL stores are compared with, and a real store for one process: nothing
survives the process, nothing is shared with another. Each verb is one ask, performed under one lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, TypeVar

from semel.core.command_flow import make_success
from semel.core.contract import Capabilities, DoctorCheck, Identity
from semel.core.decide import decide, find_replay, first_grant, is_grant_new
from semel.core.flow import Ask, Flow, ask
from semel.core.model import (
    RECORD_FORMAT,
    STORED_ANSWERS,
    Allowance,
    Answer,
    AnswerKind,
    Audit,
    Claim,
    Find,
    Found,
    Grant,
    Proceed,
    Purged,
    QuotaExceeded,
    Record,
    Renewal,
    Replay,
    Resolution,
    Resolved,
    Resolving,
    Settlement,
    Settling,
    State,
    Terms,
    Verdict,
)
from semel.core.record import matches
from semel.core.settle import abandon_row, lapse_row, mark_row, renew_row, settle_row
from semel.core.timing import may_drop_answer, may_forget
from semel.quota import Usage, is_over, must_look, take
from semel.reconciliation.resolutions import action_of, resolve_row
from semel.sealing.rows import Reseal, reseal_row
from semel.steps.findings import steps_after

R = TypeVar("R")
_PROCESSING: Final = int(State.PROCESSING)
_SUCCEEDED: Final = State.SUCCEEDED
_GONE_MIN: Final = 64
_SETTLED_LENGTH: Final = 4
_UNSETTLED: Final = tuple(Record._field_defaults.values())
_KEYED: Final[Any] = slice(Claim._fields.index("key_hash"), Claim._fields.index("fingerprint") + 1)
_GRANTED: Final = slice(Grant._fields.index("operation_id"), None)
_TERMS: Final = slice(Terms._fields.index("attempts_max"), Terms._fields.index("after_expiry") + 1)
_new: Final[Any] = tuple.__new__  # every command pays for a record

_ORDER: Final = {
    "operation_id": (*Grant._fields[_GRANTED], "lease_us", *Terms._fields[_TERMS]),
    "key_hash": ("key_hash", "recipe", "fingerprint"),
}
if any(Record._fields[Record._fields.index(name) :][: len(run)] != run for name, run in _ORDER.items()):
    raise AssertionError("stores/memory/store.py and core/model.py disagree on the order of a record's columns")


Unread = tuple[Claim, int] | tuple[Claim, int, Answer, int]
"""A record that was not read since its key was granted for the first time: the claim, and when it was granted; then
the answer that it succeeded with, and when. :meth:`Table.row` makes the record of it by the rules of every store.
"""


@dataclass(slots=True)
class Table:
    """The content of a memory store. Only the driver touches it, under its lock."""

    records: dict[bytes, Record | Unread] = field(default_factory=dict)  # in the order of creation; see :meth:`row`
    by_operation: dict[bytes, bytes] = field(default_factory=dict)  # of the records with a place up to ``named_seq``
    named_seq: int = 0
    seqs: dict[bytes, int] = field(default_factory=dict)  # the places of records; the newest may have none yet
    order: list[tuple[int, bytes]] = field(default_factory=list)  # by place; some of them are gone
    running: set[bytes] = field(default_factory=set)  # records with a place that may lapse, and those that ran
    next_seq: int = 1
    audits: list[Audit] = field(default_factory=list)
    identity: Identity | None = None
    quotas: dict[bytes, Usage] = field(default_factory=dict)

    def row(self, id: bytes) -> Record | None:
        """Return the record of this id. Make one that was not read yet, and keep it."""
        found: Any = self.records.get(id)
        if found is None or type(found) is Record:
            return found
        row = first_row(found[0], first_grant(found[0], found[1]))
        if len(found) == _SETTLED_LENGTH:
            claim, fence, answer, settled_at = found
            _, settled = settle_row(row, make_success(claim.id, fence, claim.nonce, answer), settled_at)
            row = settled or row  # values that no store could have written stay as they are, and affect no other record
        elif row.state == _PROCESSING:
            self.running.add(id)
        self.records[id] = row
        return row

    def rows(self) -> Iterator[Record]:
        """Yield all records, in the order of creation."""
        for id in tuple(self.records):
            row = self.row(id)
            assert row is not None
            yield row

    def put(self, row: Record) -> None:
        """Write a record."""
        id, operation_id = row.id, row.operation_id
        known = self.row(id)
        if known is not None and known.operation_id != operation_id and known.operation_id in self.by_operation:
            del self.by_operation[known.operation_id]
            self.by_operation[operation_id] = id
        self.records[id] = row
        if row.state == _PROCESSING:
            self.running.add(id)
        else:
            self.running.discard(id)

    def place(self) -> None:
        """Give the records since the last call their places in the order of creation.

        Only pages of records need places, so a claim assigns none.
        """
        seqs, new = self.seqs, []
        for id in reversed(self.records):
            if id in seqs:
                break
            new.append(id)
        for seq, id in enumerate(reversed(new), self.next_seq):
            seqs[id] = seq
            self.order.append((seq, id))
            found: Any = self.records.get(id)
            if type(found) is tuple and len(found) != _SETTLED_LENGTH and found[0].terms.starts == _PROCESSING:
                self.running.add(id)
        self.next_seq += len(new)

    def of_operation(self, operation_id: bytes) -> Record | None:
        """Return the record of an operation. Few callers ask, so the index by operation is built only then."""
        for seq, id in self.after(self.named_seq):
            found: Any = self.records[id]
            self.by_operation[(found if type(found) is Record else found[0]).operation_id] = id
            self.named_seq = seq
        id_found = self.by_operation.get(operation_id)
        return None if id_found is None else self.row(id_found)

    def states(self, ids: Sequence[bytes]) -> dict[bytes, int]:
        """Return the states of those of these records that exist."""
        return {id: row.state for id in ids if (row := self.row(id)) is not None}

    def take_place(self, claim: Claim, allowance: Allowance, now: int) -> Verdict | None:
        """Take a place of the claim's quota for a new record; return the verdict if none is free."""
        usage = self.quotas.get(allowance.id)
        usage, refused = take(usage, allowance, claim.id, self.states(must_look(usage, allowance)), now)
        if usage is not None:
            self.quotas[allowance.id] = usage
        return refused

    def forget_quotas(self, now: int) -> int:
        """Drop the quotas of callers without usage, and return how many."""
        before = len(self.quotas)
        listed = {id: self.states([each for each, _ in usage.listed]) for id, usage in self.quotas.items()}
        for id, states in listed.items():
            if is_over(self.quotas[id], now, states):
                del self.quotas[id]
        return before - len(self.quotas)

    def has_begun(self, row: Record) -> bool:
        """Whether a step of this record has begun: engines refuse to declare steps on a memory store."""
        return False

    def drop(self, row: Record) -> None:
        """Forget a record."""
        self.place()  # the order of creation is found from the last record that has a place
        del self.records[row.id], self.seqs[row.id]
        self.by_operation.pop(row.operation_id, None)
        self.running.discard(row.id)
        if len(self.order) > 2 * len(self.seqs) + _GONE_MIN:
            self.order = [(seq, id) for id, seq in self.seqs.items()]  # in the order in which they were put

    def after(self, seq: int) -> Iterator[tuple[int, bytes]]:
        """Return the records after a place, in the order of creation."""
        self.place()
        return self._places(range(bisect_left(self.order, (seq + 1, b"")), len(self.order)))

    def before(self, seq: int | None) -> Iterator[tuple[int, bytes]]:
        """Return the records before a place, the newest first."""
        self.place()
        end = len(self.order) if seq is None else bisect_left(self.order, (seq, b""))
        return self._places(range(end - 1, -1, -1))

    def _places(self, indexes: range) -> Iterator[tuple[int, bytes]]:
        for at in indexes:
            place, id = self.order[at]
            if self.seqs.get(id) == place:  # else it is gone
                yield place, id


class TableCall(Ask[R]):
    """Run a function on the table at the store's time, as one atomic act."""

    __slots__ = ("act", "verb")

    def __init__(self, verb: str, act: Callable[[Table, int], R]) -> None:
        self.verb = verb
        self.act = act


def first_row(claim: Claim, grant: Grant) -> Record:
    """Make the record that the first grant of a key writes."""
    terms = claim.terms
    claimed: tuple[Any, ...] = claim
    granted: tuple[Any, ...] = grant
    spans: tuple[Any, ...] = terms
    # In the order of Record's fields, up to the first that a settlement writes; the slices are runs of them.
    row: Record = _new(
        Record,
        (claim.id, RECORD_FORMAT)
        + claim.scope
        + claimed[_KEYED]
        + (
            grant.state,
            terms.effects,
            grant.fence,
            grant.nonce,
            claim.holder,
            grant.attempt,
            grant.lapses,
            grant.generation,
        )
        + granted[_GRANTED]
        + (terms.lease_us,)
        + spans[_TERMS]
        + _UNSETTLED,
    )
    return row


def grant_row(row: Record | None, claim: Claim, grant: Grant) -> Record:
    """Make the record that a new grant writes over the former one."""
    row_now = first_row(claim, grant)
    if row is None:
        return row_now
    # An execution that continues still needs its request; a settlement has dropped all others.
    return row_now._replace(business_ref=row.business_ref, request=row.request)


def claim_on(table: Table, claim: Claim, now: int) -> Verdict | int:
    """Decide one attempt, and write its grant. For a new key, return the fence of its first grant."""
    id = claim.id
    found = table.records.get(id)
    if found is None:
        if claim.quota is not None:
            refused = table.take_place(claim, claim.quota, now)
            if refused is not None:
                return refused
        table.records[id] = (claim, now)
        return now
    row = found if type(found) is Record else table.row(id)
    assert row is not None
    verdict = decide(row, claim, now, begun=table.has_begun(row))
    if type(verdict) is Proceed and is_grant_new(row, verdict.grant):
        table.put(grant_row(row, claim, verdict.grant))
    return verdict


def find_replay_of(found: Record | Unread, id: bytes, recipe: str, fingerprint: bytes, now: int) -> Replay | None:
    """As :func:`~semel.core.decide.find_replay`."""
    if len(found) == _SETTLED_LENGTH:
        claim, _, answer, settled_at = found
        if claim.fingerprint == fingerprint and claim.recipe == recipe and now < settled_at + claim.terms.answer_us:
            return _new(Replay, (answer, claim.operation_id, _SUCCEEDED))  # type: ignore[no-any-return]
    return find_replay(found, id, recipe, fingerprint, now) if type(found) is Record else None


def settle_on(table: Table, settlement: Settlement, now: int) -> Settling:
    """Write how one holder's command ended, if the record still has its fence and nonce."""
    id = settlement.id
    reply, row = settle_row(table.row(id), settlement, now)
    if row is not None:
        table.records[id] = row
        if row.state == _PROCESSING:  # released: perhaps it was CLAIMED
            table.running.add(id)
        else:
            table.running.discard(id)
    return reply


def write(verb: str, make: Callable[[Table, int], Sequence[Record | None]]) -> Flow[list[bool]]:
    """Write the new rows of several records, once all are known; return which had one."""

    def act(table: Table, now: int) -> list[bool]:
        rows = make(table, now)
        for row in rows:
            if row is not None:
                table.put(row)
        return [row is not None for row in rows]

    return ask(TableCall(verb, act))


class MemoryStore:
    """The store contract over a :class:`Table`."""

    migrations: tuple[str, ...] = ()
    capabilities = Capabilities(
        survives_process_crash=False,
        survives_server_crash=False,
        shared_between_processes=False,
        atomic_with_business_writes=False,
        counts_new_keys=True,
    )

    def claim(self, claims: Sequence[Claim]) -> Flow[list[Verdict]]:
        def act(table: Table, now: int) -> list[Verdict]:
            return [
                Proceed(first_grant(claim, verdict)) if isinstance(verdict, int) else verdict
                for claim in claims
                for verdict in (claim_on(table, claim, now),)
            ]

        return ask(TableCall("claim", act))

    def look(self, claims: Sequence[Claim]) -> Flow[list[Verdict | None]]:
        def act(table: Table, now: int) -> list[Verdict | None]:
            verdicts: list[Verdict | None] = []
            for claim in claims:
                row = table.row(claim.id)
                verdict = decide(row, claim, now, begun=row is not None and table.has_begun(row))
                writes = type(verdict) is Proceed and is_grant_new(row, verdict.grant)
                verdicts.append(None if writes else verdict)
            return verdicts

        return ask(TableCall("look", act))

    def claim_in_unit(self, claim: Claim) -> Flow[Verdict]:
        return (yield from self.claim((claim,)))[0]

    def take_place(self, claim: Claim) -> Flow[QuotaExceeded | None]:
        raise NotImplementedError("this store's units count new keys themselves: it declares no settles_by_proof")

    def settle(self, settlements: Sequence[Settlement]) -> Flow[list[Settling]]:
        def act(table: Table, now: int) -> list[Settling]:
            return [settle_on(table, settlement, now) for settlement in settlements]

        return ask(TableCall("settle", act))

    def settle_within(self, settlement: Settlement) -> Ask[Any]:
        raise NotImplementedError("this store's units are looked at from outside: it declares no settles_by_proof")

    def commit_together(self) -> Flow[None]:
        yield from ()

    def mark_not_kept(self, renewals: Sequence[Renewal]) -> Flow[list[bool]]:
        return write("mark_not_kept", lambda table, now: [mark_row(table.row(each.id), each) for each in renewals])

    def reseal(self, changes: Sequence[Reseal]) -> Flow[list[bool]]:
        return write("reseal", lambda table, now: [reseal_row(table.row(each.id), each) for each in changes])

    def renew(self, renewals: Sequence[Renewal]) -> Flow[list[bool]]:
        return write("renew", lambda table, now: [renew_row(table.row(each.id), each, now) for each in renewals])

    def abandon(self, nonces: Sequence[tuple[bytes, bytes]]) -> Flow[list[bool]]:
        return write("abandon", lambda table, now: [abandon_row(table.row(id), nonce, now) for id, nonce in nonces])

    def read(self, ids: Sequence[bytes]) -> Flow[list[Record | None]]:
        return ask(TableCall("read", lambda table, now: [table.row(id) for id in ids]))

    def read_operations(self, operation_ids: Sequence[bytes]) -> Flow[list[Record | None]]:
        return ask(TableCall("read_operations", lambda table, now: [table.of_operation(id) for id in operation_ids]))

    def find(self, query: Find) -> Flow[Found]:
        def act(table: Table, now: int) -> Found:
            page: list[Record] = []
            last: int | None = None
            for looked, (seq, id) in enumerate(table.before(query.before), 1):
                row = table.row(id)
                assert row is not None
                if matches(row, query, now):
                    if len(page) == query.limit:
                        return Found(tuple(page), last, now)
                    page.append(row._replace(headers=None, request=None, body=None))
                    last = seq
                if looked == query.looks and next(table.before(seq), None) is not None:
                    return Found(tuple(page), seq, now)
            return Found(tuple(page), None, now)

        return ask(TableCall("find", act))

    def resolve(self, resolution: Resolution) -> Flow[Resolving]:
        def act(table: Table, now: int) -> Resolving:
            seen = table.row(resolution.id)
            if resolution.ends is not None:
                _ = steps_after(seen, resolution, None, now)  # this store keeps no steps, so none can be answered
            reply, row = resolve_row(seen, resolution, now)
            if seen is not None and row is not None and isinstance(reply, Resolved):
                table.put(row)
                action = action_of(resolution, seen)
                table.audits.append(Audit(now, resolution.id, resolution.actor, action, resolution.reason, row.fence))
            return reply

        return ask(TableCall("resolve", act))

    def lapse(self, limit: int) -> Flow[list[Record]]:
        def act(table: Table, now: int) -> list[Record]:
            table.place()  # a little each time, so that no page waits for many
            rows = [row for id in table.running if (row := table.row(id)) is not None]
            table.running = {row.id for row in rows if row.state == _PROCESSING}
            lapsed = [row for each in rows if (row := lapse_row(each, now)) is not None]
            lapsed.sort(key=lambda row: (row.lease_until, table.seqs[row.id]))
            for row in lapsed[:limit]:
                table.put(row)
            return lapsed[:limit]

        return ask(TableCall("lapse", act))

    def purge(self, after: int | None, chunk: int) -> Flow[Purged]:
        def act(table: Table, now: int) -> Purged:
            window = list(islice(table.after(0 if after is None else after), chunk))
            dropped = forgotten = 0
            for _, id in window:
                row = table.row(id)
                assert row is not None
                if may_forget(row.forget_after, now):
                    table.drop(row)
                    forgotten += 1
                elif may_drop_answer(row.answer_until, now) and row.answer_kind in STORED_ANSWERS:
                    table.put(row._replace(answer_kind=AnswerKind.NOT_KEPT, headers=None, body=None))
                    dropped += 1
            return Purged(len(window), dropped, forgotten, window[-1][0] if len(window) == chunk else None)

        return ask(TableCall("purge", act))

    def forget_quotas(self) -> Flow[int]:
        return ask(TableCall("forget_quotas", Table.forget_quotas))

    def counts(self) -> Flow[dict[int, int]]:
        def act(table: Table, now: int) -> dict[int, int]:
            found: dict[int, int] = {}
            for row in table.rows():
                found[row.state] = found.get(row.state, 0) + 1
            return dict(sorted(found.items()))

        return ask(TableCall("counts", act))

    def audit(self, record: bytes | None, limit: int) -> Flow[list[Audit]]:
        def act(table: Table, now: int) -> list[Audit]:
            lines = [line for line in reversed(table.audits) if record is None or line.record_id == record]
            return lines[:limit]

        return ask(TableCall("audit", act))

    def now(self) -> Flow[int]:
        return ask(TableCall("now", lambda table, now: now))

    def identity(self) -> Flow[Identity | None]:
        return ask(TableCall("identity", lambda table, now: table.identity))

    def migrate(self, store_id: str, secret_check: bytes) -> Flow[list[str]]:
        def act(table: Table, now: int) -> list[str]:
            if table.identity is not None:
                return []
            table.identity = Identity(store_id, 1, 1, 1, secret_check)
            return ["0001_first"]

        return ask(TableCall("migrate", act))

    def missing_additions(self) -> Flow[list[str]]:
        yield from ()
        return []

    def doctor(self, *, full: bool, quick: bool) -> Sequence[DoctorCheck]:
        return ()
