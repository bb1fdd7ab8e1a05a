"""Every example of every page is run unchanged, and prints what the page shows."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from uuid import uuid4

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from tests.docs import curl
from tests.docs.pages import PAGES, RUN, SHOWN, Block, blocks, name_of
from tests.docs.running import (
    ADDRESS,
    DATABASE,
    assert_shown,
    file_of,
    parse_console,
    run_console,
    run_python,
    run_shell,
)
from tests.servers.postgres import postgres
from tests.service.served import serving

ALONE = "SEMEL_TEST_PAGE_ALONE"
CONFIGURES = "settings.configure("  # Django's, of which a process has one


def run_alone(test: str) -> None:
    """Run one test in its own process."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", test]
    ran = subprocess.run(command, env={**os.environ, ALONE: "1"}, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout


@pytest.mark.no_cover  # they run in processes of their own, and what they show is tested elsewhere
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_examples_of(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page.read_text("utf-8")
    if CONFIGURES in text and not os.environ.get(ALONE):
        run_alone(f"{__file__}::test_the_examples_of[{name_of(page)}]")
        return
    examples = [block for block in blocks(text) if block.language in RUN or block.note == "prints"]
    namespace: dict[str, object] = {"__name__": "example"}
    monkeypatch.setitem(sys.modules, "example", ModuleType("example"))  # Taskiq looks its tasks' module up
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as a shell in that folder would: what a page writes it can import
    monkeypatch.setenv("no_proxy", "*")
    with ExitStack() as stack:
        stack.callback(forget_modules, tmp_path)
        served: str | None = None
        if any(ADDRESS in block.text for block in examples):
            served = stack.enter_context(serving(tmp_path)).url.removeprefix("http://")
        if any(DATABASE in block.text for block in examples):
            own = database()
            examples = [replace(block, text=block.text.replace(DATABASE, own)) for block in examples]
        for number, block in enumerate(examples, start=1):
            if (file := file_of(block)) is not None:
                (tmp_path / file).write_text(block.text, "utf-8")
            elif block.language == "python":
                # Every block of the first page can be copied alone; elsewhere each continues where the last one ended.
                names: dict[str, object] = {"__name__": "example"} if name_of(page) == "README.md" else namespace
                run_python(block, name_of(page), names, served)
            elif block.language == "sh":
                shown = "".join(following.text for following in examples[number : number + 1] if following.note)
                run_shell(block, name_of(page), tmp_path, served, shown)
            elif block.language == "console":
                run_console(block, name_of(page), tmp_path, served)


def database() -> str:
    """A new database on the run's PostgreSQL."""
    url = postgres()
    name = f"page_{uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
    return f"{url.rpartition('/')[0]}/{name}"


def forget_modules(folder: Path) -> None:
    """The next page may write modules of the same names."""
    for name, module in tuple(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None and Path(file).is_relative_to(folder):
            del sys.modules[name]


def test_every_block_that_looks_like_an_example_is_tested() -> None:
    """Shell and Python are written under one name each, so that none of them is overlooked."""
    found = [
        f"{name_of(page)}:{block.line} {block.language}"
        for page in PAGES
        for block in blocks(page.read_text("utf-8"))
        if block.language not in (*RUN, *SHOWN)
    ]
    assert found == []


def test_a_block_that_begins_with_a_file_name_is_that_file() -> None:
    assert file_of(Block("python", "# shop.py\nimport bank\n", 1)) == "shop.py"
    assert file_of(Block("python", "# a shop.py\nimport bank\n", 1)) is None
    assert file_of(Block("console", "# shop.py\n", 1)) is None


def test_commands_are_distinguished_from_their_output() -> None:
    assert parse_console("$ echo a \\\n>   b\na b\n$ true\n") == [("echo a \\\n  b", "a b\n"), ("true", "")]


def test_missing_output_is_reported(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="shown"):
        run_console(Block("console", "$ echo one\ntwo\n", 1), "page", tmp_path, None)
    with pytest.raises(AssertionError, match="shown"):
        run_python(Block("python", "print(1)\n# > 2\n", 1), "page", {})
    with pytest.raises(AssertionError, match="only a checkout"):
        run_console(Block("console", "$ pip install semel\n", 1), "page", tmp_path, None)
    with pytest.raises(AssertionError, match="does not show"):
        run_python(Block("python", "print(1)\n", 1), "page", {})
    with pytest.raises(AssertionError, match="shown"):
        run_shell(Block("sh", "echo one\n", 1), "page", tmp_path, None, "two\n")
    run_shell(Block("sh", "one=1\necho $one \\\n  2\nmake run\n", 1), "page", tmp_path, None, "1 2\n")
    assert_shown("a ... c\n", "a b c\n", "here")


def test_an_example_is_compiled_as_a_reader_would() -> None:
    text = "from dataclasses import dataclass\n@dataclass\nclass A:\n    n: int\nprint(A.__annotations__)\n"
    text += "# > {'n': <class 'int'>}\n"
    run_python(Block("python", text, 1), "page", {"__name__": "example"})


class Echo(BaseHTTPRequestHandler):
    """Answers with what it was sent."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(201, self.headers["X-Said"].encode() + b" " + body)

    def do_GET(self) -> None:
        self._answer(404, b"nothing here")

    def do_PUT(self) -> None:
        self._answer(200, b"put " + self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("X-Path", self.path)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """The output is not read."""


def test_the_plain_curl_does_what_the_examples_ask_of_it(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    with HTTPServer(("127.0.0.1", 0), Echo) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert curl.main(["-si", f"{url}/a?b=c", "-H", "X-Said: well", "-d", "done"]) == 0
        head, _, body = capfdbinary.readouterr().out.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 201 Created\r\n")
        assert b"x-path: /a?b=c" in head
        assert body == b"well done"
        assert curl.main(["-s", "-X", "PUT", url, "-d", "it"]) == 0
        assert capfdbinary.readouterr().out == b"put it"
        assert curl.main(["-s", url]) == 0
        assert capfdbinary.readouterr().out == b"nothing here"
        server.shutdown()
    assert curl.main(["-s", url]) == 7
