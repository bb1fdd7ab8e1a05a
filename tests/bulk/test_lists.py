"""What a list may be: names, equal lines, sources, and each mistake with its place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from semel.bulk import declaration
from semel.bulk.declaration import BulkItem, BulkPolicy
from semel.bulk.rules import ItemState, Tally
from semel.errors import (
    BulkRefused,
    ConfigurationError,
    HandlerError,
    InvalidKey,
    MissingKey,
    NothingHappened,
    PolicyError,
)
from tests.bulk.fellows import Fellow, Home, counts
from tests.bulk.lists import number_items

Make = Callable[..., Fellow]


@pytest.fixture
def kind() -> str:
    return "sqlite"


async def nothing(item: BulkItem) -> None:
    return None


WRONG = [
    ([{"clientItemId": "a"}, {"clientItemId": "a"}], "DUPLICATE_ITEM_ID", "item 1, clientItemId: item 0 has the same"),
    ([{}, {"clientItemId": "x" * 256}], "ITEM_MALFORMED", "item 1, clientItemId: it has 256 characters, more than 255"),
    ([{"clientItemId": 1.5}], "ITEM_MALFORMED", "item 0, clientItemId: it is a float"),
    ([b'{"clientItemId": %s}' % (b"1" * 5000)], "ITEM_MALFORMED", "item 0, clientItemId: it has 5000 characters"),
    ([{"clientItemId": "#1"}], "ITEM_MALFORMED", "it begins with '#'"),
    ([{"clientItemId": "a\x00"}], "ITEM_MALFORMED", "control character"),
    ([b"{}", b"{"], "ITEM_MALFORMED", "item 1: it is not a JSON value"),
    ([{}, object()], "ITEM_MALFORMED", "item 1: it cannot be written as JSON"),
    ([float("nan")], "ITEM_MALFORMED", "item 0: it cannot be written as JSON"),
    ([{"text": "x" * 200}], "ITEM_TOO_LARGE", "item 0: it has 211 bytes, more than 200"),
    ([b"[" * 100 + b"]" * 100], "ITEM_TOO_LARGE", "item 0"),
]


@pytest.mark.parametrize(("items", "code", "text"), WRONG)
def test_an_invalid_item_refuses_the_list_or_fails_alone(
    make_fellow: Make, home: Home, items: list[Any], code: str, text: str
) -> None:
    with pytest.raises(BulkRefused) as refused:
        make_fellow(item_bytes_max=200 if "LARGE" in code else 65_536).run(items, nothing)
    assert refused.value.code == code
    assert text in str(refused.value)
    assert home.fetch("SELECT count(*) FROM semel_record") == [(0,)]
    fellow = make_fellow(bad_item="fail", item_bytes_max=200 if "LARGE" in code else 65_536)
    done = fellow.run([*items, {"fine": True}], nothing)
    [failed] = fellow.outcomes(done, state=ItemState.FAILED)
    assert (failed.place, failed.error_code, failed.retryable) == (len(items) - 1, code, False)
    assert done.tally.succeeded == len(items)
    assert fellow.run([*items, {"fine": True}], nothing).replayed


@pytest.mark.parametrize(
    ("items", "options", "code"),
    [([], {}, "NO_ITEMS"), (number_items(4), {"items_max": 3, "bad_item": "fail"}, "TOO_MANY_ITEMS")],
)
def test_a_list_that_is_invalid_as_a_whole_is_refused(
    make_fellow: Make, items: list[Any], options: dict[str, Any], code: str
) -> None:
    with pytest.raises(BulkRefused) as refused:
        make_fellow(**options).run(items, nothing)
    assert refused.value.code == code
    assert refused.value.place is None


@pytest.mark.parametrize("bad_item", ["refuse", "fail"])
@pytest.mark.parametrize("stricter", [{"items_max": 2}, {"item_bytes_max": 40}])
def test_a_stricter_limit_does_not_apply_to_a_list_accepted_before(
    make_fellow: Make, stricter: dict[str, int], bad_item: str
) -> None:
    items = [{"n": 0}, {"text": "x" * 50}, {"n": 2}]
    first = make_fellow(bad_item=bad_item).run(items, nothing)
    again = make_fellow(bad_item=bad_item, **stricter).run(items, nothing)
    assert again.replayed
    assert again.tally == first.tally


def test_a_wider_limit_leaves_a_failed_item_of_a_list_as_it_was(make_fellow: Make) -> None:
    items = [{"n": 0}, {"text": "x" * 50}]
    first = make_fellow(bad_item="fail", item_bytes_max=40).run(items, nothing)
    again = make_fellow(bad_item="fail").run(items, nothing)
    assert again.replayed
    assert (again.tally.failed, again.tally) == (1, first.tally)


def test_an_interrupted_list_continues_under_changed_limits(make_fellow: Make) -> None:
    """Sent in parts under new keys, what it had done would be done again."""
    seen: list[int] = []

    async def stops_at_two(item: BulkItem) -> None:
        if item.place == 2 and 2 not in seen:
            seen.append(2)
            raise HandlerError("the process ends here")
        seen.append(item.place)

    with pytest.raises(HandlerError):
        make_fellow(effects="idempotent").run(number_items(4), stops_at_two)
    done = make_fellow(effects="idempotent", items_max=2, item_bytes_max=1).run(number_items(4), stops_at_two)
    assert done.tally.succeeded == 4
    assert sorted(seen) == [0, 1, 2, 2, 3]


@pytest.mark.parametrize("items", ["text", {"a": 1}, b"[]", 7])
def test_a_value_that_is_not_a_list_is_refused(make_fellow: Make, items: Any) -> None:
    with pytest.raises(PolicyError, match="items must be an iterable"):
        make_fellow().run(items, nothing)


def test_a_missing_file_is_refused(make_fellow: Make, tmp_path: Path) -> None:
    with pytest.raises(BulkRefused, match="the file cannot be read"):
        make_fellow().run(tmp_path / "nowhere.jsonl", nothing)


def test_a_file_that_changes_while_it_is_read_is_refused(
    home: Home, make_fellow: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "list.jsonl"
    strip = declaration._strip_lines

    def strip_and_grow(lines: Any, check: Any) -> Any:
        yield from strip(lines, check)
        with file.open("ab") as more:
            more.write(b'{"n": 1')

    on_loop = Fellow("sqlite-async", home)
    for fellow in (make_fellow(), on_loop):
        file.write_bytes(b'{"n": 7}\n')
        with monkeypatch.context() as patch:
            patch.setattr(declaration, "_strip_lines", strip_and_grow)
            with pytest.raises(BulkRefused, match="changed while it was read"):
                fellow.run(file, counts)
    file.write_bytes(b'{"n": 7}\n')
    assert make_fellow().run(file, counts).tally == Tally(1, 1, 1, 0, 0, 0)
    on_loop.close()


def test_equal_lines_are_separate_items(make_fellow: Make) -> None:
    fellow = make_fellow()
    done = fellow.run([{"sku": "A"}, {"sku": "B"}, {"sku": "A"}, b'{ "sku": "A" }'], nothing)
    names = [outcome.item_id for outcome in fellow.outcomes(done)]
    assert len(set(names)) == 4
    assert [name.rpartition("-")[2] for name in names] == ["1", "1", "2", "3"]


def test_a_number_may_have_more_digits_than_python_converts_to_int(make_fellow: Make) -> None:
    digits = b"1" * 5000
    items = [b'{"clientItemId": %d, "n": [%s, 3]}' % (place, digits) for place in (7, 8)]

    async def reads(item: BulkItem) -> None:
        assert item.value["n"] == [Decimal(digits.decode()), 3]
        if item.id == "8":
            raise NothingHappened("its account is locked")

    fellow = make_fellow(effects="external")
    done = fellow.run(items, reads)
    assert [(outcome.item_id, outcome.state) for outcome in fellow.outcomes(done)] == [
        ("7", ItemState.SUCCEEDED),
        ("8", ItemState.FAILED),
    ]
    [left] = fellow.bulk.retryable(done.operation_id, items)
    assert left == b'{"clientItemId":8,"n":[%s,3]}' % digits
    assert fellow.run([left], nothing, key="another").tally == Tally(1, 1, 1, 0, 0, 0)


def test_the_same_list_from_a_file_from_values_and_from_a_stream_is_one_list(
    home: Home, make_fellow: Make, tmp_path: Path
) -> None:
    file = tmp_path / "items.jsonl"
    file.write_bytes(b"".join(b'{"n": %d, "clientItemId": "i-%d"}\n\n' % (n, n) for n in range(1200)))
    done = make_fellow().run(file, counts)
    assert done.tally == Tally(1200, 1200, 1200, 0, 0, 0)
    assert make_fellow().run(number_items(1200), counts).replayed
    assert make_fellow().run(iter(number_items(1200)), counts).replayed
    on_loop = Fellow("sqlite-async", home)

    async def stream() -> AsyncIterator[dict[str, Any]]:
        for item in number_items(1200):
            yield item

    for source in (file, number_items(1200), stream()):
        assert on_loop.run(source, counts).replayed
    on_loop.close()


def test_retryable_items_form_the_list_of_a_new_bulk(make_fellow: Make) -> None:
    async def some(item: BulkItem) -> None:
        if item.value["n"] % 3 == 0:
            raise OSError("the disk is full")

    fellow = make_fellow(effects="atomic")
    done = fellow.run(number_items(10), some)
    left = list(fellow.bulk.retryable(done.operation_id, number_items(10)))
    assert [item["n"] for item in left] == [0, 3, 6, 9]
    assert fellow.run(left, nothing, key="another").tally == Tally(4, 4, 4, 0, 0, 0)
    with pytest.raises(BulkRefused, match="not the list of the bulk"):
        list(fellow.bulk.retryable(done.operation_id, number_items(10)[::-1]))


@pytest.mark.parametrize(
    "options",
    [
        *({"items_max": 0}, {"chunk_items": True}, {"at_once": 1001}, {"effects": "none"}, {"bad_item": "skip"}),
        *({"chunk_seconds": 0}, {"lease_seconds": 0}, {"tombstone_seconds": 1}),
    ],
)
def test_options_that_cannot_be_kept_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match=next(iter(options))):
        BulkPolicy(operation="count", **options)


def test_a_store_without_transactions_is_refused() -> None:
    from semel import Bulk, Engine

    with pytest.raises(ConfigurationError):
        Bulk(Engine.connect("memory://"), operation="count")


def test_a_handler_that_returns_something_else_stops_the_bulk(make_fellow: Make) -> None:
    async def returns(item: BulkItem) -> object:
        return 7 if item.place == 1 else None

    with pytest.raises(PolicyError, match="must return None, a text"):
        make_fellow().run(number_items(3), returns)


@pytest.mark.parametrize("kind", ["sqlite", "sqlite-async"])
@pytest.mark.parametrize("effects", ["atomic", "idempotent", "external"])
def test_a_handler_of_the_other_colour_stops_the_bulk(make_fellow: Make, effects: str) -> None:
    calls: list[int] = []

    def plain(item: BulkItem) -> None:
        calls.append(item.place)

    fellow = make_fellow(effects=effects)

    def run_with_the_other() -> None:
        told = fellow.bulk.run(number_items(3), plain if fellow.runner else nothing, key="k", caller="alice")
        if fellow.runner is not None:
            fellow.runner.run(told)

    with pytest.raises(HandlerError, match="coroutine"):
        run_with_the_other()
    assert calls == ([0] if fellow.runner else [])
    assert fellow.run(number_items(3), nothing).tally.done == 3


@pytest.mark.parametrize(
    ("key", "error"), [("", MissingKey), ("k" * 256, InvalidKey), ("\ud800", InvalidKey), (5, InvalidKey)]
)
def test_an_invalid_key_is_refused_before_anything_is_done(
    make_fellow: Make, home: Home, key: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="key"):
        make_fellow().run([{}], nothing, key=key)
    assert home.fetch("SELECT count(*) FROM semel_record") == [(0,)]
