"""A Django project of many small views, for what real servers and Django's own test runner do with Semel."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

FOLDER = os.environ.get("SHOP_FOLDER", ".")
SECRET_KEY = "not a secret"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # of tests: quick
STATIC_URL = "static/"
DEBUG = False
ALLOWED_HOSTS = ["testserver", "127.0.0.1"]
USE_TZ = True
ROOT_URLCONF = "tests.frameworks.django_site.urls"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "drf_spectacular",
    "semel.integrations.django",
    "tests.frameworks.django_site",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.gzip.GZipMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "tests.frameworks.django_site.outer.Token",
    "semel.integrations.django.middleware.SemelMiddleware",
]


def _sqlite(name: str, **more: Any) -> dict[str, Any]:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": f"{FOLDER}/{name}.sqlite3",
        "TEST": {"NAME": f"{FOLDER}/test-{name}.sqlite3"},
        **more,
    }


IN_REQUESTS = {"ATOMIC_REQUESTS": "SHOP_ATOMIC_REQUESTS" in os.environ}
DATABASES: dict[str, dict[str, Any]] = {
    "default": _sqlite("shop", **IN_REQUESTS),
    "other": _sqlite("other", **IN_REQUESTS),
}
if "SHOP_POSTGRES" in os.environ:
    server = urlsplit(os.environ["SHOP_POSTGRES"])
    DATABASES["default"] = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": server.path.strip("/"),
        "HOST": server.hostname,
        "PORT": server.port,
        "USER": server.username,
        "TEST": {"NAME": f"semel_django_{os.getpid()}"},
    }
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
FILE_UPLOAD_MAX_MEMORY_SIZE = 1000
SEMEL: dict[str, Any] = {"RESUMED_USER": "tests.frameworks.django_site.outer.resumed_user"}
REST_FRAMEWORK = {
    "DEFAULT_SCHEMA_CLASS": "semel.integrations.django.spectacular.AutoSchema",
    "DEFAULT_AUTHENTICATION_CLASSES": ["tests.frameworks.django_site.bearer.Bearer"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
}
