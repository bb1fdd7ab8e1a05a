"""One command over HTTP, without IO: every decision that the ASGI and WSGI adapters share.

The order of checks is the design's: the caller, then the key's syntax, then the fingerprint, then the state.
A request's head becomes an :class:`Exchange`, or the reason why there is none; its body becomes a command; a
verdict, or the end of the application's call, becomes the answer that leaves. Adapters translate, never decide.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, Final, NamedTuple

from semel.articles import name_type
from semel.core.identity import uuid_text
from semel.core.model import (
    Answer,
    InProgress,
    NotReplayable,
    Proceed,
    QuotaExceeded,
    Rebuild,
    ReferenceTaken,
    Replay,
    Scope,
    State,
    Unreadable,
    Unseal,
    Verdict,
)
from semel.core.outcomes import (
    Outcome,
    Refused,
    Released,
    Succeeded,
    Unprovable,
    classify_answer,
    classify_exception,
    classify_unread,
)
from semel.engine.permit import Permit
from semel.engine.result import Refusal
from semel.errors import (
    ConfigurationError,
    EarlyCommit,
    HandlerRefused,
    InvalidBody,
    NothingHappened,
    NotReplicated,
    RequestError,
    RequestTooLarge,
    SemelError,
    StoreTimeout,
    StoreUnavailable,
)
from semel.http.caller import Caller
from semel.http.capture import Capture
from semel.http.fingerprint.fingerprinter import Facts, Fingerprinter, Hashing
from semel.http.fingerprint.json_check import check_depth, check_json, reads_json
from semel.http.headers import BODYLESS_STATUSES, Headers, for_client, parse_wait, prefers_async, sendable
from semel.http.outage import NO_STORE
from semel.http.routing import MOUNT, PATH, RARE, Params, Route
from semel.http.settings import HttpSettings, Wanted
from semel.http.spelling import without_slashes
from semel.http.spool import Spool
from semel.keys import is_bare, parse_key
from semel.policy import RETRY_BYTES_MAX as RETRY_BYTES_MAX
from semel.policy import Command
from semel.resuming.request import pack_head

UNPROTECTED_HEADER: Final = b"semel-unprotected"
NAMING_BYTES_MAX: Final = 1024 * 1024  # of a body that contains the key or reference: it is held in memory
ACCEPTED_RETRY_SECONDS: Final = b"1"  # after which a client that got a 202 may poll
ALLOWED_SECONDS: Final = 1.0  # for which the result of ``may`` holds: after a longer wait it is called again
_NO_STORE: Final = (b"cache-control", b"no-store")
ON_LOOP_BYTES_MAX: Final = 64 * 1024  # of a body that is parsed on an event loop: nested JSON takes many milliseconds
LENGTH_DIGITS_MAX: Final = 18  # the longest Content-Length that is parsed
_new: Final[Any] = tuple.__new__  # every replay pays for an answer
_ENTRIES_MAX: Final = 1024  # of one route: callers send many commands
_REMEMBERED_MEDIA_BYTES_MAX: Final = 128
_READ: Final = RARE | {b"content-type", b"content-length", b"accept-encoding"}
_CODED: Final = b"content-encoding"


class Unprotected(NamedTuple):
    """A request that goes through without protection, and is already counted; ``mark`` goes into its answer."""

    reason: str
    mark: tuple[bytes, bytes] | None = None


class IncompleteAnswer(SemelError):
    """The application returned without completing its response. It may or may not have taken effect."""


UNFINISHED: Final = "the application returned without completing its response"
CUT: Final = "the application's answer is shorter than its own Content-Length"


class AnswerTooLarge(SemelError):
    """An ATOMIC command's answer is longer than may be kept: the command is rolled back."""


_PASS: Final = Unprotected("no-key")


def open_exchange(
    surface: HttpSettings,
    route: Route,
    params: Params,
    method: str,
    query: bytes,
    headers: Sequence[tuple[bytes, bytes]],
    request: Mapping[str, Any],
) -> Exchange | Answer | Unprotected:
    """Open the exchange of a request to an operation, or say why there is none, from its head.

    Parameters: ``route`` and ``params`` as :meth:`Routes.find` and :func:`count_mount` gave them; ``headers`` with
    lower-case names; ``request`` what the surface's ``caller`` function reads.
    """
    read = dict(headers)
    line = read.get(surface.key_name, b"")
    head: HeadRead | Answer | Unprotected | None = None
    if len(read) == len(headers) and route.rare.isdisjoint(read) and is_bare(line):
        key = line.decode()  # as nearly all
    else:
        head = _rare_head(surface, route, headers, read)
        if type(head) is not HeadRead:
            return head  # type: ignore[return-value]  # every other one ends here
        key, read = head
    caller = surface.caller(request)  # type: ignore[misc]  # with operations there is one
    if type(caller) is not Caller:
        return _refuse_uncalled(surface, route, caller)
    if head is not None and not key and route.key_from is None:
        return _unreadable_key(surface, headers)
    length = read.get(b"content-length", b"")
    if len(length) >= route.length_digits and is_announced_too_long(length, route):
        return surface.problems.of_error(too_large(route))
    media_type = read.get(b"content-type", b"")
    entry = route.entries.get((caller.tenant, caller.id, method, media_type))
    if entry is None:
        entry = _new_entry(route, caller, method, media_type)
    exchange = Exchange(route, entry, params, query, key)
    exchange.read = read
    if head is not None:
        exchange.heed(read)
        if route.key_from is None:
            exchange.refusal = _misfit(route, key)
        if route.policy.resumable:
            exchange.resumable(pack_head(method, request, query, headers), read.get(b"prefer"))
    return exchange


def count_mount(route: Route, params: Params, mount: str) -> tuple[Route, Params]:
    """Return a route and its parameters, with the application's mount point.

    The mount point counts in fingerprints: one application at two places has two operations that share their keys.
    """
    place = without_slashes(mount) if mount and route.counts_mount else ""
    return route, (*params, (MOUNT, place)) if place else params


class HeadRead(NamedTuple):
    """The parsed head of a request that is not ordinary: the key, empty if there is none, and the fields by name."""

    key: str
    read: dict[bytes, bytes]


def _rare_head(
    surface: HttpSettings, route: Route, headers: Sequence[tuple[bytes, bytes]], read: dict[bytes, bytes]
) -> HeadRead | Answer | Unprotected:
    """Read a head with rare fields, several lines of one field, no key, or another spelling of a key."""
    keys = [read[surface.key_name]] if surface.key_name in read else []
    if len(read) != len(headers):
        keys, read = read_joined(surface.key_name, headers, _READ, route.counted)
    if b"1" in read.get(b"early-data", b""):
        return surface.problems.too_early()
    if not keys and not route.required:
        surface.tell_unprotected(route.name, "no-key")
        return _PASS
    try:
        return HeadRead("" if route.key_from is not None else parse_key(keys), read)
    except RequestError:  # the caller is checked first
        return HeadRead("", read)


def _unreadable_key(surface: HttpSettings, headers: Sequence[tuple[bytes, bytes]]) -> Answer:
    """Return the answer to a request whose key is missing or cannot be read."""
    try:
        parse_key([value for name, value in headers if name == surface.key_name])
    except RequestError as error:
        return surface.problems.of_error(error)
    raise AssertionError("a key that was not read can be read")


Digest = Callable[[Params, bytes, bytes], bytes | None]
"""Makes a request's fingerprint from its path parameters, query and body; None if only the recipe can."""


def _no_digest(path_params: Params, query: bytes, body: bytes) -> None:
    """Return None, for an operation whose fingerprints are not prepared."""


class Entry(NamedTuple):
    """The shared facts of all requests with one route, caller, method and media type."""

    scope: Scope
    method: str
    media_type: str
    plain_digest: Digest  # their fingerprints, if a plain operation's bodies are usual JSON
    digest: Digest  # the same of another operation


def _new_entry(route: Route, caller: Caller, method: str, media_type: bytes) -> Entry:
    media = media_type.decode("latin-1")
    facts = Facts(route.name, method, (), b"", caller.tenant, caller.id, media)
    bytes_max = min(route.policy.body_bytes_max, ON_LOOP_BYTES_MAX)
    subject = route.fingerprinter.prepare(facts, bytes_max)
    digest = _no_digest if subject is None else subject.digest
    digests = (digest, _no_digest) if route.is_plain else (_no_digest, digest)
    entry = Entry(Scope(caller.tenant, caller.id, route.name), method, media, *digests)
    if len(media_type) <= _REMEMBERED_MEDIA_BYTES_MAX:  # which a client may make up
        if len(route.entries) >= _ENTRIES_MAX:
            route.entries.clear()
        route.entries[caller.tenant, caller.id, method, media_type] = entry
    return entry


@lru_cache(maxsize=256)  # operations have a few kinds of answers
def _replay_headers(
    headers: tuple[tuple[bytes, bytes], ...], mark: tuple[bytes, bytes], keeps_caching: bool
) -> tuple[tuple[bytes, bytes], ...] | None:
    """As :func:`_mark_replay`; None if the body has a content coding, which a client may not accept."""
    return None if any(name == _CODED for name, _ in headers) else _mark_replay(headers, mark, keeps_caching)


def _mark_replay(
    headers: tuple[tuple[bytes, bytes], ...], mark: tuple[bytes, bytes], keeps_caching: bool
) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers of a replay of these, except its Content-Length."""
    has_caching = keeps_caching and any(name == _NO_STORE[0] for name, _ in headers)
    return (*sendable(headers), mark) if has_caching else (*sendable(headers), mark, _NO_STORE)


def body_too_slow(surface: HttpSettings, scope: Mapping[str, Any]) -> Answer:
    """The answer to a request over ASGI whose body has not arrived in time."""
    closes = scope.get("http_version", "1.1").startswith("1")
    return surface.problems.body_too_slow(surface.body_seconds_max, closes=closes)


def _refuse_uncalled(surface: HttpSettings, route: Route, caller: object) -> Answer | Unprotected:
    """Refuse a request of an unknown caller."""
    if caller is not None:
        raise ConfigurationError(f"caller= returned {name_type(caller)}; it must return a Caller or None")
    return _mark_unprotected(surface, route, "no-caller") if route.marks else surface.problems.caller_unknown()


def read_counted_headers(names: Sequence[bytes], read: Mapping[bytes, bytes]) -> tuple[tuple[str, str], ...]:
    """Return names and values of the declared headers that count and are present, without blanks around a value."""
    return tuple((name.decode(), read[name].strip(b" \t").decode("latin-1")) for name in names if name in read)


def read_joined(
    key_name: bytes, headers: Iterable[tuple[bytes, bytes]], known: Collection[bytes], counted: Collection[bytes]
) -> tuple[list[bytes], dict[bytes, bytes]]:
    """Return the key's lines, and the known or counted fields by name, with several lines of a field joined."""
    keys: list[bytes] = []
    read: dict[bytes, bytes] = {}
    for name, value in headers:
        if name == key_name:
            keys.append(value)
        elif name in known or name in counted:
            read[name] = value if name not in read else read[name] + b", " + value
    return keys, read


def _misfit(route: Route, key: str) -> RequestError | None:
    """Return why a key does not have the operation's format, or None if it does."""
    if route.policy.key_format is not None:
        try:
            route.policy.key_format.check(key, time.time())
        except RequestError as error:
            return error
    return None


def is_announced_too_long(length: bytes, route: Route) -> bool:
    """Return whether a Content-Length exceeds the limit."""
    return length.isdigit() and (len(length) > LENGTH_DIGITS_MAX or int(length) > route.bytes_read_max)


def too_large(route: Route) -> RequestTooLarge:
    """Return the refusal of a body that is too long to run."""
    return RequestTooLarge(f"The body is larger than {route.policy.body_bytes_max} bytes; send a smaller one.")


def _mark_unprotected(surface: HttpSettings, route: Route, reason: str) -> Unprotected:
    surface.tell_unprotected(route.name, reason)
    return Unprotected(reason, (UNPROTECTED_HEADER, reason.encode()))


_NOT_OF_THIS_KEY: Final = (ReferenceTaken, QuotaExceeded, Unreadable)


class Exchange:
    """A command being built, and then its answers. ``wait_seconds`` is the client's preference, if it sent one."""

    # Defaults that most requests keep are attributes of the class.
    read: Mapping[bytes, bytes] = {}  # the request's headers, by lower-case name
    refusal: RequestError | None = None  # the error for a limit that it breaks, unless its key is on record
    wait_seconds: float | None = None
    wants_async = False  # the client prefers a link to waiting
    body_until = 0.0  # the limit for the rest of its body, by the loop's clock; 0 before the first wait
    allowed_at: float | None = None  # when ``may`` allowed it, in monotonic seconds; None without ``may``
    _request_bytes = 0
    _hashing: Hashing | None = None
    _request_body = b""
    _request_spool: Spool | None = None
    _packed_head: bytes | None = None
    # A command's attributes: an ordinary request is claimed as it is; Permit.command makes a Command of it.
    fingerprint: bytes
    recipe: str
    is_plain = True
    business_ref = request = resumed = None

    def __init__(self, route: Route, entry: Entry, params: Params, query: bytes, key: str) -> None:
        self.route = route
        self._entry = entry
        self._params = params
        self._query = query
        self.key = key
        self.policy = route.policy
        self.scope = entry.scope

    @property
    def _surface(self) -> HttpSettings:
        surface: HttpSettings = self.route.surface
        return surface

    @cached_property
    def _facts(self) -> Facts:
        """The request's facts besides its body."""
        scope, method, media_type = self._entry[:3]
        return Facts(self.route.name, method, self._params, self._query, scope.tenant, scope.caller, media_type)

    @cached_property
    def _under(self) -> dict[str, tuple[bytes, ...] | None]:
        return {}

    def heed(self, read: Mapping[bytes, bytes]) -> None:
        """Apply the fields that few requests have. Parameters: ``read`` the head's fields by name."""
        facts, route, surface = self._facts, self.route, self._surface
        if b"content-digest" in read:
            facts = facts._replace(content_digest=read[b"content-digest"].decode("latin-1"))
        if b"content-encoding" in read:
            facts = facts._replace(content_encoding=read[b"content-encoding"].decode("latin-1"))
        if route.counted:
            facts = facts._replace(extra=read_counted_headers(route.counted, read))
        if b"prefer" in read:
            wait = parse_wait((read[b"prefer"],))
            if wait is not None:
                self.wait_seconds = min(wait, surface.wait_seconds_max)
        if facts is not self._facts:
            self._facts = facts
            self._entry = self._entry._replace(plain_digest=_no_digest, digest=_no_digest)

    def must_ask_again(self) -> bool:
        """Return whether ``may`` must be called again before a stored answer is sent, since the request has waited.

        Call it only if ``may`` allowed the request.
        """
        assert self.allowed_at is not None
        return time.monotonic() - self.allowed_at >= ALLOWED_SECONDS

    def resumable(self, head: bytes, prefer: bytes | None) -> None:
        """The operation ends without its client: keep the request, and heed ``Prefer: respond-async``."""
        self._packed_head = head
        self.wants_async = prefer is not None and prefers_async((prefer,))
        if self.wants_async and self.wait_seconds is None:
            self.wait_seconds = 0

    @property
    def wanted(self) -> Wanted:
        """The argument for the surface's ``may`` function."""
        scope = self.scope
        return Wanted(scope.operation, Caller(scope.tenant, scope.caller), self._params)

    # --- the body ---------------------------------------------------------------------------

    def plain_command(self, body: bytes) -> Command | None:
        """Return the command of a plain operation with a short body of usual JSON. None: call :meth:`command`."""
        fingerprint = self._entry.plain_digest(self._params, self._query, body)
        if fingerprint is None:
            return None
        self._request_body = body
        self.fingerprint = fingerprint
        self.recipe = self.route.recipe
        return self  # type: ignore[return-value]  # it has what a command has

    def command(self, body: bytes) -> Command | Answer:
        """Return the command of a request whose body came in one piece, or the answer that refuses it.

        An ordinary command is this exchange itself, which has a command's attributes.
        """
        plain = self.plain_command(body)
        if plain is not None:
            return plain
        route = self.route
        if len(body) > route.body_bytes_max:
            self.refusal = too_large(route)
            if len(body) > RETRY_BYTES_MAX:
                return self._surface.problems.of_error(self.refusal)
        self._request_body = body
        fingerprint = self._entry.digest(self._params, self._query, body)
        if fingerprint is not None:
            return self._command(fingerprint, route.recipe)
        try:
            self._check_json(len(body), (body,))
            maker = route.fingerprinter
            facts = self._counting(maker) if route.counted else self._facts
            recipe, fingerprint = maker.identify(facts, body)
        except RequestError as error:
            return self._command_under_a_former_recipe(error)
        return self._command(fingerprint, route.recorded[recipe])

    def feed(self, chunk: bytes) -> Answer | None:
        """Take a piece of the body. A returned answer refuses the request, and the rest need not be read."""
        self._request_bytes += len(chunk)
        try:
            if self._request_bytes > self.route.policy.body_bytes_max:
                self.refusal = too_large(self.route)
                if self._request_bytes > RETRY_BYTES_MAX:
                    raise self.refusal
            if self._hashing is None:
                self._hashing = self.route.fingerprinter.begin(self._counting(self.route.fingerprinter))
            self._hashing.feed(chunk)
        except RequestError as error:
            return self._surface.problems.of_error(error)
        return None

    def finish(self, spool: Spool) -> Command | Answer:
        """Return the command of a request whose body was fed and is in ``spool``, or the answer that refuses it."""
        if self._hashing is None:
            return _make_lasting(self.command(b""))
        self._request_spool = spool
        try:
            self._check_json(spool.size, spool.chunks())
            fingerprint = self._hashing.finish()
        except RequestError as error:
            return self._command_under_a_former_recipe(error)
        recipe = self.route.fingerprinter.ids[self._hashing.further]
        self._hashing = None
        return _make_lasting(self._command(fingerprint, self.route.recorded[recipe]))

    def _check_json(self, size: int, chunks: Iterable[bytes]) -> None:
        """Refuse a body that the handler could not read: it would fail only after the claim."""
        policy = self.route.policy
        if self.refusal is not None:
            return  # it does not run, and gets only what is on record
        if self._facts.content_encoding or not reads_json(policy.json, self._facts.media_type, is_empty=size == 0):
            return  # only the application reads a compressed body
        recipe = policy.recipe
        if size > recipe.json_bytes_max:
            check_depth(chunks, recipe.json_depth_max)
        else:
            check_json(b"".join(chunks), recipe.json_depth_max)

    def cut_short(self) -> Answer:
        """Return the answer to a request whose body ended before its announced length."""
        return self._surface.problems.of_error(
            InvalidBody("The body is shorter than its Content-Length; send it again.")
        )

    def body_too_slow(self, scope: Mapping[str, Any]) -> Answer:
        """The answer to a request over ASGI whose body has not arrived in time."""
        return body_too_slow(self._surface, scope)

    def _command_under_a_former_recipe(self, error: RequestError) -> Command | Answer:
        """Return the command of a request that today's recipe refuses, under a former recipe that accepts it."""
        for recipe in self.route.known:
            fingerprints = self.under(recipe)
            if fingerprints and isinstance(error, RequestTooLarge):
                self.refusal = error
                return self._command(fingerprints[0], recipe)
        return self._surface.problems.of_error(error)

    def _counting(self, maker: Fingerprinter) -> Facts:
        """Return the request's facts, with only the headers that count under a recipe."""
        facts = self._facts
        if not facts.extra:
            return facts
        names = maker.recipe.headers
        return facts._replace(extra=tuple(pair for pair in facts.extra if pair[0] in names))

    def _command(self, fingerprint: bytes, recipe: str) -> Command | Answer:
        route, refusal, scope, under = self.route, self.refusal, self.scope, self.under
        if route.is_plain and refusal is None:
            self.fingerprint = fingerprint
            self.recipe = recipe
            return self  # type: ignore[return-value]  # it has what a command has
        try:
            key, reference = self._names()
            command = partial(Command, scope, key, fingerprint, recipe, route.policy, under, reference)
            if isinstance(refusal, RequestTooLarge):
                return command(refusal=refusal)
            try:
                return command(self._request(), refusal=self.refusal)
            except RequestTooLarge as error:  # too large to keep for a run without its client
                return command(refusal=error)
        except RequestError as error:
            return self._surface.problems.of_error(error)

    def _request(self) -> bytes | None:
        """Return the stored request for a run without the client; None if the operation never has one."""
        if self._packed_head is None:
            return None
        return self._packed_head + (
            self._request_body if self._request_spool is None else b"".join(self._request_spool.chunks())
        )

    def _names(self) -> tuple[str, str | None]:
        """Return the key and the business reference that the request names. Raises RequestError."""
        route, params, body, media = self.route, self._params, b"", self._facts.media_type
        declared = [source for source in (route.key_from, route.reference_from) if source is not None]
        for source in declared:
            source.check_parameters((name for name, _ in params), route.name)
        if any(source.kind != "path" for source in declared):
            if max(self._request_bytes, len(self._request_body)) > NAMING_BYTES_MAX:
                raise RequestTooLarge(f"A body that names its command has at most {NAMING_BYTES_MAX} bytes; send less.")
            body = self._request_body if self._request_spool is None else b"".join(self._request_spool.chunks())
        reference = None if route.reference_from is None else route.reference_from.reference(params, body, media)
        if route.key_from is None:
            return self.key, reference
        key = route.key_from.key(params, body, media)
        self.refusal = self.refusal or _misfit(route, key)
        return key, reference

    def under(self, recipe_id: str) -> tuple[bytes, ...] | None:
        """Return this request's fingerprints, one for each spelling of it, under a recipe that the policy knows."""
        if recipe_id not in self._under:  # cached: needed again once the application and the body are gone
            self._under[recipe_id] = self._fingerprints_under(recipe_id)
        return self._under[recipe_id]

    def _fingerprints_under(self, recipe_id: str) -> tuple[bytes, ...] | None:
        maker, counts_path = self.route.known.get(recipe_id, (None, False))
        if maker is None or (self._request_spool is not None and self._request_spool.closed):
            return None
        facts = self._counting(maker)
        if self.route.counts_path and not counts_path:
            facts = facts._replace(path_params=tuple(each for each in facts.path_params if each[0] != PATH))
        try:
            return tuple(self._fingerprint(maker, each) for each in maker.spellings(facts))
        except RequestError:
            return None  # a request that the former recipe refuses was never recorded under it

    def _fingerprint(self, maker: Fingerprinter, facts: Facts) -> bytes:
        # With further facts a fingerprint belongs to the other of the maker's two ids, and equals none under this one.
        if self._request_spool is None:
            return maker.digest(facts, self._request_body)
        hashing = maker.begin(facts)
        for chunk in self._request_spool.chunks():
            hashing.feed(chunk)
        return hashing.finish()

    # --- before the application ---------------------------------------------------------------

    def present(self, verdict: Refusal | Verdict) -> Answer:
        """Return the answer to an attempt that may not proceed."""
        if isinstance(verdict, Replay):
            return self.replay(verdict)
        problems, lifetime = self._surface.problems, self.route.honoured.lifetime
        assert not isinstance(verdict, Unseal | Rebuild), "an engine gives what it withholds from a store's verdict"
        if isinstance(verdict, Proceed):
            # Reread after a refused settlement, and still ours: the outcome is unknown.
            return _with(problems.unknown(verdict.grant.operation_id), lifetime)
        if isinstance(verdict, InProgress) and verdict.own and self._packed_head is not None:
            return self.answer_accepted(verdict.operation_id, verdict.state)  # it finishes without its client
        answer = problems.of_verdict(verdict)
        # No lifetime if another command has the business reference or the record is unreadable, since the key gets no
        # answer, nor if a quota is used up, since the key is not on record.
        if (isinstance(verdict, InProgress) and not verdict.own) or isinstance(verdict, _NOT_OF_THIS_KEY):
            return answer
        return _with(answer, lifetime)

    def answer_accepted(self, operation_id: bytes, state: State) -> Answer:
        """Return a 202: the command is under way and will finish; the answer says where to poll.

        Parameters: ``state`` of its record, as in the status resource.
        """
        document = {"operationId": uuid_text(operation_id), "state": state.name}
        headers = [(b"content-type", b"application/json"), _NO_STORE, (b"retry-after", ACCEPTED_RETRY_SECONDS)]
        problems = self._surface.problems
        if problems.operations_path is not None:
            document["operation"] = problems.operations_path.replace("{id}", uuid_text(operation_id))
            headers.append((b"location", document["operation"].encode()))
        headers += self.route.honoured.headers(operation_id)
        if self.wants_async:
            headers.append((b"preference-applied", b"respond-async"))
        body = json.dumps(document).encode()
        return Answer(202, (*headers, (b"content-length", b"%d" % len(body))), body)

    def replay(self, verdict: Replay) -> Answer:
        """Return the first answer again."""
        (status, headers, body), operation_id, _ = verdict
        route = self.route
        kept = _replay_headers(headers, route.surface.replayed, route.keeping.keeps_caching)
        if kept is None:
            headers, body = for_client(headers, body, self.read.get(b"accept-encoding", b""))
            kept = _mark_replay(headers, route.surface.replayed, route.keeping.keeps_caching)
        lines = route.honoured.after(kept, operation_id)
        if status is None:
            status = 200
        if status not in BODYLESS_STATUSES:
            lines.append((b"content-length", b"%d" % len(body)))
        return _new(Answer, (status, tuple(lines), body))  # type: ignore[no-any-return]

    def answer_unclaimed(self, error: SemelError) -> Answer | Unprotected:
        """Refuse a command that was not claimed, or let it run unprotected if the store is unavailable."""
        if isinstance(error, RequestError):
            return self._surface.problems.of_error(error)
        self._surface.outage.tell(error)
        if self.route.marks:
            return _mark_unprotected(self._surface, self.route, "store-unavailable")
        return self._surface.problems.of_error(error)

    # --- after the application ----------------------------------------------------------------

    def outcome(
        self,
        permit: Permit,
        capture: Capture,
        error: BaseException | None,
        failure: BaseException | None = None,
        own_status: int | None = None,
    ) -> Outcome:
        """Return the outcome to store for the end of the application's call.

        Parameters: ``error`` that left the application; ``failure`` that left the endpoint, which the framework may
        have turned into an answer. If it proves that nothing happened, it overrides any status. A success or redirect
        that was made of it proves nothing, unless the exception itself has that status, as ``status_code`` or
        ``own_status``.
        """
        policy = self.route.policy
        if failure is not None:
            if isinstance(failure, (NothingHappened, *policy.nothing_happened)):
                return classify_exception(failure, policy, begun=permit.begun)
            if error is None and capture.status < 400 and getattr(failure, "status_code", own_status) != capture.status:
                error = failure
        if not permit.kept and self.route.atomic:
            return Released("answer-too-large", proven=True)
        if error is None:
            classify = classify_answer if permit.kept else classify_unread
            return classify(capture.to_store(), policy, begun=permit.begun)
        # Only an error answer can be the framework's for the exception; any other no longer holds.
        answer = capture.to_store() if capture.complete and capture.status >= 500 else None
        return classify_exception(error, policy, begun=permit.begun, answer=answer)

    def last_answer(
        self,
        permit: Permit,
        capture: Capture,
        outcome: Outcome,
        error: BaseException | None,
        verdict: Verdict | None = None,
        unconfirmed: SemelError | None = None,
        failure: BaseException | None = None,
    ) -> Answer | None:
        """Return the answer that leaves once the outcome is settled; None if the exception itself should propagate.

        Parameters: ``error`` the application ended with; ``verdict`` that holds instead of a refused settlement;
        ``unconfirmed`` why the settlement could not be confirmed; ``failure`` that left the endpoint.

        Raises HandlerRefused, as if the application raised it: the database refuses what the application wrote.
        """
        is_stopped = self.route.atomic and self._is_stopped(capture, outcome, error, failure)
        is_settled = not is_stopped and error is None and verdict is None and unconfirmed is None and permit.kept
        if permit.steps is not None:
            outcome = permit.outcome(outcome)
        problems, lifetime = self._surface.problems, self.route.honoured.lifetime
        if is_settled and not isinstance(outcome, Unprovable):
            return capture.first(self.honours(permit, outcome))
        if isinstance(unconfirmed, HandlerRefused) and error is None:
            raise unconfirmed
        if isinstance(unconfirmed, NO_STORE):
            self._surface.outage.tell(unconfirmed)
        if verdict is not None:
            return self.present(verdict)
        if self.route.atomic and not permit.kept:
            return problems.answer_too_large()
        if is_stopped and unconfirmed is None:
            return problems.rolled_back()
        if permit.steps is not None and isinstance(outcome, Released) and isinstance(error or failure, NO_STORE):
            return _with(problems.between_steps(permit.execution_id), lifetime)
        promised = isinstance(outcome, (Succeeded, Refused))
        if unconfirmed is not None and (
            promised or is_stopped or isinstance(unconfirmed, EarlyCommit) or (error is None and capture.status < 500)
        ):
            if self.route.atomic and isinstance(unconfirmed, NO_STORE) and not isinstance(unconfirmed, NotReplicated):
                # Either all of it is committed or nothing: a retry replays the answer, or runs.
                maybe_done = is_stopped or isinstance(unconfirmed, StoreTimeout)
                return problems.of_error(unconfirmed, maybe_done=maybe_done)
            return _with(problems.unknown(permit.execution_id), lifetime)
        if error is not None and (capture.status < 500 or not capture.complete):
            return None
        if not permit.kept:
            # The answer should have been streamed, but the mark did not reach the store in time.
            if promised:
                verdict = NotReplayable(permit.execution_id, permit.resource_type, permit.resource_id)
                return _with(problems.of_verdict(verdict), lifetime)
            if isinstance(outcome, Released):
                return problems.of_error(StoreUnavailable())
            return _with(problems.unknown(permit.execution_id), lifetime)
        if isinstance(outcome, Unprovable) and capture.status < 500 and permit.steps is not None:
            return _with(problems.unknown(permit.execution_id), lifetime)  # send what the store holds
        return capture.first(self.honours(permit, outcome))

    def _is_stopped(
        self, capture: Capture, outcome: Outcome, error: BaseException | None, failure: BaseException | None
    ) -> bool:
        status = capture.status if capture.complete else None
        return isinstance(outcome, Released) and self.is_stopped(status, error, failure)

    def is_stopped(self, status: int | None, error: BaseException | None, failure: BaseException | None = None) -> bool:
        """Return whether a transient failure stopped an ATOMIC handler, and its application gave no answer of its own.

        An answer of its own is an exception with a status, or an answer whose status is not the 500 that frameworks
        make of any exception.

        Parameters: ``status`` of the application's answer, None if it is incomplete; ``error`` and ``failure`` as for
        :meth:`outcome`.
        """
        if error is None and failure is None:
            return False
        if status is not None and status != 500 and (error is None or status > 500):
            return False
        if isinstance(getattr(failure, "status_code", getattr(failure, "code", None)), int):
            return False
        is_for_now = self._surface.engine.backend.is_for_now
        return any(is_for_now(each) for each in (error, failure) if each is not None)

    def honours(self, permit: Permit, outcome: Outcome | None = None) -> Headers:
        """Return a first answer's extra headers: for how long the key is honoured, and where the status is.

        None of them if an ATOMIC command was rolled back: the store knows neither the key nor the operation.

        Parameters: ``outcome`` as the permit sees it, with its steps; None if the command has not ended.
        """
        if self.route.atomic and isinstance(outcome, Released):
            return ()
        return self.route.honoured.headers(permit.execution_id)


def _make_lasting(command: Command | Answer) -> Command | Answer:
    """Make a Command of an exchange: its type tells the adapters that the spool is still needed."""
    return Command.of_request(command) if isinstance(command, Exchange) else command


def _with(answer: Answer, headers: Headers) -> Answer:
    return answer._replace(headers=answer.headers + headers)
