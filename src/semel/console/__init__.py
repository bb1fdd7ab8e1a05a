"""The operators' pages: stuck commands, their causes, settling them (docs/console.md). Needs the extra ``console``."""

from semel.console.app import Console

__all__ = ["Console"]
