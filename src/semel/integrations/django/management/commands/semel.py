"""``manage.py semel …``: every command of ``semel``, on the store of the project's settings."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from semel.cli.exits import Exit
from semel.cli.main import Project, main
from semel.errors import SemelError
from semel.integrations.django.site import site


class Command(BaseCommand):  # type: ignore[misc]  # Django ships no types
    """Passes its arguments on."""

    help = "Semel's own commands, such as list, explain, doctor and settle, on the project's store."
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Run one command, and end with its exit code."""
        sys.exit(_run(argv[2:]))

    def add_arguments(self, parser: Any) -> None:
        """For ``call_command("semel", "list", ...)``."""
        parser.add_argument("arguments", nargs="*")

    def handle(self, *_: Any, arguments: list[str], **__: Any) -> None:
        """As :meth:`run_from_argv`, without ending the process."""
        code = _run(arguments)
        if code:
            from django.core.management.base import CommandError

            raise CommandError(f"semel ended with {code}", returncode=code)


def _run(arguments: list[str]) -> int:
    here = site()
    try:
        os.environ["SEMEL_URL"] = here.url(here.database)  # --url still overrides it
    except SemelError as error:
        sys.stderr.write(f"semel: {error}\n")
        return Exit.USAGE
    named = getattr(settings, "WSGI_APPLICATION", None) or "django.core.wsgi.get_wsgi_application()"
    module, _, name = named.rpartition(".")
    project = Project("the project's settings", "manage.py semel", "manage.py migrate", f"{module}:{name}")
    return main(arguments, project)
