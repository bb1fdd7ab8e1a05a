"""What uploads cost: memory that does not grow with the file, and one look into the index for a duplicate."""

from __future__ import annotations

import hashlib
import inspect
import resource
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel.errors import HandlerError
from semel.imports import Imports, Row
from semel.imports.upload import Upload
from tests.imports.places import Place, csv_of

MIB = 1024 * 1024


async def _stream(pieces: int) -> AsyncIterator[bytes]:
    for _ in range(pieces):
        yield bytes(MIB)


def test_memory_does_not_grow_with_the_file(here: Place) -> None:
    """As far as a suite may write: what is held is one block. `python -m tests.imports.soak` sends 2 GiB."""

    async def take(pieces: int) -> str:
        with Upload(1024 * MIB) as upload:
            await upload.take(_stream(pieces))
            assert upload.size == pieces * MIB
            return upload.digest

    here.tell(take(2))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    digest = here.tell(take(192))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 64
    assert digest == hashlib.sha256(bytes(192 * MIB)).hexdigest()


def test_a_duplicate_costs_one_read_by_key_and_writes_by_id(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    imports = place.imports()
    place.tell(imports.submit(csv_of(1), supplier="ACME", filename="a.csv"))
    seen: list[str] = []
    rows = imports.rows_kept

    class Counted(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            seen.append(name)
            return super().__getitem__(name)

    monkeypatch.setattr(rows, "_sql", Counted(rows._sql))
    job = place.tell(imports.submit(csv_of(1), supplier="ACME", filename="a.csv"))
    assert not job.is_new
    # One look into the unique index; then the submission, its name and the answer, each by the job's id.
    assert seen == ["by_key", "seen", "put_name", "by_id", "names"]


CELLS = st.lists(
    st.one_of(st.integers(-3, 6).map(str), st.sampled_from(["x", "999", "1,2", '"', "1999", ""])),
    min_size=0,
    max_size=9,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=CELLS, second=CELLS, chunk=st.sampled_from([1, 2, 500]), refuses=st.booleans(), skips=st.booleans())
def test_a_preview_reports_what_the_run_does(
    here: Place, first: list[str], second: list[str], chunk: int, refuses: bool, skips: bool
) -> None:
    here.home.fetch("DELETE FROM effect")
    here.home.fetch("DELETE FROM semel_import")
    here.home.fetch("DELETE FROM semel_import_row")
    imports = here.imports(chunk_items=chunk, all_or_nothing=refuses, rows="skip-known" if skips else "all")

    async def story() -> None:
        for cells in (first, second):
            before = here.home.effects()
            preview = await imports.preview(csv_of(*cells), supplier="ACME")
            assert here.home.effects() == before
            job = await imports.submit(csv_of(*cells), supplier="ACME")
            if not job.is_new:
                assert preview.job is not None
                continue
            await imports.run_due()
            done = await imports.job(job.id)
            assert done is not None
            assert (done.state, done.counts) == (preview.state, preview.counts)
            rows, _ = await imports.outcomes(job.id, limit=100)
            assert tuple(row for row in rows if row.state != "BOOKED") == preview.rows

    here.tell(story())


@pytest.mark.parametrize("way", ["commit", "rollback"])
def test_a_handler_that_ends_the_transaction_of_a_preview_is_refused(place: Place, way: str) -> None:
    imports = Imports(place.engine, operation="stock.import", effects="atomic")

    @imports.row
    async def book(row: Row) -> None:
        connection: Any = row.connection
        done = getattr(connection, way)() if hasattr(connection, way) else connection.execute(way)
        if inspect.isawaitable(done):
            await done

    with pytest.raises(HandlerError, match=r"must not call commit\(\) or rollback\(\).*row\.preview"):
        place.tell(imports.preview(csv_of(1), supplier="ACME"))


def test_a_preview_does_not_run_a_handler_whose_calls_nothing_would_undo(here: Place) -> None:
    imports = Imports(here.engine, operation="calls", effects="idempotent")

    @imports.row
    async def book(row: object) -> None:
        raise AssertionError("it was called")

    preview = here.tell(imports.preview(csv_of(1), supplier="ACME"))
    assert preview.counts.booked == 1
