"""What each framework's adapter can do: every yes is a case of the suite that all adapters run, or names its test."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Final

from guarantee_pages.markdown import HEADER, table
from guarantee_pages.named_tests import ROOT, link_to

sys.path.insert(0, str(ROOT))  # where `tests` is
from tests.frameworks.suite.adapters import ADAPTERS, Feature

NO: Final = "no: "
_GRPC: Final = "tests/grpc/test_server.py"
_BERRY: Final = "tests/frameworks/test_strawberry.py"
_CONNECTION: Final = f"{NO}`permit.connection`, or a session on it (`session_on`)"
_HTTP: Final = f"{NO}only over HTTP"

# What is no handler of HTTP requests has tests of its own. A cell names one, or begins with NO and says why there is
# none; the columns are gRPC and Strawberry.
_OTHERS: Final = {"gRPC": "grpc.md", "Strawberry": "graphql.md#strawberry"}
_NAMED: Final[Mapping[Feature, tuple[str, str]]] = {
    Feature.REPLAY: (
        f"{_GRPC}::test_a_retry_gets_the_first_response_and_nothing_happens_again",
        f"{_BERRY}::test_a_retry_gets_the_first_result_under_another_selection_alias_and_spelling",
    ),
    Feature.OTHER: (
        f"{_GRPC}::test_a_reused_key_is_refused_with_the_state_of_the_first",
        f"{_BERRY}::test_other_arguments_under_the_key_are_refused",
    ),
    Feature.RACE: (
        f"{_GRPC}::test_twenty_calls_at_once_have_one_effect",
        f"{_BERRY}::test_duplicates_at_once_have_one_effect",
    ),
    Feature.SPELLING: (
        f"{NO}a method has one name",
        f"{_BERRY}::test_a_retry_gets_the_first_result_under_another_selection_alias_and_spelling",
    ),
    Feature.BEFORE: (
        f"{_GRPC}::test_a_call_without_a_caller_does_nothing",
        f"{_BERRY}::test_permissions_come_before_the_claim_and_before_each_replay",
    ),
    Feature.DERIVED: (
        f"{_GRPC}::test_the_key_may_be_a_field_of_the_request",
        f"{_BERRY}::test_a_key_in_an_input_object_and_arguments_that_do_not_count",
    ),
    Feature.PERMIT: (f"{_GRPC}::test_a_method_reaches_its_permit", f"{_BERRY}::test_the_permit_belongs_to_the_field"),
    Feature.STEPS: (
        "tests/grpc/test_stopped.py::test_a_retry_repeats_no_finished_step",
        f"{NO}not tested",
    ),
    Feature.SESSION: (_CONNECTION, _CONNECTION),
    Feature.ATOMIC: (
        f"{_GRPC}::test_rows_and_record_are_committed_together_or_not_at_all",
        f"{_BERRY}::test_rows_and_record_of_an_atomic_field_are_committed_together",
    ),
    Feature.KILL: (
        "tests/grpc/test_killed.py::test_a_server_that_dies_around_the_commit_leaves_one_effect",
        "tests/frameworks/test_strawberry_served.py::test_a_kill_before_the_commit_of_an_atomic_field_undoes_it",
    ),
    Feature.EXCEPTION: (
        f"{_GRPC}::test_an_exception_is_unknown_and_reaches_the_first_caller_unchanged",
        f"{_BERRY}::test_an_error_of_the_resolver_leaves_the_outcome_unknown",
    ),
    Feature.STREAM: (
        f"{NO}streaming methods are refused at the declaration",
        f"{NO}a subscription is refused at the declaration",
    ),
    Feature.FORM: (
        f"{NO}a message is its bytes",
        "tests/frameworks/test_strawberry_served.py::test_files_count_by_their_bytes_also_after_a_kill",
    ),
    Feature.STATUS: (
        f"{NO}serve it over HTTP; the id is in `semel-operation`",
        f"{_BERRY}::test_the_status_of_an_unknown_outcome_is_linked",
    ),
    Feature.BULK: (f"{NO}not yet", f"{NO}each field of a request has a key of its own"),
    Feature.ACCEPTED: (f"{NO}a call has one answer", f"{NO}a field has one result"),
    Feature.IMPORTS: (_HTTP, _HTTP),
    Feature.OPENAPI: (_HTTP, _HTTP),
    Feature.COMMAND: (_HTTP, _HTTP),
}

_TEXT: Final = """# Frameworks

The table lists what each adapter supports. Every *yes* of an HTTP framework is a case of
[one suite that all adapters run](../tests/frameworks/suite/test_suite.py), against the framework's real server and its
own test client; for gRPC and Strawberry each *yes* links to its test. Every other cell gives the reason. Other ASGI and
WSGI frameworks use the middlewares for [ASGI](starlette.md#any-asgi-application) and [WSGI](wsgi.md). For
[GraphQL](graphql.md) Strawberry has an extension; other libraries need `success=` on any of them.

"""


def frameworks() -> str:
    """The page: a row for each feature, a column for each adapter."""
    at = next(place for place, each in enumerate(ADAPTERS) if each.name == "ASGI middleware")
    pages = [(each.name, each.page) for each in ADAPTERS]
    pages[at:at] = _OTHERS.items()
    heads = ("", *(f"[{name}]({page})" for name, page in pages))
    return HEADER + _TEXT + table(heads, _rows(at)) + "\n"


def _rows(at: int) -> Iterator[list[str]]:
    for feature in Feature:
        cells = [each.cannot.get(feature) or "yes" for each in ADAPTERS]
        cells[at:at] = [_link_cell(cell) for cell in _NAMED[feature]]
        yield [feature.value, *cells]


def _link_cell(cell: str) -> str:
    if cell.startswith(NO):
        return cell.removeprefix(NO)
    target = link_to(cell).partition("](")[2]  # raises where there is no such test
    return f"[yes]({target}"
