"""The reconcilers known to `semel check`: those given as options, and those that an application declares.

It imports only what the options name. Of the application's package, it reads the modules that are imported already.
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
    """Load the reconcilers, by the names of their operations.

    Parameters: ``application`` as ``module:app``; ``named`` reconcilers that run, each as ``module:name``.

    Raises UsageFailed where one of ``named`` is not a reconciler.
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
