"""A request as Semel's own endpoints read it, for all frameworks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

from semel.errors import InvalidBody
from semel.http.spelling import without_slashes

CUT: Final = "The body is cut short; send it again."


def path_of(scope: Mapping[str, Any]) -> str:
    """Return the path within the application."""
    root = scope.get("app_root_path", scope.get("root_path", ""))
    return without_slashes(scope["path"].removeprefix(root))


def mount_of(scope: Mapping[str, Any]) -> str:
    """Return the application's mount point, without the prefix of a server or a proxy if that is known.

    >>> mount_of({"root_path": "/api/eu", "app_root_path": "/api"}), mount_of({"root_path": "/api"})
    ('/eu', '/api')
    """
    root: str = scope.get("root_path", "")
    return root.removeprefix(scope.get("app_root_path", "")) if root else ""


class AsgiRequest(NamedTuple):
    """The parts of a request that a list or an upload needs.

    ``own`` is the framework's own request, which the application's functions get; ``asked`` what the surface's
    ``caller`` function reads; ``headers`` have lower-case names; ``params`` are those of the path; ``query`` is raw;
    ``pieces`` yields the body, and raises InvalidBody if the client disconnects in the middle.
    """

    own: Any
    asked: Mapping[str, Any]
    headers: Iterable[tuple[bytes, bytes]]
    params: Mapping[str, Any]
    query: bytes
    pieces: Callable[[], AsyncIterator[bytes]]

    @property
    def fields(self) -> dict[str, str]:
        """Return the query's fields; the last one of each name."""
        return dict(parse_qsl(self.query.decode("latin-1"), keep_blank_values=True))

    def header(self, name: str) -> str | None:
        """Return the first header of a name, in any case; None if there is none."""
        wanted = name.lower().encode("latin-1")
        return next((value.decode("latin-1") for each, value in self.headers if each == wanted), None)


async def pieces_until(stream: AsyncIterator[bytes], gone: type[Exception]) -> AsyncIterator[bytes]:
    """Yield a framework's stream, and raise InvalidBody in place of its own exception for a disconnect."""
    try:
        async for piece in stream:
            yield piece
    except gone:
        raise InvalidBody(CUT) from None
