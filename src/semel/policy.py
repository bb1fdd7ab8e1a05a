"""An operation's policy: one frozen value, validated once, passed down.

Construction refuses a policy that cannot be kept, and an unknown option, with the name that was probably
meant. Nothing here reads a clock or a request.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, TypedDict

from semel.core.model import AfterExpiry, Effects, Scope, State, Terms
from semel.core.timing import COUNT_MAX
from semel.errors import PolicyError, RequestError, RequestTooLarge
from semel.keys import KeyFormat
from semel.operations.references import check_reference, check_sources
from semel.quota import Quota, check_quota
from semel.recipe import Body, Recipe, as_recipe, check_headers
from semel.sealing.redaction import check_redact, paths_of
from semel.steps.options import Resumed, check_request, check_steps

SECOND_US: Final = 1_000_000
NOT_RUN: Final = frozenset({401, 403, 408, 425, 429})  # with these the same request may succeed later
FINGERPRINT_BYTES: Final = 32
_TEXTS: Final = (str, str, str)
_NOTHING_MORE: Final = (None, None, None, None)
LEASE_SECONDS_MIN: Final = 1.0  # renewed every third of it: below a second, scheduling noise would lapse live holders
REFERENCE_SECONDS: Final = 366 * 86_400.0  # how long a business reference protects by default: a year
SPANS_MAX: Final = {  # seconds; a larger value is in milliseconds, or a mistake
    "lease_seconds": 3600,
    "deadline_seconds": 2 * 86_400,
    "wait_seconds": 3600,
    "dedup_for_seconds": 366 * 86_400,
    "rebuild_seconds": 600,
}
RETRY_BYTES_MAX: Final = 10 * 1024 * 1024  # read from a request that breaks a limit, to find the record of a retry
SPAN_SECONDS_MIN: Final = 0.000_001  # a shorter span would round to zero microseconds
SPAN_SECONDS_MAX: Final = 10 * 366 * 86_400.0  # clamps retention far below the range of int64 microseconds

# The headers that are replayed, besides status and body. Only the first answer has the others.
REPLAY_HEADERS: Final = frozenset(
    name.encode()
    for name in (
        "content-type",
        "content-encoding",  # the stored bytes mean nothing without it (decision 0005)
        "content-language",
        "content-disposition",
        "content-location",
        "location",
        "etag",
        "last-modified",
        "link",
        "retry-after",
        "vary",
    )
)
# Never stored, even if a policy names them: they belong to one connection, one session or one caller.
NEVER_REPLAYED: Final = frozenset(
    name.encode()
    for name in (
        "set-cookie",
        "set-cookie2",
        "authorization",
        "proxy-authorization",
        "authentication-info",
        "proxy-authentication-info",
        "www-authenticate",
        "proxy-authenticate",
        "x-csrf-token",
        "x-xsrf-token",
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "content-length",
        "upgrade",
        "date",
        "server",
        "age",
    )
)


class CommandOptions(TypedDict, total=False):
    """The options of :class:`Policy` that mean the same on every surface, as keyword arguments of a declaration."""

    effects: Effects | Literal["atomic", "idempotent", "external"]
    key_format: KeyFormat | None
    lease_seconds: float
    deadline_seconds: float
    wait_seconds: float
    answer_seconds: float
    tombstone_seconds: float
    operation_seconds: float | None
    after_expiry: Literal["refuse", "new"]
    dedup_for_seconds: float
    attempts_max: int
    nothing_happened: tuple[type[BaseException], ...]
    marks_effects: bool
    steps: bool
    resumable: bool
    body_bytes_max: int
    answer_bytes_max: int
    answers: Literal["keep", "seal", "rebuild", "forget"]
    redact: tuple[str, ...]
    rebuild: Callable[..., Any] | None
    rebuild_seconds: float
    quota: Quota | None


class PolicyOptions(CommandOptions, total=False):
    """The options of :class:`Policy`, as keyword arguments of a declaration over HTTP."""

    key: Literal["required", "optional"]
    key_from: str | None
    reference_from: str | None
    reference_scope: Literal["tenant", "caller"]
    fingerprint: Recipe | Body | Callable[[Any, bytes], bytes | str]
    counts: tuple[str, ...] | None
    fingerprints_known: tuple[Recipe, ...]
    on_error: Literal["unknown", "replay"]
    json: Literal["checked", "required", "any"]
    replay: Literal["definite", "2xx"]
    definite_5xx: frozenset[int]
    not_run: frozenset[int]
    success: Callable[[Any], Any] | None
    replay_headers: frozenset[str]
    on_unprotected: Literal["refuse", "mark"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The protection of one operation's commands.

    Parameters (spans in seconds, sizes in bytes):
        effects: the kind of the handler's side effects: ``"external"`` (default, effects that cannot be
            proven), ``"idempotent"`` (the downstream deduplicates by a derived key) or ``"atomic"``
            (all effects are writes in one transaction with the record).
        key: ``"required"`` or ``"optional"``.
        key_format: an optional :class:`~semel.keys.KeyFormat`.
        key_from: over HTTP, where the key is if not in its header (which is then ignored): ``"path:orderId"``,
            ``"body:/orderId"`` (a JSON pointer), ``"form:_key"`` (a field of a form), or ``"reference"``: the value
            that ``reference_from`` names.
        reference_from: over HTTP, where the business reference is: ``"path:orderId"`` or ``"body:/invoice/number"``.
        reference_scope: the scope in which a business reference is unique: ``"tenant"``, or ``"caller"`` if callers of
            one tenant must not be able to take each other's references.
        fingerprint: the :class:`~semel.Recipe` under which requests are compared; or only the part of the body
            that counts, such as ``NoBody()``, or a function of the request's facts and its body
            (:class:`~semel.recipe.Computed`).
        counts: over HTTP, names of request headers that count beside it: ``("stripe-account", "if-match")``. None: the
            application's.
        fingerprints_known: former recipes, still recognised on records that were made under them; a recipe's former
            versions are recognised without being named.
        lease_seconds: how long a holder counts as alive without renewing; it renews every third of this.
        deadline_seconds: how long a handler may run; renewal ends there.
        wait_seconds: how long a duplicate waits for the running command before it is refused.
        answer_seconds: how long the answer is replayed, counted from settlement.
        tombstone_seconds: how long the fact that the command ran is remembered, counted from settlement.
        operation_seconds: how long the operation (its id, business reference, state and result) is remembered once it
            is settled, beyond its key. None: no longer than the key, but a year if there is a business reference.
        after_expiry: ``"refuse"`` or ``"new"``: what happens to an attempt between those two.
        dedup_for_seconds: how long the downstream deduplicates (idempotent effects, and steps with ``repeat=True``).
        attempts_max: after this many lapsed leases an idempotent command is UNKNOWN; after this many attempts, at least
            2, a resumable one.
        on_error: for external effects, ``"unknown"`` or ``"replay"`` (store the error as the answer).
        nothing_happened: exception types that prove that no effect happened.
        marks_effects: the handler marks its point of no return with ``permit.effect()``.
        steps: every effect of the handler is inside a ``permit.step()`` (external effects, on a SQL store).
        resumable: the request is kept with the record until there is an outcome, so that a completer can finish an
            abandoned execution without its client; with ``steps``.
        json: over HTTP, when to refuse a body that is not JSON with 400 before the claim: ``"checked"`` if its media
            type is JSON and it is not empty; ``"required"`` always, for any media type; ``"any"`` never.
        replay: ``"definite"`` or ``"2xx"``: which answers are stored and replayed.
        definite_5xx: 5xx statuses that are definite answers of this operation.
        not_run: statuses that prove that nothing happened, so that the key is free: 401, 403, 408, 425 and 429. If you
            leave one out, it leaves the outcome in doubt; you may add others, such as 503.
        success: a function that judges a 2xx answer whose status does not tell the outcome: True (done),
            ``"refused"`` (a definite refusal), ``"nothing"`` (nothing happened, the key is free) or False (it may have
            happened, as after a 5xx). :func:`semel.http.graphql.graphql_success` is one.
        replay_headers: further response headers to store and replay, lower-case.
        body_bytes_max: a larger request is refused with 413.
        answer_bytes_max: a longer answer is streamed through and not kept.
        answers: how an answer is stored: ``"keep"`` (as it is), ``"seal"`` (encrypted by the engine's sealer),
            ``"rebuild"`` (only its status; ``rebuild`` makes it again) or ``"forget"`` (only its status; a retry
            learns that it was done).
        redact: members of JSON answers that are never stored, such as ``("card.number",)``: ``null`` in every replay.
        rebuild: a function that makes the answer of a completed operation again, with ``answers="rebuild"``: it
            gets a :class:`~semel.Rebuilding` and returns an Answer, or a value of JSON's kinds.
        rebuild_seconds: how long that may take.
        quota: how many new keys of this operation each caller may bring, a :class:`~semel.Quota`; None: the engine's.
        on_unprotected: what to do if the store or the answer prevents protection: ``"refuse"`` or ``"mark"``.

    Raises:
        PolicyError: an unknown option or an impossible value; the message names the option and the remedy.

    >>> Policy(effects="idempotent", lease_seconds=10).lease_seconds
    10
    >>> Policy(lease_second=5)
    Traceback (most recent call last):
        ...
    semel.errors.PolicyError: unknown option 'lease_second'; did you mean 'lease_seconds'?
    >>> Policy(lease_seconds=0)
    Traceback (most recent call last):
        ...
    semel.errors.PolicyError: lease_seconds must be at least 1 second, so that it can be renewed in time; it is 0
    """

    effects: Effects | Literal["atomic", "idempotent", "external"] = Effects.EXTERNAL
    key: Literal["required", "optional"] = "required"
    key_format: KeyFormat | None = None
    key_from: str | None = None
    reference_from: str | None = None
    reference_scope: Literal["tenant", "caller"] = "tenant"
    fingerprint: Recipe | Body | Callable[[Any, bytes], bytes | str] = field(default_factory=Recipe)
    counts: tuple[str, ...] | None = None
    fingerprints_known: tuple[Recipe, ...] = ()
    lease_seconds: float = 30
    deadline_seconds: float = 300
    wait_seconds: float = 2
    answer_seconds: float = 24 * 3600
    tombstone_seconds: float = 30 * 86_400
    operation_seconds: float | None = None
    after_expiry: Literal["refuse", "new"] = "refuse"
    dedup_for_seconds: float = 23 * 3600  # providers prune after 24 h; an hour of margin for clocks and retries
    attempts_max: int = 5
    on_error: Literal["unknown", "replay"] = "unknown"
    nothing_happened: tuple[type[BaseException], ...] = ()
    marks_effects: bool = False
    steps: bool = False
    resumable: bool = False
    json: Literal["checked", "required", "any"] = "checked"
    replay: Literal["definite", "2xx"] = "definite"
    definite_5xx: frozenset[int] = frozenset()
    not_run: frozenset[int] = NOT_RUN
    success: Callable[[Any], Any] | None = None
    replay_headers: frozenset[str] = frozenset()
    body_bytes_max: int = 10 * 1024 * 1024
    answer_bytes_max: int = 1024 * 1024
    on_unprotected: Literal["refuse", "mark"] = "refuse"
    answers: Literal["keep", "seal", "rebuild", "forget"] = "keep"
    redact: tuple[str, ...] = ()
    rebuild: Callable[..., Any] | None = None
    rebuild_seconds: float = 5
    quota: Quota | None = None
    recipe: Recipe = field(init=False, repr=False, compare=False)
    terms: Terms = field(init=False, repr=False, compare=False)
    allowed_headers: frozenset[bytes] = field(init=False, repr=False, compare=False)
    covers: bool = field(init=False, repr=False, compare=False)  # whether anything but "keep" is declared
    redact_paths: tuple[tuple[str, ...], ...] = field(init=False, repr=False, compare=False)
    is_plain: bool = field(init=False, repr=False, compare=False)  # whether a claim consists of its key alone

    def __new__(cls, **options: Any) -> Policy:
        """Refuse an unknown option, and suggest the name that was probably meant."""
        known = [f.name for f in fields(cls) if f.init]
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known options: {', '.join(known)}"
                raise PolicyError(f"unknown option {name!r}{hint}")
        return object.__new__(cls)

    @classmethod
    def of(cls, **options: Any) -> Policy:
        """Make a policy from options that no type checker sees, such as a configuration file's. Raises as Policy."""
        return cls(**options)

    def __post_init__(self) -> None:
        effects = _effects(self.effects)
        object.__setattr__(self, "effects", effects)
        object.__setattr__(self, "fingerprint", as_recipe(self.fingerprint))
        _check_kinds(self)
        object.__setattr__(self, "recipe", _recipe(self))
        _check_spans(self)
        _check_choices(self)
        _check_meaning(self, effects)
        object.__setattr__(self, "redact", check_redact(self.redact))
        object.__setattr__(self, "redact_paths", paths_of(self.redact))
        object.__setattr__(self, "covers", self.answers != "keep" or bool(self.redact))
        _check_answers(self)
        check_quota(self.quota)
        object.__setattr__(self, "terms", _terms(self, effects))
        keeps_more = self.steps or self.resumable or self.covers or self.operation_seconds is not None
        object.__setattr__(self, "is_plain", not keeps_more and self.quota is None)
        extra = frozenset(name.lower().encode("ascii") for name in self.replay_headers)
        object.__setattr__(self, "allowed_headers", REPLAY_HEADERS | extra)


def _effects(given: object) -> Effects:
    if isinstance(given, Effects):
        return given
    try:
        return Effects[str(given).upper()]
    except KeyError:
        raise PolicyError(f"effects must be 'atomic', 'idempotent' or 'external'; it is {given!r}") from None


def _recipe(policy: Policy) -> Recipe:
    """Return the recipe of the parts of a request that count, with the headers that the policy names."""
    recipe = policy.fingerprint
    assert isinstance(recipe, Recipe)
    if policy.counts is None:
        return recipe
    object.__setattr__(policy, "counts", check_headers(policy.counts))
    if recipe.headers:
        raise PolicyError("give either counts or a Recipe with headers, not both")
    return replace(recipe, headers=policy.counts)


_SEVERAL: Final = (tuple, list, set, frozenset)  # not a text, whose letters would count as its members
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch  # a token of RFC 9110


@dataclass(frozen=True, slots=True)
class _Kind:
    """The type of one option: a value of ``kind``, or several in a collection that is stored as ``kept``."""

    kind: type
    remedy: str
    kept: type | None = None


_KINDS: Final[Mapping[str, _Kind]] = {
    "key_format": _Kind(KeyFormat, "a KeyFormat, such as KeyFormat(uuid=True) (from semel import KeyFormat)"),
    "fingerprint": _Kind(
        Recipe,
        (
            "a Recipe, such as Recipe() (from semel import Recipe), the part of the body that counts, or a named "
            "function"
        ),
    ),
    "fingerprints_known": _Kind(Recipe, "a tuple of Recipes, such as (Recipe(),)", tuple),
    "nothing_happened": _Kind(type, "a tuple of exception types, such as (ConnectionRefusedError,)", tuple),
    "marks_effects": _Kind(bool, "True or False"),
    "steps": _Kind(bool, "True or False"),
    "resumable": _Kind(bool, "True or False"),
    "definite_5xx": _Kind(int, "a set of statuses, such as {501}", frozenset),
    "not_run": _Kind(int, "a set of statuses, such as {401, 403, 429}", frozenset),
    "replay_headers": _Kind(str, "a set of header names, such as {'x-total'}", frozenset),
}
"""Options that are neither spans, numbers nor choices: otherwise the first request would find a wrong type."""


def _check_kinds(policy: Policy) -> None:
    for name, option in _KINDS.items():
        value: Any = getattr(policy, name)
        if name == "key_format" and value is None:
            continue
        fits = isinstance(value, option.kind if option.kept is None else _SEVERAL)
        if not fits:
            raise PolicyError(f"{name} must be {option.remedy}; it is {_value_text(value)}")
        if option.kept is None:
            continue
        if name == "fingerprints_known":
            for each in value:
                if not isinstance(each, Recipe):
                    raise PolicyError(f"{name} must be {option.remedy}; it has {_value_text(each)}")
        object.__setattr__(policy, name, option.kept(value))


def _value_text(value: object) -> str:
    return value.__name__ if isinstance(value, type) else repr(value)


def _number(value: float) -> str:
    """Format a number of seconds in plain digits, not 2.592e+06."""
    return f"{max(-1e300, min(1e300, value)):.15g}"  # an int may be larger than any float


def _check_spans(policy: Policy) -> None:
    for name in (
        "lease_seconds",
        "deadline_seconds",
        "wait_seconds",
        "answer_seconds",
        "tombstone_seconds",
        "dedup_for_seconds",
        "operation_seconds",
        "rebuild_seconds",
    ):
        value = getattr(policy, name)
        if value is None and name == "operation_seconds":
            continue
        if value is None:
            raise PolicyError(f"{name} is missing: it cannot be endless; give seconds")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
            raise PolicyError(f"{name} must be a number of seconds; it is {value!r}")
        if value > SPAN_SECONDS_MAX:
            raise PolicyError(f"{name} must be at most ten years; it is {_number(value)} seconds")
        most = SPANS_MAX.get(name)
        if most is not None and value > most:
            raise PolicyError(
                f"{name} must be at most {_number(most)} seconds; it is {_number(value)}. It is given in seconds, not "
                "milliseconds"
            )
        if 0 < value < SPAN_SECONDS_MIN:
            raise PolicyError(f"{name} must be at least {_number(SPAN_SECONDS_MIN)} seconds; it is {_number(value)}")
        if value < 0 or (value == 0 and name not in ("wait_seconds", "lease_seconds")):
            raise PolicyError(f"{name} must be more than 0 seconds; it is {_number(value)}")
    if policy.lease_seconds < LEASE_SECONDS_MIN:
        raise PolicyError(
            f"lease_seconds must be at least {_number(LEASE_SECONDS_MIN)} second, so that it can be renewed in time; "
            f"it is {_number(policy.lease_seconds)}"
        )
    if policy.deadline_seconds < policy.lease_seconds:
        raise PolicyError(
            f"deadline_seconds ({_number(policy.deadline_seconds)}) must not be shorter than lease_seconds "
            f"({_number(policy.lease_seconds)}); raise the deadline or shorten the lease"
        )
    if policy.tombstone_seconds < policy.answer_seconds:
        raise PolicyError(
            f"tombstone_seconds ({_number(policy.tombstone_seconds)}) must not be shorter than answer_seconds "
            f"({_number(policy.answer_seconds)}): the fact outlives the answer"
        )
    age = None if policy.key_format is None else policy.key_format.uuid7_max_age
    if age is not None and age > policy.tombstone_seconds:
        raise PolicyError(
            f"uuid7_max_age ({_number(age)}) must not be longer than tombstone_seconds "
            f"({_number(policy.tombstone_seconds)}): a key that is young enough could be forgotten already"
        )
    if policy.operation_seconds is not None and policy.operation_seconds < policy.tombstone_seconds:
        raise PolicyError(
            f"operation_seconds ({_number(policy.operation_seconds)}) must not be shorter than tombstone_seconds "
            f"({_number(policy.tombstone_seconds)}): the operation outlives the key; leave it out where it need not"
        )


_CHOICES: Final = {
    "key": ("required", "optional"),
    "reference_scope": ("tenant", "caller"),
    "after_expiry": ("refuse", "new"),
    "on_error": ("unknown", "replay"),
    "json": ("checked", "required", "any"),
    "replay": ("definite", "2xx"),
    "on_unprotected": ("refuse", "mark"),
    "answers": ("keep", "seal", "rebuild", "forget"),
}


def _check_choices(policy: Policy) -> None:
    for name, choices in _CHOICES.items():
        if getattr(policy, name) not in choices:
            allowed = " or ".join(repr(choice) for choice in choices)
            raise PolicyError(f"{name} must be {allowed}; it is {getattr(policy, name)!r}")
    for name in ("body_bytes_max", "answer_bytes_max", "attempts_max"):
        value = getattr(policy, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise PolicyError(f"{name} must be a whole number of at least 1; it is {value!r}")
        if value > COUNT_MAX:
            raise PolicyError(f"{name} must be at most {COUNT_MAX}, which a store can keep; it is {value}")
    for status in policy.definite_5xx:
        if not isinstance(status, int) or not 500 <= status <= 599:
            raise PolicyError(f"definite_5xx takes statuses from 500 to 599; it has {status!r}")
    for status in policy.not_run:
        if type(status) is not int or not 400 <= status <= 599:
            raise PolicyError(f"not_run takes statuses from 400 to 599; it has {status!r}")
    both = sorted(policy.not_run & policy.definite_5xx)
    if both:
        raise PolicyError(f"{both[0]} is in not_run and in definite_5xx: it proves either nothing or a definite answer")
    for header in policy.replay_headers:
        if not isinstance(header, str) or not _HEADER(header):
            raise PolicyError(f"replay_headers must not name {header!r}: it is not a header name")
        if header.lower().encode() in NEVER_REPLAYED:
            raise PolicyError(f"replay_headers must not name {header!r}: it is never stored")


def _takes_one(function: Any) -> bool:
    """Return whether this is a plain function that can be called with one argument."""
    if not callable(function) or isinstance(function, type) or inspect.iscoroutinefunction(function):
        return False
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    return True


def _check_meaning(policy: Policy, effects: Effects) -> None:
    check_sources(policy.key_from, policy.reference_from, required=policy.key == "required")
    for kind in policy.nothing_happened:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise PolicyError(f"nothing_happened takes exception types; it has {kind!r}")
        if kind in (BaseException, Exception):
            raise PolicyError(f"nothing_happened must not hold {kind.__name__}: it would prove nothing")
    if policy.success is not None and not _takes_one(policy.success):
        raise PolicyError(f"success must be a plain function of the answer; it is {policy.success!r}")
    if policy.on_error == "replay" and effects is not Effects.EXTERNAL:
        raise PolicyError(f"on_error='replay' is for effects='external'; {effects.name.lower()} errors run again")
    if policy.marks_effects and effects is not Effects.EXTERNAL:
        raise PolicyError(f"marks_effects is for effects='external'; it means nothing for {effects.name.lower()}")
    check_steps(policy, effects)
    if policy.on_unprotected == "mark" and effects is Effects.ATOMIC:
        raise PolicyError("on_unprotected='mark' is impossible with effects='atomic': the record is in the transaction")


def _check_answers(policy: Policy) -> None:
    if policy.redact and policy.answers not in ("keep", "seal"):
        raise PolicyError(f"redact means nothing with answers={policy.answers!r}: no body is stored; leave it out")
    if policy.answers == "rebuild":
        if not callable(policy.rebuild):
            raise PolicyError(
                "answers='rebuild' needs rebuild=, a function that rebuilds the answer of a command that was done, "
                f"such as rebuild=read_payment; it is {_value_text(policy.rebuild)}"
            )
    elif policy.rebuild is not None:
        raise PolicyError(f"rebuild= is for answers='rebuild'; answers is {policy.answers!r}")


def _terms(policy: Policy, effects: Effects) -> Terms:
    return Terms(
        effects=effects,
        lease_us=int(policy.lease_seconds * SECOND_US),
        deadline_us=int(policy.deadline_seconds * SECOND_US),
        dedup_us=int(policy.dedup_for_seconds * SECOND_US),
        attempts_max=policy.attempts_max,
        answer_us=int(policy.answer_seconds * SECOND_US),
        tombstone_us=int(policy.tombstone_seconds * SECOND_US),
        after_expiry=AfterExpiry.NEW if policy.after_expiry == "new" else AfterExpiry.REFUSE,
        starts=State.CLAIMED if policy.steps else State.PROCESSING,
    )


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run once: a key in its scope, the request's fingerprint, and the policy.

    Parameters: ``scope`` tenant, caller and operation; ``key`` the client's parsed key; ``fingerprint`` 32
    bytes under ``recipe``; ``policy`` of the operation; ``under`` gives the same request's fingerprint
    under a known recipe (by its id), several in a tuple where equal requests may be recorded under any of them, or
    None; ``business_ref`` the business's own name for it, such as an invoice's
    number: one open or successful execution for each, within tenant and operation, and within the caller if the
    policy's ``reference_scope`` is "caller"; ``request`` what a completer gives
    to the handler of a resumable operation, at most 1 MiB, kept as it is until there is an outcome; ``resumed`` the
    record that a completer continues with; ``refusal`` why it may not begin (a limit that its request breaks): it gets
    the reply that the record under its key allows; without a record the refusal is raised and nothing is stored.
    """

    scope: Scope
    key: str
    fingerprint: bytes
    recipe: str
    policy: Policy
    under: Callable[[str], bytes | tuple[bytes, ...] | None] | None = None
    business_ref: str | None = None
    request: bytes | None = None
    resumed: Resumed | None = None
    refusal: RequestError | None = None
    is_plain: bool = field(init=False, repr=False, compare=False)  # whether its key and fingerprint are all there is

    def __post_init__(self) -> None:
        if (self.policy.resumable or self.request is not None) and not isinstance(self.refusal, RequestTooLarge):
            check_request(self.policy, self.request, self.resumed)
        if self.business_ref is not None:
            check_reference(self.business_ref)
        if tuple(map(type, self.scope)) != _TEXTS or "" in self.scope:
            for name, part in zip(Scope._fields, self.scope, strict=True):
                if not isinstance(part, str) or not part:
                    raise PolicyError(f"the scope's {name} must be a non-empty text; it is {part!r}")
            # For an enumeration's member, its text, which is what is stored and compared.
            object.__setattr__(self, "scope", Scope(*map(str.__str__, self.scope)))
        if not isinstance(self.key, str) or not self.key:
            raise PolicyError(f"a command's key must be a non-empty text, not {type(self.key).__name__}")
        if type(self.key) is not str:
            object.__setattr__(self, "key", str.__str__(self.key))
        if not isinstance(self.fingerprint, bytes) or len(self.fingerprint) != FINGERPRINT_BYTES:
            raise PolicyError(f"a command's fingerprint must be {FINGERPRINT_BYTES} bytes, such as a SHA-256 digest")
        if not isinstance(self.recipe, str):
            raise PolicyError(f"a command's recipe must be a text, such as 'v1', not {type(self.recipe).__name__}")
        more = (self.business_ref, self.request, self.resumed, self.refusal)
        object.__setattr__(self, "is_plain", self.policy.is_plain and more == _NOTHING_MORE)

    @classmethod
    def of_request(cls, asked: Command) -> Command:
        """Make a command of a request with a command's attributes, without checking them again."""
        made = object.__new__(cls)
        for name in cls.__slots__:
            object.__setattr__(made, name, getattr(asked, name))
        return made

    @property
    def keep_us(self) -> int | None:
        """How many microseconds its operation is remembered once it is settled; None: no longer than its key."""
        seconds = self.policy.operation_seconds
        if seconds is None:
            if self.business_ref is None:
                return None
            seconds = max(REFERENCE_SECONDS, self.policy.tombstone_seconds)
        return int(seconds * SECOND_US)
