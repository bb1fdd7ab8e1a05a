"""Store URLs: a backend, or a UrlError that a person can read; nothing is opened, nothing else is raised."""

from __future__ import annotations

from pathlib import Path

from semel.errors import ConfigurationError, UrlError
from semel.stores.backend import Backend
from semel.stores.urls import connect_backend

TOKENS = (
    *(
        b"sqlite:///",
        b"sqlite://",
        b"memory://",
        b"sqlit:///",
        b"postgres://",
        b"x.db",
        b"/",
        b"?",
        b"&",
        b"=",
        b"#",
        b"%2F",
    ),
    *(
        b"synchronous=FULL",
        b"synchronous=normal",
        b"busy_seconds=5",
        b"busy_seconds=nan",
        b"busy_seconds=1e400",
        b"[",
        b"]",
    ),
    *(
        b"[::1]",
        b"~",
        b"~nobody-here/x",
        b":memory:",
        b"%00",
        b"\x00",
        b"%zz",
        b"user:s3cret@host",
        b":99999",
        b"..",
        b"\xff",
    ),
    *("²".encode(), "SQLİTE".encode(), "\u2100".encode(), b" ", b"\n", b"?a=1&a=2", b"file:", b"\\"),
)


def one(data: bytes) -> None:
    """Judge one URL."""
    url = data.decode("utf-8", "surrogateescape")
    backend = _connect(url)
    if isinstance(backend, str):
        if url.count("://") == 1 and "://user:s3cret@" in url:
            assert "s3cret" not in backend, "the message repeats a password"
        assert len(backend) <= 400 + 8 * len(url)
        return
    assert type(backend) is Backend
    assert backend.url == url
    # The standard library drops leading blanks and controls, and line breaks anywhere, as browsers do.
    assert "".join(url.split()).lower().strip("".join(map(chr, range(33)))).startswith(backend.name[:4])
    path = getattr(backend.driver, "path", None)
    if path is not None:
        assert "\0" not in path, "no file can have that name"
        assert Path(path).name


def _connect(url: str) -> Backend | str:
    try:
        return connect_backend(url)
    except UrlError as error:
        return str(error)
    except ConfigurationError as error:
        if "pip install" in str(error):  # a driver that is not installed says how to install it
            return str(error)
        raise
