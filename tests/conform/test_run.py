"""What cannot be tested ends in one line with the remedy, and is never green; effects are counted in five ways."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from semel.conform import CannotRun, Case, Selection, conform, parse_case
from semel.conform.attempt import Try
from semel.conform.case import EffectCount
from semel.conform.effects import Counter
from semel.conform.wire import Reply, parse_target
from tests.conform.api import Api, Asked, Said, serving
from tests.servers.ports import free_port

pytestmark = pytest.mark.anyio
CASE = '[request]\npath = "/payments"\njson = {amount = 5}\n[effects]\nget = "/payments"\n'


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@contextlib.asynccontextmanager
async def answering(answer: Callable[[str], bytes]) -> AsyncIterator[str]:
    """A server that answers each request with what a function of its first line says."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
            await reader.readexactly(int(length[1]) if length else 0)
            writer.write(answer(head.splitlines()[0]))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


def http(status: int, body: str = "[]", kind: str = "application/json", more: str = "") -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}Connection: close"
    return f"{head}\r\n\r\n{body}".encode()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (http(201), "the count of effects did not grow; correct .*without effects proves nothing"),
        (http(301, more="Location: https://elsewhere.example/\r\n"), "redirects .301. to https://elsewhere.example/"),
        (http(401), "answers 401; give credentials as headers of .callers.first"),
        (http(200, "<html>", "text/html"), "answers 200 with HTML: no API; correct the URL"),
        (http(404), "answers 404; correct request.path"),
        (http(422), "answers 422 to the case's request, with the key quoted"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "gives no answer: no HTTP answer"),
        (b"", "gives no answer: the connection was closed"),
    ],
)
async def test_what_cannot_be_tested_is_one_line_with_the_remedy(answer: bytes, message: str) -> None:
    def reply(line: str) -> bytes:
        return http(200) if line.startswith("GET") else answer

    async with answering(reply) as url:
        with pytest.raises(CannotRun, match=message) as raised:
            await conform(url, parse_case(CASE))
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (http(500), "effects.get /payments: HTTP 500; it must answer 200"),
        (http(200, "x"), "effects.get /payments answers application/json, not JSON"),
        (http(200, '"x"'), "effects.pointer '' leads to str; it must be a list or a number"),
    ],
)
async def test_a_count_that_cannot_be_read_is_one_line_with_the_remedy(answer: bytes, message: str) -> None:
    async with answering(lambda line: answer) as url:
        with pytest.raises(CannotRun, match=message):
            await conform(url, parse_case(CASE))


async def test_a_refused_connection_is_one_line_with_the_remedy() -> None:
    with pytest.raises(CannotRun, match="cannot be reached: connection refused; start the API first"):
        await conform(f"http://127.0.0.1:{free_port()}", parse_case(CASE))


async def test_plain_http_behind_https_is_a_tls_error_with_the_remedy() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(http(400))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(CannotRun, match=r"TLS: .*; correct the certificate, give tls\.ca_file, or write http://"):
            await conform(url, parse_case(CASE))


async def test_a_public_address_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(CannotRun, match=r"neither a loopback nor a private address.*--i-own-this-api"):
        await conform("http://8.8.8.8", parse_case(CASE))


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "127.0.0.1:80", "http://h/?a=1", "http://h:99999", "http://u:p@h"]
)
async def test_a_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"^URL "):
        await conform(url, parse_case(CASE))


async def run_one(url: str, case: Case) -> list[str]:
    report = await conform(url, case, Selection("semel", only=["replay-once"]))
    return [result.outcome for result in report.results]


@pytest.mark.parametrize("wrong", ["", "replay-once"])
async def test_effects_are_counted_by_file_command_sql_and_webhook(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, database, port = tmp_path / "effects.log", tmp_path / "effects.db", free_port()
    lines.touch()
    with contextlib.closing(sqlite3.connect(database)) as file:
        file.execute("create table effects (name text)")
    work = Api._work

    async def working(self: Api, *arguments: object) -> object:
        said = await work(self, *arguments)  # type: ignore[arg-type]
        with lines.open("a") as log:
            log.write("effect\n")
        with contextlib.closing(sqlite3.connect(database)) as file, file:
            file.execute("insert into effects values ('x')")
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
            await reader.read()
            writer.close()
        return said

    monkeypatch.setattr(Api, "_work", working)
    count = f"print(sum(1 for _ in open({str(lines)!r})))"
    ways = [
        EffectCount(file=str(lines)),
        EffectCount(command=(sys.executable, "-c", count)),
        EffectCount(sql="select count(*) from effects", database=f"sqlite:///{database}"),
        EffectCount(webhook=f"127.0.0.1:{port}"),
    ]
    async with serving(wrong) as (url, case):
        for effects in ways:
            assert await run_one(url, replace(case, effects=effects)) == ["failed" if wrong else "passed"], effects


@pytest.mark.parametrize(
    ("effects", "message"),
    [
        (EffectCount(file="/"), "effects.file '/' cannot be read"),
        (EffectCount(command=("/none/such",)), "effects.command: '/none/such' cannot be started"),
        (EffectCount(command=(sys.executable, "-c", "print('many')")), "must give one whole number, not 'many'"),
        (EffectCount(command=(sys.executable, "-c", "raise SystemExit('no')")), "ended with 1: no"),
        (EffectCount(sql="select x", database="sqlite:////none/such.db"), "effects.sql failed: unable to open"),
    ],
)
async def test_an_effect_counter_that_fails_names_its_field(effects: EffectCount, message: str) -> None:
    async with serving() as (url, case):
        with pytest.raises(CannotRun, match=message):
            await run_one(url, replace(case, effects=effects))


async def test_a_count_that_stops_growing_is_not_green(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a list of which a GET shows one page."""
    answer = Api._answer

    async def cap_the_count(self: Api, asked: Asked, reader: asyncio.StreamReader) -> Said:
        said = await answer(self, asked, reader)
        return Said(200, {"count": min(said.document["count"], 4)}) if asked.method == "GET" else said

    monkeypatch.setattr(Api, "_answer", cap_the_count)
    async with serving() as (url, case):
        with pytest.raises(CannotRun, match=r"has stopped growing during the checks; in .effects., use a count"):
            await conform(url, case, Selection("semel", only=["json"]))


async def test_an_api_that_crashes_fails_only_the_check_that_crashed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Api._answer

    async def dying(self: Api, asked: Asked, reader: asyncio.StreamReader) -> Said:
        if asked.body.startswith(b"[["):
            assert self._server is not None
            self._server.close()
        return await answer(self, asked, reader)

    monkeypatch.setattr(Api, "_answer", dying)
    monkeypatch.setattr("semel.conform.run.RESTART_SECONDS", 0.2)
    async with serving() as (url, case):
        report = await conform(url, case, Selection("semel", only=["json-invalid", "json-nested", "multipart"]))
    found = {result.check.id: (result.outcome, result.came) for result in report.results}
    assert found["json-invalid"] == ("passed", "")
    assert found["json-nested"] == ("failed", "the API ended: it takes no connections")
    assert found["multipart-other"] == ("not-tried", "the API ended during json-nested: start it again")
    assert not report.ok


def answering_by(monkeypatch: pytest.MonkeyPatch, change: Callable[[Api, Asked, Said], Said]) -> None:
    """Let the right API's answers be what a function makes of them."""
    answer = Api._answer

    async def change_answer(self: Api, asked: Asked, reader: asyncio.StreamReader) -> Said:
        return change(self, asked, await answer(self, asked, reader))

    monkeypatch.setattr(Api, "_answer", change_answer)


async def test_an_api_that_limits_the_rate_is_neither_red_nor_green(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, count = Api._answer, 0

    async def limit_rate(self: Api, asked: Asked, reader: asyncio.StreamReader) -> Said:
        nonlocal count
        count += asked.method == "POST"
        return Said(429, {}) if asked.method == "POST" and count > 20 else await answer(self, asked, reader)

    monkeypatch.setattr(Api, "_answer", limit_rate)
    async with serving() as (url, case):
        with pytest.raises(CannotRun, match=r"limits the rate of requests: it answers 429 to a key .*; lift the limit"):
            await conform(url, case, Selection("semel", only=["key"]))


async def test_a_status_is_not_judged_without_its_callers_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers of [request] go with the command alone; counts need no credentials here."""

    def counts_for_all(api: Api, asked: Asked, said: Said) -> Said:
        is_count = asked.method == "GET" and asked.path == "/payments"
        return Said(200, {"count": sum(api.effects.values())}) if is_count else said

    answering_by(monkeypatch, counts_for_all)
    async with serving() as (url, case):
        case = replace(case, request=replace(case.request, headers=case.caller), caller={}, other_caller=None)
        report = await conform(url, case, Selection("semel", only=["status-link", "status-no-secrets"]))
    why = "the case has no [callers.first], and reading a status needs its credentials"
    assert {(result.outcome, result.came) for result in report.results} == {("not-tried", why)}


async def test_a_duplicate_in_flight_may_get_429(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(api: Api, asked: Asked, said: Said) -> Said:
        return Said(429, {}) if said.status == 409 else said

    answering_by(monkeypatch, busy)
    async with serving() as (url, case):
        report = await conform(url, case, Selection("semel", only=["race"]))
    assert [result.check.id for result in report.failed] == []


async def test_an_api_that_always_gives_the_same_answer_can_be_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that says OK in plain text: equal answers are two where there are two effects."""

    def same(api: Api, asked: Asked, said: Said) -> Said:
        if asked.method != "POST" or said.status != 201:
            return said
        headers = {name: text for name, text in said.headers.items() if name != "Location"}
        return replace(said, headers=headers, kind="text/plain", body=b"OK")

    answering_by(monkeypatch, same)
    wanted = ["other", "caller", "multipart", "race"]
    async with serving() as (url, case):
        report = await conform(url, case, Selection("draft-07", only=wanted))
    assert [(result.check.id, result.came) for result in report.failed] == []


async def test_two_payloads_under_one_key_are_found_by_their_effects(monkeypatch: pytest.MonkeyPatch) -> None:
    def same(api: Api, asked: Asked, said: Said) -> Said:
        return replace(said, body=b"OK") if asked.method == "POST" and said.status == 201 else said

    answering_by(monkeypatch, same)
    async with serving("race-payloads") as (url, case):
        report = await conform(url, case, Selection("draft-07", only=["race-payloads"]))
    assert [result.check.id for result in report.failed] == ["race-payloads"]


@pytest.mark.parametrize("name", ["key-pattern", "key-case"])
async def test_a_confused_key_is_found_even_if_duplicates_get_409(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def conflict(api: Api, asked: Asked, said: Said) -> Said:
        return Said(409, {}) if "Idempotency-Replayed" in said.headers else said

    answering_by(monkeypatch, conflict)
    async with serving(name) as (url, case):
        report = await conform(url, case, Selection("draft-07", only=[name]))
    assert [result.check.id for result in report.failed] == [name]


async def test_an_openapi_document_may_refer_and_have_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    def referring(api: Api, asked: Asked, said: Said) -> Said:
        if asked.path != "/openapi.json":
            return said
        operation = said.document["paths"]["/payments"]["post"]
        [header] = operation.pop("parameters")
        item = {"parameters": [{"$ref": "#/components/parameters/a~1key"}], "post": operation}
        return Said(200, {"paths": {"/x": 1, "/{collection}": item}, "components": {"parameters": {"a/key": header}}})

    answering_by(monkeypatch, referring)
    async with serving() as (url, case):
        report = await conform(url, case, Selection("draft-07", only=["openapi"]))
    assert {result.outcome for result in report.results} == {"passed"}


@pytest.mark.parametrize("document", [{}, {"paths": []}, {"paths": {"/payments": {"post": {"parameters": 5}}}}])
async def test_an_openapi_document_of_another_shape_ends_no_run(
    document: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    answering_by(monkeypatch, lambda api, asked, said: Said(200, document) if asked.path == "/openapi.json" else said)
    async with serving() as (url, case):
        report = await conform(url, case, Selection("draft-07", only=["openapi"]))
    assert "passed" not in {result.outcome for result in report.results}


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\r\n\r\n",
        b"HTTP/1.1 \xb2\xb2\xb2 X\r\n\r\n",
        b"HTTP/1.1 99999 X\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 201 X\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 201 X\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 201 X\r\nTransfer-Encoding: chunked\r\n\r\n1_0\r\n0123456789\r\n0\r\n\r\n",
        http(400, "[" * 100_000, "application/problem+json"),
    ],
)
async def test_garbage_fails_checks_and_ends_no_run(garbage: bytes) -> None:
    posts = 0

    def reply(line: str) -> bytes:
        nonlocal posts
        if line.startswith("GET"):
            return http(200, str(posts))
        posts += 1
        return http(201) if posts == 1 else garbage

    async with answering(reply) as url:
        case = parse_case(f"{CASE}[limits]\nrounds = 1\nparallel = 2\ncrowd = 2\ntimeout_seconds = 1")
        report = await conform(url, case, Selection("semel", only=["replay-framing", "slow-client", "problem"]))
    assert not report.ok


async def test_a_connection_that_stays_open_proves_nothing_about_framing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a proxy that ignores ``Connection: close``."""
    monkeypatch.setattr(
        Asked, "get", lambda self, name, get=Asked.get: None if name == "connection" else get(self, name)
    )
    monkeypatch.setattr("semel.conform.wire.LEFTOVER_SECONDS", 0.05)
    async with serving() as (url, case):
        report = await conform(url, case, Selection("draft-07", only=["replay-framing", "replay-empty-framing"]))
    assert [(result.outcome, result.came) for result in report.results] == [("passed", "")] * 2


async def test_a_check_whose_cause_failed_is_not_tried() -> None:
    async with serving("replay-once") as (url, case):
        report = await conform(url, case, Selection("semel", only=["replay"]))
    found = {result.check.id: (result.outcome, result.came) for result in report.results}
    assert found["replay-status"] == ("not-tried", "replay-once failed, so this check would add nothing")
    assert not report.ok


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection("other"), "--profile must be one of"),
        (Selection(levels=["most"]), "--level must be some of"),
        (Selection(levels=[]), "--level must be some of"),
        (Selection(only=["nothing"]), "--only 'nothing' is neither a check"),
    ],
)
def test_a_wrong_selection_names_the_option(selection: Selection, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        selection.checks()


def test_a_selection_takes_groups_checks_and_levels() -> None:
    assert {
        check.id.partition("-")[0] for check in Selection(only=["race", "json-order"], profile="semel").checks()
    } == {
        "race",
        "json",
    }
    assert {check.level for check in Selection(levels=["must"]).checks()} == {"must"}


@pytest.mark.parametrize("is_exact", [True, False])
async def test_a_late_effect_is_not_counted_for_the_next_check(is_exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a check has found what it expects, no more can come, and its count is the next one's first."""
    happened, counted = 5, 0

    async def get(path: str, headers: Mapping[str, str]) -> Reply:
        raise AssertionError("the count is the test's own")

    async def count(self: Counter, both: bool) -> int:
        nonlocal counted
        counted += 1
        return happened

    monkeypatch.setattr(Counter, "_count", count)
    case, target = parse_case(CASE), parse_target("http://127.0.0.1:1")
    counter = Counter(case, get)
    first, second = (Try(target, case, counter, "semel", 1) for _ in range(2))
    await first.begin()
    first.encode("key-1")
    happened += 1
    if is_exact:
        await first.expect_effects(1, "201")
    else:
        assert await first.count_new_effects() == 1
        happened += 1  # of a request that the first check has cut
    await second.begin()
    second.encode("key-2")
    happened += 1
    await second.expect_effects(1, "201")
    assert counted == (3 if is_exact else 4)
