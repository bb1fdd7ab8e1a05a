"""Uploads through WSGI: the answers of the ASGI applications byte by byte, bodies as servers give them, gunicorn."""

from __future__ import annotations

import http.client
import io
import json
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from flask import Flask, g

from semel import AsyncEngine, Engine
from semel.errors import ConfigurationError
from semel.http import Caller
from semel.imports import Imports, Row
from semel.imports.wsgi import ImportsOverWsgi
from semel.integrations.flask import Semel
from tests.bulk.fellows import Home, sqlite_home
from tests.frameworks.served import GUNICORN, Served, serving
from tests.imports.places import csv_of
from tests.imports.test_http import BAD, CSV, PATH, Shop, starlette_shop
from tests.service.served import await_true
from tests.web.driving import Response, wsgi_call, wsgi_environ


def caller_of(environ: Any) -> Caller | None:
    name = environ.get("HTTP_X_USER", "alice")
    return None if name == "nobody" else Caller(environ.get("HTTP_X_TENANT", "acme"), name)


def may(environ: Any, supplier: str) -> bool:
    assert threading.current_thread().name != "semel-imports"  # it is asked where the request is
    return supplier in ("ACME", "BETA")


class Wsgi:
    """Imports over WSGI on one file, and a look at what they keep."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.home: Home = sqlite_home(str(path / "wsgi.db"))
        made = {name: options.pop(name) for name in ("idle_seconds", "caller", "supplier", "may") if name in options}
        self.engine = AsyncEngine(self.home.backend("sqlite-async"))
        self.imports = Imports(self.engine, **{"operation": "stock.import", "file_bytes_max": 100_000, **options})

        @self.imports.row
        async def book(row: Row) -> None:
            row.connection.execute("INSERT INTO effect VALUES (?)", (int(row.value["n"]),))

        settings = {"caller": caller_of, "supplier": "path:supplier", "may": may, **made}
        self.app = ImportsOverWsgi(self.imports, path="/suppliers/{supplier}/imports", **settings)

    def ask(self, method: str, path: str, body: bytes = b"", headers: Any = (), **more: Any) -> Response:
        given = [*dict(headers).items()]
        if "Content-Length" not in dict(headers) and "wsgi.input_terminated" not in more:
            given.append(("Content-Length", str(len(body))))
        path, _, query = path.partition("?")
        return wsgi_call(self.app, {**wsgi_environ(method, path, query, given, body, None), **more})

    def over(self, location: str) -> dict[str, Any]:
        found: list[Any] = []

        def is_over() -> bool:
            found.append(json.loads(self.ask("GET", location).body))
            return found[-1]["state"] not in ("QUEUED", "RUNNING")

        await_true(is_over, "the import to end")
        return dict(found[-1])

    def count_rows(self) -> tuple[int, int]:
        [(jobs,)] = self.home.fetch("SELECT count(*) FROM semel_import")
        [(blobs,)] = self.home.fetch("SELECT count(*) FROM semel_import_blob")
        return jobs, blobs


@pytest.fixture
def wsgi(tmp_path: Path) -> Iterator[Wsgi]:
    made = Wsgi(tmp_path)
    yield made
    made.app.close()


def test_the_first_upload_is_created_and_every_later_one_exists(wsgi: Wsgi) -> None:
    first = wsgi.ask("POST", PATH, csv_of(1, 2), CSV)
    assert (first.status, first.header("semel-import")) == (202, "created")
    location = first.header("location")
    assert location is not None
    done = wsgi.over(location)
    assert (done["state"], done["counts"]["booked"]) == ("DONE", 2)
    again = wsgi.ask("POST", PATH + "?filename=b.csv", csv_of(1, 2), {**CSV, "Idempotency-Key": "b"})
    assert (again.status, again.header("semel-import"), json.loads(again.body)["id"]) == (200, "existing", done["id"])
    assert len(json.loads(wsgi.ask("GET", f"{location}/rows").body)["rows"]) == 2
    assert json.loads(wsgi.ask("GET", f"/imports?key={done['key'][:12]}").body)["imports"][0]["id"] == done["id"]
    head = wsgi.ask("HEAD", location)
    assert (head.status, head.body) == (200, b"")
    assert wsgi.home.effects() == [1, 2]
    preview = wsgi.ask("POST", PATH + "?preview=1", csv_of(3), CSV)
    assert (preview.status, wsgi.count_rows()) == (200, (1, 1))


def test_every_answer_is_that_of_an_asgi_application(wsgi: Wsgi, tmp_path: Path) -> None:
    """All bad uploads, and questions that are refused: status, headers and body."""
    shop = Shop(tmp_path, starlette_shop)
    asked = [
        *[("POST", path, body, headers, status) for path, body, headers, status, _ in BAD],
        ("POST", PATH, csv_of(1), {**CSV, "X-User": "nobody"}, 401),
        ("GET", "/imports?key=noSupplier", b"", {}, 400),
        ("GET", "/imports?key=GAMMA:aa", b"", {}, 200),
        ("GET", f"/imports/{uuid.uuid4()}", b"", {}, 404),
        ("GET", "/imports/nonsense/rows", b"", {}, 404),
        ("DELETE", "/imports", b"", {}, 405),
        ("GET", "/elsewhere", b"", {}, 404),
    ]
    with TestClient(shop.app) as client:
        for method, path, body, headers, status in asked:
            here = wsgi.ask(method, path.replace("%20", " "), body, headers)
            there = client.request(method, path, content=body, headers=headers)
            assert (here.status, here.body) == (status, there.content), path
            assert here.status == there.status_code
            assert [(name.lower(), value) for name, value in here.headers] == list(there.headers.items())
    assert wsgi.count_rows() == (0, 0)


class Gone(io.RawIOBase):
    """A client that goes away in the middle of its file."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error
        self._pieces = [csv_of(1)]

    def read(self, size: int = -1, /) -> bytes:
        if self._pieces:
            return self._pieces.pop()
        if self._error is not None:
            raise self._error
        return b""


@pytest.mark.parametrize("error", [None, ConnectionResetError("gone")])
def test_a_client_that_disconnects_leaves_nothing(wsgi: Wsgi, error: Exception | None) -> None:
    cut = {"wsgi.input": Gone(error), "CONTENT_LENGTH": "5000"}
    if error is not None:
        wsgi_only = {"wsgi.input": Gone(error), "wsgi.input_terminated": True}
        assert wsgi.ask("POST", PATH, b"", CSV, **wsgi_only).status == 400
    answer = wsgi.ask("POST", PATH, b"", CSV, **cut)
    assert (answer.status, answer.code) == (400, "IDEMPOTENCY_REQUEST_INVALID")
    assert wsgi.count_rows() == (0, 0)


def test_a_body_ends_at_the_length_that_the_server_gives(wsgi: Wsgi) -> None:
    longer = {"wsgi.input": io.BytesIO(csv_of(1) + b"GET /next"), "CONTENT_LENGTH": str(len(csv_of(1)))}
    assert wsgi.ask("POST", PATH, b"", CSV, **longer).status == 202
    assert longer["wsgi.input"].read() == b"GET /next"  # type: ignore[attr-defined]
    chunked = {"wsgi.input": io.BytesIO(csv_of(2)), "wsgi.input_terminated": True}
    assert wsgi.ask("POST", PATH, b"", CSV, **chunked).status == 202
    neither = {"wsgi.input": io.BytesIO(csv_of(3)), "CONTENT_LENGTH": ""}
    assert wsgi.ask("POST", PATH, b"", CSV, **neither).code == "IMPORT_EMPTY_FILE"
    withheld = {"wsgi.input": io.BytesIO(), "CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked"}  # by uWSGI
    assert wsgi.ask("POST", PATH, b"", CSV, **withheld).code == "IDEMPOTENCY_REQUEST_INVALID"
    nothing = {"wsgi.input": None, "CONTENT_LENGTH": "0"}
    assert wsgi.ask("POST", PATH, b"", CSV, **nothing).code == "IMPORT_EMPTY_FILE"
    endless = {"wsgi.input": Endless(), "wsgi.input_terminated": True}
    assert wsgi.ask("POST", PATH, b"", CSV, **endless).code == "IMPORT_FILE_TOO_LARGE"
    assert endless["wsgi.input"].largest <= 64 * 1024  # type: ignore[attr-defined]


class Endless:
    """A client that never ends, and how much was asked of it at once."""

    largest = 0

    def read(self, size: int) -> bytes:
        self.largest = max(self.largest, size)
        return bytes(size)


class Silent:
    """A client that sends nothing, until its connection is cut."""

    def __init__(self) -> None:
        self.cut = threading.Event()

    def read(self, size: int) -> bytes:
        assert self.cut.wait(20)
        return b""

    def shutdown(self, how: int) -> None:
        assert how == socket.SHUT_RD
        self.cut.set()


def test_a_client_that_sends_nothing_is_cut_off(tmp_path: Path) -> None:
    wsgi, silent = Wsgi(tmp_path, idle_seconds=0.05), Silent()
    more = {"wsgi.input": silent, "gunicorn.socket": silent, "CONTENT_LENGTH": "10"}
    assert wsgi.ask("POST", PATH, b"", CSV, **more).code == "IMPORT_TOO_SLOW"
    assert silent.cut.is_set()
    wsgi.app.close()


def test_an_exception_of_the_application_reaches_its_thread(tmp_path: Path) -> None:
    def fails(*_: Any) -> Any:
        raise ZeroDivisionError

    for option in ("caller", "supplier", "may"):
        (tmp_path / option).mkdir()
        wsgi = Wsgi(tmp_path / option, **{option: fails})
        with pytest.raises(ZeroDivisionError):
            wsgi.ask("POST", PATH, csv_of(1), CSV)
        wsgi.app.close()


def test_an_unreachable_store_is_reported_and_retried(tmp_path: Path) -> None:
    engine = AsyncEngine.connect(f"sqlite:///{tmp_path}/later.db")
    stock = Imports(engine, operation="stock.import")
    stock.row(_nothing)
    app = ImportsOverWsgi(stock, path="/imports-of/{supplier}", supplier="path:supplier", may=may, caller=caller_of)
    environ = wsgi_environ("POST", "/imports-of/ACME", "", [("Content-Type", "text/csv")], csv_of(1), None)
    assert wsgi_call(app, environ).status in (500, 503)
    with pytest.raises(Exception, match="migrate"):
        app.open()
    store = Engine.connect(f"sqlite:///{tmp_path}/later.db")
    store.migrate()
    store.close()
    again = {**environ, "wsgi.input": io.BytesIO(csv_of(1)), "CONTENT_LENGTH": str(len(csv_of(1)))}
    assert wsgi_call(app, again).status == 202
    app.close()
    app.close()


async def _nothing(row: Row) -> None:
    return None


def test_a_request_at_the_end_of_the_loop_is_answered(wsgi: Wsgi) -> None:
    assert wsgi.ask("POST", PATH, csv_of(1), CSV).status == 202
    wsgi.app.close()
    assert wsgi.ask("POST", PATH, csv_of(1), CSV).status == 200  # on its own loop


def test_a_coroutine_is_no_permission(tmp_path: Path) -> None:
    async def late(about: Any, supplier: str) -> bool:
        return False

    wsgi = Wsgi(tmp_path, may=lambda about, supplier: late(about, supplier))
    with pytest.raises(TypeError, match="returned a coroutine"):
        wsgi.ask("POST", PATH, csv_of(1), CSV)
    assert wsgi.count_rows() == (0, 0)
    wsgi.app.close()


def test_invalid_arguments_are_refused(wsgi: Wsgi) -> None:
    async def late(*_: Any) -> bool:
        return True

    given: dict[str, Any] = {"path": "/x/{supplier}", "supplier": "path:supplier", "may": may, "caller": caller_of}
    for wrong, text in (
        ({"caller": None}, "caller is called"),
        ({"may": late}, "may is called"),
        ({"path": "x"}, "path must be"),
        ({"path": "/x/{supplier:path}"}, "path must be"),
        ({"path": {"other": "/x"}}, "path has none"),
        ({"supplier": "x"}, "supplier must be"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            ImportsOverWsgi(wsgi.imports, **{**given, **wrong})
    with pytest.raises(ConfigurationError, match="takes Imports"):
        ImportsOverWsgi([], **given)


def test_flasks_before_request_decides_first(tmp_path: Path) -> None:
    home = sqlite_home(str(tmp_path / "flask.db"))
    app = Flask("imports")
    semel = Semel(app, Engine(home.backend("sqlite")), caller=lambda: g.user)
    stock = Imports(AsyncEngine(home.backend("sqlite-async")), operation="stock.import")
    stock.row(_nothing)
    served = semel.imports(
        app,
        stock,
        path="/suppliers/{supplier}/imports",
        supplier=lambda environ: environ["PATH_INFO"].split("/")[2],
        may=lambda environ, supplier: g.user == "alice",
    )

    @app.before_request
    def authenticate() -> Any:
        from flask import request

        request.form  # noqa: B018 -- as a check of CSRF does, which leaves the bytes
        g.user = request.headers.get("X-User")
        return ("who?", 401) if g.user is None else None

    client = app.test_client()
    for data in (csv_of(1), {"file": (io.BytesIO(csv_of(2)), "a.csv", "text/csv")}):
        sent: dict[str, Any] = {"data": data, "headers": {"X-User": "alice"}}
        if isinstance(data, bytes):
            sent["content_type"] = "text/csv"
        assert client.post(PATH, **sent).status_code == 202
        assert client.post(PATH, data=csv_of(1), headers={**CSV, "X-User": "bob"}).status_code == 403
        assert client.post(PATH, data=csv_of(1), headers=CSV).data == b"who?"
        assert client.get("/imports?key=ACME:", headers={"X-User": "alice"}).status_code == 200
    served.close()
    given: dict[str, Any] = {"supplier": "path:supplier", "may": may}
    with pytest.raises(ConfigurationError, match="in one call"):
        semel.imports(app, stock, path="/other/{supplier}", **given)


def test_several_imports_share_the_query_paths(tmp_path: Path) -> None:
    home = sqlite_home(str(tmp_path / "two.db"))
    engine = AsyncEngine(home.backend("sqlite-async"))
    both = [Imports(engine, operation=name) for name in ("stock", "prices")]
    for each in both:
        each.row(_nothing)
    path = {each.operation: f"/{each.operation}/{{supplier}}" for each in both}
    app = ImportsOverWsgi(both, path=path, supplier="path:supplier", may=may, caller=caller_of)
    for each in both:
        headers = [("Content-Type", "text/csv"), ("Content-Length", str(len(csv_of(1))))]
        environ = wsgi_environ("POST", f"/{each.operation}/ACME", "", headers, csv_of(1), None)
        made = wsgi_call(app, environ)
        assert made.status == 202
        assert wsgi_call(app, wsgi_environ("GET", made.header("location") or "", "", [], b"", None)).status == 200
    app.close()


# --- a real server --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("gunicorn")
    sqlite_home(str(folder / "shop.db"))
    with serving(folder, *GUNICORN, "tests.imports.served:make_app()") as made:
        yield made


def test_gunicorn_takes_files_of_any_form(server: Served) -> None:
    numbers = range(6000)
    body = csv_of(*numbers)

    def send(how: Any) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        try:
            headers = {**CSV, "Authorization": "alice"}
            connection.request("POST", PATH, how(), headers)
            got = connection.getresponse()
            return got.status, json.loads(got.read())
        finally:
            connection.close()

    def in_pieces() -> Iterator[bytes]:
        for at in range(0, len(body), 1000):
            yield body[at : at + 1000]

    status, job = send(in_pieces)  # chunked
    assert status == 202
    assert {send(lambda: body)[0] for _ in range(6)} == {200}  # at either worker
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as gone:
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: alice\r\nContent-Type: text/csv\r\n"
        gone.sendall(f"{head}Content-Length: 900000\r\n\r\n".encode() + body[:5000])
        gone.shutdown(socket.SHUT_WR)
        assert gone.recv(12) == b"HTTP/1.1 400"

    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as broken:
        broken.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\nzz\r\nabc".encode())
        assert broken.recv(12) == b"HTTP/1.1 400"

    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    ends = time.monotonic() + 60
    state = "QUEUED"
    while state in ("QUEUED", "RUNNING") and time.monotonic() < ends:
        connection.request("GET", f"/imports/{job['id']}", headers={"Authorization": "alice"})
        state = json.loads(connection.getresponse().read())["state"]
    connection.close()
    assert state == "DONE"
    assert len(server.effects()) == len(numbers)
