"""The tools of one check, which send requests, wait and count effects, and the exceptions that end a check."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from semel.conform.case import Case, Request
from semel.conform.effects import Counter, run_hook
from semel.conform.order import WITHOUT_EFFECTS, Place
from semel.conform.wire import Header, Reply, Target, encode, exchange

RETRY_SECONDS: Final = 0.05
IN_PROGRESS: Final = frozenset({409, 425, 429, 503})


def now() -> float:
    """Return the event loop's time, which measures every wait."""
    return asyncio.get_running_loop().time()


class CannotRun(Exception):
    """The API cannot be tested: ``reason`` explains why, ``remedy`` what to change."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"cannot run: {reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy


class Failed(Exception):
    """A check failed; the message says what it observed."""


class NotTried(Exception):
    """A check could not run; the message names the missing part."""


class NeedsQuiet(Exception):
    """A check that runs beside others must count effects after all, so it runs again, alone."""


class Try:
    """The tools of one check: they send requests and count the effects since the check began.

    They raise CannotRun if the API limits the rate of requests.
    """

    def __init__(
        self,
        target: Target,
        case: Case,
        counter: Counter,
        profile: str,
        unit: int,
        place: Place = "alone",
        races: list[list[Reply]] | None = None,
    ) -> None:
        self.target = target
        self.case = case
        self.profile = profile
        self.races: list[list[Reply]] = [] if races is None else races  # shared: several checks judge them
        self._counter = counter
        self._unit = unit
        self._place = place
        self._before = 0
        self._both = False
        self._sent: dict[tuple[object, ...], int] = {}

    async def begin(self, *, both: bool = False) -> None:
        """Start counting effects; with ``both``, those of both callers."""
        self._both = both
        if self._place == "alone":
            self._before = await self._counter.count_before(both=both)

    def key(self) -> str:
        """Return a fresh key."""
        return f"conform-{uuid.uuid4()}"

    def spell(self, key: str) -> bytes:
        """Return the key in the profile's spelling: quoted, except for Stripe."""
        return key.encode() if self.profile == "stripe" else b'"' + key.encode() + b'"'

    def headers(
        self, request: Request, lines: Sequence[bytes], caller: Mapping[str, str] | None = None
    ) -> list[Header]:
        """Return the headers of a request with these values of the key's header."""
        who = self.case.caller if caller is None else caller
        found: list[Header] = [(name, value.encode()) for name, value in {**who, **request.headers}.items()]
        if request.body and request.content_type:
            found.append(("Content-Type", request.content_type.encode()))
        return found + [(self.case.key_header, line) for line in lines]

    def encode(
        self,
        key: str | None,
        request: Request | None = None,
        *,
        lines: Sequence[bytes] | None = None,
        caller: Mapping[str, str] | None = None,
        chunked: bool = False,
        close: bool = True,
        claimed: int | None = None,
        key_name: str = "",
    ) -> bytes:
        """Encode a request as bytes. ``lines`` are raw values of the key's header that replace ``key``."""
        self._counter.forget()
        what = request or self.case.request
        values = lines if lines is not None else [] if key is None else [self.spell(key)]
        headers = self.headers(what, values, caller)
        if key_name:
            headers = [(key_name if name == self.case.key_header else name, value) for name, value in headers]
        return encode(
            self.target, what.method, what.path, headers, what.body, chunked=chunked, close=close, claimed=claimed
        )

    async def send(
        self,
        key: str | None,
        request: Request | None = None,
        *,
        lines: Sequence[bytes] | None = None,
        caller: Mapping[str, str] | None = None,
        chunked: bool = False,
        key_name: str = "",
    ) -> Reply:
        """Send one request on a new connection."""
        what = request or self.case.request
        data = self.encode(key, what, lines=lines, caller=caller, chunked=chunked, key_name=key_name)
        used = (key, *(lines or ()))
        self._sent[used] = self._sent.get(used, 0) + 1
        reply = await exchange(self.target, data, what.method, self.case.limits.timeout_seconds)
        if reply.status == 429 and self._sent[used] == 1:  # no other request of this key is running
            raise CannotRun(
                "the API limits the rate of requests: it answers 429 to a key that it has never seen",
                "lift the limit for this test; what it refuses proves nothing",
            )
        return reply

    async def first(self, key: str | None, request: Request | None = None, **options: object) -> Reply:
        """Send a first request. Raises Failed if the API does not accept it."""
        reply = await self.send(key, request, **options)  # type: ignore[arg-type]
        if not reply.ok:
            raise Failed(f"the first request got {reply.text()}, not a 2xx")
        return reply

    async def retry_until_final(self, key: str, request: Request | None = None, seconds: float | None = None) -> Reply:
        """Retry until an answer is final (neither missing nor "in progress") or the time is over."""
        ends = now() + (self.case.limits.timeout_seconds if seconds is None else seconds)
        while True:
            reply = await self.send(key, request)
            if (reply.status and reply.status not in IN_PROGRESS) or now() > ends:
                return reply
            await asyncio.sleep(RETRY_SECONDS)

    async def count_new_effects(self) -> int:
        """Return this check's effects so far. A request that was cut may add more, so the next check counts again."""
        found = await self._count()
        self._counter.forget()
        return found

    async def _count(self) -> int:
        if self._place != "alone":
            raise NeedsQuiet
        extra = await self._counter.count(both=self._both) - self._before
        return -(-extra // self._unit)

    async def expect_effects(self, expected: int, told: str) -> None:
        """Raise Failed unless exactly ``expected`` effects happened."""
        if self._place == WITHOUT_EFFECTS and expected == 0:
            return  # one count covers all checks of this kind
        found = await self._count()
        if found != expected:
            self._counter.forget()
            raise Failed(f"{told}; {found} effect(s) happened, {expected} expected")

    def needs(self, name: str) -> Request:
        """Return an optional request of the case. Raises NotTried if the case lacks it."""
        if name not in self.case.requests:
            raise NotTried(f"the case has no [{name}]")
        return self.case.requests[name]

    async def hook(self, name: str, argument: str = "") -> None:
        """Run a hook of the case."""
        self._counter.forget()
        await run_hook(self.case.hooks[name], name, argument)

    async def await_service(self) -> None:
        """Wait until the API answers again after a restart. Raises Failed after 30 s."""
        ends = now() + 30
        while True:
            reply = await self._counter._get(self.case.effects.get or "/", self.case.caller)
            if reply.status:
                return
            if now() > ends:
                raise Failed("the API did not come back within 30 s after hooks.restart")
            await asyncio.sleep(RETRY_SECONDS)


def with_headers(request: Request, headers: Mapping[str, str]) -> Request:
    """Return the same request with more headers."""
    return replace(request, headers={**request.headers, **headers})
