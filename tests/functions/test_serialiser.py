"""What a function returns survives the store: the same value of the same type, or a refusal that names the part."""

from __future__ import annotations

import enum
import json
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    TypedDict,
    TypeVar,
)
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from semel.codec.annotations import Shapes
from semel.codec.plain import from_plain, to_plain
from semel.codec.results import keep_error, keep_result
from semel.codec.results import restore_result as give
from semel.codec.scalars import Mismatch, Unserialisable
from semel.codec.shapes import Codec
from semel.core.model import Answer
from semel.errors import ConfigurationError

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "r"
    BLUE = ("b", 2)


class Level(enum.IntEnum):
    LOW = 1


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    label: str = ""


class FormerlyPaid(NamedTuple):
    id: str


class Paid(NamedTuple):
    id: str
    tip: int = 0


class Options(TypedDict):
    name: str
    note: NotRequired[str]


@dataclass(frozen=True)
class Line:
    sku: str
    price: Decimal
    colour: Colour | None = None


@dataclass
class Order:
    id: UUID
    lines: list[Line]
    seen: set[date] = field(default_factory=set)
    total: Decimal = field(init=False, default=Decimal(0))


@dataclass(frozen=True, slots=True)
class Tree:
    name: str
    children: tuple[Tree, ...] = ()


@dataclass(frozen=True)
class Box(Generic[T]):
    content: T


@dataclass(frozen=True)
class Doubled:
    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", self.n * 2)


class Model(BaseModel):
    model_config = ConfigDict(strict=True)

    id: UUID
    at: datetime
    amount: Decimal = Field(alias="Amount")


class Event(BaseModel):
    at: datetime


class Forgetful(BaseModel):
    id: int
    secret: str = Field("", exclude=True)


class Struct(msgspec.Struct):
    id: UUID
    at: datetime
    raw: bytes
    by_number: dict[int, str]


Cents = NewType("Cents", int)

# --- everything that has a form comes back ---

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
FIXED = st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)
ZONES: st.SearchStrategy[tzinfo | None] = st.one_of(
    st.none(), FIXED, st.sampled_from(["Europe/Berlin", "America/New_York", "UTC"]).map(ZoneInfo)
)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    None: st.none(),
    bool: st.booleans(),
    int: st.integers(),
    float: st.floats(allow_nan=False),
    str: TEXTS,
    bytes: st.binary(max_size=20),
    Decimal: st.decimals(allow_nan=False),
    UUID: st.uuids(),
    datetime: st.datetimes(timezones=ZONES),
    date: st.dates(),
    time: st.times(timezones=st.one_of(st.none(), FIXED)),
    timedelta: st.timedeltas(),
}
PLAIN = st.recursive(
    st.one_of(*(SCALARS.values())),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(TEXTS.map(lambda text: f"${text}") | TEXTS, inner, max_size=4),
        st.dictionaries(st.integers() | st.uuids() | st.tuples(st.booleans(), TEXTS), inner, max_size=3),
        st.sets(st.integers() | TEXTS | st.decimals(allow_nan=False), max_size=4),
        st.frozensets(st.dates() | st.binary(max_size=4), max_size=4),
    ),
    max_leaves=12,
)
LINES = st.builds(Line, TEXTS, SCALARS[Decimal], st.none() | st.sampled_from(Colour))
TREES = st.recursive(
    st.builds(Tree, TEXTS), lambda inner: st.builds(Tree, TEXTS, st.lists(inner, max_size=3).map(tuple)), max_leaves=8
)
TYPED: list[tuple[Any, st.SearchStrategy[Any]]] = [
    *SCALARS.items(),
    (list[int], st.lists(st.integers())),
    (list, st.lists(PLAIN, max_size=3)),
    (set[UUID], st.sets(st.uuids(), max_size=4)),
    (frozenset[date], st.frozensets(st.dates(), max_size=4)),
    (tuple[int, str], st.tuples(st.integers(), TEXTS)),
    (tuple[()], st.just(())),
    (tuple[Decimal, ...], st.lists(SCALARS[Decimal], max_size=4).map(tuple)),
    (dict[str, Decimal], st.dictionaries(TEXTS, SCALARS[Decimal], max_size=4)),
    (dict[UUID, list[bytes]], st.dictionaries(st.uuids(), st.lists(st.binary(max_size=3), max_size=2), max_size=3)),
    (dict, st.dictionaries(TEXTS, PLAIN, max_size=3)),
    (int | None, st.none() | st.integers()),
    (int | str | None, st.none() | st.integers() | TEXTS),
    (list[int] | list[str], st.lists(st.integers(), min_size=1) | st.lists(TEXTS, min_size=1)),
    (Literal["a", 1, True, None], st.sampled_from(["a", 1, True, None])),
    (Annotated[Cents, "money"], st.integers()),
    (Colour, st.sampled_from(Colour)),
    (Level, st.sampled_from(Level)),
    (Rights, st.sampled_from([*Rights, Rights.READ | Rights.WRITE, Rights(0)])),
    (Point, st.builds(Point, st.integers(), TEXTS)),
    (Options, st.fixed_dictionaries({"name": TEXTS}, optional={"note": TEXTS})),
    (Line, LINES),
    (Order, st.builds(Order, st.uuids(), st.lists(LINES, max_size=3), st.sets(st.dates(), max_size=2))),
    (Tree, TREES),
    (Box[Decimal], st.builds(Box, SCALARS[Decimal])),
    (Box[list[Line]], st.builds(Box, st.lists(LINES, max_size=2))),
    (Line | Tree | int, LINES | TREES | st.integers()),
    (
        Model,
        st.builds(
            lambda id, at, amount: Model(id=id, at=at, Amount=amount),
            st.uuids(),
            st.datetimes(timezones=st.just(UTC)),
            st.decimals(allow_nan=False, allow_infinity=False, places=2),
        ),
    ),
    (
        Struct,
        st.builds(
            Struct,
            st.uuids(),
            st.datetimes(timezones=st.just(UTC)),
            st.binary(max_size=8),
            st.dictionaries(st.integers(0, 99), TEXTS, max_size=2),
        ),
    ),
    (Any, PLAIN),
    (object, PLAIN),
]


def same(left: Any, right: Any) -> bool:
    """Equal, and of equal types all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(
            same(a, b) and same(left[a], right[b]) for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, set | frozenset):
        return sorted(map(repr, left)) == sorted(map(repr, right))
    if isinstance(left, datetime | time):
        return (left.isoformat(), type(left.tzinfo)) == (right.isoformat(), type(right.tzinfo))
    if isinstance(left, BaseModel | msgspec.Struct):
        return bool(left == right)
    if is_dataclass(left):  # its set may have another order than an equal one
        return all(same(getattr(left, each.name), getattr(right, each.name)) for each in fields(left))
    return repr(left) == repr(right)  # of an instance the fields with their types; NaN equals nothing


def through(value: Any, annotation: Any, *codecs: Codec) -> Any:
    """A value as its first caller gets it; what a replay gets is compared with that."""
    shape = Shapes(codecs).of(annotation, "here")
    kept = keep_result(value, shape)
    replayed = give(kept.answer, shape, ())
    assert same(kept.value, replayed)
    return replayed


@pytest.mark.parametrize(("annotation", "values"), TYPED, ids=lambda each: str(each)[:30])
@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_stored_value_is_read_back_equal(
    annotation: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    value = data.draw(values)
    assert same(through(value, annotation), value)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(PLAIN)
def test_values_without_a_declared_type_are_read_back_equal(value: Any) -> None:
    form = json.loads(json.dumps(to_plain(value, "it")))
    assert same(from_plain(form), value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0])
@pytest.mark.parametrize("annotation", [float, Any])
def test_special_numbers_are_read_back(value: float, annotation: Any) -> None:
    assert repr(through(value, annotation)) == repr(value)
    assert repr(through(Decimal("sNaN123"), Decimal)) == "Decimal('sNaN123')"


def test_a_field_that_the_constructor_does_not_take_is_kept() -> None:
    order = Order(UUID(int=1), [])
    order.total = Decimal("9.90")
    assert through(order, Order) == order


def test_a_field_with_a_default_that_was_added_later_has_it_in_older_results() -> None:
    was, now = make_dataclass("Paid", [("id", str)]), make_dataclass("Paid", [("id", str), ("tip", int, 0)])
    former: list[Any] = [was, FormerlyPaid]
    for old, new in zip(former, (now, Paid), strict=True):
        kept = keep_result(old("p-1"), Shapes().of(old, "here"))
        assert give(kept.answer, Shapes().of(new, "here"), ()) == new("p-1", 0)


def test_both_readings_of_a_repeated_hour_stay_distinct() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    for fold in (0, 1):
        at = datetime(2026, 10, 25, 2, 30, tzinfo=berlin, fold=fold)
        again = through(at, datetime)
        assert (again.utcoffset(), again.tzinfo, again.fold) == (at.utcoffset(), berlin, fold)


class FixedOffset(tzinfo):
    """As dateutil's and pydantic's: one offset, whatever the date, and a class of its own."""

    def __init__(self, hours: int) -> None:
        self.offset = timedelta(hours=hours)

    def utcoffset(self, at: datetime | None, /) -> timedelta:
        return self.offset

    def dst(self, at: datetime | None, /) -> timedelta:
        return timedelta(0)

    def tzname(self, at: datetime | None, /) -> str:
        return "fixed"


def test_a_zone_of_one_offset_comes_back_as_a_timezone_whatever_its_class() -> None:
    at = datetime(2026, 7, 1, 12, tzinfo=FixedOffset(2))
    again = through(at, datetime)
    assert (again, again.utcoffset(), type(again.tzinfo)) == (at, timedelta(hours=2), timezone)
    assert same(through(time(12, tzinfo=FixedOffset(-3)), time), time(12, tzinfo=timezone(timedelta(hours=-3))))
    parsed = Event.model_validate_json('{"at": "2026-07-01T12:00:00+02:00"}').at
    assert same(through(parsed, datetime), again)


@pytest.mark.parametrize("microseconds", [1, -1, 999_999, -999_999, 1_500_000, -1_500_000])
def test_an_offset_of_less_than_a_second_is_read_back(microseconds: int) -> None:
    zone = timezone(timedelta(microseconds=microseconds))
    at = datetime(2026, 7, 1, 12, tzinfo=zone)
    assert through(at, datetime).utcoffset() == zone.utcoffset(None)
    assert through(time(12, tzinfo=zone), time).utcoffset() == zone.utcoffset(None)
    assert same(from_plain(to_plain(at, "it")), at)


def test_an_instant_survives_new_rules_of_its_zone() -> None:
    shape = Shapes().of(datetime, "here")
    at = shape.decode("2026-07-01T12:00:00+07:00[Europe/Berlin]")
    assert at == datetime(2026, 7, 1, 5, tzinfo=UTC)


def test_a_codec_writes_an_applications_class() -> None:
    codec = Codec(Fraction, encode=str, decode=Fraction)
    assert same(through([Fraction(1, 3)], list[Fraction], codec), [Fraction(1, 3)])


# --- values without a stored form are refused with their place ---


class Plain:
    pass


class Text(str):
    pass


class Odd(tzinfo):
    """Has another offset on another date, as pytz's zones."""

    def utcoffset(self, at: datetime | None, /) -> timedelta | None:
        return None if at is None else timedelta(hours=at.month)

    dst = utcoffset

    def tzname(self, at: datetime | None, /) -> str:
        return "Odd"


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
HUGE = 10**5000  # more digits than Python writes out
DEEP: Any = []
for _ in range(2000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("annotation", "value", "says"),
    [
        (int, True, "the result is a bool, declared as int; return exactly the annotated type"),
        (str, Text("x"), "Text, declared as str"),
        (int, Level.LOW, "Level, declared as int"),
        (list[int], [1, "2"], r"the result\[1\] is a str, declared as int"),
        (dict[str, int], OrderedDict(a=1), "collections.OrderedDict, declared as dict"),
        (Order, Order(UUID(int=1), [Line("a", 1.5)]), r"the result.lines\[0\].price is a float"),  # type: ignore[arg-type]
        (tuple[int, int], (1,), "tuple, declared as tuple"),
        (Options, {"note": "x"}, "lacks \\['name'\\]"),
        (Options, {"name": "x", "more": 1}, "has \\['more'\\] besides"),
        (Literal["a"], "b", "is none of Literal"),
        (int | Line, "x", "str, declared as int | "),
        (int | Line, Line("a", 1.5), "the result.price is a float"),  # type: ignore[arg-type]
        (Any, Plain(), "Plain, which has no safe form; use JSON values"),
        (Any, {"a": [Plain()]}, r"the result\['a'\]\[0\] is a "),
        (Any, Line("a", Decimal(1)), "declare its type in the return annotation"),
        (Any, CYCLE, "nested deeper than 100 levels"),
        (list, DEEP, "nested deeper than"),
        (str, "\ud800", "a lone surrogate"),
        (Any, "\ud83d\ude00", "a lone surrogate"),
        (list[int], [HUGE], "cannot be read back"),
        (Doubled, Doubled(1), "changes when it is read back; let its class take"),
        (Forgetful, Forgetful(id=1, secret="x"), "changes in model_dump"),
        (datetime, datetime(2026, 1, 1, tzinfo=Odd()), "time zone of type Odd, whose offset depends on the date; use"),
        (time, time(12, tzinfo=Odd()), "time zone of type Odd, whose offset depends on the date"),
        (Struct, Struct(UUID(int=1), datetime(2026, 1, 1), b"", {1: Plain()}), "is not encoded by msgspec"),  # type: ignore[dict-item]
    ],
    ids=lambda each: each[:20] if isinstance(each, str) else "",
)
def test_a_value_without_a_stored_form_is_refused(annotation: Any, value: Any, says: str) -> None:
    with pytest.raises(Unserialisable, match=says):
        keep_result(value, Shapes().of(annotation, "here"))


def raise_no(_: object) -> Any:
    raise RuntimeError("no")


@pytest.mark.parametrize(
    ("codec", "says"),
    [
        (Codec(Fraction, encode=raise_no, decode=Fraction), "refused by its codec"),
        (Codec(Fraction, encode=str, decode=raise_no), "the codec of fractions.Fraction refuses it"),
        (Codec(Fraction, encode=str, decode=str), "its codec decodes no fractions.Fraction"),
        (Codec(Fraction, encode=lambda value: value, decode=Fraction), "no safe form"),
    ],
)
def test_a_broken_codec_is_named(codec: Codec, says: str) -> None:
    with pytest.raises(Unserialisable, match=says):
        through(Fraction(1, 2), Fraction, codec)
    with pytest.raises(Unserialisable, match="declared as"):
        through(1, Fraction, codec)


@pytest.mark.parametrize(
    ("annotation", "says"),
    [
        (Plain, "here: .*Plain has no safe form, and nothing is ever pickled; declare JSON values"),
        (list[Plain], "no safe form"),
        (Box[Plain], "Box.content: .*Plain has no safe form"),
        (Callable[[], int], "no safe form"),
        (Literal[b"x"], "a Literal may hold"),
        ("Nowhere", "the type 'Nowhere' is not known"),
    ],
)
def test_an_annotation_without_a_form_is_refused_before_anything_runs(annotation: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Shapes().of(annotation, "here")


def test_a_field_of_an_unknown_type_is_refused() -> None:
    late: Any = dataclass(type("Late", (), {"__annotations__": {"x": "Nowhere"}, "__module__": __name__}))
    with pytest.raises(ConfigurationError, match="a field of a type that is not known"):
        Shapes().of(late, "here")


# --- what was stored otherwise is not guessed at ---


@pytest.mark.parametrize(
    ("annotation", "body"),
    [
        (int, b'"1"'),
        (int, b"1.0"),
        (int, b"{"),
        (bool, b"1"),
        (float, b'"1"'),
        (list[int], b'{"0":1}'),
        (set[Any], b"[[]]"),
        (tuple[int], b"[]"),
        (dict[str, int], b"[]"),
        (dict[int, int], b"[1]"),
        (dict[int, int], b"[[1]]"),
        (Decimal, b"1"),
        (Decimal, b'"x"'),
        (bytes, b'"#"'),
        (datetime, b'"2026-01-01T00:00:00+00:00[Nowhere/City]"'),
        (timedelta, b'"99999999999999999999999"'),
        (Colour, b'"GREEN"'),
        (Rights, b'"x"'),
        (Literal["a"], b'"b"'),
        (Line, b'{"sku":"a"}'),
        (Line, b'{"sku":"a","price":"1","colour":null,"more":1}'),
        (Point, b"[1]"),
        (Options, b'{"note":"x"}'),
        (int | str, b"1"),
        (int | str, b'{"bytes":"x"}'),
        (Model, b'{"id":1}'),
        (Struct, b'{"id":1}'),
        (Any, b'{"$pickle":"x"}'),
        (Any, b'{"$set":[[]]}'),
        (Any, b'{"$dict":[1]}'),
        (Any, b'{"$decimal":1}'),
    ],
)
def test_a_stored_form_of_another_type_is_a_mismatch(annotation: Any, body: bytes) -> None:
    with pytest.raises(Mismatch):
        give(Answer(None, (), body), Shapes().of(annotation, "here"), ())


# --- exceptions ---


class Declined(Exception):
    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.amount = Decimal("1.10")


class Stolen(Declined):
    pass


@pytest.mark.parametrize("kind", [Declined, Stolen])
def test_an_exception_is_restored_with_type_args_and_attributes(kind: type[Declined]) -> None:
    error = kind("stolen", "call us")
    error.add_note("a note")
    kept = keep_error(error, (Declined,))
    with pytest.raises(Declined) as caught:
        give(kept.answer, Shapes().of(int, "here"), (Declined,))
    again = caught.value
    assert (type(again), again.args, vars(again)) == (kind, error.args, vars(error))


def test_an_os_error_is_restored_completely() -> None:
    error = FileNotFoundError(2, "no such file", "a.txt")
    kept = keep_error(error, (OSError,))
    assert (kept.value.errno, kept.value.filename, str(kept.value)) == (2, "a.txt", str(error))


def test_only_declared_exceptions_are_ever_made() -> None:
    kept = keep_error(Stolen("x", "y"), (Declined,))
    with pytest.raises(Mismatch, match="Stolen is not declared in replays= any more"):
        give(kept.answer, Shapes().of(int, "here"), (KeyError,))
    forged = kept.answer._replace(body=b'{"type":"SystemExit","args":[],"attributes":{}}')
    with pytest.raises(Mismatch, match="not declared"):
        give(forged, Shapes().of(int, "here"), (Declined,))
    with pytest.raises(Mismatch, match="no exception"):
        give(kept.answer._replace(body=b"1"), Shapes().of(int, "here"), (Declined,))


def test_an_exception_that_cannot_be_stored_states_why() -> None:
    error = Declined("x", "y")
    error.response = Plain()  # type: ignore[attr-defined]
    with pytest.raises(Unserialisable, match=r"Declined\.response is a .*Plain"):
        keep_error(error, (Declined,))


class Slotted(Exception):
    __slots__ = ("code",)
    code: int


class Picky(Exception):
    def __new__(cls, *args: Any) -> Picky:
        if len(args) != 2:
            raise TypeError("two, please")
        return super().__new__(cls, *args)

    def __init__(self, *args: Any) -> None:
        super().__init__(args[0])


def make_slotted() -> Slotted:
    error = Slotted("x")
    error.code = 7
    return error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (make_slotted(), r"Slotted\.code is not in its args or its attributes; keep it in self.args"),
        (ImportError("x", name="thing"), r"ImportError\.\w+ is not in its args"),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), r"UnicodeDecodeError\.\w+ is not in its args"),
        (Picky(1, 2), r"cannot be read back \(Picky refused its args"),
        (Exception("a", Plain()), r"Exception\.args\[1\] is a .*Plain"),
    ],
)
def test_parts_that_an_exception_would_lose_are_named(error: Exception, says: str) -> None:
    with pytest.raises(Unserialisable, match=says):
        keep_error(error, (type(error),))


def test_two_declared_exceptions_of_one_name_are_not_confused() -> None:
    twin = type("Declined", (Exception,), {"__qualname__": "Declined"})
    with pytest.raises(Unserialisable, match="shares its name with another declared one; rename one"):
        keep_error(Declined("x", "y"), (Declined, twin))
