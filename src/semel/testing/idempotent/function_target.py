"""A function as a target: called with its arguments and a key, sync in threads, async on the loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Final

from semel.cli.check_discovery import Discovered, Operation
from semel.engine.result import Result
from semel.errors import ConfigurationError, MissingKey
from semel.policy import Policy
from semel.testing.idempotent.case import Request
from semel.testing.idempotent.reply import Reply
from semel.testing.idempotent.report import CannotRun
from semel.testing.idempotent.target import ATTEMPT_SECONDS, Fate, Target, name_of
from semel.testing.idempotent.threads import Threads
from semel.web.surface import AnyEngine

KEY_NAMES: Final = ("idempotency_key", "key")


class FunctionTarget:
    """A sync or async function that takes the key as one of its parameters.

    Parameters: ``function``; ``key`` the name of that parameter (by default ``idempotency_key`` or ``key``);
    ``engine`` on which it runs and its ``policy``, so that crashes and clocks can be tried as well.

    Raises ConfigurationError where the function has no such parameter.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        key: str = "",
        engine: AnyEngine | None = None,
        policy: Policy | None = None,
        name: str = "",
    ) -> None:
        self.function = function
        self.name = name or name_of(function)
        self.key, self._required = _key_parameter(function, key, self.name)
        self._threads = Threads()
        self._managed = engine
        self.found: Discovered | None = None
        if engine is not None:
            operation = Operation(self.name, (), "", policy or Policy(), "function", None, engine, None)
            self.found = Discovered("functions", (operation,), (), ())

    def operation(self, request: Request) -> Operation | None:
        """The operation that was given at construction."""
        return None if self.found is None else self.found.operations[0]

    async def open(self) -> None:
        """Have threads. The function's own set-up is the test's."""
        self._threads.open()

    async def close(self) -> None:
        """End the threads."""
        self._threads.close()

    async def attempt(self, request: Request, key: str | None, fate: Fate) -> Reply:
        """Call it once. A call's answer is lost by not looking at it."""
        if key is None and self._required:
            return Reply(error=MissingKey(f"{self.name}() cannot be called without {self.key}"))
        arguments = dict(request.arguments) if key is None else {**request.arguments, self.key: key}
        reply = await self._call(arguments)
        return Reply(lost=True) if fate is Fate.LEAVES else reply

    async def _call(self, arguments: dict[str, Any]) -> Reply:
        try:
            inspect.signature(self.function).bind(**arguments)
        except TypeError as error:
            raise CannotRun(
                f"{self.name}() cannot be called with these arguments: {error}",
                "give all of them but the key in arguments={...}",
            ) from None
        try:
            if inspect.iscoroutinefunction(self.function):
                async with asyncio.timeout(ATTEMPT_SECONDS):
                    returned = await self.function(**arguments)
            else:
                returned = await self._threads.run(lambda: self.function(**arguments))
                if inspect.isawaitable(returned):
                    returned = await returned
        except (CannotRun, asyncio.CancelledError):
            raise
        except BaseException as error:  # noqa: BLE001 -- whatever the function raises is what came
            return Reply(error=error)
        return reply_of(returned)


def reply_of(returned: Any) -> Reply:
    """What a call returned, as a reply."""
    if isinstance(returned, Result):
        return Reply(returned.answer.status, body=returned.answer.body, replay=returned.replayed)
    return Reply(body=returned if isinstance(returned, bytes) else repr(returned).encode("utf-8", "backslashreplace"))


def command_target(thing: Any) -> Target | None:
    """A function that is declared as a command says how it is to be tested; None for anything else."""
    make = getattr(thing, "__semel_target__", None)
    return make() if callable(make) else None


def _key_parameter(function: Callable[..., Any], key: str, name: str) -> tuple[str, bool]:
    parameters = inspect.signature(function).parameters
    chosen = key or next((each for each in KEY_NAMES if each in parameters), "")
    if chosen not in parameters:
        known = ", ".join(parameters) or "none"
        raise ConfigurationError(
            f"{name}() has no parameter {chosen or 'for the key'!r}; say which one takes it: "
            f"FunctionTarget({name}, key=...); it has {known}"
        )
    return chosen, parameters[chosen].default is inspect.Parameter.empty
