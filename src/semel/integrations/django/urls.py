"""The status resource: ``path("operations/", include("semel.integrations.django.urls"))``."""

from __future__ import annotations

from typing import Any

from django.urls import path
from django.views.decorators.http import require_safe

from semel.core.model import Answer
from semel.integrations.django.answer import response_of
from semel.integrations.django.site import ProjectStore, site


def _ask_stores(request: Any, ask: Any) -> Any:
    """The first store that knows the operation; the last one's answer where none does."""
    answer: Answer | None = None
    for place in site().places():
        answer = ask(place)
        if answer.status != 404:
            break
    assert answer is not None
    return response_of(answer)


@require_safe
def by_id(request: Any, operation_id: str) -> Any:
    """An operation of the caller's, by its id."""

    def ask(place: ProjectStore) -> Answer:
        return place.operations.by_id(operation_id, request)

    return _ask_stores(request, ask)


@require_safe
def by_key(request: Any) -> Any:
    """An operation of the caller's, by its key or reference."""
    query = str(request.META.get("QUERY_STRING", "")).encode("latin-1")

    def ask(place: ProjectStore) -> Answer:
        return place.operations.by_key(query, request)

    return _ask_stores(request, ask)


urlpatterns = [path("", by_key), path("<str:operation_id>", by_id)]
