"""The case file: every mistake is one line that names the field and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.conform import CaseError, load_case, parse_case

LEAST = '[request]\npath = "/payments"\njson = {amount = 5}\n[effects]\nget = "/payments"\n'


def test_the_smallest_case_is_a_request_and_a_count() -> None:
    case = parse_case(LEAST)
    assert (case.request.method, case.request.path, case.request.body) == ("POST", "/payments", b'{"amount": 5}')
    assert (case.key_header, case.key_required, case.limits.parallel) == ("Idempotency-Key", True, 40)


def test_other_requests_inherit_missing_fields() -> None:
    case = parse_case(
        LEAST.replace("[effects]", 'headers = {X-Tenant = "t"}\n[effects]') + "[other]\njson = {amount = 6}\n"
    )
    other = case.requests["other"]
    assert (other.method, other.path, other.body, dict(other.headers)) == (
        "POST",
        "/payments",
        b'{"amount": 6}',
        {"X-Tenant": "t"},
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[request", "is not valid TOML"),
        ("", r"request is missing: add a table \[request\]"),
        ('[request]\npath = "/p"\njson = {}\n', "effects is missing"),
        (LEAST + "[reqest]\n", "reqest is unknown; did you mean request"),
        (LEAST.replace("path", "pth"), "request.pth is unknown; did you mean path"),
        (LEAST.replace('"/payments"\njson', '"payments"\njson'), "request.path must begin with /"),
        (LEAST.replace("json = {amount = 5}", ""), "request.json is missing"),
        (LEAST.replace("json", "body = 'x'\njson"), "request.json and request.body exclude each other"),
        (LEAST.replace("5", "2026-01-01"), "request.json has a value that JSON does not know"),
        (LEAST + 'file = "x"\n', "effects needs exactly one of .*; it has get and file"),
        (LEAST.replace('get = "/payments"', ""), "effects needs exactly one of .*; it has none"),
        (LEAST.replace('get = "/payments"', 'sql = "select 1"'), "effects.database must be"),
        (LEAST.replace('get = "/payments"', 'webhook = "0.0.0.0:99"'), "effects.webhook must be a loopback address"),
        (LEAST + 'pointer = "x"\n', "effects.pointer must be a JSON pointer"),
        (LEAST + "settle_seconds = 99\n", "effects.settle_seconds must be a number from 0 to 10"),
        (LEAST + "per_caller = 1\n", "effects.per_caller must be true or false"),
        (LEAST + '[callers.first]\n"a b" = "x"\n', "callers.first has 'a b'"),
        (LEAST + '[callers.first]\nX = "a\\nb"\n', "callers.first.X has a control character"),
        (LEAST + '[hooks]\nkill = ["x"]\n', "hooks.kill needs hooks.restart"),
        (LEAST + '[hooks]\nclock = "x"\n', "hooks.clock must be a list of words"),
        (LEAST + "[limits]\nparallel = 5000\n", "limits.parallel must be a number from 2 to 100"),
        (LEAST + "[number_a]\njson = {amount = 1}\n", "number_a and number_b go together"),
        ("format = 2\n" + LEAST, "format must be 1"),
        ("openapi = 'x'\n" + LEAST, "openapi must be a path"),
    ],
)
def test_a_mistake_names_the_field_and_the_remedy(text: str, message: str) -> None:
    with pytest.raises(CaseError, match=f"^payments.toml: .*{message}") as raised:
        parse_case(text, "payments.toml")
    assert len(str(raised.value).splitlines()) == 1 or "TOML" in message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match=r"none\.toml: cannot be read"):
        load_case(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_bytes(b"\xff")
    with pytest.raises(CaseError, match=r"bad\.toml: is not UTF-8"):
        load_case(tmp_path / "bad.toml")
