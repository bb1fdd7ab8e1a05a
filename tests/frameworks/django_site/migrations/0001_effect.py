"""The table of effects."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc]  # Django ships no types
    """As Django has it."""

    initial = True
    operations = (
        migrations.CreateModel(
            "Effect",
            [("id", models.BigAutoField(primary_key=True)), ("what", models.CharField(max_length=100))],
        ),
    )
