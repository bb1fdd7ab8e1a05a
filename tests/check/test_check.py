"""`semel check` as it is typed: what it answers, what it leaves open, what it calls unsafe, and how it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from semel.check.answers import QUESTIONS
from semel.cli.main import main

SHOP = "tests.check.shop"


def check(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["check", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def document(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code, out, _ = check(capsys, "--json", *words)
    return code, json.loads(out)


def level_of(found: Any, operation: str, question: str) -> tuple[str, str]:
    [each] = [each for each in found["operations"] if each["operation"] == operation]
    [answer] = [answer for answer in each["answers"] if answer["question"] == question]
    assert bool(answer["remedy"]) == (answer["level"] != "ok"), answer
    return answer["level"], answer["answer"]


def test_every_question_is_answered_for_every_operation(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("app", "guarded", "everything", "flask", "charge"):
        _, found = document(capsys, f"{SHOP}:{name}")
        assert found["operations"]
        for operation in found["operations"]:
            assert [answer["question"] for answer in operation["answers"]] == list(QUESTIONS)
            for answer in operation["answers"]:
                assert answer["level"] in ("ok", "open", "unsafe")
                assert bool(answer["remedy"]) == (answer["level"] != "ok"), answer
    assert len(QUESTIONS) == 19


def test_a_sound_application_passes_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = check(capsys, f"{SHOP}:app")
    assert code == 0
    assert "payments.create (POST /payments)" in out
    assert "1 operation(s): 0 unsafe, 3 open, 16 ok" in out
    code, found = document(capsys, f"{SHOP}:app")
    assert (code, found["unsafe"], found["open"], found["unprotected"], found["mistakes"]) == (0, 0, 3, [], [])
    ok = {
        "key required": "yes",
        "key scope": "from_state",
        "key format and length": "a UUID, at least 10 characters",
        "retention": "lease 30 s (handlers: 5 min), answer 24 h, fact 30 d",
        "fingerprint canonical": "canonical form",
        "on mismatch": "422",
        "while running": "waits 2 s, then 409",
        "replayed or rebuilt": "exactly",
        "unique constraint": "HMAC under the id secret",
        "atomic claim": "durable",
        "transaction": "yes",
        "downstream idempotency": "not needed",
        "reconciliation": "not needed",
        "retry with the same key": "from the start",
        "cleanup": "own reaper",
    }
    for question, words in ok.items():
        level, said = level_of(found, "payments.create", question)
        assert level == "ok", question
        assert words in said


def test_open_questions_are_asked_and_missing_functions_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    _, found = document(capsys, f"{SHOP}:app")
    assert level_of(found, "payments.create", "gateway retries") == ("open", "cannot be seen from here")
    assert "nothing seals or shortens them" in level_of(found, "payments.create", "sensitive answers")[1]
    assert "alerts cannot be seen" in level_of(found, "payments.create", "metrics and alerts")[1]
    _, found = document(capsys, f"{SHOP}:guarded")
    assert "reconcilers need a SQL store" in level_of(found, "b", "reconciliation")[1]
    assert "exactly: status, bytes" in level_of(found, "b", "replayed or rebuilt")[1]


def test_declared_reconcilers_and_running_ones_are_distinguished(capsys: pytest.CaptureFixture[str]) -> None:
    by = f"{SHOP}:ask_provider"
    _, found = document(capsys, f"{SHOP}:stepped")
    assert level_of(found, "orders.place", "reconciliation") == (
        "open",
        f"{by} is declared; whether it runs cannot be seen from here",
    )
    assert "no reconciler of it was seen" in level_of(found, "orders.ship", "reconciliation")[1]
    _, found = document(capsys, f"{SHOP}:stepped", "--reconcile", by)
    level, said = level_of(found, "orders.place", "reconciliation")
    assert level == "ok"
    assert "asks up to 12 times, and believes that it did not happen from 2 min after the deadline" in said
    code, _, err = check(capsys, f"{SHOP}:app", "--reconcile", f"{SHOP}:engine")
    assert (code, "'engine' is not a reconciler" in err) == (2, True)


@pytest.mark.parametrize(
    ("app", "operation", "question", "level", "words"),
    [
        ("guarded", "POST /a/{id}", "key required", "open", "unprotected, and are counted"),
        ("guarded", "POST /a/{id}", "key scope", "unsafe", "on_unprotected='mark'"),
        ("guarded", "POST /a/{id}", "retention", "unsafe", "after_expiry='new'"),
        ("guarded", "POST /a/{id}", "atomic claim", "unsafe", "exists in one process only"),
        ("guarded", "POST /a/{id}", "metrics and alerts", "open", "warnings of the logger"),
        ("guarded", "POST /a/{id}", "cleanup", "open", "no reaper runs here"),
        ("guarded", "b", "key scope", "open", "caller comes from by_header"),
        ("guarded", "b", "fingerprint canonical", "open", "only amount count"),
        ("guarded", "b", "downstream idempotency", "open", "Semel cannot check it"),
        ("guarded", "b", "retry with the same key", "ok", "the same derived keys, up to 5 crashes"),
        ("guarded", "b", "unique constraint", "ok", "one table under one lock"),
        ("guarded", "POST /c", "fingerprint canonical", "ok", "Content-Digest"),
        ("guarded", "POST /c", "retention", "open", "after_expiry='new'"),
        ("guarded", "POST /c", "retry with the same key", "open", "also a 5xx"),
        ("guarded", "POST /d", "retention", "open", "answer 10 min"),
        ("guarded", "POST /d", "replayed or rebuilt", "ok", "and x-receipt"),
        ("guarded", "POST /d", "downstream idempotency", "open", "none is declared"),
        ("stepped", "orders.place", "key required", "ok", "comes from the request (path:number)"),
        ("stepped", "orders.place", "unique constraint", "ok", "so is the business reference (body:/invoice)"),
        ("stepped", "orders.place", "retention", "ok", "fact 30 d, operation 60 d"),
        ("stepped", "orders.place", "transaction", "open", "in parts: permit.local_step"),
        ("stepped", "orders.place", "downstream idempotency", "open", "step by step"),
        ("stepped", "orders.place", "retry with the same key", "ok", "continues after the finished steps"),
        ("stepped", "orders.place", "sensitive answers", "open", "its request is stored in clear"),
        ("stepped", "orders.ship", "sensitive answers", "open", "its request is stored sealed"),
        ("app", "payments.create", "transaction", "ok", "events of permit.emit are written in that commit"),
        ("everything", "any other", "key required", "open", "default of a middleware"),
        ("everything", "any other", "key scope", "open", "every client shares every key"),
        ("everything", "any other", "cleanup", "ok", "manage_engine=True"),
        ("by_user", "POST /a", "key scope", "ok", "user.id"),
        ("weak", "POST /a", "atomic claim", "unsafe", "synchronous=NORMAL"),
        ("charge", "payments.charge", "on mismatch", "ok", "KeyReusedError"),
        ("charge", "payments.charge", "while running", "ok", "InProgressError"),
        ("charge", "payments.charge", "gateway retries", "open", "cannot be seen"),
        ("charge", "payments.charge", "who ends it without its client", "ok", "only its client, by a retry"),
        ("ends", "parcels", "who ends it without its client", "ok", "own completer (manage_engine=True)"),
        ("ending", "parcels", "who ends it without its client", "ok", "own completer (install(app))"),
        ("waits", "parcels", "who ends it without its client", "open", "no completer runs here"),
    ],
)
def test_each_question_of_check_has_its_answer(
    app: str, operation: str, question: str, level: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, found = document(capsys, f"{SHOP}:{app}")
    given, said = level_of(found, operation, question)
    assert given == level
    assert words in said


def test_undeclared_routes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = check(capsys, f"{SHOP}:by_user")
    assert code == 1
    assert "UNSAFE  not declared                     POST /login is not protected: a retry runs it again" in out
    assert "open    not declared                     PUT /profile is not protected; PUT may be repeated" in out
    assert "--unprotected-ok 'POST /login'" in out
    code, out, _ = check(
        capsys, f"{SHOP}:by_user", "--unprotected-ok", "POST /login", "--unprotected-ok", "PUT /profile"
    )
    assert code == 0
    assert "not declared" not in out
    assert check(capsys, f"{SHOP}:everything")[1].count("POST /login") == 0  # the default takes it


def test_a_bulk_is_found_whether_its_method_or_a_function_is_the_endpoint(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = document(capsys, f"{SHOP}:lists")
    assert (code, found["unprotected"]) == (0, [])
    names = {each["operation"]: each["path"] for each in found["operations"]}
    assert names == {"cases.approve": "/approvals", "bills.pay": "/bills"}
    assert level_of(found, "cases.approve", "transaction") == (
        "ok",
        "yes, writes on item.connection commit with the item's outcome, up to 500 items in one transaction",
    )
    assert level_of(found, "cases.approve", "downstream idempotency")[0] == "ok"
    assert level_of(found, "cases.approve", "reconciliation")[0] == "ok"
    assert "up to 4 items that had begun may read UNKNOWN" in level_of(found, "bills.pay", "reconciliation")[1]
    assert "none is declared" in level_of(found, "bills.pay", "downstream idempotency")[1]
    assert "after the last finished item" in level_of(found, "bills.pay", "retry with the same key")[1]
    assert "item.key_for" in level_of(document(capsys, f"{SHOP}:mails")[1], "mails.send", "downstream idempotency")[1]


def test_flask(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = document(capsys, f"{SHOP}:flask")
    assert code == 1
    assert [each["path"] for each in found["operations"]] == ["/orders/{number}"]
    assert found["unprotected"] == ["POST /carts"]
    remedies = " ".join(str(each["remedy"]) for each in found["operations"][0]["answers"])
    assert "run `semel worker --url ...` beside it" in remedies
    for there_is_none in ("manage_engine", "semel serve", "semel.install"):
        assert there_is_none not in remedies


def test_a_module_of_functions_and_a_factory(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = document(capsys, SHOP)
    assert (code, [each["operation"] for each in found["operations"]]) == (0, ["payments.charge"])
    code, found = document(capsys, f"{SHOP}:make_app()")
    assert [each["operation"] for each in found["operations"]] == ["payments.create"]


def test_an_application_that_was_not_installed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = check(capsys, f"{SHOP}:forgotten")
    assert code == 1
    assert "semel.install(app) was not called" in out


def test_a_command_that_is_routed_to_by_get_is_unsafe(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = check(capsys, f"{SHOP}:reading")
    assert code == 1
    assert "UNSAFE" in out
    assert "carts.list is routed to by GET /carts, which is not a command: each such request fails" in out
    assert "→ route to it by POST, and serve reads from another endpoint" in out


def test_the_check_does_not_start_the_application(capsys: pytest.CaptureFixture[str]) -> None:
    from tests.check import shop

    check(capsys, f"{SHOP}:app")
    assert shop.app.middleware_stack is None
    assert not shop.engine.core.live


# --- the required tests ---


def test_the_required_tests_are_run_without_pytest(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = check(capsys, "--run", f"{SHOP}:safe")
    assert code == 0
    assert "14 required test(s): 0 failed, 14 passed" in out
    code, out, _ = check(capsys, f"{SHOP}:app", "--run", f"{SHOP}:unsafe")
    assert code == 1
    assert "1 operation(s): 0 unsafe" in out
    assert "FAILED  failure_after_the_effect" in out
    assert "hand it permit.key_for('charge')" in out
    assert "why: A worker dies when the money has moved" in out
    code, found = document(capsys, "--run", f"{SHOP}:unsafe")
    assert (code, found["unsafe"]) == (1, 1)
    assert [each["test"] for each in found["tests"] if each["failure"]] == ["failure_after_the_effect"]


def test_an_application_that_breaks_is_a_failed_test(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = check(capsys, "--run", f"{SHOP}:broken")
    assert code == 1
    assert out.count("RuntimeError: no configuration") == 14


# --- mistakes on the command line ---


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give an application, such as shop.main:app, or --run module:tests"),
        ([f"{SHOP}:ap"], "has no 'ap'; did you mean 'app'?"),
        ([f"{SHOP}:zzz"], "has no 'zzz'; it has "),
        (["no_such_module:app"], "there is no module 'no_such_module'"),
        ([f"{SHOP}:nothing"], "is of the type int, no ASGI or WSGI application"),
        ([f"{SHOP}:make_app"], "for a factory write 'tests.check.shop:make_app()'"),
        ([f"{SHOP}:breaks()"], "RuntimeError: no configuration"),
        (["json"], "has no operation that can be seen"),
        ([f"{SHOP}:app", "--unprotected-ok", "POST /payment"], "did you mean 'POST /payments'?"),
        (["--run", f"{SHOP}:app"], "is of the type FastAPI, no suite"),
        ([f"{SHOP}:app", "--rnu", "x"], "unknown option '--rnu'; did you mean '--run'?"),
    ],
)
def test_a_mistake_is_named(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = check(capsys, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = check(capsys, "--help")
    assert code == 0
    assert "semel check --run tests.test_payments:TestPayments" in out
    assert "exit codes:" in out


def test_mounted_operations_are_named_by_their_whole_path(capsys: pytest.CaptureFixture[str]) -> None:
    _, found = document(capsys, f"{SHOP}:outer")
    paths = {each["operation"]: each["path"] for each in found["operations"]}
    assert paths == {"POST /pay": "/api/pay", "payments.create": "/v1/payments", "any other": "/rest*"}
    assert found["unprotected"] == ["POST /api/bare"]
