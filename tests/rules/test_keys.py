"""The key's grammar, formats and weaknesses, line by line."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.errors import InvalidKey, KeyTooOld, MissingKey, PolicyError
from semel.keys import KeyFormat, parse_key, weakness
from semel.policy import Policy

UUID = "8e03978e-40d5-43dd-bc93-6894a57f9324"
VISIBLE = "".join(chr(code) for code in range(0x21, 0x7F))
PLAIN = settings(derandomize=True, deadline=None, max_examples=300)

ACCEPTED: list[tuple[bytes, str]] = [
    (UUID.encode(), UUID),
    (b'"' + UUID.encode() + b'"', UUID),
    (b" \t" + UUID.encode() + b"\t ", UUID),
    (b'  "abc" ', "abc"),
    (b"a", "a"),
    (b"a" * 255, "a" * 255),
    (b'"' + b"a" * 255 + b'"', "a" * 255),
    (b'"' + b'\\"' * 255 + b'"', '"' * 255),
    (b"a\\b", "a\\b"),
    (b'"a\\\\b"', "a\\b"),
    (b'"a\\"b"', 'a"b'),
    (b'"a,b;c=d"', "a,b;c=d"),
    (b"a%20b", "a%20b"),
    (b"A=b:c/d'e", "A=b:c/d'e"),
    (b'"abc";v=1', "abc"),
    (b'"abc";v', "abc"),
    (b'"abc"; v="x;y\\"";  *w=?1;x=:YQ==:;y=-1.5;z=tok/en:x;d=@-12;e=%"%c3"', "abc"),
]

REFUSED: list[bytes] = [
    b"",
    b" \t ",
    b'""',
    b'"',
    b'"abc',
    b'abc"',
    b'"abc\\"',
    b'"a\\b"',
    b'"a b"',
    b"a b",
    b"a,b",
    b"a, b",
    b'"a", "b"',
    b'"a""b"',
    b'"a"b',
    b'"a" ;v=1',
    b'"a";',
    b'"a";V=1',
    b'"a";v=',
    b'"a";v=1,"b"',
    b'"a";v="x',
    b"a;v=1",
    b"a\x00b",
    b"a\r\nb",
    b"abc\n",
    b'"abc"\n',
    b"a\x7fb",
    b"\xc3\xa9",
    b'"\xc3\xa9"',
    b"a" * 256,
    b'"' + b"a" * 256 + b'"',
    b'"a"' + b";v=1" * 2000,
]


@pytest.mark.parametrize(("line", "key"), ACCEPTED)
def test_a_key_is_read(line: bytes, key: str) -> None:
    assert parse_key([line]) == key


@pytest.mark.parametrize("line", REFUSED, ids=range(len(REFUSED)))
def test_anything_else_is_refused_with_a_remedy(line: bytes) -> None:
    with pytest.raises(InvalidKey, match=r"; (send|quote|close)"):
        parse_key([line])


def test_a_request_without_the_field_has_no_key() -> None:
    with pytest.raises(MissingKey, match="send one"):
        parse_key([])


def test_several_lines_are_refused_even_if_they_agree() -> None:
    with pytest.raises(InvalidKey, match="exactly one"):
        parse_key([b"abc", b"abc"])


@pytest.mark.parametrize(
    "line", [b"s3cret key", b"s3cret,key", b"s3cret;key", b'"s3cret', b"s3cret\x01", b'"s3cret" x']
)
def test_a_message_never_contains_the_key(line: bytes) -> None:
    with pytest.raises(InvalidKey) as caught:
        parse_key([line])
    assert "s3cret" not in str(caught.value)


@PLAIN
@given(st.text(VISIBLE, min_size=1, max_size=255))
def test_both_forms_of_a_value_are_one_key(key: str) -> None:
    quoted = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
    assert parse_key([quoted.encode()]) == key
    if not set(key) & set('",;'):
        assert parse_key([key.encode()]) == key


@PLAIN
@given(st.binary(max_size=300))
def test_any_field_value_is_a_key_or_refused(line: bytes) -> None:
    try:
        key = parse_key([line])
    except InvalidKey:
        return
    assert 1 <= len(key) <= 255
    assert set(key) <= set(VISIBLE)


def test_a_hostile_line_costs_no_more_than_its_length() -> None:
    # Patterns that backtracked would not come back from these.
    for line in (b'"' + b"\\" * 4000, b'"a"' + b";a" * 2000 + b"!", b'"a";v="' + b'\\"' * 2000):
        with pytest.raises(InvalidKey):
            parse_key([line])


def test_a_format_accepts_matching_keys() -> None:
    KeyFormat().check("a")
    KeyFormat(uuid=True).check(UUID)
    KeyFormat(uuid=True, length_min=36).check(UUID.upper())
    KeyFormat(pattern="order-[0-9]+").check("order-17")
    KeyFormat(length_min=16).check("a" * 16)


@pytest.mark.parametrize(
    ("form", "key", "named"),
    [
        (KeyFormat(uuid=True), UUID.replace("-", ""), "UUID"),
        (KeyFormat(uuid=True), UUID + "\n", "UUID"),
        (KeyFormat(pattern="order-[0-9]+"), "order-17x", r"order-\[0-9\]\+"),
        (KeyFormat(pattern="a|b"), "ab", r"a\|b"),
        (KeyFormat(length_min=16), "k" * 15, "at least 16"),
    ],
)
def test_a_format_refuses_other_keys_and_names_itself(form: KeyFormat, key: str, named: str) -> None:
    with pytest.raises(InvalidKey, match=named) as caught:
        form.check(key)
    assert key not in str(caught.value)


def test_an_impossible_format_is_refused_at_construction() -> None:
    with pytest.raises(PolicyError, match="as text"):
        KeyFormat(pattern=b"order-[0-9]+")  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="uuid must be True or False"):
        KeyFormat(uuid="yes")  # type: ignore[arg-type]
    for length_min in (0, -1, 256, True):
        with pytest.raises(PolicyError, match="length_min"):
            KeyFormat(length_min=length_min)
    with pytest.raises(PolicyError, match="length_min"):
        KeyFormat(uuid=True, length_min=37)
    with pytest.raises(PolicyError, match="regular expression"):
        KeyFormat(pattern="(")


def test_formats_are_values() -> None:
    assert KeyFormat(pattern="a+") == KeyFormat(pattern="a+")
    assert len({KeyFormat(pattern="a+"), KeyFormat(pattern="a+"), KeyFormat()}) == 2


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("1", "short"),
        ("a" * 15, "short"),
        ("1" * 16, "digits"),
        ("1700000000000000", "digits"),
        ("a" * 16, "repeated"),
        ("abcdabcdabcdabcd", "repeated"),
        ("00000000-0000-0000-0000-000000000000", "repeated"),
        ("abcdeabcdeabcdea", None),
        (UUID, None),
        ("alice@example.com", "email"),
        ("a@b.co", "email"),
        ("alice+may@mail.example.com", "email"),
        ("order-7@2026-05-01", None),
        ("alice@example.com:order-7", None),
        ("@example.com-order", None),
        ("4111111111111111", "card"),
        ("4111-1111-1111-1111", "card"),
        ("378282246310005", "card"),
        ("6011000990139424", "card"),
        ("2223003122003222", "card"),
        ("4111111111111112", "digits"),
        ("4111-1111-1111-1112", "repeated"),
        ("4111-1111-1111-1111-1", "repeated"),
        ("1" + "4" * 15, "digits"),
        ("20240229120000000", "digits"),
        ("4242-4242-4242-4242-order", None),
    ],
)
def test_weak_keys_have_a_name(key: str, name: str | None) -> None:
    assert weakness(key) == name


def card(length: int) -> str:
    """A number of so many digits that a card may have: its check digit is right."""
    digits = "5" + "0" * (length - 2)
    check = next(n for n in range(10) if _check_sum(f"{digits}{n}") % 10 == 0)
    return f"{digits}{check}"


def _check_sum(number: str) -> int:
    """Of Luhn: every second digit from the right is doubled, and its own digits are added."""
    return sum(int(n) if place % 2 == 0 else sum(map(int, str(2 * int(n)))) for place, n in enumerate(number[::-1]))


@pytest.mark.parametrize(("length", "is_card"), [(11, False), (12, True), (19, True), (20, False)])
def test_a_card_has_12_to_19_digits(length: int, is_card: bool) -> None:
    assert (weakness(card(length)) == "card") is is_card


def test_a_card_may_be_written_in_groups() -> None:
    number = card(19)
    assert weakness("-".join(number[at : at + 4] for at in range(0, 19, 4))) == "card"  # of 23 letters


def uuid7_at(seconds: float) -> str:
    """A UUIDv7 that was made at a time."""
    stamp = f"{int(seconds * 1000):012x}"
    return f"{stamp[:8]}-{stamp[8:]}-7abc-8def-0123456789ab"


@pytest.mark.parametrize(("age", "refused"), [(0, None), (86_400, None), (-600, None), (86_401, KeyTooOld)])
def test_a_uuid7_is_new_for_its_age(age: int, refused: type[InvalidKey] | None) -> None:
    key, now = uuid7_at(1_800_000_000 - age), 1_800_000_000.0
    if refused is None:
        KeyFormat(uuid7_max_age=86_400).check(key, now)
        KeyFormat(uuid7_max_age=86_400).check(key.upper(), now)
        return
    with pytest.raises(refused, match="older than 86400 seconds") as error:
        KeyFormat(uuid7_max_age=86_400).check(key, now)
    assert key not in str(error.value)
    KeyFormat(uuid7_max_age=86_400).check(key)
    KeyFormat(uuid=True).check(key, now)


def test_a_uuid7_that_is_far_ahead_is_refused() -> None:
    with pytest.raises(InvalidKey, match="600 seconds ahead") as error:
        KeyFormat(uuid7_max_age=86_400).check(uuid7_at(1_800_000_601), 1_800_000_000.0)
    assert not isinstance(error.value, KeyTooOld)


@pytest.mark.parametrize(
    "key", [UUID, "order-1", "018f3c2a-5b00-7000-c000-000000000000", "018f3c2a5b0070008000000000000000"]
)
def test_a_key_without_an_age_is_refused_where_an_age_is_asked_for(key: str) -> None:
    with pytest.raises(InvalidKey, match="UUIDv7"):
        KeyFormat(uuid7_max_age=86_400).check(key, 1_800_000_000.0)


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), True, "86400", 10**12])
def test_an_invalid_age_is_refused(wrong: object) -> None:
    with pytest.raises(PolicyError, match=r"uuid7_max_age must be 1 to .* It is given in seconds, not milliseconds$"):
        KeyFormat(uuid7_max_age=wrong)  # type: ignore[arg-type]


def test_the_bounds_of_an_age_may_be_reached() -> None:
    for age in (1, 10 * 366 * 86_400):
        assert KeyFormat(uuid7_max_age=age).uuid7_max_age == age


def test_an_age_beyond_the_tombstone_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"uuid7_max_age .* must not be longer than tombstone_seconds"):
        Policy(key_format=KeyFormat(uuid7_max_age=31 * 86_400))
    assert Policy(key_format=KeyFormat(uuid7_max_age=30 * 86_400)).key_format is not None
