"""The checks of ``manage.py check``: Semel's installation, and the shipping questions of ``semel check``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from django.apps import apps
from django.conf import settings
from django.core.checks import ERROR, CheckMessage, Error, Warning
from django.urls import Resolver404, get_resolver, resolve

from semel.check.answers import answers
from semel.errors import SemelError
from semel.integrations.django.discovery import authenticated_by_default, declared_operations, views
from semel.integrations.django.site import Site, site

MIDDLEWARE: Final = "semel.integrations.django.middleware.SemelMiddleware"
_AFTER: Final = (  # these change answers: inside of the capture they would change the stored first answer
    "django.middleware.gzip.GZipMiddleware",
    "django.middleware.cache.UpdateCacheMiddleware",
    "django.middleware.http.ConditionalGetMiddleware",
)


def check_installation(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """Make the checks that need no database."""
    here = site()
    try:
        here.place(here.database)
    except SemelError as error:
        hint = "Correct the project's settings; until then every declared view answers 500."
        return [Error(str(error), hint=hint, id="semel.E001")]
    get_resolver().url_patterns  # noqa: B018 -- imports the views, which declare their operations
    try:
        here.look_at_routes()
    except SemelError as error:
        return [Error(str(error), id="semel.E006")]
    return [*_middleware(here), *_caller(here), *_status(here), *_authentication(here), *_questions(here)]


def project_mistakes() -> list[tuple[str, str]]:
    """Find Semel's errors for ``manage.py check``, each with its remedy."""
    found = check_installation()
    return [(str(each.msg), str(each.hint or "see: manage.py check")) for each in found if each.level >= ERROR]


def _middleware(here: Site) -> Iterator[CheckMessage]:
    found = [index for index, name in enumerate(settings.MIDDLEWARE) if name == MIDDLEWARE]
    if not found:
        if here.declared:
            hint = f"Add {MIDDLEWARE!r} to MIDDLEWARE, at its end."
            yield Error("operations are declared, and Semel's middleware is missing", hint=hint, id="semel.E002")
        return
    if len(found) > 1:
        yield Error("Semel's middleware is in MIDDLEWARE twice", hint="Leave the last one.", id="semel.E003")
    inside = [name for name in settings.MIDDLEWARE[found[0] :] if name in _AFTER]
    if inside:
        yield Error(
            f"{inside[0].rpartition('.')[2]} is below Semel's middleware: an answer that it transformed for one client "
            "would be stored, and replayed to others",
            hint=f"Write {MIDDLEWARE!r} at the end of MIDDLEWARE.",
            id="semel.E004",
        )


def _caller(here: Site) -> Iterator[CheckMessage]:
    has_user = any(name.endswith("AuthenticationMiddleware") for name in settings.MIDDLEWARE)
    if here.declared and here.asks_for_user and not has_user and not apps.is_installed("rest_framework"):
        yield Error(
            "who is calling? Semel asks request.user, and no AuthenticationMiddleware sets it",
            hint="Add it to MIDDLEWARE, or name a function of the request: SEMEL = {'CALLER': 'shop.auth.caller'}.",
            id="semel.E005",
        )


def _status(here: Site) -> Iterator[CheckMessage]:
    path = here.place(here.database).surface.problems.operations_path
    if not here.declared or path is None or not path.startswith("/"):
        return
    # The project may be mounted: then links have a prefix that no view sees.
    within = [path[at:] for at, letter in enumerate(path) if letter == "/"][:-1] or [path]
    if not any(map(_leads_to_a_view, within)):
        yield Warning(
            f"answers link to {path}, but no view is there",
            hint="Add path('operations/', include('semel.integrations.django.urls')) to urlpatterns.",
            id="semel.W003",
        )


def _leads_to_a_view(path: str) -> bool:
    try:
        resolve(path.replace("{id}", "00000000-0000-4000-8000-000000000000"))
    except Resolver404:
        return False
    return True


def _authentication(here: Site) -> Iterator[CheckMessage]:
    """Find REST framework views whose clients cannot read the status that their answers link to."""
    if not here.asks_for_user:
        return
    told: set[str] = set()
    for view in views():
        if view.declared is None or view.declared.name in told:
            continue
        unknown = [each.__name__ for each in view.authenticated_by if each not in authenticated_by_default()]
        if unknown and unknown != ["SessionAuthentication"]:  # whose user Django's middleware knows
            told.add(view.declared.name)
            yield Warning(
                f"{view.declared.name} authenticates by {', '.join(unknown)}, and the status of operations does not: "
                "a client that this lets in gets 401 from the links of its answers",
                hint="Add it to REST_FRAMEWORK['DEFAULT_AUTHENTICATION_CLASSES'], or name a function that reads the "
                "credential of the request: SEMEL = {'CALLER': 'shop.auth.caller'}.",
                id="semel.W004",
            )


def _questions(here: Site) -> Iterator[CheckMessage]:
    asked: set[str] = set()
    for operation in declared_operations(here):
        name = operation.name
        if not operation.path:
            yield Warning(f"no path leads to the operation {name!r}", hint="Add it to urlpatterns.", id="semel.W001")
            continue
        if name in asked:  # its paths have the same answers
            continue
        asked.add(name)
        for answer in answers(operation):
            if answer.level == "unsafe":
                text = f"{name}: {answer.question}: {answer.said}"
                yield Warning(text, hint=answer.remedy or None, id="semel.W002")
