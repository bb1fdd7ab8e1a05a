"""What is sealed is told apart from what is not by how it begins; who seals is a driver's matter."""

from __future__ import annotations

from typing import Final, Protocol

from semel.errors import ConfigurationError, PolicyError

MARK: Final = b"\x00semel sealed 1\x00"


class Seals(Protocol):
    """What an engine needs of a sealer. ``about``: what the text belongs to, such as a record's id."""

    def seal(self, text: bytes, about: bytes) -> bytes: ...

    def open(self, kept: bytes, about: bytes) -> bytes: ...


def checked(sealer: Seals | None) -> Seals | None:
    """An engine's sealer. Raises ConfigurationError where it is none, before it would meet the first request."""
    if sealer is None or all(callable(getattr(sealer, name, None)) for name in ("seal", "open")):
        return sealer
    raise ConfigurationError(
        f"sealer must be a Sealer, such as sealer=Sealer({{'2026-01': key}}); it is of type {type(sealer).__name__}"
    )


def sealed(request: bytes, about: bytes, sealer: Seals | None) -> bytes:
    """A request as it is kept. Raises PolicyError for one that would be taken for a sealed one."""
    if sealer is not None:
        return sealer.seal(request, about)
    if request.startswith(MARK):
        raise PolicyError(f"a command's request must not begin with {MARK!r}, which marks sealed ones")
    return request


def opened(kept: bytes, about: bytes, sealer: Seals | None) -> bytes:
    """The request that was kept.

    Raises ConfigurationError where it was sealed and there is no sealer, and what the sealer raises.
    """
    if sealer is not None:
        return sealer.open(kept, about)
    if kept.startswith(MARK):
        raise ConfigurationError(
            "a kept request is sealed: give the engine its sealer, Engine.connect(..., sealer=...)"
        )
    return kept
