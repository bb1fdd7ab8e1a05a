"""Error messages, and a look behind errors, shared by all drivers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from semel.errors import StoreTimeout, StoreUnavailable

WENT_ON: Final = (
    "the handler's transaction had failed, or was rolled back, before its end, and the handler went on: nothing of it "
    "remains, and the key is free; let the handler raise a statement's error, or make such a statement in a savepoint"
)
SAVEPOINT_OPEN: Final = (
    "a savepoint that was opened inside this block is still open: rolling back to it would undo what the record calls "
    "done; end it before the block ends. Roll back now, do not commit"
)
BROKEN_RULE: Final = (
    "what the handler wrote breaks this rule of the database: nothing of it remains, and the key is free; correct the "
    "handler, or refuse such a request before it writes"
)


def with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes: SQLAlchemy keeps a driver's error as ``orig``, Django as the cause."""
    seen: set[int] = set()
    behind: BaseException | None = error
    while behind is not None and id(behind) not in seen:  # an error may be raised from itself
        seen.add(id(behind))
        yield behind
        behind = getattr(behind, "orig", None) or behind.__cause__


def still_unknown(error: StoreUnavailable, before: str = "the connection was lost") -> StoreTimeout:
    """Make the error for a statement whose answer was lost and whose retry failed. ``before``: the first error.

    "Unavailable" would mean that nothing was written, and a claim that was written after all would not be released.
    """
    return StoreTimeout(f"{before}, and then: {error}: whether it took effect is not known yet")


def or_still_unknown(error: BaseException, said: bool) -> BaseException:
    """Make the error for a refused statement: if it was sent before (``said``), only the retry was refused."""
    return still_unknown(error) if said and isinstance(error, StoreUnavailable) else error
