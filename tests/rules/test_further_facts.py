"""What counts beside operation, path and body: declared headers, media type parameters, content codings, functions."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from base64 import b64encode
from functools import partial
from typing import Any

import pytest

from semel.errors import InvalidBody, PolicyError, RequestTooLarge
from semel.http.fingerprint import fingerprinter as fingerprint
from semel.http.fingerprint.fingerprinter import FURTHER, Facts, Fingerprinter, Hashing, Recipe
from semel.recipe import Computed, DigestField, Members, NoBody, as_recipe, check_headers

JSON = b'{"amount":1}'
FACTS = Facts("pay", "POST", (), b"", "acme", "alice", "application/json")
FIRST = Recipe().id
SECOND = FIRST + FURTHER


def fingerprint_of(body: bytes = JSON, recipe: Recipe | None = None, **facts: Any) -> tuple[str, bytes]:
    maker = Fingerprinter(Recipe() if recipe is None else recipe)
    told = FACTS._replace(**facts)
    whole = maker.identify(told, body)
    for size in (1, 5, 4096):
        assert stream(maker.begin(told), body, size) == (whole[0] == maker.ids[1], whole[1])
    return whole


def stream(hashing: Hashing, body: bytes, size: int) -> tuple[bool, bytes]:
    for at in range(0, len(body), size):
        hashing.feed(body[at : at + size])
    digest = hashing.finish()
    return hashing.further, digest


# --- parameters of the media type -----------------------------------------------------------------


def test_parameters_of_the_media_type_count_under_a_separate_recipe_id() -> None:
    plain, one, two = (
        fingerprint_of(media_type=f"application/json{more}")
        for more in ("", "; version=1", "; version=2; header=absent")
    )
    assert (plain[0], one[0], two[0]) == (FIRST, SECOND, SECOND)
    assert len({plain[1], one[1], two[1]}) == 3
    assert one == fingerprint_of(media_type='Application/JSON ;Version="1"; charset=UTF-8')
    assert two == fingerprint_of(media_type="application/json;header=absent;version=2")
    assert fingerprint_of(media_type="application/json; version=A") != fingerprint_of(
        media_type="application/json; version=a"
    )
    assert fingerprint_of(media_type="text/plain; boundary=1") != fingerprint_of(media_type="text/plain; boundary=2")


def test_parameters_of_a_part_count() -> None:
    form = b'--b\r\nContent-Disposition: form-data; name="a"\r\nContent-Type: application/json%s\r\n\r\n{}\r\n--b--\r\n'
    plain, one, two = (
        fingerprint_of(form % more, media_type="multipart/form-data; boundary=b") for more in (b"", b"; v=1", b"; v=2")
    )
    assert (plain[0], one[0], two[0]) == (FIRST, SECOND, SECOND)
    assert len({plain[1], one[1], two[1]}) == 3


@pytest.mark.parametrize("essence", ["application/json", "application/ld+json", "application/x-www-form-urlencoded"])
def test_a_redundant_charset_does_not_count(essence: str) -> None:
    maker = Fingerprinter(Recipe())
    forms = [FACTS._replace(media_type=essence + more) for more in ("", "; charset=utf-8", ';charset="UTF-8"')]
    digests = [{maker.digest(each, JSON) for each in maker.spellings(facts)} for facts in forms]
    assert digests[0] == digests[1] == digests[2]
    assert [maker.spellings(facts)[0] for facts in forms] == forms  # the first one is what its record was made of
    assert {maker.identify(facts, JSON)[0] for facts in forms} == {FIRST}


@pytest.mark.parametrize("media_type", ["text/plain", "application/json; charset=utf-16", "application/json; v=1", ""])
def test_any_other_media_type_has_one_spelling(media_type: str) -> None:
    facts = FACTS._replace(media_type=media_type)
    assert Fingerprinter(Recipe()).spellings(facts) == (facts,)


# --- content codings ------------------------------------------------------------------------------

PACKED = gzip.compress(JSON, mtime=0)
LONG = b'{"amount":1,"note":"%s"}' % (b"x" * 200_000)


@pytest.mark.parametrize("body", [JSON, b"", LONG], ids=["short", "empty", "long"])
@pytest.mark.parametrize(
    ("coding", "encode"),
    [
        ("gzip", lambda body: gzip.compress(body, 1, mtime=1)),
        ("X-Gzip", lambda body: gzip.compress(body, 9, mtime=2)),
        ("deflate", zlib.compress),
        ("identity", lambda body: body),
        (" gzip , identity", lambda body: gzip.compress(body, mtime=3)),
    ],
)
def test_a_coding_is_removed_before_the_body_counts(coding: str, encode: Any, body: bytes) -> None:
    assert fingerprint_of(encode(body), content_encoding=coding) == fingerprint_of(body)


@pytest.mark.parametrize(
    "body",
    [b"", b"plain", PACKED[:-1], PACKED + b"more", PACKED * 2, zlib.compress(JSON)],
    ids=["empty", "plain", "cut", "more", "twice", "another"],
)
def test_a_body_that_does_not_decode_counts_as_received_with_its_coding(body: bytes) -> None:
    coded, plain = fingerprint_of(body, content_encoding="gzip"), fingerprint_of(body)
    assert (coded[0], plain[0]) == (SECOND, FIRST)
    assert coded[1] != plain[1]
    assert fingerprint_of(body, content_encoding="br") != coded


def test_codings_that_cannot_be_removed_count() -> None:
    codings = ("", "br", "zstd", "gzip, br", "gzip, gzip")
    assert len({fingerprint_of(JSON, content_encoding=coding)[1] for coding in codings}) == len(codings)
    compressed = gzip.compress(JSON)
    assert len({fingerprint_of(compressed, content_encoding=coding)[1] for coding in ("", "gzip", "deflate")}) == 3


def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "DECODED_BYTES_MAX", 100_000)
    fed: list[int] = []
    raw = fingerprint._Raw.feed

    def feed(self: Any, chunk: bytes) -> None:
        fed.append(len(chunk))
        raw(self, chunk)

    monkeypatch.setattr(fingerprint._Raw, "feed", feed)
    facts = FACTS._replace(media_type="text/plain")
    bomb = gzip.compress(bytes(50_000_000))
    hashing = Fingerprinter(Recipe()).begin(facts._replace(content_encoding="gzip"))
    hashing.feed(bomb)
    bombed = hashing.finish()
    assert sum(fed) < len(bomb) + 200_000  # as received, and no more than the bound of what is in it
    assert hashing.further
    assert bombed != Fingerprinter(Recipe()).digest(facts, bytes(50_000_000))


def test_a_digest_that_replaces_the_body_is_of_the_coded_body() -> None:
    digest = "sha-256=:" + b64encode(hashlib.sha256(JSON).digest()).decode() + ":"
    recipe = Recipe(body=DigestField())
    plain, coded = (
        fingerprint_of(recipe=recipe, content_digest=digest, content_encoding=coding) for coding in ("", "gzip")
    )
    assert (plain[0], coded[0]) == (recipe.id, recipe.id + FURTHER)
    assert plain[1] != coded[1]


# --- the digest of the content --------------------------------------------------------------------


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(body=Members(("amount",))), Recipe(body=NoBody())])
@pytest.mark.parametrize("coding", ["", "gzip", "br"])
def test_a_digest_is_checked_wherever_it_is_sent_and_does_not_count(recipe: Recipe, coding: str) -> None:
    body = gzip.compress(JSON, mtime=0) if coding == "gzip" else JSON
    right, wrong = (b64encode(hashlib.sha256(each).digest()).decode() for each in (body, b"other"))
    without = fingerprint_of(body, recipe, content_encoding=coding)
    for field in (f"sha-256=:{right}:", "unixsum=:AAAA:", f"md5=:AAAA:, sha-256=:{right}:"):
        assert fingerprint_of(body, recipe, content_encoding=coding, content_digest=field) == without
    for field in (f"sha-256=:{wrong}:", right, "", f"sha-256=:{right}:, sha-256=:{right}:"):
        with pytest.raises(InvalidBody):
            fingerprint_of(body, recipe, content_encoding=coding, content_digest=field)


# --- declared headers -----------------------------------------------------------------------------


def test_a_recipe_with_headers_has_another_id_than_one_without() -> None:
    assert Recipe().id == Recipe(headers=()).id == "1.30dc22e178303ecd"
    ids = {Recipe(headers=names).id for names in ((), ("a",), ("b",), ("a", "b"))}
    assert len(ids) == 4
    assert Recipe(headers=("B", "a")).id == Recipe(headers=("A", "b")).id


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ("if-match", "must be a tuple"),
        (("a b",), "not a header name"),
        ((1,), "not a header name"),
        (("Cookie",), "credentials"),
        (("authorization",), "credentials"),
        (("Content-Type",), "counts already"),
        (("a", "A"), "twice"),
    ],
)
def test_impossible_headers_are_refused(names: Any, why: str) -> None:
    with pytest.raises(PolicyError, match=why):
        check_headers(names)


# --- other ways to count a body -------------------------------------------------------------------


def test_a_recipe_without_the_body_still_counts_the_rest() -> None:
    recipe = Recipe(body=NoBody())
    assert (
        fingerprint_of(b"one", recipe)
        == fingerprint_of(b"two", recipe, content_encoding="br")
        == fingerprint_of(b"", recipe)
    )
    assert fingerprint_of(b"one", recipe) != fingerprint_of(b"one", recipe, query=b"a=1")
    assert fingerprint_of(b"", recipe)[1] != fingerprint_of(b"")[1]


def amount(facts: Facts, body: bytes) -> str:
    return f"{facts.operation} {body.partition(b':')[2].decode()}"


def test_a_function_of_the_body_counts() -> None:
    recipe = as_recipe(amount)
    assert isinstance(recipe, Recipe)
    assert recipe.body == Computed(amount, "tests.rules.test_further_facts.amount")
    assert (
        fingerprint_of(b"a:1", recipe)
        == fingerprint_of(b"b:1", recipe)
        == fingerprint_of(gzip.compress(b"c:1"), recipe, content_encoding="gzip")
    )
    assert fingerprint_of(b"a:1", recipe) != fingerprint_of(b"a:2", recipe)
    assert recipe.id != Recipe(body=Computed(amount, "v2")).id


def test_a_missing_function_or_one_that_returns_none_is_refused() -> None:
    nameless: tuple[Any, ...] = (lambda facts, body: body, partial(amount))
    for function in nameless:
        with pytest.raises(PolicyError) as refused:
            Computed(function)
        assert str(refused.value) == (
            "a fingerprint function without a name needs one: fingerprint=Recipe(body=Computed(function, "
            "name='order-v1'))"
        )
    with pytest.raises(PolicyError) as refused:
        Computed(bytes)  # type: ignore[arg-type]
    assert str(refused.value) == "Computed needs a function of the request's facts and its body."
    without_module: Any = bytes.removeprefix
    assert Computed(without_module).name == ".bytes.removeprefix"
    nothing: Any = lambda facts, body: None  # noqa: E731
    with pytest.raises(PolicyError, match="v1 must return bytes or text"):
        fingerprint_of(b"x", Recipe(body=Computed(nothing, "v1")))
    with pytest.raises(RequestTooLarge):
        fingerprint_of(b"x" * 9, Recipe(body=Computed(amount), json_bytes_max=8))


def test_a_body_selection_is_accepted_as_a_recipe() -> None:
    assert as_recipe(NoBody()) == Recipe(body=NoBody())
    assert as_recipe(Members(("a",))) == Recipe(body=Members(("a",)))
    assert as_recipe("whole") == "whole"
