"""A store's password is in no representation, no shown URL and no message, however it was misspelt."""

from __future__ import annotations

import pytest

from semel.errors import UrlError
from semel.stores.backend import hide_password
from semel.stores.urls import connect_backend

URLS = (
    "postgresql://app:geheim@127.0.0.1:1/shop",
    "postgresql+asyncpg://app:geheim@127.0.0.1:1/shop",
    "postgresql:///shop?host=127.0.0.1&port=1&password=geheim",
    "mysql://app:geheim@127.0.0.1:1/shop",
    "redis://app:geheim@127.0.0.1:1/0",
    "redis+cluster://:geheim@127.0.0.1:1",
)


@pytest.mark.parametrize("url", URLS)
def test_no_repr_contains_the_password(url: str) -> None:
    backend = connect_backend(url)
    assert "geheim" not in repr(backend) + repr(backend.driver) + repr(backend.driver.server)
    assert "geheim" not in hide_password(url)


@pytest.mark.parametrize("password", ["ge@heim", "ge@@heim", "ge%zzheim", "geheim%", "ge/@heim"])
@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+asyncpg"])
def test_an_unencoded_password_is_reported_and_not_quoted(scheme: str, password: str) -> None:
    url = f"{scheme}://app:{password}@127.0.0.1:1/shop"
    with pytest.raises(UrlError) as told:
        connect_backend(url)
    assert "heim" not in str(told.value)
    assert "heim" not in hide_password(url)
