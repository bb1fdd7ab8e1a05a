"""Where the views are."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path, register_converter
from django.views.decorators.csrf import csrf_exempt
from rest_framework.routers import SimpleRouter

from semel.integrations import django as semel
from tests.frameworks.django_site import imported, rest, views

router = SimpleRouter()


class ThingConverter:
    """A number in a path, as an object."""

    regex = "[0-9]+"

    def to_python(self, value: str) -> views.Thing:
        return views.Thing(value)

    def to_url(self, value: views.Thing) -> str:
        return value.number


register_converter(ThingConverter, "thing")
router.register("rest", rest.Effects)
router.register("kept", rest.Kept, basename="kept")

urlpatterns = [
    path("admin/", admin.site.urls),
    path("atomic", views.atomic),
    path("external", views.external),
    path("idempotent", views.idempotent),
    path("numbered/<int:number>", views.answer_numbered),
    path("shared", views.answer_shared),
    path("shared-atomic", views.shared_atomic),
    path("shared-optional", views.shared_optional),
    path("quiet", views.fail_quietly),
    path("approve", views.decide),
    path("reject", views.decide),
    path("things/<thing:thing>", views.thing),
    path("elsewhere", views.elsewhere),
    path("upload", views.upload),
    path("private", views.private),
    path("orders", views.Orders.as_view()),
    path("effects", views.effects),
    path("operations/", include("semel.integrations.django.urls")),
    path("plain", rest.plain),
    path("approvals/<int:store>", views.approvals.answer),
    path("more-approvals/<int:store>", views.approvals.answer),
    path("ship/<int:number>", views.ship),
    path("ship-async/<int:number>", views.ship_async),
    path("rest-approvals", rest.approve),
    path("rest-created", rest.Created.as_view()),
    path("", include(router.urls)),
]

urlpatterns += semel.imports(
    imported.stock,
    path="suppliers/{supplier}/imports",
    supplier="path:supplier",
    may=imported.may_upload,
    decorate=csrf_exempt,
)
