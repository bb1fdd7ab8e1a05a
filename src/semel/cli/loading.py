"""Load the user's reconcilers for `semel worker`, named as MODULE:NAME."""

from __future__ import annotations

import sys
from importlib import import_module

from semel.cli.exits import UsageFailed
from semel.reconciliation.worker import Reconciler


def load_reconciler(text: str) -> Reconciler:
    """Load the reconciler ``MODULE:NAME``. Raises UsageFailed, naming the object found instead."""
    module, colon, name = text.partition(":")
    if not (colon and module and name):
        raise UsageFailed(f"--reconcile must be MODULE:NAME, such as shop.reconcilers:ask_provider; it is {text!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` has it: the module is where the worker is started
    try:
        found = getattr(import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise UsageFailed(f"--reconcile {text}: there is no module {error.name!r}; start where it is") from None
    if not isinstance(found, Reconciler):
        raise UsageFailed(
            f"--reconcile {text}: {name!r} is no reconciler but {type(found).__name__}; declare it: "
            "@reconciler('payments.create', quiet_for=120)"
        )
    return found
