"""The PostgreSQL store: one statement per verb, and whole batches in one round trip.

A claim is one statement: it inserts the records of new keys and returns the records of all others, on which ``decide``
rules. A takeover or a resolution replaces a record by compare-and-set on the version that was read; where another
writer was quicker, the flow reads again. Safety depends neither on who runs the flow nor on a transaction around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final, cast

from semel.core.contract import Capabilities, DoctorCheck, Known, Observed
from semel.core.flow import Ask, Flow, ask
from semel.core.model import (
    Audit,
    Claim,
    Find,
    Purged,
    QuotaExceeded,
    Record,
    Replay,
    Resolution,
    Resolved,
    Resolving,
    Settlement,
    Settling,
    Verdict,
)
from semel.core.timing import PURGE_GRACE_US
from semel.outbox.store import settle_with_events, settling
from semel.reconciliation.resolutions import action_of, resolve_row
from semel.steps.findings import steps_after
from semel.steps.store import read_stored_steps, rewrite_steps
from semel.stores.postgres import doctor
from semel.stores.postgres.alike import are_different
from semel.stores.postgres.rows import (
    QUOTAS,
    VERSIONS,
    claim_all,
    look,
    replace,
    settle_all,
    settlement_params,
    take_place,
    write_unit,
)
from semel.stores.postgres.rows import SQL as COMMANDS
from semel.stores.postgres.settings import observe
from semel.stores.postgres.text import escape, record, unescape
from semel.stores.sql.dialect import POSTGRES
from semel.stores.sql.lapsed_scan import Walk
from semel.stores.sql.statements import TOGETHER, Argument, Query, Row, statements
from semel.stores.sql.versioned_store import VersionedStore
from semel.stores.versions import Verdicts, find_kept_in

SQL: Final = statements("semel.stores.postgres", "sql/upkeep.sql")
MIGRATIONS: Final = ("0001_first", "0002_many_effects", "0003_imports")
SCHEMA_VERSION: Final = len(MIGRATIONS)
ADDITIONS: Final = {
    "turns": SQL["has_turns"],
    "quotas": QUOTAS["has_quotas"],
    "waiting_messages": SQL["has_waiting_messages"],
}
QUOTAS_MAX: Final = 10_000  # forgotten by one walk of the purge
MIGRATION_LOCK: Final = 0x53656D656C  # "Semel", as the number of an advisory lock
_id_of: Final[Callable[[Known], bytes]] = itemgetter(0)
_attempt_of: Final = itemgetter(slice(2))  # the first two fields of a claim, by which its verdict is kept


def _keep(ids: Sequence[bytes], horizon: int) -> Flow[None]:
    yield from ask(Query(SQL["keep_horizon"], {"ids": list(ids), "horizon": horizon}))


_WALK: Final = Walk(SQL["read_horizon"], SQL["scan_open"], SQL["find_lapsed"], _keep, VERSIONS)


class PostgresStore(VersionedStore):
    """The store contract in PostgreSQL's SQL."""

    dialect = POSTGRES
    migrations: tuple[str, ...] = MIGRATIONS
    _additions = ADDITIONS
    _sql = SQL
    _versions = VERSIONS
    _walk = _WALK
    capabilities = Capabilities(
        survives_process_crash=True,
        survives_server_crash=True,
        shared_between_processes=True,
        atomic_with_business_writes=True,
        settles_by_proof=True,
        counts_new_keys=True,
        holds_features=True,
        balances_attention=True,
        looks_max=50_000,
    )

    def __init__(self) -> None:
        super().__init__()
        self._units = 0  # that this process has claimed for

    def claim(self, claims: Sequence[Claim]) -> Flow[list[Verdict]]:
        verdicts: Verdicts = {}
        first = claims if are_different(claims) else {claim.id: claim for claim in reversed(claims)}.values()
        yield from claim_all(first, verdicts, self._opened)
        if len(verdicts) < len(claims):  # the same key twice in one batch: the others meet the first one's record
            again = [claim for claim in claims if claim[:2] not in verdicts]
            seen = yield from self.look(again)
            for claim, verdict in zip(again, seen, strict=True):
                if verdict is not None:
                    verdicts[claim[:2]] = verdict
                elif claim[:2] not in verdicts:  # an attempt that comes twice in the batch is one
                    yield from claim_all([claim], verdicts, self._opened)
        return list(map(verdicts.__getitem__, map(_attempt_of, claims)))

    def look_kept(self, asked: Sequence[Known]) -> Flow[list[Replay | None]]:
        """As :class:`~semel.core.contract.LooksForKept`."""
        ids = sorted(set(map(_id_of, asked)))
        rows = yield from ask(Query(COMMANDS["look_kept"], {"ids": ids, "store": self._opened}))
        return find_kept_in(rows, asked)

    def claim_in_unit(self, claim: Claim) -> Flow[Verdict]:
        verdicts: Verdicts = {}
        self._units += 1
        yield from claim_all(
            [claim], verdicts, self._opened, write_unit("claim_in_unit", len(str(self._units)), "claim")
        )
        return verdicts[claim[:2]]

    def take_place(self, claim: Claim) -> Flow[QuotaExceeded | None]:
        return take_place(claim)

    def settle(self, settlements: Sequence[Settlement]) -> Flow[list[Settling]]:
        return (yield from settle_with_events(POSTGRES, settle_all, settlements))

    def settle_within(self, settlement: Settlement) -> Ask[Any]:
        statement = write_unit("settle_in_unit", len(str(self._units)))
        return settling(Query(statement, settlement_params(settlement)), settlement)

    def read(self, ids: Sequence[bytes]) -> Flow[list[Record | None]]:
        rows = yield from ask(Query(COMMANDS["read"], {"ids": sorted(set(ids))}))
        found = {cast(bytes, row[0]): record(row) for row in rows}
        return [found.get(id) for id in ids]

    def read_operations(self, operation_ids: Sequence[bytes]) -> Flow[list[Record | None]]:
        rows = yield from ask(Query(SQL["read_operations"], {"operation_ids": list(operation_ids)}))
        found = {row.operation_id: row for row in map(record, rows)}
        return [found.get(operation_id) for operation_id in operation_ids]

    def _find_params(self, query: Find) -> dict[str, Argument]:
        return {
            "states": [int(state) for state in query.states] or None,
            "lapsed": query.lapsed,
            "tenant": escape(query.tenant),
            "caller": escape(query.caller),
            "operation": escape(query.operation),
        }

    def _read_found(self, row: Row) -> Record:
        return record((*row[2:], None, None, None))

    def resolve(self, resolution: Resolution) -> Flow[Resolving]:
        yield from ask(TOGETHER)
        while True:
            listed = yield from read_stored_steps(POSTGRES, resolution.id)
            found = yield from look([resolution.id])
            now, row = found.get(resolution.id, (0, None))
            steps = steps_after(row, resolution, listed, now)
            reply, written = resolve_row(row, resolution, now, steps)
            if row is None or written is None or not isinstance(reply, Resolved):
                return reply
            audit: dict[str, Argument] = {
                "at": now,
                "actor": escape(resolution.actor),
                "action": escape(action_of(resolution, row)),
                "reason": escape(resolution.reason),
            }
            if (yield from replace(row, written, audit)):
                yield from rewrite_steps(POSTGRES, written, steps)
                return reply

    def purge(self, after: int | None, chunk: int) -> Flow[Purged]:
        [row] = yield from ask(Query(SQL["purge"], {"after": after or 0, "chunk": chunk, "grace": PURGE_GRACE_US}))
        scanned, dropped, forgotten, last = cast("tuple[int, int, int, int | None]", row)
        return Purged(scanned, dropped, forgotten, last if scanned == chunk else None)

    def forget_quotas(self) -> Flow[int]:
        [(has_quotas,)] = yield from ask(Query(QUOTAS["has_quotas"], {}))
        if not has_quotas:
            return 0
        [(gone,)] = yield from ask(Query(QUOTAS["forget_quotas"], {"limit": QUOTAS_MAX}))
        return cast(int, gone)

    def audit(self, record: bytes | None, limit: int) -> Flow[list[Audit]]:
        rows = yield from ask(Query(SQL["read_audit"], {"record_id": record, "limit": limit}))
        return [_audit(row) for row in rows]

    def observe(self) -> Flow[list[Observed]]:
        return (yield from observe())

    def migrate(self, store_id: str, secret_check: bytes) -> Flow[list[str]]:
        yield from ask(TOGETHER)
        yield from ask(Query(SQL["lock_schema"], {"lock": MIGRATION_LOCK}))
        ran, additions = yield from self._run_migrations()
        first: dict[str, Argument] = {"store_id": store_id, "schema_version": SCHEMA_VERSION}
        if ran:
            yield from ask(Query(SQL["first_meta"], {**first, "secret_check": secret_check}))
            yield from ask(Query(SQL["write_schema_version"], {"schema_version": SCHEMA_VERSION}))
        return [*ran, *additions]

    def doctor(self, *, full: bool, quick: bool) -> Sequence[DoctorCheck]:
        return doctor.checks()


def _audit(row: Row) -> Audit:
    at, id, actor, action, reason, fence = cast("tuple[int, bytes, str, str, str, int]", row)
    return Audit(at, id, unescape(actor), action, unescape(reason), fence)
