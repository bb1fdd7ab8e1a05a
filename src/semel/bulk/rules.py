"""The lines of a bulk command: their names, their outcomes and the tally of a list.

An item is named by its client (a member such as ``clientItemId``), or by its content and an occurrence number, so that
two equal lines are two items. Pure: nothing here keeps a list, so a million items cost no more memory than one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from typing import Any, Final, Literal, NamedTuple

from semel.articles import name_type
from semel.core.identity import frame
from semel.errors import BulkRefused, RequestTooLarge
from semel.http.fingerprint.canonical import canonical_json

ITEM_ID_MAX: Final = 255  # characters: MariaDB's column, and enough for every UUID, URN and invoice number
TEXT_MAX: Final = 1000
BY_CONTENT: Final = "#"  # prefix of the names that Semel gives; no client's name may have it
KNOWN: Final = "KNOWN"  # the code of an item that another list has done before
UNNAMED: Final = "!"  # and the codes of malformed items


class ItemState(IntEnum):
    """The state of an item. The numbers are those of the equivalent :class:`~semel.core.model.State`."""

    BEGUN = 2  # its handler may have begun; only for items whose effects are outside of the transaction
    SUCCEEDED = 3
    FAILED = 5  # nothing of it remains
    UNKNOWN = 6  # what happened cannot be proven; never run again


class ItemOutcome(NamedTuple):
    """The one durable outcome of an item.

    ``place`` counts from 0 in the order of the request; the ``error_code`` of an UNKNOWN item is its doubt;
    ``retryable``: a new bulk may contain it again; the ``detail`` of a BEGUN item names the effects it was begun under.
    """

    place: int
    item_id: str
    state: ItemState
    target_id: str | None = None
    result_id: str | None = None
    error_code: str | None = None
    retryable: bool = False
    detail: bytes | None = None


def item_document(outcome: ItemOutcome) -> dict[str, Any]:
    """Return one item of an answer.

    >>> item_document(ItemOutcome(0, "a", ItemState.SUCCEEDED, None, "r-1"))["resultId"]
    'r-1'
    """
    return {
        "place": outcome.place,
        "id": outcome.item_id,
        "state": outcome.state.name,
        "targetId": outcome.target_id,
        "resultId": outcome.result_id,
        "errorCode": outcome.error_code,
        "retryable": outcome.retryable,
    }


@dataclass(frozen=True, slots=True)
class Done:
    """A handler's result for an item that succeeded; a plain text is its ``result_id``.

    Parameters: ``result_id`` the id of the result; ``target_id`` of the changed object; ``detail`` the application's
    bytes.
    """

    result_id: str | None = None
    target_id: str | None = None
    detail: bytes | None = None


class Tally(NamedTuple):
    """The progress of a bulk: ``done`` items of ``total`` have an outcome (or, with external effects, have begun)."""

    total: int
    done: int = 0
    succeeded: int = 0
    failed: int = 0
    retryable: int = 0
    unknown: int = 0

    @property
    def begun(self) -> int:
        """The number of items that have begun and have no outcome."""
        return self.done - self.succeeded - self.failed - self.unknown

    def after(self, outcomes: list[ItemOutcome], *, begun: int = 0) -> Tally:
        """Return the tally with these outcomes added, and ``begun`` more items in flight."""
        states = [outcome.state for outcome in outcomes]
        return Tally(
            self.total,
            self.done + begun,
            self.succeeded + states.count(ItemState.SUCCEEDED),
            self.failed + states.count(ItemState.FAILED),
            self.retryable + sum(outcome.retryable for outcome in outcomes),
            self.unknown + states.count(ItemState.UNKNOWN),
        )

    def pack(self) -> bytes:
        """Encode as JSON: the answer of a bulk.

        >>> Tally(3, 3, 2, 1, 1, 0).pack()
        b'{"total":3,"done":3,"succeeded":2,"failed":1,"retryable":1,"unknown":0}'
        """
        return json.dumps(self._asdict(), separators=(",", ":")).encode()


def tally_of(answer: bytes) -> Tally:
    """Parse the tally in a bulk's answer. Raises ValueError and TypeError if it is not one."""
    return Tally(**json.loads(answer))


@dataclass(frozen=True, slots=True)
class ListTerms:
    """The limits of a list.

    Parameters: ``member`` that holds an item's own name (None: name all by content); ``items_max`` and
    ``item_bytes_max`` its limits; ``bad_item`` whether a malformed item refuses the list or fails alone.
    """

    member: str | None
    items_max: int
    item_bytes_max: int
    bad_item: Literal["refuse", "fail"]


class ListedItem(NamedTuple):
    """One item of a list; ``error`` is the code of a malformed one, which fails."""

    place: int
    item_id: str
    raw: bytes
    error: str | None

    def as_begun(self, effects: bytes) -> ItemOutcome:
        """Return the row to write before an item's handler is called; for a malformed item, its outcome.

        ``effects`` are the handler's: they decide whether the item may be called again, whatever is declared later.
        """
        if self.error is not None:
            return self.as_refused()
        return ItemOutcome(self.place, self.item_id, ItemState.BEGUN, detail=effects)

    def as_refused(self) -> ItemOutcome:
        """Return the outcome of a malformed item."""
        return ItemOutcome(self.place, self.item_id, ItemState.FAILED, error_code=self.error)

    def as_known(self) -> ItemOutcome:
        """Return the outcome of an item that another list has done before: its handler is not called."""
        return ItemOutcome(self.place, self.item_id, ItemState.SUCCEEDED, error_code=KNOWN)

    def as_failed(self, code: str) -> ItemOutcome:
        """Return the outcome of an item whose handler failed without effect. It may be retried."""
        return ItemOutcome(self.place, self.item_id, ItemState.FAILED, error_code=code, retryable=True)

    def as_unknown(self, doubt: str) -> ItemOutcome:
        """Return the outcome of an item whose effect cannot be proven."""
        return ItemOutcome(self.place, self.item_id, ItemState.UNKNOWN, error_code=doubt)


class NamedItem(NamedTuple):
    """An item before it is run: its canonical bytes, and the client's name for it (None: name it by its content)."""

    raw: bytes
    client_id: str | None


def written_item(value: Any) -> bytes:
    """Encode an item that was given as a Python value.

    Raises TypeError and ValueError for anything but a JSON value.
    """
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def read_item(raw: bytes) -> Any:
    """Parse an item's JSON; a whole number with too many digits for an int is a Decimal, digit for digit.

    Python makes no int of more than ``sys.get_int_max_str_digits()`` digits (4,300 by default).

    >>> read_item(b'{"n":7}'), read_item(b'{"n":%s}' % (b"9" * 5000))["n"] > 10**4998
    ({'n': 7}, True)
    """
    try:
        return json.loads(raw)
    except ValueError:  # the only error that canonical JSON can have, and no reason to refuse an item
        return json.loads(raw, parse_int=_whole_number)


def item_value(raw: bytes) -> Any:
    """Return an item for another list: as Python values, or as JSON if a number has too many digits for an int."""
    try:
        return json.loads(raw)
    except ValueError:
        return raw


def _whole_number(digits: str) -> int | Decimal:
    try:
        return int(digits)
    except ValueError:
        return Decimal(digits)


def named_item(raw: bytes, place: int, member: str | None) -> NamedItem:
    """Parse and name one line. ``member`` holds the client's name for it; an item without it is named by content.

    Raises BulkRefused, naming the place and the member.

    >>> named_item(b'{"clientItemId": "a-1", "sku": "A"}', 0, "clientItemId")
    NamedItem(raw=b'{"clientItemId":"a-1","sku":"A"}', client_id='a-1')
    >>> named_item(b'{"clientItemId": ""}', 7, "clientItemId")
    Traceback (most recent call last):
        ...
    semel.errors.BulkRefused: item 7, clientItemId: it is empty; leave it out, or give each item a unique name
    """
    try:
        canonical = canonical_json(raw)
    except RequestTooLarge as error:
        raise BulkRefused(place, None, str(error), "ITEM_TOO_LARGE") from None
    if canonical is None:
        raise BulkRefused(place, None, "it is not a JSON value in UTF-8, or repeats a member")
    if member is None or not canonical.startswith(b"{"):
        return NamedItem(canonical, None)
    given = json.loads(canonical, parse_int=str).get(member)  # keep the digits: an int cannot have thousands
    if given is None:
        return NamedItem(canonical, None)
    return NamedItem(canonical, _client_id(given, place, member))


def _client_id(given: object, place: int, member: str) -> str:
    if not isinstance(given, str):
        raise BulkRefused(place, member, f"it is {name_type(given)}; it must be a text")
    if not given:
        raise BulkRefused(place, member, "it is empty; leave it out, or give each item a unique name")
    if len(given) > ITEM_ID_MAX:
        raise BulkRefused(place, member, f"it has {len(given)} characters, more than {ITEM_ID_MAX}")
    if given[0] in BY_CONTENT + UNNAMED:
        raise BulkRefused(place, member, f"it begins with {given[0]!r}, which is reserved for names that Semel assigns")
    if any(letter < " " or letter == "\x7f" for letter in given):
        raise BulkRefused(place, member, "it contains a control character")
    return given


def content_id(raw: bytes, occurrence: int) -> str:
    """Return the name of an item without its own: from its content and its occurrence among equal items (from 1).

    >>> content_id(b'{"sku":"A"}', 1) == content_id(b'{"sku":"A"}', 2)
    False
    """
    return f"{BY_CONTENT}{hashlib.sha256(raw).hexdigest()[:40]}-{occurrence}"


def occurrence_of(item_id: str) -> int:
    """Return the occurrence of an unnamed item among equal items of its list, from 1."""
    return int(item_id.rpartition("-")[2])


def unnamed_id(place: int) -> str:
    """Return the name of a malformed item."""
    return f"{UNNAMED}{place}"


class ListDigest:
    """The fingerprint of a whole list, built item by item from order, names and contents."""

    def __init__(self) -> None:
        self._hashing = hashlib.sha256(b"semel.bulk.1")

    def add(self, item_id: str, raw: bytes) -> None:
        """Add the next item."""
        self._hashing.update(frame(item_id, raw))

    def end(self, total: int) -> bytes:
        """Return 32 bytes over all items."""
        self._hashing.update(frame(str(total)))
        return self._hashing.digest()


BULK_RECIPE: Final = "bulk-2"
FORMER_BULK_RECIPE: Final = "bulk-1"  # the former recipe, under which only the list counted
_BULK: Final = "bulk-"
PATH: Final = "path."  # the name of a path that counts; no template parameter can have it
_WITH_PATH: Final = "bulk-2p"  # for a list that is taken at several paths


def bulk_recipe(counts: Mapping[str, str]) -> str:
    """Return the recipe of a bulk's fingerprint: it names the values that count beside the list's digest.

    >>> bulk_recipe({}), bulk_recipe({"path.store": "8"}) == bulk_recipe({"path.store": "7"})
    ('bulk-2', False)
    """
    if not counts:
        return BULK_RECIPE
    parts = [part for name in sorted(counts) for part in (name, counts[name].encode("utf-8", "surrogatepass"))]
    return f"{_WITH_PATH if PATH in counts else BULK_RECIPE}.{hashlib.sha256(frame(*parts)).hexdigest()[:32]}"


def is_bulk(recipe: str) -> bool:
    """Return whether a record is a bulk's, by the recipe of its fingerprint."""
    return recipe.startswith(_BULK)


def bulk_kind(recipe: str) -> str:
    """Return a bulk's recipe without the values beside its list; any other recipe unchanged.

    >>> bulk_kind(bulk_recipe({"query": "dryRun=true"})), bulk_kind("1.3f9a0c2b5d6e7f80")
    ('bulk-2', '1.3f9a0c2b5d6e7f80')
    """
    return recipe.partition(".")[0] if is_bulk(recipe) else recipe


def bulk_fingerprint_under(recipe: str, counts: Mapping[str, str], listed: bytes) -> bytes | None:
    """Return a list's fingerprint under the recipe of the record with its key; None: they cannot be compared.

    Under the former recipe the list alone counted: a list with other facts may be its retry, and may be another. A
    record from before the list had a second path is its retry's; one from after that may be another path's.
    """
    own = bulk_recipe(counts)
    if recipe in (own, bulk_recipe({name: text for name, text in counts.items() if name != PATH})):
        return listed
    if PATH not in counts and recipe.startswith(_WITH_PATH):
        return None
    if recipe == FORMER_BULK_RECIPE:
        return None if counts else listed
    # Other values count: return no list's digest.
    return hashlib.sha256(frame("semel.bulk.other", own, listed)).digest() if is_bulk(recipe) else None


def checked_text(name: str, text: str | None) -> str | None:
    """Return a text from a handler for an item's outcome, if every store accepts it.

    Raises TypeError and ValueError.
    """
    if text is None:
        return None
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a text; it is {name_type(text)}")
    if len(text) > TEXT_MAX or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError(f"{name} must have at most {TEXT_MAX} characters, and no lone surrogates")
    return text
