"""A function as a target: called with its arguments and a key, sync in threads, async on the loop.

A function declared with ``semel.functions.command`` has its engine, policy and key parameter; for any other function
the test names them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from semel.articles import name_type
from semel.bulk.declaration import BulkResult
from semel.bulk.run_async import AsyncBulk
from semel.bulk.run_sync import Bulk
from semel.check.discovery import CheckedOperation, Discovered, function_operation
from semel.engine.result import Result
from semel.errors import ConfigurationError, MissingKey
from semel.http.settings import AnyEngine
from semel.policy import Policy
from semel.testing.idempotent.case import Request
from semel.testing.idempotent.reply import Reply
from semel.testing.idempotent.report import CannotRun
from semel.testing.idempotent.targets.target import ATTEMPT_SECONDS, Fate, name_of
from semel.testing.idempotent.targets.threads import Threads

KEY_NAMES: Final = ("idempotency_key", "key")


class FunctionTarget:
    """A sync or async function, plain or a declared command.

    Parameters: ``function``; ``key`` the parameter that takes the key (by default ``idempotency_key`` or ``key``; none
    for a command without a declared key), or a path into it, such as ``"order.id"``; for a plain function, its
    ``engine`` and ``policy``, or the ``bulk`` that it runs, so that crashes and clocks can be tried as well.

    Raises ConfigurationError if there is no such parameter.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        key: str = "",
        engine: AnyEngine | None = None,
        policy: Policy | None = None,
        bulk: Bulk | AsyncBulk | None = None,
        name: str = "",
    ) -> None:
        self.function = function
        self.name = name or name_of(function)
        declared = function_operation(function)
        self._path: tuple[str, ...] = ()
        self._required = False
        if not (declared is not None and not key and declared.keyed_by_call):
            self._path, self._required = _key_path(function, key, self.name)
        self._threads = Threads()
        operation = None if declared is None else declared.operation
        if bulk is not None:
            engine, policy = bulk._engine, bulk.policy.policy
        if engine is not None:
            operation = CheckedOperation(self.name, (), "", policy or Policy(), "function", None, engine, None)
        self.found: Discovered | None = None if operation is None else Discovered("functions", (operation,), (), ())

    def operation(self, request: Request) -> CheckedOperation | None:
        """Return the declared operation, or the one given at construction."""
        return None if self.found is None else self.found.operations[0]

    async def open(self) -> None:
        """Start the threads. The test does the function's own set-up."""
        self._threads.open()

    async def close(self) -> None:
        """End the threads."""
        self._threads.close()

    async def attempt(self, request: Request, key: str | None, fate: Fate) -> Reply:
        """Call the function once. For a lost answer, ignore the result."""
        if key is None and self._required:
            return Reply(error=MissingKey(f"{self.name}() cannot be called without {'.'.join(self._path)}"))
        arguments: Mapping[str, Any] = request.arguments
        if key is not None and self._path:
            arguments = _place_key(arguments, self._path, key)
        reply = await self._call(arguments, None if self._path else key)
        return Reply(lost=True) if fate is Fate.LEAVES else reply

    async def _call(self, arguments: Mapping[str, Any], key: str | None) -> Reply:
        try:
            inspect.signature(self.function).bind(**arguments)
        except TypeError as error:
            raise CannotRun(
                f"{self.name}() cannot be called with these arguments: {error}",
                "give all of them but the key in arguments={...}",
            ) from None
        try:
            function = self.function if key is None else self.function.with_key(key)  # type: ignore[attr-defined]
            if inspect.iscoroutinefunction(function):
                async with asyncio.timeout(ATTEMPT_SECONDS):
                    returned = await function(**arguments)
            else:
                returned = await self._threads.run(lambda: function(**arguments))
                if inspect.isawaitable(returned):
                    returned = await returned
        except (CannotRun, asyncio.CancelledError):
            raise
        except BaseException as error:  # noqa: BLE001 -- whatever the function raises is what came
            return Reply(error=error)
        return reply_of(returned)


def reply_of(returned: Any) -> Reply:
    """Make a reply from a call's result."""
    if isinstance(returned, Result):
        return Reply(returned.answer.status, body=returned.answer.body, replay=returned.replayed)
    if isinstance(returned, BulkResult):
        return Reply(body=returned.tally.pack(), replay=returned.replayed)
    return Reply(body=returned if isinstance(returned, bytes) else repr(returned).encode("utf-8", "backslashreplace"))


def _key_path(function: Callable[..., Any], key: str, name: str) -> tuple[tuple[str, ...], bool]:
    parameters = inspect.signature(function).parameters
    path = tuple((key or next((each for each in KEY_NAMES if each in parameters), "")).split("."))
    if path[0] not in parameters:
        known = ", ".join(parameters) or "none"
        raise ConfigurationError(
            f"{name}() has no parameter {path[0] or 'for the key'!r}; say which one takes it: "
            f"FunctionTarget({name}, key=...); it has {known}"
        )
    return path, len(path) > 1 or parameters[path[0]].default is inspect.Parameter.empty


def _place_key(owner: Any, path: tuple[str, ...], key: str) -> Any:
    """Put the key into the arguments; copies mappings and dataclasses on the path."""
    if not path:
        return key
    if isinstance(owner, Mapping):
        return {**owner, path[0]: _place_key(owner.get(path[0], {}), path[1:], key)}
    if dataclasses.is_dataclass(owner) and not isinstance(owner, type):
        return dataclasses.replace(owner, **{path[0]: _place_key(getattr(owner, path[0], {}), path[1:], key)})
    raise CannotRun(
        f"the key cannot be placed into {name_type(owner)}",
        "test a small function of your own that takes the key and makes the argument",
    )
