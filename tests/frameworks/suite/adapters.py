"""What each adapter can do, declared: the suite runs a feature's cases for every adapter that does not say why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class Feature(StrEnum):
    """A row of the table in docs/frameworks.md."""

    REPLAY = "a retry gets the first answer"
    OTHER = "another payload under the key is refused"
    RACE = "parallel duplicates have one effect"
    SPELLING = "another spelling of the path is the same command"
    BEFORE = "a request refused by authentication or validation leaves no record"
    DERIVED = "keys from the path or the body"
    PERMIT = "the permit reaches the handler"
    STEPS = "steps: a retry continues where the first attempt ended"
    SESSION = "ATOMIC: the framework's own session or transaction"
    ATOMIC = "ATOMIC: rows and record in one commit"
    KILL = "killed before and after the commit"
    EXCEPTION = "an exception turned into an answer is not a success"
    STREAM = "streamed answers"
    FORM = "forms and files"
    STATUS = "the status of operations"
    BULK = "lists of items (bulk)"
    ACCEPTED = "`Prefer: respond-async`"
    IMPORTS = "imports"
    OPENAPI = "OpenAPI from the framework's own schema"
    COMMAND = "OpenAPI from `semel openapi`"


@dataclass(frozen=True)
class Adapter:
    """One adapter. ``shop`` is the module of its shop, ``server`` and ``client`` are names of the host's functions."""

    name: str
    page: str
    shop: str
    server: str
    client: str
    cannot: Mapping[Feature, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.shop


_NO_SCHEMA: Final = "none of its own; use `semel openapi`"
_OUTSIDE: Final = "it claims outside of them; set `may=`"
_ENDPOINT: Final = "by a separate endpoint"
_CONNECTION: Final = "`permit.connection`, or a session on it (`session_on`)"
_MIDDLEWARE: Final = {
    Feature.BEFORE: _OUTSIDE,
    Feature.SESSION: _CONNECTION,
    Feature.EXCEPTION: "it sees only the answer",
    Feature.BULK: _ENDPOINT,
    Feature.IMPORTS: _ENDPOINT,
    Feature.OPENAPI: _NO_SCHEMA,
}
_DJANGO: Final = {Feature.OPENAPI: "REST framework's"}

ADAPTERS: Final = (
    Adapter("FastAPI", "fastapi.md", "fastapi", "uvicorn", "starlette"),
    Adapter("Starlette", "starlette.md", "starlette", "uvicorn", "starlette", {Feature.OPENAPI: _NO_SCHEMA}),
    Adapter(
        "Django",
        "django.md",
        "django",
        "gunicorn",
        "django",
        {Feature.OPENAPI: "REST framework's"},
    ),
    Adapter(
        "REST framework",
        "django.md",
        "rest",
        "uvicorn",
        "rest",
        {Feature.IMPORTS: "Django's"},
    ),
    Adapter("Flask", "flask.md", "flask", "gunicorn", "flask", {Feature.OPENAPI: _NO_SCHEMA}),
    Adapter(
        "Quart",
        "quart.md",
        "quart",
        "hypercorn",
        "quart",
        {Feature.OPENAPI: _NO_SCHEMA},
    ),
    Adapter("Litestar", "litestar.md", "litestar", "uvicorn", "litestar"),
    Adapter("ASGI middleware", "starlette.md#any-asgi-application", "asgi", "hypercorn", "starlette", _MIDDLEWARE),
    Adapter("WSGI middleware", "wsgi.md", "wsgi", "waitress", "werkzeug", _MIDDLEWARE),
)
