"""Semel for Django's permissions and admin. The store's own migrations create the tables.

Django tells only applications with this module that it has migrated.
"""

from __future__ import annotations

from typing import Any

from django.db import models


class _NoRows(models.Manager):  # type: ignore[misc]  # Django ships no types
    """Gives nothing: records are read from their store, with its own verbs."""

    def get_queryset(self) -> Any:
        """Nothing, also for ``dumpdata``."""
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
