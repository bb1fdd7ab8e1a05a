"""Joins the transaction of Django's connection: ``with transaction.atomic(): with engine.atomic(connection, …)``.

Django owns BEGIN and COMMIT. The record belongs to the outermost ``atomic()`` block. A ``TestCase`` wraps every test in
its own blocks; there the record belongs to the test's outermost block, which is a savepoint. The two databases' own
parts are in ``postgres/django`` and ``sqlite/join_target``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from django.db import InterfaceError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate
from django.utils.connection import ConnectionProxy

from semel.errors import ConfigurationError, JoinRefused

_OUTSIDE: Final = (
    "no transaction is open on Django's connection {alias!r}, so nothing would be committed together; join inside "
    "with transaction.atomic(): …"
)
_NESTED: Final = (
    "this atomic() block is a savepoint inside another one: rolling back to it would take the record along and leave "
    "what was written before it; join in the outermost block"
)
_FAILED: Final = "this atomic() block has failed and will be rolled back; join in a new one"
_ROLE: Final = re.compile(r"[A-Za-z0-9_]+")
_ELSEWHERE: Final = "this store is {store}, Django's connection {alias!r} is {vendor}: two databases"


def is_django(connection: Any) -> bool:
    """Whether the target is a connection of Django's, or the proxy ``django.db.connection``."""
    return isinstance(connection, (BaseDatabaseWrapper, ConnectionProxy))


def check_block(connection: Any, vendor: str, store: str) -> bool:
    """Check the open block, and return whether it is inside a TestCase's.

    Raises JoinRefused where the database is of another kind, or no outermost block is open.
    """
    if connection.vendor != vendor:
        raise JoinRefused(_ELSEWHERE.format(store=store, alias=connection.alias, vendor=connection.vendor))
    connection.ensure_connection()
    tests = sum(bool(block._from_testcase) for block in connection.atomic_blocks)
    depth = len(connection.atomic_blocks) - tests
    if depth == 0:
        raise JoinRefused(_OUTSIDE.format(alias=connection.alias))
    if depth > 1:
        raise JoinRefused(_NESTED)
    if connection.needs_rollback:
        raise JoinRefused(_FAILED)
    return tests > 0


def connection_of(alias: str) -> Any:
    """Return Django's connection of this thread. Raises ConfigurationError: DATABASES has no such alias."""
    if alias not in connections.settings:
        known = ", ".join(map(repr, connections.settings))
        raise ConfigurationError(f"DATABASES has no {alias!r}; it has {known}")
    return connections[alias]


def outermost_block(alias: str) -> AbstractContextManager[Any]:
    """Make the outermost block: Django's own if ``ATOMIC_REQUESTS`` or a decorator has opened it."""
    connection = connection_of(alias)
    is_open = any(not block._from_testcase for block in connection.atomic_blocks)
    block: AbstractContextManager[Any] = nullcontext() if is_open else transaction.atomic(using=alias)
    return block


def roll_back(alias: str) -> None:
    """Let the open block, if there is one, end in a rollback."""
    if connections[alias].in_atomic_block:
        transaction.set_rollback(True, using=alias)


def when_committed(alias: str, act: Callable[[], object]) -> None:
    """Have ``act`` called once the open block is committed; never where it is rolled back."""
    transaction.on_commit(act, using=alias)


def outside_of_requests(view: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a view so that ``ATOMIC_REQUESTS`` opens no transaction for it, on any database."""
    for alias in connections.settings:
        view = transaction.non_atomic_requests(using=alias)(view)
    return view


def find_open_block() -> str | None:
    """Return the alias of a database with an open transaction, except a TestCase's; None without one."""
    for each in connections.all(initialized_only=True):
        if any(not block._from_testcase for block in each.atomic_blocks):
            return str(each.alias)
    return None


def close_connections() -> None:
    """Close this thread's connections, because the thread ends."""
    connections.close_all()


def rolls_back_any() -> bool:
    """Whether an open block on any database will end in a rollback."""
    return any(each.in_atomic_block and each.needs_rollback for each in connections.all(initialized_only=True))


def failures() -> dict[str, BaseException | None]:
    """Return the last error of each open database whose block Django has given up, for `failure_since`."""
    return {each.alias: each.rollback_exc for each in connections.all(initialized_only=True)}


def failure_since(before: Mapping[str, BaseException | None]) -> BaseException | None:
    """Return the error that will roll back an open block though the view did not ask for it; None without one.

    The ORM gives up a block when a statement fails outside of an inner block, even if the view catches the error. The
    connection does so when the view closes it. ``set_rollback(True)`` is the view's own request.
    """
    for each in connections.all(initialized_only=True):
        if each.in_atomic_block and each.needs_rollback:
            error: BaseException | None = each.rollback_exc
            if each.closed_in_transaction:
                error = InterfaceError("the connection was closed inside of its transaction")
            if error is not None and error is not before.get(each.alias):
                return error
    return None


def wrap_statements(wrapper: Callable[..., Any]) -> None:
    """Have each connection of Django's, present and future, execute its statements through an ``execute_wrapper``."""

    def wrap(*, connection: Any, **_: Any) -> None:
        if wrapper not in connection.execute_wrappers:
            connection.execute_wrappers.insert(
                0, wrapper
            )  # in front: the end of an ``execute_wrapper()`` drops the last

    connection_created.connect(wrap, weak=False, dispatch_uid=wrapper)
    for each in connections.all(initialized_only=True):
        wrap(connection=each)


def rolls_back(alias: str) -> bool:
    """Whether the open block will end in a rollback."""
    return bool(connections[alias].needs_rollback)


def is_in_test_case(alias: str) -> bool:
    """Whether everything on this connection is inside the transaction of a TestCase."""
    return any(block._from_testcase for block in connections[alias].atomic_blocks)


def store_url_of(alias: str) -> str:
    """Return the store URL of the database that this alias names now: tests have another one.

    Raises ConfigurationError: the database is in memory, or of a kind whose transaction cannot be joined.
    """
    connection = connection_of(alias)
    settings, vendor = connection.settings_dict, connection.vendor
    name = str(settings["NAME"])
    if vendor == "sqlite":
        if not name or ":memory:" in name or name.startswith("file:"):
            raise ConfigurationError(
                f"DATABASES[{alias!r}] is an SQLite database in memory ({name!r}), which other connections cannot see; "
                "give it a file, in tests by 'TEST': {'NAME': BASE_DIR / 'test.sqlite3'}, or set SEMEL['URL'] to a "
                "separate store, such as memory:// in tests without effects='atomic'"
            )
        return f"sqlite:///{quote(os.fsencode(Path(name).absolute()))}"
    if vendor != "postgresql":
        raise ConfigurationError(
            f"DATABASES[{alias!r}] is {vendor}, whose transaction Semel cannot join in Django; set SEMEL['URL'] to a "
            "store, such as mysql://app@localhost/app"
        )
    options = _libpq_of(alias, settings.get("OPTIONS", {}))
    host = settings.get("HOST") or ""
    if host.startswith("/"):
        options["host"], host = host, ""
    user = quote(settings.get("USER") or "", safe="")
    password = f":{quote(str(settings['PASSWORD']), safe='')}" if settings.get("PASSWORD") else ""
    port = f":{settings['PORT']}" if settings.get("PORT") and host else ""
    if settings.get("PORT") and not host:
        options["port"] = str(settings["PORT"])
    login = f"{user}{password}@" if user else ""
    query = f"?{urlencode(options, quote_via=quote)}" if options else ""
    return f"postgresql://{login}{host}{port}/{quote(name, safe='')}{query}"


def _libpq_of(alias: str, given: Mapping[str, Any]) -> dict[str, str]:
    """Return the OPTIONS of a PostgreSQL database that libpq takes, and Django's ``assume_role`` as libpq spells it.

    Raises ConfigurationError: the role has a name that ``options`` cannot hold.
    """
    from semel.stores.postgres.psycopg.libpq import options as libpq_options

    known = libpq_options()
    found = {key: str(value) for key, value in given.items() if key in known and value is not None}
    role = given.get("assume_role")
    if role:  # so that both connections own and may write the same tables
        if _ROLE.fullmatch(str(role)) is None:
            raise ConfigurationError(
                f"DATABASES[{alias!r}] assumes the role {role!r}; Semel takes only names of letters, digits and _: "
                "rename the role, or set SEMEL['URL']"
            )
        found["options"] = f"{found.get('options', '')} -c role={role}".strip()
    return found


def when_migrated(receiver: Callable[..., None], sender: Any) -> None:
    """Have ``receiver`` called after each ``manage.py migrate`` of the application ``sender``."""
    post_migrate.connect(receiver, sender=sender)


def before_test_database_ends(alias: str, act: Callable[[], object]) -> None:
    """Have ``act`` called before Django's test runner drops this database: a server refuses while others use it."""
    creation = connections[alias].creation
    if vars(creation).get("destroy_test_db") is not None:
        return  # it is called already
    destroy = creation.destroy_test_db

    def end(*args: Any, **kwargs: Any) -> Any:
        act()
        return destroy(*args, **kwargs)

    creation.destroy_test_db = end
