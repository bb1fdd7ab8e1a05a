"""The operators' pages: stuck commands, their causes, and forms to settle them (docs/console.md; extra ``console``)."""

from __future__ import annotations

from semel.extras import install_command

try:
    import jinja2  # noqa: F401 - reports a missing library here, in a sentence
    import starlette  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error.name} is missing, which semel.console needs: {install_command('console')}", name=error.name
    ) from error

from semel.console.app import Console

__all__ = ["Console"]
