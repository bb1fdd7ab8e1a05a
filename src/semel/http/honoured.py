"""The headers on every answer after a claim: how long the key is honoured, and the link to its status.

Prepared once for each operation; no store is asked for it.
"""

from __future__ import annotations

from struct import error as StructError
from typing import Final

from semel.core.identity import UUID_FORM, UUID_PARTS
from semel.http.problems import OPERATION_RELATION

Headers = tuple[tuple[bytes, bytes], ...]
_ID: Final = "{id}"


class Honoured:
    """The two headers of one operation.

    Parameters: ``name`` of the header with the lifetime (None: not sent); ``lifetime_seconds`` for which a retry gets
    the first answer, at least, counted from the first request; ``operations_path`` where the status of operations is
    served, with ``{id}`` (None: nowhere).

    >>> Honoured("Idempotency-Key-Lifetime", 86_400, "/operations/{id}").headers(bytes(16))
    ... # doctest: +NORMALIZE_WHITESPACE
    ((b'idempotency-key-lifetime', b'86400'),
     (b'link', b'</operations/00000000-0000-0000-0000-000000000000>; rel="status"'))
    """

    __slots__ = ("_link", "lifetime")

    def __init__(
        self, name: str | None = None, lifetime_seconds: float = 0.0, operations_path: str | None = None
    ) -> None:
        self.lifetime: Headers = () if name is None else ((name.lower().encode(), b"%d" % int(lifetime_seconds)),)
        self._link = b""  # a form for the parts of an operation's id
        if operations_path is not None:
            target = operations_path.replace("%", "%%").replace(_ID, UUID_FORM, 1)
            self._link = f'<{target}>; rel="{OPERATION_RELATION}"'.encode()

    def headers(self, operation_id: bytes) -> Headers:
        """The headers of an answer about this operation."""
        if not self._link:
            return self.lifetime
        try:
            return (*self.lifetime, (b"link", self._link % UUID_PARTS(operation_id)))
        except StructError:  # of a damaged record: no status is found by what is not an id
            return self.lifetime
