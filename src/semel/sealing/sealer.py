"""Encrypt stored requests and answers with AES-256-GCM, bound to their record.

A key ring is rotated by putting the new key first. Unlike a database's own encryption, it hides the
content from readers of the table and of its backups.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from semel.errors import ConfigurationError, RecordUnreadableError
from semel.extras import install_command
from semel.sealing.rules import MARK

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
NAME_BYTES_MAX: Final = 64
_NONCE_BYTES: Final = 12  # GCM's own size; random nonces are safe for 2**32 requests under one key


class Sealer:
    """Seals and opens under a ring of keys.

    Parameters: ``keys`` of 32 bytes each, by a name of 1 to 64 bytes that is written beside the sealed data; the first
    one seals, all of them open; ``opens_plain`` accepts requests that were kept before there was a sealer: leave it
    True only until the last of them has ended, because a writer of the table could replace them by others.

    Raises ConfigurationError: no keys, a name or key of another size, or the library is missing.

    >>> old, new = bytes(32), bytes(range(32))
    >>> sealed = Sealer({"2025": old}).seal(b"ten euros", b"record")
    >>> Sealer({"2026": new, "2025": old}).open(sealed, b"record")
    b'ten euros'
    """

    def __init__(self, keys: Mapping[str, bytes], *, opens_plain: bool = False) -> None:
        if not isinstance(keys, Mapping) or not keys:
            raise ConfigurationError(
                "a Sealer needs its keys by their names: Sealer({'2026-01': key}), the newest first"
            )
        self._opens_plain = opens_plain
        self._keys = {_name(name): _cipher(name, key) for name, key in keys.items()}
        self._first = next(iter(self._keys))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, opens_plain: bool = False) -> Self:
        """Read a ring from a file: a line ``NAME BASE64`` for each key, the newest first; ``#`` begins a comment.

        ``semel`` reads the file that ``SEMEL_SEAL_KEYS_FILE`` names. A key is made by ``openssl rand -base64 32``.

        Raises ConfigurationError, naming the line.
        """
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise ConfigurationError(f"the file of sealing keys cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigurationError("the file of sealing keys is not text; see Sealer.from_file") from None
        keys: dict[str, bytes] = {}
        for number, line in enumerate(lines, 1):
            parts = line.partition("#")[0].split()
            if not parts:
                continue
            if len(parts) != 2 or parts[0] in keys:
                raise ConfigurationError(
                    f"line {number} of the file of sealing keys must be NAME BASE64, each name once"
                )
            try:
                keys[parts[0]] = base64.b64decode(parts[1], validate=True)
            except ValueError:
                raise ConfigurationError(f"line {number} of the file of sealing keys has no base64") from None
        return cls(keys, opens_plain=opens_plain)

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the ring's keys; the first one seals."""
        return tuple(name.decode() for name in self._keys)

    def __repr__(self) -> str:
        return f"Sealer({', '.join(name.decode() for name in self._keys)})"

    def seal(self, text: bytes, about: bytes) -> bytes:
        """Seal ``text`` so that it opens for ``about`` alone, such as its record's id."""
        name, nonce = self._first, os.urandom(_NONCE_BYTES)
        head = MARK + bytes([len(name)]) + name
        return head + nonce + self._keys[name].encrypt(nonce, text, head + about)

    def open(self, kept: bytes, about: bytes) -> bytes:
        """Decrypt text that was sealed for ``about``.

        Raises ConfigurationError if its key is not in the ring, or it was never sealed; RecordUnreadableError if it was
        changed, or is another record's.
        """
        from cryptography.exceptions import InvalidTag

        if not kept.startswith(MARK):
            if self._opens_plain:
                return kept
            raise ConfigurationError(
                "a kept request is not sealed: let it continue with Sealer(..., opens_plain=True) if it is older than "
                "the sealer; otherwise find out who wrote it"
            )
        size = kept[len(MARK)] if len(kept) > len(MARK) else 0
        end = len(MARK) + 1 + size
        head, name = kept[:end], kept[len(MARK) + 1 : end]
        cipher = self._keys.get(name)
        if cipher is None:
            raise ConfigurationError(
                f"the stored data were sealed under the key {name.decode(errors='replace')!r}, which is not in the "
                "ring of this process; add it after the others"
            )
        try:
            return cipher.decrypt(kept[end : end + _NONCE_BYTES], kept[end + _NONCE_BYTES :], head + about)
        except (InvalidTag, ValueError):
            raise RecordUnreadableError(
                "the stored data cannot be decrypted: they were changed since they were sealed, belong to another "
                "record, or their key's name refers to a different key here; the command does not run"
            ) from None


def _name(name: object) -> bytes:
    raw = name.encode() if isinstance(name, str) else b""
    if not 1 <= len(raw) <= NAME_BYTES_MAX:
        raise ConfigurationError(f"the name of a sealer's key must be a text of 1 to {NAME_BYTES_MAX} bytes: {name!r}")
    return raw


def _cipher(name: str, key: object) -> AESGCM:
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        said = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
        raise ConfigurationError(
            f"the sealer's key {name!r} must be {KEY_BYTES} random bytes, such as secrets.token_bytes({KEY_BYTES}); it "
            f"is {said}"
        )
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise ConfigurationError(f"a Sealer needs the library cryptography: {install_command('sealing')}") from error
    return AESGCM(key)
