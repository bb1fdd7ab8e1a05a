"""drf-spectacular: describe the views declared with ``@semel.command`` in an OpenAPI document.

``REST_FRAMEWORK = {"DEFAULT_SCHEMA_CLASS": "semel.integrations.django.spectacular.AutoSchema"}``; a project with a
schema class of its own adds :class:`DescribesCommands` in front of its bases.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.openapi import AutoSchema as SpectacularSchema
from drf_spectacular.plumbing import ResolvedComponent

from semel.http.openapi import PROBLEM_NAME, PROBLEM_SCHEMA, describe_operation
from semel.http.routing import UNSAFE_METHODS
from semel.integrations.django.site import find_declared_in, site


class DescribesCommands:
    """Adds the key's header, the headers of replays and the problems to each declared operation."""

    view: Any

    def get_operation(self, path: str, path_regex: str, path_prefix: str, method: str, registry: Any) -> Any:
        """Describe one operation (drf-spectacular's hook)."""
        found = super().get_operation(path, path_regex, path_prefix, method, registry)  # type: ignore[misc]
        if found is None or method.upper() not in UNSAFE_METHODS:
            return found
        name = getattr(self.view, "action", None) or method.lower()
        declared = find_declared_in(type(self.view), name)
        if declared is None:
            return found
        place = site().place(declared.using)
        counts = place.declared[declared.name].route.fingerprinter.recipe.headers
        describe_operation(found, declared.name, declared.policy, place.surface.key_header, counts)
        kind: Any = ResolvedComponent
        registry.register_on_missing(kind(PROBLEM_NAME, kind.SCHEMA, PROBLEM_SCHEMA, PROBLEM_NAME))
        return found


class AutoSchema(DescribesCommands, SpectacularSchema):
    """drf-spectacular's own, with the commands described."""
