"""Resumable views of Django: 202 at once, and an end without the client, here or in another process."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any
from unittest import mock

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.core.handlers.wsgi import WSGIHandler
from django.core.wsgi import get_wsgi_application
from django.db import transaction
from django.test import AsyncClient, Client, RequestFactory, TransactionTestCase, override_settings

from semel.errors import ConfigurationError
from semel.http.caller import Caller
from semel.http.wsgi.threads import Accepted
from semel.integrations.django.middleware import INSTALLED
from semel.integrations.django.site import site
from semel.resuming.process import completing
from tests.frameworks.django_site import outer, views
from tests.frameworks.django_site.tests import Asking, effects

PATH = "/ship/7"
ASYNC = {"Prefer": "respond-async"}
DONE = ["charge 7 parcel for alice", "ship 7 parcel for alice"]


class ResumedTests(Asking, TransactionTestCase):  # type: ignore[misc]  # Django ships no types
    """Over HTTP."""

    databases = {"default", "other"}  # noqa: RUF012 -- as Django has it

    def setUp(self) -> None:
        super().setUp()
        views.SHIPPING.update(gate=threading.Event(), ends=None, threads=[])
        self.client.get("/effects")  # which makes the handler, and its middlewares

    def tearDown(self) -> None:
        views.SHIPPING["gate"].set()
        INSTALLED[-1].accepted.close()

    def ship(self, headers: Any = ASYNC, **more: Any) -> Any:
        return self.ask(PATH, {"what": "parcel"}, headers=headers, **more)

    def complete(self) -> int:
        async def story() -> int:
            async with completing(get_wsgi_application(), "shop.wsgi:application") as found:
                return await found.completers[0].run_once()

        return asyncio.run(story())

    def test_the_client_gets_a_status_link_and_the_answer_later(self) -> None:
        first = self.ship()
        assert (first.status_code, first.headers["Preference-Applied"]) == (202, "respond-async")
        assert first.headers["X-Outer"] == "seen"
        again = self.ship()
        assert (again.status_code, again.headers["Location"]) == (202, first.headers["Location"])
        views.SHIPPING["gate"].set()
        INSTALLED[-1].accepted.close()
        ended = self.ship()
        assert (ended.status_code, ended.content, ended.headers["Idempotency-Replayed"]) == (201, b"shipped", "true")
        assert (self.state(), effects()) == ("SUCCEEDED", DONE)
        assert views.SHIPPING["threads"] == ["semel-accepted"]

    def test_over_asgi_it_is_the_same(self) -> None:
        views.SHIPPING["gate"].set()

        async def ask() -> Any:
            headers = {"Authorization": "Bearer alice", "Idempotency-Key": self.key, **ASYNC}
            body = json.dumps({"what": "parcel"})
            return await AsyncClient().post(PATH, body, content_type="application/json", headers=headers)

        assert async_to_sync(ask)().status_code == 202
        INSTALLED[-1].accepted.close()
        ended = async_to_sync(ask)()
        assert (ended.status_code, ended.headers["Idempotency-Replayed"], effects()) == (201, "true", DONE)

    def test_without_the_preference_or_a_place_the_client_waits(self) -> None:
        views.SHIPPING["gate"].set()
        assert self.ship({}).status_code == 201
        self.key = self.key[::-1]
        with mock.patch.object(INSTALLED[-1], "accepted", Accepted(at_once=0)):
            assert self.ship().status_code == 201

    def test_a_completer_continues_after_an_error_behind_the_202(self) -> None:
        views.SHIPPING["gate"].set()
        views.SHIPPING["ends"] = ConnectionError("away")
        assert self.ship().status_code == 202
        INSTALLED[-1].accepted.close()
        assert self.complete() == 0
        views.SHIPPING["ends"] = None
        with override_settings(SEMEL={"RESUMED_USER": lambda caller: None}):
            assert self.complete() == 0  # login_required refuses the request
        assert effects() == DONE[:1]
        assert self.complete() == 1
        assert (self.ship({}).headers["Idempotency-Replayed"], effects()) == ("true", DONE)

    def test_steps_inside_of_a_transaction_of_djangos_are_refused(self) -> None:
        def around(request: Any) -> Any:
            with transaction.atomic():
                return views.ship(request, number=7)

        asked = self.request()
        with pytest.raises(ConfigurationError, match="the steps of 'ship'"):
            INSTALLED[-1].__class__(around)(asked)
        assert (effects(), self.state()) == ([], None)

    def request(self) -> Any:
        body, headers = json.dumps({"what": "parcel"}), {"Idempotency-Key": self.key}
        made = RequestFactory().post(PATH, body, content_type="application/json", headers=headers)
        made.user = outer.User("alice")
        return made

    def test_the_user_is_djangos_own_where_the_caller_is(self) -> None:
        alice = User.objects.create_user("alice")
        with override_settings(SEMEL={}):
            for id, found in ((str(alice.pk), alice.pk), ("0", None), ("user of x.Y: 1", None)):
                assert site().resumed_user(Caller("single", id)).pk == found
        with override_settings(SEMEL={"RESUMED_USER": 7}), pytest.raises(ConfigurationError, match="of a Caller"):
            site().resumed_user(Caller("single", "1"))

    def test_an_async_view_is_answered_202_and_completed_too(self) -> None:
        async def ask(headers: Any = ASYNC) -> Any:
            given = {"Authorization": "Bearer alice", "Idempotency-Key": self.key, **headers}
            body = json.dumps({"what": "parcel"})
            return await AsyncClient().post("/ship-async/7", body, content_type="application/json", headers=given)

        def ask_wsgi() -> Any:
            return self.ask("/ship-async/7", {"what": "parcel"}, headers=ASYNC)

        for served in (ask_wsgi, async_to_sync(ask)):
            self.key, before = self.key[::-1] + "x", len(effects())
            views.SHIPPING["gate"].clear()
            assert served().status_code == 202
            got = served()
            assert got.status_code == 202, (got.status_code, got.content[:600])
            views.SHIPPING["gate"].set()
            ends = time.monotonic() + 20
            while self.state() != "SUCCEEDED" and time.monotonic() < ends:
                pass
            ended = served()
            assert (ended.status_code, ended.headers["Idempotency-Replayed"]) == (201, "true")
            assert effects()[before:] == DONE

    def test_a_completer_continues_an_async_view_that_failed_behind_its_202(self) -> None:
        views.SHIPPING["gate"].set()
        views.SHIPPING["ends"] = ConnectionError("away")
        assert self.ask("/ship-async/7", {"what": "parcel"}, headers=ASYNC).status_code == 202
        INSTALLED[-1].accepted.close()
        views.SHIPPING["ends"] = None
        assert effects() == DONE[:1]
        assert self.complete() == 1
        ended = self.ask("/ship-async/7", {"what": "parcel"})
        assert (ended.status_code, ended.headers["Idempotency-Replayed"], effects()) == (201, "true", DONE)

    def test_the_project_continues_to_serve(self) -> None:
        assert isinstance(get_wsgi_application(), WSGIHandler)
        assert Client().get("/effects").status_code == 200
