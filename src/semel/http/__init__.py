"""The public names for commands over HTTP; each is loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.lazy import load_from as _load_from

if TYPE_CHECKING:
    from semel.http.browser.serving import StaticApp as StaticApp
    from semel.http.browser.serving import StaticWsgiApp as StaticWsgiApp
    from semel.http.caller import Caller as Caller
    from semel.http.caller import from_environ as from_environ
    from semel.http.caller import from_state as from_state
    from semel.http.caller import from_user as from_user
    from semel.http.caller import single_caller as single_caller
    from semel.http.forms import form_key as form_key
    from semel.http.problems import Problems as Problems
    from semel.http.routing import Operation as Operation
    from semel.http.settings import HttpSettings as HttpSettings

_HOMES = {
    "Caller": "semel.http.caller",
    "HttpSettings": "semel.http.settings",
    "Operation": "semel.http.routing",
    "Problems": "semel.http.problems",
    "StaticApp": "semel.http.browser.serving",
    "StaticWsgiApp": "semel.http.browser.serving",
    "form_key": "semel.http.forms",
    "from_environ": "semel.http.caller",
    "from_state": "semel.http.caller",
    "from_user": "semel.http.caller",
    "single_caller": "semel.http.caller",
}

__all__ = [
    "Caller",
    "HttpSettings",
    "Operation",
    "Problems",
    "StaticApp",
    "StaticWsgiApp",
    "form_key",
    "from_environ",
    "from_state",
    "from_user",
    "single_caller",
]


if not TYPE_CHECKING:  # type checkers report a name that does not exist
    __getattr__ = _load_from(__name__, _HOMES)
