"""Imports: files that suppliers send, each imported as one job, whose rows are booked once."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import IO, Any, Final, Literal, TypeVar, Unpack

from semel.bulk.declaration import CallingOptions, operation_bytes
from semel.bulk.rules import ItemState, Tally
from semel.bulk.run_async import AsyncBulk
from semel.core.flow import Flow
from semel.core.identity import uuid7_bytes, uuid_bytes
from semel.core.model import Scope
from semel.engine.async_engine import AsyncEngine
from semel.errors import (
    BulkRefused,
    CommandError,
    ConfigurationError,
    ImportRefused,
    InProgressError,
    KeyReusedError,
    PolicyError,
    SchemaError,
    StoreError,
    SupersededError,
)
from semel.imports.booking import (
    Booking,
    RowHandler,
    RowOutcome,
    Verdict,
    check_handler,
    items_of,
    row_outcome,
)
from semel.imports.content import Content, ContentMissing, DatabaseContent, Forgets
from semel.imports.kept import KeptFiles, was_sealed
from semel.imports.preview import PAGE, Preview, try_file
from semel.imports.readers import (
    Csv,
    Format,
    JsonArray,
    JsonLines,
    Lines,
    UnreadableFile,
    format_for,
    packed_recipe,
    read_recipe,
)
from semel.imports.rules import (
    OPEN_STATES,
    OVERDUE_US,
    ROWS_REFUSED,
    TAKE_OVER,
    WRONG_ROW,
    ContentKey,
    Counts,
    Facts,
    ImportJob,
    ImportState,
    Job,
    Keying,
    checked_name,
    checked_supplier,
    checks_of,
    waiting_text,
)
from semel.imports.sealed import CONTENT_UNREADABLE, ContentUnreadable, digest_of
from semel.imports.store import ROWS_CHECKED, ImportRows, KnownRows, NewJob, Purged
from semel.imports.upload import Source, Upload
from semel.stores.shield import whole

T = TypeVar("T")
H = TypeVar("H", bound=RowHandler)

GIB: Final = 1024**3
DAY: Final = 86_400
SECOND_US: Final = 1_000_000
CONTENT_MISSING: Final = "CONTENT_MISSING"
CONTENT_GONE: Final = frozenset({CONTENT_MISSING, CONTENT_UNREADABLE})  # sending the file again repairs the job
ATTEMPTS_MAX: Final = 5  # of a run that fails through neither the store nor the file
CHUNK: Final = 1000
_BULK_OPTIONS: Final = frozenset(CallingOptions.__annotations__)
_SCOPED: Final = "operation must be a text of 1 to 255 characters"


class Imports:
    """Files that suppliers send: the same bytes are one job under any file name, however often they come.

    Parameters: ``engine`` on a SQL store; ``operation`` the name of these imports; ``key`` how files get their keys;
    ``content`` where bytes are kept (in the database by default); ``formats`` accepted, each with its own media
    types; ``validate`` a pydantic model or a function of a row; ``effects`` of a row: ``"atomic"`` (default),
    ``"idempotent"`` or ``"external"``; ``rows`` ``"all"``, or ``"skip-known"``: only rows that were never booked
    (atomic alone); ``all_or_nothing`` books nothing of a file with a row that cannot be read or is not valid;
    ``file_bytes_max``, ``rows_max`` limits; ``keep_seconds`` how long a job is remembered after its end (then the same
    file is new), ``keep_content_seconds`` how long its bytes are; ``answers`` ``"keep"``, or ``"seal"``: the kept
    bytes, and what is kept of each row, are sealed by the engine's sealer; ``spool_folder`` for temporary files;
    further options as of :class:`~semel.bulk.declaration.BulkPolicy`, such as ``chunk_items`` and ``lease_seconds``.

    Raises ConfigurationError where the store cannot hold imports, and PolicyError, naming the option.

    >>> import asyncio, tempfile
    >>> from semel import AsyncEngine
    >>> async def main(folder):
    ...     engine = AsyncEngine.connect(f"sqlite:///{folder}/app.db")
    ...     _ = await engine.migrate()
    ...     async with engine:
    ...         stock = Imports(engine, operation="stock.import")
    ...
    ...         @stock.row
    ...         async def book(row):
    ...             return f"line {row.line}: {row.value['sku']}"
    ...
    ...         file = b"sku,quantity\\nA-1,2\\nB-2,1\\n"
    ...         job = await stock.submit(file, supplier="ACME", filename="a.csv")
    ...         again = await stock.submit(file, supplier="ACME", filename="b.csv")
    ...         print(job.is_new, again.is_new, job.id == again.id, job.key[:12])
    ...         await stock.run_due()
    ...         done = await stock.job(job.id)
    ...         print(done.state.name, done.counts.booked, [name.name for name in done.names])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     asyncio.run(main(folder))
    True False True ACME:0b98665
    DONE 2 ['a.csv', 'b.csv']
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        operation: str,
        key: Keying | None = None,
        content: Content | None = None,
        formats: Sequence[Format] | None = None,
        validate: Any = None,
        effects: Literal["atomic", "idempotent", "external"] = "atomic",
        rows: Literal["all", "skip-known"] = "all",
        all_or_nothing: bool = False,
        file_bytes_max: int = 2 * GIB,
        rows_max: int = 1_000_000,
        keep_seconds: float = 400 * DAY,
        keep_content_seconds: float = 7 * DAY,
        answers: Literal["keep", "seal"] = "keep",
        spool_folder: str | os.PathLike[str] | None = None,
        **options: Unpack[CallingOptions],
    ) -> None:
        if not isinstance(engine, AsyncEngine):
            raise ConfigurationError(f"imports need an AsyncEngine, not {type(engine).__name__}")
        if not isinstance(operation, str) or not 1 <= len(operation) <= 255:
            raise PolicyError(_SCOPED)
        if unknown := sorted(set(options) - _BULK_OPTIONS):
            raise PolicyError(f"{unknown[0]} is not an option of imports")
        if rows not in ("all", "skip-known"):
            raise PolicyError(f"rows must be 'all' or 'skip-known'; it is {rows!r}")
        if answers not in ("keep", "seal"):
            raise PolicyError(
                f"answers must be 'keep' or 'seal'; it is {answers!r}: a file's bytes are needed until it is booked"
            )
        if rows == "skip-known" and effects != "atomic":
            raise PolicyError(
                "rows='skip-known' needs effects='atomic': that a row was booked is written in the transaction that "
                "books it, and a call to another system is in none"
            )
        for name, value, least, most in (
            ("file_bytes_max", file_bytes_max, 1, 1024 * GIB),
            ("rows_max", rows_max, 1, 100_000_000),
        ):
            if type(value) is not int or not least <= value <= most:
                raise PolicyError(f"{name} must be a whole number from {least} to {most}; it is {value!r}")
        for name, seconds in (("keep_seconds", keep_seconds), ("keep_content_seconds", keep_content_seconds)):
            if type(seconds) not in (int, float) or not 0 <= seconds <= 3660 * DAY:
                raise PolicyError(f"{name} must be a number of seconds from 0 to ten years; it is {seconds!r}")
        if keep_content_seconds > keep_seconds:
            raise PolicyError("keep_content_seconds must not be longer than keep_seconds: the job goes with its bytes")
        self.engine = engine
        self.operation = operation
        self.rows_kept = ImportRows(engine.store)
        self.key: Keying = ContentKey() if key is None else key
        self.content: Content = DatabaseContent(engine) if content is None else content
        self.formats: tuple[Format, ...] = _check_formats(formats)
        self.checks = checks_of(validate)
        self.skips_known = rows == "skip-known"
        self.all_or_nothing = bool(all_or_nothing)
        self.seals = answers == "seal"
        self.file_bytes_max = file_bytes_max
        self.keep_us = int(keep_seconds * SECOND_US)
        self.keep_content_us = int(keep_content_seconds * SECOND_US)
        self.spool_folder = None if spool_folder is None else os.fspath(spool_folder)
        self.bulk = AsyncBulk(
            engine,
            operation=operation,
            effects=effects,
            member=None,
            bad_item="fail",
            items_max=rows_max,
            item_bytes_max=16 * 1024 * 1024,
            answer_seconds=max(keep_seconds, DAY),
            tombstone_seconds=max(keep_seconds, DAY),
            answers=answers,
            **options,
        )
        self.files = KeptFiles(engine, self.content, operation, seals=self.seals, spool_folder=self.spool_folder)
        self.lease_us = int(self.bulk.policy.lease_seconds * SECOND_US)
        self.waker: Callable[[], object] | None = None  # of the worker that runs beside the application
        self._handler: RowHandler | None = None

    def row(self, handler: H) -> H:
        """Declare the handler that books a row: ``@imports.row``. It returns None, a result's id or ``Done``, or raises
        :class:`~semel.imports.rules.RowInvalid` or :class:`~semel.errors.ItemFailed`.
        """
        check_handler(handler)
        if self._handler is not None:
            raise ConfigurationError(f"the imports {self.operation!r} have a handler already")
        self._handler = handler
        return handler

    @property
    def handler(self) -> RowHandler:
        """The handler that books a row. Raises ConfigurationError where none is declared."""
        if self._handler is None:
            raise ConfigurationError(f"the imports {self.operation!r} have no handler; declare one: @imports.row")
        return self._handler

    # --- taking files -----------------------------------------------------------------------------

    async def submit(
        self,
        file: Source,
        *,
        supplier: str,
        filename: str | None = None,
        media_type: str = "text/csv",
        tenant: str = "default",
        version: str | None = None,
        client_key: str | None = None,
    ) -> ImportJob:
        """Accept a file, or find the job of its key, and return the job's current state.

        Parameters: ``file`` bytes, a path, a file opened with ``"rb"``, or an async iterable of bytes; ``filename``
        for display, never a path; ``version`` and ``client_key`` for the keys that are made of them.

        Raises ImportRefused (nothing is kept), PolicyError and StoreError.
        """
        checked_supplier(supplier)
        format_for(media_type, self.formats)
        with self.upload() as upload:
            await upload.take(file)
            return await self.submit_upload(
                upload,
                supplier=supplier,
                filename=filename,
                media_type=media_type,
                tenant=tenant,
                version=version,
                client_key=client_key,
            )

    def upload(self) -> Upload:
        """Make an upload for callers that feed the file themselves. Raises ImportRefused where the disk is full."""
        return Upload(self.file_bytes_max, self.spool_folder)

    async def submit_upload(
        self,
        upload: Upload,
        *,
        supplier: str,
        filename: str | None,
        media_type: str,
        tenant: str = "default",
        version: str | None = None,
        client_key: str | None = None,
    ) -> ImportJob:
        """Submit a complete upload, as :meth:`submit` does."""
        form = format_for(media_type, self.formats)
        key = self._key(upload, supplier, version, client_key)
        name = checked_name(filename)
        rows = self.rows_kept
        found = await self._perform(lambda: rows.by_key(tenant, self.operation, key))
        if found is not None:
            self._check_content(found, upload)
            is_same = found.sha256.hex() == upload.digest
            # A job whose bytes have expired has no format any more, and no retry would read them.
            if found.error_code in CONTENT_GONE and is_same and found.content_ref is not None:
                is_doubted = found.error_code == CONTENT_UNREADABLE
                # An operator's retry will find these bytes.
                await self.files.write(upload, is_sealed=was_sealed(found), is_doubted=is_doubted)
            await self._perform(lambda: rows.note_submission(found, name))
            return await self._show(found.id)
        await self.files.write(upload, is_sealed=self.seals)
        new = NewJob(
            uuid7_bytes(time.time_ns() // 1_000_000, os.urandom(10)),
            tenant,
            self.operation,
            supplier,
            key,
            bytes.fromhex(upload.digest),
            upload.size,
            media_type.partition(";")[0].strip().lower()[:255],
            packed_recipe(form),
            self.files.reference,
            self.keep_content_us,
            self.keep_us,
        )
        job, is_new = await self._perform(lambda: rows.submit(new, name))
        if not is_new:
            self._check_content(job, upload)
            await self._perform(lambda: rows.note_submission(job, name))
        elif self.waker is not None:
            self.waker()
        return await self._show(job.id, is_new=is_new)

    def _key(self, upload: Upload, supplier: str, version: str | None, client_key: str | None) -> str:
        key = self.key.key(Facts(supplier, upload.digest, datetime.now(UTC), version, client_key))
        if not key.startswith(f"{supplier}:"):
            raise PolicyError(
                f"the keying {type(self.key).__name__} made {key!r}: a key begins with its supplier's code and a "
                f"colon, here {supplier + ':'!r}, so that no supplier's key collides with another's"
            )
        if len(key) > 255:
            raise ImportRefused("the file's key has more than 255 characters", "INVALID_KEY")
        return key

    def _check_content(self, job: Job, upload: Upload) -> None:
        if self.key.checks_content and job.sha256.hex() != upload.digest:
            raise ImportRefused(
                "the key belongs to another file of this supplier; nothing was done for this one. Use a new key for it",
                "IMPORT_KEY_REUSED",
            )

    # --- looking ----------------------------------------------------------------------------------

    async def job(self, id: str) -> ImportJob | None:
        """Return the current state of a job; None if these imports have no job with this id."""
        raw = uuid_bytes(id)
        job = None if raw is None else await self._perform(lambda: self.rows_kept.by_id(raw))
        if job is None or job.operation != self.operation:
            return None
        return await self._perform(lambda: self.rows_kept.show(job))

    async def find(self, key: str, *, tenant: str = "default", limit: int = 20) -> list[ImportJob]:
        """Find a tenant's jobs whose keys begin with ``key``."""
        found = await self._perform(lambda: self.rows_kept.by_beginning(tenant, self.operation, key, limit))
        return [await self._perform(lambda job=job: self.rows_kept.show(job)) for job in found]  # type: ignore[misc]

    async def outcomes(
        self, id: str, *, after: int = 0, limit: int = 100, state: Verdict | None = None
    ) -> tuple[list[RowOutcome], int | None]:
        """Read the outcomes of a job's rows after a row number, and the number after which the next page begins."""
        job = await self.job(id)
        if job is None or job.bulk_id is None:
            return [], None
        return await row_page(self.bulk.page, job.bulk_id, after, limit, state)

    async def retry(self, id: str, *, reason: str, actor: str) -> ImportJob:
        """Resume an ended job, or process all of its bytes again: an operator's act, audited.

        A job that stopped continues where it stopped; any other is processed again, under a new generation.

        Raises ImportRefused where no such job exists, it has not ended, or its bytes are no longer kept.
        """
        raw = uuid_bytes(id)
        job = None if raw is None else await self._perform(lambda: self.rows_kept.by_id(raw))
        if job is None or job.operation != self.operation:
            raise ImportRefused("there is no such import", "NOT_FOUND")
        await self._perform(lambda: reopen(self.rows_kept, job, actor, reason))
        if self.waker is not None:
            self.waker()
        return await self._show(job.id)

    async def _show(self, id: bytes, *, is_new: bool = False) -> ImportJob:
        def show() -> Flow[ImportJob]:
            job = yield from self.rows_kept.by_id(id)
            if job is None:
                raise ImportRefused("the job was deleted meanwhile", "NOT_FOUND")
            return (yield from self.rows_kept.show(job, is_new=is_new))

        return await self._perform(show)

    # --- running ----------------------------------------------------------------------------------

    async def run_due(self) -> int:
        """Run every due job, one after the other, and return their number. This includes jobs of killed processes.

        Raises StoreError: finished rows stay finished, and the next call continues with the rest.
        """
        _ = self.handler
        ran = 0
        while True:
            ids = await self._perform(lambda: self.rows_kept.due(self.operation, 10))
            if not ids:
                return ran
            taken = 0
            for id in ids:
                taken += await self._run(id)
            ran += taken
            if not taken:  # other processes took them first
                return ran

    async def _run(self, id: bytes) -> int:
        job = await self._perform(lambda: self.rows_kept.take(id, self.lease_us))
        if job is None:
            return 0
        alive = asyncio.create_task(self._beat(job))
        try:
            await self._run_taken(job)
        except asyncio.CancelledError:
            await whole(self._postpone(job, 0, "the process was stopped"))
            raise
        except (SupersededError, InProgressError):
            pass  # another process has the rows: it will end the job
        except (StoreError, SchemaError):
            await self._postpone(job, 1, "the store failed")
            raise
        except Exception as error:  # noqa: BLE001 - one job that cannot be run must not keep the others waiting
            await self._note_failure(job, error)
        finally:
            alive.cancel()
            await asyncio.wait({alive})
        return 1

    async def _beat(self, job: Job) -> None:
        while True:
            await asyncio.sleep(self.lease_us / SECOND_US / 3)
            with suppress(StoreError):
                await self._perform(lambda: self.rows_kept.beat(job, self.lease_us))

    async def _postpone(self, job: Job, seconds: float, reason: str) -> None:
        with suppress(StoreError):
            await self._perform(lambda: self.rows_kept.postpone(job, int(seconds * SECOND_US), reason))

    async def _note_failure(self, job: Job, error: Exception) -> None:
        """Handle an error of neither the store nor the file: retry a few times, with growing pauses."""
        code, reason = type(error).__name__, str(error)[:300]
        if isinstance(error, ContentMissing):
            code = CONTENT_MISSING
        elif isinstance(error, ContentUnreadable):
            code = CONTENT_UNREADABLE
            if error.damaged:  # a retry would fail in the same way
                await self._end(job, ImportState.FAILED, code=code, reason=reason)
                return
        elif isinstance(error, CommandError):
            code = "CONTENT_CHANGED" if isinstance(error, KeyReusedError) else code
            await self._end(job, ImportState.FAILED, code=code, reason=reason)
            return
        elif not isinstance(error, ConfigurationError):
            reason = f"{code}: the handler or the server failed"  # the exception's text may hold a row's values
        if job.attempts < ATTEMPTS_MAX:
            await self._postpone(job, min(60.0, 0.5 * 2**job.attempts), reason)
        else:
            await self._end(job, ImportState.FAILED, code=code, reason=reason)

    async def _end(
        self,
        job: Job,
        state: ImportState,
        tally: Tally | None = None,
        code: str | None = None,
        reason: str | None = None,
    ) -> None:
        if tally is None:
            tally = await self.bulk.progress(key=job.bulk_key, caller=job.supplier, tenant=job.tenant) or Tally(0)
        final = tally
        await self._perform(lambda: self.rows_kept.end(job, state, final, code, reason))

    async def _run_taken(self, job: Job) -> None:
        begun = None if job.bulk_id is not None else Tally(0)  # only the bulk knows how many rows were booked
        try:
            # In the format declared when the rows began; a job that has not begun uses the current declaration.
            form = format_for(job.media_type, self.formats) if job.bulk_id is None else read_recipe(job.recipe)
            async with self.files.open(job) as file:
                await self._book(job, form, file)
        except UnreadableFile as error:
            await self._end(job, ImportState.FAILED, begun, error.code, error.reason)
        except ImportRefused as error:  # its media type is no longer declared
            await self._end(job, ImportState.FAILED, begun, error.code, str(error))
        except BulkRefused as error:
            if error.code == "NO_ITEMS":
                await self._end(job, ImportState.DONE, Tally(0))
            else:
                await self._end(job, ImportState.FAILED, begun, *_in_rows(error))

    async def _book(self, job: Job, form: Format, file: IO[bytes]) -> None:
        lines = Lines()
        scope = Scope(job.tenant, job.supplier, self.operation)
        booking = Booking(self.checks, self.handler, lines, scope, hides=self.seals)
        refuses = job.error_code == ROWS_REFUSED
        if self.all_or_nothing and job.error_code is None and job.bulk_id is None:
            # Stored before the first row has an outcome: a run after a crash keeps this decision.
            refuses = await asyncio.to_thread(booking.first_wrong, items_of(form, file, Lines()))
            mark = ROWS_REFUSED if refuses else ROWS_CHECKED
            await self._perform(lambda: self.rows_kept.refuse(job, mark))
        if refuses:
            booking = Booking(self.checks, None, lines, scope, refuses=True)
        noting: list[asyncio.Task[int]] = []

        def record_begin(operation_id: str) -> None:
            bulk_id = operation_bytes(operation_id)
            flow = self._perform(lambda: self.rows_kept.begin_rows(job, bulk_id, packed_recipe(form)))
            noting.append(asyncio.ensure_future(flow))

        try:
            done = await self.bulk.run(
                items_of(form, file, lines),
                booking,
                key=job.bulk_key,
                caller=job.supplier,
                tenant=job.tenant,
                wait_seconds=0,
                begun=record_begin,
                known=KnownRows(self.engine.store, job, self.keep_us) if self.skips_known and not refuses else None,
                describe=booking.describe,
            )
        finally:
            if noting:
                await asyncio.wait(noting)
        for note in noting:
            note.result()
        if done.replayed:  # the process was killed between the last row and the job's end
            bulk_id = operation_bytes(done.operation_id)
            await self._perform(lambda: self.rows_kept.begin_rows(job, bulk_id, packed_recipe(form)))
        state = ImportState.UNKNOWN if done.tally.unknown else ImportState.FAILED if refuses else ImportState.DONE
        reason = WRONG_ROW if refuses else None
        await self._end(job, state, done.tally, ROWS_REFUSED if refuses else None, reason)

    # --- preview ----------------------------------------------------------------------------------

    async def preview(
        self,
        file: Source,
        *,
        supplier: str,
        media_type: str = "text/csv",
        tenant: str = "default",
        version: str | None = None,
        client_key: str | None = None,
        rows_max: int = 1000,
    ) -> Preview:
        """Preview a run of a file: counts, and the first ``rows_max`` verdicts other than BOOKED.

        Atomic rows are booked in one transaction that is rolled back, so that each sees the writes of those before it.
        Other handlers are not called, since nothing would undo their calls. A preview does not detect errors that only
        a commit raises (a deferred constraint). It holds the locks of its writes; on SQLite, the writer's lock.

        Raises ImportRefused and StoreError.
        """
        checked_supplier(supplier)
        format_for(media_type, self.formats)
        with self.upload() as upload:
            await upload.take(file)
            return await self.preview_upload(
                upload,
                supplier=supplier,
                media_type=media_type,
                tenant=tenant,
                version=version,
                client_key=client_key,
                rows_max=rows_max,
            )

    async def preview_upload(
        self,
        upload: Upload,
        *,
        supplier: str,
        media_type: str,
        tenant: str = "default",
        version: str | None = None,
        client_key: str | None = None,
        rows_max: int = 1000,
    ) -> Preview:
        """Preview a complete upload, as :meth:`preview` does."""
        form = format_for(media_type, self.formats)
        key = self._key(upload, supplier, version, client_key)
        found = await self._perform(lambda: self.rows_kept.by_key(tenant, self.operation, key))
        if found is not None:
            self._check_content(found, upload)
            job = await self._perform(lambda: self.rows_kept.show(found))
            return Preview(key, job, job.state, job.counts, (), job.error_code, job.reason)
        try:
            return await try_file(self, key, form, upload.file, Scope(tenant, supplier, self.operation), rows_max)
        except UnreadableFile as error:
            return Preview(key, None, ImportState.FAILED, Counts(0), (), error.code, error.reason)
        except BulkRefused as error:
            if error.code == "NO_ITEMS":
                return Preview(key, None, ImportState.DONE, Counts(0), ())
            return Preview(key, None, ImportState.FAILED, Counts(0), (), *_in_rows(error))

    # --- forgetting -------------------------------------------------------------------------------

    async def purge(self) -> Purged:
        """Delete the bytes of ended jobs whose retention is over, and jobs and rows after ``keep_seconds``."""
        perform, rows = self._perform, self.rows_kept
        while due := await perform(lambda: rows.content_due(CHUNK)):
            for id, _, _ in due:
                await perform(lambda id=id: rows.drop_content(id))  # type: ignore[misc]
        jobs = known = contents = 0
        while gone := await perform(lambda: rows.forget(CHUNK)):
            jobs += gone
        while gone := await perform(lambda: rows.forget_rows(CHUNK)):
            known += gone
        if isinstance(self.content, Forgets):
            contents = await self.content.forget(self._is_used, CHUNK)
        return Purged(jobs, contents, known)

    async def _is_used(self, digest: str) -> bool:
        try:
            id = bytes.fromhex(digest_of(digest))
        except ValueError:
            return True  # not a file of these imports
        return await self._perform(lambda: self.rows_kept.is_used(id))

    async def _perform(self, make: Callable[[], Flow[T]]) -> T:
        return await self.engine.perform("import", make)


def _in_rows(error: BulkRefused) -> tuple[str, str]:
    """Return the code and reason of a refused list of items, worded for rows."""
    code = "TOO_MANY_ROWS" if error.code == "TOO_MANY_ITEMS" else error.code
    return code, str(error).replace("items", "rows")


def _check_formats(formats: Sequence[Format] | None) -> tuple[Format, ...]:
    chosen: tuple[Format, ...] = (Csv(), JsonLines(), JsonArray()) if formats is None else tuple(formats)
    known: set[str] = set()
    for form in chosen:
        if not isinstance(form, (Csv, JsonLines, JsonArray)):
            raise PolicyError(f"formats must be Csv, JsonLines and JsonArray; one is {form!r}")
        if known.intersection(form.media_types):
            raise PolicyError(f"two formats take {form.media_types[0]}: a media type must say how a file is read")
        known.update(form.media_types)
    if not chosen:
        raise PolicyError("formats must name one at least, such as Csv()")
    return chosen


async def row_page(
    page: Any, bulk_id: str, after: int, limit: int, state: Verdict | None
) -> tuple[list[RowOutcome], int | None]:
    """Read outcomes after a row's number, and the number after which the next page begins; None at the end."""
    states = {"BOOKED": ItemState.SUCCEEDED, "SKIPPED": ItemState.SUCCEEDED, "FAILED": ItemState.FAILED}
    wanted = None if state is None else states.get(state, ItemState.UNKNOWN)
    found: list[RowOutcome] = []
    place = after - 1
    for _ in range(PAGES_MAX):
        outcomes = await page(bulk_id, after=place, limit=PAGE, state=wanted)
        for outcome in outcomes:
            row = row_outcome(outcome)
            place = outcome.place
            if state is None or row.state == state:
                found.append(row)
                if len(found) == limit:
                    return found, place + 1
        if len(outcomes) < PAGE:
            return found, None
    return found, place + 1


PAGES_MAX: Final = 40


def reopen(rows: ImportRows, job: Job, actor: str, reason: str) -> Flow[None]:
    """Queue an ended job again. Raises ImportRefused."""
    if not isinstance(reason, str) or not reason.strip() or len(reason) > 1000:
        raise ImportRefused("reason must say why, in 1 to 1000 characters: it is written into the audit", "NO_REASON")
    if ImportState(job.state) in OPEN_STATES:
        lapse_us = yield from rows.lapse(job)
        what = waiting_text(job.state, lapse_us)
        if lapse_us > OVERDUE_US:
            raise ImportRefused(f"the import is not over and needs no retry: {what}; {TAKE_OVER}", "NOT_OVER")
        raise ImportRefused(f"the import is not over: {what}", "NOT_OVER")
    if job.content_ref is None:
        raise ImportRefused(
            "the file's bytes are no longer kept, so that they cannot be processed again; see keep_content_seconds",
            "CONTENT_GONE",
        )
    # A bulk with an outcome for every row would be replayed, not run: process its rows as a new bulk.
    again = job.bulk_id is not None and job.row_count == (job.booked or 0) + job.skipped + (job.failed or 0) + (
        job.unknown or 0
    )
    if not (yield from rows.reopen(job, again=again, actor=actor, reason=reason)):
        raise ImportRefused("the import has changed meanwhile; read it again", "MOVED_ON")


__all__ = ["Imports", "Preview"]
