"""What counts beside a bulk's list outside of HTTP, on every store; records of the former version; a file's digest."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semel.bulk.declaration import BulkItem
from semel.errors import InvalidBody, KeyReusedError, PolicyError, RecordUnreadableError
from tests.bulk.fellows import Fellow, Home, counts
from tests.bulk.lists import number_items
from tests.bulk.test_outside import Downstream, Killed

Make = Callable[..., Fellow]
SEVEN, EIGHT = {"store": 7}, {"store": 8}


def test_different_counts_make_different_commands_of_one_list(make_fellow: Make, home: Home) -> None:
    fellow = make_fellow()
    done = fellow.run(number_items(3), counts, counts=SEVEN)
    assert fellow.run(number_items(3), counts, counts={"store": "7"}).replayed
    for other in (EIGHT, {"store": 7, "dry_run": True}, {"stores": 7}, {}, None, lambda: EIGHT):
        with pytest.raises(KeyReusedError):
            fellow.run(number_items(3), counts, counts=other)
    with pytest.raises(KeyReusedError):
        fellow.run(number_items(2), counts, counts=SEVEN)
    assert home.effects() == [0, 1, 2]
    assert fellow.progress(key="k", caller="alice") == done.tally


def test_an_interrupted_bulk_with_counts_continues(make_fellow: Make) -> None:
    downstream = Downstream(dies_at=1)
    with pytest.raises((Killed, BaseExceptionGroup)):
        make_fellow(effects="external").run(number_items(3), downstream.charge, counts=SEVEN)
    fellow = make_fellow(effects="external")
    with pytest.raises(KeyReusedError):
        fellow.run(number_items(3), downstream.charge, counts=EIGHT)
    done = fellow.run(number_items(3), downstream.charge, counts=SEVEN)
    assert (done.tally.succeeded, done.tally.unknown, downstream.calls) == (2, 1, [0, 1, 2])
    assert retryable(fellow, done.operation_id, number_items(3)) == []  # the list is compared without what else counts


def retryable(fellow: Fellow, operation_id: str, items: Any) -> list[Any]:
    found = fellow.bulk.retryable(operation_id, items)
    if fellow.runner is None:
        return list(found)

    async def collect() -> list[Any]:
        return [each async for each in found]

    return fellow.runner.run(collect())


def test_a_record_of_the_former_version_is_found_by_its_retry_or_refused(make_fellow: Make, home: Home) -> None:
    fellow = make_fellow()
    fellow.run(number_items(2), counts)
    home.fetch("UPDATE semel_record SET recipe = 'bulk-1'")
    assert fellow.run(number_items(2), counts).replayed
    with pytest.raises(KeyReusedError):
        fellow.run(number_items(3), counts)
    with pytest.raises(RecordUnreadableError):
        fellow.run(number_items(2), counts, counts=SEVEN)
    assert home.effects() == [0, 1]


def test_a_bulk_begun_by_the_former_version_continues(make_fellow: Make, home: Home) -> None:
    async def stops(item: BulkItem) -> None:
        if item.place == 2:
            raise Killed
        await counts(item)

    with pytest.raises((Killed, BaseExceptionGroup)):
        make_fellow(chunk_items=1).run(number_items(4), stops)
    home.fetch("UPDATE semel_record SET recipe = 'bulk-1'")
    done = make_fellow(chunk_items=1).run(number_items(4), counts)
    assert (done.tally.succeeded, done.replayed, home.effects()) == (4, False, [0, 1, 2, 3])


@pytest.mark.parametrize("wrong", [["store"], "store", {1: 2}, {"": 1}])
def test_counts_must_be_a_mapping(make_fellow: Make, wrong: Any) -> None:
    with pytest.raises(PolicyError, match="counts must be a mapping"):
        make_fellow().run(number_items(1), counts, counts=wrong)


def test_a_files_digest_is_checked(make_fellow: Make, home: Home, tmp_path: Path) -> None:
    path = tmp_path / "list.jsonl"
    whole = b'{"n": 100}\n{"n": 200}\n{"n": 1234}\n'
    digest = f"sha-256=:{b64encode(hashlib.sha256(whole).digest()).decode()}:"
    fellow = make_fellow()
    path.write_bytes(b'{"n": 100}\n{"n": 200}\n')
    with pytest.raises(InvalidBody, match="does not match its Content-Digest"):
        fellow.run(path, counts, content_digest=digest)
    with pytest.raises(InvalidBody, match="malformed"):
        fellow.run(path, counts, content_digest="sha-256=abc")
    assert home.effects() == []
    path.write_bytes(whole)
    assert fellow.run(path, counts, content_digest=digest).tally.succeeded == 3
    with pytest.raises(PolicyError, match=r"give items as a pathlib\.Path"):
        fellow.run([{"n": 1}], counts, content_digest=digest)
