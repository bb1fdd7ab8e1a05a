"""Records in the admin: who may see and settle them, and what no page ever holds."""

from __future__ import annotations

import io
import re
import uuid
from typing import Any
from unittest import mock

from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import connections
from django.test import Client, TestCase, TransactionTestCase

from semel.core.model import State
from semel.errors import StoreUnavailable
from semel.integrations.django.site import site
from tests.frameworks.django_site import outer
from tests.frameworks.django_site.tests import Asking

LIST = "/admin/semel/record/"
CANARY = "kanarienvogel"


def user(name: str, *permissions: str, **more: Any) -> User:
    made = User.objects.create_user(name, is_staff=True, **more)
    made.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return made


def client_of(name: str, *permissions: str, **more: Any) -> Client:
    client = Client()
    client.force_login(user(name, *permissions, **more))
    return client


class AdminTests(Asking, TransactionTestCase):  # type: ignore[misc]  # Django ships no types
    """Over HTTP, as operators use it."""

    databases = {"default", "other"}  # noqa: RUF012 -- as Django has it

    def setUp(self) -> None:
        super().setUp()
        self.caller = f"caller-{uuid.uuid4().hex[:8]}"  # records outlive Django's tests
        self.named = f"user of {outer.User.__module__}.User: {self.caller}"
        self.operator = client_of(f"op-{self.key[:8]}", "view_record", "settle_record")

    def make_record(self, do: str = "", *, path: str = "/external") -> str:
        """A record of this test's caller; its operation id."""
        body = {"what": CANARY, "do": do}
        key = f"{CANARY}-{uuid.uuid4()}"
        asked = self.ask(path, body, key=key, caller=self.caller)
        link = re.search(r"/operations/([0-9a-f-]{36})", asked.headers["Link"])
        assert link is not None
        return link[1]

    def pages(self, client: Client, id: str) -> list[Any]:
        return [
            client.get(f"{LIST}?caller={self.named}"),
            client.get(f"{LIST}default/{id}/"),
            client.get(f"{LIST}settle/?id=default:{id}"),
        ]

    def settle(self, id: str, client: Client | None = None, **finding: Any) -> tuple[str, str]:
        """Both pages of a settlement: the preview, and the messages after it."""
        client = client or self.operator
        page = client.get(f"{LIST}settle/?id=default:{id}").content.decode()
        seen = re.findall(r'name="seen" value="([^"]*)"', page)
        given = {"seen": seen, "reason": "looked at the provider", **finding}
        dry = client.post(f"{LIST}settle/", given).content.decode()
        done = client.post(f"{LIST}settle/", {**given, "confirmed": "yes"}, follow=True)
        return dry, " ".join(str(each) for each in done.context["messages"])

    def test_no_page_holds_a_key_a_body_or_an_answer(self) -> None:
        for path in ("/external", "/atomic"):
            id = self.make_record(path=path)
            pages = self.pages(self.operator, id)
            assert [page.status_code for page in pages] == [200, 200, 200]
            for page in pages:
                assert id in page.content.decode()
                assert CANARY not in page.content.decode()
                assert "no-store" in page.headers["Cache-Control"]
        id = self.make_record("raise")
        dry, said = self.settle(id, finding="succeeded", status=201, force="on")
        assert "a retry gets it" in dry
        assert CANARY not in dry + said

    def test_permissions_are_asked_for_each_page(self) -> None:
        id = self.make_record("raise")
        assert [page.status_code for page in self.pages(client_of("none"), id)] == [403, 403, 403]
        viewer = client_of("viewer", "view_record")
        assert [page.status_code for page in self.pages(viewer, id)] == [200, 200, 403]
        assert viewer.post(f"{LIST}settle/", {"seen": f"default:{id}:1:"}).status_code == 403
        assert "settle/?id" not in viewer.get(f"{LIST}default/{id}/").content.decode()
        assert 'name="id" value="default' not in viewer.get(f"{LIST}?caller={self.named}").content.decode()
        settler = client_of("settler", "settle_record")  # without view: nothing
        assert [page.status_code for page in self.pages(settler, id)] == [403, 403, 403]
        assert [page.status_code for page in self.pages(Client(), id)] == [302, 302, 302]  # to the login
        assert self.operator.get("/admin/").status_code == 200
        enforced = Client(enforce_csrf_checks=True)
        enforced.force_login(User.objects.get(username=f"op-{self.key[:8]}"))
        assert enforced.post(f"{LIST}settle/", {"seen": f"default:{id}:1:"}).status_code == 403
        for method in ("post", "put", "delete"):
            assert getattr(self.operator, method)(f"{LIST}default/{id}/").status_code == 405

    def test_the_list_is_filtered_and_has_pages(self) -> None:
        ids = [self.make_record(path="/idempotent"), self.make_record("raise"), self.make_record("busy")]

        def list_ids(query: str) -> set[str]:
            page = self.operator.get(f"{LIST}?caller={self.named}&{query}")
            assert page.status_code == 200
            return {id for id in ids if id in page.content.decode()}

        assert list_ids("") == set(ids)
        assert list_ids("state=UNKNOWN") == {ids[1]}
        assert list_ids("operation=idempotent") == {ids[0]}
        assert list_ids("state=RETRYABLE") == {ids[2]}
        assert list_ids("state=SUCCEEDED&operation=external") == set()
        assert list_ids("tenant=elsewhere") == set()
        found = self.operator.get(f"{LIST}?id={ids[0]}")
        assert (found.status_code, found.url) == (302, f"{LIST}default/{ids[0]}/")
        with mock.patch("semel.integrations.django.admin.PAGE_ROWS", 2):
            first = self.operator.get(f"{LIST}?caller={self.named}")
            assert ids[0] not in first.content.decode()
            second = self.operator.get(f"{LIST}?{first.context['next']}")
            assert [id in second.content.decode() for id in ids] == [True, False, False]

    def test_invalid_filters_are_refused(self) -> None:
        for query in ("state=LOST", "before=x", "before=-1", "operation=%00", f"caller={'x' * 300}", "id=%00"):
            assert self.operator.get(f"{LIST}?{query}").status_code == 400, query
        for path in ("?database=nowhere", f"nowhere/{uuid.uuid4()}/", f"default/{uuid.uuid4()}/"):
            assert self.operator.get(f"{LIST}{path}").status_code == 404, path
        assert "No record" in self.operator.get(f"{LIST}?id={uuid.uuid4()}").content.decode()
        assert "No record" in self.operator.get(f"{LIST}?id=nonsense").content.decode()
        for query in ("", "id=default:nonsense", "&".join(f"id=default:{n}" for n in range(51))):
            assert self.operator.get(f"{LIST}settle/?{query}").status_code in (302, 404), query

    def test_another_database_is_shown_by_its_name(self) -> None:
        asked = self.ask("/elsewhere", {"what": "x"}, caller=self.caller)
        page = self.operator.get(f"{LIST}?caller={self.named}&database=other").content.decode()
        id = asked.headers["Link"].split("/operations/")[1][:36]
        assert f"{LIST}other/{id}/" in page
        assert self.operator.get(f"{LIST}other/{id}/").status_code == 200
        assert id not in self.operator.get(f"{LIST}?caller={self.named}").content.decode()

    def test_a_settlement_is_previewed_and_names_its_user(self) -> None:
        id = self.make_record("raise")
        page = self.operator.get(f"{LIST}settle/?id=default:{id}").content.decode()
        seen = re.findall(r'name="seen" value="([^"]*)"', page)
        finding = {"seen": seen, "finding": "did-not-happen"}
        assert "This field is required" in self.operator.post(f"{LIST}settle/", finding).content.decode()
        finding["reason"] = "<script>alert(1)</script>"
        dry = self.operator.post(f"{LIST}settle/", finding).content.decode()
        assert "deadline has not passed" in dry
        assert "<script>alert" not in dry
        engine = site().place("default").engine
        [record] = engine.perform("read", lambda: engine.store.read_operations((uuid.UUID(id).bytes,)))
        assert record is not None
        assert record.state == State.UNKNOWN
        _, said = self.settle(id, finding="did-not-happen")
        assert "deadline has not passed" in said
        dry, said = self.settle(id, finding="did-not-happen", force="on")
        assert "a retry runs it" in dry
        assert "a retry runs it" in said
        shown = self.operator.get(f"{LIST}default/{id}/").content.decode()
        assert "looked at the provider" in shown
        assert re.search(rf"op-{self.key[:8]} \(Django user \d+\)", shown)
        assert "settle/?id" not in shown

    def test_a_stale_page_settles_nothing(self) -> None:
        id = self.make_record("raise")
        page = self.operator.get(f"{LIST}settle/?id=default:{id}").content.decode()
        seen = re.findall(r'name="seen" value="([^"]*)"', page)
        _, said = self.settle(id, client_of("second", "view_record", "settle_record"), finding="succeeded", status=201,
                              force="on")  # fmt: skip
        assert "a retry gets it" in said
        finding = {"seen": seen, "finding": "did-not-happen", "reason": "late", "force": "on", "confirmed": "yes"}
        told = self.operator.post(f"{LIST}settle/", finding, follow=True)
        assert "has changed since" in " ".join(str(each) for each in told.context["messages"])
        _, said = self.settle(id, finding="did-not-happen", force="on")
        assert "only UNKNOWN" in said

    def test_a_stale_page_stays_stale_through_its_dry_run(self) -> None:
        id = self.make_record("raise")
        page = self.operator.get(f"{LIST}settle/?id=default:{id}").content.decode()
        [seen] = re.findall(r'name="seen" value="([^"]*)"', page)
        stale = re.sub(r":\d+:(\w*)$", r":0:\1", seen)  # as if the record had been run again since
        assert stale != seen
        for finding in ({"reason": "late"}, {"reason": "late", "finding": "did-not-happen", "force": "on"}):
            page = self.operator.post(f"{LIST}settle/", {"seen": stale, **finding}).content.decode()
            assert re.findall(r'name="seen" value="([^"]*)"', page) == [stale]
        assert "has changed since" in page
        assert "a retry runs it" not in page

    def test_several_records_are_settled_together(self) -> None:
        ids = [self.make_record("raise"), self.make_record("raise")]
        page = self.operator.get(f"{LIST}settle/?" + "&".join(f"id=default:{id}" for id in ids)).content.decode()
        seen = re.findall(r'name="seen" value="([^"]*)"', page)
        self.settle(ids[0], finding="succeeded", no_answer="on", force="on")
        finding = {"seen": seen, "finding": "did-not-happen", "reason": "both", "force": "on", "confirmed": "yes"}
        told = [str(each) for each in self.operator.post(f"{LIST}settle/", finding, follow=True).context["messages"]]
        assert ["has changed" in told[0], "is settled" in told[1]] == [True, True]

    def test_a_finding_states_the_answer_of_a_success(self) -> None:
        id = self.make_record("raise")
        for finding, text in (
            ({"finding": "succeeded"}, "Give the status"),
            ({"finding": "succeeded", "status": 201, "no_answer": "on"}, "not both"),
            ({"finding": "succeeded", "status": 99}, "greater than or equal to 200"),
            ({"finding": "did-not-happen", "status": 201}, "Only a success"),
            ({"finding": "nonsense"}, "not one of the available"),
        ):
            assert text in self.settle_page(id, finding), finding

    def settle_page(self, id: str, finding: dict[str, Any]) -> str:
        given = {"seen": f"default:{id}:1:", "reason": "x", "confirmed": "yes", **finding}
        return str(self.operator.post(f"{LIST}settle/", given).content.decode())

    def test_an_unreachable_store_is_reported(self) -> None:
        id = self.make_record()
        engine = site().place("default").engine
        with mock.patch.object(engine, "perform", side_effect=StoreUnavailable("secret-host refused")):
            for page in self.pages(self.operator, id):
                assert page.status_code == 503
                assert "did not answer" in page.content.decode()
                assert "secret-host" not in page.content.decode()


class ModelTests(TestCase):  # type: ignore[misc]
    """The model that permissions are about has no table and no rows."""

    def test_a_dump_of_the_project_asks_for_no_rows_of_semels(self) -> None:
        for more in ((), ("--all",)):
            call_command("dumpdata", "semel", *more, stdout=mock.Mock())

    def test_the_admin_needs_no_migration(self) -> None:
        told = io.StringIO()
        call_command("makemigrations", "--dry-run", stdout=told)
        assert "semel" not in told.getvalue()
        assert "semel_record" not in connections["default"].introspection.django_table_names()
