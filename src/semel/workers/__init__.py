"""The workers beside an application: relay, reaper, completer and reconcilers, and their configuration.

Each name is loaded on first use: a process with a reaper alone does not load a relay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.lazy import load_from as _load_from

if TYPE_CHECKING:
    from semel.outbox.receivers import Receiver as Receiver
    from semel.outbox.receivers import Receivers as Receivers
    from semel.outbox.sinks.base import SinkUnreached as SinkUnreached
    from semel.outbox.sinks.function import FunctionSink as FunctionSink
    from semel.outbox.sinks.urls import connect_sink as connect_sink
    from semel.outbox.worker import Relay as Relay
    from semel.reconciliation.case import Case as Case
    from semel.reconciliation.rules import DidNotHappen as DidNotHappen
    from semel.reconciliation.rules import Finding as Finding
    from semel.reconciliation.rules import RefusedWith as RefusedWith
    from semel.reconciliation.rules import StepSucceeded as StepSucceeded
    from semel.reconciliation.rules import StillUnknown as StillUnknown
    from semel.reconciliation.rules import SucceededWith as SucceededWith
    from semel.reconciliation.worker import Reconciler as Reconciler
    from semel.reconciliation.worker import Reconciling as Reconciling
    from semel.reconciliation.worker import Round as Round
    from semel.reconciliation.worker import reconciler as reconciler
    from semel.resuming.worker import Completer as Completer
    from semel.retention.worker import Reaper as Reaper

_HOMES = {
    "Case": "semel.reconciliation.case",
    "Completer": "semel.resuming.worker",
    "DidNotHappen": "semel.reconciliation.rules",
    "Finding": "semel.reconciliation.rules",
    "FunctionSink": "semel.outbox.sinks.function",
    "Reaper": "semel.retention.worker",
    "Receiver": "semel.outbox.receivers",
    "Receivers": "semel.outbox.receivers",
    "Reconciler": "semel.reconciliation.worker",
    "Reconciling": "semel.reconciliation.worker",
    "RefusedWith": "semel.reconciliation.rules",
    "Relay": "semel.outbox.worker",
    "Round": "semel.reconciliation.worker",
    "SinkUnreached": "semel.outbox.sinks.base",
    "StepSucceeded": "semel.reconciliation.rules",
    "StillUnknown": "semel.reconciliation.rules",
    "SucceededWith": "semel.reconciliation.rules",
    "connect_sink": "semel.outbox.sinks.urls",
    "reconciler": "semel.reconciliation.worker",
}

__all__ = [
    "Case",
    "Completer",
    "DidNotHappen",
    "Finding",
    "FunctionSink",
    "Reaper",
    "Receiver",
    "Receivers",
    "Reconciler",
    "Reconciling",
    "RefusedWith",
    "Relay",
    "Round",
    "SinkUnreached",
    "StepSucceeded",
    "StillUnknown",
    "SucceededWith",
    "connect_sink",
    "reconciler",
]


if not TYPE_CHECKING:  # type checkers report a name that does not exist
    __getattr__ = _load_from(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
