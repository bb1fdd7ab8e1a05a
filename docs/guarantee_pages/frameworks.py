"""What each framework's adapter can do: every yes names the test that shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from guarantee_pages.markdown import HEADER, table
from guarantee_pages.named_tests import linked

ADAPTERS: Final = {
    "FastAPI": "fastapi.md",
    "Starlette": "starlette.md",
    "Django, DRF": "django.md",
    "Flask": "flask.md",
    "Litestar": "litestar.md",
    "gRPC": "grpc.md",
    "Strawberry": "graphql.md#strawberry",
    "ASGI middleware": "starlette.md#any-asgi-application",
    "WSGI middleware": "wsgi.md",
}

_FAST = "tests/integrations/test_fastapi"
_STAR = "tests/integrations/test_starlette.py"
_DJANGO = "tests/frameworks/django_site/tests.py"
_FLASK = "tests/frameworks/test_flask.py"
_LITESTAR = "tests/frameworks/test_litestar.py"
_GRPC = "tests/grpc/test_server.py"
_BERRY = "tests/frameworks/test_strawberry.py"
_WEB = "tests/web/test_commands.py"
_WEB_ASGI = "tests/web/test_asgi.py"
_WEB_WSGI = "tests/web/test_wsgi.py"
_ATOMIC = "tests/atomic/test_http.py"

NO: Final = "no: "
_OUTSIDE: Final = f"{NO}it stands outside; ask `may=` before the store"
# In the order of ADAPTERS. A cell is the test that shows it, or begins with NO and says why not.
TABLE: Final[Mapping[str, tuple[str, ...]]] = {
    "a retry gets the first answer": (
        f"{_FAST}.py::test_a_command_runs_once_and_its_answer_is_replayed",
        f"{_STAR}::test_an_endpoint_may_be_anything_that_starlette_calls",
        f"{_DJANGO}::test_a_retry_gets_the_first_answer_and_no_second_effect",
        f"{_FLASK}::test_a_retry_gets_the_first_answer",
        f"{_LITESTAR}::test_a_retry_gets_the_first_answer_and_another_payload_is_refused",
        f"{_GRPC}::test_a_retry_gets_the_first_response_and_nothing_happens_again",
        f"{_BERRY}::test_a_retry_gets_the_first_result_under_another_selection_alias_and_spelling",
        f"{_WEB}::test_a_retry_gets_the_first_answer",
        f"{_WEB}::test_a_retry_gets_the_first_answer",
    ),
    "another payload under the key is refused": (
        f"{_FAST}.py::test_another_request_under_the_same_key_is_refused_in_every_state",
        f"{_WEB}::test_another_payload_is_refused_with_the_state_of_the_first",
        f"{_DJANGO}::test_another_body_another_caller_and_no_key_are_told_apart",
        f"{_FLASK}::test_a_retry_gets_the_first_answer",
        f"{_LITESTAR}::test_a_retry_gets_the_first_answer_and_another_payload_is_refused",
        f"{_GRPC}::test_a_reused_key_is_refused_with_where_the_first_stands",
        f"{_BERRY}::test_other_arguments_under_the_key_are_refused",
        f"{_WEB}::test_another_payload_is_refused_with_the_state_of_the_first",
        f"{_WEB}::test_another_payload_is_refused_with_the_state_of_the_first",
    ),
    "duplicates at once have one effect": (
        f"{_FAST}.py::test_twenty_parallel_duplicates_are_one_command",
        f"{_WEB_ASGI}::test_parallel_duplicates_have_one_effect_and_one_answer",
        "tests/frameworks/test_django.py::test_duplicates_at_two_servers_have_one_effect_and_one_answer",
        f"{_FLASK}::test_only_one_of_many_at_once_runs",
        f"{_LITESTAR}::test_twenty_at_once_have_one_effect",
        f"{_GRPC}::test_twenty_calls_at_once_have_one_effect",
        f"{_BERRY}::test_duplicates_at_once_have_one_effect",
        f"{_WEB_ASGI}::test_parallel_duplicates_have_one_effect_and_one_answer",
        f"{_WEB_WSGI}::test_parallel_duplicates_have_one_effect_and_one_answer",
    ),
    "what authentication or validation refuses leaves no record": (
        f"{_FAST}.py::test_what_is_refused_before_the_claim_is_never_recorded",
        f"{_STAR}::test_what_the_endpoints_own_decorators_refuse_is_never_recorded",
        f"{_DJANGO}::test_login_and_validation_come_before_the_claim",
        f"{_FLASK}::test_what_refuses_before_the_view_leaves_no_record",
        f"{_LITESTAR}::test_what_a_guard_or_validation_refuses_leaves_no_record",
        f"{_GRPC}::test_a_call_of_nobody_does_nothing",
        f"{_BERRY}::test_permissions_come_before_the_claim_and_before_each_replay",
        _OUTSIDE,
        _OUTSIDE,
    ),
    "ATOMIC: the framework's own session or transaction": (
        "tests/examples/test_bookings.py::test_a_kill_around_the_commit_leaves_all_of_it_or_nothing",
        f"{NO}`permit.connection`, or a session on it (`session_on`)",
        f"{_DJANGO}::test_an_exception_undoes_both_and_a_retry_runs",
        f"{_FLASK}::test_how_an_atomic_view_ends",
        f"{_LITESTAR}::test_rows_and_record_are_one_commit",
        f"{NO}`permit.connection`, or a session on it (`session_on`)",
        f"{NO}`permit.connection`, or a session on it (`session_on`)",
        f"{NO}`permit.connection`, or a session on it (`session_on`)",
        f"{NO}`permit.connection`, or a session on it (`session_on`)",
    ),
    "ATOMIC: rows and record in one commit": (
        f"{_ATOMIC}::test_writes_and_answer_are_one_commit",
        f"{_ATOMIC}::test_writes_and_answer_are_one_commit",
        f"{_DJANGO}::test_an_exception_undoes_both_and_a_retry_runs",
        f"{_FLASK}::test_how_an_atomic_view_ends",
        f"{_LITESTAR}::test_rows_and_record_are_one_commit",
        f"{_GRPC}::test_rows_and_record_are_committed_together_or_not_at_all",
        f"{_BERRY}::test_rows_and_record_of_an_atomic_field_are_committed_together",
        f"{_ATOMIC}::test_writes_and_answer_are_one_commit",
        f"{_ATOMIC}::test_writes_and_answer_are_one_commit",
    ),
    "killed before and after the commit": (
        "tests/examples/test_bookings.py::test_a_kill_around_the_commit_leaves_all_of_it_or_nothing",
        "tests/service/test_crashes.py::test_a_note_whose_worker_was_killed_is_written_once",
        "tests/frameworks/test_django.py::test_a_kill_around_the_commit_leaves_all_or_nothing",
        f"{_FLASK}::test_a_kill_around_the_commit_leaves_all_or_nothing",
        f"{_LITESTAR}::test_a_kill_around_the_commit_leaves_all_or_nothing",
        "tests/grpc/test_killed.py::test_a_server_that_dies_around_the_commit_leaves_one_effect",
        f"{NO}not tested on a server of its own",
        f"{NO}tested on the adapters that build on it",
        f"{NO}tested on the adapters that build on it",
    ),
    "an exception that becomes an answer is no success": (
        f"{_FAST}_answers.py::test_what_an_exception_means_that_the_application_makes_an_answer_of",
        f"{_FAST}_answers.py::test_what_an_exception_means_that_the_application_makes_an_answer_of",
        f"{_DJANGO}::test_an_exception_that_django_answers_is_in_doubt",
        f"{_FLASK}::test_an_exception_behind_the_view_is_no_success",
        f"{_LITESTAR}::test_how_a_handler_ends",
        f"{_GRPC}::test_an_exception_is_unknown_and_the_first_caller_sees_it_as_grpc_has_it",
        f"{_BERRY}::test_an_error_of_the_resolver_leaves_the_outcome_unknown",
        f"{NO}it sees the answer alone",
        f"{NO}it sees the answer alone",
    ),
    "streamed answers": (
        f"{_FAST}_answers.py::test_a_stream_is_kept_up_to_the_limit_and_reaches_its_first_client_whole",
        f"{_FAST}_answers.py::test_events_flow_at_once_and_are_never_run_again",
        f"{_DJANGO}::test_a_short_stream_is_kept_and_a_long_one_flows",
        f"{_FLASK}::test_a_stream_that_breaks_is_no_success",
        f"{_LITESTAR}::test_handlers_of_each_kind_are_protected",
        f"{NO}streaming methods are refused where they are declared",
        f"{NO}a subscription is refused where it is declared",
        f"{_WEB}::test_a_streamed_answer_that_breaks_is_unknown",
        f"{_WEB}::test_a_streamed_answer_that_breaks_is_unknown",
    ),
    "forms and files": (
        f"{_FAST}_bodies.py::test_uploads_are_compared_by_their_parts",
        f"{_FAST}_bodies.py::test_uploads_are_compared_by_their_parts",
        f"{_DJANGO}::test_a_form_with_a_file_counts_as_it_came_whoever_has_read_it",
        f"{_FLASK}::test_a_form_with_a_file_is_read_before_and_after_the_claim",
        f"{_LITESTAR}::test_uploads_count_with_their_bytes",
        f"{NO}a message is its bytes",
        f"{NO}the arguments count; a file among them is not tested",
        f"{_WEB}::test_another_spelling_of_the_same_payload_is_a_retry",
        f"{_WEB}::test_another_spelling_of_the_same_payload_is_a_retry",
    ),
    "the status of operations": (
        "tests/integrations/test_operations.py::test_an_operation_is_found_by_its_id_and_by_its_key",
        "tests/integrations/test_operations.py::test_an_operation_is_found_by_its_id_and_by_its_key",
        "tests/frameworks/test_django.py::test_the_contract_over_a_real_server",
        f"{_FLASK}::test_the_status_is_for_its_caller_alone",
        f"{_LITESTAR}::test_the_status_is_for_its_caller_alone",
        f"{NO}serve it over HTTP; the id is in `semel-operation`",
        f"{_BERRY}::test_the_status_of_an_unknown_outcome_is_linked",
        "tests/web/test_status.py::test_the_link_of_an_unknown_outcome_leads_to_its_status",
        "tests/web/test_status.py::test_the_link_of_an_unknown_outcome_leads_to_its_status",
    ),
    "lists of items (bulk)": (
        "tests/integrations/test_bulk.py::test_every_item_has_its_outcome_and_a_retry_gets_the_same_answer",
        "tests/integrations/test_bulk.py::test_every_item_has_its_outcome_and_a_retry_gets_the_same_answer",
        "tests/frameworks/django_site/tests_bulk.py::test_every_item_has_its_outcome_and_a_retry_gets_the_same_answer",
        "tests/frameworks/test_flask_bulk.py::test_every_item_has_its_outcome_and_a_retry_gets_the_same_answer",
        f"{NO}not yet",
        f"{NO}not yet",
        f"{NO}each field of a request has a key of its own",
        f"{NO}an endpoint of its own",
        f"{NO}an endpoint of its own",
    ),
    "`Prefer: respond-async`": (
        "tests/steps/test_respond_async.py::test_the_client_is_told_where_to_look_and_gets_the_answer_later",
        "tests/steps/test_respond_async.py::test_the_client_is_told_where_to_look_and_gets_the_answer_later",
        "tests/frameworks/django_site/tests_resumed.py::test_the_client_is_told_where_to_look_and_gets_the_answer_later",
        "tests/frameworks/test_flask_resumed.py::test_the_client_is_told_where_to_look_and_gets_the_answer_later",
        f"{_LITESTAR}::test_a_client_that_does_not_wait_is_told_where_to_look",
        f"{NO}a call has one answer",
        f"{NO}a field has one result",
        "tests/steps/test_respond_async.py::test_the_client_is_told_where_to_look_and_gets_the_answer_later",
        "tests/steps/test_resumed_wsgi.py::test_the_client_is_told_where_to_look_and_gets_the_answer_later",
    ),
    "OpenAPI": (
        "tests/integrations/test_openapi.py::test_every_command_is_described_wherever_it_is_included",
        f"{NO}Starlette writes none; `semel openapi` does",
        f"{_DJANGO}::test_drf_spectacular_describes_each_command",
        f"{NO}`semel openapi` writes it",
        f"{NO}not yet",
        f"{NO}it is HTTP's",
        f"{NO}it is HTTP's",
        f"{NO}`semel openapi` writes it",
        f"{NO}`semel openapi` writes it",
    ),
}

_TEXT: Final = """# Frameworks

What each adapter can do. Every *yes* leads to the test that shows it; where there is none, the reason stands there.
[Quart](quart.md) has an adapter of Litestar's kind; other ASGI and WSGI frameworks go through the middlewares for
[ASGI](starlette.md#any-asgi-application) and [WSGI](wsgi.md). For [GraphQL](graphql.md) Strawberry has an extension;
others need `success=` on any of them.

"""


def frameworks() -> str:
    """The page: a row for each ability, a column for each adapter."""
    rows = ([ability, *(_shown(cell) for cell in cells)] for ability, cells in TABLE.items())
    assert all(len(cells) == len(ADAPTERS) for cells in TABLE.values())
    return HEADER + _TEXT + table(("", *(f"[{name}]({page})" for name, page in ADAPTERS.items())), rows) + "\n"


def _shown(cell: str) -> str:
    if cell.startswith(NO):
        return cell.removeprefix(NO)
    target = linked(cell).partition("](")[2]  # raises where there is no such test
    return f"[yes]({target}"
