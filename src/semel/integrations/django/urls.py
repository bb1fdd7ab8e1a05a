"""The status resource: ``path("operations/", include("semel.integrations.django.urls"))``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.urls import path
from django.views.decorators.http import require_safe

from semel.core.model import Answer
from semel.http.problem_page import problem_page
from semel.http.problems import PAGE_NAME
from semel.integrations.django.answer import response_of
from semel.integrations.django.discovery import authenticated_by_default
from semel.integrations.django.site import ProjectStore, site


class _User:
    """Authenticates REST framework's requests by the user of Django's own middleware, such as the session's."""

    def __init__(self, outer: Any) -> None:
        self._outer = outer

    def authenticate(self, request: Any) -> Any:
        user = getattr(self._outer, "user", None)
        return (user, None) if user is not None and user.is_authenticated else None


def _request_of(request: Any) -> Any:
    """Make the request of REST framework's views, if the project has them: it also has the authenticated user."""
    classes = authenticated_by_default()
    if not classes:
        return request
    from rest_framework.request import Request

    return Request(request, authenticators=[*(each() for each in classes), _User(request)])


def _ask_stores(request: Any, ask: Callable[[ProjectStore, Any], Answer]) -> Any:
    """Ask the first store that knows the operation; return the last one's answer if none does."""
    answer: Answer | None = None
    asked = _request_of(request)
    for place in site().places():
        try:
            answer = ask(place, asked)
        except Exception as error:
            if asked is request or not _is_refused(error):
                raise
            answer = place.surface.problems.caller_unknown()
        if answer.status != 404:
            break
    assert answer is not None
    return response_of(answer)


def _is_refused(error: Exception) -> bool:
    """Return whether REST framework has refused a credential."""
    from rest_framework.exceptions import AuthenticationFailed, NotAuthenticated, PermissionDenied

    return isinstance(error, (AuthenticationFailed, NotAuthenticated, PermissionDenied))


@require_safe
def by_id(request: Any, operation_id: str) -> Any:
    """Answer with one of the caller's operations, by its id."""
    return _ask_stores(request, lambda place, asked: place.operations.by_id(operation_id, asked))


@require_safe
def by_key(request: Any) -> Any:
    """Answer with one of the caller's operations, by its key or reference."""
    query = str(request.META.get("QUERY_STRING", "")).encode("latin-1")
    return _ask_stores(request, lambda place, asked: place.operations.by_key(query, asked))


@require_safe
def tell_problems(request: Any) -> Any:
    """Serve the public page about the codes of problem documents."""
    return response_of(problem_page())


urlpatterns = [path("", by_key), path(PAGE_NAME, tell_problems), path("<str:operation_id>", by_id)]
