"""The reconcilers known to `semel check`: those given as options, and those that an application declares.

Nothing is imported for this but what was named: of the application's package, the modules that it has imported itself.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from semel.cli.loading import load_reconciler
from semel.reconciliation.worker import Reconciler


class Reconciled(NamedTuple):
    """An operation's reconciler as ``module:name``, and whether an option declared that it runs."""

    name: str
    reconciler: Reconciler
    runs: bool


def load_reconcilers(application: str, named: Sequence[str]) -> dict[str, Reconciled]:
    """By their operation's name.

    Parameters: ``application`` as ``module:app``; ``named`` as ``module:name`` each, which run somewhere.

    Raises UsageFailed where one of ``named`` is none.
    """
    module = application.partition(":")[0]
    package = module.rpartition(".")[0] or module
    found: dict[str, Reconciled] = {}
    for name in sorted(sys.modules):
        if name == package or name.startswith(f"{package}."):
            for attribute, value in list(vars(sys.modules[name]).items()):
                if isinstance(value, Reconciler):
                    found.setdefault(value.operation, Reconciled(f"{name}:{attribute}", value, False))
    for text in named:
        reconciler = load_reconciler(text)
        found[reconciler.operation] = Reconciled(text, reconciler, True)
    return found
