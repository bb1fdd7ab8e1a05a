"""The table of loans."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc]  # Django ships no types
    """As ``makemigrations`` writes it."""

    initial = True
    operations = (
        migrations.CreateModel(
            "Loan",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("book", models.IntegerField(unique=True)),
                ("reader", models.CharField(max_length=50)),
            ],
        ),
    )
