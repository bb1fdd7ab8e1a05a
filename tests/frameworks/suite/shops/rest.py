"""The shop in Django REST framework, for a server of ASGI's."""

from __future__ import annotations

from typing import Any

from django.core.asgi import get_asgi_application

from tests.frameworks.suite.shops.django import configure


def make() -> Any:
    configure(
        "tests.frameworks.suite.shops.rest_views",
        REST_FRAMEWORK={
            "DEFAULT_SCHEMA_CLASS": "semel.integrations.django.spectacular.AutoSchema",
            "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
            "EXCEPTION_HANDLER": "tests.frameworks.suite.shops.rest_outer.swallow",
            "DEFAULT_AUTHENTICATION_CLASSES": ["tests.frameworks.suite.shops.rest_outer.Bearer"],
            "DEFAULT_PERMISSION_CLASSES": ["tests.frameworks.suite.shops.rest_outer.IsWelcome"],
        },
    )
    return get_asgi_application()


def document(app: Any) -> Any:
    from drf_spectacular.generators import SchemaGenerator

    return SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
