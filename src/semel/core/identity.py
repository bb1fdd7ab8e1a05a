"""Names that are digests: a record's id, a key's hash, the keys derived for downstream calls.

Every part is framed by its length, so that no two different scopes or names ever meet. Random bits
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
UUID_FORM = "%08x-%04x-%04x-%04x-%04x%08x"  # of its parts
UUID_PARTS = Struct(">IHHHHI").unpack
_UUID7 = 0x7 << 76 | 0x2 << 62  # version and variant
_UUID7_RANDOM = (1 << 76) - 1 ^ 0x3 << 62


def frame(*parts: str | bytes) -> bytes:
    """Parts framed by their length (netstrings): ``("ab", "c")`` and ``("a", "bc")`` differ.

    >>> frame("ab", b"c")
    b'2:ab,1:c,'
    """
    raw = [part.encode() if isinstance(part, str) else part for part in parts]
    return b"".join([b"%d:%b," % (len(part), part) for part in raw])


def record_id(scope: Scope, key: str, secret: bytes | None = None) -> bytes:
    """The record's id: 16 bytes of SHA-256 (HMAC under the id secret, if there is one) over scope and key."""
    framed = f"{_scope_text(*scope)}{len(key)}:{key}".encode()
    if secret is None:
        return _sha256(framed).digest()[_ID]
    return hmac.digest(secret, framed, "sha256")[:ID_BYTES]


@lru_cache(maxsize=_SCOPES_MAX, typed=True)  # an enumeration's text is equal to another, and may be written otherwise
def _scope_text(tenant: str, caller: str, operation: str) -> str:
    """The encoded scope, shared by all its keys and cached per caller."""
    return f"semel.record.1:{len(tenant)}:{tenant},{len(caller)}:{caller},{len(operation)}:{operation},"


def key_hash(key: str, secret: bytes | None = None) -> bytes:
    """8 bytes that let an operator see that two records carry the same key, and nothing more."""
    framed = b"semel.key.1" + key.encode()
    digest = _sha256(framed).digest() if secret is None else hmac.digest(secret, framed, "sha256")
    return digest[_KEY_HASH]


def reference_id(
    tenant: str, operation: str, business_ref: str, secret: bytes | None = None, *, caller: str | None = None
) -> bytes:
    """The name of a business reference within its tenant and operation: 16 bytes, whatever its length.

    Parameters: ``caller`` where the reference is the caller's own (``reference_scope="caller"``).

    >>> reference_id("acme", "pay", "inv-1") == reference_id("acme", "pay", "inv-1")
    True
    >>> reference_id("acme", "pay", "inv-1") == reference_id("acme", "refund", "inv-1")
    False
    >>> reference_id("acme", "pay", "inv-1", caller="alice") == reference_id("acme", "pay", "inv-1", caller="bob")
    False
    """
    framed = frame(b"semel.reference.1", tenant, operation, business_ref)
    if caller is not None:
        framed = frame(b"semel.reference.caller.1", tenant, caller, operation, business_ref)
    digest = hashlib.sha256(framed).digest() if secret is None else hmac.digest(secret, framed, "sha256")
    return digest[:ID_BYTES]


def quota_id(tenant: str, caller: str, operation: str | None, secret: bytes | None = None) -> bytes:
    """The id of a caller's quota: 16 bytes. ``operation`` if the quota belongs to one operation.

    >>> quota_id("acme", "alice", None) == quota_id("acme", "alice", "pay")
    False
    """
    framed = frame(b"semel.quota.1", tenant, caller, *(() if operation is None else (operation,)))
    digest = hashlib.sha256(framed).digest() if secret is None else hmac.digest(secret, framed, "sha256")
    return digest[:ID_BYTES]


def secret_check(secret: bytes | None) -> bytes:
    """The check value of the id secret in ``semel_meta``, to refuse a different secret."""
    return b"none" if secret is None else hmac.digest(secret, b"semel.id-secret.check", "sha256")[:16]


def derive_key(record: bytes, generation: int, name: str, ordinal: int = 0) -> str:
    """A key for a downstream call: stable over retries, takeovers and a lost claim.

    It depends on the record's id and generation alone, never on a random operation id.

    >>> derive_key(bytes(16), 0, "charge") == derive_key(bytes(16), 0, "charge")
    True
    >>> derive_key(bytes(16), 0, "charge") == derive_key(bytes(16), 1, "charge")
    False
    """
    framed = frame(b"semel.derived.1", record, str(generation), name, str(ordinal))
    digest = hashlib.sha256(framed).hexdigest()[:32]
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}"


def uuid7_bytes(now_ms: int, random: bytes) -> bytes:
    """A UUIDv7 (RFC 9562 §5.7) from a Unix time in milliseconds and 10 random bytes."""
    bits = int.from_bytes(random[:10], "big") & _UUID7_RANDOM
    return ((now_ms & 0xFFFFFFFFFFFF) << 80 | _UUID7 | bits).to_bytes(16, "big")


def made_at(text: str) -> int | None:
    """The time in a UUIDv7, in microseconds; None where the text is none.

    >>> made_at("01890a5d-ac96-774b-bcce-b302099a8057"), made_at("a name")
    (1688122305686000, None)
    """
    digits = str(text).replace("-", "")  # of a damaged row, anything
    if len(digits) != 32 or digits[12] != "7" or not all(digit in "0123456789abcdef" for digit in digits):
        return None
    return int(digits[:12], 16) * 1000


def uuid_text(raw: bytes) -> str:
    """A UUID's usual text.

    >>> uuid_text(bytes(16))
    '00000000-0000-0000-0000-000000000000'
    """
    if len(raw) == 16:
        return UUID_FORM % UUID_PARTS(raw)
    h = raw.hex()  # of a damaged record, which is shown as it is
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def uuid_bytes(text: str) -> bytes | None:
    """The 16 bytes of a UUID's text, or None where it is no UUID."""
    plain = text.replace("-", "")
    if len(plain) != 32 or not plain.isascii():
        return None
    try:
        return bytes.fromhex(plain)
    except ValueError:
        return None
