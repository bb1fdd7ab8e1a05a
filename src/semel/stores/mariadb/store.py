"""The MariaDB store: one statement for a claim or a batch of claims, and one for a batch of answers.

It runs under READ COMMITTED and holds no lock between a read and its write. A takeover or a resolution replaces a
record by compare-and-set on the version that was read; where another writer was quicker, it is read again.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    State,
    Verdict,
)
from semel.core.timing import PURGE_GRACE_US
from semel.outbox.store import settle_with_events, settling
from semel.reconciliation.resolutions import action_of, resolve_row
from semel.steps.findings import steps_after
from semel.steps.store import read_stored_steps, rewrite_steps
from semel.stores.mariadb import doctor
from semel.stores.mariadb.requests import SeveralStatements
from semel.stores.mariadb.rows import SQL as COMMANDS
from semel.stores.mariadb.rows import VERSIONS, claim_all, look, record, replace, settle_all, settle_one
from semel.stores.mariadb.settings import observe
from semel.stores.sql.dialect import MARIADB
from semel.stores.sql.lapsed_scan import Walk
from semel.stores.sql.statements import TOGETHER, Argument, Execute, Query, Row, statements
from semel.stores.sql.versioned_store import VersionedStore
from semel.stores.versions import Verdicts, find_kept_in

SQL: Final = statements("semel.stores.mariadb", "sql/upkeep.sql")
MIGRATIONS: Final = ("0001_first", "0002_many_effects", "0003_imports")
SCHEMA_VERSION: Final = len(MIGRATIONS)
ADDITIONS: Final = {"turns": SQL["has_turns"], "waiting_messages": SQL["has_waiting_messages"]}


def _keep(ids: Sequence[bytes], horizon: int) -> Flow[None]:
    raised = [Execute(COMMANDS["raise_attention"], {"id": id}) for id in ids]
    written = Execute(SQL["write_horizon"], {"horizon": horizon})
    yield from ask(TOGETHER)
    yield from ask(SeveralStatements([*raised, Execute(SQL["clear_attention"], {}), written]))


_WALK: Final = Walk(SQL["read_horizon"], SQL["scan_open"], SQL["find_lapsed"], _keep, VERSIONS)


class MariadbStore(VersionedStore):
    """The store contract in MariaDB's SQL."""

    dialect = MARIADB
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
        holds_features=True,
        balances_attention=True,
        looks_max=10_000,  # the table lies in the order of the ids: each record is a look-up of its own
    )

    def claim(self, claims: Sequence[Claim]) -> Flow[list[Verdict]]:
        verdicts: Verdicts = {}
        left = list(claims)
        while left:  # the same key twice in one batch: the others meet the first one's record
            firsts: dict[bytes, Claim] = {}
            for claim in left:
                firsts.setdefault(claim.id, claim)
            yield from claim_all(list(firsts.values()), verdicts, store_id=self._opened)
            left = [claim for claim in left if claim[:2] not in verdicts]
        return [verdicts[claim[:2]] for claim in claims]

    def look_kept(self, asked: Sequence[Known]) -> Flow[list[Replay | None]]:
        """As :class:`~semel.core.contract.LooksForKept`."""
        ids = sorted({id for id, _, _ in asked})
        rows = yield from ask(Query(COMMANDS["look_kept"], {"ids": ids, "store": self._opened}))
        return find_kept_in(rows, asked)

    def claim_in_unit(self, claim: Claim) -> Flow[Verdict]:
        verdicts: Verdicts = {}
        yield from claim_all([claim], verdicts, in_unit=True)
        return verdicts[claim[:2]]

    def take_place(self, claim: Claim) -> Flow[QuotaExceeded | None]:
        raise NotImplementedError("this store does not count new keys: it declares no counts_new_keys")

    def settle(self, settlements: Sequence[Settlement]) -> Flow[list[Settling]]:
        return (yield from settle_with_events(MARIADB, settle_all, settlements))

    def settle_within(self, settlement: Settlement) -> Ask[Any]:
        return settling(settle_one(settlement), settlement)

    def read(self, ids: Sequence[bytes]) -> Flow[list[Record | None]]:
        found = yield from look(sorted(set(ids)))
        return [found[id][1] if id in found else None for id in ids]

    def read_operations(self, operation_ids: Sequence[bytes]) -> Flow[list[Record | None]]:
        if not operation_ids:
            return []
        rows = yield from ask(Query(COMMANDS["read_operations"], {"ids": list(operation_ids)}))
        found = {row.operation_id: row for row in map(record, rows)}
        return [found.get(operation_id) for operation_id in operation_ids]

    def _find_params(self, query: Find) -> dict[str, Argument]:
        return {
            "states": [int(state) for state in query.states or State],
            "lapsed": int(query.lapsed),
            "tenant": query.tenant,
            "caller": query.caller,
            "operation": query.operation,
        }

    def _read_found(self, row: Row) -> Record:
        return record((*row[1:], None, None, None))

    def resolve(self, resolution: Resolution) -> Flow[Resolving]:
        yield from ask(TOGETHER)  # the record and its line of the audit trail: both or neither
        while True:
            listed = yield from read_stored_steps(MARIADB, resolution.id)
            found = yield from look([resolution.id])
            now, row = found.get(resolution.id, (0, None))
            steps = steps_after(row, resolution, listed, now)
            reply, written = resolve_row(row, resolution, now, steps)
            if row is None or written is None or not isinstance(reply, Resolved):
                return reply
            if (yield from replace(row, written)):
                break
        yield from rewrite_steps(MARIADB, written, steps)
        audit: dict[str, Argument] = {
            "at": now,
            "record_id": resolution.id,
            "actor": resolution.actor,
            "action": action_of(resolution, row),
            "reason": resolution.reason,
            "fence": written.fence,
        }
        yield from ask(Execute(COMMANDS["write_audit"], audit))
        return reply

    def purge(self, after: int | None, chunk: int) -> Flow[Purged]:
        window = yield from ask(
            Query(SQL["purge_window"], {"after": after or 0, "chunk": chunk, "grace": PURGE_GRACE_US})
        )
        last = cast(int, window[-1][0]) if len(window) == chunk else None
        due = sorted(cast(bytes, id) for _, id, forget, drop in window if forget or drop)
        if not due:
            return Purged(len(window), 0, 0, last)
        yield from ask(TOGETHER)
        free = [cast(bytes, id) for (id,) in (yield from ask(Query(SQL["lock_due"], {"ids": due})))]
        params: dict[str, Argument] = {"ids": free, "grace": PURGE_GRACE_US}
        counts = yield from ask(
            SeveralStatements([Execute(SQL["forget"], params), Execute(SQL["drop_answer"], params)])
        )
        forgotten, dropped = cast("list[int]", counts)
        return Purged(len(window), dropped, forgotten, last)

    def forget_quotas(self) -> Flow[int]:
        raise NotImplementedError("this store does not count new keys: it declares no counts_new_keys")

    def audit(self, record: bytes | None, limit: int) -> Flow[list[Audit]]:
        rows = yield from ask(Query(SQL["read_audit"], {"record_id": record, "limit": limit}))
        return [Audit(*cast("tuple[int, bytes, str, str, str, int]", row)) for row in rows]

    def observe(self) -> Flow[list[Observed]]:
        """Report how the server's settings limit the promise; start-up and ``semel doctor`` read it."""
        return observe()

    def migrate(self, store_id: str, secret_check: bytes) -> Flow[list[str]]:
        # No transaction holds a CREATE TABLE here; so every statement may be repeated, and the version comes last.
        ran, additions = yield from self._run_migrations()
        first: dict[str, Argument] = {"store_id": store_id, "schema_version": SCHEMA_VERSION}
        if ran:
            yield from ask(Execute(SQL["first_meta"], {**first, "secret_check": secret_check}))
            yield from ask(Execute(SQL["write_schema_version"], {"schema_version": SCHEMA_VERSION}))
        return [*ran, *additions]

    def doctor(self, *, full: bool, quick: bool) -> Sequence[DoctorCheck]:
        return doctor.checks()
