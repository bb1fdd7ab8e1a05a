"""The key's grammar, which parses the `Idempotency-Key` field lines into one canonical string.

Both spellings of a key are one key: `"abc"` (a String of RFC 9651) and `abc` (what most clients send). The file
also holds the format that an operation may require, and classifies weak keys so that they can be counted. It
deliberately does not make keys, hash them, or know scopes; and none of its error messages contains the key.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from semel.core.timing import PURGE_GRACE_US
from semel.errors import InvalidKey, KeyTooOld, MissingKey, PolicyError

KEY_LENGTH_MAX = 255
"""The longest key, in characters after parsing."""

# Every escape doubles a character, and parameters are ignored: no legitimate field is longer than this. The bound
# keeps the input of the patterns below short under any header limit of the server.
_LINE_BYTES_MAX = 4096

# Bare: visible ASCII without the quote, the comma (a joined second line) and the semicolon (parameters).
_BARE = re.compile(rb"[!#-+\--:<-~]{1,255}").fullmatch
is_bare = _BARE
"""Match a field line that is a key in the bare form, as :func:`parse_key` reads it, or return None."""
_QUOTED = re.compile(rb'"((?:[ !#-\[\]-~]|\\["\\])*+)"')
_ESCAPED = re.compile(rb'\\(["\\])')

# RFC 9651, 3.1.2: *( ";" *SP key [ "=" bare-item ] ). The values are ignored, so telling the kinds of a number or a
# Date apart would gain nothing; the character sets keep a second key or stray text from passing as a parameter.
_PARAMETERS = re.compile(
    rb"""(?: ; [ ]*+ [a-z*][a-z0-9_.*-]*+
             (?: = (?: -?[0-9]++(?:\.[0-9]++)?+ | @-?[0-9]++ | \?[01] | :[A-Za-z0-9+/=]*+:
                     | "(?:[ !#-\[\]-~]|\\["\\])*+" | %"[ !#-~]*+"
                     | [A-Za-z*][!\#$%&'*+.^_`|~0-9A-Za-z:/-]*+ ) )?+ )*+""",
    re.VERBOSE,
)
_UUID = re.compile(r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}").fullmatch
_UUID_LENGTH = 36
_UUID7 = re.compile(r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-7[0-9A-Fa-f]{3}-[89ABab][0-9A-Fa-f]{3}-[0-9A-Fa-f]{12}").fullmatch
_AGE_SECONDS_MAX = 10 * 366 * 86_400
# As long as a purge waits beyond each retention: a key ahead by less becomes too old before its tombstone goes.
_AHEAD_SECONDS_MAX = PURGE_GRACE_US / 1_000_000

_SHORT = 16
_DISTINCT_MIN = 5
_EMAIL = re.compile(r"[^@]++@[A-Za-z0-9.-]+\.[A-Za-z]{2,}").fullmatch
# 12 to 19 digits, alone or in groups, that begin as the numbers of the large card schemes do.
_CARD_LENGTH_MAX = 23
_CARD = re.compile(r"(?:3[0-9]|4|5[0-9]|6[0-9]|2[2-7])[0-9]*+(?:[ -][0-9]++)*+").fullmatch

Weakness = Literal["short", "digits", "repeated", "email", "card"]


def parse_key(lines: Sequence[bytes]) -> str:
    r"""Read the one key that a request carries.

    Args:
        lines: the values of all `Idempotency-Key` field lines, in the order received.

    Returns:
        The key, 1 to 255 visible ASCII characters, unquoted and unescaped. It is compared byte by byte: no case
        folding, no percent-decoding.

    Raises:
        MissingKey: there is no field line.
        InvalidKey: more than one line, or a line that is neither a String nor the bare form.

    Source: RFC 9651, sections 3.3.3 (Strings) and 3.1.2 (Parameters).

    >>> parse_key([b"8e03978e-40d5-43dd-bc93-6894a57f9324"])
    '8e03978e-40d5-43dd-bc93-6894a57f9324'
    >>> parse_key([b'"say \\"once\\"";v=1'.replace(b" ", b"-")])
    'say-"once"'
    """
    if len(lines) == 1:
        line = lines[0]
        if _BARE(line):
            return line.decode("ascii")
        return _parse_uncommon(line)
    if not lines:
        raise MissingKey("The request has no Idempotency-Key; send one that is unique to this command.")
    raise InvalidKey("The request has several Idempotency-Key fields; send exactly one.")


def _parse_uncommon(line: bytes) -> str:
    """Parse any key other than a bare one without blanks around it."""
    if len(line) > _LINE_BYTES_MAX:
        raise InvalidKey(f"The Idempotency-Key field is too long; send a key of 1 to {KEY_LENGTH_MAX} characters.")
    value = line.strip(b" \t")
    if not value:
        raise InvalidKey(f"The Idempotency-Key is empty; send a key of 1 to {KEY_LENGTH_MAX} characters.")
    if _BARE(value):
        return value.decode("ascii")
    if not value.startswith(b'"'):
        raise InvalidKey(_why_not_bare(value))
    quoted = _QUOTED.match(value)
    if quoted is None:
        raise InvalidKey(
            "The Idempotency-Key is not a well-formed quoted string; close the quote, use ASCII only, and write a "
            'quote as \\" and a backslash as \\\\ (RFC 9651).'
        )
    if _PARAMETERS.fullmatch(value, quoted.end()) is None:
        raise InvalidKey(
            "The Idempotency-Key has text after its closing quote that is not a parameter; send exactly one key."
        )
    return _check_quoted(_ESCAPED.sub(rb"\1", quoted[1]))


def _check_quoted(raw: bytes) -> str:
    """Check the text between the quotes: it has the same limits of length and characters as the bare form."""
    if not raw:
        raise InvalidKey(f"The Idempotency-Key is empty; send a key of 1 to {KEY_LENGTH_MAX} characters.")
    if len(raw) > KEY_LENGTH_MAX:
        raise InvalidKey(f"The Idempotency-Key is too long; send at most {KEY_LENGTH_MAX} characters.")
    if b" " in raw:
        raise InvalidKey("The Idempotency-Key contains a space; send visible ASCII characters only, such as a UUID.")
    return raw.decode("ascii")


def _why_not_bare(value: bytes) -> str:
    """Return the remedy for an unquoted value that is not a key, without repeating any of its characters."""
    if b"," in value:
        return "The Idempotency-Key contains a comma; send exactly one key, or quote it if the comma belongs to it."
    if b";" in value or b'"' in value:
        return "The Idempotency-Key contains a quote or a semicolon; send it as a quoted string (RFC 9651)."
    if any(not 0x21 <= byte <= 0x7E for byte in value):
        return "The Idempotency-Key contains a character that is not visible ASCII; send a UUID, for example."
    return f"The Idempotency-Key is too long; send at most {KEY_LENGTH_MAX} characters."


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFormat:
    """An operation's requirements for its keys beyond the grammar.

    Args:
        pattern: a regular expression the whole key must match. It runs on at most 255 characters, but a pattern
            that backtracks without end is the developer's to avoid.
        length_min: the shortest key, in characters, 1 to 255.
        uuid: whether the key must be a UUID in its hyphenated text form, in either case. The two cases of one UUID
            remain two keys.
        uuid7_max_age: how old a new command's key may be, in seconds. The key must then be a UUIDv7, which holds the
            time it was made at, and may be at most ten minutes ahead. A retry whose key is on record gets its answer
            however old it is; a retry after its record was purged is refused instead of run. At most the policy's
            ``tombstone_seconds``.

    Raises:
        PolicyError: at construction, when the pattern does not compile or no key could satisfy the format.

    >>> KeyFormat(uuid=True).check("8e03978e-40d5-43dd-bc93-6894a57f9324")
    >>> KeyFormat(length_min=16).check("1")
    Traceback (most recent call last):
        ...
    semel.errors.InvalidKey: This operation expects an Idempotency-Key of at least 16 characters; send such a key.
    """

    pattern: str | None = None
    length_min: int = 1
    uuid: bool = False
    uuid7_max_age: float | None = None
    _compiled: re.Pattern[str] | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        if not isinstance(self.uuid, bool):
            raise PolicyError(f"uuid must be True or False, not {self.uuid!r}.")
        if self.uuid7_max_age is not None:
            _check_span(self.uuid7_max_age)
        length_max = _UUID_LENGTH if self.uuid or self.uuid7_max_age is not None else KEY_LENGTH_MAX
        if type(self.length_min) is not int or not 1 <= self.length_min <= length_max:
            raise PolicyError(f"length_min must be between 1 and {length_max}, not {self.length_min}.")
        if self.pattern is not None:
            if not isinstance(self.pattern, str):  # bytes would compile, and match no key
                raise PolicyError(f"The key pattern must be a regular expression as text, not {self.pattern!r}.")
            try:
                compiled = re.compile(self.pattern)
            except (re.error, TypeError, OverflowError, RecursionError) as error:
                raise PolicyError(f"The key pattern is not a regular expression: {error}") from error
            object.__setattr__(self, "_compiled", compiled)

    def check(self, key: str, now: float | None = None) -> None:
        """Accept `key`, or raise `InvalidKey` with the expected format, which is public, but without the key.

        Args:
            now: seconds since 1970, as ``time.time()`` gives them. Without it a UUIDv7's age is not checked.

        Raises:
            KeyTooOld: a UUIDv7 that is older than `uuid7_max_age`.

        >>> format = KeyFormat(uuid7_max_age=86_400)
        >>> format.check("018f3c2a-5b00-7000-8000-000000000000", now=1_714_701_419)
        >>> format.check("018f3c2a-5b00-7000-8000-000000000000", now=1_724_701_419)
        Traceback (most recent call last):
            ...
        semel.errors.KeyTooOld: This Idempotency-Key is older than 86400 seconds, and has no record. \
A command that used it may have been purged: look for its result by your business reference before you use a new key.
        """
        if len(key) < self.length_min:
            raise InvalidKey(
                f"This operation expects an Idempotency-Key of at least {self.length_min} characters; send such a key."
            )
        if self.uuid and _UUID(key) is None:
            raise InvalidKey("This operation expects a UUID as Idempotency-Key; send one with its four hyphens.")
        if self.uuid7_max_age is not None:
            if _UUID7(key) is None:
                raise InvalidKey("This operation expects a UUIDv7 as Idempotency-Key; send one with its four hyphens.")
            if now is not None:
                self._check_age(now - int(key[:8] + key[9:13], 16) / 1000, self.uuid7_max_age)
        if self._compiled is not None and self._compiled.fullmatch(key) is None:
            raise InvalidKey(f"This operation expects an Idempotency-Key that matches {self.pattern}; send such a key.")

    def _check_age(self, age: float, most: float) -> None:
        if age > most:
            raise KeyTooOld(
                f"This Idempotency-Key is older than {most:.15g} seconds, and has no record. A command that used it "
                "may have been purged: look for its result by your business reference before you use a new key."
            )
        if age < -_AHEAD_SECONDS_MAX:
            raise InvalidKey(
                f"The time in this Idempotency-Key is more than {_AHEAD_SECONDS_MAX:.15g} seconds ahead of the server's"
                " clock; set the client's clock, and send a key that was made with it."
            )


def _check_span(seconds: object) -> None:
    if type(seconds) not in (int, float) or not 1 <= seconds <= _AGE_SECONDS_MAX:  # type: ignore[operator]
        raise PolicyError(
            f"uuid7_max_age must be 1 to {_AGE_SECONDS_MAX} seconds, such as 86_400 for a day; it is {seconds!r}. It "
            "is given in seconds, not milliseconds"
        )


def weakness(key: str) -> Weakness | None:
    """Return why a parsed key is likely to be reused by accident or to identify a person; None for a good key.

    Args:
        key: a key from `parse_key`.

    Returns:
        "email" if it looks like an address and "card" if it looks like a card's number: both reveal the caller to
        every reader of the key, and repeat with the next order. "short" below 16 characters; "digits" for
        digits alone (a counter or a clock); "repeated" for at most four distinct characters. Weak keys are counted,
        never refused: refusing is what `KeyFormat` is for.

    >>> weakness("1"), weakness("20240229120000000"), weakness("00000000-0000-0000-0000-000000000000")
    ('short', 'digits', 'repeated')
    >>> weakness("8e03978e-40d5-43dd-bc93-6894a57f9324") is None
    True
    >>> weakness("alice@example.com"), weakness("4111-1111-1111-1111")
    ('email', 'card')
    """
    if "@" in key and _EMAIL(key):
        return "email"
    if len(key) <= _CARD_LENGTH_MAX and _CARD(key) and _is_card(key):
        return "card"
    if len(key) < _SHORT:
        return "short"
    if key.isdigit():
        return "digits"
    if len(set(key)) < _DISTINCT_MIN:
        return "repeated"
    return None


def _is_card(key: str) -> bool:
    """Return whether the digits have a card number's length and its check digit (ISO/IEC 7812-1, annex B)."""
    digits = [int(digit) for digit in key if digit.isdigit()]
    doubled = [sum(divmod(digit * 2, 10)) for digit in digits[-2::-2]]
    return 12 <= len(digits) <= 19 and (sum(doubled) + sum(digits[-1::-2])) % 10 == 0
