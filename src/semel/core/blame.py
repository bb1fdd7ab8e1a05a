"""Whose fault it is that a handler raised: that of the one item or message it was given, or of all there will be.

One rule for every handler that is called many times: bulks, inboxes and the consumers of brokers.
"""

from __future__ import annotations

from semel.errors import ConfigurationError, HandlerError, PolicyError


def is_wrong_for_all(error: BaseException) -> bool:
    """Whether every item and every message would fail so, until the developer changes something.

    A PolicyError need not: an event that cannot be, or a text that is too long, is made of what one item holds. What no
    handler may do whatever it is given says so itself, as a HandlerError.

    >>> is_wrong_for_all(ConfigurationError("this store has no transactions"))
    True
    >>> is_wrong_for_all(PolicyError("topic must be a text")), is_wrong_for_all(HandlerError("it may not roll back"))
    (False, True)
    """
    if isinstance(error, PolicyError):
        return isinstance(error, HandlerError)
    return isinstance(error, ConfigurationError)
