"""Names that are digests: no two scopes, keys or calls ever share one, and none of them changes between releases."""

from __future__ import annotations

import uuid
from enum import StrEnum
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.core.identity import (
    derive_key,
    frame,
    key_hash,
    record_id,
    secret_check,
    uuid7_bytes,
    uuid_bytes,
    uuid_text,
)
from semel.core.model import Scope
from semel.operations.references import reference_id

PLAIN = settings(derandomize=True, deadline=None, max_examples=300)
TEXTS = st.text(max_size=4).filter(lambda text: not any("\ud800" <= letter <= "\udfff" for letter in text))
SCOPE = Scope("acme", "alice", "pay")


@PLAIN
@given(one=st.lists(TEXTS, max_size=4), two=st.lists(TEXTS, max_size=4))
def test_different_parts_have_different_frames(one: list[str], two: list[str]) -> None:
    assert (frame(*one) == frame(*two)) == (one == two)


class Tenant(StrEnum):  # its text as it is formatted is not the one that it is equal to
    ACME = "acme"


def test_a_records_id_does_not_depend_on_earlier_records() -> None:
    """What is remembered of a scope is not what is remembered of one that is merely equal to it."""
    for text in ("order-1", "order-2"):
        scopes = [Scope("acme", text, "pay"), Scope(Tenant.ACME, text, "pay")]
        first, second = [record_id(scope, "k") for scope in (scopes if text == "order-1" else reversed(scopes))]
        assert (first == second) == (f"{Tenant.ACME}" == "acme")


def test_a_records_id_depends_on_every_part_of_its_scope_and_its_key() -> None:
    names = [
        record_id(SCOPE, "k"),
        record_id(SCOPE, "K"),
        record_id(SCOPE._replace(tenant="acmea", caller="lice"), "k"),
        record_id(SCOPE._replace(caller="alicep", operation="ay"), "k"),
        record_id(SCOPE._replace(operation="payk"), ""),
        record_id(Scope("alice", "acme", "pay"), "k"),
        record_id(SCOPE, "k", b"a secret of the id"),
        record_id(SCOPE, "k", b"another secret, id"),
    ]
    assert all(len(name) == 16 for name in names)
    assert all(one != two for one, two in combinations(names, 2))


def test_ids_are_the_same_in_every_version() -> None:
    """They are stored: another digest would forget every key there is."""
    assert record_id(SCOPE, "k").hex() == "d85466d05ad6380246b566fc1268225e"
    assert record_id(SCOPE, "k", b"0123456789abcdef").hex() == "db541c8900d10e2d63981866e5d65359"
    assert key_hash("k").hex() == "b90b54f126638740"
    assert derive_key(bytes(16), 0, "charge") == "f4e08125-7f1d-fd3e-d457-d5fc70320d68"
    assert secret_check(b"0123456789abcdef").hex() == "4053d4ce239ffcc179c62de661865ae2"
    assert reference_id("acme", "pay", "inv-1").hex() == "28bbdb098798bd2657b32b6c3a8f0585"
    assert reference_id("acme", "pay", "inv-1", b"0123456789abcdef").hex() == "0f61551c7f75b01c7c18982d24a004c6"


def test_a_key_hash_reveals_only_equal_keys() -> None:
    assert key_hash("k") == key_hash("k")
    assert len({key_hash("k"), key_hash("l"), key_hash("k", b"s" * 16)}) == 3
    assert len(key_hash("k" * 255)) == 8


def test_a_secret_is_recognised_and_never_kept() -> None:
    assert secret_check(None) == b"none"
    assert secret_check(b"a" * 16) != secret_check(b"b" * 16)
    assert b"aaaa" not in secret_check(b"a" * 16)


def test_a_derived_key_depends_on_record_generation_name_and_ordinal() -> None:
    keys = [
        derive_key(bytes(16), 0, "charge"),
        derive_key(bytes(15) + b"\x01", 0, "charge"),
        derive_key(bytes(16), 1, "charge"),
        derive_key(bytes(16), 0, "charge", 1),
        derive_key(bytes(16), 0, "charge1"),
        derive_key(bytes(16), 11, "", 1),
        derive_key(bytes(16), 1, "1", 1),
    ]
    assert len(set(keys)) == len(keys)
    assert all(uuid_bytes(key) is not None for key in keys)


def test_two_stores_derive_the_same_keys_unless_their_tenants_or_secrets_differ() -> None:
    """As docs/effects.md says of stores that use one provider."""
    there, here = Scope("acme", "alice", "pay"), Scope("acme-test", "alice", "pay")
    ids = [
        record_id(there, "k"),
        record_id(here, "k"),
        record_id(there, "k", b"a" * 16),
        record_id(there, "k", b"b" * 16),
    ]
    assert len({derive_key(id, 0, "charge") for id in ids}) == 4
    assert derive_key(record_id(there, "k"), 0, "charge") == "8e5e6364-f388-c80a-2a0a-92dcd2f4d99e"


@PLAIN
@given(now_ms=st.integers(0, 2**48 - 1), random=st.binary(min_size=10, max_size=10))
def test_an_operation_id_is_a_uuid7(now_ms: int, random: bytes) -> None:
    raw = uuid7_bytes(now_ms, random)
    read = uuid.UUID(bytes=raw)
    assert (read.version, read.variant) == (7, uuid.RFC_4122)
    assert read.int >> 80 == now_ms
    assert uuid_text(raw) == str(read)
    assert uuid_bytes(str(read)) == raw


def test_every_random_bit_of_an_operation_id_is_used_once() -> None:
    """74 of the 80: the version takes four and the variant two. Nothing else may be set, and nothing comes twice."""
    assert uuid7_bytes(0, bytes(10)).hex() == "00000000000070008000000000000000"
    assert uuid7_bytes(2**48 - 1, b"\xff" * 10).hex() == "ffffffffffff7fffbfffffffffffffff"
    raw = uuid7_bytes(0x0102030405, bytes(range(0x11, 0x1B)))
    assert raw.hex() == "0001020304057112931415161718191a"
    assert len(uuid7_bytes(0, bytes(12))) == 16  # more bits do not lengthen the id
    assert uuid7_bytes(7, bytes(range(12))) == uuid7_bytes(7, bytes(range(10)))
    seen = {uuid7_bytes(0, (1 << bit).to_bytes(10, "big")) for bit in range(80)}
    assert len(seen) == 74 + 1  # and the six bits that are not used, which change nothing


@pytest.mark.parametrize("text", ["", "x", "0" * 31, "0" * 33, "g" * 32, "0" * 31 + "٣", "0" * 30 + " 0", "é" * 32])
def test_a_text_that_is_not_a_uuid_gives_none(text: str) -> None:
    assert uuid_bytes(text) is None


def test_a_uuid_without_dashes_is_read() -> None:
    assert uuid_bytes("0" * 32) == bytes(16)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (bytes(range(16)), "00010203-0405-0607-0809-0a0b0c0d0e0f"),
        (bytes(range(17)), "00010203-0405-0607-0809-0a0b0c0d0e0f10"),
        (bytes(range(9)), "00010203-0405-0607-08-"),
        (b"", "----"),
    ],
)
def test_an_id_of_a_damaged_record_is_shown_as_it_is(raw: bytes, text: str) -> None:
    assert uuid_text(raw) == text
