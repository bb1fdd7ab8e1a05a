"""Imports over HTTP: a job and not a replay, and every bad upload has its own answer and leaves nothing."""

from __future__ import annotations

import asyncio
import base64
import errno
import gzip
import hashlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from litestar import Litestar
from quart import Quart, request
from starlette.applications import Starlette

from semel import AsyncEngine
from semel.errors import ConfigurationError
from semel.http import Caller
from semel.imports import Imports, Row, VersionKey
from semel.integrations.fastapi import Semel
from semel.integrations.litestar import Semel as LitestarSemel
from semel.integrations.quart import Semel as QuartSemel
from semel.integrations.starlette import Semel as StarletteSemel
from tests.bulk.fellows import Home, sqlite_home
from tests.imports.places import csv_of

CSV = {"Content-Type": "text/csv"}
PATH = "/suppliers/ACME/imports"


def caller_of(request: Any) -> Caller | None:
    name = request.headers.get("x-user", "alice")
    return None if name == "nobody" else Caller(request.headers.get("x-tenant", "acme"), name)


def may(request: Any, supplier: str) -> bool:
    return supplier in ("ACME", "BETA")


class Shop:
    """An application with imports, and a look at what it keeps."""

    def __init__(self, path: Path, made: Callable[[AsyncEngine], Any], **options: Any) -> None:
        self.home: Home = sqlite_home(str(path / "shop.db"))
        self.engine = AsyncEngine(self.home.backend("sqlite-async"))
        self.app, self.semel, install = made(self.engine)
        self.imports = Imports(self.engine, **{"operation": "stock.import", "file_bytes_max": 100_000, **options})

        @self.imports.row
        async def book(row: Row) -> None:
            row.connection.execute("INSERT INTO effect VALUES (?)", (int(row.value["n"]),))

        self.semel.imports(
            self.app, self.imports, path="/suppliers/{supplier}/imports", supplier="path:supplier", may=may
        )
        install()

    def count_rows(self) -> tuple[int, int]:
        [(jobs,)] = self.home.fetch("SELECT count(*) FROM semel_import")
        [(blobs,)] = self.home.fetch("SELECT count(*) FROM semel_import_blob")
        return jobs, blobs


def fastapi_shop(engine: AsyncEngine) -> Any:
    app, semel = FastAPI(), Semel(engine, caller=caller_of)
    return app, semel, lambda: semel.install(app)


def starlette_shop(engine: AsyncEngine) -> Any:
    app, semel = Starlette(), StarletteSemel(engine, caller=caller_of)
    return app, semel, lambda: semel.install(app)


def litestar_shop(engine: AsyncEngine) -> Any:
    semel = LitestarSemel(engine, caller=caller_of)
    return Litestar(plugins=[semel]), semel, lambda: None


def quart_shop(engine: AsyncEngine) -> Any:
    app = Quart("imports")
    return app, QuartSemel(app, engine, caller=lambda: caller_of(request)), lambda: None


MADE = [fastapi_shop, starlette_shop, litestar_shop, quart_shop]


@pytest.fixture(params=MADE)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    return Shop(tmp_path, request.param)


@pytest.fixture(params=[fastapi_shop, litestar_shop, quart_shop])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TestClient]:
    shop = Shop(tmp_path, request.param)
    with TestClient(shop.app) as made:
        made.shop = shop  # type: ignore[attr-defined]
        yield made
    assert list(tmp_path.glob("*.part")) == []


def over(client: TestClient, location: str) -> dict[str, Any]:
    """The job when its worker is done with it."""
    ends = time.monotonic() + 60  # as long as a busy machine may take
    while (job := client.get(location).json())["state"] in ("QUEUED", "RUNNING") and time.monotonic() < ends:
        pass
    return dict(job)


def test_the_first_upload_is_created_and_every_later_one_exists(shop: Shop) -> None:
    with TestClient(shop.app) as client:
        first = client.post(PATH, content=csv_of(1, 2), headers={**CSV, "Idempotency-Key": "a"})
        assert (first.status_code, first.headers["semel-import"]) == (202, "created")
        job = first.json()
        assert first.headers["location"] == f"/imports/{job['id']}"
        assert job["key"] == f"ACME:{hashlib.sha256(csv_of(1, 2)).hexdigest()}"
        done = over(client, first.headers["location"])
        assert (done["state"], done["counts"]["booked"], done["counts"]["rows"]) == ("DONE", 2, 2)
        form = {"file": ("other.csv", csv_of(1, 2), "text/csv")}
        again = client.post(PATH, files=form, headers={"Idempotency-Key": "b"})
        assert (again.status_code, again.headers["semel-import"], again.json()["id"]) == (200, "existing", job["id"])
        assert again.json()["state"] == "DONE"
        assert [name["name"] for name in again.json()["fileNames"]] == ["other.csv"]
        other = client.post("/suppliers/BETA/imports?filename=b.csv", content=csv_of(3), headers=CSV)
        assert other.status_code == 202
        rows = client.get(f"/imports/{job['id']}/rows").json()
        assert [row["state"] for row in rows["rows"]] == ["BOOKED", "BOOKED"]
        page = client.get(f"/imports/{job['id']}/rows?limit=1").json()
        assert (len(page["rows"]), page["after"]) == (1, 1)
        found = client.get("/imports", params={"key": job["key"][:11] + "\u2026"}).json()["imports"]
        assert [each["id"] for each in found] == [job["id"]]
        over(client, other.headers["location"])
    assert shop.home.effects() == [1, 2, 3]


def test_a_preview_keeps_nothing(client: TestClient) -> None:
    preview = client.post(f"{PATH}?preview=1", content=csv_of(1, 1, "x"), headers=CSV)
    assert preview.status_code == 200
    told = preview.json()
    assert (told["counts"]["booked"], told["counts"]["failed"]) == (1, 2)
    assert [(row["line"], row["column"]) for row in told["rows"]] == [(3, None), (4, None)]  # of the database itself
    assert client.shop.count_rows() == (0, 0)  # type: ignore[attr-defined]


def test_jobs_of_other_tenants_are_not_found(client: TestClient) -> None:
    first = client.post(PATH, content=csv_of(1), headers=CSV).json()
    job = f"/imports/{first['id']}"
    assert client.get(job, headers={"x-tenant": "other"}).status_code == 404
    assert client.get(f"{job}/rows", headers={"x-tenant": "other"}).status_code == 404
    assert client.get("/imports", params={"key": first["key"]}, headers={"x-tenant": "other"}).json() == {"imports": []}
    assert client.get("/imports", params={"key": "GAMMA:aa"}).json() == {"imports": []}
    assert client.get(job, headers={"x-user": "nobody"}).status_code == 401
    assert client.post(PATH, content=csv_of(1), headers={**CSV, "x-user": "nobody"}).status_code == 401
    other = client.post(PATH, content=csv_of(1), headers={**CSV, "x-tenant": "other"})
    assert other.status_code == 202  # another tenant's file is another job
    over(client, job)
    over_there = client.get(f"/imports/{other.json()['id']}", headers={"x-tenant": "other"})
    assert over_there.status_code == 200


def _digest(body: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


FORM = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\nContent-Type: text/csv\r\n\r\n'
    + csv_of(1)
    + b"\r\n--b--\r\n"
)
ONE = FORM[: FORM.rindex(b"--b--")]
IN_FORM = {"Content-Type": "multipart/form-data; boundary=b"}


BAD: tuple[tuple[str, bytes, dict[str, str], int, str], ...] = (
    (PATH, b"", CSV, 400, "IMPORT_EMPTY_FILE"),
    (PATH, b"n\n" + b"1" * 100_000, CSV, 413, "IMPORT_FILE_TOO_LARGE"),
    ("/suppliers/A:B/imports", csv_of(1), CSV, 400, "IMPORT_INVALID_SUPPLIER"),
    ("/suppliers/A%20B/imports", csv_of(1), CSV, 400, "IMPORT_INVALID_SUPPLIER"),
    ("/suppliers/GAMMA/imports", csv_of(1), CSV, 403, "IMPORT_NOT_ALLOWED"),
    (PATH, csv_of(1), {}, 415, "IMPORT_MEDIA_TYPE"),
    (PATH, csv_of(1), {"Content-Type": "application/vnd.ms-excel"}, 415, "IMPORT_MEDIA_TYPE"),
    (PATH, csv_of(1), {"Content-Type": "text/csv; charset=utf-16"}, 415, "IMPORT_MEDIA_TYPE"),
    (PATH, gzip.compress(bytes(90_000)), {**CSV, "Content-Encoding": "gzip"}, 415, "IMPORT_CONTENT_ENCODING"),
    (PATH, csv_of(1), {**CSV, "Content-Digest": _digest(b"another")}, 400, "IDEMPOTENCY_REQUEST_INVALID"),
    (PATH, csv_of(1), {**CSV, "Content-Digest": "sha-256=nonsense"}, 400, "IDEMPOTENCY_REQUEST_INVALID"),
    (PATH, ONE + ONE + b"--b--\r\n", IN_FORM, 400, "IMPORT_NOT_ONE_FILE"),
    (PATH, FORM.replace(b'; filename="a.csv"', b""), IN_FORM, 400, "IMPORT_NOT_ONE_FILE"),
    (PATH, FORM[:-10], IN_FORM, 400, "IDEMPOTENCY_REQUEST_INVALID"),
    (PATH, FORM + b"and more", IN_FORM, 400, "IDEMPOTENCY_REQUEST_INVALID"),
    (PATH, FORM, {"Content-Type": "multipart/form-data"}, 400, "IDEMPOTENCY_REQUEST_INVALID"),
    (PATH, FORM.replace(b"text/csv", b"image/png"), IN_FORM, 415, "IMPORT_MEDIA_TYPE"),
    (PATH, FORM.replace(b"text/csv", b"text/csv; charset=utf-16"), IN_FORM, 415, "IMPORT_MEDIA_TYPE"),
    (PATH, FORM.replace(csv_of(1), b""), IN_FORM, 400, "IMPORT_EMPTY_FILE"),
    (PATH, csv_of(1), {**CSV, "Early-Data": "1"}, 425, "IDEMPOTENCY_TOO_EARLY"),
    (PATH, csv_of(1), {**CSV, "Content-Length": "2000000"}, 413, "IMPORT_FILE_TOO_LARGE"),
    (PATH, csv_of(1), {**CSV, "Content-Length": "50"}, 400, "IDEMPOTENCY_REQUEST_INVALID"),
)


@pytest.mark.parametrize(("path", "body", "headers", "status", "code"), BAD)
def test_a_bad_upload_has_its_own_answer_and_leaves_nothing(
    client: TestClient, path: str, body: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    answer = client.post(path, content=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert client.shop.count_rows() == (0, 0)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("body", "headers", "begins", "ends"),
    [
        (
            FORM.replace(b"text/csv", b"application/octet-stream"),  # as curl -F file=@a.csv sends it
            IN_FORM,
            "The file part of the form has the media type 'application/octet-stream'; it must be one of text/csv, ",
            "in the part's own Content-Type header: with curl -F 'file=@FILE;type=text/csv'.",
        ),
        (
            FORM.replace(b"Content-Type: text/csv\r\n", b""),
            IN_FORM,
            "The file part of the form has no media type; it must be one of text/csv, ",
            "in the part's own Content-Type header: with curl -F 'file=@FILE;type=text/csv'.",
        ),
        (
            csv_of(1),
            {"Content-Type": "application/octet-stream"},
            "The body has the media type 'application/octet-stream'; it must be one of text/csv, ",
            "in the Content-Type header: with curl -H 'Content-Type: text/csv' --data-binary @FILE.",
        ),
    ],
    ids=["part", "part without", "body"],
)
def test_a_media_type_that_no_format_takes_says_where_to_name_it(
    client: TestClient, body: bytes, headers: dict[str, str], begins: str, ends: str
) -> None:
    answer = client.post(PATH, content=body, headers=headers)
    assert answer.status_code == 415
    detail = answer.json()["detail"]
    assert (detail[: len(begins)], detail[-len(ends) :]) == (begins, ends)


def test_a_form_may_begin_with_a_line_break(client: TestClient) -> None:
    assert client.post(PATH, content=b"\r\n" + FORM, headers=IN_FORM).status_code == 202
    assert client.post(PATH, content=b"\r\n\r\n" + FORM, headers=IN_FORM).status_code == 400


@pytest.mark.parametrize("query", ["", "key=", "key=noSupplier", "key=A%20B:aa", "key=ACME:%00"])
def test_a_search_without_a_suppliers_key_is_refused(client: TestClient, query: str) -> None:
    answer = client.get(f"/imports?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "IMPORT_INVALID_QUERY")


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "after=-1", "state=SOME", "limit=9999999999999999999999"])
def test_an_invalid_query_for_rows_is_refused(client: TestClient, query: str) -> None:
    job = client.post(PATH, content=csv_of(1), headers=CSV).json()["id"]
    assert client.get(f"/imports/{job}/rows?{query}").json()["code"] == "IMPORT_INVALID_QUERY"
    assert client.get("/imports/not-an-id").status_code == 404


def test_a_disk_that_is_full_keeps_nothing(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from semel.imports.upload import Upload

    class Full:
        def write(self, piece: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            return

    plain = Upload.__init__

    def full(self: Upload, *args: Any) -> None:
        plain(self, *args)
        self.file.close()
        self.file = Full()  # type: ignore[assignment]

    monkeypatch.setattr(Upload, "__init__", full)
    answer = client.post(PATH, content=csv_of(1), headers=CSV)
    assert (answer.status_code, answer.json()["code"]) == (507, "IMPORT_NO_ROOM")
    assert client.shop.count_rows() == (0, 0)  # type: ignore[attr-defined]


async def _ask(app: Any, messages: list[dict[str, Any]], headers: list[tuple[bytes, bytes]]) -> tuple[int, int]:
    """Send a request by its messages; the status, and how many messages were taken."""
    taken = 0
    answered: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        nonlocal taken
        taken += 1
        return messages[taken - 1] if taken <= len(messages) else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        answered.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": PATH,
        "raw_path": PATH.encode(),
        "query_string": b"",
        "headers": headers,
        "scheme": "http",
        "server": ("x", 80),
        "client": ("y", 1),
    }
    await app(scope, receive, send)
    return answered[0]["status"], taken


def test_a_client_that_disconnects_during_the_upload_stores_nothing(client: TestClient) -> None:
    piece = {"type": "http.request", "body": b"n\n1\n" * 100, "more_body": True}
    status, _ = asyncio.run(_ask(client.app, [piece, piece], [(b"content-type", b"text/csv")]))
    assert status == 400
    assert client.shop.count_rows() == (0, 0)  # type: ignore[attr-defined]


def test_a_file_that_is_too_large_is_refused_before_its_end_is_read(client: TestClient) -> None:
    piece = {"type": "http.request", "body": b"1\n" * 30_000, "more_body": True}
    status, taken = asyncio.run(_ask(client.app, [piece] * 50, [(b"content-type", b"text/csv")]))
    most = 4 if isinstance(client.app, Quart) else 2  # Quart receives a little ahead of its reader
    assert (status, taken <= most) == (413, True)
    status, taken = asyncio.run(
        _ask(client.app, [piece] * 50, [(b"content-type", b"text/csv"), (b"content-length", b"3000000")])
    )
    assert (status, taken <= most - 2) == (413, True)


def test_a_version_comes_with_the_query_or_the_form(tmp_path: Path) -> None:
    shop = Shop(tmp_path, fastapi_shop, key=VersionKey("version"))
    with TestClient(shop.app) as client:
        one = client.post(f"{PATH}?version=1", content=csv_of(1), headers=CSV)
        form = {"file": ("a.csv", csv_of(1), "text/csv")}
        two = client.post(PATH, files=form, data={"version": "2"})
        assert (one.status_code, two.status_code) == (202, 202)
        assert one.json()["key"].split(":")[1] == "v=1"
        assert client.post(PATH, files=form).json()["code"] == "IMPORT_INVALID_VERSION"


@pytest.mark.parametrize(("made", "at"), [(fastapi_shop, "/openapi.json"), (litestar_shop, "/schema/openapi.json")])
def test_the_document_describes_uploads(tmp_path: Path, made: Callable[[AsyncEngine], Any], at: str) -> None:
    with TestClient(Shop(tmp_path, made).app) as client:
        document = client.get(at).json()
    rows = document["paths"]["/imports/{import_id}/rows"]["get"]
    assert [(each["name"], each["in"]) for each in rows["parameters"]] == [("import_id", "path")]
    assert "404" in rows["responses"]
    upload = document["paths"]["/suppliers/{supplier}/imports"]["post"]
    assert {"text/csv", "multipart/form-data", "application/json"} <= set(upload["requestBody"]["content"])
    assert {"200", "202", "400", "403", "413", "415", "422", "507"} <= set(upload["responses"])
    assert (upload["x-semel"]["effects"], upload["parameters"][0]["name"]) == ("IMPORT", "supplier")


def test_a_bad_upload_is_not_a_store_error(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    wrong = {**CSV, "Content-Digest": _digest(b"another")}
    assert client.post(PATH, content=csv_of(1), headers=wrong).status_code == 400
    assert "the store failed" not in caplog.text


def test_wrong_declarations_are_refused_when_the_application_is_built(tmp_path: Path) -> None:
    shop = Shop(tmp_path, fastapi_shop)
    other = Imports(AsyncEngine.connect("sqlite:///other.db"), operation="other")

    def declare(imports: Imports = shop.imports, **options: Any) -> None:
        said = {"path": "/x", "supplier": "path:supplier", "may": may, **options}
        shop.semel.imports(shop.app, imports, **said)

    with pytest.raises(ConfigurationError, match="on the engine of this Semel"):
        declare(other)
    with pytest.raises(ConfigurationError, match="takes one Imports, not a list; call it once for each"):
        declare([shop.imports])  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="duplicate imports"):
        declare()
    with pytest.raises(ConfigurationError, match="may must be"):
        declare(may=None)
    unhandled = Imports(shop.engine, operation="unhandled")
    with pytest.raises(ConfigurationError, match="have no handler"):
        declare(unhandled)
    unhandled.row(shop.imports.handler)
    with pytest.raises(ConfigurationError, match=re.escape("supplier must be 'path:NAME'")):
        declare(unhandled, supplier="cookie:x")
