"""A file that appears whole or not at all: written under a temporary name beside its place, then moved there."""

from __future__ import annotations

import argparse
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from semel.admin.failures import CommandFailed, UsageFailed
from semel.cli.arguments import Parser
from semel.cli.terminal import Output


def add_output(parser: Parser) -> None:
    """Declare where a command writes its text."""
    parser.add_argument("--output", metavar="FILE", help="write to this file, completely or not at all")
    parser.add_argument("--force", action="store_true", help="replace the file")


def check_output(options: argparse.Namespace) -> None:
    """Raise UsageFailed where ``--force`` comes without ``--output``."""
    if options.force and options.output is None:
        raise UsageFailed("--force replaces the file of --output; give --output FILE")


def write_output(options: argparse.Namespace, out: Output, about: dict[str, str], text: str) -> None:
    """Write a text to the file of ``--output``, or to stdout; with ``--json`` as a member beside ``about``."""
    if options.output is not None:
        with WholeFile(options.output, "--output", replace=options.force) as file:
            file.write(text)
            file.keep()
        out.document({**about, "file": options.output})
        out.say(f"written: {options.output}")
    elif out.machine:
        out.document({**about, "text": text})
    else:
        out.raw(text)
        out.flush()


class WholeFile:
    """Writes text to a file that :meth:`keep` puts in its place; without that call, no file remains.

    Parameters: ``path`` of the file; ``name`` of the argument that gave it, for messages; ``replace`` an existing
    file; ``remedy`` what to do where one exists. Only its owner may read it.

    Raises UsageFailed where the file cannot be made, CommandFailed where one exists that must not be replaced or
    where it cannot be written, such as on a full disk.
    """

    def __init__(self, path: str, name: str, *, replace: bool, remedy: str = "--force replaces it") -> None:
        self._remedy = remedy
        self._name = name
        self._replace = replace
        self._target = Path(os.path.realpath(path))  # replace the target of a link, not the link
        self._temporary: Path | None = None

    def __enter__(self) -> Self:
        self._refuse_what_is_there()
        try:
            handle, temporary = tempfile.mkstemp(prefix=f".{self._target.name}.", dir=self._target.parent)
        except OSError as error:
            raise UsageFailed(f"{self._name} {self._target}: {error.strerror}; does its folder exist?") from error
        self._temporary = Path(temporary)
        self._file = os.fdopen(handle, "w", encoding="utf-8", newline="")
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # closing writes the buffer, which fails again on a full disk
            self._file.close()
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)

    def write(self, text: str) -> None:
        """Add text. Lone surrogates, which cannot be encoded, are written as escapes."""
        with self._name_failure():
            self._file.write(text.encode("utf-8", "backslashreplace").decode("utf-8"))

    def keep(self) -> None:
        """Put the file in its place, once its bytes are on the disk."""
        assert self._temporary is not None
        with self._name_failure():
            self._file.flush()
            os.fsync(self._file.fileno())
        self._refuse_what_is_there()
        if not self._replace and self._link():
            self._keep_name()  # leaving the context removes the temporary name
            return
        os.replace(self._temporary, self._target)
        self._temporary = None
        self._keep_name()

    def _keep_name(self) -> None:
        """Make the file's name durable, where the system can flush a folder."""
        with suppress(PermissionError):  # Windows
            folder = os.open(self._target.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    @contextmanager
    def _name_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CommandFailed(
                f"{self._name} {self._target} cannot be written: {error.strerror}; no file was left"
            ) from error

    def _link(self) -> bool:
        """Give the file its name unless another file has it by now; False on file systems without hard links."""
        assert self._temporary is not None
        try:
            os.link(self._temporary, self._target)
        except FileExistsError:
            raise CommandFailed(self._in_the_way()) from None
        except OSError:
            return False
        return True

    def _in_the_way(self) -> str:
        return f"refused: {self._name} {self._target} exists already; {self._remedy}"

    def _refuse_what_is_there(self) -> None:
        try:
            mode = self._target.stat().st_mode
        except FileNotFoundError:
            return
        except OSError as error:
            raise UsageFailed(f"{self._name} {self._target}: {error.strerror}") from error
        if not stat.S_ISREG(mode):
            raise UsageFailed(f"{self._name} {self._target} is not a regular file; give another name, or - for stdout")
        if not self._replace:
            raise CommandFailed(self._in_the_way())
