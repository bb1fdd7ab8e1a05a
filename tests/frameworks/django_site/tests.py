"""Run by Django's own runner, in its own process (``tests/frameworks/test_django.py``)."""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
import threading
import uuid
from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import psycopg
from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib.auth.models import Group, Permission, User
from django.core import checks
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.handlers.asgi import ASGIHandler, ASGIRequest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, OperationalError, connections, models
from django.http import HttpResponse, JsonResponse
from django.test import AsyncClient, Client, TestCase, TransactionTestCase, override_settings
from django.test.utils import isolate_apps
from django.utils.decorators import method_decorator
from django.utils.functional import SimpleLazyObject
from rest_framework.authentication import BasicAuthentication

from semel.cli.main import Project, main
from semel.errors import ConfigurationError
from semel.http.caller import Caller
from semel.http.problems import Problems
from semel.integrations import django as semel
from semel.integrations.django.site import _caller_of, site
from semel.stores.sql import django as databases
from tests.frameworks.django_site import rest, views
from tests.frameworks.django_site.models import Effect
from tests.service.served import await_true


class Asking:
    """Requests with a key and a token."""

    serialized_rollback = True  # quicker after each test than to make every permission anew
    client: Any

    def setUp(self) -> None:
        self.key = str(uuid.uuid4())
        self.client = Client(raise_request_exception=False)
        views.HOOKS.clear()

    def ask(
        self, path: str, body: Any = None, *, caller: str | None = "alice", key: str | None = "", **more: Any
    ) -> Any:
        headers = dict(more.pop("headers", {}))
        if caller is not None:
            headers["Authorization"] = f"Bearer {caller}"
        if key is not None:
            headers["Idempotency-Key"] = key or self.key
        data = body if isinstance(body, dict) and "file" in body else json.dumps(body or {})
        if not isinstance(data, dict):
            more.setdefault("content_type", "application/json")
        return self.client.post(path, data, headers=headers, **more)

    def twice(self, path: str, body: Any = None, **more: Any) -> tuple[Any, Any]:
        first, second = self.ask(path, body, **more), self.ask(path, body, **more)
        assert "Idempotency-Replayed" not in first.headers, first.content
        assert second.headers.get("Idempotency-Replayed") == "true", (first.content, second.content)
        assert (second.status_code, second.content) == (first.status_code, first.content)
        return first, second

    def assert_honoured(self, *answers: Any) -> None:
        """Each says for how long its key is honoured, and where the operation's status is: one and the same."""
        said = {(each.headers["Idempotency-Key-Lifetime"], *self.status_links(each)) for each in answers}
        assert [len(each) for each in said] == [2], said

    def status_links(self, answered: Any) -> list[str]:
        links = answered.headers.get("Link", "").split(", ")
        return [each for each in links if 'rel="status"' in each]

    def state(self, path: str = "/operations/") -> Any:
        """The status of this key's operation, or None."""
        found = self.client.get(f"{path}?key={self.key}", headers={"Authorization": "Bearer alice"})
        return json.loads(found.content)["state"] if found.status_code == 200 else None


def run_semel(*arguments: str) -> Any:
    """A command's document, with any exit code."""
    with redirect_stdout(io.StringIO()) as told:
        main(["--json", *arguments])
    return json.loads(told.getvalue())


def form_of(note: str, size: int) -> bytes:
    """A form with a file, with the boundary "x"."""
    field = f'--x\r\nContent-Disposition: form-data; name="note"\r\n\r\n{note}\r\n'
    file = '--x\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
    return f"{field}{file}{'x' * size}\r\n--x--\r\n".encode()


def effects() -> list[str]:
    return list(Effect.objects.order_by("pk").values_list("what", flat=True))


def lost_line() -> OperationalError:
    """What Django raises where the database's answer to a COMMIT does not come."""
    cause: Any = psycopg.OperationalError("server closed the connection unexpectedly")
    if connections["default"].vendor == "sqlite":
        cause = sqlite3.OperationalError("interrupted")
        cause.sqlite_errorcode = sqlite3.SQLITE_INTERRUPT
    error = OperationalError(*cause.args)
    error.__cause__ = cause
    return error


class AtomicTests(Asking, TransactionTestCase):  # type: ignore[misc]  # Django ships no types
    """The record commits with Django's rows, or neither does."""

    databases = {"default", "other"}  # noqa: RUF012 -- as Django has it

    def test_a_retry_gets_the_first_answer_and_no_second_effect(self) -> None:
        first, second = self.twice("/atomic", {"what": "a"})
        assert first.status_code == 201
        assert second.headers["Location"] == first.headers["Location"]
        assert second.headers["X-Outer"] == "seen"  # the other middlewares treat a replay as any answer
        assert effects() == ["a"]
        assert self.state() == "SUCCEEDED"

    def test_first_answers_and_replays_have_the_lifetime_header(self) -> None:
        for path, do in (("/atomic", ""), ("/atomic", "refuse"), ("/external", ""), ("/idempotent", "")):
            self.setUp()
            self.assert_honoured(*self.twice(path, {"do": do}))

    def test_an_answer_whose_rows_are_rolled_back_has_no_lifetime_header(self) -> None:
        for do in ("busy", "raise", "rollback", "missing", "long"):
            answered = self.ask("/atomic", {"do": do})
            assert "Idempotency-Key-Lifetime" not in answered.headers, do
            assert self.status_links(answered) == [], do
        failing = mock.Mock(side_effect=[DatabaseError("the line broke")])
        with mock.patch.object(type(connections["default"]), "_commit", failing):
            assert self.status_links(self.ask("/atomic", {"what": "c"})) == []

    def test_another_body_another_caller_and_no_key_are_distinguished(self) -> None:
        self.ask("/atomic", {"what": "a"})
        assert self.ask("/atomic", {"what": "b"}).status_code == 422
        assert self.ask("/atomic", {"what": "a"}, key=None).status_code == 400
        assert self.ask("/atomic", {"what": "c"}, caller="bob").status_code == 201
        assert self.ask("/atomic", {"what": "d"}, caller=None, headers={}).status_code == 401
        assert effects() == ["a", "c"]

    def test_an_exception_undoes_both_and_a_retry_runs(self) -> None:
        assert self.ask("/atomic", {"do": "raise"}).status_code == 500
        assert self.ask("/atomic", {"do": "missing"}, key=str(uuid.uuid4())).status_code == 404
        assert self.ask("/atomic", {"do": "denied"}, key=str(uuid.uuid4())).status_code == 403
        assert (effects(), self.state()) == ([], None)

    def test_a_definite_refusal_is_rolled_back_and_replayed(self) -> None:
        first, _ = self.twice("/atomic", {"do": "refuse"})
        assert (first.status_code, effects(), self.state()) == (409, [], "FAILED_REPLAYABLE")

    def test_an_answer_that_may_succeed_later_is_rolled_back_and_frees_the_key(self) -> None:
        assert [self.ask("/atomic", {"do": "busy"}).status_code for _ in range(2)] == [429, 429]
        assert (effects(), self.state()) == ([], None)

    def test_a_view_that_continues_after_a_failed_statement_gets_its_error_not_a_503(self) -> None:
        for do in ("swallow", "swallow-orm", "close"):
            answers = [self.ask("/atomic", {"do": do}) for _ in range(2)]
            assert [each.status_code for each in answers] == [500, 500], do
            assert not any("Semel-Code" in each.headers for each in answers)
            assert (effects(), self.state()) == ([], None)

    def test_a_statement_that_fails_in_an_inner_block_undoes_nothing_else(self) -> None:
        self.twice("/atomic", {"what": "i", "do": "inner"})
        assert effects() == ["i"]
        self.key = str(uuid.uuid4())  # what failed before is no reason of a rollback that is asked for
        assert self.ask("/atomic", {"do": "rollback"}).status_code == 201

    def test_a_view_that_sets_rollback_records_nothing(self) -> None:
        assert [self.ask("/atomic", {"do": "rollback"}).status_code for _ in range(2)] == [201, 201]
        assert (effects(), self.state()) == ([], None)

    def test_an_exception_that_a_layer_inside_the_transaction_answers_is_rolled_back(self) -> None:
        assert [self.ask("/quiet").status_code for _ in range(2)] == [500, 500]
        assert (effects(), self.state()) == ([], None)

    def test_on_commit_hooks_run_once_after_the_commit_and_never_for_a_replay(self) -> None:
        self.twice("/atomic", {"what": "h", "do": "hook"})
        assert views.HOOKS == ["h"]

    def test_a_nested_block_that_failed_is_undone_alone(self) -> None:
        self.twice("/atomic", {"what": "n", "do": "nested"})
        assert effects() == ["n"]

    def test_a_failed_commit_leaves_nothing_and_no_hook_runs(self) -> None:
        kind = type(connections["default"])
        failing = mock.Mock(side_effect=[DatabaseError("the line broke")])
        with mock.patch.object(kind, "_commit", failing):
            assert self.ask("/atomic", {"what": "c", "do": "hook"}).status_code == 500
        assert (effects(), self.state(), views.HOOKS) == ([], None, [])
        assert self.ask("/atomic", {"what": "c", "do": "hook"}).status_code == 201

    def test_a_commit_that_no_server_confirms_may_be_retried(self) -> None:
        failing = mock.Mock(side_effect=[lost_line()])
        with mock.patch.object(type(connections["default"]), "_commit", failing):
            answer = self.ask("/atomic", {"what": "c", "do": "hook"})
        assert (answer.status_code, answer.headers["Semel-Code"]) == (503, "IDEMPOTENCY_STORE_UNAVAILABLE")
        assert (answer.json()["retryable"], answer.json()["mayHaveHappened"]) == (True, True)
        assert (effects(), self.state(), views.HOOKS) == ([], None, [])
        assert self.ask("/atomic", {"what": "c", "do": "hook"}).status_code == 201

    def test_templates_and_streams_are_part_of_the_transaction(self) -> None:
        first, _ = self.twice("/atomic", {"do": "template"})
        assert first.content.startswith(b"made ")
        self.key = str(uuid.uuid4())
        stream = [b"".join(self.ask("/atomic", {"do": "stream"})) for _ in range(2)]
        assert stream == [b"01234", b"01234"]

    def test_an_answer_that_is_too_long_is_rolled_back(self) -> None:
        answered = self.ask("/atomic", {"do": "long"})
        assert json.loads(answered.content)["code"] == "IDEMPOTENCY_ANSWER_TOO_LARGE"
        assert (effects(), self.state()) == ([], None)

    def test_the_key_may_come_from_the_path(self) -> None:
        answers = [self.ask(f"/numbered/{n}", key=None).status_code for n in (7, 7, 8)]
        assert (answers, effects()) == ([201, 201, 201], ["number 7", "number 8"])

    def test_another_database_has_its_own_store(self) -> None:
        self.twice("/elsewhere", {"what": "o"})
        assert effects() == []
        assert list(Effect.objects.using("other").values_list("what", flat=True)) == ["o"]
        assert self.state() == "SUCCEEDED"

    def test_rows_of_another_database_are_refused_unless_they_are_declared_to_be_beside(self) -> None:
        def others() -> list[str]:
            return list(Effect.objects.using("other").values_list("what", flat=True))

        self.client = Client()
        for _ in range(2):
            with self.assertRaisesMessage(ConfigurationError, "SEMEL = {'BESIDE': ['other']}"):
                self.ask("/atomic", {"do": "beside"})
        assert (effects(), others(), self.state()) == ([], [], None)
        with override_settings(SEMEL={**settings.SEMEL, "BESIDE": ["other"]}):
            self.twice("/atomic", {"do": "beside"})
        assert (effects(), others()) == (["x"], ["beside"])
        self.key = str(uuid.uuid4())
        self.twice("/external", {"do": "beside"})
        assert (effects(), others()) == (["x"] * 2, ["beside"] * 2)

    def in_chunks(self, path: str, body: bytes, kind: str = "application/json", source: Any = None) -> Any:
        """A request over WSGI whose body comes in chunks, as gunicorn tells it."""
        chunked = {"wsgi.input": source or io.BytesIO(body), "wsgi.input_terminated": True, "CONTENT_LENGTH": ""}
        headers = {"Authorization": "Bearer alice", "Idempotency-Key": self.key}
        return self.client.generic("POST", path, b"replaced", kind, headers=headers, **chunked)

    def test_a_body_in_chunks_reaches_the_claim_and_the_view(self) -> None:
        boundary = "multipart/form-data; boundary=x"
        for path, body, kind, effect in (
            ("/atomic", b'{"what": "json"}', "application/json", "json"),
            ("/external", b'{"what": "more"}', "application/json", "more"),
            ("/rest/", b'{"what": "rest"}', "application/json", "rest"),
            ("/upload", form_of("n", 5000), boundary, "n a.txt 5000"),
        ):
            self.key = str(uuid.uuid4())
            first, second = self.in_chunks(path, body, kind), self.in_chunks(path, body, kind)
            assert (first.status_code, second.status_code) == (201, 201), first.content
            assert second.headers["Idempotency-Replayed"] == "true"
            assert effects().count(effect) == 1, path
            assert self.in_chunks(path, body.replace(effect[:1].encode(), b"o", 1), kind).status_code == 422
            headers = {"Authorization": "Bearer alice", "Idempotency-Key": self.key}
            announced = self.client.generic("POST", path, body, kind, headers=headers)
            assert announced.headers.get("Idempotency-Replayed") == "true", (path, announced.content)

    def test_a_body_in_chunks_that_is_cut_or_too_long_runs_nothing(self) -> None:
        class BrokenChunk(Exception):
            """As gunicorn has one of its own."""

        def make_broken_stream(error: Exception) -> Any:
            return mock.Mock(read=mock.Mock(side_effect=[b'{"what"', error]))

        assert self.in_chunks("/atomic", b"", source=make_broken_stream(BrokenChunk())).status_code == 400
        assert self.in_chunks("/atomic", b"", source=make_broken_stream(OSError("gone"))).status_code == 500
        long = self.in_chunks("/atomic", b'{"what": "' + b"x" * site().body_bytes_max + b'"}')
        assert (long.status_code, long.headers["Semel-Code"]) == (413, "IDEMPOTENCY_REQUEST_TOO_LARGE")
        assert self.in_chunks("/atomic", b'{"what": "a"}').status_code == 201
        assert effects() == ["a"]

    def test_a_body_that_the_server_withholds_is_not_taken_for_an_empty_one(self) -> None:
        withheld = {"HTTP_TRANSFER_ENCODING": "chunked", "CONTENT_LENGTH": ""}
        headers = {"Authorization": "Bearer alice", "Idempotency-Key": self.key}
        for path in ("/atomic", "/external", "/rest/"):
            refused = self.client.generic("POST", path, b"", "application/json", headers=headers, **withheld)
            told = (refused.status_code, refused.headers.get("Semel-Code"))
            assert told == (400, "IDEMPOTENCY_REQUEST_INVALID"), (path, refused.content)
        assert effects() == []
        assert self.ask("/atomic", {"what": "a"}).status_code == 201

    def test_a_body_in_chunks_over_asgi_is_announced_to_the_view(self) -> None:
        async def ask(body: bytes) -> Any:
            headers = {"host": "testserver", "authorization": "Bearer alice", "idempotency-key": self.key}
            lines = [(name.encode(), value.encode()) for name, value in headers.items()]
            lines.append((b"content-type", b"application/json"))
            scope = {"type": "http", "method": "POST", "path": "/rest/", "headers": lines}
            return await ASGIHandler().get_response_async(ASGIRequest(scope, io.BytesIO(body)))

        told = [async_to_sync(ask)(b'{"what": "a"}') for _ in range(2)]
        assert [each.status_code for each in told] == [201, 201], told[0].content
        assert (told[1].headers["Idempotency-Replayed"], effects()) == ("true", ["a"])

    def test_an_outer_middleware_that_fails_leaves_a_success_to_be_replayed(self) -> None:
        assert self.ask("/atomic", {"what": "a"}, headers={"X-Outer": "boom"}).status_code == 500
        second = self.ask("/atomic", {"what": "a"})
        assert (second.status_code, second.headers["Idempotency-Replayed"], effects()) == (201, "true", ["a"])

    def test_a_form_with_a_file_counts_as_it_came_even_after_it_was_read(self) -> None:
        def form(note: str) -> dict[str, Any]:
            return {"note": note, "file": SimpleUploadedFile("a.txt", b"x" * 5000)}

        assert self.ask("/upload", form("n")).status_code == 201
        assert self.ask("/upload", form("n")).headers["Idempotency-Replayed"] == "true"
        assert self.ask("/upload", form("m")).status_code == 422
        assert effects() == ["n a.txt 5000"]

    def test_csrf_is_checked_before_the_claim_and_leaves_the_body_readable(self) -> None:
        strict = self.client = Client(enforce_csrf_checks=True, raise_request_exception=False)
        user = mock.Mock(pk=7, is_authenticated=True)
        form = {"note": "n", "file": SimpleUploadedFile("a.txt", b"x" * 5000)}
        token = "t" * 32
        with mock.patch("django.contrib.auth.middleware.get_user", return_value=user):
            assert self.ask("/upload", dict(form), caller=None).status_code == 403
            assert effects() == []
            strict.cookies["csrftoken"] = token
            for replayed in (None, "true"):
                form["file"] = SimpleUploadedFile("a.txt", b"x" * 5000)
                answered = self.ask("/upload", {**form, "csrfmiddlewaretoken": token}, caller=None)
                assert (answered.status_code, answered.headers.get("Idempotency-Replayed")) == (201, replayed)
        assert effects() == ["n a.txt 5000"]

    def test_other_methods_reach_no_command(self) -> None:
        headers = {"Authorization": "Bearer alice", "Idempotency-Key": self.key}
        for method in ("get", "head", "options", "trace"):
            assert getattr(self.client, method)("/numbered/9", headers=headers).status_code == 405
        assert self.client.get("/orders").content == b"orders"
        assert (effects(), self.ask("/orders", {"what": "cbv"}).status_code) == ([], 201)

    def test_a_wrong_host_leaves_no_record(self) -> None:
        assert self.ask("/atomic", {}, headers={"Host": "evil.example"}).status_code == 400
        assert (effects(), self.state()) == ([], None)


class ExternalTests(Asking, TransactionTestCase):  # type: ignore[misc]  # Django ships no types
    """The outcome is settled outside of Django's transaction."""

    databases = {"default", "other"}  # noqa: RUF012 -- as Django has it

    def test_a_retry_gets_the_first_answer(self) -> None:
        first, second = self.twice("/external", {"what": "a"})
        assert json.loads(first.content)["key"]
        assert effects() == ["a"]
        assert second.headers["Location"] == first.headers["Location"]

    def test_waiting_duplicates_leave_threads_for_other_requests(self) -> None:
        begun, go, answers = threading.Event(), threading.Event(), []

        def answer(request: Any, asked: Any) -> Any:
            begun.set()
            assert go.wait(20)
            return JsonResponse({}, status=201)

        def ask() -> None:
            try:
                answers.append(self.ask("/external", headers={"Prefer": "wait=20"}).status_code)
            finally:
                connections.close_all()

        with mock.patch.object(views, "answer", answer):
            running, waiting, refused = (threading.Thread(target=ask) for _ in range(3))
            running.start()
            assert begun.wait(20)
            waiting.start()
            await_true(lambda: semel.engine().core.waiting == 1, "a duplicate that waits")
            refused.start()
            refused.join(10)
            assert answers == [409]
            go.set()
            running.join(20)
            waiting.join(20)
        assert answers == [409, 201, 201]

    def test_an_exception_that_django_answers_is_in_doubt(self) -> None:
        first = self.ask("/external", {"do": "raise"})
        assert (first.status_code, self.ask("/external", {"do": "raise"}).status_code) == (500, 409)
        assert 'rel="' in first.headers["Link"]
        assert self.state() == "UNKNOWN"

    def test_a_view_that_answers_and_rolls_its_rows_back_is_in_doubt(self) -> None:
        self.ask("/external", {"do": "rollback"})  # without ATOMIC_REQUESTS there is nothing to roll back: it raises
        assert (self.ask("/external", {"do": "rollback"}).status_code, self.state()) == (409, "UNKNOWN")

    def test_a_view_that_goes_on_after_a_failed_statement_has_no_success_of_which_nothing_stays(self) -> None:
        is_one_transaction = connections["default"].settings_dict["ATOMIC_REQUESTS"]
        for do in ("swallow-orm", "close"):
            self.key = str(uuid.uuid4())
            status, state, kept = (500, "UNKNOWN", []) if is_one_transaction else (201, "SUCCEEDED", [do])
            assert (self.ask("/external", {"what": do, "do": do}).status_code, self.state()) == (status, state)
            assert list(Effect.objects.filter(what=do).values_list("what", flat=True)) == kept

    def test_two_paths_are_two_requests_also_where_a_decorator_hides_the_view(self) -> None:
        self.twice("/approve")
        assert self.ask("/reject").status_code == 422

    def test_the_project_at_two_places_is_two_requests(self) -> None:
        for path in ("/atomic", "/idempotent", "/approvals/7"):
            self.key = str(uuid.uuid4())
            body = [{"what": path}] if "approvals" in path else {"what": path}
            first, *others, again = [self.ask(path, body, SCRIPT_NAME=place) for place in ("/eu", "/us", "", "/eu")]
            assert [each.status_code for each in others] == [422, 422]
            assert (again.status_code, again.headers["Idempotency-Replayed"]) == (first.status_code, "true")

    def test_the_project_at_two_places_over_asgi_is_two_requests(self) -> None:
        async def statuses() -> list[int]:
            client, headers = AsyncClient(), {"Authorization": "Bearer alice", "Idempotency-Key": self.key}
            told = []
            for root in ("/eu", "/us", "", "/eu"):
                with override_settings(FORCE_SCRIPT_NAME=root or None):
                    answer = await client.post(f"{root}/idempotent", "{}", "application/json", headers=headers)
                told.append(answer.status_code)
            return told

        first, *others, again = async_to_sync(statuses)()
        assert (first, others, again) == (201, [422, 422], 201)

    def test_an_object_of_a_path_counts_by_its_path(self) -> None:
        self.twice("/things/5")
        assert self.ask("/things/6").status_code == 422

    def test_a_user_without_a_primary_key_is_refused(self) -> None:
        request = SimpleNamespace(user=SimpleNamespace(is_authenticated=True, pk=None))
        with self.assertRaisesMessage(ConfigurationError, "no primary key"):
            _caller_of(None, "single")(request)

    def test_users_of_two_classes_with_one_primary_key_are_two_callers(self) -> None:
        with isolate_apps("tests.frameworks.django_site"):

            class Staff(User):  # type: ignore[misc]  # Django ships no types
                class Meta:
                    app_label = "django_site"
                    proxy = True

            class Customer(User):  # type: ignore[misc]  # as above
                number = models.IntegerField(primary_key=True)

                class Meta:
                    app_label = "django_site"

        def caller_of(user: Any) -> Any:
            known = SimpleLazyObject(lambda: user)
            with mock.patch.object(type(user), "is_authenticated", True, create=True):
                return _caller_of(None, "single")(SimpleNamespace(user=known))

        one = [caller_of(each) for each in (User(pk=7), Staff(pk=7), Customer(id=7, number=8))]
        assert one == [Caller("single", "7")] * 3
        others = [caller_of(Group(pk=7)), caller_of(Permission(pk=7)), caller_of(views.Guest(7))]
        posing = [caller_of(User(pk=each.id)) for each in others]
        assert len({"7", *(each.id for each in (*others, *posing))}) == 7
        assert others[0] == Caller("single", "user of django.contrib.auth.models.Group: 7")

    def test_an_exception_that_is_a_definite_answer_is_replayed(self) -> None:
        assert self.twice("/external", {"do": "missing"})[0].status_code == 404
        assert self.state() == "FAILED_REPLAYABLE"

    def test_cookies_are_not_replayed(self) -> None:
        first, second = self.twice("/external", {"do": "cookie"})
        assert ("session" in first.cookies, "session" in second.cookies) == (True, False)

    def test_a_short_stream_is_kept_and_a_long_one_flows(self) -> None:
        assert self.twice("/external", {"do": "stream"})[0].content == b"01234"
        self.key = str(uuid.uuid4())
        first = self.ask("/external", {"do": "long"})
        assert len(b"".join(first.streaming_content)) == 2_000_000
        first.close()
        assert (
            json.loads(self.ask("/external", {"do": "long"}).content)["code"] == "IDEMPOTENCY_RESPONSE_NOT_REPLAYABLE"
        )
        assert effects() == ["x", "x"]

    def test_answers_that_are_not_stored_have_the_lifetime_header(self) -> None:
        for do in ("long", "big"):
            self.setUp()
            first = self.ask("/external", {"do": do})
            b"".join(first)
            first.close()
            self.assert_honoured(first, self.ask("/external", {"do": do}))

    def test_one_response_for_several_requests_keeps_nothing_of_them(self) -> None:
        for path in ("/shared", "/shared-atomic", "/shared-optional"):
            links = set()
            for _ in range(3):
                self.setUp()
                answered = self.ask(path)
                self.assert_honoured(answered)
                links.update(self.status_links(answered))
            assert len(links) == 3, path
        assert "Link" not in views.SORRY.headers

    def test_a_long_answer_reaches_only_its_first_caller(self) -> None:
        assert len(self.ask("/external", {"do": "big"}).content) == 1_500_000
        second = json.loads(self.ask("/external", {"do": "big"}).content)
        assert (second["code"], effects()) == ("IDEMPOTENCY_RESPONSE_NOT_REPLAYABLE", ["x"])

    def test_an_answer_shorter_than_its_content_length_is_in_doubt(self) -> None:
        assert self.ask("/external", {"do": "cut"}).status_code == 500
        assert self.state() == "UNKNOWN"

    def test_login_and_validation_come_before_the_claim(self) -> None:
        assert self.ask("/private", {}, caller=None).status_code == 302
        assert self.ask("/private", {"other": "body"}).status_code == 201
        assert self.client.get("/external").status_code == 405

    def test_an_optional_key_may_be_missing(self) -> None:
        headers = {"Authorization": "Bearer alice"}
        assert [self.client.delete("/orders", headers=headers).status_code for _ in range(2)] == [204, 204]
        headers["Idempotency-Key"] = self.key
        assert [self.client.delete("/orders", headers=headers).status_code for _ in range(2)] == [204, 204]
        assert effects() == ["cleared"] * 3

    def test_async_views_over_both_clients(self) -> None:
        assert self.twice("/idempotent", {"what": "a"})[0].status_code == 201
        self.key = str(uuid.uuid4())
        headers = {"Authorization": "Bearer alice", "Idempotency-Key": self.key}

        async def story() -> list[Any]:
            client = AsyncClient()
            answers = []
            for body in ({"what": "b"}, {"what": "b"}, {"what": "c"}):
                text = json.dumps(body)
                answers.append(await client.post("/idempotent", text, content_type="application/json", headers=headers))
            for path in ("/atomic", "/atomic"):
                answers.append(await client.post(path, "{}", content_type="application/json", headers=headers))
            stream = {**headers, "Idempotency-Key": f"{self.key}s"}
            for _ in range(2):
                text = json.dumps({"do": "stream"})
                answers.append(await client.post("/idempotent", text, content_type="application/json", headers=stream))
            return answers

        answers = async_to_sync(story)()
        assert [each.status_code for each in answers] == [201, 201, 422, 201, 201, 201, 201]
        assert answers[1].headers["Idempotency-Replayed"] == answers[4].headers["Idempotency-Replayed"] == "true"
        assert [each.content for each in answers[5:]] == [b"01234", b"01234"]
        assert answers[6].headers["Idempotency-Replayed"] == "true"
        assert effects() == ["a", "b", "x"]

    def test_an_async_view_that_raises_is_released_where_it_may_run_again(self) -> None:
        assert [self.ask("/idempotent", {"do": "raise"}).status_code for _ in range(2)] == [500, 500]


SEMEL = "semel.integrations.django.middleware.SemelMiddleware"
OUTER = "tests.frameworks.django_site.outer"


class PlaceTests(Asking, TransactionTestCase):  # type: ignore[misc]  # Django ships no types
    """At every place of the middleware, and beside any others."""

    databases = {"default", "other"}  # noqa: RUF012 -- as Django has it

    def test_an_envelope_is_put_around_each_answer_once(self) -> None:
        token = f"{OUTER}.Token"
        for order in ([token, f"{OUTER}.Envelope", SEMEL], [SEMEL, token, f"{OUTER}.Envelope"]):
            for path in ("/external", "/atomic"):
                with override_settings(MIDDLEWARE=order):
                    self.setUp()
                    first, _ = self.twice(path, {"what": "e"})
                    assert first.content.count(b"<") == 1

    def test_an_error_page_is_no_proof_of_success(self) -> None:
        with override_settings(MIDDLEWARE=[f"{OUTER}.Token", f"{OUTER}.ErrorPage", SEMEL]):
            self.setUp()
            assert [self.ask("/external", {"do": "raise"}).status_code for _ in range(2)] == [302, 409]
            assert self.state() == "UNKNOWN"

    def test_a_form_that_was_read_before_is_reported_and_nothing_runs(self) -> None:
        def form() -> dict[str, Any]:
            return {"note": "n", "file": SimpleUploadedFile("a.txt", b"x" * 5000)}

        with override_settings(MIDDLEWARE=[f"{OUTER}.ReadsForm", f"{OUTER}.Token", SEMEL]):
            client = self.client = Client()
            with self.assertRaisesMessage(ConfigurationError, "above the middleware that reads it"):
                self.ask("/upload", form())
            assert client.get("/effects").json() == []
        with override_settings(MIDDLEWARE=[SEMEL, f"{OUTER}.ReadsForm", f"{OUTER}.Token"]):
            self.setUp()
            assert [self.ask("/upload", form()).status_code for _ in range(2)] == [201, 201]
        with override_settings(MIDDLEWARE=[f"{OUTER}.ReadsBody", f"{OUTER}.Token", SEMEL]):
            self.setUp()
            assert [self.ask("/upload", form()).status_code for _ in range(2)] == [201, 201]
        assert effects() == ["n a.txt 5000"] * 2


class RestTests(Asking, TransactionTestCase):  # type: ignore[misc]  # Django ships no types
    """Django REST framework: everything it decides comes before the claim."""

    databases = {"default", "other"}  # noqa: RUF012 -- as Django has it

    def test_a_view_set_commits_its_rows_with_the_record(self) -> None:
        first, second = self.twice("/rest/", {"what": "a"})
        assert first.status_code == 201
        assert second.headers["Content-Type"] == first.headers["Content-Type"] == "application/json"
        assert effects() == ["a"]
        assert self.ask("/rest/", {"what": "b"}).status_code == 422

    def test_permission_and_validation_leave_no_record(self) -> None:
        assert self.ask("/rest/", {"what": "a"}, caller=None).status_code == 401
        assert self.ask("/rest/", {"what": ""}).status_code == 400
        assert self.ask("/rest/", {"what": "fine"}).status_code == 201
        assert effects() == ["fine"]

    def test_an_api_exception_rolls_back(self) -> None:
        assert [self.ask("/rest/", {"what": "a", "do": "raise"}).status_code for _ in range(2)] == [500, 500]
        assert (effects(), self.state()) == ([], None)

    def test_an_action_with_an_external_effect_is_protected(self) -> None:
        self.twice("/rest/7/charge/", {})
        self.key = str(uuid.uuid4())
        assert self.ask("/rest/7/charge/", {"do": "raise"}).status_code == 500
        assert self.state() == "UNKNOWN"
        assert self.ask("/rest/8/charge/", {"do": "raise"}).status_code == 422

    def test_a_key_in_the_path_is_the_object_that_it_finds(self) -> None:
        found = Effect.objects.create(what="invoice").pk
        spellings = [f"{found}", f"0{found}", f"+{found}", f"{found}"]
        assert [self.ask(f"/rest/{each}/pay/", {}).status_code for each in spellings] == [201] * 4
        assert effects() == ["invoice", f"pay {found}"]
        assert self.ask(f"/rest/{found + 100}/pay/", {}).status_code == 404

    def test_the_status_link_accepts_the_token_that_placed_the_order(self) -> None:
        """No middleware knows the caller here: only the classes of REST framework do."""
        with override_settings(MIDDLEWARE=["semel.integrations.django.middleware.SemelMiddleware"]):
            answered = self.ask("/plain", {"what": "p"})
            assert answered.status_code == 201
            link = urlsplit(self.status_links(answered)[0].partition("<")[2].partition(">")[0]).path

            def status(path: str, token: str | None = "alice") -> int:
                headers = {} if token is None else {"Authorization": f"Bearer {token}"}
                found: int = self.client.get(path, headers=headers).status_code
                return found

            for path, foreign in ((link, 404), (f"/operations/?key={self.key}", 404)):
                got = [status(path, token) for token in ("alice", "bob", None, "refused")]
                assert got == [200, foreign, 401, 401], path

    def test_the_page_of_problems_needs_no_caller(self) -> None:
        problem = self.ask("/plain", {"what": "p"}, key=None)
        assert "/operations/problems#" in problem.headers["Link"]
        answered = self.client.get("/operations/problems")
        assert (answered.status_code, answered.headers["Content-Type"]) == (200, "text/html; charset=utf-8")

    def test_check_warns_of_a_view_with_other_authentication_than_its_status(self) -> None:
        def find_warnings() -> list[str]:
            return [each.msg for each in checks.run_checks() if each.id == "semel.W004"]

        assert find_warnings() == []
        with mock.patch.object(rest.plain.cls, "authentication_classes", [BasicAuthentication]):
            assert "rest.plain authenticates by BasicAuthentication" in find_warnings()[0]
            with override_settings(SEMEL={"CALLER": "semel.http.caller.single_caller"}):
                assert find_warnings() == []

    def test_a_method_of_rest_framework_that_calls_a_declared_one_is_protected(self) -> None:
        found = Effect.objects.create(what="old")
        for method in (self.client.patch, self.client.put):
            headers = {"Authorization": "Bearer alice", "Idempotency-Key": str(uuid.uuid4())}
            more = {"content_type": "application/json", "headers": headers}
            answers = [method(f"/kept/{found.pk}/", {"what": "new"}, **more) for _ in range(2)]
            assert [each.headers.get("Idempotency-Replayed") for each in answers] == [None, "true"]
        form = b"--x\r\nContent-Disposition: form-data; name=what\r\n\r\nmade\r\n--x--\r\n"
        for _ in range(2):
            made = self.ask_form("/rest-created", form)
            assert made.status_code == 201
        assert effects() == ["new", "made"]

    def ask_form(self, path: str, form: bytes) -> Any:
        headers = {"Authorization": "Bearer alice", "Idempotency-Key": self.key}
        return self.client.generic("POST", path, form, "multipart/form-data; boundary=x", headers=headers)

    def test_a_function_below_api_view_is_protected(self) -> None:
        assert self.twice("/plain", {"what": "p"})[0].status_code == 201
        assert effects() == ["p"]


class InTestCase(Asking, TestCase):  # type: ignore[misc]  # Django ships no types
    """Inside a TestCase, whose transaction is never committed."""

    databases = {"default", "other"}  # noqa: RUF012 -- as Django has it

    def story(self) -> None:
        assert effects() == []
        self.key = "always-the-same-key"
        self.assert_honoured(*self.twice("/atomic", {"what": "t"}))
        assert effects() == ["t"]
        self.key = "a-key-of-its-own"
        with self.captureOnCommitCallbacks(execute=True):
            assert self.ask("/atomic", {"do": "refuse"}).status_code == 409

    test_first = story
    test_again = story


class StartTests(TestCase):  # type: ignore[misc]  # Django ships no types
    """The messages when the project starts."""

    def refusal_of(self, declare: Any) -> str:
        try:
            declare()
        except ConfigurationError as error:
            return str(error)
        raise AssertionError("it was not refused")

    def test_a_misplaced_decorator_is_refused(self) -> None:
        def view(request: Any) -> Any:
            return HttpResponse()

        async def late(request: Any) -> Any:
            return HttpResponse()

        from tests.frameworks.django_site import rest

        assert "is a class" in self.refusal_of(lambda: semel.command("m.1", effects="external")(views.Orders))
        assert "the method" in self.refusal_of(lambda: semel.command("m.2")(views.Orders.as_view()))
        assert "below @api_view" in self.refusal_of(lambda: semel.command("m.3")(rest.plain))
        assert "duplicate operation name" in self.refusal_of(lambda: semel.command("atomic", effects="external")(view))
        assert "no coroutine" in self.refusal_of(lambda: semel.command("m.4", effects="atomic")(late))
        method = method_decorator(semel.command("m.7"))
        assert "on the method itself" in self.refusal_of(lambda: method(view))
        assert "declared twice" in self.refusal_of(lambda: semel.command("m.5")(views.external))
        assert "'nowhere'" in self.refusal_of(lambda: semel.command("m.6", using="nowhere")(view))
        site()._declared.pop("m.4")

    def test_check_reports_a_missing_or_misplaced_middleware(self) -> None:
        with override_settings(MIDDLEWARE=[]):
            assert {each.id for each in checks.run_checks()} >= {"semel.E002"}
            assert Client(raise_request_exception=False).post("/atomic").status_code == 500
        with override_settings(MIDDLEWARE=["semel.integrations.django.middleware.SemelMiddleware"] * 2):
            assert {each.id for each in checks.run_checks()} >= {"semel.E003"}
        below = ["semel.integrations.django.middleware.SemelMiddleware", "django.middleware.gzip.GZipMiddleware"]
        with override_settings(MIDDLEWARE=below):
            assert {each.id for each in checks.run_checks()} >= {"semel.E004"}

    def test_check_reports_links_that_lead_nowhere(self) -> None:
        for path, found in (("/operations/{id}", False), ("/eu/operations/{id}", False), ("/status/{id}", True)):
            with override_settings(SEMEL={**settings.SEMEL, "PROBLEMS": Problems(operations_path=path)}):
                assert ("semel.W003" in {each.id for each in checks.run_checks()}) is found, path

    def test_settings_are_checked(self) -> None:
        wrong: dict[str, tuple[Any, str]] = {
            "caller": ({"CALER": "x"}, "unknown setting 'CALER'; did you mean 'CALLER'?"),
            "tenant": ({"TENENT": "x"}, "unknown setting 'TENENT'; did you mean 'TENANT'?"),
            "small": ({"tenant": "x"}, "did you mean 'TENANT'?"),
            "surface": ({"WAIT_SECOND_MAX": 1}, "did you mean 'WAIT_SECONDS_MAX'?"),
            "far": ({"XYZ": 1}, "known are URL, DATABASE, CALLER, TENANT, ENGINE"),
            "engine": ({"ENGINE": {"confirm_second": 1}}, "did you mean 'confirm_seconds'?"),
            "text": ({"BESIDE": "other"}, "must be a list of aliases of DATABASES"),
            "alias": ({"BESIDE": ["no"]}, "DATABASES has no 'no'"),
            "value": ({"WAIT_SECONDS_MAX": -1}, "wait_seconds_max"),
        }
        for given, says in wrong.values():
            with override_settings(SEMEL=given):
                [error] = [each for each in checks.run_checks() if each.id == "semel.E001"]
                assert says in error.msg, error
        with override_settings(SEMEL={"CALLER": "no.such.place"}):
            assert [each.id for each in checks.run_checks()] == ["semel.E001"]

    def test_the_store_of_a_postgresql_database_has_its_role_and_libpqs_options(self) -> None:
        def url(**options: Any) -> str:
            settings_dict = {"NAME": "shop", "HOST": "db", "USER": "web", "OPTIONS": options}
            found = SimpleNamespace(vendor="postgresql", settings_dict=settings_dict)
            with mock.patch.object(databases, "connection_of", return_value=found):
                return databases.store_url_of("default")

        assert url(pool=True, sslmode=None, target_session_attrs="read-write", server_side_binding=True) == (
            "postgresql://web@db/shop?target_session_attrs=read-write"
        )
        assert url(assume_role="app") == "postgresql://web@db/shop?options=-c%20role%3Dapp"
        both = url(assume_role="app", options="-c search_path=shop")
        assert both == "postgresql://web@db/shop?options=-c%20search_path%3Dshop%20-c%20role%3Dapp"
        with self.assertRaisesMessage(ConfigurationError, "assumes the role 'a b'"):
            url(assume_role="a b")

    def test_check_finds_nothing_in_the_project(self) -> None:
        assert [each for each in checks.run_checks() if each.is_serious()] == []

    def test_drf_spectacular_describes_each_command(self) -> None:
        told = io.StringIO()
        call_command("spectacular", "--validate", "--fail-on-warn", "--format", "openapi-json", stdout=told)
        document = json.loads(told.getvalue())
        paths = {"/rest/": "rest.create", "/rest/{id}/charge/": "rest.charge", "/plain": "rest.plain"}
        for path, name in paths.items():
            found = document["paths"][path]["post"]
            assert found["x-semel"]["operation"] == name
            [key] = [each for each in found["parameters"] if each["name"] == "Idempotency-Key"]
            assert (key["in"], key["required"]) == ("header", True)
            assert set(found["responses"]) >= {"400", "401", "409", "422", "500", "503"}
            [good] = [each for status, each in found["responses"].items() if status.startswith("2")]
            assert {"Idempotency-Replayed", "Idempotency-Key-Lifetime", "Link"} <= set(good["headers"])
        assert "get" in document["paths"]["/rest/"]  # which is not a command
        assert "x-semel" not in document["paths"]["/rest/"]["get"]
        assert "SemelProblem" in document["components"]["schemas"]

    def test_check_config_and_openapi_see_the_projects_operations(self) -> None:
        for application in ("tests.frameworks.django_site.servers:wsgi", "tests.frameworks.django_site.urls"):
            found = run_semel("check", application)
            paths = {each["operation"]: each["path"] for each in found["operations"]}
            assert paths["atomic"] == "/atomic"
            assert paths["rest.charge"] == "/rest/{pk}/charge/"
            assert paths["numbered"] == "/numbered/{number}"
            assert {"orders.create", "rest.plain"} <= set(paths)
            [charge] = [each for each in found["operations"] if each["operation"] == "rest.charge"]
            assert charge["methods"] == ["POST"]
            assert len(charge["answers"]) == 19
            assert found["mistakes"] == []
            methods = {each["operation"]: each["methods"] for each in found["operations"]}
            assert (methods["rest.update"], methods["rest.created"]) == (["PUT", "PATCH"], ["POST"])
            said = [each["answer"] for each in charge["answers"] if each["question"] == "key scope"]
            assert said == ["tenant, caller and operation; the caller comes from request.user"]
            assert not any("/kept/" in each or "rest-created" in each for each in found["unprotected"])
            shown = {each["operation"]: each["route"] for each in run_semel("config", application)["operations"]}
            assert shown["rest.create"] == "POST /rest/"
            assert "x-semel" in run_semel("openapi", application)["paths"]["/rest/{pk}/charge/"]["post"]

    def test_a_project_is_checked_with_no_application_named(self) -> None:
        gateway = ("gateway", "--for", "nginx", "--upstream", "127.0.0.1:9000")
        for words in (("check",), ("openapi",), gateway, ("gate", "--check")):
            with redirect_stdout(io.StringIO()) as told, contextlib.suppress(CommandError):
                call_command("semel", "--", *words)
            assert "rest.charge" in told.getvalue() or "/rest/[^/]+/charge/" in told.getvalue(), words
            assert "semel check" not in told.getvalue().replace("manage.py semel check", "")

    def test_check_reports_a_mistake_of_the_project_as_unsafe(self) -> None:
        with override_settings(MIDDLEWARE=[]):
            found = run_semel("check", "django.core.wsgi:get_wsgi_application()")
        assert "operations are declared, and Semel's middleware is missing" in found["mistakes"]
        assert found["unsafe"] > 0

    def test_doctor_names_the_settings_and_the_command_that_creates_the_tables(self) -> None:
        with redirect_stdout(io.StringIO()) as told, contextlib.suppress(CommandError):
            call_command("semel", "--", "doctor")
        assert "(by the project's settings)" in told.getvalue()
        found = Project("s", "manage.py semel", "manage.py migrate")
        assert found.reword("run: semel migrate --url sqlite:///x; see: semel list") == (
            "run: manage.py migrate; see: manage.py semel list"
        )
        assert found.reword(found.reword("semel settle ID")) == "manage.py semel settle ID"

    def test_the_command_line_uses_the_projects_store(self) -> None:
        with mock.patch("semel.integrations.django.management.commands.semel.main", return_value=0) as main:
            call_command("semel", "list")
        arguments, project = main.call_args.args
        assert (arguments, project.prefix) == (["list"], "manage.py semel")
