"""The application that ``INSTALLED_APPS`` names."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks

from semel.atomic.own_transaction import watch
from semel.integrations.django.orm_writes import check_statement, refusing_writes
from semel.stores.sql.django import when_migrated, wrap_statements


class SemelConfig(AppConfig):  # type: ignore[misc]  # Django ships no types
    """Registers Semel's checks, and makes its tables with ``manage.py migrate``."""

    name = "semel.integrations.django"
    label = "semel"
    verbose_name = "Semel"

    def ready(self) -> None:
        """Register the checks and the migration (Django's hook)."""
        from semel.integrations.django.checks import check_installation

        checks.register(check_installation)
        when_migrated(_make_tables, self)
        watch(refusing_writes)
        wrap_statements(check_statement)


def _make_tables(*, using: str, verbosity: int = 1, stdout: Any = None, **_: Any) -> None:
    from semel.integrations.django.site import site

    made = site().migrate(using)
    if made and verbosity >= 1 and stdout is not None:
        stdout.write(f"  Semel's tables: {', '.join(made)}\n")
