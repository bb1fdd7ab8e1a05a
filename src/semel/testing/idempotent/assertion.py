"""`assert_idempotent`: checks whether an endpoint or function is safe to retry, and reports all findings in one
error."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any, Unpack

from semel.errors import ConfigurationError
from semel.testing.idempotent.case import Case, CaseOptions, Effects
from semel.testing.idempotent.checks.catalogue import CHECKS, run_checks, run_sync
from semel.testing.idempotent.report import CannotRun, NotIdempotent, NotTriedWarning, Report


def check_idempotent(
    target: Any, request: str | Case = "", *, effects: Effects | None = None, **options: Unpack[CaseOptions]
) -> Report:
    """Run all checks and return the report, without raising for findings.

    Parameters: as :func:`assert_idempotent`.
    """
    case = _case(request, effects, options)
    return run_sync(lambda: run_checks(target, case, tuple(CHECKS), strict=False))


def assert_idempotent(
    target: Any, request: str | Case = "", *, effects: Effects | None = None, **options: Unpack[CaseOptions]
) -> Report:
    """Assert that an endpoint or a function is safe to retry; return the report.

    It sends duplicates one after the other and all at once, another payload under the same key, a request whose client
    disconnects, and the key from another caller and without a caller. It simulates a process that dies before and after
    the effect, a lapsed lease and an expired answer.

    Parameters:
        target: an ASGI or WSGI application, the base URL of a running server, a function, or a
            :class:`~semel.testing.idempotent.Target`.
        request: ``"POST /payments"``, empty for a function; or a whole :class:`~semel.testing.idempotent.Case`.
        effects: what counts the effect: a function, or something with a length.
        options: the other parameters of :class:`~semel.testing.idempotent.Case`.

    Warns with NotTriedWarning if a check was not tried because the test did not give what it needs, such as
    ``other_caller``.

    Raises NotIdempotent with the report; CannotRun if the test itself cannot run, with the remedy; ConfigurationError
    for invalid parameters.

    >>> from semel import Engine
    >>> from semel.functions import command, single_caller
    >>> engine, charged = Engine.connect("memory://"), []
    >>> engine.open()
    >>> @command(engine, "payments.charge", caller=single_caller, effects="external")
    ... def charge(amount: int) -> int:
    ...     charged.append(amount)
    ...     return len(charged)
    >>> report = assert_idempotent(charge, arguments={"amount": 5}, effects=charged, single_caller=True)
    >>> len(report.held), report.not_tried
    (14, ())
    >>> engine.close()
    """
    __tracebackhide__ = True
    return _require_ok(check_idempotent(target, request, effects=effects, **options))


async def assert_idempotent_async(
    target: Any, request: str | Case = "", *, effects: Effects | None = None, **options: Unpack[CaseOptions]
) -> Report:
    """As :func:`assert_idempotent`, on the running event loop: for tests that are async themselves.

    Raises also CannotRun if the loop is not asyncio's.
    """
    __tracebackhide__ = True
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise CannotRun(
            "Semel's async engine runs on asyncio, and this test does not",
            "run it on asyncio: with anyio, let the fixture anyio_backend return 'asyncio'",
        ) from None
    return _require_ok(await run_checks(target, _case(request, effects, options), tuple(CHECKS), strict=False))


def _require_ok(report: Report) -> Report:
    __tracebackhide__ = True
    if not report.ok:
        raise NotIdempotent(report)
    if report.not_tried:
        warnings.warn(NotTriedWarning(report.describe_untried()), stacklevel=3)
    return report


def _case(request: str | Case, effects: Effects | None, options: CaseOptions) -> Case:
    if isinstance(request, Case):
        if effects is not None or options:
            raise ConfigurationError("give a Case, or its parameters, not both")
        return request
    if effects is None:
        raise ConfigurationError(
            "effects= is missing: a count is needed to detect an effect that happened twice; give a function that "
            "returns how often the effect has happened, such as effects=lambda: provider.count()"
        )
    return Case.of(request=request, effects=effects, **options)
