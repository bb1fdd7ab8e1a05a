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
    RACE = "duplicates at once have one effect"
    SPELLING = "another spelling of the path is no second command"
    BEFORE = "what authentication or validation refuses leaves no record"
    DERIVED = "keys from the path or the body"
    PERMIT = "the permit reaches the handler"
    STEPS = "steps: a retry goes on where the first ended"
    SESSION = "ATOMIC: the framework's own session or transaction"
    ATOMIC = "ATOMIC: rows and record in one commit"
    KILL = "killed before and after the commit"
    EXCEPTION = "an exception that becomes an answer is no success"
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


_NO_SCHEMA: Final = "it writes none; `semel openapi` does"
_UNSEEN: Final = "it does not see Django's URLs"
_OUTSIDE: Final = "it stands outside; ask `may=` before the store"
_ENDPOINT: Final = "an endpoint of its own"
_CONNECTION: Final = "`permit.connection`, or a session on it (`session_on`)"
_MIDDLEWARE: Final = {
    Feature.BEFORE: _OUTSIDE,
    Feature.SESSION: _CONNECTION,
    Feature.EXCEPTION: "it sees the answer alone",
    Feature.BULK: _ENDPOINT,
    Feature.IMPORTS: _ENDPOINT,
    Feature.OPENAPI: _NO_SCHEMA,
}
_DJANGO: Final = {Feature.OPENAPI: "REST framework's", Feature.COMMAND: _UNSEEN}

ADAPTERS: Final = (
    Adapter("FastAPI", "fastapi.md", "fastapi", "uvicorn", "starlette"),
    Adapter("Starlette", "starlette.md", "starlette", "uvicorn", "starlette", {Feature.OPENAPI: _NO_SCHEMA}),
    Adapter(
        "Django",
        "django.md",
        "django",
        "gunicorn",
        "django",
        {Feature.OPENAPI: "REST framework's", Feature.COMMAND: _UNSEEN},
    ),
    Adapter(
        "REST framework",
        "django.md",
        "rest",
        "uvicorn",
        "rest",
        {Feature.IMPORTS: "Django's", Feature.COMMAND: _UNSEEN},
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
