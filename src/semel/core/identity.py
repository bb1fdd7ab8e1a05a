"""Names that are digests: a record's id, a key's hash, the keys derived for downstream calls.

Every part is framed by its length, so that different scopes or names never collide. Random bits
and times are arguments: nothing here reads a clock or a source of randomness.
"""

from __future__ import annotations

import hashlib
import hmac
from functools import lru_cache
from struct import Struct

from semel.core.model import Scope

ID_BYTES = 16
KEY_HASH_BYTES = 8
_ID, _KEY_HASH = slice(ID_BYTES), slice(KEY_HASH_BYTES)
_sha256 = hashlib.sha256
_SCOPES_MAX = 1024
UUID_PARTS = Struct("8s4s4s4s12s").unpack  # of its digits, which dashes join
_UUID_FORM = "%08x-%04x-%04x-%04x-%04x%08x"
_uuid_numbers = Struct(">IHHHHI").unpack
_UUID7 = 0x7 << 76 | 0x2 << 62  # version and variant
_UUID7_RANDOM = (1 << 76) - 1 ^ 0x3 << 62


def frame(*parts: str | bytes) -> bytes:
    """Frame each part by its length (netstrings): ``("ab", "c")`` and ``("a", "bc")`` differ.

    >>> frame("ab", b"c")
    b'2:ab,1:c,'
    """
    raw = [part.encode() if isinstance(part, str) else part for part in parts]
    return b"".join([b"%d:%b," % (len(part), part) for part in raw])


def record_id(scope: Scope, key: str, secret: bytes | None = None) -> bytes:
    """Return the record's id: 16 bytes of SHA-256 (HMAC under the id secret, if there is one) over scope and key."""
    framed = f"{_scope_text(*scope)}{len(key)}:{key}".encode()
    if secret is None:
        return _sha256(framed).digest()[_ID]
    return hmac.digest(secret, framed, "sha256")[:ID_BYTES]


@lru_cache(maxsize=_SCOPES_MAX, typed=True)  # an enumeration's member equals its text, but may print differently
def _scope_text(tenant: str, caller: str, operation: str) -> str:
    """The encoded scope, shared by all its keys and cached per caller."""
    return f"semel.record.1:{len(tenant)}:{tenant},{len(caller)}:{caller},{len(operation)}:{operation},"


def key_hash(key: str, secret: bytes | None = None) -> bytes:
    """Return 8 bytes that show operators only whether two records have the same key."""
    framed = b"semel.key.1" + key.encode()
    digest = _sha256(framed).digest() if secret is None else hmac.digest(secret, framed, "sha256")
    return digest[_KEY_HASH]


def name_id(secret: bytes | None, *parts: str | bytes) -> bytes:
    """Return the id of something with several names: 16 bytes of SHA-256, or HMAC under the id secret, over them all.

    >>> name_id(None, b"semel.quota.1", "acme", "alice") == name_id(None, b"semel.quota.1", "acmea", "lice")
    False
    """
    framed = frame(*parts)
    return _sha256(framed).digest()[_ID] if secret is None else hmac.digest(secret, framed, "sha256")[_ID]


def secret_check(secret: bytes | None) -> bytes:
    """Return the check value of the id secret in ``semel_meta``, to refuse a different secret."""
    return b"none" if secret is None else hmac.digest(secret, b"semel.id-secret.check", "sha256")[:16]


def derive_key(record: bytes, generation: int, name: str, ordinal: int = 0) -> str:
    """Derive a key for a downstream call: stable over retries, takeovers and a lost claim.

    It depends on the record's id and generation alone, never on a random operation id.

    >>> derive_key(bytes(16), 0, "charge") == derive_key(bytes(16), 0, "charge")
    True
    >>> derive_key(bytes(16), 0, "charge") == derive_key(bytes(16), 1, "charge")
    False
    """
    return uuid_text(name_id(None, b"semel.derived.1", record, str(generation), name, str(ordinal)))


def uuid7_bytes(now_ms: int, random: bytes) -> bytes:
    """Make a UUIDv7 (RFC 9562 §5.7) from a Unix time in milliseconds and 10 random bytes."""
    bits = int.from_bytes(random[:10], "big") & _UUID7_RANDOM
    return ((now_ms & 0xFFFFFFFFFFFF) << 80 | _UUID7 | bits).to_bytes(16, "big")


def uuid_text(raw: bytes) -> str:
    """A UUID's usual text.

    >>> uuid_text(bytes(16))
    '00000000-0000-0000-0000-000000000000'
    """
    if len(raw) == 16:
        return _UUID_FORM % _uuid_numbers(raw)
    h = raw.hex()  # a damaged record's id is shown as it is
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def uuid_bytes(text: str) -> bytes | None:
    """Return the 16 bytes of a UUID's text, or None if it is no UUID."""
    plain = text.replace("-", "")
    if len(plain) != 32 or not plain.isascii():
        return None
    try:
        return bytes.fromhex(plain)
    except ValueError:
        return None
