"""Every verdict and every refusal as a problem document."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from semel.bulk import http as bulk
from semel.core.model import (
    Answer,
    InProgress,
    KeyExpired,
    KeyReused,
    NotReplayable,
    OutcomeUnknown,
    ReferenceTaken,
    State,
    Unreadable,
)
from semel.errors import (
    ConfigurationError,
    InvalidBody,
    InvalidKey,
    MissingKey,
    RequestError,
    RequestTooLarge,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
)
from semel.http.problem_page import ENTRIES, problem_page
from semel.http.problems import KINDS, MIDDLEWARE_KINDS, PROXY_KINDS, Kind, Problems, Refusal, anchor_of
from semel.operations import http as operations

DOCS = Path(__file__).resolve().parents[2] / "docs"
ID = bytes(range(16))
ID_TEXT = "00010203-0405-0607-0809-0a0b0c0d0e0f"
STORED = "stored-canary"


def header(answer: Answer, name: bytes) -> list[bytes]:
    return [value for given, value in answer.headers if given == name]


@pytest.mark.parametrize(
    ("verdict", "status", "code", "retryable", "key_action", "named"),
    [
        (KeyReused(), 422, "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST", False, "query", False),
        (KeyReused(ID, State.PROCESSING), 422, "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST", False, "query", True),
        (KeyReused(ID, State.SUCCEEDED), 422, "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST", False, "new", True),
        (InProgress(ID, 2_000_001), 409, "IDEMPOTENCY_REQUEST_IN_PROGRESS", True, "keep", True),
        (OutcomeUnknown(ID, STORED), 409, "IDEMPOTENCY_OUTCOME_UNKNOWN", False, "keep", True),
        (KeyExpired(ID), 409, "IDEMPOTENCY_RECORD_EXPIRED", False, "query", True),
        (ReferenceTaken(), 409, "IDEMPOTENCY_REFERENCE_TAKEN", False, "keep", False),
        (NotReplayable(ID, STORED, STORED), 409, "IDEMPOTENCY_RESPONSE_NOT_REPLAYABLE", False, "query", True),
        (Unreadable(ID, "recipe", STORED), 500, "IDEMPOTENCY_RECORD_UNREADABLE", False, "keep", True),
    ],
)
def test_each_verdict_has_its_problem_document(
    verdict: Refusal, status: int, code: str, retryable: bool, key_action: str, named: bool
) -> None:
    answer = Problems().of_verdict(verdict)
    document = json.loads(answer.body)
    assert answer.status == document["status"] == status
    assert header(answer, b"semel-code") == [document["code"].encode()] == [code.encode()]
    assert document["type"] == "urn:semel:problem:" + code.lower().replace("_", "-")
    assert (document["retryable"], document["keyAction"]) == (retryable, key_action)
    assert document["title"]
    assert document["detail"]
    assert STORED.encode() not in answer.body
    assert (document.get("operationId") == ID_TEXT) is named
    page = f'</operations/problems#{code.lower().replace("_", "-")}>; rel="describedby"'.encode()
    assert header(answer, b"link") == [f'</operations/{ID_TEXT}>; rel="status"'.encode()] * named + [page]
    assert bool(header(answer, b"retry-after")) is retryable


@pytest.mark.parametrize(
    ("left", "waited", "seconds"),
    [(0, 0, 1), (1, 0, 1), (9_000_000, 0, 1), (9_000_000, 1_000_001, 2), (9_000_000, 20_000_000, 9)],
)
def test_in_progress_suggests_a_retry_after_the_time_waited(left: int, waited: int, seconds: int) -> None:
    answer = Problems().of_verdict(InProgress(ID, left, waited_us=waited))
    assert header(answer, b"retry-after") == [b"%d" % seconds]
    assert json.loads(answer.body)["retryAfter"] == seconds


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (MissingKey("say it"), 400, "MISSING_IDEMPOTENCY_KEY"),
        (InvalidKey("say it"), 400, "INVALID_IDEMPOTENCY_KEY"),
        (RequestTooLarge("say it"), 413, "IDEMPOTENCY_REQUEST_TOO_LARGE"),
        (InvalidBody("say it"), 400, "IDEMPOTENCY_REQUEST_INVALID"),
        (StoreUnavailable("host=db"), 503, "IDEMPOTENCY_STORE_UNAVAILABLE"),
        (StoreTimeout("host=db"), 503, "IDEMPOTENCY_STORE_UNAVAILABLE"),
    ],
)
def test_each_error_has_its_problem_document(error: RequestError | StoreError, status: int, code: str) -> None:
    document = json.loads(Problems().of_error(error).body)
    assert (document["status"], document["code"]) == (status, code)
    assert ("say it" in document["detail"]) is isinstance(error, RequestError)
    assert "host" not in document["detail"]


def test_codes_are_distinguished() -> None:
    assert len({kind.code for kind in KINDS}) == len(KINDS)
    assert all(isinstance(kind, Kind) and 400 <= kind.status < 600 for kind in KINDS)


def test_links_follow_the_configuration() -> None:
    problems = Problems(
        type_base="https://api.example/p/", operations_path="/v1/ops/{id}", resource_paths={"payment": "/payments/{id}"}
    )
    answer = problems.of_verdict(NotReplayable(ID, "payment", 'a"/>b'))
    document = json.loads(answer.body)
    assert document["type"] == "https://api.example/p/idempotency-response-not-replayable"
    assert document["operation"] == f"/v1/ops/{ID_TEXT}"
    assert document["resource"] == "/payments/a%22%2F%3Eb"
    assert header(answer, b"link") == [
        f'</v1/ops/{ID_TEXT}>; rel="status"'.encode(),
        b'</payments/a%22%2F%3Eb>; rel="related"',
        b'<https://api.example/p/idempotency-response-not-replayable>; rel="describedby"',
    ]


@pytest.mark.parametrize(
    ("options", "link"),
    [
        ({}, [b'</operations/problems#missing-idempotency-key>; rel="describedby"']),
        ({"operations_path": "/v1/ops/{id}"}, [b'</v1/ops/problems#missing-idempotency-key>; rel="describedby"']),
        ({"operations_path": None}, []),
        ({"page": ""}, []),
        ({"page": "/errors"}, [b'</errors#missing-idempotency-key>; rel="describedby"']),
        (
            {"page": "https://docs.example/e", "type_base": "https://x.example/"},
            [b'<https://docs.example/e#missing-idempotency-key>; rel="describedby"'],
        ),
        ({"type_base": "https://x.example/"}, [b'<https://x.example/missing-idempotency-key>; rel="describedby"']),
        ({"type_base": "https://x.example/p#"}, [b'<https://x.example/p#missing-idempotency-key>; rel="describedby"']),
    ],
)
def test_a_problem_links_to_the_page_about_its_code(options: dict[str, Any], link: list[bytes]) -> None:
    assert header(Problems(**options).of_error(MissingKey("say it")), b"link") == link


def test_the_page_explains_every_code() -> None:
    kinds = (*KINDS, *MIDDLEWARE_KINDS, *PROXY_KINDS, *bulk.KINDS, operations.NOT_FOUND, operations.BAD_QUERY)
    assert {(kind.code, kind.status) for kind in kinds} == {(entry.code, entry.status) for entry in ENTRIES}
    assert len(ENTRIES) == len(kinds)
    text = problem_page().body.decode()
    assert all(f'id="{anchor_of(kind.code)}"' in text for kind in kinds)
    assert "`" not in text


def test_the_published_page_is_the_one_that_is_served() -> None:
    make = runpy.run_path(str(DOCS / "make_problems.py"))
    assert make["page"]() == (DOCS / "problems.md").read_text("utf-8"), "run: python docs/make_problems.py"


def test_without_a_place_for_operations_there_is_no_link() -> None:
    answer = Problems(operations_path=None).of_verdict(OutcomeUnknown(ID, "lapsed"))
    assert header(answer, b"link") == []
    assert json.loads(answer.body)["operationId"] == ID_TEXT
    assert "operation" not in json.loads(answer.body)


@pytest.mark.parametrize(
    "options",
    [
        {"type_base": "a\r\nb"},
        {"type_base": "caf\xe9"},
        {"type_base": "https://a b/"},
        {"page": "/<here>"},
        {"page": "/a\nb"},
        {"challenge": "a\nb"},
        {"operations_path": "/operations"},
        {"operations_path": "/{id}/{id}"},
        {"operations_path": "/<{id}>"},
        {"resource_paths": {"payment": "/payments"}},
    ],
)
def test_an_impossible_configuration_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        Problems(**options)  # type: ignore[arg-type]
