"""Jobs on every database: the same bytes are one job, its rows are booked once, and nothing but its end is final."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import pytest

from semel import AsyncEngine, Sealer
from semel.core.identity import uuid_bytes
from semel.errors import ConfigurationError, HandlerError, ImportRefused, PolicyError
from semel.imports import (
    ClientKey,
    Csv,
    DatabaseContent,
    FolderContent,
    ImportJob,
    Imports,
    ImportState,
    PeriodKey,
    Row,
    RowInvalid,
    VersionKey,
)
from semel.imports.booking import Booking, RowOutcome
from semel.imports.content import ContentMissing
from semel.imports.run import ATTEMPTS_MAX
from semel.imports.upload import Upload
from tests.bulk.fellows import write
from tests.imports.places import Place, breaks_the_commit, csv_of


async def _outcomes(imports: Imports, id: str, **asked: Any) -> list[RowOutcome]:
    rows, _ = await imports.outcomes(id, limit=1000, **asked)
    return rows


def test_the_same_bytes_are_one_job_under_any_name(place: Place) -> None:
    imports = place.imports()

    async def story() -> None:
        first = await imports.submit(csv_of(1, 2, -3), supplier="ACME", filename="a.csv")
        queued = await imports.submit(csv_of(1, 2, -3), supplier="ACME", filename="b.csv", client_key="another")
        assert (first.is_new, queued.is_new, queued.id) == (True, False, first.id)
        assert first.key == f"ACME:{first.sha256}"
        assert queued.state is ImportState.QUEUED
        other = await imports.submit(csv_of(1, 2, -3), supplier="BETA", filename="a.csv")
        assert other.is_new
        assert await imports.run_due() == 2
        done = await imports.submit(csv_of(1, 2, -3), supplier="ACME", filename="../../etc/\x00\x07passwd")
        assert (done.state, done.is_new, done.id) == (ImportState.DONE, False, first.id)
        assert (done.counts.rows, done.counts.booked, done.counts.failed) == (3, 2, 1)
        assert [name.name for name in done.names] == ["a.csv", "b.csv", "../../etc/\ufffd\x07passwd"]
        assert done.submissions == 3
        rows = await _outcomes(imports, first.id)
        assert [(row.state, row.result_id, row.error_code) for row in rows] == [
            ("BOOKED", "r-1", None),
            ("BOOKED", "r-2", None),
            ("FAILED", None, "NEGATIVE"),
        ]
        assert rows[2].line == 4
        assert await imports.run_due() == 0

    place.home.fetch("DROP TABLE IF EXISTS child")
    place.home.fetch("DROP TABLE effect")
    place.home.fetch("CREATE TABLE effect (n integer)")  # two suppliers have the same rows
    place.tell(story())
    assert place.home.effects() == [1, 1, 2, 2]


def test_twenty_uploads_at_once_are_one_job(place: Place) -> None:
    imports = place.imports()

    async def story() -> None:
        jobs = await asyncio.gather(
            *(imports.submit(csv_of(*range(50)), supplier="ACME", filename=f"{n % 2}.csv") for n in range(20))
        )
        assert len({job.id for job in jobs}) == 1
        assert [job.is_new for job in jobs].count(True) == 1
        await imports.run_due()
        done = await imports.job(jobs[0].id)
        assert done is not None
        assert (done.counts.booked, done.submissions, done.counts.failed) == (50, 20, 0)

    place.tell(story())
    assert place.home.effects() == list(range(50))


def test_a_grown_file_books_only_what_is_new(place: Place) -> None:
    place.home.fetch("DROP TABLE IF EXISTS child")
    place.home.fetch("DROP TABLE effect")
    place.home.fetch("CREATE TABLE effect (n integer)")
    imports = place.imports(rows="skip-known", chunk_items=3)

    async def story() -> None:
        first = await imports.submit(csv_of(5, 5, 6, -1, 7), supplier="ACME")
        await imports.run_due()
        preview = await imports.preview(csv_of(5, 5, 6, -1, 7, 5, 8), supplier="ACME")
        grown = await imports.submit(csv_of(5, 5, 6, -1, 7, 5, 8), supplier="ACME")
        await imports.run_due()
        done = await imports.job(first.id)
        assert done is not None
        assert (done.counts.booked, done.counts.skipped, done.counts.failed) == (4, 0, 1)
        again = await imports.job(grown.id)
        assert again is not None
        assert (again.counts.booked, again.counts.skipped, again.counts.failed) == (2, 4, 1)
        assert preview.counts == again.counts
        skipped = await _outcomes(imports, grown.id, state="SKIPPED")
        assert [row.number for row in skipped] == [1, 2, 3, 5]
        other = await imports.submit(csv_of(5), supplier="BETA")
        await imports.run_due()
        foreign = await imports.job(other.id)
        assert foreign is not None
        assert foreign.counts.booked == 1

    place.tell(story())
    assert place.home.effects() == [5, 5, 5, 5, 6, 7, 8]


def test_two_files_with_the_same_rows_at_once_book_each_row_once(place: Place) -> None:
    imports = place.imports(rows="skip-known", chunk_items=4)
    other = Imports(
        AsyncEngine(place.home.backend(place.kind)), operation="stock.import", rows="skip-known", chunk_items=4
    )
    other.row(imports.handler)

    async def story() -> None:
        numbers = list(range(40))
        one = await imports.submit(csv_of(*numbers), supplier="ACME")
        two = await imports.submit(csv_of(*reversed(numbers)), supplier="ACME")
        await asyncio.gather(imports.run_due(), other.run_due())
        await imports.run_due()
        found = [await imports.job(one.id), await imports.job(two.id)]
        counts = [job.counts for job in found if job is not None]
        assert sum(count.booked for count in counts) == 40
        assert sum(count.skipped for count in counts) == 40
        await other.engine.close()

    place.tell(story())
    assert place.home.effects() == list(range(40))


def test_a_preview_leaves_nothing_behind_and_says_what_the_run_does(place: Place) -> None:
    imports = place.imports(validate=lambda row: row if row["n"] != "77" else _refuse())
    file = csv_of(1, "x", -3, 999, 4, 4, 77)

    async def story() -> None:
        preview = await imports.preview(file, supplier="ACME")
        assert place.home.effects() == []
        assert place.home.fetch("SELECT count(*) FROM semel_import")[0][0] == 0
        assert place.home.fetch("SELECT count(*) FROM semel_import_blob")[0][0] == 0
        assert place.home.fetch("SELECT count(*) FROM semel_record")[0][0] == 0
        job = await imports.submit(file, supplier="ACME")
        await imports.run_due()
        done = await imports.job(job.id)
        assert done is not None
        assert done.counts == preview.counts
        assert preview.rows == tuple(row for row in await _outcomes(imports, job.id) if row.state != "BOOKED")
        assert [row.column for row in preview.rows] == ["n", None, None, None, "n"]
        again = await imports.preview(file, supplier="ACME")
        assert again.job is not None
        assert again.job.id == job.id

    place.tell(story())
    assert place.home.effects() == [1, 4]


def _refuse() -> Any:
    raise RowInvalid("n", "is refused")


def test_all_or_nothing_books_nothing_of_a_file_with_a_wrong_row(place: Place) -> None:
    imports = place.imports(all_or_nothing=True, validate=lambda row: row if row["n"].isdigit() else _refuse())

    async def story() -> None:
        preview = await imports.preview(csv_of(1, 2, "x"), supplier="ACME")
        job = await imports.submit(csv_of(1, 2, "x"), supplier="ACME")
        good = await imports.submit(csv_of(1, 2), supplier="BETA")
        await imports.run_due()
        done = await imports.job(job.id)
        assert done is not None
        assert (done.state, done.error_code, done.counts.failed) == (ImportState.FAILED, "ROWS_REFUSED", 3)
        assert preview.counts == done.counts
        codes = [row.error_code for row in await _outcomes(imports, job.id)]
        assert codes == ["NOT_BOOKED", "NOT_BOOKED", "ROW_INVALID"]
        fine = await imports.job(good.id)
        assert fine is not None
        assert (fine.state, fine.error_code) == (ImportState.DONE, None)

    place.tell(story())
    assert place.home.effects() == [1, 2]


def test_an_operator_can_process_the_same_bytes_again(place: Place) -> None:
    place.home.fetch("DROP TABLE IF EXISTS child")
    place.home.fetch("DROP TABLE effect")
    place.home.fetch("CREATE TABLE effect (n integer)")
    imports = place.imports()

    async def story() -> None:
        job = await imports.submit(csv_of(1, 2), supplier="ACME")
        with pytest.raises(ImportRefused, match="not over"):
            await imports.retry(job.id, reason="too early", actor="olga")
        await imports.run_due()
        with pytest.raises(ImportRefused, match="reason"):
            await imports.retry(job.id, reason=" ", actor="olga")
        again = await imports.retry(job.id, reason="the stock was restored from a backup", actor="olga")
        assert (again.state, again.generation) == (ImportState.QUEUED, 1)
        await imports.run_due()
        done = await imports.job(job.id)
        assert done is not None
        assert (done.state, done.counts.booked) == (ImportState.DONE, 2)

    place.tell(story())
    assert place.home.effects() == [1, 1, 2, 2]
    assert place.home.fetch("SELECT actor, action, reason FROM semel_audit") == [
        ("olga", "import-again", "the stock was restored from a backup")
    ]


def test_bytes_are_kept_in_parts_and_dropped_when_no_job_needs_them(place: Place) -> None:
    imports = place.imports(keep_content_seconds=0)
    file = csv_of(*range(100_000, 200_000))  # more than two parts

    async def story() -> None:
        one = await imports.submit(file, supplier="ACME")
        two = await imports.submit(file[:-2] + b"\n", supplier="ACME")
        assert place.home.fetch("SELECT count(*), max(length(body)) FROM semel_import_part") == [(8, 262144)]
        pieces = [piece async for piece in imports.content.read(one.sha256)]
        assert b"".join(pieces) == file
        place.home.fetch("UPDATE semel_import_blob SET touched_at = 0")
        await imports.purge()  # two jobs need them
        assert place.home.fetch("SELECT count(*) FROM semel_import_part")[0][0] == 8
        place.home.fetch("UPDATE semel_import SET state = 3, content_until = 1")
        purged = await imports.purge()
        assert purged.contents == 2
        assert place.home.fetch("SELECT count(*) FROM semel_import_part")[0][0] == 0
        late = await imports.submit(file, supplier="ACME", filename="late.csv")
        assert (late.id, late.is_new, late.has_content) == (one.id, False, False)
        with pytest.raises(ImportRefused, match="no longer kept"):
            await imports.retry(two.id, reason="again", actor="olga")
        place.home.fetch("UPDATE semel_import SET forget_after = 1")
        assert (await imports.purge()).jobs == 2
        assert (await imports.submit(file, supplier="ACME")).is_new  # behind keep_seconds the same file is new

    place.tell(story())


def test_bytes_of_a_recent_upload_are_not_dropped(place: Place) -> None:
    imports = place.imports()

    async def story() -> None:
        with imports.upload() as upload:
            await upload.take(csv_of(1))
            await imports.content.write(upload.digest, upload.file)
            assert (await imports.purge()).contents == 0
            job = await imports.submit_upload(upload, supplier="ACME", filename="a", media_type="text/csv")
        place.home.fetch("UPDATE semel_import_blob SET touched_at = 0")
        assert (await imports.purge()).contents == 0
        await imports.run_due()
        done = await imports.job(job.id)
        assert done is not None
        assert done.state is ImportState.DONE

    place.tell(story())


def test_jobs_are_found_by_the_beginning_of_their_key(place: Place) -> None:
    imports = place.imports()

    async def story() -> None:
        job = await imports.submit(csv_of(1), supplier="ACME")
        await imports.submit(csv_of(1), supplier="ACME-2")
        assert [found.id for found in await imports.find(job.key)] == [job.id]
        assert [found.id for found in await imports.find(job.key[:12])] == [job.id]
        assert await imports.find(job.key, tenant="another") == []
        assert await imports.find("ACME:ffffffffffff") == []
        assert await imports.job("no id") is None

    place.tell(story())


def test_a_key_may_come_from_a_period_a_version_or_the_client(place: Place) -> None:
    async def story() -> None:
        monthly = place.imports(operation="monthly", key=PeriodKey("%Y-%m"))
        job = await monthly.submit(csv_of(1), supplier="ACME")
        assert job.key.count(":") == 2
        assert job.key.endswith(job.sha256)
        versions = place.imports(operation="versions", key=VersionKey("version"))
        one = await versions.submit(csv_of(1), supplier="ACME", version="1")
        two = await versions.submit(csv_of(1), supplier="ACME", version="2")
        assert one.id != two.id
        with pytest.raises(ImportRefused, match="version must be"):
            await versions.submit(csv_of(1), supplier="ACME", version="1:2")
        client = place.imports(operation="client", key=ClientKey())
        own = await client.submit(csv_of(1), supplier="ACME", client_key="n-1")
        assert (await client.submit(csv_of(1), supplier="ACME", client_key="n-1")).id == own.id
        with pytest.raises(ImportRefused, match="another file") as refused:
            await client.submit(csv_of(2), supplier="ACME", client_key="n-1")
        assert refused.value.code == "IMPORT_KEY_REUSED"
        jobs = await asyncio.gather(
            *(client.submit(csv_of(n % 2), supplier="ACME", client_key="n-2") for n in range(8)),
            return_exceptions=True,
        )
        assert len({job.id for job in jobs if not isinstance(job, BaseException)}) == 1
        assert sum(isinstance(job, ImportRefused) for job in jobs) == 4

    place.tell(story())


def test_a_folder_keeps_bytes_by_their_digest(here: Place, tmp_path: Path) -> None:
    folder = FolderContent(tmp_path / "kept")
    imports = here.imports(content=folder, keep_content_seconds=0)

    async def story() -> None:
        job = await imports.submit(csv_of(1, 2), supplier="ACME", filename="../../evil.csv")
        assert [path.name for path in folder.folder.glob("**/*") if path.is_file()] == [job.sha256]
        (folder.folder / ".part-dead").write_bytes(b"of a killed process")
        await imports.purge()
        assert (folder.folder / ".part-dead").exists()  # it may be written at this moment
        await imports.run_due()
        done = await imports.job(job.id)
        assert done is not None
        assert done.counts.booked == 2
        import os

        for path in [*folder.folder.glob("**/*")]:
            os.utime(path, (1, 1))
        here.home.fetch("UPDATE semel_import SET content_until = 1")
        assert (await imports.purge()).contents == 1
        assert [path for path in folder.folder.glob("**/*") if path.is_file()] == []

    here.tell(story())


def test_kept_bytes_that_have_changed_are_never_booked(here: Place, tmp_path: Path) -> None:
    folder = FolderContent(tmp_path / "kept")
    imports = here.imports(content=folder)

    async def story() -> None:
        job = await imports.submit(csv_of(1, 2), supplier="ACME")
        folder.path(job.sha256).write_bytes(csv_of(1, 3))
        for _ in range(6):
            here.home.fetch("UPDATE semel_import SET next_at = 0")
            await imports.run_due()
        done = await imports.job(job.id)
        assert done is not None
        assert (done.state, done.error_code) == (ImportState.FAILED, "CONTENT_MISSING")
        folder.path(job.sha256).write_bytes(csv_of(1, 2))
        await imports.retry(job.id, reason="restored from the backup", actor="olga")
        await imports.run_due()
        mended = await imports.job(job.id)
        assert mended is not None
        assert (mended.state, mended.counts.booked) == (ImportState.DONE, 2)

    here.tell(story())


def test_a_handler_that_fails_for_every_row_is_tried_again_and_then_given_up(here: Place) -> None:
    imports = Imports(here.engine, operation="broken")

    @imports.row
    async def book(row: object) -> int:
        return 7  # neither a text nor None: wrong for any row

    async def story() -> None:
        job = await imports.submit(csv_of(1), supplier="ACME")
        for _ in range(5):
            here.home.fetch("UPDATE semel_import SET next_at = 0")
            await imports.run_due()
        done = await imports.job(job.id)
        assert done is not None
        assert (done.state, done.error_code) == (ImportState.FAILED, "HandlerError")
        assert done.reason is not None
        assert "must return" in done.reason

    here.tell(story())


def test_rows_that_call_out_and_fail_are_unknown_and_never_called_again(here: Place) -> None:
    calls = []
    imports = Imports(here.engine, operation="calls", effects="external")

    @imports.row
    async def book(row: Any) -> None:
        calls.append(row.value["n"])
        raise RuntimeError("cut in the middle")

    async def story() -> None:
        preview = await imports.preview(csv_of(1), supplier="ACME")
        assert (preview.counts.booked, calls) == (1, [])  # nothing would undo a call
        job = await imports.submit(csv_of(1), supplier="ACME")
        await imports.run_due()
        await imports.run_due()
        done = await imports.job(job.id)
        assert done is not None
        assert (done.state, done.counts.unknown) == (ImportState.UNKNOWN, 1)

    here.tell(story())
    assert calls == ["1"]


@pytest.mark.parametrize("answers", ["keep", "seal"])
def test_every_row_that_failed_names_its_line(place: Place, answers: Literal["keep", "seal"]) -> None:
    place.engine.core.sealer = Sealer({"2026": b"n" * 32})
    imports = Imports(place.engine, operation="stock.import", lease_seconds=1, answers=answers)

    @imports.row
    async def book(row: Row) -> None:
        match row.value["n"]:
            case "before":
                raise KeyError("a value of the row")
            case "behind":
                await write(row, 7)  # type: ignore[arg-type]
                raise KeyError("a value of the row")
            case "commit" if not row.preview:
                await write(row, 8)  # type: ignore[arg-type]
                await breaks_the_commit(row.connection, 8)

    file = csv_of('"1\n2"', "before", 3, "behind", "commit")
    failed = [(2, "FAILED", 4, "KeyError"), (4, "FAILED", 6, "KeyError"), (5, "FAILED", 7, "HandlerRefused")]

    async def story() -> None:
        preview = await imports.preview(file, supplier="ACME")
        assert [(row.number, row.state, row.line, row.error_code) for row in preview.rows] == failed[:2]
        job = await imports.submit(file, supplier="ACME")
        await imports.run_due()
        rows = await _outcomes(imports, job.id, state="FAILED")
        assert [(row.number, row.state, row.line, row.error_code) for row in rows] == failed
        assert not any(row.reason for row in rows)

    place.tell(story())


def test_every_row_whose_outcome_is_unknown_names_its_line(here: Place) -> None:
    imports = Imports(here.engine, operation="calls", effects="external", at_once=1, lease_seconds=1)

    @imports.row
    async def book(row: Row) -> None:
        if row.value["n"] == "stop":
            raise HandlerError("the process ends here")
        raise RuntimeError("cut in the middle")

    async def story() -> None:
        job = await imports.submit(csv_of("", "call", "stop"), supplier="ACME")
        for _ in range(2):  # the second run finds that the row was begun
            await imports.run_due()
            here.home.fetch("UPDATE semel_import SET next_at = 1")
        rows = await _outcomes(imports, job.id, state="UNKNOWN")
        doubts = ["error:RuntimeError", "interrupted"]
        assert [(row.line, row.error_code) for row in rows] == list(zip((3, 4), doubts, strict=True))

    here.tell(story())


def test_a_file_whose_format_differs_from_the_declared_one_is_reported(here: Place) -> None:
    imports = here.imports(formats=[Csv(delimiter=";")])

    async def story() -> None:
        empty = await imports.submit(b"n\n", supplier="ACME")
        doubled = await imports.submit(b"n;n\n1;2\n", supplier="ACME")
        bom16 = await imports.submit("n\n1\n".encode("utf-16"), supplier="ACME")
        await imports.run_due()
        told = []
        for job in (empty, doubled, bom16):
            done = await imports.job(job.id)
            assert done is not None
            told.append((done.state.name, done.error_code, done.counts.rows))
        assert told == [("DONE", None, 0), ("FAILED", "BAD_HEADER", 0), ("FAILED", "BAD_HEADER", 0)]
        with pytest.raises(ImportRefused, match="text/csv"):
            await imports.submit(b"[]", supplier="ACME", media_type="application/json")

    here.tell(story())


def test_a_file_that_changes_while_it_is_read_is_refused(
    here: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last line may be half of one: a quantity of 12 that will be 1234."""
    file, imports = tmp_path / "stock.csv", here.imports()
    file.write_bytes(csv_of(1))
    taken = Upload.write

    def take_and_grow(upload: Upload, piece: bytes) -> None:
        taken(upload, piece)
        if upload.size < 100:
            with file.open("ab") as more:
                more.write(b"12" * 100)

    with monkeypatch.context() as patch:
        patch.setattr(Upload, "write", take_and_grow)
        with pytest.raises(ImportRefused, match="changed while it was read") as refused:
            here.tell(imports.submit(file, supplier="ACME"))
    assert refused.value.code == "FILE_CHANGED"
    assert here.home.fetch("SELECT count(*) FROM semel_import")[0][0] == 0
    file.write_bytes(csv_of(1))
    assert here.tell(imports.submit(file, supplier="ACME")).is_new


@pytest.mark.parametrize("strict", [False, True])
def test_a_row_that_is_not_what_a_check_expects_fails_alone(here: Place, strict: bool) -> None:
    imports = here.imports(validate=lambda row: {"n": row["n"]}, all_or_nothing=strict)
    file = b'[{"n": 1}, 7, {"m": 1}]'

    async def story() -> None:
        preview = await imports.preview(file, supplier="ACME", media_type="application/json")
        job = await imports.submit(file, supplier="ACME", media_type="application/json")
        await imports.run_due()
        done = await imports.job(job.id)
        assert done is not None
        assert (done.counts, done.state) == (preview.counts, preview.state)
        assert done.counts.booked == int(not strict)
        assert [row.error_code for row in preview.rows if row.number > 1] == ["ROW_INVALID", "ROW_INVALID"]

    here.tell(story())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rows": "some"}, "rows must be"),
        ({"rows": "skip-known", "effects": "external"}, "needs effects='atomic'"),
        ({"file_bytes_max": 0}, "file_bytes_max"),
        ({"rows_max": True}, "rows_max"),
        ({"keep_seconds": 10}, "keep_content_seconds must not be longer"),
        ({"formats": [Csv(), Csv(delimiter=";")]}, "two formats"),
        ({"formats": []}, "formats must name"),
        ({"formats": ["csv"]}, "formats must be"),
        ({"validate": 7}, "validate must be"),
        ({"operation": ""}, "operation must be"),
        ({"item_bytes_max": 7}, "item_bytes_max is not an option"),
        ({"effects": "some"}, "effects must be"),
    ],
)
def test_a_wrong_option_is_named(here: Place, options: dict[str, Any], said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        here.imports(**options)


@pytest.mark.parametrize("url", ["memory://", "redis://127.0.0.1:1/0"])
def test_a_store_without_imports_states_why(url: str) -> None:
    engine = AsyncEngine.connect(url)
    with pytest.raises(ConfigurationError, match="unique by an index"):
        Imports(engine, operation="stock.import")
    with pytest.raises(ConfigurationError, match="unique by an index"):
        DatabaseContent(engine)


@pytest.mark.parametrize("supplier", ["", "A:B", "A B", "ä", "A" * 65, "A/B", "A\n", None])
def test_a_suppliers_code_has_a_strict_alphabet(here: Place, supplier: Any) -> None:
    imports = here.imports()
    with pytest.raises(ImportRefused, match="supplier must be") as refused:
        here.tell(imports.submit(csv_of(1), supplier=supplier))
    assert refused.value.code == "INVALID_SUPPLIER"


@pytest.mark.parametrize(("file", "code"), [(b"", "EMPTY_FILE"), (b"n\n" + b"1" * 200, "FILE_TOO_LARGE")])
def test_a_file_that_is_refused_leaves_nothing(here: Place, file: bytes, code: str) -> None:
    imports = here.imports(file_bytes_max=100)
    with pytest.raises(ImportRefused) as refused:
        here.tell(imports.submit(file, supplier="ACME"))
    assert refused.value.code == code
    assert here.home.fetch("SELECT count(*) FROM semel_import_blob")[0][0] == 0


class _Stopped:
    """A row's handler whose process is stopped at its third row, once."""

    def __init__(self) -> None:
        self.booked: list[str] = []
        self._calls = 0

    async def __call__(self, row: Row) -> None:
        self._calls += 1
        if self._calls == 3:
            raise asyncio.CancelledError
        self.booked.append(row.value["n"])


async def _run_until_stopped(imports: Imports) -> None:
    with suppress(asyncio.CancelledError):
        await imports.run_due()


def test_rows_of_a_job_that_another_version_could_not_go_on_with_are_booked_once(place: Place) -> None:
    handler = _Stopped()
    imports = Imports(place.engine, operation="stock.import", lease_seconds=1, chunk_items=1, effects="external")
    imports.row(handler)

    async def story() -> None:
        job = await imports.submit(csv_of(1, 2, 3, 4), supplier="ACME")
        await _run_until_stopped(imports)
        booked = list(handler.booked)
        with patch("semel.imports.run.read_recipe", side_effect=ImportRefused("unknown", "RECIPE_UNKNOWN")):
            await imports.run_due()
        failed = await imports.job(job.id)
        assert failed is not None
        assert (failed.state, failed.error_code) == (ImportState.FAILED, "RECIPE_UNKNOWN")
        assert failed.counts.rows == 4
        again = await imports.retry(job.id, reason="the new version is back", actor="op")
        assert again.generation == failed.generation
        await imports.run_due()
        assert handler.booked[: len(booked)] == booked
        assert len(set(handler.booked)) == len(handler.booked)

    place.tell(story())


def test_damaged_bytes_are_replaced_by_the_next_upload(place: Place) -> None:
    imports = place.imports()

    async def story() -> None:
        job = await imports.submit(csv_of(1, 2), supplier="ACME")
        rows = imports.rows_kept
        digest = {"digest": bytes.fromhex(job.sha256)}
        await place.engine.perform("test", lambda: rows._dialect.write(rows._sql["drop_parts"], digest))
        for _ in range(ATTEMPTS_MAX):
            await place.engine.perform("test", lambda: rows._dialect.write(rows._sql["postpone"], _at_once(job)))
            await imports.run_due()
        failed = await imports.submit(csv_of(1, 2), supplier="ACME")
        assert (failed.id, failed.error_code) == (job.id, "CONTENT_MISSING")
        await imports.retry(job.id, reason="it was sent again", actor="op")
        await imports.run_due()
        ended = await imports.job(job.id)
        assert ended is not None
        assert (ended.state, ended.counts.booked) == (ImportState.DONE, 2)

    place.tell(story())


def _at_once(job: ImportJob) -> dict[str, Any]:
    id = uuid_bytes(job.id)
    return {"id": id, "generation": 0, "delay": 0, "reason": "test"}


def test_a_keying_that_forgets_the_supplier_is_refused(place: Place) -> None:
    class Shared:
        checks_content = False

        def key(self, facts: Any) -> str:
            return f"GLOBAL:{facts.digest}"

    imports = place.imports(key=Shared())
    with pytest.raises(PolicyError, match="begins with its supplier's code"):
        place.tell(imports.submit(csv_of(1), supplier="ACME"))


def test_a_refused_file_stays_refused_whatever_stops_its_run(place: Place) -> None:
    handler = _Stopped()
    imports = Imports(
        place.engine,
        operation="stock.import",
        lease_seconds=1,
        chunk_items=1,
        all_or_nothing=True,
        validate=lambda row: row if row["n"].isdigit() else _refuse(),
    )
    imports.row(handler)
    calls = 0

    async def story() -> None:
        nonlocal calls
        job = await imports.submit(csv_of("BAD", 1, 2, 3), supplier="ACME")
        book = Booking.__call__

        async def stop_at_third(booking: Any, item: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 3:
                raise asyncio.CancelledError
            return await book(booking, item)

        with patch.object(Booking, "__call__", stop_at_third):
            await _run_until_stopped(imports)
        rows = imports.rows_kept
        with patch("semel.imports.run.read_recipe", side_effect=ContentMissing("away")):
            for _ in range(ATTEMPTS_MAX):
                await place.engine.perform("test", lambda: rows._dialect.write(rows._sql["postpone"], _at_once(job)))
                await imports.run_due()
        failed = await imports.job(job.id)
        assert failed is not None
        assert (failed.state, failed.error_code, failed.counts.done) == (ImportState.FAILED, "ROWS_REFUSED", 2)
        await imports.retry(job.id, reason="the disk is back", actor="op")
        await imports.run_due()
        ended = await imports.job(job.id)
        assert ended is not None
        assert (ended.error_code, ended.counts.failed, ended.counts.booked) == ("ROWS_REFUSED", 4, 0)
        assert handler.booked == []

    place.tell(story())
