"""The steps of one execution in its record's row, which only its holder reads and writes, under fence and nonce.

No statement here changes a record that was granted to another attempt, was settled, or whose lease was released.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, cast

from semel.core.decide import decide
from semel.core.flow import Ask, Flow
from semel.core.model import Claim, Record, Renewal, State, Verdict
from semel.steps.rules import Steps, any_begun, pack_steps
from semel.stores.sql.dialect import Dialect, dialect_of
from semel.stores.sql.statements import Value

NOUN: Final = "steps"
FIRST: Final = (-1, b"")  # before every lease


class Recorded(NamedTuple):
    """A holder's own record. ``transaction`` is the one that read it, if it can be named."""

    steps: bytes | None
    transaction: str | None


class Abandoned(NamedTuple):
    """An execution that no process holds, of an operation that is declared resumable."""

    id: bytes
    operation: str
    attempt: int
    attempts_max: int
    lease_until: int


class StepRows:
    """The flows of steps on one store. Raises ConfigurationError if the store is not a SQL database."""

    def __init__(self, store: Any) -> None:
        self._dialect: Dialect = dialect_of(store, NOUN)
        self._sql = self._dialect.statements(NOUN)
        self.settles_by_proof: bool = store.capabilities.settles_by_proof

    def read(self, holder: Renewal, *, within: bool = False) -> Flow[Recorded | None]:
        """Read the recorded steps; None if the holder's grant is no longer current. ``within`` a unit: as its first
        statement.
        """
        read = self._sql["read_steps"]
        statement = self._sql.get("read_steps_within", read) if within else read
        rows = yield from self._dialect.rows(statement, holder._asdict())
        return Recorded(*cast("tuple[bytes | None, str | None]", rows[0])) if rows else None

    def write(self, holder: Renewal, steps: bytes, standing: tuple[State, str | None]) -> Flow[bool]:
        """Replace the list, with the state and doubt that follow from it; False for a superseded holder."""
        return (yield from self._dialect.write(self._sql["write_steps"], _write_params(holder, steps, standing))) == 1

    def write_within(
        self, holder: Renewal, steps: bytes, standing: tuple[State, str | None], transaction: str | None
    ) -> Ask[Any]:
        """Write the list as a unit's last request, which commits with it; a superseded holder cannot commit."""
        params = {**_write_params(holder, steps, standing), "transaction": transaction}
        return self._dialect.last_write(self._sql.get("write_steps_within", self._sql["write_steps"]), params)

    def keep_request(self, holder: Renewal, request: bytes) -> Flow[bool]:
        """Keep the request beside its claim; False for a superseded holder."""
        params: dict[str, Value] = {**holder._asdict(), "request": request}
        if "note_open" in self._sql:  # SQLite has an index of open records instead
            yield from self._dialect.commit_together()
            _ = yield from self._dialect.write(self._sql["note_open"], {"id": holder.id})
        return (yield from self._dialect.write(self._sql["keep_request"], params)) == 1

    def find_abandoned(self, limit: int, after: tuple[int, bytes] = FIRST) -> Flow[list[Abandoned]]:
        """Read a page of the resumable executions that may continue and have no holder, oldest lease first.

        Parameters: ``after`` the lease and the id of the last one of the page before.
        """
        page: dict[str, Value] = {"limit": limit, "after": after[0], "after_id": after[1]}
        rows = yield from self._dialect.rows(self._sql["find_abandoned"], page)
        return [Abandoned(*cast("tuple[bytes, str, int, int, int]", row)) for row in rows]


# --- with a claim by a process that declares no steps ----------------------------------------


def decide_with_steps(
    dialect: Dialect, row: Record, claim: Claim, now: int, *, locked: bool = False
) -> Flow[tuple[Verdict, bytes]]:
    """Return the verdict on a record that may have begun steps, and the list (empty: none) that a grant must find.

    Parameters: ``locked`` for a claim in a transaction that holds the row's lock, and may read from an older snapshot.
    """
    rows = yield from dialect.rows(dialect.statements(NOUN)["lock_steps" if locked else "list_steps"], {"id": row.id})
    listed = rows[0][0] if rows else None
    verdict = decide(row, claim, now, begun=any_begun(listed, row.generation))
    return verdict, listed if isinstance(listed, bytes) else b""


# --- with a settlement by an operator or a reconciler, in its transaction --------------------


def read_stored_steps(dialect: Dialect, id: bytes) -> Flow[Value]:
    """Read a record's list, locked against other writers until this transaction ends (SQLite holds its lock)."""
    rows = yield from dialect.rows(dialect.statements(NOUN)["lock_steps"], {"id": id})
    return rows[0][0] if rows else None


def read_listed_steps(store: Any, id: bytes) -> Flow[Value]:
    """Read a record's stored list for an operator; None if the store keeps no steps."""
    if not store.capabilities.holds_features:
        return None
    dialect = dialect_of(store, NOUN)
    rows = yield from dialect.rows(dialect.statements(NOUN)["list_steps"], {"id": id})
    return rows[0][0] if rows else None


def rewrite_steps(dialect: Dialect, record: Record, steps: Steps | None) -> Flow[None]:
    """Write a settled record's list after the record; None: leave it unchanged."""
    if steps is None:
        return
    params: dict[str, Value] = {"id": record.id, "fence": record.fence, "steps": pack_steps(record.generation, steps)}
    yield from dialect.write(dialect.statements(NOUN)["rewrite_steps"], params)


def _write_params(holder: Renewal, steps: bytes, standing: tuple[State, str | None]) -> dict[str, Value]:
    state, doubt = standing
    return {**holder._asdict(), "steps": steps, "state": int(state), "doubt": doubt}
