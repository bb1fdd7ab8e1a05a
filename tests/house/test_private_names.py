"""What Semel touches of other people's libraries beside their public names: listed, looked for, and bounded.

A private name may go with any release. Each entry of ``PRIVATE`` names who has it and what to look at once it is gone;
a test per entry looks for it in the installed version. ``pyproject.toml`` bounds each library, so that no user gets a
release that these tests have not seen.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import pkgutil
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import asyncmy.connection
import pytest
from packaging.requirements import Requirement

from semel.stores.mariadb.asyncmy_transaction import _STATE
from tests.house.sources import ROOT, Module, parse, semel_modules


@dataclass(frozen=True, kw_only=True)
class Private:
    """Names of one object of a library, used in one module.

    Parameters: ``library`` its distribution, or ``python``; ``holder`` where the object's class is, as
    ``pkgutil.resolve_name`` takes it; ``look`` what to look at where a name is gone.
    """

    module: str
    library: str
    holder: str
    names: tuple[str, ...]
    look: str

    def __str__(self) -> str:
        return f"{self.module} {self.holder}"


ASYNCPG = "asyncpg.connection:Connection"
ASYNCMY = "asyncmy.connection:Connection"
PYMYSQL = "pymysql.connections:Connection"
DJANGO_BLOCK = "django.db.transaction:Atomic"

PRIVATE = (
    Private(
        module="semel.stores.postgres.asyncpg.driver",
        library="asyncpg",
        holder=ASYNCPG,
        names=("_transport",),
        look="drop(): the socket of a connection whose loop is over must be closed, or it leaks",
    ),
    Private(
        module="semel.stores.postgres.asyncpg.transaction",
        library="asyncpg",
        holder=ASYNCPG,
        names=("_transport", "_protocol", "_loop", "_top_xact", "_check_open", "_process_log_message"),
        look="AsyncpgUnitConnection: BEGIN and COMMIT travel with a statement, and asyncpg must learn of both",
    ),
    Private(
        module="semel.stores.postgres.asyncpg.transaction",
        library="asyncpg",
        holder="asyncpg.prepared_stmt:PreparedStatement",
        names=("_state",),
        look="_keep(): the prepared statement that bind_execute takes",
    ),
    Private(
        module="semel.stores.postgres.asyncpg.transaction",
        library="asyncpg",
        holder="asyncpg.pool:PoolConnectionProxy",
        names=("_detach",),
        look="_give_back(): what a handler has kept of its connection is closed",
    ),
    Private(
        module="semel.stores.postgres.asyncpg.transaction",
        library="asyncpg",
        holder=ASYNCPG,
        names=("_on_release",),
        look="_give_back(): asyncpg closes the cursors and listeners that a handler left",
    ),
    Private(
        module="semel.stores.postgres.asyncpg.join",
        library="asyncpg",
        holder="asyncpg.pool:PoolConnectionProxy",
        names=("_con",),
        look="AsyncpgLine: the connection behind a pool's proxy",
    ),
    Private(
        module="semel.stores.sql.sqlalchemy_async",
        library="asyncpg",
        holder=ASYNCPG,
        names=("_params", "_addr"),
        look="_dialect_of(): the server and database of a connection, by which dialects are kept",
    ),
    Private(
        module="semel.stores.sql.sqlalchemy_async",
        library="asyncmy",
        holder=ASYNCMY,
        names=("_host", "_port", "_db"),
        look="_dialect_of(): the server and database of a connection, by which dialects are kept",
    ),
    Private(
        module="semel.stores.mariadb.sqlalchemy",
        library="pymysql",
        holder="pymysql.cursors:Cursor",
        names=("_result",),
        look="_counting(): the server's message behind an UPDATE, which has the rows that it found",
    ),
    Private(
        module="semel.stores.mariadb.sqlalchemy",
        library="asyncmy",
        holder="asyncmy.cursors:Cursor",
        names=("_result",),
        look="_counting_async(): the same",
    ),
    Private(
        module="semel.stores.mariadb.sqlalchemy",
        library="asyncmy",
        holder=ASYNCMY,
        names=("_cursor_cls",),
        look="_FoundRowsAsync: the kind of cursor that SQLAlchemy makes by cursor()",
    ),
    Private(
        module="semel.stores.postgres.psycopg.timeout",
        library="psycopg",
        holder="psycopg:Connection",
        names=("_connect_gen", "_deallocate"),
        look="PatientConnection: timeouts of connecting, and the list of what the session has prepared",
    ),
    Private(
        module="semel.stores.postgres.psycopg.transaction",
        library="psycopg",
        holder="psycopg:Connection",
        names=("_num_transactions", "_prepared"),
        look="commit() and rollback() inside transaction(), and successor(): what the session has prepared",
    ),
    Private(
        module="semel.stores.postgres.psycopg.transaction_async",
        library="psycopg",
        holder="psycopg:AsyncConnection",
        names=("_num_transactions",),
        look="commit() and rollback() inside transaction()",
    ),
    Private(
        module="semel.stores.postgres.psycopg.join",
        library="psycopg",
        holder="psycopg:RawCursor",
        names=("_adapters",),
        look="PsycopgLine.execute(): Semel's statements must not use the adapters of the user's connection",
    ),
    Private(
        module="semel.stores.mariadb.asyncmy_client",
        library="asyncmy",
        holder=ASYNCMY,
        names=("_transport",),
        look="drop(): the socket of a connection whose loop is over must be closed, or it leaks",
    ),
    Private(
        module="semel.stores.mariadb.asyncmy_transaction",
        library="asyncmy",
        holder=ASYNCMY,
        names=(
            *("_fill_buffer", "_execute_command", "_result", "_connected", "_transport", "_proto", "_close_reason"),
            *_STATE,
        ),
        look="AsyncmyUnitConnection and successor(): all of a session's state goes to the new object",
    ),
    Private(
        module="semel.stores.mariadb.pymysql_client",
        library="pymysql",
        holder=PYMYSQL,
        names=("_read_timeout", "_write_timeout"),
        look="wait_for(): the timeout of each answer",
    ),
    Private(
        module="semel.stores.mariadb.pymysql_transaction",
        library="pymysql",
        holder=PYMYSQL,
        names=("_read_packet", "_force_close", "_result", "_sock", "_rfile", "_closed"),
        look="PymysqlUnitConnection and successor(): all of a session's state goes to the new object",
    ),
    Private(
        module="semel.stores.redis.connections",
        library="redis",
        holder="redis.connection:Connection",
        names=("_sock",),
        look="_execute(): the socket's timeout is that of the call, and a closed connection is not pooled",
    ),
    Private(
        module="semel.stores.redis.connections",
        library="redis",
        holder="redis.asyncio.connection:Connection",
        names=("_reader", "_writer", "_parser"),
        look="speaking on it; and drop(): the socket of a connection whose loop is over must be closed, or it leaks",
    ),
    Private(
        module="semel.stores.redis.connections",
        library="python",
        holder="asyncio:StreamReader",
        names=("_buffer",),
        look="_is_quiet(): what has come on an idle connection is the reply to no command",
    ),
    Private(
        module="semel.inbox.brokers.kafka",
        library="aiokafka",
        holder="aiokafka:AIOKafkaConsumer",
        names=("_enable_auto_commit",),
        look="serve(): a client that commits by itself loses the records of a worker that dies, and must be refused",
    ),
    Private(
        module="semel.outbox.sinks.kafka",
        library="aiokafka",
        holder="aiokafka:AIOKafkaProducer",
        names=("_closed", "_sender", "_message_accumulator"),
        look="_end(): the task and connections of a producer that cannot reach its brokers",
    ),
    Private(
        module="semel.stores.sql.django",
        library="django",
        holder=DJANGO_BLOCK,
        names=("_from_testcase",),
        look="check_block(): a TestCase's own block is no transaction that commits",
    ),
    Private(
        module="semel.integrations.django.call",
        library="django",
        holder="django.http.request:HttpRequest",
        names=("_body", "_read_started"),
        look="the request's body is read once, by Semel or by the application",
    ),
    Private(
        module="semel.integrations.django.call",
        library="django",
        holder="django.core.handlers.wsgi:WSGIRequest",
        names=("_stream",),
        look="the request's body is put back for the application",
    ),
    Private(
        module="semel.integrations.django.call",
        library="django",
        holder="django.http.response:HttpResponseBase",
        names=("_resource_closers",),
        look="the resources of a response that Semel replaces are closed",
    ),
    Private(
        module="semel.integrations.django.answer",
        library="django",
        holder="django.http.response:HttpResponseBase",
        names=("_resource_closers",),
        look="in_place_of() and with_lines(): the resources of a replaced or copied response are closed",
    ),
    *(
        Private(
            module=f"semel.integrations.django.{module}",
            library="djangorestframework",
            holder="rest_framework.request:Request",
            names=("_request",),
            look="Django's request behind that of REST framework carries the permit",
        )
        for module in ("atomic", "view")
    ),
    Private(
        module="semel.integrations.quart",
        library="quart",
        holder="quart.asgi:ASGIHTTPConnection",
        names=("_create_request_from_scope",),
        look="_Connection: the view goes on when its client goes away",
    ),
    Private(
        module="semel.cli.arguments",
        library="python",
        holder="argparse:ArgumentParser",
        names=("_actions", "_option_string_actions"),
        look="Parser: suggestions for a mistyped option; _check_texts: the values of its arguments",
    ),
    Private(
        module="semel.cli.arguments",
        library="python",
        holder="argparse",
        names=("_SubParsersAction",),
        look="Commands: only an annotation",
    ),
    Private(
        module="semel.cli.commands.develop.completion",
        library="python",
        holder="argparse:ArgumentParser",
        names=("_actions",),
        look="the options that a shell completes",
    ),
    Private(
        module="semel.cli.commands.develop.send",
        library="python",
        holder="argparse:ArgumentParser",
        names=("_optionals",),
        look="the heading of the options in the help",
    ),
    Private(
        module="semel.steps.permit",
        library="python",
        holder="typing",
        names=("_SpecialForm",),
        look="only an annotation",
    ),
    Private(
        module="semel.functions.once",
        library="python",
        holder="asyncio.coroutines",
        names=("_is_coroutine",),
        look="only before Python 3.12, which has inspect.markcoroutinefunction",
    ),
    Private(
        module="semel.stores.loops",
        library="python",
        holder="asyncio.selector_events:_SelectorTransport",
        names=("_sock",),
        look="cut(): the socket of a transport whose loop is over",
    ),
    Private(
        module="semel.stores.loops",
        library="python",
        holder="asyncio.sslproto:_SSLProtocolTransport",
        names=("_ssl_protocol",),
        look="cut(): the socket below TLS",
    ),
    Private(
        module="semel.stores.loops",
        library="python",
        holder="asyncio.sslproto:SSLProtocol",
        names=("_transport",),
        look="cut(): the socket below TLS",
    ),
)

# Names that are documented all the same: of named tuples, of Django's models, of werkzeug's proxies.
DOCUMENTED = {"_asdict", "_replace", "_fields", "_make", "_field_defaults", "_meta", "_get_current_object"}

# Semel's own, which its modules take of each other's objects.
OURS = {
    *(
        "_adder",
        "_bytes_max",
        "_claim_into",
        "_declared",
        "_drop",
        "_engine",
        "_get",
        "_headers",
        "_hold",
        "_importing",
    ),
    *("_kept_alive", "_manage_engine", "_next_rest", "_performer", "_refusal", "_start", "_surface", "_values"),
}


# --- each of them is there ----------------------------------------------------------------------


def names_of(holder: str) -> set[str]:
    """The attributes of a class, and of its objects before they are connected; those of a module."""
    held = pkgutil.resolve_name(holder)
    if not isinstance(held, type):
        return set(dir(held))
    found = set(dir(held))
    for kind in held.__mro__:
        found |= set(getattr(kind, "__annotations__", ())) | set(getattr(kind, "__slots__", ()))
        try:
            found |= set(re.findall(r"\bself\.(_\w+)", inspect.getsource(kind)))
        except (OSError, TypeError):  # it is compiled
            continue
    return found | set(dir(_sample(held)))


def _sample(kind: type) -> Any:
    """An object of a class whose source is compiled, not connected to anything."""

    connection: Any = asyncmy.connection.Connection

    async def make() -> Any:
        return connection(host="example.invalid", user="nobody")

    return asyncio.run(make()) if kind is connection else None


@pytest.mark.parametrize("entry", PRIVATE, ids=str)
def test_each_private_name_exists_in_the_installed_version(entry: Private) -> None:
    gone = set(entry.names) - names_of(entry.holder)
    if entry.library == "python":
        assert not gone, f"this Python has no {gone} in {entry.holder}; look at {entry.module}, {entry.look}"
    else:
        installed = f"{entry.library} {version(entry.library)}"
        assert not gone, f"{installed} has no {gone} in {entry.holder}; look at {entry.module}, {entry.look}"


def test_a_name_that_is_gone_is_noticed() -> None:
    for holder in ("psycopg:Connection", ASYNCPG, ASYNCMY, PYMYSQL, "redis.connection:Connection"):
        assert "_no_such_name" not in names_of(holder)


# --- all of them are listed ---------------------------------------------------------------------


def find_private_names(module: Module, modules: Mapping[str, Module]) -> set[str]:
    """The private names that a module takes of objects which are not its own."""
    own = _names_defined(module.tree)
    found = set()
    for node in ast.walk(module.tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue  # looked at below, where the class is known
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name):
                found.add(name)
            case ast.Attribute(attr=name) if name not in own:
                found.add(name)
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr" | "setattr"), args=[_, ast.Constant(value=str(name)), *_]
            ) if name not in own:
                found.add(name)
            case ast.ImportFrom(module=str(source), names=names) if source.split(".")[0] != "semel":
                found |= {alias.name for alias in names}
            case ast.ClassDef() if _has_foreign_base(node, module, modules):
                found |= _read_of_self(node) - _names_defined(node) - _names_inherited(node, module, modules)
            case _:
                continue
    return {name for name in found if re.match(r"_[a-zA-Z]", name)} - DOCUMENTED


def _names_defined(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case _:
                continue
    return found


def _read_of_self(node: ast.ClassDef) -> set[str]:
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "self"
    }


def _bases(
    node: ast.ClassDef, module: Module, modules: Mapping[str, Module]
) -> Iterator[tuple[ast.ClassDef, Module] | None]:
    """The classes that one is made of; None for one of another package's."""
    for base in node.bases:
        name = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
        home = _home_of(name, module, modules)
        if home is None:
            yield None
            continue
        last = name.rpartition(".")[2]
        for each in ast.walk(home.tree):
            if isinstance(each, ast.ClassDef) and each.name == last:
                yield each, home


def _home_of(name: str, module: Module, modules: Mapping[str, Module]) -> Module | None:
    first = name.split(".")[0]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == first for alias in node.names):
            source = node.module or ""
            return modules.get(source) or modules.get(f"{source}.{first}")
    return None


def _has_foreign_base(node: ast.ClassDef, module: Module, modules: Mapping[str, Module]) -> bool:
    plain = {"object", "Protocol", "Generic", "NamedTuple", "Exception", "BaseException", "Enum", "IntEnum"}
    names = {ast.unparse(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases}
    if not names - plain:
        return False
    return any(
        found is None or _has_foreign_base(found[0], found[1], modules) for found in _bases(node, module, modules)
    )


def _names_inherited(node: ast.ClassDef, module: Module, modules: Mapping[str, Module]) -> set[str]:
    found = set()
    for base in _bases(node, module, modules):
        if base is not None:
            found |= _names_defined(base[0]) | _names_inherited(*base, modules)
    return found


def test_every_private_name_is_listed() -> None:
    modules = semel_modules()
    listed = {(entry.module, name) for entry in PRIVATE for name in entry.names}
    found = {
        (module.name, name)
        for module in modules.values()
        if module.name.split(".")[1:2] != ["testing"]
        for name in find_private_names(module, modules) - OURS
    }
    assert found - listed == set()


def test_every_listed_name_is_in_its_module() -> None:
    modules = semel_modules()
    missing = [
        f"{entry.module} {name}"
        for entry in PRIVATE
        for name in entry.names
        if not re.search(rf"\b{name}\b", ast.unparse(modules[entry.module].tree))
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("connection._sock", "_sock"),
        ("getattr(request, '_body', None)", "_body"),
        ("from typing import _SpecialForm", "_SpecialForm"),
        ("import lib\nclass A(lib.B):\n    def f(self):\n        return self._hidden", "_hidden"),
        ("class A:\n    def f(self):\n        return super()._hidden()", "_hidden"),
    ],
)
def test_a_new_private_name_is_found(text: str, name: str) -> None:
    modules = parse({"semel/x.py": text})
    assert find_private_names(modules["semel.x"], modules) == {name}


def test_semels_own_names_are_not_listed() -> None:
    text = "class A:\n    def __init__(self):\n        self._a = 1\n    def f(self, other):\n        return other._a"
    modules = parse({"semel/x.py": text})
    assert find_private_names(modules["semel.x"], modules) == set()


# --- and the libraries are bounded --------------------------------------------------------------


def test_each_library_has_an_upper_bound_with_its_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    required = [Requirement(line) for lines in extras.values() for line in lines]
    for library in {entry.library for entry in PRIVATE} - {"python"}:
        specifiers = [each.specifier for each in required if each.name == library]
        assert specifiers, library
        assert all(any(one.operator == "<" for one in each) for each in specifiers), f"{library} has no upper bound"
        assert all(each.contains(version(library)) for each in specifiers), library
        assert re.search(rf'"{library}(\[\w+\])?>=[^"]*,<[^"]*".* # \S', text), f"why is {library} bounded?"


def test_each_locked_version_is_one_that_the_extras_allow() -> None:
    """A lock has a version for each Python: newer ones may have a library that Semel was not tested with."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    allowed = [Requirement(line) for lines in extras.values() for line in lines]
    locked = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements" / "dev.txt").read_text("utf-8"), re.MULTILINE)
    refused = [
        f"{name}=={pin} is not {each.specifier}"
        for name, pin in locked
        for each in allowed
        if each.name == name and not each.specifier.contains(pin)
    ]
    assert len(locked) > 100
    assert refused == []
