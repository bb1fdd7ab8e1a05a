"""Load the modules that a user names: reconcilers as MODULE:NAME, and the Django project around them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import traceback
from importlib import import_module

from semel.admin.failures import UsageFailed
from semel.reconciliation.worker import Reconciler


def load_reconciler(text: str) -> Reconciler:
    """Load the reconciler ``MODULE:NAME``. Raises UsageFailed, naming the object found instead."""
    module, colon, name = text.partition(":")
    if not (colon and module and name):
        raise UsageFailed(f"--reconcile must be MODULE:NAME, such as shop.reconcilers:ask_provider; it is {text!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as with `python -m`: the module is in the folder where the worker starts
    set_up_django()
    try:
        found = getattr(import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise UsageFailed(f"--reconcile {text}: there is no module {error.name!r}; start where it is") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- a user's module may raise anything: it is reported
        raise UsageFailed(f"--reconcile {text}: {module} could not be imported: {error_text(error)}") from None
    if not isinstance(found, Reconciler):
        raise UsageFailed(
            f"--reconcile {text}: {name!r} is not a reconciler but {type(found).__name__}; declare it: "
            "@reconciler('payments.create', quiet_for=120)"
        )
    return found


def set_up_django() -> None:
    """Set up the project that $DJANGO_SETTINGS_MODULE names, if any: only then can its modules be imported.

    Raises UsageFailed.
    """
    name = os.environ.get("DJANGO_SETTINGS_MODULE")
    if not name or importlib.util.find_spec("django") is None:
        return
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with contextlib.redirect_stdout(sys.stderr):
            if not import_module("django.apps").apps.ready:  # manage.py has set it up already
                import_module("django").setup()
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- a user's settings may raise anything: it is reported
        raise UsageFailed(
            f"the Django project of $DJANGO_SETTINGS_MODULE ({name}) cannot be set up: {error_text(error)}"
        ) from None


def error_text(error: BaseException) -> str:
    """Describe on one line what a user's module raised, and where."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' + text if text else ''}{where}"
