"""What the library keeps."""

from __future__ import annotations

from django.db import models


class Loan(models.Model):  # type: ignore[misc]  # Django ships no types
    """A book and its reader."""

    book = models.IntegerField(unique=True)
    reader = models.CharField(max_length=50)
