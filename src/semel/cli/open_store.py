"""Open the store that a command's options name."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

from semel.admin.failures import UsageFailed
from semel.core.contract import Store
from semel.engine.sync_engine import Engine
from semel.reference.settings import id_secret, seal_keys, store_url
from semel.stores.backend import hide_password


def connect(options: argparse.Namespace) -> Engine:
    """Return an engine for ``--url``, not opened yet. Raises UrlError and UsageFailed."""
    url = url_of(options)
    engine = Engine.connect(url, id_secret=id_secret(), sealer=seal_keys())
    require_shared(engine.store, url)
    return engine


def require_shared(store: Store, url: str) -> None:
    """Raise UsageFailed for a store that other processes cannot see."""
    if not store.capabilities.shared_between_processes:
        scheme = url.partition("://")[0]
        raise UsageFailed(
            f"--url: {scheme}:// exists only within its own process; name a store that other processes can reach"
        )


def url_of(options: argparse.Namespace) -> str:
    """Return ``--url``, or the environment's URL."""
    url: str = getattr(options, "url", None) or store_url()
    return url


def source_of_url(options: argparse.Namespace) -> str:
    """Describe the source of the store's URL."""
    if getattr(options, "url", None):
        return "--url"
    project = getattr(options, "project", None)
    if project is not None:
        return str(project.source)
    return "$SEMEL_URL" if os.environ.get("SEMEL_URL") else "default"


@contextmanager
def open_store(options: argparse.Namespace) -> Iterator[Engine]:
    """Open the engine, check that its store is migrated and the expected one, and close it at the end."""
    engine = connect(options)
    try:
        engine.open()
        yield engine
    finally:
        engine.close()


__all__ = ["connect", "hide_password", "open_store", "source_of_url", "url_of"]
