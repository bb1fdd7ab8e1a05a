"""A SQLite store with its driver, from a URL."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote

from semel.errors import UrlError
from semel.stores.backend import Backend
from semel.stores.sqlite.connection import SYNCHRONOUS, is_stopped
from semel.stores.sqlite.driver import SqliteDriver
from semel.stores.sqlite.join import StoreFile
from semel.stores.sqlite.join_target import join, join_async
from semel.stores.sqlite.transaction import begin_unit, begin_unit_async
from semel.stores.sqlite.write import writing, writing_async

_EXAMPLE: Final = "for example sqlite:///semel.db (a file here), sqlite:////var/lib/semel.db (absolute) or memory://"


def sqlite_url(url: SplitResult, options: dict[str, str]) -> Backend:
    """Make the backend of a ``sqlite:///`` URL. Removes the options that it knows from ``options``.

    Raises UrlError: the path or an option cannot be understood.
    """
    from semel.stores.urls import seconds_of

    path, host = unquote(url.path, errors="surrogateescape"), url.netloc  # a name in other bytes than text
    if host:
        if f"{host}{path}" == ":memory:":
            raise UrlError(f"sqlite:// needs a file: {_EXAMPLE}; for a store that forgets with the process: memory://")
        # Without the part that may be a password: it may have been meant for another kind of store.
        raise UrlError(f"sqlite:// needs three slashes before the path: sqlite:///{host.rpartition('@')[2]}{path}")
    file = path.removeprefix("/")
    if "\0" in file:
        raise UrlError(f"the path of the database file contains a NUL character, which no file's name can; {_EXAMPLE}")
    if file == ":memory:":
        raise UrlError(f"sqlite:/// needs a file: {_EXAMPLE}; for a store that forgets with the process: memory://")
    if file.endswith("/") or not Path(file).name:
        raise UrlError(f"sqlite:/// needs a file: {_EXAMPLE}")
    synchronous = options.pop("synchronous", "FULL").upper()
    if synchronous not in SYNCHRONOUS:
        raise UrlError(f"synchronous must be one of {', '.join(SYNCHRONOUS)}; it is {synchronous!r}")
    busy = seconds_of("busy_seconds", options.pop("busy_seconds", "5"))
    try:
        place = Path(file).expanduser()
    except RuntimeError:
        raise UrlError(f"the path {file!r} names the home folder of an unknown user; write the whole path") from None
    return sqlite_backend(SqliteDriver(str(place), synchronous=synchronous, busy_seconds=busy), busy)


def sqlite_backend(driver: SqliteDriver, busy_seconds: float = 5.0) -> Backend:
    """Make the backend of a SQLite driver, with its ATOMIC units."""
    file, store = StoreFile(driver.path, driver.clock, busy_seconds), driver.store
    return Backend(
        "sqlite",
        store,
        driver,
        claim_unseen=store.claim_unseen,
        unit=lambda: begin_unit(driver, busy_seconds),
        unit_async=lambda: begin_unit_async(driver, busy_seconds),
        joins=lambda connection: join(connection, file),
        joins_async=lambda connection: join_async(connection, file),
        joins_to_write=lambda connection: writing(connection, driver.path, driver.clock),
        joins_to_write_async=lambda connection: writing_async(connection, driver.path, driver.clock),
        file=driver.path,
        stopped=is_stopped,
        settings={"synchronous": driver.synchronous, "busy_seconds": busy_seconds},
    )
