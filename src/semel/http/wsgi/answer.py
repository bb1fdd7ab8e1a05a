"""Answers in WSGI's form: a status line, headers as texts, a body in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final

from semel.core.model import Answer

Environ = dict[str, Any]
ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]
Write = Callable[[bytes], object]
StartResponse = Callable[..., Write]
_UNPREFIXED: Final = {"CONTENT_TYPE": b"content-type", "CONTENT_LENGTH": b"content-length"}


def headers_of(environ: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
    """Return the request's fields, as a list, because a kept request is read more than once."""
    found = []
    for name, value in environ.items():
        if name.startswith("HTTP_"):
            found.append((name[5:].replace("_", "-").lower().encode("latin-1"), value.encode("latin-1")))
        elif name in _UNPREFIXED and value:
            found.append((_UNPREFIXED[name], value.encode("latin-1")))
    return found


def send_answer(start_response: StartResponse, answer: Answer, line: str | None = None) -> Iterable[bytes]:
    """Send an answer; ``line`` is the application's own status line, if it has one."""
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.headers]
    start_response(line or _status_line(answer.status or 200), headers)
    return [answer.body]


def _status_line(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"{status} Unknown"


def with_mark(start_response: StartResponse, mark: tuple[bytes, bytes]) -> StartResponse:
    """Return a start_response that adds one header to the answer."""
    added = (mark[0].decode("latin-1"), mark[1].decode("latin-1"))

    def start_marked(status: str, headers: list[tuple[str, str]], *rest: Any) -> Write:
        return start_response(status, [*headers, added], *rest)

    return start_marked
