"""The lines of a list: how they are named, which are none, and what a list of them is as a whole."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from semel.bulk.rules import (
    ITEM_ID_MAX,
    TEXT_MAX,
    ItemOutcome,
    ItemState,
    ListDigest,
    ListedItem,
    NamedItem,
    Tally,
    checked_text,
    content_id,
    item_value,
    named_item,
    read_item,
    tally_of,
    unnamed_id,
    written_item,
)
from semel.errors import BulkRefused

MANY_DIGITS = b"9" * 5000


def name_line(raw: bytes, member: str | None = "id") -> NamedItem:
    return named_item(raw, 3, member)


def test_ids_are_the_same_in_every_version() -> None:
    """They are stored: by another name a line that was done is done again, by another digest a list is another one."""
    assert content_id(b'{"sku":"A"}', 1) == "#8239742d512984caa6678f525fe7a6a7831df6bc-1"
    assert unnamed_id(7) == "!7"
    listed = ListDigest()
    listed.add("a", b"1")
    listed.add("b", b"2")
    assert listed.end(2).hex() == "af6cd91205d8f61fac22710cebf668654cd7ff3aac425978fd01968c092765a8"


def test_a_lists_digest_depends_on_order_names_contents_and_length() -> None:
    def digest(*items: tuple[str, bytes], total: int = 2) -> bytes:
        listed = ListDigest()
        for item in items:
            listed.add(*item)
        return listed.end(total)

    one, two = ("a", b"1"), ("b", b"2")
    others = [
        digest(two, one),
        digest(one),
        digest(one, two, total=3),
        digest(("c", b"1"), two),
        digest(one, ("b", b"3")),
    ]
    assert len({digest(one, two), *others}) == 6
    assert len(digest()) == 32


@pytest.mark.parametrize(
    ("raw", "member", "expected"),
    [
        (b'{"id": "a-1", "n": 1.0}', "id", NamedItem(b'{"id":"a-1","n":1.0}', "a-1")),
        (b'{"id": 7}', "id", NamedItem(b'{"id":7}', "7")),  # its digits, as a text
        (b'{"id": "a b"}', "id", NamedItem(b'{"id":"a b"}', "a b")),
        (b'{"id": null}', "id", NamedItem(b'{"id":null}', None)),
        (b'{"n": 1}', "id", NamedItem(b'{"n":1}', None)),
        (b'{"id": "a"}', None, NamedItem(b'{"id":"a"}', None)),
        (b' ["id"] ', "id", NamedItem(b'["id"]', None)),
        (b'"id"', "id", NamedItem(b'"id"', None)),
        (b'{"n":%s}' % MANY_DIGITS[:900], "id", NamedItem(b'{"n":%s}' % MANY_DIGITS[:900], None)),
        (b'{"id":"%s"}' % (b"x" * ITEM_ID_MAX), "id", NamedItem(b'{"id":"%s"}' % (b"x" * 255), "x" * 255)),
    ],
)
def test_a_line_and_its_clients_name(raw: bytes, member: str | None, expected: NamedItem) -> None:
    assert name_line(raw, member) == expected


@pytest.mark.parametrize(
    ("raw", "member", "code", "text"),
    [
        (b"[" * 70 + b"]" * 70, None, "ITEM_TOO_LARGE", "nested"),
        (b"{", None, "ITEM_MALFORMED", "it is not a JSON value in UTF-8, or repeats a member"),
        (b'{"a":1,"a":1}', None, "ITEM_MALFORMED", "it is not a JSON value"),
        (b'{"id":1.5}', "id", "ITEM_MALFORMED", "it is a float; it must be a text"),
        (b'{"id":false}', "id", "ITEM_MALFORMED", "it is a bool; it must be a text"),
        (b'{"id":""}', "id", "ITEM_MALFORMED", "it is empty; leave it out, or give each item a unique name"),
        (b'{"id":"%s"}' % (b"x" * 256), "id", "ITEM_MALFORMED", "it has 256 characters, more than 255"),
        (b'{"id":"#1"}', "id", "ITEM_MALFORMED", "it begins with '#', which is reserved for names that Semel assigns"),
        (b'{"id":"!1"}', "id", "ITEM_MALFORMED", "it begins with '!'"),
        (b'{"id":"a\\u001f"}', "id", "ITEM_MALFORMED", "it contains a control character"),
        (b'{"id":"\\u007fa"}', "id", "ITEM_MALFORMED", "it contains a control character"),
    ],
)
def test_a_malformed_line_is_refused(raw: bytes, member: str | None, code: str, text: str) -> None:
    with pytest.raises(BulkRefused) as refused:
        name_line(raw, member)
    assert (refused.value.code, refused.value.place) == (code, 3)
    assert text in str(refused.value)
    assert str(refused.value).startswith("item 3, id: it" if member else "item 3: ")
    if "it holds" in text or "it is empty" in text:
        assert str(refused.value) == f"item 3, id: {text}"


def test_a_line_of_the_greatest_length_is_accepted() -> None:
    assert name_line(b'"%s"' % (b"x" * 998)).client_id is None


@pytest.mark.parametrize(
    ("value", "raw"), [({"a": ["ü", 1.5, None]}, '{"a":["ü",1.5,null]}'.encode()), ("x", b'"x"'), (7, b"7")]
)
def test_values_are_written_as_json(value: Any, raw: bytes) -> None:
    assert written_item(value) == raw


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), object(), "\ud800"])
def test_a_value_that_json_cannot_encode_is_refused(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        written_item(value)


def test_a_number_of_thousands_of_digits_is_read_digit_for_digit() -> None:
    raw = b'{"many":%s,"n":7,"f":1.5}' % MANY_DIGITS
    assert read_item(raw) == {"many": Decimal(MANY_DIGITS.decode()), "n": 7, "f": 1.5}
    assert type(read_item(raw)["n"]) is int
    assert item_value(raw) == raw
    assert item_value(b'{"n":7}') == read_item(b'{"n":7}') == {"n": 7}


def test_an_items_row_before_and_after_its_handler() -> None:
    understood, not_understood = ListedItem(3, "a", b"1", None), ListedItem(3, "!3", b"{", "ITEM_MALFORMED")
    assert understood.as_begun(b"external") == ItemOutcome(3, "a", ItemState.BEGUN, detail=b"external")
    assert not_understood.as_begun(b"external") == ItemOutcome(3, "!3", ItemState.FAILED, error_code="ITEM_MALFORMED")
    assert understood.as_unknown("lapsed") == ItemOutcome(3, "a", ItemState.UNKNOWN, error_code="lapsed")


def test_a_tally_adds_up_and_is_read_as_it_was_written() -> None:
    outcomes = [
        ItemOutcome(0, "a", ItemState.SUCCEEDED),
        ItemOutcome(1, "b", ItemState.FAILED, retryable=True),
        ItemOutcome(2, "c", ItemState.FAILED),
        ItemOutcome(3, "d", ItemState.UNKNOWN),
        ItemOutcome(4, "e", ItemState.BEGUN),
    ]
    before = Tally(90, 10, 20, 30, 40, 50)
    assert before.after(outcomes, begun=5) == Tally(90, 15, 21, 32, 41, 51)
    assert before.after([]) == before
    assert before.pack() == b'{"total":90,"done":10,"succeeded":20,"failed":30,"retryable":40,"unknown":50}'
    assert tally_of(before.pack()) == before
    for broken in (b"", b"[]", b'{"done":1}', b'{"total":1,"more":1}'):
        with pytest.raises((TypeError, ValueError)):
            tally_of(broken)


def test_an_outcomes_text_can_be_stored_everywhere() -> None:
    assert checked_text("result_id", None) is None
    assert checked_text("result_id", "x" * TEXT_MAX) == "x" * 1000
    assert checked_text("result_id", "\U0001f600") == "\U0001f600"
    for wrong in ("x" * 1001, "\ud800", "\udfff"):
        with pytest.raises(ValueError, match="result_id must have at most 1000 characters, and no lone surrogates"):
            checked_text("result_id", wrong)
    number: Any = 7
    with pytest.raises(TypeError, match="result_id must be a text; it is an int"):
        checked_text("result_id", number)
