"""A Django project with the mistakes of ``test_misuse``: says as JSON what becomes of each. Run by that test."""

from __future__ import annotations

import io
import json
import logging
import sys
from pathlib import Path
from typing import Any

import django
from django.conf import settings

FOLDER = Path(sys.argv[1])
CAPTURE = "semel.integrations.django.middleware.SemelMiddleware"
settings.configure(
    SECRET_KEY="x" * 50,
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    INSTALLED_APPS=["semel.integrations.django"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{FOLDER}/django.sqlite3"}},
    MIDDLEWARE=[CAPTURE],
    SEMEL={"CALLER": "semel.http.caller.single_caller"},
    REST_FRAMEWORK={"UNAUTHENTICATED_USER": None},
)
django.setup()

from django.core import checks  # noqa: E402
from django.http import HttpResponse  # noqa: E402
from django.test import Client, override_settings  # noqa: E402
from django.urls import path  # noqa: E402
from rest_framework.decorators import api_view  # noqa: E402

from semel.errors import ConfigurationError  # noqa: E402
from semel.integrations import django as semel  # noqa: E402
from semel.integrations.django.site import site  # noqa: E402


@semel.command("pay", effects="atomic")
def pay(request: Any) -> Any:
    """An ATOMIC view."""
    return HttpResponse("ok")


def plain(request: Any) -> Any:
    """A view that is routed to as it is."""
    return HttpResponse("ok")


urlpatterns = [path("pay", pay)]


def ask() -> str:
    """A command, as a client sees it and as the log does."""
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger("semel").addHandler(handler)
    try:
        answer = Client().post("/pay", headers={"Idempotency-Key": "key-1"})
        return f"{answer.status_code} {log.getvalue()}"
    except ConfigurationError as error:
        return str(error)
    finally:
        logging.getLogger("semel").removeHandler(handler)


def run_check(**changed: Any) -> str:
    """Return what ``manage.py check`` prints."""
    with override_settings(**changed):
        return "; ".join(f"{each.id} {each.msg}" for each in checks.run_checks())


found = {"no tables": ask(), "order": run_check(MIDDLEWARE=[CAPTURE, "django.middleware.gzip.GZipMiddleware"])}
found["no capture"] = run_check(MIDDLEWARE=[])
found["caller"] = run_check(SEMEL={})
try:
    semel.command("rest")(api_view(["POST"])(plain))
    found["above drf"] = "silence"
except ConfigurationError as error:
    found["above drf"] = str(error)
semel.command("hidden")(plain)
urlpatterns.append(path("plain", plain))
site()._templates = None
found["above"] = run_check()
urlpatterns.pop()
site()._templates = None
print(json.dumps(found))
