"""Imports with `answers="seal"`: a file, its rows' values and errors are in no file of the store; what was changed is
never booked; `semel reseal` and `semel doctor` know of all of it. 8 s."""

from __future__ import annotations

import base64
import json
import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from semel import Command, Engine, Permit, Policy, Scope, Sealer
from semel.bulk.declaration import DETAIL_BYTES_MAX
from semel.bulk.rules import Done
from semel.cli.main import main
from semel.core.identity import uuid_bytes
from semel.core.outcomes import Unprovable
from semel.errors import ConfigurationError, ImportRefused, ItemFailed, PolicyError
from semel.imports import Csv, FolderContent, ImportJob, Imports, ImportState, Row, RowInvalid
from semel.imports.rules import hide_ids, read_hidden_ids
from semel.imports.run import ATTEMPTS_MAX
from semel.imports.sealed import FRAME_BYTES
from semel.imports.store import FORM_PLACES
from semel.sealing.rules import MARK
from tests.bulk.fellows import Home, write
from tests.engine.shells import Shell
from tests.imports.places import Place, csv_of
from tests.imports.test_cli import _url
from tests.imports.test_http import CSV, PATH, Shop, fastapi_shop, over
from tests.sealing.test_canary import files_of, found_in

OLD, NEW = bytes(32), bytes(range(32))
BOTH = {"2026": NEW, "2025": OLD}


def set_ring(place: Place, ring: dict[str, bytes]) -> None:
    place.engine.core.sealer = Sealer(ring)


def imports_of(place: Place, operation: str, **options: Any) -> Imports:
    """Rows that are booked, refused by a check, by a handler, and by its code; each says what the row held."""

    def check(row: dict[str, str]) -> dict[str, str]:
        if row["what"].startswith("Checked"):
            raise RowInvalid("what", f"is {row['what']}")
        return row

    made = Imports(place.engine, operation=operation, validate=check, formats=[Csv()], **options)

    @made.row
    async def book(row: Row) -> str:
        what = row.value["what"]
        await write(row, int(row.value["n"]))  # type: ignore[arg-type]
        if what.startswith("Refused"):
            raise RowInvalid("what", f"is {what}")
        if what.startswith("Failed"):
            raise ItemFailed("CLOSED", target_id=what)
        return f"made of {what}"

    return made


def file_of(canary: str, first: int) -> bytes:
    kinds = ("Booked", "Checked", "Refused", "Failed")
    return csv_of(*(f"{first + n},{kind}{canary}" for n, kind in enumerate(kinds)), header="n,what")


def dump_rows(imports: Imports, place: Place, job: ImportJob) -> str:
    rows, _ = place.tell(imports.outcomes(job.id))
    return json.dumps([row.document() for row in rows])


@pytest.mark.parametrize("kind", ["sqlite-async", "asyncpg", "asyncmy"])
def test_a_secret_of_a_file_is_in_no_file_of_the_store(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    set_ring(place, {"2026": NEW})
    folder = FolderContent(tmp_path / "kept")
    plain = imports_of(place, "plain", content=folder)
    sealed = imports_of(place, "sealed", answers="seal")
    in_folder = imports_of(place, "folder", answers="seal", content=folder, spool_folder=tmp_path)
    kept = place.tell(plain.submit(file_of("CanaryPlain", 0), supplier="ACME"))
    jobs = [
        place.tell(imports.submit(file_of("CanarySealed", first), supplier="ACME", filename="a.csv"))
        for imports, first in ((sealed, 10), (in_folder, 20))
    ]
    for imports in (plain, sealed, in_folder):
        assert place.tell(imports.run_due()) == 1
    ended = place.tell(sealed.job(jobs[0].id))
    assert ended is not None
    assert (ended.state, ended.counts.booked, ended.counts.failed) == (ImportState.DONE, 1, 3)
    assert ended.key == f"ACME:{ended.sha256}"  # the content's address is no secret
    for imports, job in ((sealed, jobs[0]), (in_folder, jobs[1])):
        said = dump_rows(imports, place, job)  # to a process that has the key
        for what in ("made of Booked", "is Checked", "is Refused", "Failed"):
            assert f"{what}CanarySealed" in said
    files = files_of(place.kind, tmp_path)
    assert found_in(files, "made of BookedCanaryPlain"), "the look itself finds what is there"
    assert found_in(folder.folder, "CanaryPlain")
    assert found_in(files, "CanarySealed") == []
    assert found_in(tmp_path, "CanarySealed") == []
    assert "CanarySealed" not in caplog.text
    capsys.readouterr()
    for command in (("imports", "rows", jobs[0].id), ("imports", "show", jobs[0].id), ("imports", "list")):
        assert main([*command, "--url", _url(place, tmp_path)]) == 0
    assert main(["export", "--of", "items", "--answers", "--url", _url(place, tmp_path)]) == 0
    shown = capsys.readouterr()
    assert "CanarySealed" not in shown.out + shown.err
    assert "SEMEL_SEAL_KEYS_FILE" in shown.err
    assert kept.id not in shown.err


LARGE = csv_of(*range(100_000, 200_000))  # four frames


def parts(home: Home) -> list[tuple[int, bytes]]:
    return [(int(place), bytes(body)) for place, body in home.fetch("SELECT place, body FROM semel_import_part")]


def put(path: Path, place: int, body: bytes | None) -> None:
    with closing(sqlite3.connect(path)) as connection:
        if body is None:
            connection.execute("DELETE FROM semel_import_part WHERE place = ?", (place,))
        else:
            connection.execute("UPDATE semel_import_part SET body = ? WHERE place = ?", (body, place))
        connection.commit()


def flip(path: Path, home: Home) -> None:
    place, body = parts(home)[1]
    put(path, place, body[:-20] + bytes([body[-20] ^ 1]) + body[-19:])


def swap(path: Path, home: Home) -> None:
    (one, first), (other, second), *_ = parts(home)
    put(path, one, second)
    put(path, other, first)


def cut(path: Path, home: Home) -> None:
    put(path, max(place for place, _ in parts(home)), None)


def shorten(path: Path, home: Home) -> None:
    place, body = max(parts(home))
    put(path, place, body[: len(body) // 2])


def make_plain(path: Path, home: Home) -> None:
    place, _ = parts(home)[0]
    put(path, place, LARGE[:FRAME_BYTES])


def double(path: Path, home: Home) -> None:
    place, body = parts(home)[0]
    put(path, place, body * 2)


@pytest.mark.parametrize("spoil", [flip, swap, cut, shorten, make_plain, double])
def test_a_changed_sealed_file_is_never_booked_and_repaired_by_the_next_upload(
    here: Place, tmp_path: Path, spoil: Callable[[Path, Home], None]
) -> None:
    set_ring(here, {"2026": NEW})
    imports = here.imports(answers="seal")
    job = here.tell(imports.submit(LARGE, supplier="ACME"))
    assert [place for place, _ in parts(here.home)] == [FORM_PLACES + n for n in range(4)]
    spoil(tmp_path / "imports.db", here.home)
    here.tell(imports.run_due())
    failed = here.tell(imports.submit(LARGE, supplier="ACME"))
    assert (failed.id, failed.state, failed.error_code) == (job.id, ImportState.FAILED, "CONTENT_UNREADABLE")
    assert "Send the file again" in (failed.reason or "")
    assert here.home.effects() == []
    assert len(parts(here.home)) == 4
    here.tell(imports.retry(job.id, reason="it was sent again", actor="olga"))
    here.tell(_check_opens(imports, job))


async def _check_opens(imports: Imports, job: ImportJob) -> None:
    """The kept file opens, and is what was sent."""
    id = uuid_bytes(job.id)
    assert id is not None
    found = await imports.engine.perform("test", lambda: imports.rows_kept.by_id(id))
    assert found is not None
    async with imports.files.open(found) as file:
        file.seek(0)
        assert file.read() == LARGE


def test_the_frames_of_another_file_do_not_open(here: Place, tmp_path: Path) -> None:
    set_ring(here, {"2026": NEW})
    folder = FolderContent(tmp_path / "kept")
    imports = here.imports(answers="seal", content=folder)
    one = here.tell(imports.submit(csv_of(1, 2), supplier="ACME"))
    other = here.tell(imports.submit(csv_of(3, 4), supplier="ACME"))
    paths = [folder.path(f"{job.sha256}.sealed") for job in (one, other)]
    paths[0].write_bytes(paths[1].read_bytes())
    here.tell(imports.run_due())
    assert here.home.effects() == [3, 4]
    failed = here.tell(imports.job(one.id))
    assert failed is not None
    assert (failed.state, failed.error_code) == (ImportState.FAILED, "CONTENT_UNREADABLE")


@pytest.mark.parametrize("ring", [{"2027": NEW}, {"2026": OLD}, None])
def test_a_key_that_is_missing_is_named_and_nothing_is_lost(here: Place, ring: dict[str, bytes] | None) -> None:
    set_ring(here, {"2026": NEW})
    imports = here.imports(answers="seal")
    job = here.tell(imports.submit(csv_of(1, 2), supplier="ACME"))
    here.engine.core.sealer = None if ring is None else Sealer(ring)
    for _ in range(ATTEMPTS_MAX + 1):
        here.home.fetch("UPDATE semel_import SET next_at = 0")
        here.tell(imports.run_due())
    failed = here.tell(imports.job(job.id))
    assert failed is not None
    assert (failed.state, failed.error_code) == (ImportState.FAILED, "CONTENT_UNREADABLE")
    assert ("a different key of the same name" if ring == {"2026": OLD} else "'2026'") in (failed.reason or "")
    assert here.home.effects() == []
    set_ring(here, {"2027": NEW, "2026": NEW})
    here.tell(imports.retry(job.id, reason="the key is back", actor="olga"))
    here.tell(imports.run_due())
    assert here.home.effects() == [1, 2]


def test_a_process_without_a_sealer_drops_no_sealed_file(here: Place) -> None:
    set_ring(here, {"2026": NEW})
    job = here.tell(here.imports(answers="seal").submit(csv_of(1, 2), supplier="ACME"))
    here.home.fetch("UPDATE semel_import SET state = 5, error_code = 'CONTENT_UNREADABLE'")
    kept = parts(here.home)
    here.engine.core.sealer = None
    with pytest.raises(ConfigurationError, match="are sealed: give the engine its sealer"):
        here.tell(here.imports().submit(csv_of(1, 2), supplier="ACME"))
    assert parts(here.home) == kept
    set_ring(here, {"2026": NEW})
    imports = here.imports(answers="seal")
    here.tell(imports.retry(job.id, reason="the key is back", actor="olga"))
    here.tell(imports.run_due())
    assert here.home.effects() == [1, 2]


@pytest.mark.parametrize("code", ["CONTENT_MISSING", "CONTENT_UNREADABLE"])
def test_a_file_that_is_sent_again_after_its_time_is_not_kept_in_clear(here: Place, code: str) -> None:
    set_ring(here, {"2026": NEW})
    imports = here.imports(answers="seal", keep_content_seconds=0)
    job = here.tell(imports.submit(csv_of(1, 2), supplier="ACME"))
    here.home.fetch(f"UPDATE semel_import SET state = 5, error_code = '{code}', content_until = 1")
    here.home.fetch("UPDATE semel_import_blob SET touched_at = 0")
    assert here.tell(imports.purge()).contents == 1
    again = here.tell(imports.submit(csv_of(1, 2), supplier="ACME"))
    assert (again.id, again.submissions, again.has_content) == (job.id, 2, False)
    assert parts(here.home) == []


def test_the_same_bytes_are_stored_plain_and_sealed_side_by_side(place: Place) -> None:
    set_ring(place, {"2026": NEW})
    plain = place.imports(operation="plain", keep_content_seconds=0)
    sealed = place.imports(operation="sealed", answers="seal", keep_content_seconds=0)
    place.tell(plain.submit(csv_of(1), supplier="ACME"))
    job = place.tell(sealed.submit(csv_of(2), supplier="ACME"))
    again = place.tell(sealed.submit(csv_of(1), supplier="ACME"))
    bodies = {bytes(body) for (body,) in place.home.fetch("SELECT body FROM semel_import_part")}
    assert (len(bodies), csv_of(1) in bodies, csv_of(2) in bodies) == (3, True, False)
    assert sum(MARK in body for body in bodies) == 2
    assert place.tell(plain.run_due()) == 1
    place.home.fetch("DELETE FROM effect")
    assert place.tell(sealed.run_due()) == 2
    assert place.home.effects() == [1, 2]
    for id in (job.id, again.id):
        done = place.tell(sealed.job(id))
        assert done is not None
        assert done.state is ImportState.DONE
    place.home.fetch("UPDATE semel_import SET content_until = 1")
    place.home.fetch("UPDATE semel_import_blob SET touched_at = 0")
    assert place.tell(sealed.purge()).contents == 2
    assert place.home.fetch("SELECT count(*) FROM semel_import_part")[0][0] == 0


@pytest.mark.parametrize("detail", [b'{"invoice": 7}', b'{"line":3,"column":null,"reason":"","n":1}', b"\xff", b"[]"])
def test_an_applications_detail_is_inside_the_sealed_one(detail: bytes) -> None:
    hidden = hide_ids(detail, "stock-7", None)
    assert read_hidden_ids(hidden) == ("stock-7", None)
    assert base64.b64decode(json.loads(hidden)["detail"]) == detail


def test_a_sealed_rows_own_detail_has_the_limit_of_every_detail(here: Place) -> None:
    set_ring(here, {"2026": NEW})
    imports = Imports(here.engine, operation="stock.import", answers="seal", formats=[Csv()])

    @imports.row
    async def book(row: Row) -> Done:
        own = bytes(DETAIL_BYTES_MAX + int(row.value["n"]))
        if row.number > 1:
            raise ItemFailed("CLOSED", target_id="stock-7", detail=own)
        return Done("made", detail=own)

    for more, ends in ((0, [("BOOKED", None), ("FAILED", "CLOSED")]), (1, [("FAILED", "PolicyError")] * 2)):
        job = here.tell(imports.submit(csv_of(more, more), supplier="ACME"))
        here.tell(imports.run_due())
        rows, _ = here.tell(imports.outcomes(job.id))
        assert [(row.state, row.error_code) for row in rows] == ends


def test_a_wrong_declaration_is_refused(here: Place) -> None:
    with pytest.raises(ConfigurationError, match="has no sealer"):
        here.imports(answers="seal")
    set_ring(here, {"2026": NEW})
    with pytest.raises(PolicyError, match="answers must be 'keep' or 'seal'"):
        here.imports(answers="forget")
    with pytest.raises(ImportRefused, match="empty"):
        here.tell(here.imports(answers="seal").submit(b"", supplier="ACME"))


def test_a_header_with_the_same_name_twice_is_refused_without_the_name(here: Place) -> None:
    set_ring(here, {"2026": NEW})
    imports = here.imports(answers="seal")
    job = here.tell(imports.submit(b"n,SecretName,SecretName\n1,2,3\n", supplier="ACME"))
    here.tell(imports.run_due())
    failed = here.tell(imports.job(job.id))
    assert failed is not None
    assert (failed.error_code, failed.reason) == ("BAD_HEADER", "the header line: columns 2 and 3 have the same name")


def test_rows_that_do_not_open_are_not_a_500(tmp_path: Path) -> None:
    shop = Shop(tmp_path, _with_sealer, answers="seal")
    with TestClient(shop.app) as client:
        job = over(client, client.post(PATH, content=csv_of("1,2", 1), headers=CSV).headers["Location"])
        assert (job["state"], job["counts"]["failed"]) == ("DONE", 1)
        rows = client.get(f"/imports/{job['id']}/rows").json()["rows"]
        assert rows[0]["line"] == 2
        shop.engine.core.sealer = Sealer({"2027": NEW})
        closed = client.get(f"/imports/{job['id']}/rows")
        assert (closed.status_code, closed.json()["code"]) == (500, "IDEMPOTENCY_RECORD_UNREADABLE")
        assert "2026" not in closed.text


def _with_sealer(engine: Any) -> Any:
    engine.core.sealer = Sealer({"2026": NEW})
    return fastapi_shop(engine)


# --- reseal and doctor ----------------------------------------------------------------------------


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, bytes]], None]:
    path = tmp_path / "keys"
    monkeypatch.setenv("SEMEL_SEAL_KEYS_FILE", str(path))

    def write(ring: dict[str, bytes]) -> None:
        path.write_text("".join(f"{name} {base64.b64encode(key).decode()}\n" for name, key in ring.items()))
        path.chmod(0o600)

    return write


def keep_steps(place: Place, home: Home, ring: dict[str, bytes]) -> Callable[[dict[str, bytes]], None]:
    """An execution with two results of steps and a request; what runs it on."""
    policy = Policy(steps=True, answers="seal")
    command = Command(Scope("acme", "alice", "pay"), "k", bytes(32), "1.tests", policy)
    backend = {"sqlite-async": "sqlite", "asyncmy": "pymysql"}.get(place.kind, "psycopg")

    def steps(permit: Permit) -> list[object]:
        return [permit.step(name, lambda: "never called") for name in ("charge", "ship")]

    with closing(Engine(home.backend(backend), sealer=Sealer(ring))) as engine:
        engine.open()
        permit = engine.claim(command)
        assert isinstance(permit, Permit)
        permit.steps = engine._performer.steps_of(permit)
        assert [permit.step(name, lambda name=name: f"did {name}") for name in ("charge", "ship")]
        permit.step("mail", lambda: "sent", repeat=True)
        engine.settle(permit, Unprovable("lapsed"))
        sealed = Sealer(ring).seal(b"a request", permit.grant.id).hex()
        literal = f"'\\x{sealed}'::bytea" if backend == "psycopg" else f"X'{sealed}'"
        home.fetch(f"UPDATE semel_record SET request = {literal} WHERE operation = 'pay'")
        id = permit.grant.id

    def run_on(ring: dict[str, bytes]) -> None:
        with closing(Shell("sync", home.backend(backend), sealer=Sealer(ring))) as process:
            process.open()
            [row] = process.perform("read", lambda: process.engine.store.read((id,)))
            assert Sealer(ring).open(row.request, id) == b"a request"
            home.fetch("UPDATE semel_record SET state = 1, lease_until = 1 WHERE operation = 'pay'")
            again = process.engine.claim(command)
            assert isinstance(again, Permit)
            again.steps = process.engine._performer.steps_of(again)
            assert steps(again) == ["did charge", "did ship"]

    return run_on


@pytest.mark.parametrize("kind", ["sqlite-async", "asyncpg", "asyncmy"])
def test_reseal_covers_files_rows_items_and_steps(
    place: Place,
    home: Home,
    tmp_path: Path,
    keys: Callable[[dict[str, bytes]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def semel(*words: str) -> tuple[int, Any]:
        code = main([*words, "--json", "--url", _url(place, tmp_path)])
        return code, json.loads(capsys.readouterr().out)

    def missing() -> list[str]:
        return [each["detail"] for each in semel("doctor")[1]["findings"] if each["check"] == "sealed-parts"]

    set_ring(place, {"2025": OLD})
    imports = imports_of(place, "sealed", answers="seal", chunk_items=2)
    job = place.tell(imports.submit(file_of("Canary", 10), supplier="ACME"))
    waiting = place.tell(imports.submit(file_of("Waiting", 30), supplier="BETA"))
    home.fetch(f"UPDATE semel_import SET next_at = {2**60} WHERE supplier = 'BETA'")
    place.tell(imports.run_due())
    run_on = keep_steps(place, home, {"2025": OLD})
    keys({"2026": NEW})
    code, said = semel("reseal")
    assert (code, sum(said["resealedBeside"].values())) == (1, 0)
    [lacks] = missing()
    for kind in ("details", "steps", "requests", "files"):
        assert f"{kind} under 2025" in lacks
    keys(BOTH)
    assert missing() == []
    wanted = {"details": 4, "steps": 1, "requests": 1, "files": 2}
    assert semel("reseal", "--dry-run")[1]["resealedBeside"] == wanted
    code, said = semel("reseal")
    assert (code, said["resealedBeside"], said["changedMeanwhile"]) == (0, wanted, 0)
    keys({"2026": NEW})
    assert missing() == []
    code, said = semel("reseal")
    assert (code, set(said["resealedBeside"].values()), list(said["foundUnder"])) == (0, {0}, ["2026"])
    set_ring(place, {"2026": NEW})  # the old key may go
    assert "is CheckedCanary" in dump_rows(imports, place, job)
    home.fetch("UPDATE semel_import SET next_at = 0")
    place.tell(imports.run_due())
    done = place.tell(imports.job(waiting.id))
    assert done is not None
    assert (done.state, done.counts.booked) == (ImportState.DONE, 1)
    run_on({"2026": NEW})
