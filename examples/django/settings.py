"""Settings of the library. ``LOANS`` names the SQLite file, ``loans.db`` by default."""

from __future__ import annotations

import os

SECRET_KEY = os.environ.get("SECRET_KEY", "change me")
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "examples.django.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("LOANS", "loans.db")}}
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "rest_framework",
    "semel.integrations.django",  # the tables, the checks and `semel` as a command of Django's
    "examples.django",
]
MIDDLEWARE = [
    "django.middleware.common.CommonMiddleware",
    "semel.integrations.django.middleware.SemelMiddleware",  # at the end
]
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["examples.django.bearer.Bearer"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
}
