"""Flask: claims inside the view, answers captured around the application, Flask-SQLAlchemy's session in the unit."""

from __future__ import annotations

import gc
import io
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from flask import Flask, Response, g
from flask.views import MethodView
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from werkzeug.exceptions import HTTPException, NotFound
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

from semel import AsyncEngine, Engine, Policy
from semel.check.answers import CheckAnswer, answers
from semel.check.discovery import CheckedOperation, discover
from semel.errors import ConfigurationError, PolicyError
from semel.http.caller import Caller, from_environ, single_caller
from semel.http.exchange import AnswerTooLarge, IncompleteAnswer
from semel.http.problems import Problems
from semel.http.wsgi.route import RouteCall
from semel.integrations.flask import Semel
from tests.frameworks import flask_shop
from tests.servers.mariadb import mariadb
from tests.servers.postgres import postgres

COMMANDS = ("/atomic", "/external", "/idempotent", "/orders")


class Shop:
    """The shop on one database, and a client of it. ``ask`` answers as a server would where the shop raised."""

    def __init__(self, uri: str, store: str, folder: Path) -> None:
        self.engine = Engine.connect(store)
        self.engine.migrate()
        self.app = flask_shop.make_app(uri, self.engine, f"sqlite:///{folder}/other.db")
        self.key = uuid.uuid4().hex

    def ask(
        self, path: str, body: Any = None, *, caller: str | None = "alice", key: str | None = "", **more: Any
    ) -> Any:
        headers = dict(more.pop("headers", {}))
        if caller is not None:
            headers["Authorization"] = f"Bearer {caller}"
        if key is not None:
            headers["Idempotency-Key"] = key or self.key
        sent = {"data": body} if isinstance(body, (bytes, dict)) and more.pop("form", False) else {"json": body or {}}
        method = more.pop("method", "POST")
        return self.app.test_client().open(path, method=method, headers=headers, buffered=True, **sent, **more)

    def twice(self, path: str, body: Any = None, **more: Any) -> tuple[Any, Any]:
        """Ask, and ask again: one effect, one answer."""
        first, second = self.ask(path, body, **more), self.ask(path, body, **more)
        assert "Idempotency-Replayed" not in first.headers
        assert second.headers.get("Idempotency-Replayed") == "true", (first.status, second.status, second.data)
        assert (second.status_code, second.data) == (first.status_code, first.data)
        return first, second

    def effects(self) -> list[str]:
        client = self.app.test_client()
        data = client.get("/effects").data
        found: list[str] = self.app.json.loads(data.strip(b"<>"))
        return found

    def state(self) -> str | None:
        answer = self.ask(f"/operations?key={self.key}", method="GET", key=None)
        return None if answer.status_code == 404 else str(self.app.json.loads(answer.data.strip(b"<>"))["state"])


def sqlite_shop(folder: Path) -> Shop:
    file = f"sqlite:///{folder}/shop.db"
    return Shop(file, file, folder)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = sqlite_shop(tmp_path)
    flask_shop.OUTER.clear()
    yield made
    end(made)


def migrate(url: str) -> Engine:
    engine = Engine.connect(url)
    engine.migrate()
    return engine


def end(made: Shop) -> None:
    with made.app.app_context():
        for each in flask_shop.db.engines.values():
            each.dispose()
    made.engine.close()


# --- the contract -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", COMMANDS)
def test_a_retry_gets_the_first_answer(shop: Shop, path: str) -> None:
    first, second = shop.twice(path, {"what": "a"})
    assert first.status_code == 201
    assert first.headers["X-Marked"] == "yes"
    for answer in (first, second):
        assert answer.headers["Link"].startswith("</operations/")
        assert int(answer.headers["Idempotency-Key-Lifetime"]) > 0
    assert shop.ask(path, {"what": "b"}).status_code == 422
    assert shop.ask(f"{path}?a=1", {"what": "a"}).status_code == 422
    assert shop.effects() == ["a"]
    assert shop.state() == "SUCCEEDED"


def test_a_key_is_required_unless_it_is_optional(shop: Shop) -> None:
    assert shop.ask("/atomic", key=None).json["code"] == "MISSING_IDEMPOTENCY_KEY"
    assert shop.ask("/atomic", key="a b").status_code == 400
    assert shop.ask("/idempotent", {"what": "u"}, key=None).data == b'<{"key":null,"n":1,"user":"alice"}\n>'
    assert shop.effects() == ["u"]


@pytest.mark.parametrize("path", ["/atomic", "/external"])
def test_a_refusal_before_the_view_leaves_no_record(shop: Shop, path: str) -> None:
    assert shop.ask(path, {"what": "a"}, caller=None).status_code == 401
    assert shop.ask(path, {"what": "b"}, headers={"X-Csrf": "bad"}).status_code == 400
    assert shop.ask("/numbered/none", {"what": "b"}).status_code == 404
    assert shop.state() is None
    assert shop.ask(path, {"what": "c"}).status_code == 201
    assert shop.effects() == ["c"]


# --- how views end ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("do", "statuses", "state", "effects"),
    [
        ("no commit", [201, 201], "SUCCEEDED", 1),
        ("rollback", [201, 201], "SUCCEEDED", 1),
        ("raise", [500, 500], None, 0),
        ("nothing", [500, 500], None, 0),
        ("none", [500, 500], None, 0),
        ("value", [302, 302], None, 0),  # a page made of an exception
        ("abort away", [303, 303], None, 0),  # raised: its rows are undone
        ("taken", [409, 409], "FAILED_REPLAYABLE", 0),
        ("refuse", [409, 409], "FAILED_REPLAYABLE", 0),
        ("busy", [429, 429], None, 0),
        ("elsewhere", [500, 500], None, 0),
        ("stream", [201, 201], "SUCCEEDED", 1),
        ("generator", [201, 201], "SUCCEEDED", 1),
        ("status", [409, 409], "FAILED_REPLAYABLE", 0),
        ("file", [200, 200], "SUCCEEDED", 1),
        ("shared", [201, 201], "SUCCEEDED", 1),
        ("redirect", [303, 303], "SUCCEEDED", 1),
    ],
)
def test_an_atomic_view_commits_or_rolls_back_by_its_answer(
    shop: Shop, do: str, statuses: list[int], state: str | None, effects: int
) -> None:
    assert [shop.ask("/atomic", {"do": do}).status_code for _ in range(2)] == statuses
    assert (shop.state(), len(shop.effects())) == (state, effects)


@pytest.mark.parametrize(
    ("do", "statuses", "state"),
    [
        ("raise", [500, 409], "UNKNOWN"),
        ("none", [500, 409], "UNKNOWN"),
        ("value", [302, 409], "UNKNOWN"),
        ("abort away", [303, 303], "SUCCEEDED"),
        ("abort made", [201, 201], "SUCCEEDED"),
        ("nothing", [500, 500], "FAILED_NOT_REPLAYABLE"),
        ("refuse", [409, 409], "FAILED_REPLAYABLE"),
        ("file", [200, 200], "SUCCEEDED"),
        ("long", [201, 409], "SUCCEEDED"),
    ],
)
def test_an_external_view_settles_by_its_answer(shop: Shop, do: str, statuses: list[int], state: str) -> None:
    assert [shop.ask("/external", {"do": do}).status_code for _ in range(2)] == statuses
    assert shop.state() == state


def test_an_exception_after_the_view_is_not_a_success(shop: Shop) -> None:
    assert shop.ask("/hidden", {"do": "fail above"}).status_code == 200  # an error handler finds it fine
    assert (shop.ask("/hidden", {"do": "fail above"}).status_code, shop.state()) == (409, "UNKNOWN")
    shop.key = "another"
    assert shop.ask("/external", headers={"X-Outer": "fail"}).status_code == 500
    assert shop.state() == "UNKNOWN"
    shop.key = "third"
    assert shop.ask("/atomic", {"what": "never"}, headers={"X-Outer": "fail"}).status_code == 500
    assert (shop.state(), "never" in shop.effects()) == (None, False)


def test_a_replay_is_sent_whatever_the_application_makes_of_it(shop: Shop) -> None:
    first = shop.ask("/external")
    replay = shop.ask("/external", headers={"X-Outer": "fail"})
    assert (replay.status_code, replay.data) == (201, first.data)
    assert first.data.count(b"<") == 1  # after_request has been there once


def test_an_exception_that_leaves_the_application_is_settled(shop: Shop) -> None:
    shop.app.config["PROPAGATE_EXCEPTIONS"] = True
    for path, state in (("/atomic", None), ("/external", "UNKNOWN")):
        with pytest.raises(ZeroDivisionError):
            shop.ask(path, {"do": "raise"})
        assert shop.state() == state
    with pytest.raises(RuntimeError, match="after_request fails"):
        shop.ask("/external", {"do": "raise"}, headers={"X-Outer": "fail"})


def test_a_stream_that_breaks_is_not_a_success(shop: Shop) -> None:
    assert shop.ask("/atomic", {"do": "breaks"}).status_code == 500  # it is read inside the view
    assert (shop.state(), shop.effects()) == (None, [])
    with pytest.raises(ZeroDivisionError):
        shop.ask("/external", {"do": "breaks"})
    assert shop.state() == "UNKNOWN"


def test_an_answer_shorter_than_its_length_is_not_a_success(shop: Shop) -> None:
    with pytest.raises(IncompleteAnswer):
        shop.ask("/external", {"do": "cut"})
    assert shop.state() == "UNKNOWN"


def test_an_atomic_answer_that_is_too_long_is_rolled_back(shop: Shop) -> None:
    for _ in range(2):
        with pytest.raises(AnswerTooLarge):  # when the server closes the answer, which says so too
            shop.ask("/atomic", {"do": "long"})
    assert (shop.state(), shop.effects()) == (None, [])


def test_a_shared_response_object_gives_each_request_its_own_answer(shop: Shop) -> None:
    first = shop.ask("/external", {"do": "shared"})
    shop.key = "another"
    second = shop.ask("/external", {"do": "shared"})
    assert first.headers["Link"] != second.headers["Link"]
    assert "Link" not in flask_shop.SHARED.headers
    flask_shop.SHARED.data = b"shared"


def test_a_decorator_above_may_make_the_response(shop: Shop) -> None:
    assert shop.twice("/dumped", {"what": "d"})[0].data == b'<{"what":"d"}\n>'
    assert shop.effects() == ["d"]


@pytest.mark.parametrize("do", ["", "stream"])  # an exception in Flask is a cycle of Flask's own
def test_no_request_leaves_a_capture_to_the_garbage_collector(shop: Shop, do: str) -> None:
    shop.ask("/external", {"do": do})
    gc.collect()
    gc.disable()
    others = {id(each): each for each in gc.get_objects() if isinstance(each, RouteCall)}  # of another test, held there
    try:
        for path in ("/external", "/atomic", "/plain"):
            shop.key = f"{path[1:]}-again"
            for _ in range(2):
                shop.ask(path, {"do": do})
        assert [each for each in gc.get_objects() if isinstance(each, RouteCall) and id(each) not in others] == []
    finally:
        gc.enable()


def test_an_answer_is_stored_although_the_client_disconnects(shop: Shop) -> None:
    sent: list[str] = []
    body = b'{"do": "long"}'
    environ = {
        **{"REQUEST_METHOD": "POST", "PATH_INFO": "/external", "SERVER_NAME": "shop", "SERVER_PORT": "80"},
        **{"HTTP_IDEMPOTENCY_KEY": shop.key, "HTTP_AUTHORIZATION": "Bearer alice", "wsgi.url_scheme": "http"},
        **{"CONTENT_TYPE": "application/json", "CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body)},
    }
    serve: Any = shop.app
    pieces = serve(environ, lambda status, headers, *rest: sent.append(status))
    assert next(iter(pieces))
    pieces.close()
    assert (sent, shop.state(), len(shop.effects())) == (["201 CREATED"], "SUCCEEDED", 1)
    cut = {**environ, "CONTENT_LENGTH": "500", "wsgi.input": io.BytesIO(body), "HTTP_IDEMPOTENCY_KEY": "cut"}
    assert b"".join(serve(cut, lambda status, headers, *rest: sent.append(status)))
    assert (sent[-1][:3], len(shop.effects())) == ("400", 1)


# --- what is asked for ------------------------------------------------------------------------------------


def test_the_path_counts_if_several_rules_lead_to_the_view(shop: Shop) -> None:
    assert shop.ask("/approve").status_code == 201
    assert shop.ask("/reject").status_code == 422
    shop.key = "one"
    assert [shop.ask(path).data for path in ("/here", "/there")] == [b'<{"path":"/here"}\n>'] * 2
    shop.key = "things"  # a converter's object has no text of its own
    assert [shop.ask(f"/things/{n}").status_code for n in (1, 1, 2)] == [201, 201, 422]
    shop.key = "greet"  # the language has left the arguments before the view is called
    assert [shop.ask(f"/{each}/greet").status_code for each in ("en", "en", "de")] == [201, 201, 422]
    shop.key = "hidden"
    assert [shop.ask(path).status_code for path in ("/hidden", "/hidden/")] == [201, 201]


def test_no_spelling_runs_a_view_twice(shop: Shop) -> None:
    for method, path in [("POST", "/external"), ("post", "/external"), ("Post", "/external/"), ("POST", "/external/")]:
        assert shop.ask(path, {"what": "s"}, method=method).status_code == 201
    shop.ask("//external", {"what": "s"})
    assert shop.effects() == ["s"]


def test_a_form_with_a_file_is_read_before_and_after_the_claim(shop: Shop) -> None:
    def form(boundary: str, size: int = 600_000) -> dict[str, Any]:
        parts = {'note"': b"n", 'file"; filename="a.txt"': b"x" * size}
        body = b"".join(
            f'--{boundary}\r\nContent-Disposition: form-data; name="{head}\r\n\r\n'.encode() + value + b"\r\n"
            for head, value in parts.items()
        )
        media = f"multipart/form-data; boundary={boundary}"
        return {"body": body + f"--{boundary}--\r\n".encode(), "form": True, "content_type": media}

    assert [shop.ask("/form", **form(boundary)).status_code for boundary in ("one", "another")] == [201, 201]
    assert shop.ask("/form", **form("one", 5)).status_code == 422
    assert shop.effects() == ["n 600000"]


def test_bodies_beyond_the_limit_are_refused(shop: Shop) -> None:
    body = b"x" * 9_000_000
    assert shop.ask("/external", body, form=True).status_code == 413
    assert b"9000000" in shop.ask("/plain", body, form=True, key=None).data
    chunked = {"input_stream": io.BytesIO(b'{"what": "chunked"}'), "environ_overrides": {"wsgi.input_terminated": True}}
    headers = {"Idempotency-Key": shop.key, "Authorization": "Bearer alice", "Content-Type": "application/json"}
    assert shop.app.test_client().post("/external", headers=headers, **chunked).status_code == 201
    assert shop.effects() == ["chunked"]


def test_a_body_that_the_server_withholds_is_not_taken_for_an_empty_one(shop: Shop) -> None:
    """uWSGI hands an application nothing of a body in chunks."""
    headers = {"Idempotency-Key": shop.key, "Authorization": "Bearer alice", "Transfer-Encoding": "chunked"}
    answer = shop.app.test_client().post("/external", headers=headers)
    assert (answer.status_code, answer.headers.get("Semel-Code")) == (400, "IDEMPOTENCY_REQUEST_INVALID")
    assert shop.effects() == []
    assert shop.ask("/external", {"what": "announced"}).status_code == 201


def test_only_methods_that_change_something_are_commands(shop: Shop) -> None:
    assert shop.ask("/orders", method="GET").data == b"<orders>"
    assert shop.ask("/orders", method="OPTIONS").status_code == 200
    assert shop.ask("/external", method="GET").status_code == 405
    assert [shop.ask("/orders", method="DELETE").status_code for _ in range(2)] == [204, 204]


def test_an_async_view_runs(shop: Shop) -> None:
    assert shop.twice("/late", {"what": "l"})[0].status_code == 201


def test_an_async_view_without_asgiref_claims_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "asgiref.sync", None)
    shop.app.config["PROPAGATE_EXCEPTIONS"] = True
    with pytest.raises(RuntimeError, match="'async' extra"):
        shop.ask("/late")
    assert shop.state() is None


# --- the session of an ATOMIC view ------------------------------------------------------------------------


def test_a_session_that_has_read_joins_with_its_objects(shop: Shop) -> None:
    shop.ask("/external", {"what": "a"})
    shop.key = "second"
    assert shop.twice("/atomic", {"what": "b", "do": "stream"}, headers={"X-Reads": "yes"})[0].data == b"<a b >"
    assert shop.effects() == ["a", "b"]


@pytest.mark.parametrize("how", ["add", "flush"])
def test_a_session_that_has_written_before_the_command_is_refused(shop: Shop, how: str) -> None:
    shop.app.config["PROPAGATE_EXCEPTIONS"] = True
    with pytest.raises(ConfigurationError, match="before the command"):
        shop.ask("/atomic", headers={"X-Writes": how})
    assert (shop.state(), shop.effects()) == (None, [])
    assert shop.ask("/atomic").status_code == 201


def test_the_session_is_returned_if_a_context_outlives_the_request(shop: Shop) -> None:
    with shop.app.app_context():
        session = flask_shop.db.session
        assert session.scalars(session.query(flask_shop.Effect).statement).all() == []
        assert shop.ask("/atomic", {"what": "inner"}).status_code == 201
        g.pop("user", None)
        session.add(flask_shop.Effect(what="outer"))
        session.commit()
        session.remove()
    assert shop.effects() == ["inner", "outer"]


def test_flask_sqlalchemy_on_postgresql(tmp_path: Path, tables: Callable[[], tuple[str, str]]) -> None:
    uri, store = tables()
    made = Shop(uri, store, tmp_path)
    try:
        made.twice("/atomic", {"what": "p"}, headers={"X-Reads": "yes"})
        for do, statuses in (("raise", [500, 500]), ("taken", [409, 409]), ("value", [302, 302])):
            made.key = uuid.uuid4().hex
            assert [made.ask("/atomic", {"do": do}).status_code for _ in range(2)] == statuses
        assert made.effects() == ["p"]
    finally:
        end(made)


def test_flask_sqlalchemy_on_mariadb(tmp_path: Path) -> None:
    import pymysql

    server = mariadb()
    name = f"flask_{uuid.uuid4().hex[:12]}"
    with closing(pymysql.connect(host=server.host, port=server.port, user=server.user, autocommit=True)) as admin:
        admin.cursor().execute(f"CREATE DATABASE {name}")
        place = f"{server.user}@{server.host}:{server.port}/{name}"
        made = Shop(f"mysql+pymysql://{place}", f"mysql://{place}", tmp_path)
        try:
            made.twice("/atomic", {"what": "m"}, headers={"X-Reads": "yes"})
            for do, statuses in (("raise", [500, 500]), ("taken", [409, 409]), ("refuse", [409, 409])):
                made.key = uuid.uuid4().hex
                assert [made.ask("/atomic", {"do": do}).status_code for _ in range(2)] == statuses
            assert made.effects() == ["m"]
        finally:
            end(made)
            admin.cursor().execute(f"DROP DATABASE {name}")


@pytest.fixture
def tables() -> Iterator[Callable[[], tuple[str, str]]]:
    """A database of its own on PostgreSQL, by SQLAlchemy's URL and by the store's."""
    import psycopg

    name = f"flask_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        url = f"{postgres().rpartition('/')[0]}/{name}"
        try:
            yield lambda: (url.replace("postgresql:", "postgresql+psycopg:", 1), url)
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_a_session_of_another_database_is_refused_at_the_first_request(tmp_path: Path) -> None:
    app, db = Flask("apart"), SQLAlchemy()
    app.config["SQLALCHEMY_DATABASE_URI"] = f"sqlite:///{tmp_path}/one.db"
    db.init_app(app)
    with migrate(f"sqlite:///{tmp_path}/two.db") as engine:
        semel = Semel(app, engine, caller=single_caller)
        app.post("/")(semel.command("it", effects="atomic")(lambda: "made"))
        with pytest.raises(ConfigurationError, match=r"one\.db is not the store .*two\.db"):
            app.test_client().post("/")


def test_the_applications_own_scoped_session_joins(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/own.db"
    alchemy = sqlalchemy.create_engine(url)
    sessions = scoped_session(sessionmaker(alchemy))
    with migrate(url) as engine:
        app = Flask("own")
        semel = Semel(app, engine, caller=single_caller, session=sessions)
        sessions.execute(sqlalchemy.text("CREATE TABLE effect (n INTEGER)"))
        sessions.commit()

        @app.post("/")
        @semel.command("it", effects="atomic")
        def write() -> tuple[str, int]:
            sessions.execute(sqlalchemy.text("INSERT INTO effect VALUES (1)"))
            return "made", 201

        answers = [app.test_client().post("/", headers={"Idempotency-Key": "k"}) for _ in range(2)]
        assert [each.status_code for each in answers] == [201, 201]
        assert sessions.execute(sqlalchemy.text("SELECT count(*) FROM effect")).scalar() == 1
        sessions.remove()
    alchemy.dispose()


def session_app(uri: str, engine: Engine) -> tuple[Flask, SQLAlchemy, Semel]:
    """An application with a table of texts, and nothing else."""
    app, db = Flask("sessions"), SQLAlchemy()
    app.config |= {"SQLALCHEMY_DATABASE_URI": uri, "PROPAGATE_EXCEPTIONS": False}
    db.init_app(app)
    with app.app_context():
        db.session.execute(text("CREATE TABLE written (what VARCHAR(20))"))
        db.session.commit()
    return app, db, Semel(app, engine, caller=single_caller)


def close_connections(app: Flask, db: SQLAlchemy) -> None:
    """Close the application's connections, none of which is in use any more."""
    with app.app_context():
        db.engine.dispose()


def insert(what: str) -> Any:
    return text("INSERT INTO written VALUES (:what)").bindparams(what=what)


@pytest.mark.parametrize("how", ["removed", "nested"])
def test_a_second_session_cannot_commit_outside_of_the_command(tables: Callable[[], tuple[str, str]], how: str) -> None:
    uri, store = tables()
    with migrate(store) as engine:
        app, db, semel = session_app(uri, engine)

        @app.post("/")
        @semel.command("it", effects="atomic")
        def write() -> Any:
            if how == "removed":
                db.session.remove()
                db.session.execute(insert("escaped"))
                db.session.commit()
            else:
                with app.app_context():
                    db.session.execute(insert("escaped"))
                    db.session.commit()
            return "refused", 409

        client = app.test_client()
        assert [client.post("/", headers={"Idempotency-Key": "k"}).status_code for _ in range(2)] == [500, 500]
        with app.app_context():
            assert db.session.execute(text("SELECT what FROM written")).all() == []
        close_connections(app, db)


def test_a_separate_session_stays_separate(tables: Callable[[], tuple[str, str]]) -> None:
    uri, store = tables()
    with migrate(store) as engine:
        app, db, semel = session_app(uri, engine)

        @app.post("/")
        @semel.command("it", effects="atomic")
        def write() -> Any:
            db.session.execute(insert("rolled back"))
            with Session(db.engine) as audit:
                audit.execute(insert("audit"))
                audit.commit()
            return "refused", 409

        client = app.test_client()
        assert [client.post("/", headers={"Idempotency-Key": "k"}).status_code for _ in range(2)] == [409, 409]
        with app.app_context():
            assert db.session.execute(text("SELECT what FROM written")).scalars().all() == ["audit"]
        close_connections(app, db)


def _core(db: SQLAlchemy) -> None:
    db.session.connection().execute(insert("core"))


def _driver(db: SQLAlchemy) -> None:
    db.session.connection().exec_driver_sql("INSERT INTO written VALUES ('driver')")


def _orm(db: SQLAlchemy) -> None:
    db.session.execute(insert("orm"))


@pytest.mark.parametrize("writes", [_core, _driver, _orm])
def test_rows_that_were_written_before_the_command_are_never_lost(
    tables: Callable[[], tuple[str, str]], writes: Callable[[SQLAlchemy], None]
) -> None:
    uri, store = tables()
    with migrate(store) as engine:
        app, db, semel = session_app(uri, engine)
        before: list[Callable[[SQLAlchemy], None]] = [writes]
        ran: list[int] = []

        @app.before_request
        def early() -> None:
            db.session.execute(text("SELECT 1"))  # what only reads is allowed
            if before:
                before.pop()(db)

        @app.post("/")
        @semel.command("it", effects="atomic")
        def view() -> Any:
            ran.append(1)
            return "made", 201

        client = app.test_client()
        assert [client.post("/", headers={"Idempotency-Key": "k"}).status_code for _ in range(2)] == [500, 201]
        assert ran == [1]
        close_connections(app, db)


def test_a_session_closed_after_a_write_is_usable_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/own.db"
    alchemy = sqlalchemy.create_engine(url)
    sessions = scoped_session(sessionmaker(alchemy))
    with migrate(url) as engine:
        app = Flask("own")
        semel = Semel(app, engine, caller=single_caller, session=sessions)
        sessions.execute(text("CREATE TABLE written (what VARCHAR(20))"))
        sessions.commit()
        app.add_url_rule("/", view_func=semel.command("it", effects="atomic")(lambda: "made"), methods=["POST"])
        client = app.test_client()
        assert client.post("/", headers={"Idempotency-Key": "first"}).status_code == 200
        sessions.execute(insert("given up"))
        sessions().close()  # not sessions.remove(): the thread's next request has the same session
        assert client.post("/", headers={"Idempotency-Key": "second"}).status_code == 200
        sessions.remove()
    alchemy.dispose()


def test_an_http_exception_that_a_view_returns_is_its_answer(tmp_path: Path) -> None:
    """Werkzeug's exceptions are applications too, and Flask calls one that a view returns."""
    url = f"sqlite:///{tmp_path}/shop.db"
    with migrate(url) as engine:
        app, db, semel = session_app(url, engine)

        @app.post("/")
        @semel.command("it", effects="atomic")
        def write() -> Any:
            db.session.execute(insert("gone"))
            return NotFound()

        client = app.test_client()
        answers = [client.post("/", headers={"Idempotency-Key": "k"}) for _ in range(2)]
        assert [each.status_code for each in answers] == [404, 404]
        assert answers[1].headers["Idempotency-Replayed"] == "true"
        with app.app_context():
            assert db.session.execute(text("SELECT what FROM written")).all() == []
        close_connections(app, db)


# --- misuse -----------------------------------------------------------------------------------------------


def app_with(**options: Any) -> tuple[Flask, Semel]:
    app = Flask("small")
    return app, Semel(app, Engine.connect("memory://"), **{"caller": single_caller, **options})


def view() -> str:
    return "made"


def test_wrong_arguments_are_refused_at_once() -> None:
    engine = Engine.connect("memory://")
    with pytest.raises(ConfigurationError, match="who is calling"):
        Semel(Flask("a"), engine)
    with pytest.raises(ConfigurationError, match="must be a function"):
        Semel(Flask("a"), engine, caller="user")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="must be a Flask, not Engine"):
        Semel(engine, caller=single_caller)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="none was given"):
        Semel(Flask("a"), caller=single_caller)
    with pytest.raises(ConfigurationError, match="not AsyncEngine"):
        Semel(Flask("a"), AsyncEngine.connect("memory://"), caller=single_caller)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="did you mean 'wait_seconds_max'"):
        Semel(Flask("a"), engine, caller=single_caller, wait_second_max=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="has a Semel already"):
        Semel(app_with()[0], engine, caller=single_caller)
    with pytest.raises(ConfigurationError, match="may= is for the middlewares"):
        Semel(Flask("a"), engine, caller=single_caller, may=lambda *_: True)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="belongs to an application"):
        Semel(None, engine, caller=single_caller)


def test_a_misplaced_decorator_is_refused_at_once() -> None:
    app, semel = app_with()
    app.add_url_rule("/", view_func=view, methods=["POST"])
    with pytest.raises(ConfigurationError, match="below the route"):
        semel.command("above", effects="external")(view)
    with pytest.raises(ConfigurationError, match="needs a store in the same database"):
        semel.command("atomic", effects="atomic")
    with pytest.raises(PolicyError):
        semel.command("wrong", effect="external")  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="resumable=True"):
        semel.command("resumed", effects="external", resumable=True)

    class Things(MethodView):
        @semel.command("things", effects="external")
        def post(self) -> str:
            return "made"

    for wrong in (Things, Things.as_view("things"), Things.post):
        with pytest.raises(ConfigurationError, match=r"is a class|as_view|declared twice"):
            semel.command(f"wrong {wrong}", effects="external")(wrong)

    async def late() -> str:
        return "made"

    with pytest.raises(ConfigurationError, match="write def"):
        Semel(caller=single_caller).command("late", effects="atomic")(late)
    with pytest.raises(ConfigurationError, match="duplicate operation name"):
        semel.command("things", effects="external")


def test_a_decorator_above_a_blueprints_route_is_refused_at_the_first_request() -> None:
    from flask import Blueprint

    app, semel = app_with()
    blueprint = Blueprint("late", __name__)
    semel.command("above", effects="external")(blueprint.post("/")(lambda: "made"))
    app.register_blueprint(blueprint)
    for path in ("/", "/none"):
        with pytest.raises(ConfigurationError, match="'above' is not protected"):
            app.test_client().get(path)


def test_a_command_reachable_by_get_is_refused_at_the_first_request() -> None:
    app, semel = app_with()
    app.route("/", methods=["GET", "POST"])(semel.command("both", effects="external")(view))
    with pytest.raises(ConfigurationError, match="routed to by GET"):
        app.test_client().get("/")


def test_a_view_outside_of_its_capture_is_refused() -> None:
    app, semel = app_with()
    declared = semel.command("it", effects="external")(view)
    with (
        app.test_request_context("/", method="POST"),
        pytest.raises(ConfigurationError, match="of its capture"),
    ):
        declared()
    with pytest.raises(ConfigurationError, match="no such view runs"):
        semel.permit  # noqa: B018
    stranger = Flask("stranger")
    with stranger.test_request_context("/", method="POST"), pytest.raises(ConfigurationError, match="init_app"):
        declared()
    with app.test_request_context("/", method="GET"), pytest.raises(HTTPException):
        declared()


def test_a_view_that_calls_another_command_is_refused() -> None:
    app, semel = app_with()
    inner = semel.command("inner", effects="external")(view)
    app.post("/")(semel.command("outer", effects="external")(lambda: inner()))
    app.config["PROPAGATE_EXCEPTIONS"] = True
    with pytest.raises(ConfigurationError, match="by another operation's handler"):
        app.test_client().post("/", headers={"Idempotency-Key": "k"})


@pytest.mark.parametrize(
    ("caller", "status"),
    [
        (lambda: 7, 201),
        (lambda: uuid.UUID(int=7), 201),
        (lambda: Caller("acme", "alice"), 201),
        (from_environ("REMOTE_ADDR"), 201),
        (lambda: None, 401),
        (lambda: "", 401),
        (lambda: True, 500),
        (lambda: object(), 500),
    ],
)
def test_callers_are_texts_numbers_or_none(caller: Any, status: int) -> None:
    app, semel = app_with(caller=caller)
    app.post("/", endpoint="it")(semel.command("it", effects="external")(lambda: ("made", 201)))
    assert app.test_client().post("/", headers={"Idempotency-Key": "k"}).status_code == status


def test_one_semel_protects_the_applications_of_a_factory() -> None:
    semel = Semel(caller=single_caller)
    declared = semel.command("it", Policy(effects="external"))(lambda: Response("made", 201))
    for _ in range(2):
        app = Flask("made")
        app.post("/")(declared)
        semel.init_app(app, Engine.connect("memory://"))  # which is never opened
        answers = [app.test_client().post("/", headers={"Idempotency-Key": "k"}) for _ in range(2)]
        assert [each.headers.get("Idempotency-Replayed") for each in answers] == [None, "true"]


# --- around it --------------------------------------------------------------------------------------------


def test_the_command_line_works_on_the_applications_store(shop: Shop, capfd: pytest.CaptureFixture[str]) -> None:
    assert shop.ask("/external").status_code == 201
    runner = shop.app.test_cli_runner()
    result = runner.invoke(args=["semel", "explain", shop.key])
    assert (result.exit_code, "SUCCEEDED" in result.output + capfd.readouterr().out) == (0, True)
    assert runner.invoke(args=["semel", "--help"]).exit_code == 0


def test_semel_check_finds_the_operations(shop: Shop) -> None:
    found = discover(shop.app)
    assert {"atomic", "orders.create", "orders.clear", "decide"} <= {each.name for each in found.operations}
    assert found.mistakes == ()
    assert found.unprotected == ("POST /hidden", "POST /plain")  # a decorator hides the first one
    by_name = {each.name: each for each in found.operations}
    assert by_name["orders.clear"].methods == ("DELETE",)
    assert by_name["numbered"].path == "/numbered/{number}"
    assert answer_to(by_name["atomic"], "cleanup").level == "open"  # no reaper runs in a Flask process


def answer_to(operation: CheckedOperation, question: str) -> CheckAnswer:
    return next(each for each in answers(operation) if each.question == question)


def test_links_lead_to_where_the_status_is_served() -> None:
    def link_of(*, at: str = "", problems: Problems | None = None, **more: Any) -> int:
        app, engine = Flask("linked"), Engine.connect("memory://?persistence=none")
        semel = Semel(app, engine, caller=single_caller, problems=problems or Problems(), **more)
        app.post("/orders")(semel.command("orders.create")(lambda: "ordered"))
        outer = DispatcherMiddleware(Flask("outer"), {at: app.wsgi_app}) if at else app.wsgi_app
        client = Client(outer)
        link = client.post(f"{at}/orders", headers={"Idempotency-Key": "key-1"}).headers["Link"]
        return client.get(link[1 : link.index(">")]).status_code

    elsewhere = Problems(operations_path="/eu/status/{id}")
    assert link_of() == 200
    assert link_of(problems=elsewhere) == 200
    assert link_of(problems=elsewhere, operations_path="/status", at="/eu") == 200
    assert link_of(operations_path=None) == 404
    with pytest.raises(ConfigurationError, match=r"Problems\(operations_path='/ops/\{id\}'\)"):
        link_of(operations_path="/ops")
