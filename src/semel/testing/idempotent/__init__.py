"""Checks whether users' own endpoints and functions are safe to retry, with reports that name the remedy."""

from __future__ import annotations

from semel.testing.idempotent.assertion import assert_idempotent, assert_idempotent_async, check_idempotent
from semel.testing.idempotent.case import Case, Request
from semel.testing.idempotent.counting import Spy, rows
from semel.testing.idempotent.reply import Reply
from semel.testing.idempotent.report import CannotRun, Finding, NotIdempotent, NotTriedWarning, Report
from semel.testing.idempotent.targets.asgi import AsgiTarget
from semel.testing.idempotent.targets.function import FunctionTarget
from semel.testing.idempotent.targets.target import Fate, Target
from semel.testing.idempotent.targets.url import UrlTarget
from semel.testing.idempotent.targets.wsgi import WsgiTarget

__all__ = [
    "AsgiTarget",
    "CannotRun",
    "Case",
    "Fate",
    "Finding",
    "FunctionTarget",
    "NotIdempotent",
    "NotTriedWarning",
    "Reply",
    "Report",
    "Request",
    "Spy",
    "Target",
    "UrlTarget",
    "WsgiTarget",
    "assert_idempotent",
    "assert_idempotent_async",
    "check_idempotent",
    "rows",
]
