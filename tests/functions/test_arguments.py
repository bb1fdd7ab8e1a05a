"""Which command a call is: its key, its caller, and what of its arguments tells it from another."""

from __future__ import annotations

import enum
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, make_dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel, create_model

from semel import Permit
from semel.errors import (
    ConfigurationError,
    HandlerRefused,
    InvalidKey,
    KeyReusedError,
    MissingKey,
    RecordUnreadableError,
    RequestError,
)
from semel.functions import Caller, Codec, single_caller, this_permit
from semel.functions.arguments import key_maker
from semel.functions.fingerprints import Fingerprints
from semel.keys import KeyFormat
from semel.policy import Policy
from tests.engine.drivers import sqlite
from tests.functions.stage import Mode, Stage, set_stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with set_stage("sync", "memory", tmp_path) as made:
        yield made


class Colour(enum.Enum):
    RED = 1


class Word(str, enum.Enum):  # noqa: UP042 - whose str() is its name, not its text
    YES = "yes"


@dataclass
class Order:
    id: Any
    customer: Any = "c-1"
    tenant: Any = "acme"


class Pair(NamedTuple):
    left: int
    right: int


class Model(BaseModel):
    id: int


class Odd:
    def __init__(self, n: int) -> None:
        self.n = n


# --- keys ---


@pytest.mark.parametrize(
    ("path", "order", "key"),
    [
        ("order", "A-1", "A-1"),
        ("order.id", Order("A-1"), "A-1"),
        ("order.id", {"id": "A-1"}, "A-1"),
        ("order.0.id", [{"id": 7}], "7"),
        ("order.1", ("a", "b"), "b"),
        ("order.id.left", Order(Pair(3, 4)), "3"),
        ("order.id", Order(UUID(int=1)), "00000000-0000-0000-0000-000000000001"),
        ("order.id", Order(date(2026, 1, 2)), "2026-01-02"),
        ("order.id", Order(Word.YES), "yes"),
        (("order.id", "order.customer"), Order("A", "b:c"), "1:A,3:b:c,"),
        (lambda order: order["id"] + 1, {"id": 1}, "2"),
    ],
)
def test_where_a_key_comes_from(stage: Stage, path: Any, order: Any, key: str) -> None:
    counted: dict[str, Any] = {} if not isinstance(order, Order) else {"include": ("order.tenant",)}
    seen = stage.command(lambda order: "done", key=path, **counted)
    call = seen.once._declared.begin((order,), {}, None)
    assert call.command.key == key


PARTS = st.tuples(*[st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5).filter(str.strip)] * 2)


@settings(derandomize=True)
@given(PARTS, PARTS)
def test_several_parts_of_a_key_are_distinguished(one: tuple[str, str], other: tuple[str, str]) -> None:
    make = key_maker(("order.0", "order.1"), ("order",))
    assert make is not None
    assert (make({"order": one}, (), {}) == make({"order": other}, (), {})) == (one == other)
    assert make({"order": ("ab", "c")}, (), {}) != make({"order": ("a", "bc")}, (), {})


@pytest.mark.parametrize(
    ("key", "order", "error", "says"),
    [
        ("order.id", None, MissingKey, r"no key: 'order.id' is not there \(order is None\); every call needs one"),
        ("order.id", {}, MissingKey, r"\(order has no member 'id'\)"),
        ("order.id.x", Order(1), MissingKey, r"\(order.id, an int, has no attribute 'x'\)"),
        ("order.2", [1], MissingKey, r"\(order has no item 2\)"),
        ("order.id", {"id": None}, MissingKey, "no key: 'order.id' is None"),
        ("order.id", {"id": ""}, MissingKey, "no key: 'order.id' is empty"),
        ("order.id", {"id": " "}, MissingKey, "no key: 'order.id' is empty"),
        (
            "order.id",
            {"id": 1.5},
            InvalidKey,
            "'order.id' is a float, no key; let the path lead to a text, a whole number",
        ),
        ("order.id", {"id": True}, InvalidKey, "'order.id' is a bool, no key"),
        ("order.id", {"id": "x" * 256}, InvalidKey, "has 256 characters, at most 255 are taken; give a digest of it"),
        ("order.id", {"id": "\ud800"}, InvalidKey, "not valid Unicode"),
        (lambda order: None, 1, MissingKey, "the key function returned no key"),
        (lambda order: 1.5, 1, InvalidKey, "the key function returned a float; return a text"),
    ],
)
def test_an_invalid_key_is_refused(stage: Stage, key: Any, order: Any, error: type[Exception], says: str) -> None:
    ran: list[int] = []
    with pytest.raises(error, match=says):
        stage.command(lambda order: ran.append(1), key=key)(order)
    assert ran == []


def test_a_key_may_be_given_by_each_call(stage: Stage) -> None:
    ran: list[int] = []

    def send(number: int) -> int:
        ran.append(number)
        return number

    once = stage.command(send)
    with pytest.raises(MissingKey, match=r"send needs a key for each call: .*send.with_key\(key\)\(...\); or declare"):
        once(1)
    assert [once.with_key("a")(1), once.with_key("a")(1), once.with_key("b")(1)] == [1, 1, 1]
    assert ran == [1, 1]
    for key, error in (("", MissingKey), (None, MissingKey), (7, InvalidKey), ("x" * 256, InvalidKey)):
        with pytest.raises(error, match="with_key: the key"):
            once.with_key(key)


def test_a_key_has_the_declared_format(stage: Stage) -> None:
    once = stage.command(lambda order: 1, key="order", key_format=KeyFormat(length_min=8))
    with pytest.raises(InvalidKey, match="at least 8 characters"):
        once("short")


def test_a_call_without_a_key_runs_unprotected_where_that_is_declared(stage: Stage) -> None:
    ran: list[object] = []
    policy = Policy(key="optional")
    once = stage.command(lambda order, permit=None: ran.append(order), key="order.id", policy=policy)
    for _ in range(2):
        once({"id": None})
        once({"id": "A"})
    assert ran == [{"id": None}, {"id": "A"}, {"id": None}]
    with pytest.raises(MissingKey, match="a call without a key has no record"):
        once.record({})


# --- callers ---


@pytest.mark.parametrize(
    ("caller", "tenant", "id"),
    [
        (single_caller, "single", "single"),
        (Caller("acme", "billing"), "acme", "billing"),
        ("order.customer", "single", "c-1"),
        (("order.tenant", "order.customer"), "acme", "c-1"),
        (lambda order: Caller("acme", order.customer), "acme", "c-1"),
    ],
)
def test_callers_of_a_function(stage: Stage, caller: Any, tenant: str, id: str) -> None:
    once = stage.command(lambda order: 1, key="order.id", caller=caller)
    once(Order("A"))
    assert (once.record(Order("A")).tenant, once.record(Order("A")).caller) == (tenant, id)


@pytest.mark.parametrize(
    ("caller", "order", "says"),
    [
        (
            "order.customer",
            Order(1, None),
            "caller='order.customer' is None; nothing runs for an unknown caller",
        ),
        (
            "order.nobody",
            Order(1),
            r"caller='order.nobody' is not there \(order, an Order, has no attribute 'nobody'\)",
        ),
        (("order.tenant", "order.customer"), Order(1, ""), "caller='order.customer' is ''"),
        ("order.customer", Order(1, 1.5), "caller='order.customer' is a float; let it lead to a text"),
        (lambda order: "alice", Order(1), r"caller= returned a str; it must return a Caller\(tenant, id\)"),
    ],
)
def test_an_unknown_caller_is_refused(stage: Stage, caller: Any, order: Any, says: str) -> None:
    ran: list[int] = []
    with pytest.raises((ConfigurationError, RequestError), match=says):
        stage.command(lambda order: ran.append(1), key="order.id", caller=caller)(order)
    assert ran == []


def test_two_callers_never_share_a_command(stage: Stage) -> None:
    once = stage.command(lambda order: str(order.customer), key="order.id", caller="order.customer")
    assert [once(Order("A", "alice")), once(Order("A", "bob"))] == ["alice", "bob"]


def test_the_caller_may_be_an_argument(stage: Stage) -> None:
    once = stage.command(lambda order, who: 1, key="order", caller="who", exclude=("who",))
    once("A", Caller("acme", "bob"))
    assert (once.record("A", Caller("acme", "bob")).tenant) == "acme"


# --- fingerprints ---


def test_every_way_to_write_a_call_is_one_command(stage: Stage) -> None:
    ran: list[Any] = []

    def pay(order: str, amount: Decimal = Decimal(1), *tags: str, currency: str = "EUR", **more: int) -> int:
        ran.append(order)
        return len(ran)

    once = stage.command(pay, key="order")
    assert {
        once("A"),
        once(order="A"),
        once("A", Decimal(1)),
        once(currency="EUR", amount=Decimal(1), order="A"),
    } == {1}
    assert once("B", Decimal(1), "x", a=1, b=2) == once("B", Decimal(1), "x", b=2, a=1)
    for args, kwargs in (
        (("A", Decimal(2)), {}),
        (("A", Decimal("1.0")), {}),
        (("A", 1), {}),
        (("A", Decimal(1), "x"), {}),
        (("A",), {"currency": "USD"}),
        (("A",), {"extra": 1}),
    ):
        with pytest.raises(KeyReusedError):
            once(*args, **kwargs)
    with pytest.raises(TypeError, match="missing a required argument: 'order'"):
        once()
    with pytest.raises(TypeError, match="too many"):
        stage.command(lambda order: 1, "narrow", key="order")(1, 2)


VALUES: list[Any] = [
    *(None, True, False, 1, 0, -1, 1.0, 1.5, "", "1", "None", b"", b"1", bytearray(b"1"), [], [1], [[1]], [1, [1]], {}),
    *(
        {"a": 1},
        {"a": 2},
        {"b": 1},
        {1: 1},
        {"1": 1},
        set(),
        {1},
        {1, 2},
        {"1"},
        Decimal(1),
        Decimal("1.0"),
        UUID(int=1),
    ),
    *(date(2026, 1, 1), datetime(2026, 1, 1), Colour.RED, Order(1), Order(2), Pair(1, 2), Pair(2, 1), Model(id=1)),
    *(Model(id=2), ["ab", "c"], ["a", "bc"], [{"a": 1}, {}], [{}, {"a": 1}], Word.YES, "yes", 10**5000, "\ud800"),
]


def test_different_arguments_have_different_fingerprints() -> None:
    maker = Fingerprints(("x",))
    found = [maker.parts({"x": value})["x"] for value in VALUES]
    assert len(set(found)) == len(VALUES)


def test_equal_values_have_one_fingerprint() -> None:
    def of(value: Any) -> bytes:
        return Fingerprints(("x",)).parts({"x": value})["x"]

    assert of({"a": 1, "b": 2}) == of({"b": 2, "a": 1})
    assert of([1, 2]) == of((1, 2))
    assert of({3, 1, 2}) == of(frozenset({2, 3, 1}))
    assert of(Order(1)) == of(Order(1))


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (
            Odd(1),
            r"the argument order is a .*Odd, which has no canonical form, so that .*exclude=\('order',\)",
        ),
        ({"a": [Odd(1)]}, r"the argument order.a\[0\] is a .*Odd"),
        ([Order(Odd(1))], r"the argument order\[0\].id is a .*exclude=\('order',\)"),
        (Order, "the argument order is a type"),
        ({Odd(1)}, "an item of order is a .*Odd"),
        (CYCLE, "nested deeper than 100 levels"),
    ],
)
def test_an_argument_without_a_stored_form_is_refused_by_name(stage: Stage, value: Any, says: str) -> None:
    ran: list[int] = []
    with pytest.raises(ConfigurationError, match=says):
        stage.command(lambda order: ran.append(1), key=lambda order: "k")(value)
    assert ran == []


def test_a_codec_gives_an_argument_a_form(stage: Stage) -> None:
    codec = Codec(Odd, encode=lambda odd: odd.n, decode=Odd)
    once = stage.command(lambda odd: 1, key="odd.n", codecs=(codec,))
    assert once(Odd(1)) == once(Odd(1))


def test_an_excluded_argument_does_not_count(stage: Stage) -> None:
    once = stage.command(lambda order, trace: order, key="order", exclude=("trace",))
    assert once("A", Odd(1)) == once("A", Odd(2)) == "A"


@pytest.mark.parametrize(("fails", "state"), [(False, "SUCCEEDED"), (True, "UNKNOWN")])
def test_a_reused_key_names_the_operation_that_has_it(stage: Stage, fails: bool, state: str) -> None:
    def pay(order: str, amount: int) -> int:
        if fails:
            raise TimeoutError
        return amount

    once = stage.command(pay, "told", key="order")
    once.attempt("A", 1)
    with pytest.raises(KeyReusedError, match=state) as refused:
        once("A", 2)
    record = once.record("A", 1)
    assert (refused.value.state, refused.value.operation_id) == (state, str(UUID(bytes=record.operation_id)))
    assert ("query that operation" in str(refused.value)) is fails


def test_only_what_is_included_counts(stage: Stage) -> None:
    once = stage.command(lambda order, n: order["id"], "included", key="order.id", include=("order.id", "order.amount"))
    assert once({"id": "A", "amount": 1, "trace": Odd(1)}, 1) == once({"id": "A", "amount": 1}, 2)
    with pytest.raises(KeyReusedError):
        once({"id": "A", "amount": None}, 1)
    assert once({"id": "B"}, 1) == "B"
    with pytest.raises(KeyReusedError):
        once({"id": "B", "amount": None}, 1)


def test_too_large_arguments_are_refused(stage: Stage) -> None:
    with pytest.raises(RequestError, match=r"larger than 100 bytes \(body_bytes_max\); leave the large ones out"):
        stage.command(lambda order: 1, key=lambda order: "k", body_bytes_max=100)("x" * 100)


# --- a function that has grown ---


def test_a_parameter_with_a_default_may_be_added_later(stage: Stage) -> None:
    old = stage.command(lambda order, amount: "first", "grown", key="order")
    assert [old("A", 1), old("B", 1)] == ["first", "first"]

    def declare(function: Any) -> Any:
        function.__qualname__ = old.once.__wrapped__.__qualname__  # the same function, deployed anew
        return stage.command(function, "grown", key="order")

    new = declare(lambda order, amount, note="", tags=(): "second")
    assert new("A", 1) == new("A", 1, note="") == "first"
    with pytest.raises(KeyReusedError):
        new("A", 2)
    with pytest.raises(RecordUnreadableError, match="recipe"):
        new("A", 1, note="x")
    assert new("C", 1, "x") == "second"
    with pytest.raises(RecordUnreadableError):
        declare(lambda order, amount, note: "third")("B", 1, "")


def dataclass_of(fields: dict[str, Any]) -> Any:
    return make_dataclass("Wish", [(name, Any, default) for name, default in fields.items()])


def tuple_of(fields: dict[str, Any]) -> Any:
    return namedtuple("Wish", fields, defaults=fields.values())


def model_of(fields: dict[str, Any]) -> Any:
    settings: Any = {name: (int | str, Field(default, alias=f"{name}_")) for name, default in fields.items()}
    return create_model("Wish", __config__=ConfigDict(populate_by_name=True), **settings)


def struct_of(fields: dict[str, Any]) -> Any:
    return msgspec.defstruct("Wish", [(name, int | str, default) for name, default in fields.items()], rename="pascal")


@pytest.mark.parametrize("made", [dataclass_of, tuple_of, model_of, struct_of])
@pytest.mark.parametrize("include", [None, ("order", "wishes.0")])
def test_a_class_of_an_argument_may_get_further_fields_with_defaults(stage: Stage, made: Any, include: Any) -> None:
    Old, New = made({"amount": 0}), made({"amount": 0, "note": "", "tip": 0})

    def pay(order: str, wishes: Any) -> str:
        return "paid"

    settings = {} if include is None else {"include": include}
    old = stage.command(pay, "grown", key="order", **settings)
    assert old("A", [Old(amount=1)]) == "paid"
    runs: list[str] = []

    def pay_anew(order: str, wishes: Any) -> str:
        runs.append(order)
        return "paid anew"

    pay_anew.__qualname__ = pay.__qualname__  # the same function, deployed anew
    new = stage.command(pay_anew, "grown", key="order", **settings)
    assert new("A", [New(amount=1)]) == new("A", [New(amount=1, note="", tip=0)]) == "paid"
    for other in (New(amount=2), New(amount=1, note="x"), New(amount=1, tip=5)):
        with pytest.raises(KeyReusedError):
            new("A", [other])
    assert new("B", [New(amount=1, note="x")]) == new("B", [New(amount=1, note="x")]) == "paid anew"
    with pytest.raises(KeyReusedError):  # its record was made with the field
        new("B", [New(amount=1)])
    assert runs == ["B"]


def test_a_field_with_a_value_counts_wherever_its_instance_is_nested(stage: Stage) -> None:
    class Box:
        def __init__(self, holds: Any) -> None:
            self.holds = holds

    Old, New = tuple_of({"amount": 0}), tuple_of({"amount": 0, "note": ""})
    boxed = Codec(Box, encode=lambda box: [box.holds], decode=lambda form: Box(form[0]))

    def pay(order: str, wishes: Any, plain: Any) -> str:
        return "paid"

    for number, place in enumerate((lambda wish: {wish: 1}, lambda wish: {1: wish}, lambda wish: {wish}, Box)):
        once = stage.command(pay, f"grown_{number}", key="order", codecs=[boxed])
        assert once("A", place(Old(1)), Old(1)) == once("A", place(New(1)), New(1)) == "paid"
        with pytest.raises(KeyReusedError):
            once("A", place(New(1, "another wish")), New(1))


class Tags(RootModel[list[str]]):
    root: list[str] = []


class Unseen(BaseModel):
    amount: int
    note: Annotated[str, Field(exclude=True)] = ""


def make_struct(**options: Any) -> Any:
    return msgspec.defstruct("Listed", [("amount", int), ("note", str, "")], **options)


@pytest.mark.parametrize(
    ("make", "first", "other"),
    [
        (Tags, ["x"], []),
        (lambda amount: Unseen(amount=amount), 1, 2),
        (make_struct(array_like=True), 1, 2),
        (make_struct(omit_defaults=True), 1, 2),
        (make_struct(array_like=True, omit_defaults=True), 1, 2),
    ],
)
def test_another_call_is_refused_where_a_field_at_its_default_is_not_in_the_form(
    stage: Stage, make: Any, first: Any, other: Any
) -> None:
    def pay(order: str, wish: Any) -> str:
        return "paid"

    once = stage.command(pay, key="order")
    assert once("A", make(first)) == once("A", make(first)) == "paid"
    with pytest.raises(KeyReusedError):
        once("A", make(other))


def test_a_row_whose_class_has_no_fields_is_compared_as_it_is(stage: Stage) -> None:
    class Row(tuple[Any, ...]):  # as SQLAlchemy's: its names are the instance's
        @property
        def _fields(self) -> tuple[str, ...]:
            return ("amount", "note")

    def pay(order: str, wish: Any) -> str:
        return "paid"

    once = stage.command(pay, key="order")
    assert once("A", Row((1, ""))) == once("A", Row((1, ""))) == "paid"
    with pytest.raises(KeyReusedError):
        once("A", Row((2, "")))


def test_a_further_field_without_a_default_makes_another_command(stage: Stage) -> None:
    def pay(order: str, wish: Any) -> str:
        return "paid"

    once = stage.command(pay, key="order")
    assert once("A", make_dataclass("Wish", ["amount"])(1)) == "paid"
    with pytest.raises(KeyReusedError):
        once("A", make_dataclass("Wish", ["amount", "note"])(1, ""))


def test_fingerprints_are_keyed_where_the_engine_has_a_secret(tmp_path: Path) -> None:
    prints = []
    for secret in (None, b"0123456789abcdef"):
        with set_stage("sync", "memory", tmp_path, id_secret=secret) as made:
            once = made.command(lambda order: 1, key="order")
            once("A")
            prints.append(once.record("A").fingerprint)
    assert prints[0] != prints[1]


@pytest.mark.parametrize("counts", [{}, {"include": ("order", "options.gift")}], ids=["all", "included"])
def test_a_default_counts_as_it_was_declared(stage: Stage, counts: dict[str, Any]) -> None:
    """Also where the function changes it: else each of its calls would be refused the second time."""

    def pay(order: str, options: dict[str, Any] = {"gift": [0]}) -> int:  # noqa: B006 - as people write it
        options["gift"][0] += 1
        return int(options["gift"][0])

    once = stage.command(pay, key="order", **counts)
    assert [once("A"), once("A"), once("B"), once("A")] == [1, 1, 2, 1]
    assert once("A", {"gift": [0]}) == 1  # the same wish, written out
    with pytest.raises(KeyReusedError):
        once("A", {"gift": [2]})


def test_a_default_that_is_passed_counts_as_it_is(stage: Stage) -> None:
    """Its caller has changed it, and wants something else: the former answer would not be to this wish."""
    options = {"gift": False}

    def pay(order: str, options: dict[str, bool] = options) -> bool:
        return options["gift"]

    once = stage.command(pay, key="order")
    assert [once("A"), once("A", options)] == [False, False]
    options["gift"] = True
    assert once("A") is False
    with pytest.raises(KeyReusedError):
        once("A", options)
    assert once("B", options=options) is True


def test_a_parameter_with_a_default_that_changes_may_be_new(stage: Stage) -> None:
    def former(order: str) -> str:
        return "paid"

    def pay(order: str, seen: list[str] = []) -> str:  # noqa: B006 - as people write it
        seen.append(order)
        return "paid"

    assert stage.command(former, key="order")("A") == "paid"
    pay.__qualname__, pay.__module__ = former.__qualname__, former.__module__
    once = stage.command(pay, key="order")
    assert [once("B"), once("A"), once("B")] == ["paid"] * 3
    assert pay.__defaults__ == (["B"],)


class Conflict(Exception):
    """The database rolled the transaction back because of another one."""


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_function_that_has_changed_its_argument_is_not_run_again(mode: Mode, tmp_path: Path) -> None:
    """After a deadlock Semel runs an ATOMIC function again: with what the first run left over, it would do less."""
    place = replace(sqlite(tmp_path / "semel.db"), conflicts=lambda error: isinstance(error, Conflict))
    stage = Stage(mode, place).open()
    ran: list[Any] = []

    def pay(order: str, items: list[int], permit: Permit = this_permit, pops: bool = True) -> str:
        ran.append(list(items))
        while pops and items:
            items.pop()
        if len(ran) in (1, 3):
            raise Conflict
        return "paid"

    once = stage.command(pay, key="order", effects="atomic")
    try:
        with pytest.raises(HandlerRefused, match="has changed its argument 'items'"):
            once("A", [1, 2])
        assert once("A", [1, 2]) == "paid"
        assert once("B", [3], pops=False) == "paid"
        assert ran == [[1, 2], [1, 2], [3], [3]]
    finally:
        stage.close()


@pytest.mark.parametrize("is_new", [False, True])
def test_a_default_that_cannot_be_encoded_yet_does_not_prevent_the_declaration(stage: Stage, is_new: bool) -> None:
    """As where its codec asks what is opened after the import: each call asked it, and still does."""
    rates: dict[Fraction, int] = {}
    codec = Codec(Fraction, encode=rates.__getitem__, decode=Fraction)

    def former(order: str) -> str:
        return "paid"

    def pay(order: str, rate: Fraction = Fraction(1, 2)) -> str:
        return "paid"

    if is_new:
        assert stage.command(former, key="order")("A") == "paid"
        pay.__qualname__, pay.__module__ = former.__qualname__, former.__module__
    once = stage.command(pay, key="order", codecs=[codec])
    with pytest.raises(KeyError):
        once("A")
    rates[Fraction(1, 2)] = 7
    assert [once("A"), once("A", Fraction(1, 2))] == ["paid", "paid"]
