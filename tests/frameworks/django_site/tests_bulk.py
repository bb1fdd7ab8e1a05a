"""Lists of items over Django: outcomes of rows of Django's, replays, 202, and what would undo them."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.test import AsyncClient, RequestFactory, TransactionTestCase, override_settings
from rest_framework.test import APIRequestFactory

from semel.errors import ConfigurationError
from semel.integrations import django as semel
from semel.integrations.django.site import BULKS
from tests.frameworks.django_site import rest, views
from tests.frameworks.django_site.models import Effect
from tests.frameworks.django_site.outer import User
from tests.frameworks.django_site.tests import Asking, effects

PATH = "/approvals/7"


class BulkTests(Asking, TransactionTestCase):  # type: ignore[misc]  # Django ships no types
    """Over HTTP."""

    databases = {"default", "other"}  # noqa: RUF012 -- as Django has it

    def test_every_item_has_its_outcome_and_a_retry_gets_the_same_answer(self) -> None:
        first = self.ask(PATH, ["a", "raise", "b"])
        states = [item["state"] for item in json.loads(b"".join(first))["items"]]
        assert (first.status_code, states) == (207, ["SUCCEEDED", "UNKNOWN", "SUCCEEDED"])
        again = self.ask(PATH, ["a", "raise", "b"])
        assert (again.headers["Idempotency-Replayed"], [i["state"] for i in json.loads(b"".join(again))["items"]]) == (
            "true",
            states,
        )
        assert effects() == ["item a", "item b"]
        assert self.ask(PATH, ["a"]).status_code == 422
        for other in ("/approvals/8", "/more-approvals/7"):
            assert self.ask(other, ["a", "raise", "b"]).status_code == 422
        assert self.state() == "SUCCEEDED"
        assert self.ask(PATH, [], caller=None).status_code in (401, 403)
        assert self.client.get(PATH).status_code == 405

    def test_over_asgi_and_in_rest_framework(self) -> None:
        async def ask() -> Any:
            headers = {"Authorization": "Bearer alice", "Idempotency-Key": self.key}
            return await AsyncClient().post(PATH, '["a"]', content_type="application/json", headers=headers)

        told = [json.loads(async_to_sync(ask)().content)["items"][0]["state"] for _ in range(2)]
        assert (told, effects()) == (["SUCCEEDED"] * 2, ["item a"])
        made = self.ask("/rest-approvals", ["b"], key=self.key[::-1])
        assert (made.status_code, effects()) == (200, ["item a", "item b"])

    def test_a_list_inside_a_django_transaction_is_refused(self) -> None:
        asked = APIRequestFactory().post(
            "/rest-approvals", ["x"], format="json", HTTP_AUTHORIZATION="Bearer alice", HTTP_IDEMPOTENCY_KEY=self.key
        )
        asked.user = User("alice")
        with pytest.raises(ConfigurationError, match="non_atomic_requests"), transaction.atomic():
            rest.approve(asked)
        assert effects() == []
        with override_settings(ROOT_URLCONF="tests.frameworks.django_site.urls"):
            assert self.ask(PATH, ["y"]).status_code == 200  # also under ATOMIC_REQUESTS

    def test_an_atomic_item_that_writes_by_djangos_orm_is_refused(self) -> None:
        def count(item: Any) -> str:
            Effect.objects.count()  # it may read
            item.connection.execute("INSERT INTO django_site_effect (what) VALUES ('by the connection')")
            return "ok"

        def write(item: Any) -> None:
            Effect.objects.create(what="by the ORM")

        for handler, refusal in ((count, None), (write, "commits for itself")):
            made = semel.bulk(f"atomic.{handler.__name__}", handler, effects="atomic")
            try:
                asked = self.items()
                if refusal is None:
                    assert made.answer(asked).status_code == 200
                else:
                    with pytest.raises(ConfigurationError, match=refusal):
                        made.answer(asked)
            finally:
                BULKS.remove(f"atomic.{handler.__name__}")
        assert effects() == ["by the connection"]

    def items(self) -> Any:
        headers = {"Idempotency-Key": self.key}
        made = RequestFactory().post("/", '["x"]', content_type="application/json", headers=headers)
        made.user = User("alice")
        return made

    def test_an_accepted_list_finishes_without_its_client(self) -> None:
        os.mkfifo(views.GATE)
        headers = {"Prefer": "respond-async"}
        first = self.ask(PATH, ["gate"], headers=headers)
        assert (first.status_code, first.headers["Preference-Applied"]) == (202, "respond-async")
        assert self.ask(PATH, ["gate"], headers=headers).headers["Location"] == first.headers["Location"]
        views.GATE.open("wb").close()  # opens when the handler reads
        views.approvals.close()
        views.GATE.unlink()
        ends = time.monotonic() + 20
        while self.state() != "SUCCEEDED" and time.monotonic() < ends:
            pass
        assert (self.state(), effects()) == ("SUCCEEDED", ["item gate"])
