"""The SQLite store: named statements, and the same rules the memory store executes.

A driver performs a flow's first reads on a reading connection and, from its first write on, inside one
``BEGIN IMMEDIATE`` transaction. So a replay never takes the writer's lock, and between a flow's read and
its write no other connection can write. Writes name the version they saw all the same: safety must not depend
on who runs the flow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import resources
from typing import Any, Final, Literal, cast

from semel.core.contract import Capabilities, DoctorCheck, Identity
from semel.core.decide import decide, first_grant, is_grant_new, needs_steps
from semel.core.flow import Ask, Flow, ask
from semel.core.model import (
    ANSWERED_STATES,
    STORED_ANSWERS,
    Allowance,
    AnswerKind,
    Audit,
    Claim,
    Find,
    Found,
    Proceed,
    Purged,
    QuotaExceeded,
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
from semel.core.record import answer_digest, pack_headers
from semel.core.settle import abandon_row, lapse_row, mark_row, renew_row, settle_row
from semel.core.timing import may_drop_answer, may_forget
from semel.outbox.store import settle_with_events
from semel.quota import Usage, is_over, must_look, pack_counts, pack_listed, take, unpack_counts, unpack_listed
from semel.reconciliation.resolutions import action_of, resolve_row
from semel.sealing.rows import Reseal, reseal_row
from semel.steps.findings import steps_after
from semel.steps.store import decide_with_steps, read_stored_steps, rewrite_steps
from semel.stores.memory.store import grant_row
from semel.stores.sql.dialect import SQLITE, Dialect
from semel.stores.sql.looks import choose_look, next_page
from semel.stores.sql.statements import (
    NOW,
    NOW_LOCKED,
    Execute,
    Params,
    Query,
    Row,
    Script,
    TakeTurn,
    Value,
    script,
    statements,
)
from semel.stores.sqlite import doctor
from semel.workers.rules import Turn, read_turn

SQL: Final = statements("semel.stores.sqlite", "sql/records.sql")
MIGRATIONS: Final = ("0001_first", "0002_many_effects", "0003_imports")
SCHEMA_VERSION: Final = len(MIGRATIONS)
# They raise no version: no process needs them, or only where a quota is declared.
ADDITIONS: Final = {"quotas": "has_quotas", "waiting_messages": "has_waiting_messages"}
QUOTAS_MAX: Final = 10_000  # read by one walk of the purge
_EMPTY: Final[Params] = {}
_SEARCHED: Final = frozenset({State.CLAIMED, State.PROCESSING, State.UNKNOWN})

# The statements of the hot path are given tuples. Their order is checked here, once.
_CLAIMED: Final = Record._fields.index("after_expiry") + 1  # the columns that a claim writes, without the answer's kind
_SETTLED: Final = (
    *("state", "now", "now", "now", "doubt", "error_code", "business_ref", "resource_type", "resource_id"),
    *("answer_kind", "answer_digest", "status", "headers", "body", "id", "fence", "nonce"),
)
if SQL["insert_claim"].names != (*Record._fields[:_CLAIMED], "answer_kind") or SQL["settle"].names != _SETTLED:
    raise AssertionError("sqlite.sql and stores/sqlite/store.py disagree on the order of a statement's parameters")

READ_RECORD, FIND_KEPT_ANSWER = SQL["read_record"], SQL["find_kept_answer"]
_INSERT, _SETTLE, _WRITE = SQL["insert_claim"], SQL["settle"], SQL["write_record"]


class SqliteStore:
    """The store contract in SQLite's SQL."""

    dialect: Final[Dialect] = SQLITE
    migrations: tuple[str, ...] = MIGRATIONS
    capabilities = Capabilities(
        survives_process_crash=True,
        survives_server_crash=True,
        shared_between_processes=True,
        atomic_with_business_writes=True,
        counts_new_keys=True,
        holds_features=True,
        blocking_units=True,
        looks_max=50_000,
    )

    def look(self, claims: Sequence[Claim]) -> Flow[list[Verdict | None]]:
        now = yield from ask(NOW)
        verdicts: list[Verdict | None] = []
        for claim in claims:
            verdicts.append((yield from _look(claim, now)) or None)
        return verdicts

    def claim(self, claims: Sequence[Claim]) -> Flow[list[Verdict]]:
        # First without the writer's lock: most duplicates need nothing written.
        verdicts = yield from self.look(claims)
        for place, claim in enumerate(claims):
            if verdicts[place] is None:
                verdicts[place] = yield from _grant(claim)
        return cast("list[Verdict]", verdicts)

    def claim_unseen(self, claims: Sequence[Claim]) -> Flow[list[Verdict]]:
        """Claim ids that a look has just not found: the write comes first."""
        verdicts: list[Verdict] = []
        for claim in claims:
            verdicts.append((yield from _grant(claim)))
        return verdicts

    def claim_in_unit(self, claim: Claim) -> Flow[Verdict]:
        return _grant(claim)

    def take_place(self, claim: Claim) -> Flow[QuotaExceeded | None]:
        raise NotImplementedError("this store's units count new keys themselves: it declares no settles_by_proof")

    def settle(self, settlements: Sequence[Settlement]) -> Flow[list[Settling]]:
        return (yield from settle_with_events(SQLITE, self._settle, settlements))

    def _settle(self, settlements: Sequence[Settlement]) -> Flow[list[Settling]]:
        replies: list[Settling] = []
        for settlement in settlements:
            now = yield from ask(NOW)
            # Only an answer ends a record in any state; the rules decide about every other settlement.
            ends = settlement.state in ANSWERED_STATES
            if ends and (yield from ask(Execute(_SETTLE, _settlement(settlement, now)))) == 1:
                replies.append(Settled())
            else:
                replies.append((yield from _settle_by_rule(settlement, now)))
        return replies

    def settle_within(self, settlement: Settlement) -> Ask[Any]:
        raise NotImplementedError("this store's units are looked at from outside: it declares no settles_by_proof")

    def commit_together(self) -> Flow[None]:
        yield from ()

    def mark_not_kept(self, renewals: Sequence[Renewal]) -> Flow[list[bool]]:
        done = []
        for renewal in renewals:
            done.append((yield from _rewrite(renewal.id, partial(mark_row, renewal=renewal))))
        return done

    def reseal(self, changes: Sequence[Reseal]) -> Flow[list[bool]]:
        done = []
        for change in changes:
            done.append((yield from _rewrite(change.id, partial(reseal_row, change=change))))
        return done

    def renew(self, renewals: Sequence[Renewal]) -> Flow[list[bool]]:
        done = []
        now = yield from ask(NOW_LOCKED)
        for renewal in renewals:
            done.append((yield from _rewrite(renewal.id, partial(renew_row, renewal=renewal, now=now))))
        return done

    def abandon(self, nonces: Sequence[tuple[bytes, bytes]]) -> Flow[list[bool]]:
        done = []
        now = yield from ask(NOW)
        for id, nonce in nonces:
            done.append((yield from _rewrite(id, partial(abandon_row, nonce=nonce, now=now))))
        return done

    def read(self, ids: Sequence[bytes]) -> Flow[list[Record | None]]:
        rows = []
        for id in ids:
            rows.append((yield from _read(id)))
        return rows

    def read_operations(self, operation_ids: Sequence[bytes]) -> Flow[list[Record | None]]:
        rows: list[Record | None] = []
        for operation_id in operation_ids:
            found = yield from ask(Query(SQL["read_operation"], {"operation_id": operation_id}))
            rows.append(_record(found[0]) if found else None)
        return rows

    def find(self, query: Find) -> Flow[Found]:
        now = yield from ask(NOW)
        states = f",{','.join(str(int(state)) for state in query.states)}," if query.states else None
        is_listed = bool(query.states) and _SEARCHED.issuperset(query.states)
        small, after = yield from choose_look(query, SQL, is_listed=is_listed)
        rows = yield from ask(
            Query(
                SQL["find_open" if small else "find_records"],
                {
                    "before": query.before,
                    **({} if small else {"after": after}),
                    "states": states,
                    "tenant": query.tenant,
                    "caller": query.caller,
                    "operation": query.operation,
                    "lapsed": int(query.lapsed),
                    "now": now,
                    "limit": query.limit + 1,
                },
            )
        )
        page = rows[: query.limit]
        records = tuple(_record((*row[1:], None, None, None)) for row in page)
        last = cast(int, page[-1][0]) if page and len(rows) > query.limit else None
        return Found(records, next_page(last, after), now)

    def resolve(self, resolution: Resolution) -> Flow[Resolving]:
        now = yield from ask(NOW_LOCKED)
        row = yield from _read(resolution.id)
        steps = steps_after(row, resolution, (yield from read_stored_steps(SQLITE, resolution.id)), now)
        reply, written = resolve_row(row, resolution, now, steps)
        if row is None or written is None or not isinstance(reply, Resolved):
            return reply
        if not (yield from _replace(row, written)):
            return (yield from self.resolve(resolution))
        yield from rewrite_steps(SQLITE, written, steps)
        audit: Params = {
            "at": now,
            "record_id": resolution.id,
            "actor": resolution.actor,
            "action": action_of(resolution, row),
            "reason": resolution.reason,
            "fence": written.fence,
        }
        yield from ask(Execute(SQL["write_audit"], audit))
        return reply

    def lapse(self, limit: int) -> Flow[list[Record]]:
        now = yield from ask(NOW)
        found = yield from ask(Query(SQL["find_lapsed"], {"now": now, "limit": limit}))
        marked = []
        for (id,) in found:
            row = yield from _read(cast(bytes, id))
            lapsed = None if row is None else lapse_row(row, now)
            if row is not None and lapsed is not None and (yield from _replace(row, lapsed)):
                marked.append(lapsed)
        return marked

    def turn(self, kind: str, mine: int | None, every_us: int, reaps: bool) -> Flow[Turn]:
        """Take a turn, as :class:`~semel.workers.rules.TakesTurns`. If turns are impossible, each look is a turn."""
        now = yield from ask(NOW)
        taken = yield from ask(TakeTurn(kind, mine, every_us))
        params = yield from self.turn_params(reaps)
        [(_, _, found)] = yield from ask(Query(SQL["turn"], {**params, "now": now, "mine": None}))
        return read_turn(now, now + every_us // 2 if taken is None else taken, cast(str, found))

    def turn_params(self, reaps: bool | None) -> Flow[Params]:
        """Return which records a turn sees; None for ``reaps``: none at all. A small index holds all open ones."""
        yield from ()
        return {"page": int(reaps is not None)}

    def purge(self, after: int | None, chunk: int) -> Flow[Purged]:
        now = yield from ask(NOW)
        window = yield from ask(Query(SQL["purge_window"], {"after": after or 0, "chunk": chunk}))
        dropped = forgotten = 0
        for seq, answer_until, forget_after, answer_kind in window:
            if may_forget(cast("int | None", forget_after), now):
                forgotten += yield from ask(Execute(SQL["forget"], {"seq": seq, "forget_after": forget_after}))
            elif may_drop_answer(cast("int | None", answer_until), now) and answer_kind in STORED_ANSWERS:
                dropped += yield from ask(Execute(SQL["drop_answer"], {"seq": seq, "answer_until": answer_until}))
        last = cast(int, window[-1][0]) if len(window) == chunk else None
        return Purged(len(window), dropped, forgotten, last)

    def forget_quotas(self) -> Flow[int]:
        return _forget_quotas()

    def counts(self) -> Flow[dict[int, int]]:
        rows = yield from ask(Query(SQL["count_states"], _EMPTY))
        return {cast(int, state): cast(int, count) for state, count in rows}

    def audit(self, record: bytes | None, limit: int) -> Flow[list[Audit]]:
        rows = yield from ask(Query(SQL["read_audit"], {"record_id": record, "limit": limit}))
        return [Audit(*cast("tuple[int, bytes, str, str, str, int]", row)) for row in rows]

    def now(self) -> Flow[int]:
        return ask(NOW)

    def identity(self) -> Flow[Identity | None]:
        has = yield from ask(Query(SQL["has_meta"], _EMPTY))
        if not has[0][0]:
            return None
        rows = yield from ask(Query(SQL["read_meta"], _EMPTY))
        return Identity(*cast("tuple[str, int, int, int, bytes]", rows[0])) if rows else None

    def migrate(self, store_id: str, secret_check: bytes) -> Flow[list[str]]:
        yield from ask(Script(()))  # takes the writer's lock before it reads: two migrations never overlap
        known = yield from self.identity()
        done = 0 if known is None else known.schema_version
        ran = []
        for number, name in enumerate(MIGRATIONS, start=1):
            if number > done:
                yield from ask(Script(script(_migration(name))))
                ran.append(name)
        additions = yield from self.missing_additions()
        for name in additions:
            yield from ask(Script(script(_migration(name))))
        first: Params = {"store_id": store_id, "schema_version": SCHEMA_VERSION, "secret_check": secret_check}
        if ran:
            yield from ask(Execute(SQL["first_meta"], first))
            yield from ask(Execute(SQL["write_schema_version"], {"schema_version": SCHEMA_VERSION}))
        return [*ran, *additions]

    def missing_additions(self) -> Flow[list[str]]:
        missing = []
        for name, asked in ADDITIONS.items():
            [(has,)] = yield from ask(Query(SQL[asked], _EMPTY))
            if not has:
                missing.append(name)
        return missing

    def doctor(self, *, full: bool, quick: bool) -> Sequence[DoctorCheck]:
        return doctor.checks(full=full, quick=quick)


def _migration(name: str) -> str:
    return resources.files("semel.stores").joinpath("sqlite", "migrations", f"{name}.sql").read_text("utf-8")


def _record(row: Row) -> Record:
    return Record._make(row)  # the statements name the columns in the record's order


def _read(id: bytes) -> Flow[Record | None]:
    rows = yield from ask(Query(READ_RECORD, (id,)))
    return _record(rows[0]) if rows else None


def look_first(claim: Claim) -> Flow[Verdict | Literal[False] | None]:
    """Look at one claim as :meth:`SqliteStore.look`; False where no record has its id."""
    return (yield from _look(claim, (yield from ask(NOW))))


def _look(claim: Claim, now: int) -> Flow[Verdict | Literal[False] | None]:
    row = yield from _read(claim.id)
    if row is None:
        return False
    verdict = decide(row, claim, now)
    if needs_steps(verdict):
        verdict, _ = yield from decide_with_steps(SQLITE, row, claim, now)
    return None if type(verdict) is Proceed and is_grant_new(row, verdict.grant) else verdict


def _grant(claim: Claim) -> Flow[Verdict]:
    """Insert, or read and decide, or take over, all inside the writer's lock."""
    now = yield from ask(NOW_LOCKED)
    if claim.quota is not None:
        refused = yield from _take_place(claim, claim.quota, now)
        if refused is not None:
            return refused
    grant = first_grant(claim, now)
    if (yield from ask(Execute(_INSERT, (*grant_row(None, claim, grant)[:_CLAIMED], AnswerKind.NONE)))) == 1:
        return Proceed(grant)
    row = yield from _read(claim.id)
    if row is None:  # forgotten between the two statements: cannot happen inside the writer's lock
        return (yield from _grant(claim))
    verdict, steps = decide(row, claim, now), None
    if needs_steps(verdict):
        verdict, steps = yield from decide_with_steps(SQLITE, row, claim, now)
    if type(verdict) is not Proceed or not is_grant_new(row, verdict.grant):
        return verdict
    if not (yield from _replace(row, grant_row(row, claim, verdict.grant), steps)):
        return (yield from _grant(claim))
    return verdict


def _take_place(claim: Claim, allowance: Allowance, now: int) -> Flow[Verdict | None]:
    """Take a place of the claim's quota, if its record does not exist yet; return the verdict if none is free."""
    if (yield from ask(Query(SQL["read_state"], (claim.id,)))):
        return None
    rows = yield from ask(Query(SQL["read_quota"], (allowance.id,)))
    usage = _usage(rows[0]) if rows else None
    states = yield from _states(must_look(usage, allowance))
    usage, refused = take(usage, allowance, claim.id, states, now)
    if usage is not None:
        row = (allowance.id, usage.slice, usage.slice_us, pack_counts(usage), pack_listed(usage))
        yield from ask(Execute(SQL["write_quota"], row))
    return refused


def _usage(row: Row) -> Usage:
    newest, slice_us, counts, listed = cast("tuple[int, int, str, bytes]", row)
    return Usage(newest, slice_us, unpack_counts(counts), unpack_listed(listed))


def _states(ids: Sequence[bytes]) -> Flow[dict[bytes, int]]:
    states = {}
    for id in ids:
        for (state,) in (yield from ask(Query(SQL["read_state"], (id,)))):
            states[id] = cast(int, state)
    return states


def _forget_quotas() -> Flow[int]:
    """Drop the quotas of callers without usage; a file that never had quotas has no table of them."""
    [(has_quotas,)] = yield from ask(Query(SQL["has_quotas"], _EMPTY))
    if not has_quotas:
        return 0
    gone = 0
    now = yield from ask(NOW)
    for id, *row in (yield from ask(Query(SQL["old_quotas"], {"now": now, "limit": QUOTAS_MAX}))):
        usage = _usage(tuple(row))
        states = yield from _states([each for each, _ in usage.listed])
        if is_over(usage, now, states):
            gone += yield from ask(Execute(SQL["forget_quota"], {"id": id}))
    return gone


def _replace(seen: Record, written: Record, steps: bytes | None = None) -> Flow[bool]:
    params: dict[str, Value] = written._asdict()
    params["seen_fence"] = seen.fence
    params["seen_nonce"] = seen.nonce
    params["seen_state"] = seen.state
    params["seen_lease_until"] = seen.lease_until
    params["seen_answer_kind"] = seen.answer_kind
    params["seen_doubt"] = seen.doubt
    params["seen_steps"] = steps
    return (yield from ask(Execute(_WRITE, params))) == 1


def _rewrite(id: bytes, rule: Callable[[Record | None], Record | None]) -> Flow[bool]:
    """Write the record that the rule returns; False if it returns none.

    If another write came between the read and this one, the rule is asked again, now inside the writer's lock: a holder
    that only met another write of its own must not be refused as if it lost the record.
    """
    row = yield from _read(id)
    written = rule(row)
    if row is None or written is None:
        return False
    if not (yield from _replace(row, written)):
        return (yield from _rewrite(id, rule))
    return True


def _settlement(settlement: Settlement, now: int) -> Row:
    """Return the values of the ``settle`` statement, in its order."""
    answer = settlement.answer
    if answer is None:
        digest = status = block = body = None
    else:
        status, body = answer.status, answer.body
        block = pack_headers(answer.headers)
        digest = answer_digest(status, block, body)
    kept = settlement.answer_kind in STORED_ANSWERS
    return (
        settlement.state,
        now,  # settled_at
        now,  # answer_until
        now,  # forget_after
        settlement.doubt,
        settlement.error_code,
        settlement.business_ref,
        settlement.resource_type,
        settlement.resource_id,
        settlement.answer_kind,
        digest,
        status,
        block if kept else None,
        body if kept else None,
        settlement.id,
        settlement.fence,
        settlement.nonce,
    )


def _settle_by_rule(settlement: Settlement, now: int) -> Flow[Settling]:
    row = yield from _read(settlement.id)
    reply, written = settle_row(row, settlement, now)
    if row is None or written is None:
        return reply
    if not (yield from _replace(row, written)):
        return (yield from _settle_by_rule(settlement, now))
    return reply
