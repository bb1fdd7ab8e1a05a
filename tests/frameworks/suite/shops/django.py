"""The shop in Django: its settings, and its application for a server's gateway."""

from __future__ import annotations

from typing import Any

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application

from tests.frameworks.suite import shop

URLS = "tests.frameworks.suite.shops.django_views"


def configure(urls: str, **more: Any) -> None:
    """Django's settings, which are those of a process."""
    settings.configure(
        SECRET_KEY="not a secret",
        ALLOWED_HOSTS=["testserver", "127.0.0.1"],
        USE_TZ=True,
        ROOT_URLCONF=urls,
        APPEND_SLASH=False,
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "semel.integrations.django"],
        MIDDLEWARE=[
            "django.middleware.common.CommonMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "tests.frameworks.suite.shops.django_outer.Token",
            "semel.integrations.django.middleware.SemelMiddleware",
        ],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{shop.folder()}/shop.db"}},
        SEMEL={"RESUMED_USER": "tests.frameworks.suite.shops.django_outer.resumed_user"},
        **more,
    )
    django.setup()


def make() -> Any:
    configure(URLS)
    return get_wsgi_application()
