"""Where the views are."""

from __future__ import annotations

from django.urls import include, path
from rest_framework.routers import SimpleRouter

from examples.django.views import Loans

router = SimpleRouter(trailing_slash=False)
router.register("loans", Loans)

urlpatterns = [
    path("", include(router.urls)),
    path("operations/", include("semel.integrations.django.urls")),  # the status of each operation
]
