"""Semel for Django's permissions and admin. The store's own migrations create the tables.

Django sends its migration signal only to applications with this module.
"""

from __future__ import annotations

from typing import Any

from django.db import models


class _NoRows(models.Manager):  # type: ignore[misc]  # Django ships no types
    """A manager without rows: records are read from their store, by the store's verbs."""

    def get_queryset(self) -> Any:
        """Return nothing, also for ``dumpdata``."""
        return super().get_queryset().none()


class Record(models.Model):  # type: ignore[misc]
    """A record of a command, for the permissions ``semel.view_record`` and ``semel.settle_record``."""

    id = models.CharField(primary_key=True, max_length=64)
    objects = _NoRows()

    class Meta:
        """It is in no table of Django's."""

        app_label = "semel"
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions = (("settle_record", "Can settle records whose outcome is unknown"),)
