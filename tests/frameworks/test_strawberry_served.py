"""Strawberry behind a real server: kills around the commit of an ATOMIC field, and files among its arguments."""

from __future__ import annotations

import http.client
import io
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import flask
import pytest
import strawberry
from strawberry.file_uploads import Upload, UploadDefinition
from strawberry.flask.views import GraphQLView
from strawberry.schema.config import StrawberryConfig
from werkzeug.datastructures import FileStorage

from semel import AsyncEngine, Engine
from semel.functions import Codec
from semel.integrations.strawberry import Idempotent, single_caller
from tests.frameworks.served import Served, serving

COMMAND: Final = ("uvicorn", "tests.frameworks.strawberry_shop:app", "--port", "{port}", "--log-level", "warning")
WRITE: Final = "mutation ($what: String!, $do: String!) { write(what: $what, do: $do) }"
ATTACH: Final = (
    "mutation ($key: String!, $files: [Upload!]!, $do: String!) { attach(key: $key, files: $files, do: $do) }"
)
REUSED: Final = "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with closing(Engine.connect(f"sqlite:///{tmp_path}/shop.db")) as engine:
        engine.migrate()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        db.execute("CREATE TABLE effect (what TEXT)")
    return tmp_path


def serve_story(folder: Path, story: Callable[[Served], None]) -> None:
    with serving(folder, *COMMAND) as server:
        story(server)


def die(folder: Path, story: Callable[[Served], None]) -> None:
    (folder / "to-die").touch()
    serve_story(folder, story)
    assert not (folder / "to-die").exists()


def form_of(operations: Any, files: list[tuple[str, str, bytes]]) -> tuple[bytes, str]:
    """A form as the GraphQL multipart request specification has it."""
    places = {str(n): [f"variables.files.{n}"] for n in range(len(files))}
    plain = [("operations", operations), ("map", places)]
    parts: list[tuple[str, str | None, str | None, bytes]]
    parts = [(name, None, None, json.dumps(value).encode()) for name, value in plain]
    parts += [(str(n), name, kind, content) for n, (name, kind, content) in enumerate(files)]
    body = b""
    for field, name, kind, content in parts:
        file = "" if name is None else f'; filename="{name}"\r\nContent-Type: {kind}'
        body += f'--b\r\nContent-Disposition: form-data; name="{field}"{file}\r\n\r\n'.encode() + content + b"\r\n"
    return body + b"--b--\r\n", "multipart/form-data; boundary=b"


def attach(server: Served, *files: tuple[str, str, bytes], do: str = "") -> Any:
    variables = {"key": "a", "files": [None] * len(files), "do": do}
    body, kind = form_of({"query": ATTACH, "variables": variables}, list(files))
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as connection:
        connection.request("POST", "/graphql/", body, {"Content-Type": kind, "Authorization": "alice"})
        return json.loads(connection.getresponse().read())


def write(server: Served, do: str = "", path: str = "/graphql/", what: str = "w") -> Any:
    return server.ask(path, {"query": WRITE, "variables": {"what": what, "do": do}}, key="k")


def test_a_kill_before_the_commit_of_an_atomic_field_undoes_it(folder: Path) -> None:
    die(folder, lambda server: _is_cut(write(server, "kill").status))

    def again(server: Served) -> None:
        assert server.effects() == []
        for _ in range(2):
            assert write(server, "kill").json == {"data": {"write": "w"}}
        assert server.effects() == ["w"]
        [error] = write(server, what="other").json["errors"]
        assert error["extensions"]["code"] == REUSED

    serve_story(folder, again)


def _is_cut(status: int) -> None:
    assert status == 0


def test_a_kill_after_the_commit_of_an_atomic_field_loses_only_the_answer(folder: Path) -> None:
    die(folder, lambda server: _is_cut(write(server, path="/graphql/?die=after").status))

    def again(server: Served) -> None:
        assert server.effects() == ["w"]
        assert write(server).json == {"data": {"write": "w"}}
        assert server.effects() == ["w"]

    serve_story(folder, again)


def test_files_count_by_their_bytes_also_after_a_kill(folder: Path) -> None:
    long = bytes(range(256)) * 8192  # 2 MiB: the form parser keeps it on disk
    one, two = ("a.txt", "text/plain", b"abc"), ("b.bin", "application/octet-stream", long)

    def dies(server: Served) -> None:
        with pytest.raises((OSError, http.client.HTTPException)):
            attach(server, one, two, do="kill")

    die(folder, dies)

    def again(server: Served) -> None:
        assert server.effects() == []
        first = attach(server, one, two, do="kill")
        assert first == {"data": {"attach": [3, len(long)]}}
        renamed = ("other.csv", "text/csv", b"abc")
        assert attach(server, renamed, two, do="kill") == first  # its name and media type do not count
        for files in ([("a.txt", "text/plain", b"abd"), two], [two, one], [one], [one, two, one]):
            [error] = attach(server, *files, do="kill")["errors"]
            assert error["extensions"]["code"] == REUSED
        changed = ("b.bin", "application/octet-stream", long[:-1] + b"x")
        [error] = attach(server, one, changed, do="kill")["errors"]
        assert error["extensions"]["code"] == REUSED
        assert server.effects() == ["3 bytes", f"{len(long)} bytes"]

    serve_story(folder, again)


@strawberry.type
class Query:
    version: int = 1


@strawberry.input
class Letter:
    text: str
    scans: list[Upload]
    cover: strawberry.Maybe[Upload]


def schema_on(engine: Engine | AsyncEngine, seen: list[Any], **options: Any) -> strawberry.Schema:
    @strawberry.type
    class Mutation:
        @strawberry.mutation(extensions=[Idempotent(engine, "send", caller=single_caller, key="key", **options)])
        def send(self, key: str, letter: Letter) -> int:
            seen.append([scan.read() for scan in letter.scans])  # type: ignore[attr-defined]
            return len(seen)

    return strawberry.Schema(Query, Mutation, config=StrawberryConfig(scalar_map={Upload: UploadDefinition}))


SEND: Final = "mutation ($key: String!, $letter: Letter!) { send(key: $key, letter: $letter) }"


def test_files_inside_inputs_count_and_keep_their_position() -> None:
    seen: list[Any] = []
    with closing(Engine.connect("memory://")) as engine:
        engine.open()
        schema = schema_on(engine, seen)

        def send(*scans: bytes, cover: bytes | None = None) -> Any:
            files = [FileStorage(io.BytesIO(scan), "a.txt") for scan in scans]
            letter = {"text": "hello", "scans": files} | ({} if cover is None else {"cover": io.BytesIO(cover)})
            result = schema.execute_sync(SEND, {"key": "k", "letter": letter})
            return result.data or [(error.extensions or {})["code"] for error in result.errors or ()]

        for _ in range(2):
            assert send(b"one", b"two", cover=b"c") == {"send": 1}
        for other in (send(b"one", b"two"), send(b"one", b"two", cover=b"d"), send(b"onetwo", cover=b"c")):
            assert other == [REUSED]
    assert seen == [[b"one", b"two"]]


def test_a_codec_of_the_application_comes_first() -> None:
    seen: list[Any] = []
    with closing(Engine.connect("memory://")) as engine:
        engine.open()
        named = Codec(FileStorage, encode=lambda file: file.filename, decode=lambda form: form)
        schema = schema_on(engine, seen, codecs=[named])
        for content in (b"one", b"two"):
            letter = {"text": "hello", "scans": [FileStorage(io.BytesIO(content), "a.txt")]}
            assert schema.execute_sync(SEND, {"key": "k", "letter": letter}).data == {"send": 1}
    assert seen == [[b"one"]]


def test_an_upload_through_flask_counts_as_well() -> None:
    seen: list[Any] = []
    with closing(Engine.connect("memory://")) as engine:
        engine.open()
        app = flask.Flask("letters")
        view = GraphQLView.as_view("graphql", schema=schema_on(engine, seen), multipart_uploads_enabled=True)
        app.add_url_rule("/graphql", view_func=view)

        def send(content: bytes) -> Any:
            operations = {"query": SEND, "variables": {"key": "k", "letter": {"text": "x", "scans": [None]}}}
            form = {
                "operations": json.dumps(operations),
                "map": json.dumps({"0": ["variables.letter.scans.0"]}),
                "0": (io.BytesIO(content), "a.txt"),
            }
            answer: Any = app.test_client().post("/graphql", data=form).get_json()
            return answer["data"] or answer["errors"][0]["extensions"]["code"]

        assert (send(b"one"), send(b"one"), send(b"two")) == ({"send": 1}, {"send": 1}, REUSED)
    assert seen == [[b"one"]]
