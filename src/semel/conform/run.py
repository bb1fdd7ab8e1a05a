"""A run of the catalogue against an API: first test whether the API can be tested, then perform the checks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from semel.conform.attempt import RETRY_SECONDS, CannotRun, Failed, NeedsQuiet, NotTried, Try, now
from semel.conform.case import Case
from semel.conform.catalogue import LEVELS, PROFILES, Check, load_catalogue, missing
from semel.conform.checks import CHECKS, PLACES
from semel.conform.effects import Counter, CountError
from semel.conform.order import (
    AT_ONCE,
    AT_ONCE_MOST,
    BESIDE_OTHERS,
    WITHOUT_EFFECTS,
    Place,
    estimate_seconds,
    next_checks,
)
from semel.conform.report import Report, Result
from semel.conform.wire import (
    Connection,
    Reply,
    Target,
    WireError,
    encode,
    exchange,
    explain,
    is_private,
    parse_target,
)
from semel.core.timing import span_text

RESTART_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of checks: a profile, levels, and ids or prefixes of ids (empty: all)."""

    profile: str = "draft-07"
    levels: Sequence[str] = LEVELS
    only: Sequence[str] = ()

    def checks(self) -> list[Check]:
        """Return the chosen checks, in the catalogue's order. Raises ValueError for an unknown choice."""
        if self.profile not in PROFILES:
            raise ValueError(f"--profile must be one of {', '.join(PROFILES)}, not {self.profile!r}")
        wrong = [level for level in self.levels if level not in LEVELS]
        if wrong or not self.levels:
            raise ValueError(f"--level must be some of {', '.join(LEVELS)}, not {', '.join(wrong) or 'nothing'!r}")
        catalogue = load_catalogue()
        for name in self.only:
            if not any(_matches(each.id, name) for each in catalogue):
                raise ValueError(f"--only {name!r} is neither a check nor a group of checks; see docs/conformance.md")
        return [
            each
            for each in catalogue
            if self.profile in each.profiles
            and each.level in self.levels
            and (not self.only or any(_matches(each.id, name) for name in self.only))
        ]


def _matches(check: str, name: str) -> bool:
    return check == name or check.startswith(f"{name}-")


Tell = Callable[[int, int, str], None]


async def conform(
    url: str,
    case: Case,
    selection: Selection | None = None,
    *,
    own_api: bool = False,
    at_once: int = AT_ONCE,
    tell: Tell = lambda done, total, name: None,
) -> Report:
    """Run the chosen checks against an API and report all results.

    Parameters: ``url`` is the API's base; ``own_api`` allows a public address; ``at_once`` limits how many checks run
    at the same time where they do not disturb each other (1 to 40); ``tell`` is called once with the estimated time,
    then before each check, with the number done, the total, and the estimate or the check's id.

    Raises ValueError for a wrong URL, selection or number, CannotRun if the API cannot be tested.
    """
    if not 1 <= at_once <= AT_ONCE_MOST:
        raise ValueError(f"--at-once must be 1 to {AT_ONCE_MOST}, not {at_once}")
    chosen = selection or Selection()
    checks = chosen.checks()
    target = parse_target(url, case.ca_file)
    await _refuse_strangers(target, own_api)

    async def get(path: str, headers: Mapping[str, str]) -> Reply:
        data = encode(target, "GET", path, [(name, value.encode()) for name, value in headers.items()], b"")
        return await exchange(target, data, "GET", case.limits.timeout_seconds)

    await _connect(target, case.limits.timeout_seconds)
    begun = now()
    try:
        async with Counter(case, get) as counter:
            unit, request_seconds = await _baseline(Try(target, case, counter, chosen.profile, 1))
            races: list[list[Reply]] = []
            tools = (target, case, counter, chosen.profile, unit)
            run = _Run(checks, lambda place: Try(*tools, place, races), at_once, tell)
            tell(0, len(checks), _about(run.estimate(case, request_seconds), request_seconds))
            await run.perform_all(lambda: counter.count(both=True))
            if not run.gone:
                await _check_count(Try(target, case, counter, chosen.profile, unit))
    except CountError as error:
        raise CannotRun(str(error), "correct the case file or the API, and run it again") from None
    tell(len(checks), len(checks), "")
    operation = f"{case.request.method} {case.request.path}"
    return Report(url, operation, chosen.profile, tuple(run.results[each.id] for each in checks), now() - begun)


def _about(seconds: float, request_seconds: float) -> str:
    return f"about {span_text(int(seconds * 1_000_000))} in all, at {request_seconds * 1000:.0f} ms a request"


class _Run:
    """The checks of one run, and their results.

    Parameters: ``make_try`` makes the tools of one check; ``at_once`` how many run at the same time.
    """

    def __init__(self, checks: Sequence[Check], make_try: Callable[[Place], Try], at_once: int, tell: Tell) -> None:
        self.results: dict[str, Result] = {}
        self.gone = ""  # the check during which the API ended
        self._checks = checks
        self._make_try = make_try
        self._at_once = at_once
        self._tell = tell

    def estimate(self, case: Case, request_seconds: float) -> float:
        """Estimate the run's seconds."""
        tried = [each for each in self._checks if not missing(each, case)]
        return estimate_seconds(tried, PLACES, case, self._at_once, request_seconds)

    async def perform_all(self, count: Callable[[], Awaitable[int]]) -> None:
        """Perform all checks; ``count`` counts the effects of all callers."""
        while left := [each for each in self._checks if each.id not in self.results]:
            due = [each for each in next_checks(left, PLACES, self._at_once) if not self._is_spared(each)]
            place = PLACES[due[0].id] if due else "alone"
            if len(due) > 1 and place != "alone":
                await self._perform_at_once(due, place, count)
            for check in due:  # a single check, or those that did not pass beside others
                if check.id not in self.results and not self._is_spared(check):
                    await self._perform_alone(check)

    def _is_spared(self, check: Check) -> bool:
        """Return whether to skip a check, because the API has ended or a prerequisite failed, and record it."""
        cause = next((name for name in check.after if name in self.results and self._has_failed(name)), None)
        if self.gone:
            self.results[check.id] = Result(check, "not-tried", f"the API ended during {self.gone}: start it again")
        elif cause is not None:
            self.results[check.id] = Result(check, "not-tried", f"{cause} failed, so this check would add nothing")
        return check.id in self.results

    def _has_failed(self, name: str) -> bool:
        return self.results[name].outcome == "failed"

    async def _perform_alone(self, check: Check) -> None:
        self._tell(len(self.results), len(self._checks), check.id)
        attempt = self._make_try("alone")
        result = await _perform(check, attempt)
        if not await _listens(attempt.target):
            self.gone = check.id
            came = f"{result.came}; " if result.came else ""
            result = replace(result, outcome="failed", came=f"{came}the API ended: it takes no connections")
        self.results[check.id] = result

    async def _perform_at_once(
        self, checks: Sequence[Check], place: Place, count: Callable[[], Awaitable[int]]
    ) -> None:
        """Perform checks concurrently and keep those that passed. The others run again, alone, for a clear result."""
        slots = asyncio.Semaphore(self._at_once)
        before = await count() if place == WITHOUT_EFFECTS else 0
        passed: dict[str, Result] = {}

        async def perform(check: Check) -> None:
            async with slots:
                self._tell(len(self.results) + len(passed), len(self._checks), check.id)
                with suppress(NeedsQuiet, CannotRun, CountError):
                    result = await _perform(check, self._make_try(place))
                    if result.outcome == "passed":
                        passed[check.id] = result

        await asyncio.gather(*map(perform, checks))
        if not await _listens(self._make_try(place).target):
            self.gone = f"one of {', '.join(each.id for each in checks)}"
            came = f"the API ended while {len(checks)} checks ran: it takes no connections; run it with --at-once 1"
            self.results.update({each.id: Result(each, "failed", came) for each in checks})
        elif place == BESIDE_OTHERS or await count() == before:
            self.results.update(passed)


async def _perform(check: Check, attempt: Try) -> Result:
    begun = now()
    lacks = missing(check, attempt.case)
    if lacks:
        return Result(check, "not-tried", lacks)
    outcome, came = "passed", ""
    try:
        await attempt.begin(both="other_caller" in check.needs)
        await CHECKS[check.id](attempt)
    except Failed as failure:
        outcome, came = "failed", str(failure)
    except NotTried as reason:
        outcome, came = "not-tried", str(reason)
    except (OSError, WireError, asyncio.IncompleteReadError) as error:
        outcome, came = "failed", f"the connection broke: {explain(error)}"
    return Result(check, outcome, came, now() - begun)


async def _refuse_strangers(target: Target, own_api: bool) -> None:
    try:
        private = await is_private(target)
    except OSError:
        raise CannotRun(f"the host {target.host} has no address", "correct the URL") from None
    if not private and not own_api:
        raise CannotRun(
            (
                f"{target.host} is neither a loopback nor a private address, and the tool sends many requests, some of "
                "them invalid"
            ),
            "test your own API on your own machine, or confirm that it is yours: --i-own-this-api",
        )


async def _connect(target: Target, timeout_seconds: float) -> None:
    host = f"{target.host}:{target.port}"
    try:
        async with asyncio.timeout(timeout_seconds), Connection(target):
            pass
    except TimeoutError:
        raise CannotRun(f"{host} does not answer", "start the API first, or correct the URL") from None
    except OSError as error:
        trouble = explain(error)
        if trouble.startswith("TLS"):
            remedy = "correct the certificate, give tls.ca_file, or write http://"
            raise CannotRun(f"{host}: {trouble}", remedy) from None
        raise CannotRun(f"{host} cannot be reached: {trouble}", "start the API first, or correct the URL") from None


async def _listens(target: Target) -> bool:
    """Return whether the API accepts connections, now or within a few seconds if a supervisor restarts it."""
    ends = now() + RESTART_SECONDS
    while True:
        try:
            async with asyncio.timeout(RESTART_SECONDS), Connection(target):
                return True
        except OSError:
            if now() > ends:
                return False
            await asyncio.sleep(RETRY_SECONDS)


async def _baseline(attempt: Try) -> tuple[int, float]:
    """Send one valid request, which must be accepted and counted; return its effects and its seconds."""
    await attempt.begin()
    key, begun = attempt.key(), now()
    reply = await attempt.send(key)
    took = now() - begun
    where = f"{attempt.case.request.method} {attempt.target.base}{attempt.case.request.path}"
    problem = _trouble(reply, where, attempt)
    if problem is not None:
        raise problem
    grown = await attempt.count_new_effects()
    if grown < 1:
        raise CannotRun(
            f"{where} answered {reply.text()}, and the count of effects did not grow",
            "correct [effects], or test an operation that has an effect: a server without effects proves nothing",
        )
    return grown, took


async def _check_count(attempt: Try) -> None:
    """Raise CannotRun after the checks if the count no longer grows (a page, a limit): it has proven nothing."""
    await attempt.begin()
    reply = await attempt.send(attempt.key())
    if reply.ok and await attempt.count_new_effects() < 1:
        raise CannotRun(
            "the count of effects has stopped growing during the checks",
            "in [effects], use a count that has no pages and no limit",
        )


def _trouble(reply: Reply, where: str, attempt: Try) -> CannotRun | None:
    host = f"{attempt.target.host}:{attempt.target.port}"
    if not reply.status:
        return CannotRun(f"{host} gives no answer: {reply.trouble}", "start the API first, or correct the URL")
    if 300 <= reply.status < 400:
        to = reply.header("location") or "nowhere"
        return CannotRun(f"{where} redirects ({reply.status}) to {to[:200]}", "give the URL or path that it leads to")
    if reply.status in (401, 403):
        return CannotRun(f"{where} answers {reply.status}", "give credentials as headers of [callers.first]")
    if reply.media_type == "text/html":
        return CannotRun(f"{where} answers {reply.status} with HTML: no API", "correct the URL or request.path")
    if reply.status in (404, 405):
        return CannotRun(f"{where} answers {reply.status}", "correct request.path, request.method or the URL's path")
    if not reply.ok:
        spelling = "bare (as Stripe's clients)" if attempt.profile == "stripe" else "quoted (as the draft says)"
        return CannotRun(
            f"{where} answers {reply.status} to the case's request, with the key {spelling}",
            "correct the request of the case, or choose another --profile",
        )
    return None
