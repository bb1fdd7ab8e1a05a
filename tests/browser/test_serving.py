"""What serves the browser module, the key of a plain form, and the headers of CORS."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import pytest

from semel.http import StaticApp, StaticWsgiApp, form_key
from semel.http.browser import SOURCE
from semel.http.cors import ALLOW_HEADERS, EXPOSE_HEADERS

GZIPPED_BYTES_MAX = 7 * 1024


def over_asgi(method: str, path: str, tag: str = "") -> tuple[int, dict[str, str], bytes]:
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("no body is read")

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"if-none-match", tag.encode())] if tag else []
    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    asyncio.run(StaticApp()(scope, receive, send))
    head, body = sent
    return head["status"], {name.decode(): value.decode() for name, value in head["headers"]}, body["body"]


def over_wsgi(method: str, path: str, tag: str = "") -> tuple[int, dict[str, str], bytes]:
    heads: list[Any] = []
    environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "HTTP_IF_NONE_MATCH": tag}
    body = b"".join(StaticWsgiApp()(environ, lambda *head: heads.append(head)))
    [(status, headers)] = heads
    return int(status.split()[0]), dict(headers), body


@pytest.mark.parametrize("call", [over_asgi, over_wsgi])
def test_only_the_module_and_its_types_are_served(call: Any) -> None:
    status, headers, body = call("GET", "/semel/semel.js")
    assert (status, headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert body == (SOURCE / "semel.js").read_bytes()
    assert headers["content-length"] == str(len(body))
    assert call("GET", "/semel/semel.js", headers["etag"])[::2] == (304, b"")
    assert call("HEAD", "/semel/semel.js")[::2] == (200, b"")
    assert call("GET", "/semel/semel.d.ts")[0] == 200
    for path in ("/semel/", "/semel/serving.py", "/semel/../semel.py", "/semel/semel.js/"):
        assert call("GET", path)[0] == 404
    status, headers, _ = call("POST", "/semel/semel.js")
    assert (status, headers["allow"]) == (405, "GET, HEAD")


def test_the_module_is_small() -> None:
    assert len(gzip.compress((SOURCE / "semel.js").read_bytes(), mtime=0)) < GZIPPED_BYTES_MAX


def test_the_static_app_answers_only_http_requests() -> None:
    with pytest.raises(ValueError, match="mount it below an application"):
        asyncio.run(StaticApp()({"type": "lifespan"}, None, None))  # type: ignore[arg-type]


def test_a_form_key_is_random_or_names_its_intent() -> None:
    assert form_key() != form_key()
    assert form_key("checkout", "cart-42") == form_key("checkout", "cart-42")
    assert form_key("checkout", "cart-42") != form_key("checkoutcart", "-42")
    assert len(form_key()) == len(form_key("a")) == 32
    with pytest.raises(ValueError, match="texts that name the intent"):
        form_key("")


def test_the_headers_of_cors_are_those_of_the_contract() -> None:
    assert "Idempotency-Key" in ALLOW_HEADERS
    read = {"Idempotency-Key-Lifetime", "Idempotency-Replayed", "Link", "Location", "Retry-After", "Semel-Code"}
    assert read <= set(EXPOSE_HEADERS)
