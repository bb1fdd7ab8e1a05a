"""Views that do what their body asks for: ``{"what": ..., "do": ...}``."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, IntegrityError, connections, transaction
from django.http import Http404, HttpResponse, JsonResponse, StreamingHttpResponse
from django.template import engines
from django.template.response import SimpleTemplateResponse
from django.views import View
from django.views.decorators.http import require_POST

from semel.bulk.declaration import BulkItem
from semel.integrations import django as semel
from tests.frameworks.django_site.models import Effect

HOOKS: list[str] = []
GATE = Path(settings.FOLDER, "gate")


def write_more(do: str, made: Any, using: str) -> None:
    """What fails after the effect, and what the view makes of it."""
    again = functools.partial(Effect.objects.using(using).create, pk=made.pk, what="again")
    if do == "swallow":  # SQLite rolls the transaction back, PostgreSQL knows no such statement and ends it
        with suppress(DatabaseError), connections[using].cursor() as cursor:
            cursor.execute("INSERT OR ROLLBACK INTO django_site_effect SELECT * FROM django_site_effect")
    if do == "swallow-orm":  # for which Django gives its transaction up
        with suppress(IntegrityError):
            again()
    if do == "close":
        connections[using].close()
    if do == "beside":
        Effect.objects.using("other").count()
        Effect.objects.using("other").create(what="beside")
    if do == "nested":
        with suppress(KeyError), transaction.atomic(using=using):
            Effect.objects.using(using).create(what="inner")
            raise KeyError
    if do == "inner":
        with suppress(IntegrityError), transaction.atomic(using=using):
            again()


def answer(request: Any, asked: dict[str, Any], using: str = "default") -> Any:
    """Write one effect, then end as the body says."""
    what, do = asked.get("what", "x"), asked.get("do", "")
    made = Effect.objects.using(using).create(what=what)
    if do == "raise":
        raise ZeroDivisionError
    if do == "missing":
        raise Http404
    if do == "denied":
        raise PermissionDenied
    if do == "refuse":
        return JsonResponse({"error": "sold out"}, status=409)
    if do == "busy":
        return JsonResponse({"error": "later"}, status=429)
    if do == "rollback":
        transaction.set_rollback(True, using=using)
    if do == "hook":
        transaction.on_commit(lambda: HOOKS.append(what), using=using)
    write_more(do, made, using)
    if do == "template":
        return SimpleTemplateResponse(engines["django"].from_string("made {{ n }}"), {"n": made.pk}, status=201)
    if do == "stream":
        return StreamingHttpResponse((b"%d" % n for n in range(5)), status=201)
    if do == "long":
        return StreamingHttpResponse((b"x" * 100_000 for _ in range(20)), status=201)
    if do == "big":
        return HttpResponse(b"y" * 1_500_000, status=201)
    if do == "cut":
        return HttpResponse(b"short", status=201, headers={"Content-Length": "50"})
    if do == "cookie":
        response = JsonResponse({"n": made.pk}, status=201)
        response.set_cookie("session", "secret")
        return response
    permit = request.semel_permit
    keys = "" if permit is None else permit.key_for("charge")
    response = JsonResponse({"n": made.pk, "key": keys}, status=201)
    response["Location"] = f"/effects/{made.pk}"
    return response


@require_POST
@semel.command("atomic", effects="atomic")
def atomic(request: Any) -> Any:
    return answer(request, json.loads(request.body))


@require_POST
@semel.command("external", effects="external", answer_bytes_max=1_000_000)
def external(request: Any) -> Any:
    return answer(request, json.loads(request.body))


@transaction.non_atomic_requests(using="other")
@transaction.non_atomic_requests
@semel.command("idempotent", effects="idempotent")
async def idempotent(request: Any) -> Any:
    asked = json.loads(request.body)
    if asked.get("do") == "raise":
        raise ZeroDivisionError
    if asked.get("do") == "gate":
        await asyncio.to_thread(GATE.read_bytes)

    async def pieces() -> AsyncIterator[bytes]:
        for n in range(5):
            yield b"%d" % n

    if asked.get("do") == "stream":
        return StreamingHttpResponse(pieces(), status=201)
    effect = await Effect.objects.acreate(what=asked.get("what", "x"))
    return JsonResponse({"n": effect.pk}, status=201)


SORRY = HttpResponse("sold out", status=409)


class Guest:
    """A user who is in no table."""

    def __init__(self, pk: int) -> None:
        self.pk = pk


@semel.command("shared", effects="external")
def answer_shared(request: Any) -> Any:
    return SORRY


@semel.command("shared.atomic", effects="atomic")
def shared_atomic(request: Any) -> Any:
    return SORRY


@semel.command("shared.optional", effects="external", key="optional")
def shared_optional(request: Any) -> Any:
    return SORRY


@semel.command("numbered", effects="atomic", key_from="path:number")
def answer_numbered(request: Any, number: int) -> Any:
    return answer(request, {"what": f"number {number}"})


def quiet(view: Any) -> Any:
    """A decorator that makes an answer of what a view raises, inside of the view's transaction."""

    @functools.wraps(view)
    def serve(request: Any) -> Any:
        try:
            return view(request)
        except ValueError:
            return JsonResponse({}, status=500)

    return serve


@transaction.atomic
@quiet
@semel.command("quiet", effects="atomic")
def fail_quietly(request: Any) -> Any:
    Effect.objects.create(what="never")
    raise ValueError("after the write")


def hides(view: Any) -> Any:
    """A decorator that does not say what it decorates."""

    def serve(request: Any) -> Any:
        return view(request)

    return serve


@hides
@semel.command("decide", effects="external")
def decide(request: Any) -> Any:
    return JsonResponse({"path": request.path}, status=201)


class Thing:
    """What a path converter makes: it has no text of its own."""

    def __init__(self, number: str) -> None:
        self.number = number


@semel.command("things", effects="external")
def thing(request: Any, thing: Thing) -> Any:
    return JsonResponse({"number": thing.number}, status=201)


@semel.command("elsewhere", effects="atomic", using="other")
def elsewhere(request: Any) -> Any:
    return answer(request, json.loads(request.body), using="other")


@semel.command("upload", effects="atomic")
def upload(request: Any) -> Any:
    file = request.FILES["file"]
    return answer(request, {"what": f"{request.POST['note']} {file.name} {len(file.read())}"})


@login_required(login_url="/login")
@semel.command("private", effects="external")
def private(request: Any) -> Any:
    return answer(request, {})


class Orders(View):  # type: ignore[misc]  # Django ships no types
    """A class-based view."""

    def get(self, request: Any) -> Any:
        return HttpResponse("orders")

    @semel.command("orders.create", effects="atomic")
    def post(self, request: Any) -> Any:
        return answer(request, json.loads(request.body))

    @semel.command("orders.clear", effects="external", key="optional")
    def delete(self, request: Any) -> Any:
        Effect.objects.create(what="cleared")
        return HttpResponse(status=204)


def approve(item: BulkItem) -> str:
    """An item whose effect is a row of Django's."""
    if item.value == "raise":
        raise ZeroDivisionError
    if item.value == "gate":
        GATE.read_bytes()
    return str(Effect.objects.create(what=f"item {item.value}").pk)


approvals = semel.bulk("approvals", approve, effects="external", member=None)


SHIPPING: dict[str, Any] = {"gate": threading.Event(), "ends": None, "threads": []}


@login_required
@semel.command("ship", effects="external", steps=True, resumable=True, wait_seconds=0)
def ship(request: Any, number: int) -> Any:
    """Two steps; the second begins when a test lets it."""
    permit, what = request.semel_permit, f"{number} {json.loads(request.body)['what']} for {request.user.pk}"
    SHIPPING["threads"].append(threading.current_thread().name)
    permit.step("charge", lambda: Effect.objects.create(what=f"charge {what}").pk)
    assert SHIPPING["gate"].wait(20)
    if SHIPPING["ends"] is not None:
        raise SHIPPING["ends"]
    permit.step("ship", lambda: Effect.objects.create(what=f"ship {what}").pk, repeat=True)
    return HttpResponse("shipped", status=201)


@login_required
@semel.command("ship-async", effects="external", steps=True, resumable=True, wait_seconds=0)
async def ship_async(request: Any, number: int) -> Any:
    """The same as a coroutine, whose steps are made in Django's own thread."""
    permit, user = request.semel_permit, await request.auser()
    what = f"{number} {json.loads(request.body)['what']} for {user.pk}"
    step = sync_to_async(permit.step)
    await step("charge", lambda: Effect.objects.create(what=f"charge {what}").pk)
    assert await sync_to_async(SHIPPING["gate"].wait)(20)
    if SHIPPING["ends"] is not None:
        raise SHIPPING["ends"]
    await step("ship", lambda: Effect.objects.create(what=f"ship {what}").pk, repeat=True)
    return HttpResponse("shipped", status=201)


def effects(request: Any) -> Any:
    """Return all effects, for tests."""
    return JsonResponse(list(Effect.objects.order_by("pk").values_list("what", flat=True)), safe=False)
