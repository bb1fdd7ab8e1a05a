"""Fingerprints of every kind of body: chunks do not matter, every fact does, and what is refused is refused alike."""

from __future__ import annotations

import base64
import hashlib

from python_multipart.multipart import parse_options_header

from semel.errors import InvalidBody, RequestTooLarge
from semel.http.fingerprint.canonical import canonical_json
from semel.http.fingerprint.fingerprinter import DigestField, Facts, Fingerprinter, Members, Recipe
from semel.http.fingerprint.multipart import parse_media_type
from tests.fuzz.reading import Choices, pieces_of

MEDIA = (
    *("", "application/json", "Application/JSON; charset=UTF-8", "application/json;charset=utf-16", "text/plain"),
    *("application/vnd.acme+json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=cut"),
    *('multipart/form-data; boundary="c u t"', "multipart/form-data", "application/octet-stream", "json", "a/b; x"),
)
SECRET = b"0123456789abcdef"
MAKERS = (
    Fingerprinter(Recipe()),
    Fingerprinter(Recipe(algorithm="hmac-sha256"), SECRET),
    Fingerprinter(Recipe(body=Members(("a", "b.c")))),
    Fingerprinter(Recipe(json_bytes_max=16)),
    Fingerprinter(Recipe(body=Members(("a",)), json_bytes_max=16)),
    Fingerprinter(Recipe(body=DigestField())),
)
TOKENS = (
    *(bytes([index]) for index in range(6)),
    *(
        b'{"a":1}',
        b'{"a":1,"b":{"c":2}}',
        b"[" * 70,
        b"a=1&b=2",
        b"--cut\r\n",
        b'"',
        b"charset=",
        b"; ",
        b"boundary=cut",
    ),
    *(
        b"\x11application/json+x",
        b"text/",
        b"sha-256=:",
        b":",
        b"=",
        b",",
        b"\xff",
        b"\x00",
        b"utf-8",
        b'"utf-8"',
        b"+json",
    ),
)


def one(data: bytes) -> None:
    """A recipe, a media type (known or made up), a digest field, a body."""
    choices = Choices(data)
    maker = choices.pick(MAKERS)
    index = choices.number()
    media = MEDIA[index % len(MEDIA)] if index < 200 else choices.piece().decode("latin-1")
    sent = choices.pick(("right", "none", "made up", "wrong"))
    made_up = choices.piece().decode("latin-1") if sent == "made up" else None
    body = choices.rest()
    field = {"right": _field(body), "wrong": _field(body + b"x"), "none": None, "made up": made_up}[sent]
    facts = Facts(
        operation="op",
        method="POST",
        path_params=(("id", "7"),),
        query=b"q=1",
        tenant="acme",
        caller="alice",
        media_type=media,
        extra=(("X-Extra", "1"),),
        content_digest=field,
    )
    made = _digest_of(maker, facts, [body])
    assert made == _digest_of(maker, facts, pieces_of(body)), "it matters how the body is cut into chunks"
    assert made == _whole(maker, facts, body)
    _check_media(media)
    if isinstance(made, bytes):
        assert len(made) == 32
        _check_facts(maker, facts, body, made)
        _check_body(maker, facts, body, made)


def _check_facts(maker: Fingerprinter, facts: Facts, body: bytes, made: bytes) -> None:
    """A change of any other part of the request makes another request."""
    for other in (
        facts._replace(operation="op2"),
        facts._replace(method="PATCH"),
        facts._replace(path_params=(("id", "8"),)),
        facts._replace(query=b"q=2"),
        facts._replace(tenant="acm", caller="ealice"),
        facts._replace(extra=(("x-extra", "2"),)),
    ):
        assert _whole(maker, other, body) != made
    assert _whole(maker, facts._replace(extra=(("x-EXTRA", "1"),)), body) == made


def _check_body(maker: Fingerprinter, facts: Facts, body: bytes, made: bytes) -> None:
    if isinstance(maker.recipe.body, DigestField):
        assert facts.content_digest is not None
        assert _whole(maker, facts, body + b"x") == "InvalidBody", "a body that is not what its digest says"
        return
    other = _whole(maker, facts, body + b"x")
    if isinstance(maker.recipe.body, Members) and other == made:
        assert canonical_json(body) is not None
        assert canonical_json(body + b"x") is not None
        return
    assert other != made


def _check_media(media: str) -> None:
    read = parse_media_type(media)
    if read is None:
        return
    assert read.essence == read.essence.lower()
    essence, options = parse_options_header(media)
    assert essence.decode("latin-1").strip(" \t") == read.essence
    if "\\" not in media and "boundary" in media.lower() and b"boundary" in options:
        assert options[b"boundary"].decode("latin-1") == read.boundary


def _field(body: bytes) -> str:
    return "sha-256=:" + base64.b64encode(hashlib.sha256(body).digest()).decode() + ":"


def _digest_of(maker: Fingerprinter, facts: Facts, pieces: list[bytes]) -> bytes | str:
    try:
        hashing = maker.begin(facts)
        for piece in pieces:
            hashing.feed(piece)
        return hashing.finish()
    except (RequestTooLarge, InvalidBody) as error:
        return type(error).__name__


def _whole(maker: Fingerprinter, facts: Facts, body: bytes) -> bytes | str:
    try:
        return maker.digest(facts, body)
    except (RequestTooLarge, InvalidBody) as error:
        return type(error).__name__
