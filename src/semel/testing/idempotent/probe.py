"""One target under test: sends attempts, counts effects, and collects findings. It decides nothing."""

from __future__ import annotations

import difflib
import uuid
from collections.abc import Sequence
from typing import Final

from semel.check.discovery import CheckedOperation
from semel.errors import ConfigurationError
from semel.http.caller import single_caller
from semel.http.settings import AnyEngine
from semel.policy import Policy
from semel.recipe import Members
from semel.testing.idempotent.case import Case, Request
from semel.testing.idempotent.counting import read_count
from semel.testing.idempotent.failing import Clocks
from semel.testing.idempotent.interrupting import Witness, watch
from semel.testing.idempotent.reply import Came, Reply
from semel.testing.idempotent.report import CannotRun, Finding, NotGiven, title
from semel.testing.idempotent.targets.target import Fate, Target

# Checks that also fail if a plain retry fails: the report names the one cause, not a remedy for each symptom.
EQUAL_COMMANDS: Final = 8  # enough for a handler that fails every second, third or seventh time
_CONSEQUENCES: Final = frozenset(
    {
        "same_key_and_payload_replays",
        "other_payload_refused",
        "concurrent_same_key_runs_once",
        "timeout_then_retry_gives_the_final_result",
        "failure_before_the_effect",
        "failure_after_the_effect",
        "expired_key",
        "event_identity_stable_over_replay",
        "bulk_retry_does_not_rerun_finished_items",
    }
)
_AUTHENTICATE: Final = "give the headers of a caller that may do this: headers={'Authorization': ...}"


class Attempted:
    """One command under one key: the number of its effects so far, and its replies."""

    def __init__(self, probe: Probe, key: str, number: int, before: int) -> None:
        self._probe = probe
        self.key = key
        self.number = number
        self.counted = before
        self.grown = 0
        self.last = 0

    @property
    def request(self) -> Request:
        """The request of this command; made again for each attempt, as a client would."""
        return self._probe.case.first(self.number)

    async def send(self, request: Request | None = None, fate: Fate = Fate.ANSWERED) -> Reply:
        """Send one attempt; update ``last``, its effects, and ``grown``, all effects so far."""
        probe = self._probe
        reply = await probe.target.attempt(self.request if request is None else request, self.key, fate)
        await self.count()
        if any(given.strip('"') != self.key for given in reply.values("idempotency-key")):
            probe.makes_keys = True
        return reply

    async def count(self) -> int:
        """Count again; return how often the effect happened since the last count."""
        now = await read_count(self._probe.case.effects)
        self.last, self.counted = now - self.counted, now
        self.grown += self.last
        return self.last


class Probe:
    """A target and a case, for any number of checks.

    ``policy`` is the declared one, or the case's, or the default; ``unit`` the count of one command's effect.
    """

    def __init__(self, target: Target, case: Case, clocks: Clocks | None) -> None:
        self.target = target
        self.case = case
        self.clocks = clocks
        self.operation: CheckedOperation | None = target.operation(case.first())
        self.policy: Policy = case.policy or (self.operation.policy if self.operation else Policy())
        self.unit = 0
        self.first: Reply | None = None
        self.bulk: Witness | None = None  # the observations of the first request, if it was a bulk
        self.cause = ""  # why a plain retry is not safe, if so
        self.makes_keys = False
        self.findings: list[Finding] = []
        self.remarks: list[str] = []
        self._run = uuid.uuid4()
        self._numbers = 0

    @property
    def engines(self) -> tuple[AnyEngine, ...]:
        """The engines of the target that can be reached."""
        return self.target.found.engines if self.target.found is not None else ()

    @property
    def known(self) -> bool:
        """Whether Semel's declaration of this operation can be read, so that checks can expect its own messages."""
        return self.operation is not None

    @property
    def one_caller(self) -> bool:
        """Whether the operation has one caller only, as declared."""
        surface = None if self.operation is None else self.operation.surface
        return self.case.single_caller or (surface is not None and surface.caller is single_caller)

    @property
    def members(self) -> tuple[str, ...]:
        """The only members that count in the fingerprint; empty if all do."""
        body = self.policy.recipe.body
        return body.names if isinstance(body, Members) else ()

    def key(self, purpose: str) -> str:
        """Make a key that was never used, also not in an earlier run on the same store."""
        made = str(uuid.uuid5(self._run, purpose))
        return made if self.case.new_key is None else self.case.new_key(made)

    async def command(self, purpose: str) -> Attempted:
        """Make a new command under a new key."""
        self._numbers += 1
        return Attempted(self, self.key(purpose), self._numbers, await read_count(self.case.effects))

    def find(self, check: str, sent: str, came: str, means: str, change: str) -> None:
        """Record a finding. If a plain retry already fails, name that as the cause."""
        if self.cause and check in _CONSEQUENCES:
            told = next((each for each in self.findings if each.change == self.cause), None)
            change = self.cause if told is None else f"the cause is most likely that of: {title(told.check)}"
        self.findings.append(Finding(check, sent, came, means, change))

    def remark(self, text: str) -> None:
        """Record a remark, once."""
        if text not in self.remarks:
            self.remarks.append(text)

    def times(self, grown: int, how: str = "") -> str:
        """Say how often the effect happened, with numbers if one request counts more than once.

        ``how``: a word such as "again".
        """
        how = f" {how}" if how else ""
        if not grown:
            return f"the effect did not happen{how}"
        if self.unit > 1:
            return f"the counter grew by {grown}{how}; a normal request grows it by {self.unit}"
        number = "once" if grown == 1 else "twice" if grown == 2 else f"{grown} times"
        return f"the effect happened {number}{how}"

    def need_engine(self) -> None:
        """Raise NotGiven if no crash can be simulated."""
        if self.engines:
            return
        if self.target.found is None:
            raise NotGiven(
                "the store is out of reach",
                "give the application itself instead of its URL, or FunctionTarget(function, engine=..., policy=...)",
            )
        raise NotGiven("no Semel was found in the application", "declare the operation; see the findings")

    def need_clocks(self) -> Clocks:
        """Return the clocks to move; raise NotGiven if they belong to a server."""
        self.need_engine()
        if self.clocks is None:
            raise NotGiven(
                "the clock of this store belongs to its server",
                "let the application use the fixture semel_async_engine or semel_engine, whose clock is the test's: in "
                "memory, or with @pytest.mark.semel_store('postgresql://...') on a database that only tests use",
            )
        return self.clocks

    # --- the first request ----------------------------------------------------------------------

    async def baseline(self) -> Reply:
        """Send the first request of all: it must be done and be counted. Raises CannotRun with the remedy."""
        if self.first is not None:
            return self.first
        command = await self.command("baseline")
        with watch(self.engines) as witness:
            reply = await command.send()
        self.bulk = None if witness.policy is None else witness
        if not reply.done:
            raise self._why_not(reply)
        if command.grown < 1:
            raise CannotRun(
                f"{self.case.name} was done ({reply.text()}), but the effect counter did not grow",
                "effects= must count the effects of this handler, at the same provider or database that the "
                "application under test uses (not a second instance, and not in an uncommitted transaction)",
            )
        self.unit = command.grown
        if self.unit > 1 and self.bulk is None:
            self.remark(
                f"the first request grew the effect counter by {self.unit}; that counts as one effect. If a request "
                "should have one effect, something does it, or counts it, more than once: look outside the protected "
                "handler"
            )
        self.first = reply
        self.cause = self._cause(await command.send(), command.last)
        return reply

    async def check_determinism(self) -> None:
        """Raise CannotRun if equal commands under new keys fail at random: findings would mislead."""
        if self.first is None:
            return
        failed: Reply | None = None
        for number in range(EQUAL_COMMANDS):
            reply = await (await self.command(f"determinism {number}")).send()
            if not reply.done:
                failed = failed or reply
            elif failed is not None:
                raise CannotRun(
                    f"the handler is not deterministic: of equal requests under new keys one came back with "
                    f"{failed.text()}, and a later one succeeded",
                    "let it do the same for every command in the test: no random failures, no limits, no clock; "
                    "a provider that fails now and then is replaced by one that does not",
                )

    def _cause(self, retry: Reply, grown: int) -> str:
        """Return the reason why a plain retry is unsafe; empty if it is safe."""
        if retry.came is Came.KEY_REUSED:
            return (
                "something changes the request between two attempts (a timestamp, a trace id, a new nonce in the "
                "payload). Make it once per intent, or declare what counts: "
                "fingerprint=Recipe(body=Members(('amount',)))"
            )
        if not grown:
            return ""
        if retry.replay:
            part = "the effect" if grown >= self.unit else "a part of the effect"
            return (
                f"{part} is outside the protected handler, before the claim: in a dependency, a middleware or a "
                "signal. Move it into the handler, below @semel.command"
            )
        if self.makes_keys:
            return (
                "the answers name another Idempotency-Key than the client sent: the server makes its own key for each "
                "request. Use the client's"
            )
        if self.known:
            return (
                "the key was not the same to Semel: does something replace the Idempotency-Key, or is the caller "
                "another one at each request (a session, a random user)?"
            )
        if self.target.found is None:
            return "reserve the key before the handler runs, in one atomic statement, and store the answer with it"
        others = ", ".join(each.title for each in self.target.found.operations)
        if others:
            return f"Semel protects {others}, but not this operation: declare it as well (see `semel check`)"
        return (
            "no Semel was found in this application: declare the operation (@semel.command and semel.install(app), or "
            "SemelMiddleware with operations=[...])"
        )

    def _why_not(self, reply: Reply) -> CannotRun:
        what, came = self.case.name, reply.text()
        if isinstance(reply.error, ConfigurationError):
            store = "semel migrate" in str(reply.error)
            remedy = (
                "open the engine with the application (manage_engine=True, or engine.open()), and migrate its store"
            )
            return CannotRun(str(reply.error), remedy if store else "correct the declaration of the operation")
        match reply.came, reply.status:
            case Came.UNAVAILABLE, _:
                return CannotRun(
                    f"the store cannot be used: {what} came back with {came}",
                    "see that the store is migrated (semel migrate) and its engine opened with the application",
                )
            case Came.INVALID_KEY, _:
                return CannotRun(
                    f"the keys of this test are refused: {came}",
                    "the operation has a key format: give new_key=, a function that makes such a key from a text",
                )
            case Came.FAILED, _ if reply.error is not None:
                return CannotRun(f"the handler failed: {came}", "let it succeed in the test: use a fake provider")
            case _, 404 | 405:
                return CannotRun(f"there is no such route: {what} came back with {came}", self._routes())
            case _, 401 | 403:
                return CannotRun(f"the caller is refused: {what} came back with {came}", _AUTHENTICATE)
            case Came.FAILED, _:
                return CannotRun(f"the handler failed: {what} came back with {came}", "let it succeed in the test")
            case _:
                return CannotRun(
                    f"the application refuses this very request: {what} came back with {came}",
                    "give a payload that it accepts: json=, body= or arguments=",
                )

    def _routes(self) -> str:
        routes: Sequence[str] = self.target.found.routes if self.target.found is not None else ()
        near = difflib.get_close_matches(self.case.request, routes, n=1)
        if near:
            return f"did you mean {near[0]!r}?"
        return f"the application has: {', '.join(routes)}" if routes else "correct request="
