"""Where the views are."""

from __future__ import annotations

from django.urls import include, path
from rest_framework.routers import SimpleRouter

from tests.frameworks.django_site import rest, views

router = SimpleRouter()
router.register("rest", rest.Effects)

urlpatterns = [
    path("atomic", views.atomic),
    path("external", views.external),
    path("idempotent", views.idempotent),
    path("numbered/<int:number>", views.numbered),
    path("elsewhere", views.elsewhere),
    path("upload", views.upload),
    path("private", views.private),
    path("orders", views.Orders.as_view()),
    path("effects", views.effects),
    path("operations/", include("semel.integrations.django.urls")),
    path("plain", rest.plain),
    path("", include(router.urls)),
]
