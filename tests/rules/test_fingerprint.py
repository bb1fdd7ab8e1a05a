"""Fingerprints: what makes another request, what does not, and streaming against one shot."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.errors import InvalidBody, PolicyError, RequestTooLarge
from semel.http.fingerprint.fingerprinter import DigestField, Facts, Fingerprinter, Members, Recipe, WholeBody

PLAIN = settings(derandomize=True, deadline=None, max_examples=300)
SECRET = b"sixteen bytes ok"
FACTS = Facts(
    operation="payments.create",
    method="POST",
    path_params=(("account", "7"), ("region", "eu")),
    query=b"a=1",
    tenant="demo",
    caller="alice",
    media_type="application/json",
    extra=(("Accept-Version", "2"),),
)
MULTIPART = 'multipart/form-data; boundary="{0}"'
PART = b'--%b\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--%b--\r\n'


def digest_of(
    body: bytes, media_type: str = "application/json", recipe: Recipe | None = None, digest: str | None = None
) -> bytes:
    facts = FACTS._replace(media_type=media_type, content_digest=digest)
    return Fingerprinter(recipe or Recipe()).digest(facts, body)


def stream(fingerprinter: Fingerprinter, facts: Facts, body: bytes, step: int) -> bytes:
    hashing = fingerprinter.begin(facts)
    for start in range(0, len(body), step):
        hashing.feed(body[start : start + step])
    return hashing.finish()


# --- facts ---

OTHER_FACTS: list[dict[str, Any]] = [
    {"operation": "payments.creat"},
    {"operation": "payments.createP", "method": "OST"},
    {"method": "post"},
    {"path_params": ()},
    {"path_params": (("account", "8"), ("region", "eu"))},
    {"path_params": (("account", "eu"), ("region", "7"))},
    {"path_params": (("account", "7region"), ("", "eu"))},
    {"path_params": (("account", "7"),), "extra": (("region", "eu"), ("Accept-Version", "2"))},
    {"query": b""},
    {"query": b"a=1&"},
    {"query": b"a=%31"},
    {"tenant": "dem", "caller": "oalice"},
    {"tenant": "alice", "caller": "demo"},
    {"caller": "bob"},
    {"caller": "alice\udc80"},
    {"media_type": ""},
    {"media_type": "text/plain"},
    {"media_type": "application/json; charset=utf-8"},
    {"media_type": "application/json; charset=latin-1"},
    {"media_type": "application/problem+json"},
    {"media_type": "application/json, text/plain"},
    {"media_type": "application/octet-stream"},
    {"media_type": "application/x-www-form-urlencoded"},
    {"extra": ()},
    {"extra": (("Accept-Version", "3"),)},
    {"extra": (("Accept-Version", "2"), ("Accept-Version", "2"))},
]


def test_every_fact_counts() -> None:
    fingerprinter = Fingerprinter(Recipe())
    found = {fingerprinter.digest(FACTS._replace(**other), b'{"a":1}') for other in [{}, *OTHER_FACTS]}
    assert len(found) == len(OTHER_FACTS) + 1
    assert {len(fingerprint) for fingerprint in found} == {32}


@pytest.mark.parametrize(
    "same",
    [
        {"path_params": (("region", "eu"), ("account", "7"))},
        {"media_type": " Application/JSON;"},
        {"extra": (("accept-version", "2"),)},
        {"content_digest": "md5=:AAAA:"},
    ],
)
def test_spellings_of_a_fact_do_not_count(same: dict[str, Any]) -> None:
    assert Fingerprinter(Recipe()).digest(FACTS._replace(**same), b"{}") == digest_of(b"{}")


def test_fingerprints_do_not_change_between_releases() -> None:
    # Stored fingerprints outlive the code: if this fails, RECIPE_VERSION must grow.
    assert Recipe().id == "1.30dc22e178303ecd"
    assert (
        digest_of(b'{"b": 1.0, "a": [true]}').hex()
        == "2be8287f6a050aa59b04c7ac08027ceab7aed47a9a6e5c5d3bbec2588d0071ae"
    )


@pytest.mark.parametrize("length", [64, 200])
def test_a_long_media_type_is_read_like_a_short_one(length: int) -> None:
    media_type = "application/json; x=" + "y" * length
    assert (
        digest_of(b'{ "a" : 1 }', media_type)
        == digest_of(b'{"a":1}', media_type)
        != digest_of(b'{"a":1}', media_type + "y")
    )


# --- bodies ---


@pytest.mark.parametrize(
    ("media_type", "one", "other"),
    [
        ("application/json", b'{"a":1,"b":2}', b'{ "b": 2, "a": 1 }'),
        ("application/merge-patch+json", b'{"a":1,"b":2}', b'{ "b": 2, "a": 1 }'),
        ("application/x-www-form-urlencoded", b"a=1&b=+", b"b=%20&a=1"),
    ],
)
def test_spellings_of_one_body_have_one_fingerprint(media_type: str, one: bytes, other: bytes) -> None:
    assert digest_of(one, media_type) == digest_of(other, media_type)


@pytest.mark.parametrize(
    ("media_type", "one", "other"),
    [
        ("application/json", b'{"a":1}', b'{"a":1.0}'),
        ("application/json", b'{"a":1,"a":2}', b'{"a":2,"a":1}'),
        ("application/json", b"{", b"{ "),
        ("application/json; charset=utf-16", b'{"a":1}', b'{"a": 1}'),
        ("text/json", b'{"a":1}', b'{"a": 1}'),
        ("text/plain+json", b'{"a":1}', b'{"a": 1}'),
        ("", b"a", b"a "),
        ("multipart/form-data", b"a", b"b"),
        ("multipart/mixed; boundary=x", PART % (b"x", b"x"), PART % (b"x", b"x") + b"\r\n"),
        ("multipart/form-data; boundary=\u20ac", b"a", b"b"),
    ],
)
def test_other_bodies_have_other_fingerprints(media_type: str, one: bytes, other: bytes) -> None:
    assert digest_of(one, media_type) != digest_of(other, media_type)


def test_a_multipart_body_counts_by_its_parts() -> None:
    assert digest_of(PART % (b"x", b"x"), MULTIPART.format("x")) == digest_of(
        PART % (b"y", b"y"), MULTIPART.format("y")
    )
    assert digest_of(PART % (b"x", b"z"), MULTIPART.format("x")) != digest_of(
        PART % (b"y", b"z"), MULTIPART.format("y")
    )


def test_a_canonical_body_is_not_mistaken_for_a_raw_one() -> None:
    # What is hashed differs only by the tag; the tag tells them apart.
    small = Recipe(json_bytes_max=7)
    assert digest_of(b'{"a":1}', recipe=small) != digest_of(b'{"a":1}')
    bodies = [b'{"a":1}', b'{"a": 1}', b'{"a":1', b""]
    assert len({digest_of(body, recipe=small) for body in bodies}) == len(bodies)


def test_json_over_the_limit_counts_as_received() -> None:
    limit = Recipe(json_bytes_max=8)
    assert digest_of(b'{"a": 1}', recipe=limit) == digest_of(b'{"a":1}', recipe=limit)
    assert digest_of(b'{"a" : 1}', recipe=limit) != digest_of(b'{"a":  1}', recipe=limit)
    form = "application/x-www-form-urlencoded"
    assert digest_of(b"a=1&b=2", form, limit) == digest_of(b"b=2&a=1", form, limit)
    assert digest_of(b"a=11&b=2&", form, limit) != digest_of(b"b=2&a=11&", form, limit)


def test_json_that_nests_too_deep_is_refused() -> None:
    for body in (WholeBody(), Members(("a",))):
        with pytest.raises(RequestTooLarge):
            digest_of(b"[" * 3, recipe=Recipe(json_depth_max=2, body=body))


def test_only_declared_members_count() -> None:
    recipe = Recipe(body=Members(("amount", "customer.id")))
    base = digest_of(b'{"amount":1,"customer":{"id":7,"age":8},"note":"x"}', recipe=recipe)
    assert base == digest_of(b'{"note":"y","customer":{"id":7},"amount":1}', recipe=recipe)
    for other in (
        b'{"amount":2,"customer":{"id":7}}',
        b'{"amount":1,"customer":{"id":null}}',
        b'{"amount":1,"customer":{}}',
        b'{"amount":1,"customer.id":7}',
        b'{"customer":{"id":7}}',
        b'[{"amount":1,"customer":{"id":7}}]',
        b'{"amount":1,"customer":{"id":7},"x":1,"x":2}',
    ):
        assert digest_of(other, recipe=recipe) != base


def test_members_of_a_body_that_is_too_large_are_refused() -> None:
    recipe = Recipe(body=Members(("a",)), json_bytes_max=10)
    assert digest_of(b'{"a": 1  }', recipe=recipe) == digest_of(b'{"a":1}', recipe=recipe)
    for step in (1, 100):
        with pytest.raises(RequestTooLarge, match="10 bytes"):
            stream(Fingerprinter(recipe), FACTS, b'{"a": 1   }', step)
    with pytest.raises(RequestTooLarge):
        digest_of(b'{"a": 1   }', recipe=recipe)
    assert len(digest_of(b"not json at all", "text/plain", recipe)) == 32


# --- the request's own digest ---


def digest_field_of(body: bytes, *names: str) -> str:
    digests = {"sha-256": hashlib.sha256, "sha-512": hashlib.sha512, "md5": hashlib.md5}
    return ", ".join(f"{name}=:{base64.b64encode(digests[name](body).digest()).decode()}:" for name in names)


BY_DIGEST = Recipe(body=DigestField())


def test_a_digest_field_replaces_the_body() -> None:
    base = digest_of(b"abc", recipe=BY_DIGEST, digest=digest_field_of(b"abc", "sha-256"))
    assert base == digest_of(b"abc", recipe=BY_DIGEST, digest=digest_field_of(b"abc", "md5", "sha-512", "sha-256"))
    assert base != digest_of(b"abc", recipe=BY_DIGEST, digest=digest_field_of(b"abc", "sha-512"))
    assert base != digest_of(b"abd", recipe=BY_DIGEST, digest=digest_field_of(b"abd", "sha-256"))
    assert base != digest_of(b"abc")


@pytest.mark.parametrize(
    ("digest", "remedy"),
    [
        (None, "send one with sha-256"),
        ("", "malformed; send"),
        (digest_field_of(b"abc", "md5"), "send sha-256 or sha-512"),
        ("sha-256", "malformed; send"),
        ("sha-256=abc", "malformed; send"),
        ("sha-256=:????:", "malformed; send"),
        ("sha-256=:YQ:", "base64; send"),
        ("sha-256=:=YQ=:", "malformed; send"),
        (digest_field_of(b"abc", "sha-256", "sha-256"), "each name once"),
    ],
)
def test_a_digest_field_that_cannot_be_used_is_refused_at_once(digest: str | None, remedy: str) -> None:
    with pytest.raises(InvalidBody, match=remedy):
        Fingerprinter(BY_DIGEST).begin(FACTS._replace(content_digest=digest))


@pytest.mark.parametrize(
    "digest",
    [
        digest_field_of(b"abd", "sha-256"),
        digest_field_of(b"abc", "sha-256") + ", " + digest_field_of(b"abd", "sha-512"),
        "sha-256=:YQ==:",
        "sha-512=::",
    ],
)
def test_a_body_that_is_not_its_digest_is_refused(digest: str) -> None:
    with pytest.raises(InvalidBody, match="does not match its Content-Digest"):
        digest_of(b"abc", recipe=BY_DIGEST, digest=digest)


# --- recipes ---

RECIPES = [
    Recipe(),
    Recipe(algorithm="hmac-sha256"),
    Recipe(algorithm="hmac-sha256", secret_id="a"),
    Recipe(algorithm="hmac-sha256", secret_id="b"),
    Recipe(json_depth_max=63),
    Recipe(json_bytes_max=64),
    Recipe(body=DigestField()),
    Recipe(body=Members(("a",))),
    Recipe(body=Members(("a.b",))),
    Recipe(body=Members(("a", "b"))),
    Recipe(body=Members(("a', 'b",))),
    Recipe(body=Members(("\xe9",))),
    Recipe(body=Members(("\\xe9",))),
]


def test_another_configuration_has_another_id() -> None:
    assert len({recipe.id for recipe in RECIPES}) == len(RECIPES) == len(set(RECIPES))
    for recipe in RECIPES:
        assert recipe.id.startswith("1.")
        assert len(recipe.id) == 18


def test_the_order_of_members_is_no_configuration() -> None:
    one, other = Recipe(body=Members(("a", "b"))), Recipe(body=Members(("b", "a")))
    assert one == other
    assert one.id == other.id


def test_another_recipe_or_secret_gives_another_fingerprint() -> None:
    found = set()
    for recipe in RECIPES:
        secrets = [SECRET, SECRET * 2] if recipe.algorithm == "hmac-sha256" else [None]
        facts = FACTS._replace(content_digest=digest_field_of(b'{"a":1}', "sha-256"))
        found |= {Fingerprinter(recipe, secret).digest(facts, b'{"a":1}') for secret in secrets}
    assert len(found) == len(RECIPES) + 3


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"algorithm": "md5"}, "algorithm"),
        ({"body": "whole"}, "WholeBody"),
        ({"body": WholeBody}, "WholeBody"),
        ({"json_depth_max": 0}, "json_depth_max"),
        ({"json_depth_max": 257}, "json_depth_max"),
        ({"json_depth_max": "64"}, "json_depth_max"),
        ({"json_bytes_max": 0}, "json_bytes_max"),
        ({"json_bytes_max": None}, "json_bytes_max"),
        ({"secret_id": "a"}, "secret_id"),
    ],
)
def test_an_impossible_recipe_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(PolicyError, match=named):
        Recipe(**options)


@pytest.mark.parametrize("names", [(), ("",), ("a..b",), ("a", "a"), "amount", ["a"], (1,)])
def test_impossible_members_are_refused(names: Any) -> None:
    with pytest.raises(PolicyError):
        Members(names)


def test_a_secret_and_its_algorithm_come_together() -> None:
    keyed = Recipe(algorithm="hmac-sha256")
    for recipe, secret in ((Recipe(), SECRET), (keyed, None), (keyed, SECRET[1:]), (keyed, b"")):
        with pytest.raises(PolicyError, match="secret") as caught:
            Fingerprinter(recipe, secret)
        assert "sixteen" not in str(caught.value)


# --- streaming ---

BODIES = st.sampled_from(
    [
        b'{"b": 1.5, "a": ["x", {}]}',
        b'{"b":1,"a":[2,3]}',
        b'{"a":1,"a":2}',
        b"a=1&b=%20+",
        PART % (b"x", b"x"),
        PART % (b"x", b"y"),
        b"",
        b"\xff\x00" * 300,
    ]
)
MEDIA_TYPES = st.sampled_from(
    ["application/json", "application/x-www-form-urlencoded", MULTIPART.format("x"), "text/plain", "", "?"]
)


@PLAIN
@given(
    BODIES | st.binary(max_size=80),
    MEDIA_TYPES,
    st.sampled_from(RECIPES) | st.builds(Recipe, json_bytes_max=st.integers(1, 30)),
    st.integers(1, 50),
)
def test_streaming_is_the_same_as_one_shot(body: bytes, media_type: str, recipe: Recipe, step: int) -> None:
    fingerprinter = Fingerprinter(recipe, SECRET if recipe.algorithm == "hmac-sha256" else None)
    facts = FACTS._replace(media_type=media_type, content_digest=digest_field_of(body, "sha-256", "sha-512"))
    try:
        expected = fingerprinter.digest(facts, body)
    except RequestTooLarge:
        with pytest.raises(RequestTooLarge):
            stream(fingerprinter, facts, body, step)
        return
    assert stream(fingerprinter, facts, body, step) == expected == fingerprinter.digest(facts, body)


def test_a_stream_never_holds_more_than_the_limit() -> None:
    for media_type in ("application/json", "application/x-www-form-urlencoded"):
        hashing: Any = Fingerprinter(Recipe(json_bytes_max=1000)).begin(FACTS._replace(media_type=media_type))
        for _ in range(100):
            hashing.feed(b"x" * 99)
            assert len(hashing._buffer) <= 1000
        assert hashing.finish() == digest_of(b"x" * 9900, media_type, Recipe(json_bytes_max=1000))
