"""The names of a Redis store's keys, and the places of records in its lists.

Every key of one record carries its *tag* in braces, so that a cluster puts them into one slot and a script may touch
them together. A record's *place* is a number that grows with every record of its tag; lists of all tags are merged by
place, ties by tag (decision 0026).
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Iterable
from typing import Final

TAGS: Final = 64  # slots that the records are spread over; part of the layout, never to be changed
PLACE_BITS: Final = 53  # the integers that a sorted set holds exactly


class Keys:
    """The keys of one store.

    Parameters: ``prefix`` of every key, so that several stores share a server.

    >>> keys = Keys("shop")
    >>> keys.record(bytes(16))
    b'{shop:00}:r:00000000000000000000000000000000'
    >>> keys.operation(bytes(16), b"1" * 32).startswith(keys.tags[0])
    True
    """

    def __init__(self, prefix: str) -> None:
        name = prefix.encode()
        self.tags: Final = tuple(b"{%s:%02x}:" % (name, tag) for tag in range(TAGS))
        self.records: Final = tuple([tag + b"r:" for tag in self.tags])  # the prefix of each tag's records
        self.meta: Final = b"%s:meta" % name
        self.turns: Final = self.tags[0] + b"turns"
        self.markers: Final = tuple([tag + b"marker" for tag in self.tags])

    def tag(self, id: bytes) -> bytes:
        """Return the text with which all keys of this record begin."""
        return self.tags[id[0] % TAGS]

    def marker(self, id: bytes, name: bytes) -> bytes:
        """Return the tag's marker: a key that an eviction or a flush removes before, or with, the tag's records.

        Parameters: ``name`` of the store that it belongs to (:func:`marker_name`).
        """
        return self.markers[id[0] % TAGS] + name

    def record(self, id: bytes) -> bytes:
        """Return the key of the record itself."""
        return self.records[id[0] % TAGS] + id.hex().encode()

    def each_record(self, ids: Iterable[bytes]) -> list[bytes]:
        """Return the keys of the records of these ids, in order."""
        records = self.records
        return [records[id[0] % TAGS] + hexlify(id) for id in ids]

    def operation(self, id: bytes, operation: bytes) -> bytes:
        """Return the operation's key, which names the record. ``operation`` in hexadecimal."""
        return b"%so:%s" % (self.tag(id), operation)

    def all(self, id: bytes) -> bytes:
        """Return the key of the tag's records, by place."""
        return self.tag(id) + b"all"

    def open(self, id: bytes) -> bytes:
        """Return the key of the tag's open or UNKNOWN records, by place."""
        return self.tag(id) + b"open"

    def due(self, id: bytes) -> bytes:
        """Return the key of the tag's records that a reaper must mark UNKNOWN, by due time."""
        return self.tag(id) + b"due"

    def audit(self, id: bytes) -> bytes:
        """Return the key of the tag's audit trail."""
        return self.tag(id) + b"audit"


def marker_name(store_id: str) -> bytes:
    """Return the suffix of a store's markers; a store created in its place later has another one.

    >>> marker_name("01890a5d-ac96-774b-bcce-b302099a8057")
    b':b302099a8057'
    """
    return b":" + store_id.rpartition("-")[2].encode()


def newer_first(place: int, tag: int) -> int:
    """Return a record's place among those of all tags: larger is newer.

    >>> newer_first(8, 0) > newer_first(7, 63) > newer_first(7, 62)
    True
    """
    return place * TAGS + tag


def below(cursor: int | None, tag: int) -> bytes:
    """Return the last place of a tag before a cursor of :func:`newer_first`, in the form of a sorted set.

    >>> below(newer_first(7, 3), tag=2), below(newer_first(7, 3), tag=3), below(None, tag=0)
    (b'7', b'6', b'+inf')
    """
    return b"+inf" if cursor is None else b"%d" % ((cursor - 1 - tag) // TAGS)
