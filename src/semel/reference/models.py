"""The reference service's requests and responses: strict models that refuse unknown members."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from semel.reference.simulation import Simulation, check_allowed

AMOUNT_MAX: Final = Decimal("1000000000")


def _no_switch(value: Any) -> Any:
    if isinstance(value, bool):  # Python takes True for 1
        raise ValueError("must be a decimal number, as a number or a string")
    return value


Amount = Annotated[Decimal, BeforeValidator(_no_switch), Field(gt=0, le=AMOUNT_MAX, max_digits=14, decimal_places=4)]
Name = Annotated[str, Field(min_length=1, max_length=100)]


class Strict(BaseModel):
    """A model with members in camelCase. It refuses unknown ones, because a mistyped member would have no effect."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True)


class Simulated(Strict):
    """A body that may ask for trouble, where the service runs with SEMEL_DEMO=1."""

    simulate: Annotated[Simulation | None, BeforeValidator(check_allowed)] = None


class PaymentIn(Simulated):
    """A payment to be made."""

    customer_id: Name
    amount: Amount
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$", examples=["EUR"])]


class PaymentOut(Strict):
    """A payment that was made."""

    payment_id: str
    status: str


class PaymentListed(PaymentOut):
    """A payment as the provider's ledger has it. ``provider_key`` is the derived key it was charged under."""

    customer_id: str
    amount: str
    currency: str
    provider_key: str


class OrderIn(Simulated):
    """An order to be placed."""

    sku: Name
    quantity: Annotated[int, Field(strict=True, ge=1, le=1_000_000)]


class ImportedOrder(Strict):
    """A row of a supplier's file: the cells of a CSV file are texts."""

    sku: Name
    quantity: Annotated[int, Field(ge=1, le=1_000_000)]


class OrderOut(Strict):
    """An order that was placed."""

    order_id: str
    sku: str
    quantity: int
    status: str = "placed"


class NoteIn(Simulated):
    """A note to be written."""

    text: Annotated[str, Field(min_length=1, max_length=10_000)]


class NoteOut(Strict):
    """A note that was written."""

    note_id: str
    text: str


class RefusedRequest(BaseModel):
    """A request that the application refuses before it reads a key."""

    detail: str


class Health(BaseModel):
    """Whether the store answers, and what to do if it does not."""

    status: str
