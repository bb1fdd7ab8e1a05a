"""The shared part of PostgreSQL's and MariaDB's stores: the verbs that compare and set a record, and upkeep.

Neither holds a lock between a read and its write, so both write through :class:`~semel.stores.versions.Versions`. The
verbs of the hot path (claim, settle), and those whose statements differ, are each store's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import ClassVar, Final, Protocol, TypeVar, cast

from semel.core.contract import Identity
from semel.core.flow import Flow, ask
from semel.core.model import Claim, Find, Found, Record, Renewal, State, Verdict
from semel.core.settle import abandon_row, mark_row, renew_row
from semel.sealing.rows import Reseal, reseal_row
from semel.stores.sql.dialect import Dialect
from semel.stores.sql.lapsed_scan import Horizon, Walk, count_states
from semel.stores.sql.looks import choose_look, next_page
from semel.stores.sql.statements import TOGETHER, Argument, Params, Query, Row, Script, Statement, script
from semel.stores.versions import Rule, Versions
from semel.workers.rules import Turn, read_turn

_WANTED: Final = frozenset({State.UNKNOWN})
NEEDING_LOOKED: Final = 4  # records needing attention that are read for each one that a census wants


class _HasId(Protocol):
    @property
    def id(self) -> bytes: ...


R = TypeVar("R", bound=_HasId)


class VersionedStore:
    """The base of both stores, one instance per process: it remembers how far its reaper has walked.

    A store names its ``dialect``, its ``migrations`` in their order, ``_additions`` (migrations that raise no version,
    because only the processes that use them need them, each with the statement that tells whether it ran), and the
    statements of its upkeep.
    """

    dialect: ClassVar[Dialect]
    migrations: tuple[str, ...]
    _additions: ClassVar[Mapping[str, Statement]]
    _sql: ClassVar[Mapping[str, Statement]]
    _versions: ClassVar[Versions]
    _walk: ClassVar[Walk]

    def __init__(self) -> None:
        self._horizon = Horizon()
        self._opened: str | None = None  # the id of the store that this process has opened first

    def look(self, claims: Sequence[Claim]) -> Flow[list[Verdict | None]]:
        return (yield from self._versions.look_at(claims))

    def commit_together(self) -> Flow[None]:
        yield from ask(TOGETHER)

    def mark_not_kept(self, renewals: Sequence[Renewal]) -> Flow[list[bool]]:
        return (yield from self._rewrite(renewals, lambda row, renewal, now: mark_row(row, renewal)))

    def reseal(self, changes: Sequence[Reseal]) -> Flow[list[bool]]:
        return (yield from self._rewrite(changes, lambda row, change, now: reseal_row(row, change)))

    def renew(self, renewals: Sequence[Renewal]) -> Flow[list[bool]]:
        return (yield from self._rewrite(renewals, renew_row))

    def _rewrite(self, requests: Sequence[R], rule: Callable[[Record, R, int], Record | None]) -> Flow[list[bool]]:
        def bind(request: R) -> Rule:
            return lambda row, now: rule(row, request, now)

        done = yield from self._versions.rewrite_all({request.id: bind(request) for request in requests})
        return [request.id in done for request in requests]

    def abandon(self, nonces: Sequence[tuple[bytes, bytes]]) -> Flow[list[bool]]:
        def bind(nonce: bytes) -> Rule:
            return lambda row, now: abandon_row(row, nonce, now)

        done: list[bool] = []
        for id, nonce in nonces:  # two claims with different nonces may have abandoned one id
            done.append(id in (yield from self._versions.rewrite_all({id: bind(nonce)})))
        return done

    def find(self, query: Find) -> Flow[Found]:
        is_listed = query.attention or (bool(query.states) and _WANTED.issuperset(query.states))
        small, after = yield from choose_look(query, self._sql, is_listed=is_listed)
        named = self._find_params(query)
        named["limit"] = query.limit + 1
        if query.is_census:
            statement = "find_needing"
            named["look"] = NEEDING_LOOKED * query.limit
        else:
            statement = "find_unknown" if small else "find"
            named |= {"before": query.before, **({} if small else {"after": after})}
        rows = yield from ask(Query(self._sql[statement], named))
        now = cast(int, rows[0][0])
        page = [row for row in rows if row[1] is not None][: query.limit]
        last = cast(int, page[-1][1]) if page and len(rows) > query.limit else None
        return Found(tuple(map(self._read_found, page)), next_page(last, after), now)

    def _find_params(self, query: Find) -> dict[str, Argument]:
        """Return what a query asks for, as the store's statements take it."""
        raise NotImplementedError

    def _read_found(self, row: Row) -> Record:
        """Make the record of a row that ``find`` has read."""
        raise NotImplementedError

    def lapse(self, limit: int) -> Flow[list[Record]]:
        return (yield from self._walk.lapse(self._horizon, limit))

    def turn(self, kind: str, mine: int | None, every_us: int, reaps: bool) -> Flow[Turn]:
        """Take a turn, as :class:`~semel.workers.rules.TakesTurns`. Raises SchemaError where ``turns`` did not run."""
        params = yield from self.turn_params(reaps)
        [row] = yield from ask(Query(self._sql["turn"], {**params, "kind": kind, "mine": mine, "every": every_us}))
        return read_turn(*cast("tuple[int, int, str]", row))

    def turn_params(self, reaps: bool | None) -> Flow[Params]:
        """Return which records a turn sees; with ``reaps`` also those created since; None: none at all."""
        return (yield from self._walk.turn_params(self._horizon, reaps))

    def counts(self) -> Flow[dict[int, int]]:
        return (yield from count_states(self._sql["count_states"]))

    def now(self) -> Flow[int]:
        [(now,)] = yield from ask(Query(self._sql["read_now"], {}))
        return cast(int, now)

    def identity(self) -> Flow[Identity | None]:
        has = yield from ask(Query(self._sql["has_meta"], {}))
        if not has[0][0]:
            return None
        rows = yield from ask(Query(self._sql["read_meta"], {}))
        if not rows:
            return None
        found = Identity(*cast("tuple[str, int, int, int, bytes]", rows[0]))
        self._opened = self._opened or found.store_id
        return found

    def missing_additions(self) -> Flow[list[str]]:
        missing = []
        for name, statement in self._additions.items():
            [(has,)] = yield from ask(Query(statement, {}))
            if not has:
                missing.append(name)
        return missing

    def _run_migrations(self) -> Flow[tuple[list[str], list[str]]]:
        """Run the migrations that did not run yet, then the missing additions. Returns the names of both."""
        known = yield from self.identity()
        ran = list(self.migrations[0 if known is None else known.schema_version :])
        for name in ran:
            yield from self._run_script(name)
        additions = yield from self.missing_additions()
        for name in additions:
            yield from self._run_script(name)
        return ran, additions

    def _run_script(self, name: str) -> Flow[None]:
        file = resources.files("semel.stores").joinpath(self.dialect.name, "migrations", f"{name}.sql")
        yield from ask(Script(script(file.read_text("utf-8"))))
