"""The sink that is a function of yours: ``python:shop.events:deliver``.

The relay calls it with each event, which is published once the function returns; it may be async. An exception refuses
the event, unless it shows that the function's own broker is unavailable:
:class:`~semel.outbox.sinks.base.SinkUnreached`, or an error of the network.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from typing import Any

from semel.errors import UrlError
from semel.outbox.event import Event
from semel.outbox.sinks.base import Reply, reply_to


class FunctionSink:
    """Calls a function with each event: a coroutine function on the loop, any other in a thread.

    An event is delivered once the function returns. If the function raises :class:`SinkUnreached
    <semel.outbox.sinks.base.SinkUnreached>`, a ConnectionError or a TimeoutError, the event waits for the end of the
    outage; any other exception refuses it, which counts as a try. Semel waits for as long as the function runs: set
    timeouts on its calls.

    >>> import asyncio
    >>> FunctionSink(print).name
    'python:builtins:print'
    """

    def __init__(self, function: Callable[[Event], Any]) -> None:
        self._function = function
        self._awaits = inspect.iscoroutinefunction(function)
        self.name = f"python:{function.__module__}:{function.__qualname__}"

    async def publish(self, events: Sequence[Event]) -> list[Reply]:
        """Call the function with each event in turn."""
        return [await self._deliver(event) for event in events]

    async def _deliver(self, event: Event) -> Reply:
        try:
            if self._awaits:
                await self._function(event)
            else:
                returned = await asyncio.to_thread(self._function, event)
                if isinstance(returned, Awaitable):
                    await returned
                if inspect.isgenerator(returned) or inspect.isasyncgen(returned):
                    raise TypeError("the sink's function returned a generator, which has not run: leave yield out")
        except Exception as error:  # noqa: BLE001 - any exception means that the event was not published
            return reply_to(error)
        return None

    async def close(self) -> None:
        """Does nothing: it holds no connection."""


def function_sink(url: str) -> FunctionSink:
    """Return the sink of ``python:module:function``. Raises UrlError."""
    _, _, rest = url.partition(":")
    module, colon, name = rest.partition(":")
    if not module or not colon or not name:
        raise UrlError(f"a function as a sink is written python:MODULE:FUNCTION; this is {url!r}")
    try:
        found: Any = import_module(module)
    except ImportError as error:
        raise UrlError(f"the sink's module {module!r} cannot be imported: {error}") from None
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise UrlError(f"the module {module!r} has no function {name!r}")
    return FunctionSink(found)
