"""The operators' page: what is stuck, why, and settling it (docs/console.md). Needs the extra ``console``."""

from semel.console.app import Console

__all__ = ["Console"]
