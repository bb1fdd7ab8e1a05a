"""The fingerprint: 32 bytes that say whether two requests under one key want the same thing.

A `Recipe` says what counts and how; its id is stored beside every fingerprint, so that a later configuration is never
taken for another request. A `Fingerprinter` applies it, to a whole body at once or while the body streams through
bounded memory. The key never enters. The file deliberately does not read requests: `Facts` are handed in, from HTTP
or anywhere else. What is hashed, in this order, each text framed by its length:

    version, recipe id | facts | further facts, if any | how the body was read (its tag) | the body's bytes, to the end

Further facts are parameters of the media type and a content coding that could not be removed. Semel's first
fingerprints did not know them; a request without any has the same fingerprint as then, under the recipe's id, and one
that has some is recorded under its own id. So a record itself names what was compared.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
import sys
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Final, Literal, NamedTuple, Protocol

from semel.errors import InvalidBody, PolicyError, RequestTooLarge
from semel.http.fingerprint.canonical import canonical_json, plain_reader, select_members, usual_json
from semel.http.fingerprint.multipart import MultipartDigest, form_canonical, parse_media_type
from semel.recipe import (
    Body,
    Computed,
    DigestField,
    Members,
    NoBody,
    Recipe,
    WholeBody,
    as_recipe,
    check_headers,
)

__all__ = [
    "Body",
    "Computed",
    "DigestField",
    "Facts",
    "Fingerprinter",
    "Hashing",
    "Members",
    "NoBody",
    "Recipe",
    "WholeBody",
    "as_recipe",
    "check_headers",
]

FURTHER = ".2"
"""The suffix of a recipe's id if further facts count: fingerprints under different ids are never compared."""

DECODED_BYTES_MAX = 10 * 1024 * 1024
"""The largest body, in bytes, whose content coding is removed; a larger one counts as received, with its coding."""

_RequestFrame = Callable[[tuple[tuple[str, str], ...], bytes, tuple[tuple[str, str], ...]], bytes]

_SECRET_BYTES_MIN = 16
_DECODED_PIECE = 64 * 1024
_WINDOW = {"gzip": 31, "x-gzip": 31, "deflate": 15}

# One tag for each way to read a body. The tags are framed, so that two ways never give the same fingerprint.
_JSON = b"4:json"
_JSON_RAW = b"8:json-raw"
_JSON_LARGE = b"10:json-large"
_MEMBERS = b"7:members"
_FORM = b"4:form"
_FORM_LARGE = b"10:form-large"
_MULTIPART = b"9:multipart"
_MULTIPART_RAW = b"13:multipart-raw"
_RAW = b"3:raw"
_DIGEST = b"6:digest"
_COMPUTED = b"8:computed"
_NO_BODY = b"7:no-body"
_FURTHER = b"7:further"


class Facts(NamedTuple):
    """A request's facts besides its body.

    Args:
        operation: the operation's stable name, not the path.
        method: the HTTP method, or "" outside HTTP.
        path_params: names and values from the route; their order does not matter.
        query: the raw query string; a retry repeats it byte by byte.
        tenant: whose data it is.
        caller: who asks; never a credential.
        media_type: the raw Content-Type value, or "".
        extra: names and values of declared extra header fields. Names are compared without case; the order matters
            only among values of one name.
        content_digest: the raw Content-Digest value, if any. The body is checked against it; it counts under
            `DigestField` alone.
        content_encoding: the raw Content-Encoding value, or "". gzip and deflate are removed before the body counts.
    """

    operation: str
    method: str
    path_params: tuple[tuple[str, str], ...]
    query: bytes
    tenant: str
    caller: str
    media_type: str
    extra: tuple[tuple[str, str], ...] = ()
    content_digest: str | None = None
    content_encoding: str = ""


class Hashing(Protocol):
    """A fingerprint being computed. Feed the body in pieces of any size, then finish once.

    ``further`` tells, after :meth:`finish`, whether further facts count: the fingerprint then has the other id.
    """

    further: bool

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the body.

        Raises:
            RequestTooLarge: under `Members`, a JSON body over `json_bytes_max`.
        """

    def finish(self) -> bytes:
        """Return the fingerprint, 32 bytes.

        Raises:
            RequestTooLarge: JSON nested deeper than `json_depth_max`.
            InvalidBody: the body does not match its Content-Digest.
            PolicyError: a `Computed` function returned neither bytes nor text.
        """


class Fingerprinter:
    """Makes fingerprints under one recipe. It has no state that a request could change: share it between threads.

    Args:
        recipe: what counts, and how.
        secret: the HMAC secret, at least 16 bytes; exactly where the recipe's algorithm is `hmac-sha256`.

    Raises:
        PolicyError: the secret is missing, too short, or unused.

    >>> facts = Facts(
    ...     operation="pay",
    ...     method="POST",
    ...     path_params=(),
    ...     query=b"",
    ...     tenant="demo",
    ...     caller="alice",
    ...     media_type="application/json",
    ... )
    >>> fingerprints = Fingerprinter(Recipe())
    >>> one = fingerprints.digest(facts, b'{"amount": 5, "to": "bob"}')
    >>> one == fingerprints.digest(facts, b'{"to":"bob","amount":5}')
    True
    >>> hashing = fingerprints.begin(facts)
    >>> hashing.feed(b'{"to":"bob",')
    >>> hashing.feed(b'"amount":6}')
    >>> hashing.finish() == one
    False
    """

    __slots__ = ("_base", "_json", "_json_bytes_max", "_json_tag", "_media", "_request", "_subject", "ids", "recipe")

    def __init__(self, recipe: Recipe, secret: bytes | None = None) -> None:
        if recipe.algorithm == "sha256" and secret is not None:
            raise PolicyError("algorithm='sha256' uses no secret; use 'hmac-sha256', or leave the secret out.")
        if recipe.algorithm == "hmac-sha256" and secret is None:
            raise PolicyError("algorithm='hmac-sha256' needs a secret.")
        if secret is not None and len(secret) < _SECRET_BYTES_MIN:
            raise PolicyError(f"The secret must have at least {_SECRET_BYTES_MIN} bytes.")
        self.recipe = recipe
        self.ids = (recipe.id, recipe.id + FURTHER)
        self._base: _Hash = hashlib.sha256() if secret is None else hmac.new(secret, digestmod=hashlib.sha256)
        self._base.update(_frame("semel fingerprint", recipe.id))
        self._media, self._subject, self._request = VERSIONS[recipe.version]
        self._json = _json_reader(recipe)
        # Bodies up to this size are read as a whole, except those that are verified against their digest.
        self._json_bytes_max = recipe.json_bytes_max if isinstance(recipe.body, (WholeBody, Members)) else -1
        self._json_tag = _MEMBERS if isinstance(recipe.body, Members) else _JSON

    def digest(self, facts: Facts, body: bytes) -> bytes:
        """Return the fingerprint of a request with this body; the same as feeding the body to `begin(facts)`.

        Args:
            facts: what the request says besides its body.
            body: the whole body.

        Raises:
            RequestTooLarge, InvalidBody, PolicyError: as `begin`, `Hashing.feed` and `Hashing.finish` do.
        """
        return self.identify(facts, body)[1]

    def identify(self, facts: Facts, body: bytes) -> tuple[str, bytes]:
        """Return the id that a request's fingerprint is recorded under, and the fingerprint. Otherwise as `digest`.

        >>> facts = Facts("pay", "POST", (), b"", "demo", "alice", "application/json")
        >>> fingerprints = Fingerprinter(Recipe())
        >>> fingerprints.identify(facts, b"[]")[0] == Recipe().id
        True
        >>> fingerprints.identify(facts._replace(media_type="application/json; version=2"), b"[]")[0] == Recipe().id
        False
        """
        kind, media, further = self._media(facts.media_type)
        if (
            kind != "json"
            or len(body) > self._json_bytes_max
            or further
            or facts.content_encoding
            or facts.content_digest is not None
        ):
            hashing = self.begin(facts)
            hashing.feed(body)
            digest = hashing.finish()
            return self.ids[hashing.further], digest
        tag, content = self._read_json(body)
        return self.recipe.id, _finish_digest(self._base.copy(), self._frame(facts, media) + tag, content)

    def prepare(self, facts: Facts, bytes_max: int = sys.maxsize) -> Subject | None:
        """Prepare the part that is shared by requests that differ only in path, query and body.

        None if no body can be JSON that counts as a whole.

        Parameters: ``facts`` of one such request, without counted headers, Content-Digest and Content-Encoding;
        ``bytes_max`` of a body that is read this way.
        """
        kind, media, further = self._media(facts.media_type)
        if kind != "json" or further or not isinstance(self.recipe.body, WholeBody):
            return None
        hashing = self._base.copy()
        hashing.update(self._subject(facts, media))
        return Subject(hashing, self._request, self.recipe, plain_reader() or usual_json, bytes_max)

    def _frame(self, facts: Facts, media: str) -> bytes:
        return self._subject(facts, media) + self._request(facts.path_params, facts.query, facts.extra)

    def begin(self, facts: Facts) -> Hashing:
        """Start the fingerprint of a request whose body is still to come.

        Args:
            facts: what the request says besides its body.

        Raises:
            InvalidBody: a Content-Digest that is malformed; under `DigestField`, one that is missing or without
                sha-256 and sha-512.
        """
        kind, media, further = self._media(facts.media_type)
        base = self._base.copy()
        base.update(self._frame(facts, media))
        coding = _coding(facts.content_encoding)
        if isinstance(self.recipe.body, DigestField):  # a digest of encoded bytes
            hashing: Hashing = _Digested(_with_further(base, further, coding), facts.content_digest)
            hashing.further = bool(further or coding)
            return hashing
        hashing = self._begin_content(kind, _with_further(base.copy(), further, ""), facts)
        hashing.further = bool(further)
        if coding and not isinstance(self.recipe.body, NoBody):
            hashing = _Decoded(hashing, _Raw(_with_further(base, further, coding)), coding)
        if facts.content_digest is not None:
            hashing = _Checked(hashing, BodyCheck(facts.content_digest))
        return hashing

    def _begin_content(self, kind: _Kind, base: _Hash, facts: Facts) -> Hashing:
        """Start the fingerprint of a body without a content coding."""
        bytes_max = self.recipe.json_bytes_max
        body = self.recipe.body
        if isinstance(body, NoBody):
            return _NoBody(base)
        if isinstance(body, Computed):
            return _Held(base, partial(_compute, body, facts), bytes_max, None)
        match kind:
            case "json":
                # A selection needs the whole body, which is not in memory.
                large = None if isinstance(body, Members) else _JSON_LARGE
                return _Held(base, self._read_json, bytes_max, large)
            case "form":
                return _Held(base, _read_form, bytes_max, _FORM_LARGE)
            case "multipart":
                return _Multipart(base, _boundary(facts.media_type))
            case "raw":
                return _Raw(base)

    def spellings(self, facts: Facts) -> tuple[Facts, ...]:
        """Return these facts in all spellings that clients may use, the given one first.

        ``charset=utf-8`` says nothing of JSON and of forms, which are UTF-8 without it (RFC 8259, section 11). Semel's
        first fingerprints told the two apart, so that a record has one of them.
        """
        kind, media, further = _media(facts.media_type)
        essence, _, charset = media.partition(";")
        if kind not in ("json", "form") or further or charset not in _UTF8:
            return (facts,)
        others = [facts._replace(media_type=essence + more) for more in ("", "; charset=utf-8")]
        return (facts, *(each for each in others if _media(each.media_type)[1] != media))

    def _read_json(self, body: bytes) -> tuple[bytes, bytes]:
        canonical = self._json(body)
        return (_JSON_RAW, body) if canonical is None else (self._json_tag, canonical)


class Subject:
    """The prepared fingerprint of an operation, a method, a caller and a media type, for bodies of usual JSON.

    >>> facts = Facts("pay", "POST", (), b"", "demo", "alice", "application/json")
    >>> fingerprints = Fingerprinter(Recipe())
    >>> subject = fingerprints.prepare(facts)
    >>> subject.digest((), b"", b'{"to": "bob"}') == fingerprints.digest(facts, b'{"to":"bob"}')
    True
    >>> subject.digest((), b"", b'{"amount": NaN}') is None
    True
    """

    __slots__ = ("_bare", "_bytes_max", "_depth_max", "_hash", "_read", "_request")

    def __init__(
        self,
        hashing: _Hash,
        request: _RequestFrame,
        recipe: Recipe,
        read: Callable[..., bytes | None],
        bytes_max: int,
    ) -> None:
        self._hash = hashing
        self._read = read
        self._request = request
        self._bytes_max = min(recipe.json_bytes_max, bytes_max)
        self._depth_max = recipe.json_depth_max
        self._bare = hashing.copy()  # of requests without path parameters and query
        self._bare.update(request((), b"", ()) + _JSON)

    def digest(self, path_params: tuple[tuple[str, str], ...], query: bytes, body: bytes) -> bytes | None:
        """Return the fingerprint; None if the body is not usual JSON: call :meth:`Fingerprinter.identify` then."""
        if len(body) > self._bytes_max:
            return None
        canonical = self._read(body, self._depth_max)
        if canonical is None:
            canonical = usual_json(body, self._depth_max)
            if canonical is None:
                return None
        if path_params or query:
            hashing = self._hash.copy()
            hashing.update(self._request(path_params, query, ()) + _JSON)
        else:
            hashing = self._bare.copy()
        hashing.update(canonical)
        return hashing.digest()


class _Hash(Protocol):
    """The shared interface of hashlib and hmac objects."""

    def update(self, data: bytes, /) -> None: ...
    def digest(self) -> bytes: ...
    def copy(self) -> _Hash: ...


class _NoBody:
    """A body of which nothing counts."""

    __slots__ = ("_hash", "further")

    def __init__(self, base: _Hash) -> None:
        self._hash = base
        self.further = False

    def feed(self, chunk: bytes) -> None:
        """Take nothing of it."""

    def finish(self) -> bytes:
        return _finish_digest(self._hash, _NO_BODY, b"")


class _Raw:
    """A body whose bytes count as received."""

    __slots__ = ("_hash", "further")

    def __init__(self, base: _Hash) -> None:
        self.further = False
        self._hash = base
        self._hash.update(_RAW)

    def feed(self, chunk: bytes) -> None:
        self._hash.update(chunk)

    def finish(self) -> bytes:
        return self._hash.digest()


class _Held:
    """A body that is read as a whole, and hashed as received if it is too large to hold."""

    __slots__ = ("_buffer", "_bytes_max", "_hash", "_large", "_overflown", "_read", "further")

    def __init__(
        self, base: _Hash, read: Callable[[bytes], tuple[bytes, bytes]], bytes_max: int, large: bytes | None
    ) -> None:
        self._hash = base
        self._read = read
        self._bytes_max = bytes_max
        self._large = large
        # One growing buffer rather than a list: many tiny chunks would cost many times their own size.
        self._buffer = bytearray()
        self._overflown = False
        self.further = False

    def feed(self, chunk: bytes) -> None:
        if self._overflown:
            self._hash.update(chunk)
        elif len(self._buffer) + len(chunk) <= self._bytes_max:
            self._buffer += chunk
        elif self._large is None:
            self._buffer.clear()
            raise RequestTooLarge(f"The body is larger than {self._bytes_max} bytes; send a smaller one.")
        else:
            self._overflown = True
            self._hash.update(self._large)
            self._hash.update(bytes(self._buffer))
            self._hash.update(chunk)
            self._buffer.clear()

    def finish(self) -> bytes:
        if self._overflown:
            return self._hash.digest()
        tag, content = self._read(bytes(self._buffer))
        return _finish_digest(self._hash, tag, content)


class _Multipart:
    """A form by its parts, or as received if the parts have no canonical form; both hashes run side by side."""

    __slots__ = ("_hash", "_parts", "_raw", "further")

    def __init__(self, base: _Hash, boundary: bytes) -> None:
        self._hash = base
        self._raw = base.copy()
        self._raw.update(_MULTIPART_RAW)
        self._parts = MultipartDigest(boundary)
        self.further = False

    def feed(self, chunk: bytes) -> None:
        self._raw.update(chunk)
        self._parts.feed(chunk)

    def finish(self) -> bytes:
        parts = self._parts.finish()
        if parts is None:
            return self._raw.digest()
        self.further = self.further or self._parts.parameterised
        return _finish_digest(self._hash, _MULTIPART, parts)


class _Decoded:
    """A body whose content coding is removed as it streams through.

    If it cannot be removed (another coding, broken data, too much of it), the bytes count as received, together with
    the coding. Both hashes run side by side, and memory holds one piece.
    """

    __slots__ = ("_content", "_decoder", "_left", "_raw", "further")

    def __init__(self, content: Hashing, raw: Hashing, coding: str) -> None:
        self._content: Hashing | None = content
        self._raw = raw
        self._left = DECODED_BYTES_MAX
        self.further = True
        window = _WINDOW.get(coding)
        self._decoder = None if window is None else zlib.decompressobj(window)

    def feed(self, chunk: bytes) -> None:
        self._raw.feed(chunk)
        if self._decoder is not None:
            try:
                self._decode(chunk)
            except zlib.error:
                self._decoder = None

    def _decode(self, chunk: bytes) -> None:
        assert self._decoder is not None
        assert self._content is not None
        while True:
            piece = self._decoder.decompress(chunk, _DECODED_PIECE)
            self._left -= len(piece)
            if self._left < 0 or self._decoder.unused_data:
                self._decoder = None
                return
            self._content.feed(piece)
            chunk = self._decoder.unconsumed_tail
            if not chunk and len(piece) < _DECODED_PIECE:
                return

    def finish(self) -> bytes:
        if self._decoder is None or self._content is None or not self._decoder.eof:
            return self._raw.finish()
        digest = self._content.finish()
        self.further = self._content.further
        return digest


class _Checked:
    """Any other fingerprint, of a body that is also checked against its Content-Digest."""

    __slots__ = ("_check", "_content", "further")

    def __init__(self, content: Hashing, check: BodyCheck) -> None:
        self._content = content
        self._check = check
        self.further = False

    def feed(self, chunk: bytes) -> None:
        self._check.feed(chunk)
        self._content.feed(chunk)

    def finish(self) -> bytes:
        self._check.finish()
        digest = self._content.finish()
        self.further = self._content.further
        return digest


class _Digested:
    """The digest the client sent, verified over the bytes as received."""

    __slots__ = ("_hash", "_running", "_sent", "further")

    def __init__(self, base: _Hash, content_digest: str | None) -> None:
        self._hash = base
        self._sent = _require_content_digest(content_digest)
        self._running = {name: _DIGEST_ALGORITHMS[name]() for name in self._sent}
        self.further = False

    def feed(self, chunk: bytes) -> None:
        for running in self._running.values():
            running.update(chunk)

    def finish(self) -> bytes:
        _check_digests(self._running, self._sent)
        # The first is sha-256 if it was sent, so that adding sha-512 to a retry changes nothing.
        name = min(self._sent)
        return _finish_digest(self._hash, _DIGEST, _frame(name) + self._sent[name])


_DIGEST_ALGORITHMS = {"sha-256": hashlib.sha256, "sha-512": hashlib.sha512}
_DIGEST_MEMBER = re.compile(r"[ \t]*([a-z*][a-z0-9_.*-]*)=:([A-Za-z0-9+/]*={0,2}):[ \t]*").fullmatch


class BodyCheck:
    """A body that streams through, checked against its Content-Digest (RFC 9530) at its end.

    Args:
        content_digest: the field's value, or None if there is none: then every body passes.

    Raises:
        InvalidBody: the field is malformed.

    >>> check = BodyCheck("sha-256=:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=:")
    >>> check.feed(b"hello")
    >>> check.finish()
    """

    __slots__ = ("_running", "_sent")

    def __init__(self, content_digest: str | None) -> None:
        self._sent = {} if content_digest is None else _parse_content_digest(content_digest)
        self._running = {name: _DIGEST_ALGORITHMS[name]() for name in self._sent}

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the body, as received."""
        for running in self._running.values():
            running.update(chunk)

    def finish(self) -> None:
        """Compare. Raises InvalidBody if the body does not match."""
        _check_digests(self._running, self._sent)


def _check_digests(running: Mapping[str, _Hash], sent: Mapping[str, bytes]) -> None:
    for name, made in running.items():
        if made.digest() != sent[name]:
            raise InvalidBody("The body does not match its Content-Digest; send the body and the digest again.")


def _require_content_digest(value: str | None) -> dict[str, bytes]:
    """Return the supported digests of a field that the operation requires; at least one."""
    if value is None:
        raise InvalidBody("This operation needs a Content-Digest field; send one with sha-256 or sha-512 (RFC 9530).")
    digests = _parse_content_digest(value)
    if not digests:
        raise InvalidBody("Content-Digest has no algorithm that can be verified; send sha-256 or sha-512.")
    return digests


def _parse_content_digest(value: str) -> dict[str, bytes]:
    """Return the supported digests of a Content-Digest field by algorithm."""
    found: dict[str, str] = {}
    for member in value.split(","):
        match = _DIGEST_MEMBER(member)
        # RFC 9651 lets the last of two equal names win; do not guess which one the client meant.
        if match is None or match[1] in found:
            raise InvalidBody("Content-Digest is malformed; send it as in sha-256=:BASE64: (RFC 9530), each name once.")
        found[match[1]] = match[2]
    digests = {}
    for name in _DIGEST_ALGORITHMS.keys() & found.keys():
        try:
            digests[name] = binascii.a2b_base64(found[name], strict_mode=True)
        except binascii.Error as error:
            raise InvalidBody("Content-Digest is not well-formed base64; send the digest again.") from error
    return digests


def _json_reader(recipe: Recipe) -> Callable[[bytes], bytes | None]:
    depth_max = recipe.json_depth_max
    if isinstance(recipe.body, Members):
        names = recipe.body.names
        return partial(select_members, members=names, depth_max=depth_max)
    return partial(canonical_json, depth_max=depth_max)


def _compute(body: Computed, facts: Facts, content: bytes) -> tuple[bytes, bytes]:
    made = body.function(facts, content)
    if isinstance(made, str):
        made = made.encode("utf-8", "surrogatepass")
    if not isinstance(made, bytes):
        raise PolicyError(f"{body.name} must return bytes or text for a fingerprint, not {type(made).__name__}.")
    return _COMPUTED, made


def _read_form(body: bytes) -> tuple[bytes, bytes]:
    return _FORM, form_canonical(body)


def _finish_digest(hashing: _Hash, tag: bytes, content: bytes) -> bytes:
    hashing.update(tag)
    hashing.update(content)
    return hashing.digest()


def _frame(*texts: str) -> bytes:
    # Lengths in characters: the whole text can be parsed again, and UTF-8 keeps different texts different.
    # Surrogates pass, since some text was decoded leniently.
    return "".join([f"{len(text)}:{text}" for text in texts]).encode("utf-8", "surrogatepass")


def _subject_frame(facts: Facts, media: str) -> bytes:
    """Return the facts that many requests share, as one text."""
    subject = _subject_text(facts.operation, facts.method, facts.tenant, facts.caller)
    return f"{subject}{len(media)}:{media}".encode("utf-8", "surrogatepass")


def _request_frame(path_params: tuple[tuple[str, str], ...], query: bytes, extra: tuple[tuple[str, str], ...]) -> bytes:
    """Return the facts of one request, as the text that follows."""
    pairs = "0;0;"
    if path_params or extra:
        pairs = _pairs_text(path_params) + _pairs_text(tuple((name.lower(), text) for name, text in extra))
    return f"{len(query)}:{query.decode('latin-1')}{pairs}".encode("utf-8", "surrogatepass")


@lru_cache(maxsize=1024, typed=True)  # an enumeration's member equals its text, but may print differently
def _subject_text(operation: str, method: str, tenant: str, caller: str) -> str:
    """Return the facts that a server knows and a client cannot make up: many requests share them."""
    return f"{len(operation)}:{operation}{len(method)}:{method}{len(tenant)}:{tenant}{len(caller)}:{caller}"


def _pairs_text(pairs: tuple[tuple[str, str], ...]) -> str:
    ordered = sorted(pairs, key=lambda pair: pair[0])
    return f"{len(ordered)};" + "".join([f"{len(name)}:{name}{len(text)}:{text}" for name, text in ordered])


_Kind = Literal["json", "form", "multipart", "raw"]
_UTF8 = frozenset({"", "utf-8", "utf8", "us-ascii"})
_CACHED_LENGTH_MAX = 128


def media_parameters(value: str) -> str:
    """Return the parameters of a media type that count, as one text; a malformed value in full."""
    return _media(value)[2] if parse_media_type(value) is not None else f"?{value}"


def _coding(value: str) -> str:
    """Return the content coding in lower case; several as they are written; "" for none and for identity."""
    if not value:
        return ""
    codings = [each.strip(" \t").lower() for each in value.split(",")]
    return ",".join(each for each in codings if each not in ("", "identity"))


def _with_further(base: _Hash, parameters: str, coding: str) -> _Hash:
    """Add to the hash the facts that the first fingerprints did not know, if there are any."""
    if parameters or coding:
        base.update(_FURTHER)
        base.update(_frame(parameters, coding))
    return base


def _media(value: str) -> tuple[_Kind, str, str]:
    # Media types repeat; the bound on length keeps what a client may put into the cache small.
    return _media_cached(value) if len(value) <= _CACHED_LENGTH_MAX else _media_of(value)


def _media_of(value: str) -> tuple[_Kind, str, str]:
    """Return the parser for a media type, its canonical text, and the canonical text of its parameters."""
    media = parse_media_type(value)
    if media is None:
        return "raw", f"?{value}", ""
    kind: _Kind = "raw"
    essence = media.essence
    if essence == "application/json" or (essence.startswith("application/") and essence.endswith("+json")):
        # In another charset the same bytes would be another document.
        kind = "json" if media.charset in _UTF8 else "raw"
    elif essence == "application/x-www-form-urlencoded":
        kind = "form"
    elif essence == "multipart/form-data":
        kind = "multipart"
    parameters = media.others_text
    if media.boundary and not essence.startswith("multipart/"):
        parameters += f";boundary={media.boundary}"
    # Where parameters count there is no older fingerprint to be equal to: the one spelling of the charset is enough.
    charset = "" if parameters and kind in ("json", "form") and media.charset in _UTF8 else media.charset
    return kind, f"{essence};{charset}", parameters


_media_cached = lru_cache(maxsize=256)(_media_of)


def _boundary(value: str) -> bytes:
    media = parse_media_type(value)
    # Beyond ASCII it is not a boundary, and the digest detects that.
    return b"" if media is None else media.boundary.encode("utf-8", "surrogatepass")


class Version(NamedTuple):
    """The rules specific to one version of the algorithm.

    Parameters: ``media`` how to read a body of this Content-Type, and which part counts; ``subject`` the shared facts
    as bytes, and ``request`` those of one request, which follow them.
    """

    media: Callable[[str], tuple[_Kind, str, str]]
    subject: Callable[[Facts, str], bytes]
    request: _RequestFrame


VERSIONS: Final[dict[int, Version]] = {1: Version(_media, _subject_frame, _request_frame)}
"""Every version that a recipe can name. Add a line for a new one; the meaning of a former line never changes."""
