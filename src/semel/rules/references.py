"""What the business calls a command: which texts may be a reference."""

from __future__ import annotations

from typing import Final

from semel.errors import PolicyError

REFERENCE_LENGTH_MAX: Final = 255


def is_reference(text: object) -> bool:
    """Whether a value may be a business reference: 1 to 255 printable characters.

    >>> is_reference("INV-2026/117"), is_reference(""), is_reference("a\\nb"), is_reference(7)
    (True, False, False, False)
    """
    return isinstance(text, str) and 0 < len(text) <= REFERENCE_LENGTH_MAX and text.isprintable()


def check_reference(text: object) -> None:
    """Raise PolicyError where a value is no business reference, naming what is one."""
    if not is_reference(text):
        told = ascii(text[:40]) if isinstance(text, str) else type(text).__name__
        raise PolicyError(
            f"a command's business_ref must be 1 to {REFERENCE_LENGTH_MAX} printable characters, such as an invoice's "
            f"number; it is {told}"
        )
