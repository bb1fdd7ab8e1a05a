"""What a type checker makes of commands: parameters and results stay as declared. The checker runs over this file."""

from __future__ import annotations

from decimal import Decimal
from typing import assert_type

import pytest

from semel import AsyncEngine, Engine, Permit
from semel.core.model import Record
from semel.errors import ConfigurationError
from semel.functions import AsyncOnce, Once, command, single_caller, this_permit

ENGINE = Engine.connect("memory://")
LOOP = AsyncEngine.connect("memory://")


@command(ENGINE, "charge", key="order", caller=single_caller)
def charge(order: int, amount: Decimal = Decimal(1), *, permit: Permit = this_permit) -> Decimal:
    return amount


@command(lambda: LOOP, "charge", key="order", caller=single_caller)
async def charge_later(order: int, amount: Decimal) -> list[Decimal]:
    return [amount]


class Service:
    @command(ENGINE, "pay", key="order", caller=single_caller)
    def pay(self, order: int) -> str:
        return str(order)

    @command(LOOP, "pay", key="order", caller=single_caller)
    async def pay_later(self, order: int) -> str:
        return str(order)


def check_types(service: Service) -> None:
    """Never called: it is read by the type checker."""
    assert_type(charge(1), Decimal)
    assert_type(charge(order=1, amount=Decimal(2)), Decimal)
    assert_type(charge.with_key("k")(1), Decimal)
    assert_type(charge.record(1), Record | None)
    assert_type(charge.unprotected(1), Decimal)
    taken: Once[[int], str] = service.pay
    assert_type(taken(1), str)
    assert_type(service.pay(1), str)
    assert_type(service.pay.with_key("k")(order=1), str)
    assert_type(Service.pay(service, 1), str)
    taken_later: AsyncOnce[[int], str] = service.pay_later
    assert_type(taken_later.operation, str)
    charge("1")  # type: ignore[arg-type]
    charge()  # type: ignore[call-arg]
    service.pay("1")  # type: ignore[arg-type]
    command(ENGINE, "nobody", key="order")  # type: ignore[call-overload]


async def checked_later() -> None:
    """Likewise."""
    assert_type(await charge_later(1, Decimal(1)), list[Decimal])
    assert_type(await charge_later.with_key("k").record(1, Decimal(1)), Record | None)


def test_an_async_engine_takes_no_plain_function() -> None:
    declare = command(LOOP, "plain", key="order", caller=single_caller)
    with pytest.raises(ConfigurationError, match="needs an Engine"):

        @declare  # type: ignore[arg-type]
        def plain(order: int) -> int:
            return order
