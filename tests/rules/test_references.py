"""Names that come with the request: which texts are business references, and where one or the key is found."""

from __future__ import annotations

from typing import Any

import pytest

from semel.errors import ConfigurationError, InvalidBody, InvalidKey, MissingKey, PolicyError
from semel.operations.references import Source, check_reference, check_sources, is_reference, sources

BODY = b'{"order": {"id": "A-1", "n": 42, "a/b": {"~": "x"}, "none": null, "list": [1], "yes": true, "f": 1.5}}'
PARAMS = (("orderId", "A-1"), ("empty", ""), ("spaced", "a b"), ("long", "x" * 256), ("line", "a\nb"))


def of(given: str) -> Source:
    return Source.of("key_from", given)


@pytest.mark.parametrize("text", ["x", "x" * 255, "INV-2026/117", "ü b"])
def test_valid_references_are_accepted(text: str) -> None:
    assert is_reference(text)
    check_reference(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "''"),
        ("x" * 256, "'" + "x" * 40 + "'"),
        ("a\n", "'a\\\\n'"),
        ("\x7f", "x7f"),
        (7, "int"),
        (None, "NoneType"),
    ],
)
def test_an_invalid_reference_is_refused(text: object, told: str) -> None:
    assert not is_reference(text)
    with pytest.raises(
        PolicyError, match=f"must be 1 to 255 printable characters, such as an invoice's number; .*{told}"
    ):
        check_reference(text)


@pytest.mark.parametrize(
    ("given", "found", "text"),
    [
        ("path:orderId", "A-1", "path parameter 'orderId'"),
        ("path:other", None, "path parameter 'other'"),
        ("body:/order/id", "A-1", "body member '/order/id'"),
        ("body:/order/n", "42", "body member '/order/n'"),
        ("body:/order/a~1b/~0", "x", "body member '/order/a~1b/~0'"),
        ("body:/order/none", None, "body member '/order/none'"),
        ("body:/order/id/deeper", None, "body member '/order/id/deeper'"),
        ("body:/order/list/0", None, "body member '/order/list/0'"),
        ("body:/nothing", None, "body member '/nothing'"),
    ],
)
def test_a_reference_is_found_at_its_source(given: str, found: str | None, text: str) -> None:
    source = of(given)
    assert (source.find(PARAMS, BODY), source.text) == (found, text)


@pytest.mark.parametrize(
    "given",
    ["", "path:", "path:a-b", "path:1", "body:", "body:/", "body:a", "body:/a~2", "form:", "form:a b", "x:y", 7],
)
def test_an_impossible_source_is_refused(given: Any) -> None:
    with pytest.raises(PolicyError, match=r"^key_from must be 'path:orderId' \(a param.* of a form\); it is"):
        of(given)


@pytest.mark.parametrize("name", ["list", "yes", "f"])
def test_a_value_that_is_not_text_is_refused(name: str) -> None:
    with pytest.raises(
        InvalidBody, match=f"The body member '/order/{name}' must be a text or a whole number; send one"
    ):
        of(f"body:/order/{name}").find((), BODY)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"a":1,"a":2}', b'{"b":{"a":1,"a":2}}', b"[" * 100_000])
def test_an_ambiguous_body_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidBody, match="The body member '/a' cannot be read: send a JSON object that names each"):
        of("body:/a").find((), body)


def test_a_reference_as_the_key() -> None:
    assert of("path:orderId").key(PARAMS, b"") == of("body:/order/id").key((), BODY) == "A-1"
    with pytest.raises(MissingKey, match="takes its key from the path parameter 'x', which is missing; send it"):
        of("path:x").key(PARAMS, b"")
    for name in ("empty", "spaced", "long", "line"):
        with pytest.raises(InvalidKey, match=f"path parameter '{name}' is this command's key; send 1 to 255 visible"):
            of(f"path:{name}").key(PARAMS, b"")


def test_a_business_reference_from_the_request() -> None:
    assert of("path:spaced").reference(PARAMS, b"") == "a b"
    assert of("body:/order/n").reference((), BODY) == "42"
    with pytest.raises(InvalidBody, match="path parameter 'x' is this command's business reference, and it is missing"):
        of("path:x").reference(PARAMS, b"")
    for name in ("empty", "long", "line"):
        with pytest.raises(
            InvalidBody,
            match=rf"'{name}' is this command's business reference; send 1 to 255 printable characters there.$",
        ):
            of(f"path:{name}").reference(PARAMS, b"")


def test_a_route_without_the_parameter() -> None:
    of("path:orderId").check_parameters(("b", "orderId"), "pay")
    of("body:/a").check_parameters((), "pay")
    with pytest.raises(ConfigurationError, match=r"^pay: its path has no parameter 'x'; its parameters are a, b$"):
        of("path:x").check_parameters(("b", "a"), "pay")
    with pytest.raises(ConfigurationError, match=r"^pay: its path has no parameter 'x'; it has none$"):
        of("path:x").check_parameters((), "pay")


def test_key_and_reference_options_combine() -> None:
    path, body = of("path:a"), Source.of("reference_from", "body:/b")
    assert sources(None, None) == (None, None)
    assert sources("path:a", None) == (path, None)
    assert sources(None, "body:/b") == (None, body)
    assert sources("path:a", "body:/b") == (path, body)
    assert sources("reference", "body:/b") == (body, body)
    with pytest.raises(PolicyError, match="key_from='reference' takes the key from the business reference; give"):
        sources("reference", None)
    with pytest.raises(PolicyError, match=r"^reference_from must be"):
        sources(None, "reference")
    check_sources("path:a", None, required=True)
    check_sources(None, "body:/b", required=False)
    with pytest.raises(PolicyError, match="key='optional' means nothing"):
        check_sources("path:a", None, required=False)
    with pytest.raises(PolicyError, match=r"^key_from must be"):
        check_sources("a", None, required=True)
