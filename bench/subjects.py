"""What is measured: the servers, and what is asked of each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Mode(Enum):
    """What a cell sends."""

    FRESH = "fresh"  # every key is new
    REPLAY = "replay"  # every key has its answer already


@dataclass(frozen=True, slots=True)
class Subject:
    """A server under one kind of request. ``store`` is None for the bare application.

    ``ratio_goal`` is what shall remain of the bare application's rate at 32 connections.
    """

    name: str
    store: str | None
    mode: Mode
    ratio_goal: float | None = None


BARE: Final = Subject("bare", None, Mode.FRESH)
SUBJECTS: Final = (
    BARE,
    Subject("memory-fresh", "memory", Mode.FRESH, 0.75),
    Subject("memory-replay", "memory", Mode.REPLAY, 1.0),
    Subject("sqlite-fresh", "sqlite", Mode.FRESH, 0.40),
    Subject("sqlite-replay", "sqlite", Mode.REPLAY, 0.80),
)
GOAL_CONNECTIONS: Final = 32

MIDDLEWARE: Final = "middleware"
LIMIT: Final = "limit"
NAMES: Final = (*(subject.name for subject in SUBJECTS), MIDDLEWARE, LIMIT)

PATH: Final = "/payments"
COUNTS_PATH: Final = "/_counts"
REQUEST_BODY: Final = (
    b'{"customerId":"cus_5f1c2b7e90d14a38","amount":"129.90","currency":"EUR",'
    b'"description":"Order 2041, two items, by express mail",'
    b'"metadata":{"cart":"7d2e41f0-53a8-4c1b","channel":"web","locale":"en-GB"}}'
)
ANSWER_BODY: Final = (
    b'{"paymentId":"pay_0000000000000001","status":"captured","amount":"129.90","currency":"EUR","version":1}'
)
KEY_TEMPLATE: Final = b"%08x-5eed-4000-8000-%012x"  # the form of a UUID, which is what clients send
