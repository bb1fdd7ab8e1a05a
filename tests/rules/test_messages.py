"""The messages to callers, word by word: readers act on the remedy, so each word is tested."""

from __future__ import annotations

from typing import Any

import pytest

from semel import recipe
from semel.errors import InvalidBody, InvalidKey, MissingKey, PolicyError
from semel.http.fingerprint.fingerprinter import Facts, Fingerprinter
from semel.keys import KeyFormat, parse_key
from semel.recipe import DigestField, Members, Recipe

KEYS: list[tuple[list[bytes], str]] = [
    ([], "The request has no Idempotency-Key; send one that is unique to this command."),
    ([b"a", b"b"], "The request has several Idempotency-Key fields; send exactly one."),
    ([b"a" * 4097], "The Idempotency-Key field is too long; send a key of 1 to 255 characters."),
    ([b" \t"], "The Idempotency-Key is empty; send a key of 1 to 255 characters."),
    ([b'""'], "The Idempotency-Key is empty; send a key of 1 to 255 characters."),
    (
        [b'"open'],
        "The Idempotency-Key is not a well-formed quoted string; close the quote, use ASCII only, and write a "
        'quote as \\" and a backslash as \\\\ (RFC 9651).',
    ),
    ([b'"a" b'], "The Idempotency-Key has text after its closing quote that is not a parameter; send exactly one key."),
    ([b'"' + b"a" * 256 + b'"'], "The Idempotency-Key is too long; send at most 255 characters."),
    ([b"a" * 256], "The Idempotency-Key is too long; send at most 255 characters."),
    ([b"!" * 128 + b"~" * 128], "The Idempotency-Key is too long; send at most 255 characters."),
    (
        [b'"a b"'],
        "The Idempotency-Key contains a space; send visible ASCII characters only, such as a UUID.",
    ),
    ([b"a,b"], "The Idempotency-Key contains a comma; send exactly one key, or quote it if the comma belongs to it."),
    ([b"a;b"], "The Idempotency-Key contains a quote or a semicolon; send it as a quoted string (RFC 9651)."),
    ([b'a"b'], "The Idempotency-Key contains a quote or a semicolon; send it as a quoted string (RFC 9651)."),
    ([b"a b"], "The Idempotency-Key contains a character that is not visible ASCII; send a UUID, for example."),
    ([b"a\x7f"], "The Idempotency-Key contains a character that is not visible ASCII; send a UUID, for example."),
]


@pytest.mark.parametrize(("lines", "said"), KEYS)
def test_invalid_key_lines_are_refused(lines: list[bytes], said: str) -> None:
    with pytest.raises((MissingKey, InvalidKey)) as refused:
        parse_key(lines)
    assert str(refused.value) == said


def test_a_field_line_of_4096_bytes_is_read() -> None:
    """Parameters make it long; the key is short."""
    line = b'"k";a="'
    assert parse_key([line + b"x" * (4096 - len(line) - 1) + b'"']) == "k"
    with pytest.raises(InvalidKey, match="field is too long"):
        parse_key([line + b"x" * (4096 - len(line)) + b'"'])


@pytest.mark.parametrize("key", [b"XkX", b"Xk", b"kX", b'"XkX"'])
def test_only_blanks_around_a_key_are_stripped(key: bytes) -> None:
    assert parse_key([b" \t" + key + b"\t "]) == key.strip(b'"').decode()


def test_a_format_says_what_it_expects() -> None:
    with pytest.raises(InvalidKey) as refused:
        KeyFormat(uuid=True).check("8e03978e40d543ddbc936894a57f9324")
    assert str(refused.value) == ("This operation expects a UUID as Idempotency-Key; send one with its four hyphens.")
    format, now = KeyFormat(uuid7_max_age=60), 1_714_701_419.0
    for key, at, said in (
        (
            "8e03978e-40d5-43dd-bc93-6894a57f9324",
            now,
            "This operation expects a UUIDv7 as Idempotency-Key; send one with its four hyphens.",
        ),
        (
            "018f3c2a-5b00-7000-8000-000000000000",
            now + 1_000_000,
            "This Idempotency-Key is older than 60 seconds, and has no record. A command that used it may have been "
            "purged: look for its result by your business reference before you use a new key.",
        ),
        (
            "018f3c2a-5b00-7000-8000-000000000000",
            now - 1_000_000,
            "The time in this Idempotency-Key is more than 600 seconds ahead of the server's clock; set the client's "
            "clock, and send a key that was made with it.",
        ),
    ):
        with pytest.raises(InvalidKey) as refused:
            format.check(key, at)
        assert str(refused.value) == said
    with pytest.raises(InvalidKey, match=r"expects an Idempotency-Key that matches order-\[0-9\]\+; send such a key"):
        KeyFormat(pattern="order-[0-9]+").check("order-7x")
    KeyFormat(pattern="order-[0-9]+").check("order-7")


def test_the_least_length_is_bounded_by_the_longest_key() -> None:
    assert KeyFormat(length_min=255).length_min == 255
    assert KeyFormat(uuid=True, length_min=36).length_min == 36
    for uuid, length in ((False, 256), (True, 37)):
        with pytest.raises(PolicyError, match=f"between 1 and {length - 1}, not {length}"):
            KeyFormat(uuid=uuid, length_min=length)


RECIPES: list[tuple[dict[str, Any], str]] = [
    ({"body": "all"}, "body must be WholeBody(), NoBody(), Members(...), Computed(...) or DigestField()."),
    ({"algorithm": "md5"}, "algorithm must be 'sha256' or 'hmac-sha256'."),
    ({"json_depth_max": 0}, "json_depth_max must be between 1 and 256, not 0."),
    ({"json_depth_max": 257}, "json_depth_max must be between 1 and 256, not 257."),
    ({"json_depth_max": 1.5}, "json_depth_max must be between 1 and 256, not 1.5."),
    ({"json_bytes_max": 0}, "json_bytes_max must be at least 1, not 0."),
    ({"json_bytes_max": "1"}, "json_bytes_max must be at least 1, not 1."),
    ({"secret_id": "k1"}, "secret_id names an HMAC secret; use algorithm='hmac-sha256' with it."),
    ({"version": True}, "version must be one that this Semel knows (1, 3); it is True."),
    ({"version": 2}, "version must be one that this Semel knows (1, 3); it is 2."),
    ({"headers": ("if-match", "If-Match")}, "counts names a header twice; name each once"),
]


@pytest.mark.parametrize(("given", "said"), RECIPES)
def test_an_impossible_recipe_names_its_option(
    given: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "RECIPE_VERSIONS", (1, 3))  # as one day
    with pytest.raises(PolicyError) as refused:
        Recipe(**given)
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ((), "Members needs a tuple of at least one member name; use WholeBody() to count all."),
        ("amount", "Members needs a tuple of at least one member name; use WholeBody() to count all."),
        (("a", ""), "A member name is empty or no text; write paths as in 'customer.id'."),
        (("a..b",), "A member name is empty or no text; write paths as in 'customer.id'."),
        ((7,), "A member name is empty or no text; write paths as in 'customer.id'."),
        (("a", "b", "a"), "A member name is given twice; name each once."),
    ],
)
def test_impossible_members_are_named(names: Any, said: str) -> None:
    with pytest.raises(PolicyError) as refused:
        Members(names)
    assert str(refused.value) == said


def test_the_bounds_of_a_recipe_may_be_reached() -> None:
    assert Recipe(json_depth_max=1, json_bytes_max=1).json_depth_max == 1
    assert Recipe(json_depth_max=256).json_depth_max == 256
    assert Recipe(algorithm="hmac-sha256", secret_id="k1").secret_id == "k1"


def test_the_id_of_a_recipe_is_stored_and_may_not_change() -> None:
    """A record keeps it for as long as its tombstone: these are the ids of version 1 for ever."""
    wanted = {
        "1.30dc22e178303ecd": Recipe(),
        "1.9c9eaec00d4e437d": Recipe(body=Members(("b", "a"))),
        "1.1e8a24b9485b4bf1": Recipe(body=DigestField()),
        "1.fe8903ac54011a06": Recipe(algorithm="hmac-sha256", secret_id="k1", json_depth_max=7, json_bytes_max=9),
    }
    assert {id: recipe.id for id, recipe in wanted.items()} == {id: id for id in wanted}


SHA256_OF_X = "LXEWQrcmsEQBYnyp+6wy9chTD7GQPMTbAiWHF5IaSIE="


@pytest.mark.parametrize(
    ("secret", "algorithm", "said"),
    [
        (b"s" * 16, "sha256", "algorithm='sha256' uses no secret; use 'hmac-sha256', or leave the secret out."),
        (None, "hmac-sha256", "algorithm='hmac-sha256' needs a secret."),
        (b"s" * 15, "hmac-sha256", "The secret must have at least 16 bytes."),
    ],
)
def test_a_fingerprinter_without_its_secret(secret: bytes | None, algorithm: Any, said: str) -> None:
    with pytest.raises(PolicyError) as refused:
        Fingerprinter(Recipe(algorithm=algorithm), secret)
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (None, "This operation needs a Content-Digest field; send one with sha-256 or sha-512 (RFC 9530)."),
        ("sha-256", "Content-Digest is malformed; send it as in sha-256=:BASE64: (RFC 9530), each name once."),
        (
            f"sha-256=:{SHA256_OF_X}:, sha-256=:{SHA256_OF_X}:",
            "Content-Digest is malformed; send it as in sha-256=:BASE64: (RFC 9530), each name once.",
        ),
        ("sha-256=:A:", "Content-Digest is not well-formed base64; send the digest again."),
        ("sha-256=:==:", "Content-Digest is not well-formed base64; send the digest again."),
        ("md5=:AAAA:", "Content-Digest has no algorithm that can be verified; send sha-256 or sha-512."),
        ("sha-256=:AAAA:", "The body does not match its Content-Digest; send the body and the digest again."),
    ],
)
def test_an_invalid_content_digest(field: str | None, said: str) -> None:
    with pytest.raises(InvalidBody) as refused:
        digest_by_field(field)
    assert str(refused.value) == said


def test_a_content_digest_that_is_the_bodys() -> None:
    assert digest_by_field(f"sha-256=:{SHA256_OF_X}:") == digest_by_field(f"md5=:AAAA:, \tsha-256=:{SHA256_OF_X}: ")


def digest_by_field(field: str | None) -> bytes:
    return Fingerprinter(Recipe(body=DigestField())).digest(facts("text/plain", field), b"x")


def facts(media_type: str, digest: str | None = None) -> Facts:
    named: dict[str, Any] = {"operation": "pay", "method": "POST", "tenant": "acme", "caller": "alice"}
    return Facts(path_params=(), query=b"", media_type=media_type, content_digest=digest, **named)


# --- how a body is read by its media type: long values pass no cache, so that each is looked at anew ---

LONG = "x" * 130


def alike(media_type: str, one: bytes, other: bytes) -> bool:
    """Whether two bodies are one request under a media type, with a parameter that makes it long."""
    fingerprints = Fingerprinter(Recipe())
    said = facts(f'{media_type}; pad="{LONG}"')
    return fingerprints.digest(said, one) == fingerprints.digest(said, other)


@pytest.mark.parametrize(
    ("media_type", "json", "form", "multipart"),
    [
        ("application/json", True, False, False),
        ("APPLICATION/JSON", True, False, False),
        ("application/json; charset=utf-8", True, False, False),
        ("application/json; charset=us-ascii", True, False, False),
        ("application/json; charset=utf-16", False, False, False),
        ("application/problem+json", True, False, False),
        ("image/x+json", False, False, False),
        ("application/jsonx", False, False, False),
        ("application/octet-stream", False, False, False),
        ("text/plain", False, False, False),
        ("application/x-www-form-urlencoded", False, True, False),
        ("multipart/form-data; boundary=b", False, False, True),
        ("multipart/mixed; boundary=b", False, False, False),
        ("multipart/form-data", False, False, False),
        ("no media type", False, False, False),
    ],
)
def test_a_body_is_read_by_its_media_type(media_type: str, json: bool, form: bool, multipart: bool) -> None:
    assert alike(media_type, b'{"b":1, "a":2}', b'{"a":2,"b":1}') is json
    assert alike(media_type, b"a=%78", b"a=x") is form
    part = b'--b\r\n%s: form-data; name="a"\r\n\r\nx\r\n--b--\r\n'
    assert alike(media_type, part % b"Content-Disposition", part % b"content-disposition") is multipart


def test_every_way_to_read_a_body_is_distinguished() -> None:
    """The same bytes under two ways are two requests; what cannot be parsed is taken as it came."""
    ways = ["application/json", "application/x-www-form-urlencoded", "text/plain", "no media type"]
    digests = {Fingerprinter(Recipe()).digest(facts(f'{way}; pad="{LONG}"'), b"7") for way in ways}
    assert len(digests) == len(ways)


def test_a_boundary_beyond_ascii_is_accepted() -> None:
    for boundary in ("é", "\udce9"):
        said = facts(f'multipart/form-data; boundary="{boundary}"; pad="{LONG}"')
        assert len(Fingerprinter(Recipe()).digest(said, b"x")) == 32


@pytest.mark.parametrize("media_type", ["application/json", "application/x-www-form-urlencoded"])
def test_a_body_of_the_greatest_size_is_accepted(media_type: str) -> None:
    """As many bytes as may be held are read as a whole; one more is hashed as received."""
    body = b'{"a": 1}' if "json" in media_type else b"a=%78%78"
    same = b'{"a":1 }' if "json" in media_type else b"a=xx&&&&"
    held, streamed = Fingerprinter(Recipe(json_bytes_max=8)), Fingerprinter(Recipe(json_bytes_max=7))
    said = facts(media_type)
    assert piecewise(held, said, body) == held.digest(said, body)
    assert piecewise(streamed, said, body) == streamed.digest(said, body)
    assert len({piecewise(held, said, body), piecewise(streamed, said, body)}) == 2
    if "json" in media_type:
        assert held.digest(said, body) == held.digest(said, same)
        assert streamed.digest(said, body) != streamed.digest(said, same)


def piecewise(fingerprints: Fingerprinter, said: Facts, body: bytes) -> bytes:
    hashing = fingerprints.begin(said)
    for at in range(len(body)):
        hashing.feed(body[at : at + 1])
    return hashing.finish()


# --- the facts ---

BARE = Facts(operation="pay", method="POST", path_params=(), query=b"a=1", tenant="acme", caller="alice", media_type="")


def test_every_fact_counts_with_and_without_pairs() -> None:
    """Nothing else, and always the same: the digest of a bare request is pinned, since records keep it."""
    fingerprints = Fingerprinter(Recipe())
    for base in (BARE, BARE._replace(path_params=(("id", "7"),)), BARE._replace(extra=(("x-branch", "7"),))):
        others: list[dict[str, Any]] = [
            *({name: "other"} for name in ("operation", "method", "tenant", "caller", "media_type")),
            *({"query": query} for query in (b"", b"a=2", b"a=\xff")),
            *({"path_params": pairs} for pairs in ((("id", "8"),), (("ie", "7"),), (("id", "7"), ("a", "")))),
            *({"extra": pairs} for pairs in ((("x-branch", "8"),), (("y", "7"),))),
        ]
        digests = {fingerprints.digest(base._replace(**other), b"") for other in others}
        assert len(digests | {fingerprints.digest(base, b"")}) == len(others) + 1
    assert fingerprints.digest(BARE, b"").hex() == "c356c92a532cd4c3bba30095c662b9c0a60a513aa6ae167286d92ea38fd85e78"


def test_the_order_of_pairs_counts_among_equal_names_only() -> None:
    fingerprints = Fingerprinter(Recipe())

    def of(**given: Any) -> bytes:
        return fingerprints.digest(BARE._replace(**given), b"")

    a, b, other_a = ("a", "2"), ("b", "1"), ("a", "1")
    for name in ("path_params", "extra"):
        assert of(**{name: (a, b)}) == of(**{name: (b, a)})
        assert of(**{name: (a, other_a)}) != of(**{name: (other_a, a)})
    assert of(extra=(("X-Branch", "7"),)) == of(extra=(("x-branch", "7"),))
    assert of(path_params=(("A", "7"),)) != of(path_params=(("a", "7"),))


def test_leniently_decoded_text_is_accepted() -> None:
    fingerprints = Fingerprinter(Recipe())
    for given in ({"caller": "\udce9"}, {"extra": (("x", "\udce9"),)}, {"media_type": "a\udce9"}):
        changed: dict[str, Any] = dict(given)
        assert fingerprints.digest(BARE._replace(**changed), b"") != fingerprints.digest(BARE, b"")


@pytest.mark.parametrize("length", [127, 128, 129])
def test_a_media_type_reads_alike_whether_it_is_remembered_or_not(length: int) -> None:
    value = "application/json; x="
    said = facts(value + "y" * (length - len(value)))
    for _ in range(2):
        assert Fingerprinter(Recipe()).digest(said, b'{"a": 1}') == Fingerprinter(Recipe()).digest(said, b'{"a":1}')
