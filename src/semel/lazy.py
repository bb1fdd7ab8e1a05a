"""Names of a package that are loaded on first use, so that importing the package loads nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from sys import modules
from typing import Any


def load_from(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's ``__getattr__``.

    Parameters: ``homes`` the module of each name.
    """

    def load(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = modules[package].__dict__[name] = getattr(import_module(home), name)
        return value

    return load
