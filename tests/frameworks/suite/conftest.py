"""Each case of the suite for each adapter that can do it, at each of its doors; one process for an adapter's shop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.frameworks.suite.adapters import ADAPTERS, Adapter, Feature
from tests.frameworks.suite.door import Door, Shop, open_shop

DOORS = ("client", "server")


def features_of(function: object) -> tuple[Feature, ...]:
    """The features that a case shows."""
    found = getattr(function, "shows", ())
    assert found, f"{function} does not say which feature it shows"
    return tuple(found)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "shop" not in metafunc.fixturenames:
        return
    features = features_of(metafunc.function)
    adapters = [each for each in ADAPTERS if not any(feature in each.cannot for feature in features)]
    metafunc.parametrize("shop", adapters, ids=str, indirect=True, scope="module")
    if "door" in metafunc.fixturenames:
        metafunc.parametrize("door", DOORS, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One adapter after another: pytest would group the cases by the place of an adapter among those of a case."""
    places = [at for at, item in enumerate(items) if isinstance(_adapter_of(item), Adapter)]
    ordered = sorted((items[at] for at in places), key=lambda item: ADAPTERS.index(_adapter_of(item)))
    for at, item in zip(places, ordered, strict=True):
        items[at] = item


def _adapter_of(item: pytest.Item) -> Any:
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return params.get("shop")


@pytest.fixture(scope="module")
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    adapter: Adapter = request.param
    with open_shop(adapter, tmp_path_factory.mktemp(str(adapter))) as shop:
        yield shop


@pytest.fixture
def door(request: pytest.FixtureRequest, shop: Shop) -> Door:
    return shop.door(request.param)
