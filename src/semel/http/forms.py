"""The key of a plain form: the value of a hidden field, for an operation with ``key_from="form:_key"``."""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

_BYTES: Final = 16


def form_key(*intent: str) -> str:
    """Return the value of a form's hidden key field: made together with the form, and sent with every submission.

    Without arguments the key is random: each rendered form is one intent. With arguments it is derived from them,
    so that the same intent has the same key each time its form is rendered, such as the checkout of one cart after a
    reload. Such a key is as guessable as its parts, and means something only for its own caller.

    Parameters: ``intent`` texts that name the intent and nothing else, such as ``"checkout"`` and the cart's id.

    Returns 32 hexadecimal digits.

    >>> form_key("checkout", "cart-42")
    '3060546092effd7b91ea4ab7d464a3aa'
    >>> form_key() == form_key()
    False
    """
    if not intent:
        return secrets.token_hex(_BYTES)
    for part in intent:
        if not isinstance(part, str) or not part:
            raise ValueError(f"form_key takes texts that name the intent, such as a cart's id; it was given {part!r}")
    framed = "".join(f"{len(part)}:{part}" for part in intent)
    return hashlib.sha256(b"semel form key\0" + framed.encode()).digest()[:_BYTES].hex()
