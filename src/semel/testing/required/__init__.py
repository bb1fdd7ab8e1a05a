"""The required tests, by name, for an application's own operations.

    from semel.testing.required import Case, suite

    class TestPayments(suite(app=app, operations=[Case(request="POST /payments", json={...}, effects=provider.count)])):
        pass

``semel.testing.idempotent.checks.catalogue`` lists them; here they become tests, one for each name and operation.
"""

from __future__ import annotations

from semel.testing.idempotent import CannotRun, Case, FunctionTarget, NotIdempotent, Spy, rows
from semel.testing.required.suite import REQUIRED, RequiredTest, RequiredTests, suite

__all__ = [
    "REQUIRED",
    "CannotRun",
    "Case",
    "FunctionTarget",
    "NotIdempotent",
    "RequiredTest",
    "RequiredTests",
    "Spy",
    "rows",
    "suite",
]
