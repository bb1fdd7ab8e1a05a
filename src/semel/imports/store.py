"""The jobs of imports, their names, rows and kept bytes: flows over a SQL database, each at most one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

from semel.bulk.rules import KNOWN, ItemOutcome, ItemState, ListedItem, Tally, occurrence_of
from semel.bulk.store import Items
from semel.core.flow import Flow
from semel.core.identity import uuid_text
from semel.errors import ConfigurationError
from semel.imports.rules import Counts, FileName, ImportJob, ImportState, Job, key_range, known_row
from semel.stores.sql.dialect import Dialect, Values, dialect_of
from semel.stores.sql.statements import Row

NOUN: Final = "imports"
ROWS_CHECKED: Final = "ROWS_CHECKED"  # a running job's mark: all rows are valid, and being booked
ANY_ID: Final = b"\xff" * 16
PLAIN, SEALED = 1, 2  # the forms that bytes are kept in; one digest may have both
FORM_PLACES: Final = 1 << 40  # each form's parts have their own range of places
_PAST: Final = {PLAIN: FORM_PLACES, SEALED: 2 * FORM_PLACES}
GRACE_US: Final = 3600 * 1_000_000  # how long bytes without a job stay: an upload may be about to use them
NO_STORE: Final = (
    "imports need a SQL database: sqlite:///, postgresql:// or mysql:// (MariaDB). {name} is not one: a job must be "
    "unique by an index that outlives the process, and a row commits in one transaction with its outcome"
)


class NewJob(NamedTuple):
    """A job before it is stored. Spans in microseconds."""

    id: bytes
    tenant: str
    operation: str
    supplier: str
    key: str
    digest: bytes
    size: int
    media_type: str
    recipe: str
    content_ref: str
    keep_content_us: int
    keep_us: int


class Purged(NamedTuple):
    """The result of a purge of imports."""

    jobs: int = 0
    contents: int = 0
    rows: int = 0


class OverdueImport(NamedTuple):
    """An open job that no process has taken. ``lapse_us``: how long any process could have taken it."""

    id: bytes
    operation: str
    key: str
    state: int
    lapse_us: int


class ImportRows:
    """The flows of one store. Raises ConfigurationError if the store is not a SQL database."""

    def __init__(self, store: Any) -> None:
        if not store.capabilities.holds_features:
            raise ConfigurationError(NO_STORE.format(name=type(store).__name__))
        self._dialect: Dialect = dialect_of(store, "imports")
        self._sql = self._dialect.statements(NOUN)
        self._items = Items(store)

    # --- jobs -------------------------------------------------------------------------------------

    def by_key(self, tenant: str, operation: str, key: str) -> Flow[Job | None]:
        """Find the job with this key."""
        params: Values = {"tenant": tenant, "operation": operation, "idempotency_key": key}
        return _job((yield from self._dialect.rows(self._sql["by_key"], params)))

    def by_id(self, id: bytes) -> Flow[Job | None]:
        """Find a job by its id."""
        return _job((yield from self._dialect.rows(self._sql["by_id"], {"id": id})))

    def by_beginning(self, tenant: str, operation: str, beginning: str, limit: int) -> Flow[list[Job]]:
        """Find jobs whose keys begin with ``beginning``."""
        low, high = key_range(beginning)
        params: Values = {"tenant": tenant, "operation": operation, "low": low, "high": high, "limit": limit}
        return _jobs((yield from self._dialect.rows(self._sql["by_beginning"], params)))

    def found_by_key(self, beginning: str, limit: int) -> Flow[list[Job]]:
        """Find jobs of any tenant and operation whose keys begin with ``beginning``."""
        low, high = key_range(beginning)
        params: Values = {"low": low, "high": high, "limit": limit}
        return _jobs((yield from self._dialect.rows(self._sql["found_by_key"], params)))

    def page(
        self, before: bytes = ANY_ID, limit: int = 100, *, state: int = 0, operation: str = "", supplier: str = ""
    ) -> Flow[list[Job]]:
        """Read a page of jobs before an id, newest first."""
        params: Values = {
            "before": before,
            "state": state,
            "operation": operation,
            "supplier": supplier,
            "limit": limit,
        }
        return _jobs((yield from self._dialect.rows(self._sql["page"], params)))

    def submit(self, new: NewJob, name: str) -> Flow[tuple[Job, bool]]:
        """Store a job unless one has its key. Return the job with this key, and whether it is new."""
        yield from self._dialect.commit_together()
        params: Values = {
            "id": new.id,
            "tenant": new.tenant,
            "operation": new.operation,
            "supplier": new.supplier,
            "idempotency_key": new.key,
            "digest": new.digest,
            "bytes": new.size,
            "media_type": new.media_type,
            "recipe": new.recipe,
            "content_ref": new.content_ref,
            "keep_content_us": new.keep_content_us,
            "keep_us": new.keep_us,
        }
        is_new = (yield from self._dialect.write(self._sql["insert"], params)) == 1
        job = yield from self.by_key(new.tenant, new.operation, new.key)
        if job is None:
            raise ConfigurationError("a job that was just stored is not there: another process forgets jobs too early")
        if is_new:
            yield from self._put_name(job.id, name)
        return job, is_new

    def note_submission(self, job: Job, name: str) -> Flow[None]:
        """Record a repeated upload, under any name, by the job's id."""
        yield from self._dialect.commit_together()
        yield from self._dialect.write(self._sql["seen"], {"id": job.id})
        yield from self._put_name(job.id, name)

    def _put_name(self, id: bytes, name: str) -> Flow[None]:
        if name:
            yield from self._dialect.write(self._sql["put_name"], {"id": id, "name": name})

    def names(self, id: bytes) -> Flow[tuple[FileName, ...]]:
        """Read the file names under which a job's bytes were sent."""
        rows = yield from self._dialect.rows(self._sql["names"], {"id": id})
        return tuple(FileName(*cast("tuple[str, int, int, int]", row)) for row in rows)

    def show(self, job: Job, *, is_new: bool = False) -> Flow[ImportJob]:
        """Read the current state of a job: while it runs, its bulk has the counts."""
        names = yield from self.names(job.id)
        tally = None
        if job.row_count is None and job.bulk_id is not None:
            tally = yield from self._items.tally(job.bulk_id)
        return make_import_job(job, names, tally, is_new=is_new)

    # --- running ----------------------------------------------------------------------------------

    def due(self, operation: str, limit: int) -> Flow[list[bytes]]:
        """Find jobs that a process may take now."""
        rows = yield from self._dialect.rows(self._sql["due"], {"operation": operation, "limit": limit})
        return [cast(bytes, id) for (id,) in rows]

    def lapse(self, job: Job) -> Flow[int]:
        """Return for how many microseconds any process could have taken an open job; 0 where it has ended.

        Below 0: for that long a process still holds it, or it waits for its next attempt.
        """
        rows = yield from self._dialect.rows(self._sql["lapse"], {"id": job.id})
        return cast(int, rows[0][0]) if rows else 0

    def overdue(self, grace_us: int, limit: int) -> Flow[list[OverdueImport]]:
        """Find open jobs that no process has taken for longer than ``grace_us`` (microseconds), the longest first."""
        rows = yield from self._dialect.rows(self._sql["overdue"], {"grace": grace_us, "limit": limit})
        return [OverdueImport(*cast("tuple[bytes, str, str, int, int]", row)) for row in rows]

    def of_bulk(self, tenant: str, operation: str, bulk_id: bytes) -> Flow[Job | None]:
        """Find the job whose rows a bulk processes; None: the bulk is not an import's, or is an earlier run's."""
        params: Values = {"tenant": tenant, "operation": operation, "bulk_id": bulk_id}
        return _job((yield from self._dialect.rows(self._sql["of_bulk"], params)))

    def take(self, id: bytes, lease_us: int) -> Flow[Job | None]:
        """Take a job; None where another process took it first, or it has ended."""
        yield from self._dialect.commit_together()
        if (yield from self._dialect.write(self._sql["take"], {"id": id, "lease": lease_us})) != 1:
            return None
        return (yield from self.by_id(id))

    def beat(self, job: Job, lease_us: int) -> Flow[int]:
        """Renew the lease of the process that runs the job."""
        params: Values = {"id": job.id, "generation": job.generation, "lease": lease_us}
        return (yield from self._dialect.write(self._sql["beat"], params))

    def begin_rows(self, job: Job, bulk_id: bytes, recipe: str) -> Flow[int]:
        """Note the bulk that processes the job's rows, and the recipe by which they are read from now on."""
        params: Values = {"id": job.id, "generation": job.generation, "bulk_id": bulk_id, "recipe": recipe}
        return (yield from self._dialect.write(self._sql["begun"], params))

    def refuse(self, job: Job, code: str) -> Flow[int]:
        """Store the result of checking all rows, before the first row gets its outcome."""
        params: Values = {"id": job.id, "generation": job.generation, "error_code": code}
        return (yield from self._dialect.write(self._sql["refuse"], params))

    def postpone(self, job: Job, delay_us: int, reason: str) -> Flow[int]:
        """Delay the next run after a failed one."""
        params: Values = {"id": job.id, "generation": job.generation, "delay": delay_us, "reason": reason}
        return (yield from self._dialect.write(self._sql["postpone"], params))

    def end(
        self, job: Job, state: ImportState, tally: Tally, code: str | None = None, reason: str | None = None
    ) -> Flow[bool]:
        """End a job; False where it has ended already."""
        params: Values = {
            "id": job.id,
            "generation": job.generation,
            "state": int(state),
            "error_code": code,
            "reason": reason,
            "row_count": tally.total,
            "succeeded": tally.succeeded,
            "failed": tally.failed,
            "unknown": tally.unknown,
        }
        return (yield from self._dialect.write(self._sql["end"], params)) == 1

    def reopen(self, job: Job, *, again: bool, actor: str, reason: str) -> Flow[bool]:
        """Queue an ended job again, and record the actor; False if its state has changed.

        Parameters: ``again`` processes all of its rows anew; else it continues where it stopped.
        """
        yield from self._dialect.commit_together()
        params: Values = {
            "id": job.id,
            "was": job.generation,
            "generation": job.generation + int(again),
            "state": int(job.state),
            "again": int(again),
        }
        if (yield from self._dialect.write(self._sql["reopen"], params)) != 1:
            return False
        audit: Values = {
            "record_id": job.id,
            "actor": actor,
            "action": "import-again" if again else "import-resume",
            "reason": reason,
            "fence": job.generation + int(again),
        }
        yield from self._dialect.write(self._sql["audit"], audit)
        return True

    # --- forgetting -------------------------------------------------------------------------------

    def content_due(self, limit: int) -> Flow[list[tuple[bytes, bytes, str]]]:
        """Find jobs whose bytes may be dropped: id, digest, and where they are."""
        rows = yield from self._dialect.rows(self._sql["content_due"], {"limit": limit})
        return [cast("tuple[bytes, bytes, str]", row) for row in rows]

    def drop_content(self, id: bytes) -> Flow[int]:
        """Note that the bytes are no longer kept for this job."""
        return (yield from self._dialect.write(self._sql["drop_content"], {"id": id}))

    def is_used(self, digest: bytes) -> Flow[bool]:
        """Return whether a job needs these bytes."""
        [(count,)] = yield from self._dialect.rows(self._sql["users"], {"digest": digest})
        return bool(count)

    def forget(self, limit: int) -> Flow[int]:
        """Delete expired jobs, and return their number."""
        yield from self._dialect.commit_together()
        rows = yield from self._dialect.rows(self._sql["over"], {"limit": limit})
        gone = 0
        for (id,) in rows:
            gone += yield from self._dialect.write(self._sql["forget"], {"id": id})
            yield from self._dialect.write(self._sql["forget_names"], {"id": id})
        return gone

    def forget_rows(self, limit: int) -> Flow[int]:
        """Delete known rows whose retention is over, and return their number."""
        return (yield from self._dialect.write(self._sql["forget_rows"], {"limit": limit}))

    # --- bytes ------------------------------------------------------------------------------------

    def touch(self, digest: bytes, size: int, form: int = PLAIN) -> Flow[bool]:
        """Mark bytes as needed, and return whether they are stored completely. ``size`` of the sent bytes."""
        yield from self._dialect.commit_together()
        yield from self._dialect.write(self._sql["touch"], {"digest": digest, "bytes": size})
        return (yield from self.has_blob(digest, form))

    def has_blob(self, digest: bytes, form: int = PLAIN) -> Flow[bool]:
        """Return whether the bytes are stored completely."""
        rows = yield from self._dialect.rows(self._sql["blob"], {"digest": digest})
        return bool(rows and cast(int, rows[0][0]) & form)

    def put_part(self, digest: bytes, place: int, body: bytes, form: int = PLAIN) -> Flow[int]:
        """Store one part of the bytes."""
        params: Values = {"digest": digest, "place": _places(form)["first"] + place, "body": body}
        return (yield from self._dialect.write(self._sql["put_part"], params))

    def end_blob(self, digest: bytes, parts: int, form: int = PLAIN) -> Flow[bool]:
        """Mark the content complete, and return whether all its parts are stored."""
        yield from self._dialect.commit_together()
        params: Values = {"digest": digest, "parts": parts, "form": form, **_places(form)}
        yield from self._dialect.write(self._sql["end_blob"], params)
        return (yield from self.has_blob(digest, form))

    def doubt_blob(self, digest: bytes, form: int = PLAIN) -> Flow[int]:
        """Drop damaged bytes: the next upload of the file writes them again."""
        yield from self._dialect.commit_together()
        yield from self._dialect.write(self._sql["doubt_blob"], {"digest": digest, "others": (PLAIN | SEALED) ^ form})
        return (yield from self._dialect.write(self._sql["drop_form"], {"digest": digest, **_places(form)}))

    def part(self, digest: bytes, place: int, form: int = PLAIN) -> Flow[bytes | None]:
        """Read one part; None after the last."""
        at = _places(form)["first"] + place
        rows = yield from self._dialect.rows(self._sql["part"], {"digest": digest, "place": at})
        return cast(bytes, rows[0][0]) if rows else None

    def find_unused(self, limit: int) -> Flow[list[bytes]]:
        """Find the digests of bytes that no job needs."""
        rows = yield from self._dialect.rows(self._sql["unused"], {"limit": limit, "grace": GRACE_US})
        return [cast(bytes, digest) for (digest,) in rows]

    def drop_blob(self, digest: bytes) -> Flow[bool]:
        """Drop bytes with their parts, if still no job needs them."""
        yield from self._dialect.commit_together()
        gone = yield from self._dialect.write(self._sql["drop_blob"], {"digest": digest, "grace": GRACE_US})
        if gone:
            yield from self._dialect.write(self._sql["drop_parts"], {"digest": digest})
        return gone == 1


class KnownRows:
    """The rows of one job among all that were booked before; see :class:`~semel.bulk.flow.KnownItems`."""

    def __init__(self, store: Any, job: Job, keep_us: int) -> None:
        self._dialect: Dialect = dialect_of(store, "imports")
        self._sql = self._dialect.statements(NOUN)
        self._job = job
        self._keep_us = keep_us

    def find_known(self, items: Sequence[ListedItem]) -> Flow[frozenset[int]]:
        """Return the places of rows that were booked before."""
        ids = {self._id(item): item.place for item in items if item.error is None}
        if not ids:
            return frozenset()
        rows = yield from self._dialect.rows_all(self._sql["known"], [{"id": id} for id in ids])
        return frozenset(ids[cast(bytes, id)] for (id,) in rows)

    def note(self, items: Sequence[ListedItem], outcomes: Sequence[ItemOutcome]) -> Flow[bool]:
        """Store which rows were booked, and count the skipped ones."""
        ended = {outcome.place: outcome for outcome in outcomes if outcome.state is ItemState.SUCCEEDED}
        skipped = sum(1 for outcome in ended.values() if outcome.error_code == KNOWN)
        if skipped:
            params: Values = {"id": self._job.id, "count": skipped}
            yield from self._dialect.write(self._sql["skip"], params)
        new = [item for item in items if item.place in ended and ended[item.place].error_code != KNOWN]
        if not new:
            return True
        each: list[Values] = [
            {"id": self._id(item), "import_id": self._job.id, "place": item.place, "keep": self._keep_us}
            for item in new
        ]
        return (yield from self._dialect.write_all(self._sql["note"], each)) == len(new)

    def _id(self, item: ListedItem) -> bytes:
        job = self._job
        return known_row(job.tenant, job.operation, job.supplier, item.raw, occurrence_of(item.item_id))


def _places(form: int) -> dict[str, int]:
    """Return the range of places of a form's parts."""
    return {"first": _PAST[form] - FORM_PLACES, "past": _PAST[form]}


def make_import_job(job: Job, names: tuple[FileName, ...], tally: Tally | None, *, is_new: bool) -> ImportJob:
    """Convert a job to the form that clients and operators see."""
    if job.row_count is not None:
        ended = (job.booked or 0, job.skipped, job.failed or 0, job.unknown or 0)
        counts = Counts(job.row_count, sum(ended), *ended)
    elif tally is not None:
        booked = max(0, tally.succeeded - job.skipped)
        counts = Counts(tally.total, tally.done, booked, job.skipped, tally.failed, tally.unknown)
    else:
        counts = Counts()
    return ImportJob(
        id=uuid_text(job.id),
        key=job.key,
        supplier=job.supplier,
        operation=job.operation,
        tenant=job.tenant,
        state=ImportState(job.state),
        counts=counts,
        sha256=job.sha256.hex(),
        size=job.size,
        media_type=job.media_type,
        is_new=is_new,
        submissions=job.submissions,
        generation=job.generation,
        error_code=None if job.error_code == ROWS_CHECKED else job.error_code,
        reason=job.reason,
        names=names,
        has_content=job.content_ref is not None,
        created_at=job.created_at,
        last_seen_at=job.last_seen_at,
        started_at=job.started_at,
        ended_at=job.ended_at,
        bulk_id=None if job.bulk_id is None else uuid_text(job.bulk_id),
    )


def _jobs(rows: Sequence[Row]) -> list[Job]:
    return [Job._make(cast("list[Any]", row)) for row in rows]


def _job(rows: Sequence[Row]) -> Job | None:
    return _jobs(rows)[0] if rows else None
