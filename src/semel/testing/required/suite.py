"""The checks as a suite: a class for pytest, and a list of named tests for other runners.

No check is left out silently: differences (an optional key, effects, one caller) follow from the declared policy, and a
check that cannot be tried fails with the reason and the remedy.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from semel.errors import ConfigurationError
from semel.testing.idempotent.case import Case
from semel.testing.idempotent.checks.catalogue import CHECKS, run_checks, run_sync
from semel.testing.idempotent.report import NotIdempotent, Report
from semel.testing.idempotent.targets.url import UrlTarget

REQUIRED: Final = tuple(CHECKS)
"""The names of the required tests, in their order."""


@dataclass(frozen=True, slots=True)
class RequiredTest:
    """One required test of one operation. ``why`` says why it is required; :meth:`run` works in any runner."""

    name: str
    operation: str
    why: str
    make: Callable[[], Any]
    case: Case

    def run(self) -> Report:
        """Run the test. Raises NotIdempotent, or CannotRun with the reason and the remedy."""
        __tracebackhide__ = True
        report = run_sync(lambda: run_checks(self.make(), self.case, (self.name,), strict=True))
        if not report.ok:
            raise NotIdempotent(report)
        return report


class RequiredTests:
    """The required tests of an application's operations, as a class for your test file.

        class TestPayments(RequiredTests):
            app = app
            operations = (Case(request="POST /payments", json={"amount": 5}, effects=provider.count),)

    ``app`` is the ASGI or WSGI application, or a function; override ``make`` to have a new one for each test.
    """

    app: ClassVar[Any] = None
    operations: ClassVar[Sequence[Case]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "operations" in cls.__dict__:
            _check(cls.app, cls.operations)
            for name in REQUIRED:
                if f"test_{name}" not in cls.__dict__:
                    setattr(cls, f"test_{name}", _test(name, cls.operations))

    @classmethod
    def checks(cls) -> Iterator[RequiredTest]:
        """Return all required tests of all operations, without pytest: for ``semel check --run`` and other runners."""
        for case in cls.operations:
            for name in REQUIRED:
                yield cls.make_test(name, case)

    @classmethod
    def make_test(cls, name: str, case: Case) -> RequiredTest:
        """Make one required test."""
        return RequiredTest(name, case.name, why(name), cls.make, case)

    @classmethod
    def make(cls) -> Any:
        """Make the target of one test. Raises ConfigurationError if there is none."""
        if cls.app is None:
            raise ConfigurationError(f"{cls.__name__} has nothing to test: set app = ..., or override make")
        return cls.app


def suite(
    *, app: Any = None, make_app: Callable[[], Any] | None = None, operations: Sequence[Case]
) -> type[RequiredTests]:
    """Make a class of these operations' required tests: ``TestPayments = suite(app=app, operations=[Case(...)])``.

    Parameters: ``app`` the ASGI or WSGI application, or a function; or ``make_app``, which makes a new one for each
    test; ``operations`` one :class:`~semel.testing.idempotent.Case` each.

    Raises ConfigurationError if there is nothing to test, if two operations have one name, or for an address (a running
    server cannot be crashed from outside: use ``assert_idempotent``, which reports what it did not try).

    >>> charged = []
    >>> cases = [Case(request="POST /payments", json={"amount": 5}, effects=charged)]
    >>> tests = suite(app=lambda scope, receive, send: None, operations=cases)
    >>> [test.name for test in tests.checks()][:2]
    ['missing_key_refused', 'invalid_key_refused']
    """
    if (app is None) == (make_app is None):
        raise ConfigurationError("give app= or make_app=, one of them")
    made: Callable[[], Any] = make_app if make_app is not None else lambda: app
    members = {"app": app, "operations": tuple(operations), "make": classmethod(lambda cls: made())}
    return type("Required", (RequiredTests,), members)


def _check(app: Any, cases: Sequence[Case]) -> None:
    if isinstance(app, (str, UrlTarget)):
        raise ConfigurationError(
            "these tests cannot crash a running server or move its clock: give the application itself, or use "
            "assert_idempotent with the URL, which reports the checks that it skipped"
        )
    names = [case.name for case in cases]
    if not cases or len(set(names)) != len(names):
        raise ConfigurationError(
            "operations needs one Case for each operation, each with a unique "
            f"name{'' if not cases else ': ' + ', '.join(names)}"
        )


def why(name: str) -> str:
    """Return the reason that a test is required.

    >>> why("missing_key_refused")[:60]
    'A client that forgets its key is not protected, and it shows'
    """
    return " ".join((inspect.getdoc(CHECKS[name]) or "").split())


def _test(name: str, cases: Sequence[Case]) -> Callable[..., None]:
    def test(self: RequiredTests, semel_case: Case) -> None:
        __tracebackhide__ = True
        self.make_test(name, semel_case).run()

    test.__name__ = f"test_{name}"
    test.__qualname__ = f"Required.test_{name}"
    test.__doc__ = why(name)
    return _parametrize(test, cases)


def _parametrize(test: Callable[..., None], cases: Sequence[Case]) -> Callable[..., None]:
    """Add pytest's mark if pytest is installed; without it the class still has ``checks``."""
    try:
        import pytest
    except ImportError:
        return test
    ids = [re.sub(r"[^\w/{}.-]+", "-", case.name) for case in cases]
    marked: Callable[..., None] = pytest.mark.parametrize("semel_case", cases, ids=ids)(test)
    return marked
