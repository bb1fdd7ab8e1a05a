"""Lists and imports of Litestar and Quart behind their servers: authentication first, kills, clients that go away."""

from __future__ import annotations

import base64
import functools
import http.client
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from semel import Engine
from tests.frameworks.served import Served, serving
from tests.service.served import await_true

SERVERS = {
    "litestar": ("uvicorn", "tests.frameworks.litestar_shop:app", "--port", "{port}", "--log-level", "warning"),
    "quart": ("hypercorn", "tests.frameworks.quart_shop:app", "--bind", "127.0.0.1:{port}"),
    "quart on uvicorn": ("uvicorn", "tests.frameworks.quart_shop:app", "--port", "{port}", "--log-level", "warning"),
}
UPLOAD = "/suppliers/ACME/imports"
WHAT = [f"w-{n}" for n in range(6)]


class Shop:
    """One framework's shop, served as often as it dies."""

    def __init__(self, folder: Path, framework: str) -> None:
        self.folder = folder
        self._command = SERVERS[framework]
        with closing(Engine.connect(f"sqlite:///{folder}/shop.db")) as engine:
            engine.migrate()
        with closing(sqlite3.connect(folder / "shop.db")) as db:
            db.execute("CREATE TABLE effect (what TEXT)")

    def serve(self, story: Callable[[Served], Any], *, loses_its_worker: bool = False) -> Any:
        with serving(self.folder, *self._command, loses_its_worker=loses_its_worker) as server:
            return story(server)

    def die(self, story: Callable[[Served], Any]) -> None:
        """Serve until the worker dies of what the story asks for."""
        (self.folder / "to-die").touch()
        self.serve(story, loses_its_worker=True)
        assert not (self.folder / "to-die").exists()

    def count(self, table: str) -> int:
        with closing(sqlite3.connect(self.folder / "shop.db")) as db:
            return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


@pytest.fixture(params=SERVERS)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    return Shop(tmp_path, request.param)


@pytest.fixture(params=["litestar", "quart"])
def shop_to_die(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    return Shop(tmp_path, request.param)


def items(kill: int | None = None) -> list[dict[str, str]]:
    return [{"what": what, "do": "kill" if n == kill else ""} for n, what in enumerate(WHAT)]


def csv(kill: int | None = None) -> bytes:
    lines = [f"{what},{'kill' if n == kill else ''}" for n, what in enumerate(WHAT)]
    return "\n".join(["what,do", *lines, ""]).encode()


def upload(
    server: Served, body: Any, path: str = UPLOAD, caller: str = "alice", **more: str
) -> tuple[int, dict[str, Any]]:
    """Send a file, as a chunked body where it is an iterator."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        headers = {"Authorization": f"Bearer {caller}", "Content-Type": "text/csv", **more}
        connection.request("POST", path, body, headers)
        got = connection.getresponse()
        kept = got.read()
        return got.status, json.loads(kept) if got.getheader("content-type", "").startswith("application/") else {}


def over(server: Served, job: str) -> dict[str, Any]:
    def is_over() -> bool:
        return server.ask(f"/imports/{job}", method="GET").json["state"] not in ("QUEUED", "RUNNING")

    await_true(is_over, "the import to end")
    found: dict[str, Any] = server.ask(f"/imports/{job}", method="GET").json
    return found


def test_a_list_killed_in_or_after_a_chunk_has_each_effect_once(shop_to_die: Shop) -> None:
    shop = shop_to_die

    def send(server: Served, kill: int) -> None:
        assert server.ask("/cases/7", items(kill=kill), key=f"dies-{kill}").status == 0

    for kill in (3, 4):  # in the second chunk, at its end; in the third
        shop.die(functools.partial(send, kill=kill))

    def go_on(server: Served) -> None:
        for kill in (3, 4):
            answer = server.until_final("/cases/7", items(kill=kill), f"dies-{kill}")
            assert (answer.status, answer.json["succeeded"]) == (200, 6)
            again = server.ask("/cases/7", items(kill=kill), key=f"dies-{kill}")
            assert (again.body, again.replayed) == (answer.body, True)
        assert sorted(server.effects()) == sorted(WHAT * 2)

    shop.serve(go_on)
    shop.die(lambda server: server.ask("/cases/7?die=after", items(), key="after"))

    def replay(server: Served) -> None:
        answer = server.until_final("/cases/7?die=after", items(), "after")
        assert (answer.status, answer.replayed) == (200, True)
        assert len(server.effects()) == 18

    shop.serve(replay)


def test_a_killed_import_books_each_row_once(shop_to_die: Shop) -> None:
    shop = shop_to_die

    def send(server: Served) -> None:
        status, _ = upload(server, csv(kill=3))
        assert status in (202, 0)
        server.process.wait(30)

    shop.die(send)

    def go_on(server: Served) -> None:
        status, job = upload(server, csv(kill=3))
        assert status == 200
        done = over(server, job["id"])
        assert (done["state"], done["counts"]["booked"], sorted(server.effects())) == ("DONE", 6, WHAT)

    shop.serve(go_on)


def test_a_refused_caller_leaves_no_record(shop: Shop) -> None:
    def story(server: Served) -> None:
        for _ in range(2):
            assert server.ask("/cases/7", items(), key="k", caller="mallory").status == 401
            assert upload(server, csv(), caller="mallory")[0] == 401
        assert server.ask("/imports?key=ACME:aa", method="GET", caller="mallory").status == 401
        assert upload(server, csv(), "/suppliers/BETA/imports")[0] == 403
        assert server.effects() == []
        assert (shop.count("semel_record"), shop.count("semel_import")) == (0, 0)
        assert server.ask("/cases/7", items(), key="k").status == 200  # mallory's key is not alice's
        assert server.ask("/cases/8", items(), key="k").status == 422
        assert server.ask("/operations?key=k", method="GET").json["progress"]["total"] == 6

    shop.serve(story)


def leave_midway(server: Served, path: str, start: bytes, kind: str) -> None:
    """Announce more than is sent, and go away."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.putrequest("POST", path)
    for name, value in (
        ("Authorization", "Bearer alice"),
        ("Content-Type", kind),
        ("Content-Length", "1000000"),
        ("Idempotency-Key", "leaves"),
    ):
        connection.putheader(name, value)
    connection.endheaders()
    connection.send(start)
    connection.close()


def test_a_client_that_disconnects_midway_has_done_nothing(shop: Shop) -> None:
    lines = b"".join(json.dumps(item).encode() + b"\n" for item in items())

    def story(server: Served) -> None:
        leave_midway(server, "/cases/7", lines, "application/jsonl")
        leave_midway(server, UPLOAD, csv(), "text/csv")
        assert server.until_final("/cases/7", items(), "leaves").status == 200  # another body: the key was free
        status, job = upload(server, csv())
        assert status == 202
        assert over(server, job["id"])["state"] == "DONE"
        assert len(server.effects()) == 12

    shop.serve(story)
    assert shop.count("semel_record WHERE operation = 'cases'") == 1
    assert shop.count("semel_import") == 1


def resident(process: Any) -> int:
    """How much memory a process ever had, in bytes."""
    [line] = [each for each in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "VmHWM" in each]
    return int(line.split()[1]) * 1024


def test_a_file_of_64_mib_is_never_held_in_memory(shop: Shop) -> None:
    other = {"Content-Digest": f"sha-256=:{base64.b64encode(bytes(32)).decode()}:"}

    def story(server: Served) -> None:
        assert upload(server, csv())[0] == 202
        before = resident(server.process)
        status, problem = upload(server, (bytes(1024 * 1024) for _ in range(64)), **other)
        assert (status, problem["code"]) == (400, "IDEMPOTENCY_REQUEST_INVALID")  # it was read to its end
        assert resident(server.process) - before < 24 * 1024 * 1024

    shop.serve(story)
    assert shop.count("semel_import") == 1
