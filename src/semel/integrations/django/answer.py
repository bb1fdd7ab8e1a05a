"""Conversions between Semel's answers and Django's responses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import ResponseHeaders

from semel.bulk.wsgi import Told
from semel.core.model import Answer


def response_of(answer: Answer) -> Any:
    """Make an answer into a response, with exactly its own headers."""
    response = HttpResponse(answer.body, status=200 if answer.status is None else answer.status)
    del response.headers["Content-Type"]
    for name, value in answer.headers:
        add_header(response, name, value)
    return response


def stream_of(told: Told, request: Any) -> Any:
    """Make a bulk's answer into a response. Its items are read while it is sent; over ASGI before that."""
    is_async = getattr(request, "scope", None) is not None
    response = HttpResponse(b"".join(told.pieces)) if is_async else StreamingHttpResponse(told.pieces)
    response.status_code = told.status
    del response.headers["Content-Type"]
    for name, value in told.headers:
        add_header(response, name, value)
    return response


def add_header(response: Any, name: bytes, value: bytes) -> None:
    """Add one header line to a response; join several of one name, as HTTP allows."""
    text, line = name.decode("latin-1"), value.decode("latin-1")
    if response.has_header(text):
        response.headers[text] = f"{response.headers[text]}, {line}"
    else:
        response.headers[text] = line


def with_lines(response: Any, lines: Iterable[tuple[bytes, bytes]]) -> Any:
    """Add header lines to a copy of a response: an application may answer many requests with the same object."""
    more = tuple(lines)
    if not more:
        return response
    copied = object.__new__(type(response))  # copy.copy would leave out what Django does not pickle
    vars(copied).update(vars(response))
    copied.headers = ResponseHeaders(response.headers)
    copied._resource_closers = list(response._resource_closers)
    for name, value in more:
        add_header(copied, name, value)
    return copied


def lines_of(response: Any) -> Iterable[tuple[bytes, bytes]]:
    """Read the head of a response, line by line, without its cookies: those are never stored."""
    for name, value in response.items():
        yield name.encode("latin-1"), value.encode("latin-1")


def in_place_of(response: Any, answer: Answer) -> Any:
    """Return Semel's own answer in place of a response, but keep its cookies, which belong to this request."""
    other = response_of(answer)
    other.cookies = response.cookies
    other._resource_closers.extend(response._resource_closers)
    return other


def whole_of(response: Any, body: bytes) -> Any:
    """Make a streaming response that was read to its end into one that holds its body."""
    whole = HttpResponse(body, status=response.status_code, reason=response.reason_phrase)
    whole.headers = response.headers
    whole.cookies = response.cookies
    whole._resource_closers.append(response.close)
    return whole
