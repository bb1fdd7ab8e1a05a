"""Every case that is about HTTP runs on both adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from semel.http.routing import Operation
from semel.policy import Policy
from tests.web.driving import AsgiWeb, Handler, Reply, UnobservedWeb, Web, WsgiWeb

MakeWeb = Callable[..., Web]


@pytest.fixture(params=[AsgiWeb, UnobservedWeb, WsgiWeb], ids=["asgi", "unobserved", "wsgi"])
def make_web(request: pytest.FixtureRequest) -> Iterator[MakeWeb]:
    """Makes a protected application: a policy for ``POST /payments``, or any settings."""
    made: list[Web] = []

    def make(handler: Handler | None = None, policy: Policy | None = None, **settings: Any) -> Web:
        if policy is not None or "operations" not in settings:
            settings["operations"] = [Operation("/payments", policy if policy is not None else Policy())]
        web: Web = request.param(handler or (lambda seen: Reply()), **settings)
        made.append(web)
        return web

    yield make
    for web in made:
        web.close()


@pytest.fixture
def web(make_web: MakeWeb) -> Web:
    """``POST /payments`` under the default policy."""
    return make_web()
