"""What runs beside an application: the relay, the reaper, the completer, reconcilers, and what is said to them.

Each name is loaded on first use: who runs a reaper does not load a relay.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semel.rules.reconcile import DidNotHappen as DidNotHappen
    from semel.rules.reconcile import Finding as Finding
    from semel.rules.reconcile import StepSucceeded as StepSucceeded
    from semel.rules.reconcile import StillUnknown as StillUnknown
    from semel.rules.reconcile import SucceededWith as SucceededWith
    from semel.worker.case import Case as Case
    from semel.worker.completer import Completer as Completer
    from semel.worker.reaper import Reaper as Reaper
    from semel.worker.reconciling import Reconciler as Reconciler
    from semel.worker.reconciling import Reconciling as Reconciling
    from semel.worker.reconciling import Round as Round
    from semel.worker.reconciling import reconciler as reconciler
    from semel.worker.relay import Relay as Relay
    from semel.worker.sinks.connect import connect_sink as connect_sink
    from semel.worker.sinks.function import FunctionSink as FunctionSink

_HOMES = {
    "Case": "semel.worker.case",
    "Completer": "semel.worker.completer",
    "DidNotHappen": "semel.rules.reconcile",
    "Finding": "semel.rules.reconcile",
    "FunctionSink": "semel.worker.sinks.function",
    "Reaper": "semel.worker.reaper",
    "Reconciler": "semel.worker.reconciling",
    "Reconciling": "semel.worker.reconciling",
    "Relay": "semel.worker.relay",
    "Round": "semel.worker.reconciling",
    "StepSucceeded": "semel.rules.reconcile",
    "StillUnknown": "semel.rules.reconcile",
    "SucceededWith": "semel.rules.reconcile",
    "connect_sink": "semel.worker.sinks.connect",
    "reconciler": "semel.worker.reconciling",
}

__all__ = [
    "Case",
    "Completer",
    "DidNotHappen",
    "Finding",
    "FunctionSink",
    "Reaper",
    "Reconciler",
    "Reconciling",
    "Relay",
    "Round",
    "StepSucceeded",
    "StillUnknown",
    "SucceededWith",
    "connect_sink",
    "reconciler",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'semel.worker' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return __all__
