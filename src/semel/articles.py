"""The English article before a type's name in an error message."""

from __future__ import annotations

import re
from typing import Final

# A vowel as it is pronounced: `UnionType` and `UUID` begin with a consonant, and `HttpResponse` with "aitch".
_AN: Final = re.compile(r"[aeio]|un(?!i)|http|html", re.IGNORECASE).match


def with_article(name: str) -> str:
    """A type's name with *a* or *an*, for an error message.

    Parameters: ``name`` the name as the message shows it, with or without its module.

    >>> [with_article(name) for name in ("int", "list", "uuid.UUID", "asyncpg.Connection", "HttpResponse")]
    ['an int', 'a list', 'a uuid.UUID', 'an asyncpg.Connection', 'an HttpResponse']
    """
    return f"{'an' if _AN(name) else 'a'} {name}"


def name_type(value: object, *, with_module: bool = False) -> str:
    """The type of a value with its article, for an error message.

    Parameters: ``value`` any value, which the message does not show; ``with_module`` also names the type's module.

    >>> name_type(7), name_type("7"), name_type(object(), with_module=True)
    ('an int', 'a str', 'a builtins.object')
    """
    kind = type(value)
    return with_article(f"{kind.__module__}.{kind.__qualname__}" if with_module else kind.__name__)
