"""The reference service against its own OpenAPI document: Schemathesis sends what the document allows and forbids.

In process, over ASGI, with the application's lifespan; deterministic and bounded. Two of Schemathesis' checks are off:
`positive_data_acceptance`, because JSON Schema cannot say everything that is refused (a decimal text's bounds, a
simulation outside demonstrations, a key that was used with several operations); and `allow_header_conformance`,
because Starlette names in `Allow` the methods of one of a path's routes only.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema
from schemathesis.python import asgi
from schemathesis.schemas import BaseSchema

from semel import Engine
from semel.reference import orders
from semel.reference.app import create_app
from semel.reference.settings import Settings

SEED = 20_260_101
EXAMPLES = 12  # of each operation and phase, beside all cases of the coverage phase
REPEATED = 120
TOKEN = "Bearer alice"
OFF = ("positive_data_acceptance", "allow_header_conformance")
COMMANDS = ("/payments", "/orders", "/notes")
REPLAYED = "idempotency-replayed"


@dataclass
class Report:
    """What a run found: failures by check and operation, and how often each check was made."""

    failures: dict[tuple[str, str, str], str] = field(default_factory=dict)
    checks: dict[str, int] = field(default_factory=dict)
    statuses: set[int] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[FastAPI]:
    """The service on a new database, started when it is first called."""
    url = f"sqlite:///{tmp_path / 'semel.db'}"
    engine = Engine.connect(url)
    engine.migrate()
    engine.perform("create_table", orders.create_table)
    engine.close()
    made = create_app(Settings(url=url))
    yield made
    asgi.shutdown_lifespans()


def schema_of(app: FastAPI, document: dict[str, Any] | None = None, **phases: bool) -> BaseSchema:
    """The document of an application, ready to be driven against it."""
    config = SchemathesisConfig.from_dict(
        {
            "seed": SEED,
            "headers": {"Authorization": TOKEN},
            "generation": {"deterministic": True, "max-examples": EXAMPLES},
            "checks": {name: {"enabled": False} for name in OFF},
            "phases": {name: {"enabled": on} for name, on in phases.items()},
        }
    )
    schema = schemathesis.openapi.from_dict(app.openapi() if document is None else document, config=config)
    schema.app = app
    return schema


def run_schemathesis(schema: BaseSchema) -> Report:
    """Everything Schemathesis has to say."""
    report = Report()
    for event in from_schema(schema).execute():
        if isinstance(event, events.NonFatalError | events.FatalError):
            report.errors.append(str(event))
        if not isinstance(event, events.ScenarioFinished):
            continue
        for id, checks in event.recorder.checks.items():
            interaction = event.recorder.interactions.get(id)
            if interaction is not None and interaction.response is not None:
                report.statuses.add(interaction.response.status_code)
            for check in checks:
                report.checks[check.name] = report.checks.get(check.name, 0) + 1
                if check.failure_info is not None:
                    failure = check.failure_info.failure
                    case = event.recorder.cases[id].value
                    place = (check.name, event.recorder.label, failure.title)
                    report.failures.setdefault(place, f"{failure.message}\n{case.as_curl_command()}")
    return report


def test_the_service_conforms_to_its_document(app: FastAPI) -> None:
    report = run_schemathesis(schema_of(app, fuzzing=False, stateful=False))
    assert report.errors == []
    assert report.failures == {}
    # What was not checked would be silent as well.
    for check in ("not_a_server_error", "status_code_conformance", "content_type_conformance", "ignored_auth"):
        assert report.checks[check] > 50, report.checks
    for check in ("response_schema_conformance", "missing_required_header", "unsupported_method"):
        assert report.checks[check] > 50, report.checks
    assert {200, 201, 400, 401, 404, 405, 422} <= report.statuses


def test_the_service_conforms_to_its_document_for_random_request_chains(app: FastAPI) -> None:
    report = run_schemathesis(schema_of(app, examples=False, coverage=False))
    assert report.errors == []
    assert report.failures == {}
    assert report.checks["response_headers_conformance"] > 50, report.checks
    assert {200, 201, 400, 404, 422} <= report.statuses


def without_statuses(document: dict[str, Any]) -> None:
    del document["paths"]["/payments"]["post"]["responses"]["401"]


def with_another_problem(document: dict[str, Any]) -> None:
    problem = document["paths"]["/orders"]["post"]["responses"]["400"]["content"]["application/problem+json"]["schema"]
    problem["allOf"][1]["properties"]["code"]["enum"] = ["SOMETHING_ELSE"]


def with_a_required_key(document: dict[str, Any]) -> None:
    for parameter in document["paths"]["/notes"]["post"]["parameters"]:
        parameter["required"] = True  # in truth it is optional there


@pytest.mark.parametrize(
    ("harm", "check"),
    [
        (without_statuses, "status_code_conformance"),
        (with_another_problem, "response_schema_conformance"),
        (with_a_required_key, "missing_required_header"),
    ],
)
def test_a_wrong_document_is_detected(app: FastAPI, harm: Callable[[dict[str, Any]], None], check: str) -> None:
    document = app.openapi()
    harm(document)
    report = run_schemathesis(schema_of(app, document, fuzzing=False, stateful=False))
    assert check in {name for name, _, _ in report.failures}


@pytest.mark.parametrize("path", COMMANDS)
def test_every_success_is_replayed_and_another_body_is_refused(app: FastAPI, path: str) -> None:
    """Semel's own check, driven by the document: same key and body, same bytes; same key, other body: 422."""
    operation = schema_of(app)[path]["POST"]
    keys = (str(uuid.UUID(int=number)) for number in range(10_000))
    succeeded = 0

    @settings(
        derandomize=True, database=None, deadline=None, max_examples=REPEATED, suppress_health_check=list(HealthCheck)
    )
    @given(operation.as_strategy())
    def judge(case: Any) -> None:
        nonlocal succeeded
        headers = {"Authorization": TOKEN, "Idempotency-Key": next(keys)}
        case.headers = {}
        first = case.call(session=client, headers=headers)
        assert REPLAYED not in first.headers
        if first.status_code != 201:
            assert first.status_code in (400, 422)
            return
        succeeded += 1
        again = case.call(session=client, headers=headers)
        assert (again.status_code, again.content) == (first.status_code, first.content)
        assert again.headers[REPLAYED] == ["true"]
        assert again.headers["content-type"] == first.headers["content-type"]
        case.body = {**case.body, **OTHER[path]}
        other = case.call(session=client, headers=headers)
        assert other.status_code == 422
        assert other.json()["code"] == "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"
        assert case.call(session=client, headers={**headers, "Authorization": "Bearer bob"}).status_code == 201

    with asgi.get_client(cast(Any, app)) as client:
        judge()
    assert succeeded >= REPEATED // 20


OTHER: dict[str, dict[str, Any]] = {
    "/payments": {"customerId": "somebody else"},
    "/orders": {"sku": "something else"},
    "/notes": {"text": "something else"},
}
