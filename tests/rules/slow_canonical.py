"""Canonical JSON a second time: one character after the other, sharing nothing with the library.

The oracle of the canonical tests. It deliberately uses no parser, no encoder and no pattern.
"""

from __future__ import annotations

from semel.errors import RequestTooLarge

HEX = "0123456789abcdef"
SHORT = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}
ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class NotCanonical(Exception):
    """The document is no JSON, or ambiguous."""


def slow_canonical(body: bytes, depth_max: int = 64) -> bytes | None:
    """Return what `canonical_json` must answer, exceptions included."""
    if depth_of(body) > depth_max:
        raise RequestTooLarge("too deep")
    try:
        reader = Reader(body.decode("utf-8"))
        reader.blanks()
        text = reader.value()
        reader.blanks()
        if reader.at != len(reader.text):
            return None
        return text.encode("utf-8")
    except (NotCanonical, UnicodeError):
        return None


def depth_of(body: bytes) -> int:
    """The most brackets open at once, outside strings."""
    deepest = depth = 0
    in_string = escaped = False
    for byte in body:
        character = chr(byte)
        if escaped:
            escaped = False
        elif in_string:
            escaped = character == "\\"
            in_string = character != '"'
        elif character == '"':
            in_string = True
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


class Reader:
    """Reads a value and answers its canonical text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def peek(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def take(self) -> str:
        character = self.peek()
        if not character:
            raise NotCanonical
        self.at += 1
        return character

    def expect(self, word: str) -> str:
        for character in word:
            if self.take() != character:
                raise NotCanonical
        return word

    def blanks(self) -> None:
        while self.peek() and self.peek() in " \t\r\n":
            self.at += 1

    def value(self) -> str:
        first = self.peek()
        if first == "{":
            return self.object()
        if first == "[":
            return self.array()
        if first == '"':
            return quote(self.string())
        for word in ("true", "false", "null"):
            if first == word[0]:
                return self.expect(word)
        return self.number()

    def object(self) -> str:
        members: dict[str, str] = {}
        self.expect("{")
        self.blanks()
        if self.peek() == "}":
            return "{" + self.take()
        while True:
            self.blanks()
            name = self.string()
            if name in members:
                raise NotCanonical
            self.blanks()
            self.expect(":")
            self.blanks()
            members[name] = self.value()
            self.blanks()
            if self.peek() == "}":
                self.take()
                break
            self.expect(",")
        return "{" + ",".join(f"{quote(name)}:{members[name]}" for name in sorted(members, key=units)) + "}"

    def array(self) -> str:
        items = []
        self.expect("[")
        self.blanks()
        if self.peek() == "]":
            return "[" + self.take()
        while True:
            self.blanks()
            items.append(self.value())
            self.blanks()
            if self.peek() == "]":
                self.take()
                return "[" + ",".join(items) + "]"
            self.expect(",")

    def string(self) -> str:
        self.expect('"')
        codes: list[int] = []
        while True:
            character = self.take()
            if character == '"':
                return join_surrogates(codes)
            if ord(character) < 32:
                raise NotCanonical
            if character != "\\":
                codes.append(ord(character))
                continue
            escape = self.take()
            if escape == "u":
                code = 0
                for _ in range(4):
                    digit = self.take().lower()
                    if digit not in HEX:
                        raise NotCanonical
                    code = code * 16 + HEX.index(digit)
                codes.append(code)
            elif escape in ESCAPES:
                codes.append(ord(ESCAPES[escape]))
            else:
                raise NotCanonical

    def digits(self) -> str:
        taken = ""
        while self.peek() and self.peek() in "0123456789":
            taken += self.take()
        if not taken:
            raise NotCanonical
        return taken

    def number(self) -> str:
        token = self.take() if self.peek() == "-" else ""
        whole = self.digits()
        if len(whole) > 1 and whole[0] == "0":
            raise NotCanonical
        token += whole
        if self.peek() == ".":
            token += self.take() + self.digits()
        if self.peek() and self.peek() in "eE":
            token += self.take()
            if self.peek() and self.peek() in "+-":
                token += self.take()
            token += self.digits()
        return token


def join_surrogates(codes: list[int]) -> str:
    """Characters from code points, surrogate pairs put together; a lone one has no canonical form."""
    text = ""
    high = 0
    for code in codes:
        if high:
            if not 0xDC00 <= code <= 0xDFFF:
                raise NotCanonical
            text += chr(0x10000 + (high - 0xD800) * 0x400 + (code - 0xDC00))
            high = 0
        elif 0xD800 <= code <= 0xDBFF:
            high = code
        elif 0xDC00 <= code <= 0xDFFF:
            raise NotCanonical
        else:
            text += chr(code)
    if high:
        raise NotCanonical
    return text


def units(name: str) -> list[int]:
    """The UTF-16 code units of a name."""
    found = []
    for character in name:
        code = ord(character)
        if code >= 0x10000:
            found += [0xD800 + (code - 0x10000) // 0x400, 0xDC00 + (code - 0x10000) % 0x400]
        else:
            found.append(code)
    return found


def quote(text: str) -> str:
    out = '"'
    for character in text:
        code = ord(character)
        if code in SHORT:
            out += SHORT[code]
        elif code < 32:
            out += "\\u00" + HEX[code // 16] + HEX[code % 16]
        else:
            out += character
    return out + '"'
