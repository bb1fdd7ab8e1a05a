"""The service's settings, read once from the environment into a frozen value.

The command line reads the store's settings here too, so that both always use the same store.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from semel.errors import ConfigurationError

if TYPE_CHECKING:
    from semel.sealing.sealer import Sealer

URL_DEFAULT: Final = "sqlite:///semel.db"
HOST_DEFAULT: Final = "127.0.0.1"
PORT_DEFAULT: Final = 8080
WORKERS_MAX: Final = 64
_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("", "0", "false", "no", "off")
DEMO_LEASE_SECONDS: Final = 5.0  # short enough to watch a crash


class SettingsError(ConfigurationError):
    """An invalid environment variable; the message names it and a valid value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of the reference service.

    Variables: ``HOST`` and ``PORT`` to listen on (port 0: any free one); ``SEMEL_URL`` of the store;
    ``SEMEL_METRICS`` as ``[HOST:]PORT`` where Prometheus is answered (nowhere by default; the host is 127.0.0.1);
    ``SEMEL_DEMO=1`` accepts ``"simulate"`` in bodies and shortens the lease to 5 s; ``SEMEL_WORKERS``
    processes; ``SEMEL_ID_SECRET_FILE`` a file whose bytes are the id secret, where the store has one.
    The operators' commands read ``SEMEL_SEAL_KEYS_FILE`` as well, the ring of sealing keys.
    """

    host: str = HOST_DEFAULT
    port: int = PORT_DEFAULT
    url: str = URL_DEFAULT
    demo: bool = False
    workers: int = 1
    id_secret: bytes | None = None
    metrics: tuple[str, int] | None = None

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read the settings of an environment. Raises SettingsError.

        >>> Settings.read({"PORT": "9000"}).port
        9000
        >>> Settings.read({"PORT": "http"})
        Traceback (most recent call last):
            ...
        semel.reference.settings.SettingsError: PORT must be a whole number from 0 to 65535; it is 'http'
        """
        return cls(
            host=environment.get("HOST") or HOST_DEFAULT,
            port=_number(environment, "PORT", PORT_DEFAULT, 0, 65535),
            url=store_url(environment),
            demo=_switch(environment, "SEMEL_DEMO"),
            workers=_number(environment, "SEMEL_WORKERS", 1, 1, WORKERS_MAX),
            id_secret=id_secret(environment),
            metrics=_address(environment, "SEMEL_METRICS"),
        )


def store_url(environment: Mapping[str, str] = os.environ) -> str:
    """Return the store that ``SEMEL_URL`` names, or the file in the current folder."""
    return environment.get("SEMEL_URL") or URL_DEFAULT


def id_secret(environment: Mapping[str, str] = os.environ) -> bytes | None:
    """Read the file that ``SEMEL_ID_SECRET_FILE`` names. Raises SettingsError."""
    path = environment.get("SEMEL_ID_SECRET_FILE")
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SettingsError(f"SEMEL_ID_SECRET_FILE names a file that cannot be read: {error.strerror}") from error


def seal_keys(environment: Mapping[str, str] = os.environ) -> Sealer | None:
    """Return the sealer of the key ring in the file that ``SEMEL_SEAL_KEYS_FILE`` names. Raises SettingsError."""
    path = environment.get("SEMEL_SEAL_KEYS_FILE")
    if not path:
        return None
    from semel.sealing.sealer import Sealer  # only sealing needs this library

    try:
        return Sealer.from_file(path, opens_plain=True)
    except ConfigurationError as error:
        raise SettingsError(f"SEMEL_SEAL_KEYS_FILE: {error}") from error


def _number(environment: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = environment.get(name)
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or not low <= int(text[:12]) <= high:
        raise SettingsError(f"{name} must be a whole number from {low} to {high}; it is {text!r}")
    return int(text)


def _address(environment: Mapping[str, str], name: str) -> tuple[str, int] | None:
    text = environment.get(name)
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port[:12]) > 65535:
        raise SettingsError(f"{name} must be a port, or HOST:PORT, such as 9464; it is {text!r}")
    return host.removeprefix("[").removesuffix("]") or HOST_DEFAULT, int(port)


def _switch(environment: Mapping[str, str], name: str) -> bool:
    text = environment.get(name, "").lower()
    if text not in (*_TRUE, *_FALSE):
        raise SettingsError(f"{name} must be 1 or 0; it is {text!r}")
    return text in _TRUE
