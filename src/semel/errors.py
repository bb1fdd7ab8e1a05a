"""Every error that Semel raises, as one tree.

The first split is whose fault it is, the second whether the same call may be repeated:

    SemelError
    ├── ConfigurationError        the developer's mistake: raised at construction or at start-up
    │   ├── PolicyError           an impossible or unknown policy option
    │   │   └── HandlerError      a handler that breaks a rule for handlers, whatever its input
    │   ├── StepError             a step that is declared or called wrongly
    │   ├── UrlError              a store URL that cannot be used
    │   ├── SchemaError           the store is not migrated, or by a newer Semel
    │   └── IdentityMismatch      another store or another id secret than the one on record
    ├── RequestError              the client's mistake: the command was refused, nothing ran
    │   ├── InvalidKey
    │   │   └── KeyTooOld         a UUIDv7 that is older than new keys may be
    │   ├── MissingKey
    │   ├── InvalidBody
    │   ├── BulkRefused           a list of items, with the place and the member that is wrong
    │   ├── ImportRefused         a file that was refused; nothing of it is kept
    │   └── RequestTooLarge
    ├── CommandError              a verdict on the command, raised only by the engines
    │   ├── KeyReusedError
    │   ├── InProgressError
    │   ├── OutcomeUnknownError
    │   ├── KeyExpiredError
    │   ├── NotReplayableError
    │   ├── ReferenceTakenError
    │   ├── QuotaExceededError    its key is new, and its caller has as many as a quota allows
    │   └── RecordUnreadableError
    ├── StoreError                the store's failure: may be repeated with the same key
    │   ├── StoreUnavailable      it did not answer; the handler did not run
    │   │   ├── StoreReadOnly     it takes no writes; stored answers are still replayed
    │   │   └── StatementRefused  it answered this one statement with an error
    │   │       └── HandlerRefused  an ATOMIC handler's own writes cannot be committed: its fault, not the store's
    │   └── StoreTimeout          it did not answer in time: not known yet
    │       └── NotReplicated     it answered, and reports that a failover may undo the write
    ├── SupersededError           another holder was granted the record; this one's writes are refused
    ├── StepInDoubt               a step may have happened and may not be repeated: the operation is UNKNOWN
    ├── EarlyCommit               an ATOMIC handler's transaction was committed before its settle
    ├── JoinRefused               the user's transaction cannot be joined safely
    └── ResolveRefused            an operator's settlement that is not allowed, or not yet

    NothingHappened               raised *by handlers*: proves that no effect happened
    ItemFailed                    raised *by handlers* of bulk items: this one failed, and why

No message carries a stored value, a body or a whole key.
"""

from __future__ import annotations


class SemelError(Exception):
    """The root of everything Semel raises."""


class ConfigurationError(SemelError):
    """The developer must change something; repeating the call does not help."""


class PolicyError(ConfigurationError):
    """A policy that cannot be kept, or an unknown option."""


class HandlerError(PolicyError):
    """A handler that breaks a rule for any input: a bulk stops, a consumer ends, nothing is counted."""


def is_wrong_for_all(error: BaseException) -> bool:
    """Return whether every item of a bulk and every message would fail alike until the developer changes something.

    A PolicyError need not: one item's data may cause an invalid event, or a text that is too long. An act that no
    handler may do, for any input, is a HandlerError.

    >>> is_wrong_for_all(ConfigurationError("this store has no transactions"))
    True
    >>> is_wrong_for_all(PolicyError("topic must be a text")), is_wrong_for_all(HandlerError("it may not roll back"))
    (False, True)
    """
    if isinstance(error, PolicyError):
        return isinstance(error, HandlerError)
    return isinstance(error, ConfigurationError)


class StepError(ConfigurationError):
    """An invalid call of a step: undeclared, unnamed, called twice, one too many, or redefined."""


class UrlError(ConfigurationError):
    """A store URL that cannot be understood or used."""


class SchemaError(ConfigurationError):
    """The store's schema is missing, incomplete or newer than this Semel."""


class IdentityMismatch(ConfigurationError):
    """The store is not the one that was recorded, or the id secret has changed."""


class RequestError(SemelError):
    """The client's request cannot become a command. Nothing ran, nothing was stored."""


class InvalidKey(RequestError):
    """The key breaks its grammar or the operation's key format."""


class KeyTooOld(InvalidKey):
    """A UUIDv7 key that is too old for a new command, and nothing is on record under it.

    An earlier command under it may be forgotten: look by your business reference before you use a new key.
    """


class MissingKey(RequestError):
    """The operation requires a key and the request carries none."""


class InvalidBody(RequestError):
    """The body contradicts itself, such as a digest field that is not the body's digest."""


class RequestTooLarge(RequestError):
    """The body is larger or nested deeper than the operation allows."""


class BulkRefused(RequestError):
    """A list of items that cannot become a bulk: nothing of it was done.

    Parameters: ``place`` of the item, from 0 (None: the list as a whole); ``member`` of it that is wrong; ``code`` for
    machines.
    """

    def __init__(self, place: int | None, member: str | None, message: str, code: str = "ITEM_MALFORMED") -> None:
        where = "the list" if place is None else f"item {place}" if member is None else f"item {place}, {member}"
        super().__init__(f"{where}: {message}")
        self.place = place
        self.member = member
        self.code = code


class ImportRefused(RequestError):
    """A file that cannot be imported, or an invalid import job: nothing was done, and nothing is kept.

    Parameters: ``code`` for machines, such as ``"EMPTY_FILE"``.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class CommandError(SemelError):
    """A verdict other than Proceed or Replay, raised by the engine's shells."""

    def __init__(
        self, message: str, *, operation_id: str | None = None, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.operation_id = operation_id
        self.retry_after_seconds = retry_after_seconds


class KeyReusedError(CommandError):
    """The key belongs to another request of the same caller, whose operation is ``operation_id``.

    ``state`` names that operation's state, such as ``"SUCCEEDED"``. Until it has ended, query it before you use a
    new key: both may take effect.
    """

    def __init__(self, message: str, *, operation_id: str | None = None, state: str | None = None) -> None:
        super().__init__(message, operation_id=operation_id)
        self.state = state


class InProgressError(CommandError):
    """The command is still running. Keep the key and ask again."""


class OutcomeUnknownError(CommandError):
    """The outcome of the command is unknown. Keep the key and query the operation."""


class KeyExpiredError(CommandError):
    """The answer is no longer kept, only the fact that the key was used."""


class NotReplayableError(CommandError):
    """The command was done, but its answer was not kept."""


class ReferenceTakenError(CommandError):
    """Another caller's command has this business reference. Nothing was done for this one."""


class QuotaExceededError(CommandError):
    """The key is new, and its caller has used up a quota. Nothing was done.

    ``limit`` is ``"new_keys"``, ``"open_at_once"`` or ``"unknown_at_once"``.
    """

    def __init__(self, message: str, *, limit: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message, retry_after_seconds=retry_after_seconds)
        self.limit = limit


class RecordUnreadableError(CommandError):
    """The stored record cannot be read by this process. It is never run again."""


class StoreError(SemelError):
    """The store failed; the same call with the same key may be repeated."""


class StoreUnavailable(StoreError):
    """The store cannot be reached, is read-only, full or locked. The handler did not run."""


class StatementRefused(StoreUnavailable):
    """The store answered this statement with an error, and did nothing. Other statements may succeed."""


class StoreReadOnly(StoreUnavailable):
    """The server takes no writes (a standby, a replica). Nothing was written; retries of recorded commands still get
    answers.
    """


class HandlerRefused(StatementRefused):
    """The database did not commit the writes of an ATOMIC handler: nothing of them remains, and the key is unused.

    The handler broke a rule that is checked at the commit, or went on after a failed statement or its own rollback. The
    same will happen again until the handler is corrected; over HTTP this is its own 500.
    """


class StoreTimeout(StoreError):
    """The store did not answer in time. Whether the call took effect is not known yet."""


class NotReplicated(StoreTimeout):
    """The commit is done, but the standby did not confirm it: after a failover it may be gone. Not known yet."""


class SupersededError(SemelError):
    """The record was granted to, or settled by, another process; this holder's write was refused."""


class StepInDoubt(SemelError):
    """A step may have happened and may not be repeated. Its call was not made; the operation reads UNKNOWN."""


class EarlyCommit(SemelError):
    """The handler's transaction was committed before Semel settled the record in it."""


class JoinRefused(ConfigurationError):
    """The transaction cannot be joined: autocommit, a savepoint, or statements already run in it."""


class ResolveRefused(SemelError):
    """A settlement by an operator or a report was refused: too early, or the record has moved on.

    ``retry_after_seconds``: when the same settlement may be accepted; None: it contradicts the known outcome.
    """

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class NothingHappened(Exception):
    """Raise it from a handler to prove that no effect happened; the key is released.

    >>> raise NothingHappened("the provider refused the connection")
    Traceback (most recent call last):
        ...
    semel.errors.NothingHappened: the provider refused the connection
    """


class ItemFailed(Exception):
    """Raise it from a bulk's handler: this item failed, and nothing of it remains.

    Parameters: ``code`` for machines; ``retryable`` whether a new bulk may contain it again; ``target_id`` the object
    that it was about; ``written`` False if the handler had written nothing yet: the transaction's other items then need
    not be redone; ``detail`` the application's own bytes, kept with the outcome (at most 64 KiB).

    >>> raise ItemFailed("ACCOUNT_CLOSED", written=False)
    Traceback (most recent call last):
        ...
    semel.errors.ItemFailed: ACCOUNT_CLOSED
    """

    def __init__(
        self,
        code: str,
        *,
        retryable: bool = False,
        target_id: str | None = None,
        written: bool = True,
        detail: bytes | None = None,
    ) -> None:
        super().__init__(code)
        self.code = code
        self.retryable = retryable
        self.target_id = target_id
        self.written = written
        self.detail = detail
