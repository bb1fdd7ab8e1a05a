"""The operators' pages: what they show, what they never show, and who may settle what."""

from __future__ import annotations

import html
import json
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from semel import Answer, AsyncEngine, Command, Engine, Permit, Policy, Scope
from semel.cli.main import main
from semel.console import Console
from semel.core.identity import derive_key, uuid_text
from semel.core.model import Find, State
from semel.errors import ConfigurationError
from semel.outbox.store import Events
from semel.stores.sql.dialect import dialect_of
from tests.console.conftest import migrate

CANARY = "canary-3d1f0a77"
EVIL = "<script>alert(1)</script>"


def command(key: str, operation: str = "payments.create", caller: str = "alice") -> Command:
    return Command(Scope("acme", caller, operation), f"{CANARY}-{key}", bytes(32), "test", Policy())


def unknown(engine: Engine, key: str, operation: str = "payments.create", caller: str = "alice") -> str:
    """A command in doubt; its operation id."""

    def handler(permit: Permit) -> Answer:
        ids.append(permit.operation_id)
        raise TimeoutError("the provider does not answer")

    ids: list[str] = []
    with suppress(TimeoutError):
        engine.run(command(key, operation, caller), handler)
    return ids[0]


def pay_with_canary(permit: Permit) -> Answer:
    permit.emit("payments.created", {"secret": CANARY})
    return Answer(201, ((b"x-secret", CANARY.encode()),), f"{CANARY} paid".encode())


def console(engine: Engine, operator: str | None = "olga", **options: Any) -> TestClient:
    return TestClient(Console(engine, lambda request: operator, **options), base_url="http://console.test")


def token_of(page: str) -> str:
    found = re.search(r'name="token" value="([0-9a-f]+)"', page)
    assert found is not None, page
    return found[1]


def settling(client: TestClient, *ids: str, **fields: str) -> dict[str, Any]:
    """The fields of a form that settles, as the page has them."""
    page = client.get("/settle", params={"id": list(ids)})
    assert page.status_code == 200
    seen = re.findall(r'name="seen" value="([^"]+)"', page.text)
    assert len(seen) == len(ids)
    said = {"outcome": "did-not-happen", "reason": "the provider has no charge", "force": "yes"}
    return {"token": token_of(page.text), "seen": seen, **said, **fields}


@pytest.mark.parametrize("library", ["jinja2", "starlette"])
def test_a_library_of_the_extra_that_is_missing_is_named_with_its_remedy(library: str) -> None:
    code = f"import sys; sys.modules['{library}'] = None; import semel.console"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    last = run.stderr.splitlines()[-1]
    assert last.startswith(f"ModuleNotFoundError: {library} is missing, which semel.console needs: pip install ")
    assert "[console]" in last


def state_of(engine: Engine, id: str) -> State:
    [record] = [
        each
        for each in engine.perform("find", lambda: engine.store.find(Find(limit=50))).records
        if uuid_text(each.operation_id) == id
    ]
    return State(record.state)


def test_nothing_of_a_key_a_request_or_an_answer_is_on_any_page(engine: Engine) -> None:
    engine.run(command("done"), pay_with_canary)
    id = unknown(engine, "lost", EVIL, EVIL)
    unknown(engine, "other")
    client = console(engine)
    waiting, seen = ["/"], set[str]()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        page = client.get(path)
        assert page.status_code == 200, (path, page.text)
        assert CANARY not in page.text, path
        assert EVIL not in page.text, path
        assert "style=" not in page.text
        waiting += [link.replace("&amp;", "&") for link in re.findall(r'href="(/[^"]*)"', page.text)]
    assert len(seen) >= 12
    assert f"/records/{id}" in seen
    assert {urlsplit(path).path for path in seen} >= {"/", "/records", "/events", "/policies", "/doctor", "/settle"}
    assert "&lt;script&gt;" in client.get(f"/records/{id}").text


def test_an_unknown_command_is_settled_after_a_dry_run_and_the_retry_gets_the_answer(engine: Engine) -> None:
    id = unknown(engine, "lost")
    client = console(engine)
    overview = client.get("/").text
    assert "error:TimeoutError" in overview
    form = settling(client, id, outcome="succeeded", status="201", evidence="https://provider.example/ch_81")
    looked = client.post("/settle", data=form)
    assert "Nothing is written yet" in looked.text
    assert "it succeeded; a retry gets it" in looked.text
    assert state_of(engine, id) is State.UNKNOWN
    done = client.post("/settle", data={**form, "confirmed": "yes"})
    assert done.status_code == 200
    assert state_of(engine, id) is State.SUCCEEDED
    again = engine.run(command("lost"), pay_with_canary)
    assert (again.answer.status, again.replayed) == (201, True)
    page = client.get(f"/records/{id}").text
    assert "olga" in page
    assert "evidence: https://provider.example/ch_81" in page


def test_a_group_is_settled_with_one_finding(store: Engine) -> None:
    ids = [unknown(store, f"lost-{number}") for number in range(3)]
    unknown(store, "elsewhere", "refunds.create")
    client = console(store)
    link = re.search(r'href="(/settle\?doubt=[^"]*payments[^"]*)"', client.get("/").text)
    assert link is not None
    page = client.get(link[1].replace("&amp;", "&")).text
    assert all(id in page for id in ids)
    form = settling(client, *ids, confirmed="yes")
    assert client.post("/settle", data=form).text.count("a retry runs it") == 3
    assert {state_of(store, id) for id in ids} == {State.FAILED_NOT_REPLAYABLE}


def test_the_second_operator_sees_who_settled_first(store: Engine) -> None:
    id = unknown(store, "lost")
    olga, igor = console(store, "olga"), console(store, "igor")
    first, second = settling(olga, id, confirmed="yes"), settling(igor, id, confirmed="yes")
    assert olga.post("/settle", data=first).status_code == 200
    refused = igor.post("/settle", data=second)
    assert refused.status_code == 409
    assert "refused: " in refused.text
    assert "olga has settled it: the provider has no charge" in refused.text


def test_a_page_that_is_older_than_its_record_settles_nothing(store: Engine) -> None:
    id = unknown(store, "lost")
    client = console(store)
    stale = settling(client, id, confirmed="yes")
    client.post("/settle", data=settling(client, id, confirmed="yes"))
    unknown(store, "lost")  # the retry ran, and is in doubt as well: another fence
    refused = client.post("/settle", data=stale)
    assert (refused.status_code, "has changed since you loaded it" in refused.text) == (409, True)
    assert state_of(store, id) is State.UNKNOWN


@pytest.mark.parametrize(
    ("headers", "changed"),
    [
        ({"Origin": "http://evil.test"}, {}),
        ({"Origin": "null"}, {}),
        ({"Origin": "null", "Host": ""}, {}),
        ({"Origin": "http://console.test.evil.test"}, {}),
        ({"Origin": "http://console.test@evil.test"}, {}),
        ({"Origin": "http://["}, {}),
        ({"Origin": "//console.test"}, {}),
        ({"Sec-Fetch-Site": "cross-site"}, {}),
        ({}, {"token": ""}),
        ({}, {"token": "é"}),
        ({}, {"token": "0" * 64}),
    ],
)
def test_a_form_of_another_origin_or_without_the_token_changes_nothing(
    store: Engine, headers: dict[str, str], changed: dict[str, str]
) -> None:
    id = unknown(store, "lost")
    client = console(store)
    form = settling(client, id, confirmed="yes", **changed)
    assert client.post("/settle", data=form, headers=headers).status_code == 403
    assert state_of(store, id) is State.UNKNOWN


def test_a_token_belongs_to_one_operator(store: Engine) -> None:
    id = unknown(store, "lost")
    both = Console(store, lambda request: request.headers["x-operator"])
    olga = TestClient(both, base_url="http://console.test", headers={"x-operator": "olga"})
    igor = TestClient(both, base_url="http://console.test", headers={"x-operator": "igor"})
    assert igor.post("/settle", data=settling(olga, id, confirmed="yes")).status_code == 403


TYPED = '\n {"id": "ch_81", "note": "<b>ünï</b>"}\n'


def test_a_command_is_settled_with_a_body_that_comes_out_as_it_was_typed(engine: Engine) -> None:
    id = unknown(engine, "lost")
    client = console(engine)
    fields = {"outcome": "succeeded", "status": "201", "body": TYPED.replace("\n", "\r\n")}
    form = settling(client, id, media_type="application/json", **fields)
    looked = client.post("/settle", data=form)
    assert "Nothing is written yet" in looked.text
    assert "&lt;b&gt;ünï" in looked.text
    assert state_of(engine, id) is State.UNKNOWN
    changing = client.post("/settle", data={**form, "change": "yes"})
    assert (changing.status_code, "&lt;b&gt;ünï" in changing.text) == (200, True)
    assert state_of(engine, id) is State.UNKNOWN
    assert client.post("/settle", data={**form, "confirmed": "yes"}).status_code == 200
    again = engine.run(command("lost"), pay_with_canary)
    assert (again.answer.status, again.answer.body.decode()) == (201, TYPED)
    assert again.answer.headers == ((b"content-type", b"application/json"),)
    assert "ch_81" not in client.get(f"/records/{id}").text


def step_in_doubt(engine: Engine, key: str, calls: list[str]) -> tuple[str, Callable[[], Any]]:
    """A command whose step `ship` is in doubt, and its retry."""
    shipping = Command(Scope("acme", "alice", "ship"), key, bytes(32), "test", Policy(steps=True))

    def buy(permit: Permit) -> Answer:
        ids.append(permit.operation_id)
        permit.step("charge", lambda: calls.append("charge"))
        return Answer(201, (), json.dumps(permit.step("ship", lose_answer)).encode())

    def lose_answer() -> dict[str, int]:
        calls.append("ship")
        raise TimeoutError

    ids: list[str] = []
    with suppress(TimeoutError):
        engine.run(shipping, buy)
    return ids[0], lambda: engine.run(shipping, buy).answer.body


def test_a_step_in_doubt_is_settled_with_its_result(engine: Engine) -> None:
    calls: list[str] = []
    id, retry = step_in_doubt(engine, "k", calls)
    client = console(engine)
    page = client.get(f"/settle?id={id}").text
    assert "The step ship succeeded" in page
    form = settling(client, id, outcome="step-succeeded", result='{"parcel": 7}')
    assert client.post("/settle", data={**form, "result": "parcel 7"}).status_code == 400
    looked = client.post("/settle", data=form).text
    assert "step &#39;ship&#39; succeeded; a retry" in looked, re.findall("<td>.*", looked)
    assert client.post("/settle", data={**form, "confirmed": "yes"}).status_code == 200
    assert json.loads(retry()) == {"parcel": 7}
    assert calls == ["charge", "ship"]


def between_steps(engine: Engine, key: str, calls: list[str]) -> tuple[str, Callable[[], Any]]:
    """A command that rests behind `charge`, its `mail` having begun; its retry, in which `mail` works."""
    buying = Command(Scope("acme", "alice", "buy"), f"{CANARY}-{key}", bytes(32), "test", Policy(steps=True))

    def buy(permit: Permit) -> Answer:
        ids.append(permit.operation_id)
        permit.step("charge", lambda: calls.append("charge"))
        permit.step(EVIL, mail, repeat=True)
        return Answer(201, (), b"bought")

    def mail() -> None:
        calls.append("mail")
        if calls.count("mail") == 1:
            raise ConnectionError

    ids: list[str] = []
    with suppress(ConnectionError):
        engine.run(buying, buy)
    assert state_of(engine, ids[0]) is State.CLAIMED
    return ids[0], lambda: engine.run(buying, buy).answer


def ending(client: TestClient, id: str, **fields: str) -> dict[str, Any]:
    return settling(client, id, **{"outcome": "refused", "status": "409", "reason": "refunded", **fields})


def test_a_command_between_its_steps_is_ended_with_a_finding_for_each_step(engine: Engine) -> None:
    calls: list[str] = []
    id, retry = between_steps(engine, "k", calls)
    client = console(engine)
    page = client.get(f"/settle?id={id}").text
    assert "charge: finished." in page
    assert "What became of &lt;script&gt;" in page
    assert EVIL not in page
    record = client.get(f"/records/{id}", params={"derived": "refund"}).text
    assert "had begun, and may be repeated" in record
    [stored] = engine.perform("find", lambda: engine.store.find(Find(operation="buy"))).records
    for name in ("charge", "refund"):  # as semel show --derived has them
        key = derive_key(stored.id, stored.generation, name)
        assert f'<th scope="row">{name}</th><td>{key}</td>' in record
    unanswered = client.post("/settle", data=ending(client, id, confirmed="yes"))
    assert (unanswered.status_code, "missing: &lt;script&gt;" in unanswered.text) == (400, True)
    typed = {"body": '{"code": "REFUNDED"}', "media_type": "application/json"}
    form = ending(client, id, **{f"step:{EVIL}": "not"}, **typed)
    looked = client.post("/settle", data=form)
    assert "Nothing is written yet" in looked.text
    assert "it was refused; a retry gets that refusal" in looked.text
    assert "did not happen." in looked.text
    changing = client.post("/settle", data={**form, "change": "yes"}).text
    assert re.search(r'value="not" checked', changing)
    assert state_of(engine, id) is State.CLAIMED
    assert client.post("/settle", data={**form, "token": "0" * 64, "confirmed": "yes"}).status_code == 403
    hidden = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', looked.text))
    again = {html.unescape(name): html.unescape(value) for name, value in hidden.items()}
    assert client.post("/settle", data={**again, "confirmed": "yes"}).status_code == 200
    assert state_of(engine, id) is State.FAILED_REPLAYABLE
    answer = retry()
    assert (answer.status, answer.body) == (409, b'{"code": "REFUNDED"}')
    assert calls == ["charge", "mail"]


def test_the_second_of_two_operators_who_end_a_command_is_refused(store: Engine) -> None:
    id, _ = between_steps(store, "k", [])
    olga, igor = console(store, "olga"), console(store, "igor")
    said = {f"step:{EVIL}": "happened", "confirmed": "yes"}
    first, second = ending(olga, id, **said), ending(igor, id, **said)
    assert olga.post("/settle", data=first).status_code == 200
    refused = igor.post("/settle", data=second)
    assert (refused.status_code, "olga has settled it: refunded" in refused.text) == (409, True)


def test_a_command_that_continued_after_the_page_was_loaded_is_not_ended(store: Engine) -> None:
    calls: list[str] = []
    id, retry = between_steps(store, "k", calls)
    client = console(store)
    stale = ending(client, id, **{f"step:{EVIL}": "not", "confirmed": "yes"})
    assert retry().body == b"bought"
    refused = client.post("/settle", data=stale)
    assert (refused.status_code, "has changed since" in refused.text) == (409, True)
    assert state_of(store, id) is State.SUCCEEDED


def test_a_finding_about_a_doubt_does_not_end_a_command_that_has_left_the_doubt(store: Engine) -> None:
    id, _ = step_in_doubt(store, "k", [])
    client = console(store)
    stale = settling(client, id, outcome="succeeded", status="201", confirmed="yes")
    assert client.post("/settle", data=settling(client, id, confirmed="yes")).status_code == 200
    assert state_of(store, id) is State.CLAIMED
    assert client.post("/settle", data=stale).status_code == 409
    assert state_of(store, id) is State.CLAIMED


def test_a_command_in_doubt_is_ended_as_a_whole_with_a_finding_for_each_step(store: Engine) -> None:
    id, retry = step_in_doubt(store, "k", [])
    client = console(store)
    form = ending(client, id, **{"step:ship": "not", "confirmed": "yes"})
    assert "Not decided: the whole command does not end now" in client.get(f"/settle?id={id}").text
    assert client.post("/settle", data=form).status_code == 200
    assert state_of(store, id) is State.FAILED_REPLAYABLE
    assert retry() == b""


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"step:ship": "perhaps"}, "missing: "),
        ({"outcome": "did-not-happen", "status": "", f"step:{EVIL}": "not"}, "The step charge has happened"),
        ({"status": "201", f"step:{EVIL}": "not"}, "from 400 to 599"),
        ({"status": "", f"step:{EVIL}": "not"}, "from 400 to 599"),
        ({"status": "", "no_answer": "yes", f"step:{EVIL}": "not"}, "from 400 to 599"),
        ({"outcome": "step-succeeded", "status": "", "result": "1", f"step:{EVIL}": "not"}, "choose one"),
    ],
)
def test_a_finding_that_cannot_end_a_command_is_refused(store: Engine, fields: dict[str, str], says: str) -> None:
    id, _ = between_steps(store, "k", [])
    client = console(store)
    page = client.post("/settle", data=ending(client, id, **fields, confirmed="yes"))
    assert (page.status_code, says in page.text) == (400, True), page.text
    assert state_of(store, id) is State.CLAIMED


def test_step_findings_apply_to_one_command(store: Engine) -> None:
    ids = [between_steps(store, f"k{number}", [])[0] for number in range(2)]
    client = console(store)
    form = settling(client, *ids, outcome="refused", status="409", confirmed="yes")
    assert client.post("/settle", data={**form, f"step:{EVIL}": "not"}).status_code == 400
    refused = client.post("/settle", data=form)
    assert (refused.status_code, refused.text.count("say of each step that had begun")) == (409, 2)
    assert {state_of(store, id) for id in ids} == {State.CLAIMED}


def test_a_result_or_a_body_applies_to_one_command(store: Engine) -> None:
    ids = [step_in_doubt(store, f"k{number}", [])[0] for number in range(2)]
    client = console(store)
    for fields in (
        {"outcome": "step-succeeded", "result": "7"},
        {"outcome": "succeeded", "status": "201", "body": "{}", "media_type": "application/json"},
    ):
        refused = client.post("/settle", data=settling(client, *ids, confirmed="yes", **fields))
        assert (refused.status_code, "belong to one command" in refused.text) == (400, True)
    assert {state_of(store, id) for id in ids} == {State.UNKNOWN}


def test_a_stale_page_stays_stale_when_the_form_is_returned(store: Engine) -> None:
    id = unknown(store, "lost")
    client = console(store)
    stale = settling(client, id)
    client.post("/settle", data=settling(client, id, confirmed="yes"))
    unknown(store, "lost")  # the retry ran, and is in doubt as well
    for again in ({"reason": ""}, {"change": "yes"}):
        page = client.post("/settle", data={**stale, **again}).text
        assert re.findall(r'name="seen" value="([^"]+)"', page) == stale["seen"]
    assert client.post("/settle", data={**stale, "confirmed": "yes"}).status_code == 409


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"outcome": "succeeded", "status": "204", "body": "x", "media_type": "text/plain"}, "status 204 has no body"),
        ({"outcome": "succeeded", "no_answer": "yes", "body": "x"}, "A body needs a status"),
        ({"outcome": "succeeded", "status": "201", "body": "x"}, "content type, such as application/json"),
        (
            {"outcome": "succeeded", "status": "201", "body": "x", "media_type": "a/b\r\nX: y"},
            "content type, such as application/json",
        ),
        (
            {"outcome": "succeeded", "status": "201", "body": "{'a'", "media_type": "application/json"},
            "but the body is not",
        ),
        ({"outcome": "succeeded", "status": "201", "body": "ü" * 40_000, "media_type": "text/plain"}, "65536 bytes"),
        ({"outcome": "step-succeeded", "result": "7"}, "no step of this command is in doubt"),
        ({"result": "7"}, "result only if the step in doubt succeeded"),
        ({"reason": "a\0b"}, "NUL"),
        ({"reason": " "}, "Explain how you know"),
        ({"outcome": ""}, "Choose what you found"),
        ({"outcome": "succeeded"}, "one of the two"),
        ({"outcome": "succeeded", "status": "201", "no_answer": "yes"}, "one of the two"),
        ({"outcome": "succeeded", "status": "99"}, "from 200 to 599"),
        ({"outcome": "succeeded", "status": "²01"}, "from 200 to 599"),
        ({"status": "201"}, "Only a command that ends"),
        ({"reason": "x" * 1001}, "at most 1000 characters"),
    ],
)
def test_an_invalid_finding_is_reported_and_the_form_keeps_its_values(
    store: Engine, fields: dict[str, str], says: str
) -> None:
    id = unknown(store, "lost")
    client = console(store)
    page = client.post("/settle", data=settling(client, id, confirmed="yes", evidence="kept in the form", **fields))
    assert page.status_code == 400
    assert says in page.text
    assert "kept in the form" in page.text
    assert state_of(store, id) is State.UNKNOWN


def test_a_settlement_before_the_deadline_needs_confirmation(store: Engine) -> None:
    id = unknown(store, "lost")
    client = console(store)
    refused = client.post("/settle", data=settling(client, id, confirmed="yes", force=""))
    assert (refused.status_code, "confirm that the handler has stopped" in refused.text) == (409, True)
    assert "you know that it has stopped" not in refused.text  # entered twice, in other words


def test_a_visitor_without_a_name_gets_403(store: Engine) -> None:
    id = unknown(store, "lost")
    for name in (None, ""):
        client = console(store, name)
        for path in ("/", f"/records/{id}", "/settle", "/doctor"):
            page = client.get(path)
            assert (page.status_code, "payments" in page.text) == (403, False)
        assert client.post("/settle", data={}).status_code == 403
    with pytest.raises(ConfigurationError, match="authorise"):
        Console(store, None)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="at least 16 bytes"):
        Console(store, lambda request: "olga", secret=b"short")
    with pytest.raises(ConfigurationError, match="sync Engine"):
        Console(AsyncEngine.connect("memory://"), lambda request: "olga")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["x" * 256, "a\nb", "a\0b", "\ud800", " "])
def test_a_name_that_the_audit_trail_cannot_store_is_refused(store: Engine, name: str) -> None:
    assert console(store, name).get("/").status_code == 403


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_other_methods_are_refused_and_named(store: Engine, method: str) -> None:
    refused = console(store).request(method, "/settle")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD, POST")


def test_damaged_records_are_named_and_cannot_be_settled(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/semel.db"
    with migrate(url) as engine:
        ids = [unknown(engine, f"k{number}") for number in range(4)]
        with closing(sqlite3.connect(tmp_path / "semel.db")) as db:
            for id, damage in zip(
                ids, ("state=99", "doubt=x'00ff'", "operation=x'ff'", "lease_until='x'"), strict=True
            ):
                db.execute(f"UPDATE semel_record SET {damage} WHERE operation_id = ?", (UUID(id).bytes,))
            db.commit()
        client = console(engine)
        for path in ("/", "/records", "/policies", *(f"/records/{id}" for id in ids)):
            assert client.get(path).status_code == 200, path
        form = settling(client, *ids)
        for more in ({}, {"confirmed": "yes"}):
            page = client.post("/settle", data={**form, **more})
            assert page.text.count("the record is damaged") == 4
    assert main(["settle", ids[1], "--did-not-happen", "--reason", "x", "--url", url]) == 1


def test_a_refusal_of_the_store_is_shown_as_a_page(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/semel.db"
    with migrate(url):
        pass
    broken = Engine.connect(url, id_secret=b"another store's secret: 32 bytes")
    page = console(broken).get("/")
    assert (page.status_code, "semel doctor" in page.text) == (500, True)
    broken.close()
    with Engine.connect(url) as engine:
        page = console(engine, application="no.such.module:app").get("/policies")
        assert (page.status_code, "Traceback" in page.text, "<h1>" in page.text) == (500, False, True)


def test_a_read_only_console_has_no_form_and_refuses_changes(store: Engine) -> None:
    id = unknown(store, "lost")
    client, writing = console(store, read_only=True), console(store)
    for path in ("/", "/records", f"/records/{id}", "/events", f"/settle?id={id}"):
        assert 'method="post"' not in client.get(path).text
    form = settling(writing, id, confirmed="yes")
    forged = client.get("/").text
    assert "token" not in forged
    assert client.post("/settle", data=form).status_code == 403
    assert state_of(store, id) is State.UNKNOWN


def test_parked_events_can_be_retried(store: Engine) -> None:
    store.run(command("done"), pay_with_canary)
    events = Events(dialect_of(store.store, "events"))
    [waiting] = store.perform("events", lambda: events.find(0, 10, parked=False))
    assert store.perform("events", lambda: events.park(waiting.event.id, EVIL))
    client = console(store)
    page = client.get("/events?parked=1").text
    assert EVIL not in page
    form = {"token": token_of(page), "place": str(waiting.seq)}
    assert client.post("/events", data=form, follow_redirects=False).status_code == 303
    assert store.perform("events", events.depth).parked == 0
    assert client.post("/events", data=form).status_code == 409
    assert client.post("/events", data={**form, "place": "²"}).status_code == 400


def test_a_store_without_an_outbox_has_no_events() -> None:
    with Engine.connect("memory://?persistence=none") as engine:
        client = console(engine)
        assert client.get("/events").status_code == 404
        page = client.get("/")
        assert "events" not in re.sub(r"<header>.*</header>", "", page.text, flags=re.DOTALL)
        id = unknown(engine, "lost")
        token = token_of(client.get(f"/settle?id={id}").text)
        assert client.post("/events", data={"token": token, "place": "1"}).status_code == 404


def test_a_mounted_console_links_within_its_mount(store: Engine) -> None:
    id = unknown(store, "lost")
    mounted = Starlette(routes=[Mount("/ops", Console(store, lambda request: "olga"))])
    client = TestClient(mounted, base_url="http://console.test")
    page = client.get("/ops/").text
    assert all(link.startswith("/ops/") for link in re.findall(r'(?:href|action)="(/[^"]*)"', page))
    assert client.get("/ops/console.css").headers["content-type"].startswith("text/css")
    assert client.get(f"/ops/records?id={id}").url.path == f"/ops/records/{id}"
    assert client.get("/ops/nothing").status_code == 404


def test_every_answer_has_a_policy_that_loads_nothing_from_elsewhere(store: Engine) -> None:
    for page in (console(store).get("/"), console(store, None).get("/"), console(store).get("/nothing")):
        policy = page.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/records?state=NOTHING", 400),
        ("/records?before=-1", 400),
        ("/records?before=1e9", 400),
        ("/records/not-an-id", 404),
        ("/records?id=00000000-0000-7000-8000-000000000000", 404),
        ("/settle", 400),
        ("/settle?id=x", 404),
        ("/settle?doubt=nothing", 400),
        (f"/records?operation={'x' * 5000}", 200),
    ],
)
def test_bad_parameters_get_an_error_page(store: Engine, path: str, status: int) -> None:
    page = console(store).get(path)
    assert page.status_code == status
    assert "<h1>" in page.text
    assert "Traceback" not in page.text


def test_a_form_that_is_too_long_is_refused(store: Engine) -> None:
    assert console(store).post("/settle", data={"reason": "x" * 1_100_000}).status_code == 413
    assert console(store).post("/settle", data={f"f{n}": "x" for n in range(400)}).status_code == 400


def test_an_unreachable_store_is_reported_until_it_is_back(tmp_path: Path) -> None:
    path = tmp_path / "semel.db"
    engine = Engine.connect(f"sqlite:///{path}")
    client = console(engine)
    try:
        away = client.get("/")
        assert (away.status_code, "http-equiv" in away.text) == (503, True)
        assert "semel.db&#39; does not exist; run: semel migrate" in away.text
        engine.migrate()
        assert client.get("/").status_code == 200
    finally:
        engine.close()


def test_a_store_that_is_newer_is_named_with_its_own_remedy(tmp_path: Path) -> None:
    path = tmp_path / "semel.db"
    migrate(f"sqlite:///{path}").close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE semel_meta SET schema_version = 99")
        db.commit()
    with closing(Engine.connect(f"sqlite:///{path}")) as engine:
        away = console(engine).get("/")
    assert away.status_code == 503
    assert "upgrade Semel" in away.text
    assert "semel migrate" not in away.text


def test_a_console_of_no_store_does_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", f"sqlite:///{tmp_path}/mistyped.db", "console"]) == 3
    said = capsys.readouterr()
    assert "http://" not in said.out
    assert "mistyped.db' does not exist" in said.err


def test_a_console_of_no_application_does_not_start(store: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", store.backend.url, "console", "--application", "no_such_module:app"]) == 2
    said = capsys.readouterr()
    assert "http://" not in said.out
    assert "there is no module 'no_such_module'" in said.err


def test_pages_read_a_bounded_number_of_rows(store: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a store of any size the pages read pages, never everything."""
    unknown(store, "lost")
    asked: list[int] = []
    found: Callable[[Find], Any] = store.store.find

    def find(query: Find) -> Any:
        asked.append(query.limit)
        return found(query)

    monkeypatch.setattr(store.store, "find", find)
    client = console(store)
    for path in ("/", "/records", "/policies"):
        assert client.get(path).status_code == 200
    assert asked
    assert max(asked) <= 1000


def test_the_link_of_the_command_works_once_and_only_on_this_machine(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/semel.db"
    with migrate(url) as made:
        unknown(made, "lost")
    process = subprocess.Popen(
        [sys.executable, "-m", "semel.cli", "console", "--url", url, "--json"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        link = json.loads(process.stdout.readline())["url"]
        base = link.partition("?")[0]
        with httpx.Client(trust_env=False, follow_redirects=True) as first, httpx.Client(trust_env=False) as second:
            assert second.get(base).status_code == 403
            welcome = first.get(link)
            assert (welcome.status_code, 'url=/"' in welcome.text) == (200, True)
            cookie = welcome.headers["set-cookie"].lower()
            assert "httponly" in cookie
            assert "samesite=strict" in cookie
            assert f"semel_console_{urlsplit(base).port}=" in cookie  # of another console it leaves the cookie alone
            assert second.get(link).status_code == 403
            assert "payments.create" in first.get(base).text
            assert first.get(base, headers={"Host": "evil.test"}).status_code == 421
        process.send_signal(signal.SIGINT)
        assert (process.wait(30), process.stdout.read()) == (0, "")  # it only ends so
    finally:
        process.terminate()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()
