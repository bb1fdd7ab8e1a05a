"""What the views write."""

from __future__ import annotations

from django.db import models


class Effect(models.Model):  # type: ignore[misc]  # Django ships no types
    """One effect of a command."""

    what = models.CharField(max_length=100)

    class Meta:
        app_label = "django_site"
