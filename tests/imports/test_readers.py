"""Files as rows: a row that cannot be read fails by its line, with the column and the reason, and no other does."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import pytest

from semel.errors import ImportRefused, PolicyError
from semel.imports import Csv, JsonArray, JsonLines
from semel.imports.readers import Format, Lines, UnreadableFile, format_for, packed_recipe, read_recipe
from semel.imports.rules import BadRow

BOM = b"\xef\xbb\xbf"


def read(form: Format, file: bytes) -> list[Any]:
    """Rows as values; one that cannot be read as its line, column and code."""
    return [
        (row.line, row.column, row.code) if isinstance(row, BadRow) else json.loads(row)
        for row in form.rows(BytesIO(file))
    ]


@pytest.mark.parametrize(
    ("form", "file", "rows"),
    [
        (Csv(), b"a,b\r\n1,2\r\n", [{"a": "1", "b": "2"}]),
        (Csv(), BOM + b"a,b\n1,2", [{"a": "1", "b": "2"}]),
        (Csv(), b'a,b\n"x\ny","say ""hi"""\n\n3,4\n', [{"a": "x\ny", "b": 'say "hi"'}, {"a": "3", "b": "4"}]),
        (Csv(delimiter=";", quote="'", encoding="cp1252"), b"a;b\n'1;2';\x80\n", [{"a": "1;2", "b": "\u20ac"}]),
        (Csv(columns=("a", "b")), b"1,2\n", [{"a": "1", "b": "2"}]),
        (Csv(), b"a,b\n1\n1,2,3\n4,5\n", [(2, None, "ROW_RAGGED"), (3, None, "ROW_RAGGED"), {"a": "4", "b": "5"}]),
        (Csv(), b"a,b\nx,\xff\n1,2\n", [(2, "b", "ROW_ENCODING"), {"a": "1", "b": "2"}]),
        (Csv(), b"a,b\n\x00,1\n1,2\n", [(2, "a", "ROW_ENCODING"), {"a": "1", "b": "2"}]),
        (Csv(), b'a,b\n"x"y,1\n1,2\n', [(2, None, "ROW_MALFORMED"), {"a": "1", "b": "2"}]),
        (Csv(), b'a,b\n1,2\n"never ends,3\n', [{"a": "1", "b": "2"}, (3, None, "ROW_MALFORMED")]),
        (
            Csv(row_bytes_max=64),
            b"a,b\n" + b"," * 1_000_000 + b"\n1,2\n",
            [(2, None, "ROW_MALFORMED"), {"a": "1", "b": "2"}],
        ),
        (JsonLines(), BOM + b'{"a": 1.0}\n\n[2]\n', [{"a": 1}, [2]]),
        (
            JsonLines(),
            b'{"a":1}\n{"a"\n{"a":1,"a":2}\n7',
            [{"a": 1}, (2, None, "ROW_MALFORMED"), (3, None, "ROW_MALFORMED"), 7],
        ),
        (JsonLines(), b'"\xff"\n"ok"\n', [(1, None, "ROW_MALFORMED"), "ok"]),
        (JsonLines(row_bytes_max=64), b"1" * 500 + b"\n2\n", [(1, None, "ROW_TOO_LONG"), 2]),
        (JsonArray(), b'[{"a": 1}, {"a": 1, "a": 2}, 3]', [{"a": 1}, (2, None, "ROW_MALFORMED"), 3]),
    ],
)
def test_rows_are_read(form: Format, file: bytes, rows: list[Any]) -> None:
    assert read(form, file) == rows


@pytest.mark.parametrize(
    "wrong",
    [
        b'"' + b"evil,1\n" * 60 + b'",2\n',  # more than a row may have
        b'"x"y,"\nevil,1\n"\n',  # not as declared, and a quoted text goes on behind that
        b'"\nevil,1\n""evil,1\n",2,3\n',
    ],
)
def test_lines_inside_of_a_row_that_cannot_be_read_are_no_rows(wrong: bytes) -> None:
    found = read(Csv(row_bytes_max=64), b"a,b\n0,0\n" + wrong + b"1,2\n3,4\n")
    assert found[0] == {"a": "0", "b": "0"}
    assert (found[1][0], found[1][2]) in [(3, "ROW_MALFORMED"), (3, "ROW_RAGGED")]
    assert found[2:] == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]


def test_text_after_an_unterminated_quote_is_never_booked() -> None:
    found = read(Csv(row_bytes_max=64), b'a,b\n1,2\n"x,3\n' + b"evil,1\n" * 1000)
    assert found == [{"a": "1", "b": "2"}, (3, None, "ROW_MALFORMED")]


@pytest.mark.parametrize(
    ("form", "file", "code"),
    [
        (Csv(), b"\n\n", "NO_HEADER"),
        (Csv(), b"a,a\n1,2\n", "BAD_HEADER"),
        (Csv(), b"a,\n1,2\n", "BAD_HEADER"),
        (Csv(), b"\xff,b\n1,2\n", "BAD_HEADER"),
        (Csv(), b'"a\n1,2\n', "BAD_HEADER"),
        (Csv(), b"a," * 70_000 + b"\n", "BAD_HEADER"),
        (JsonArray(), b'{"a": 1}', "FILE_MALFORMED"),
        (JsonArray(), b"[1, 2", "FILE_MALFORMED"),
        (JsonArray(), b"[1] x", "FILE_MALFORMED"),
    ],
)
def test_a_file_without_readable_rows_states_why(form: Format, file: bytes, code: str) -> None:
    with pytest.raises(UnreadableFile) as unreadable:
        read(form, file)
    assert unreadable.value.code == code


def test_lines_that_end_in_a_lone_carriage_return_are_refused() -> None:
    with pytest.raises(UnreadableFile, match="a line ends in a carriage return alone; end lines in LF or CR LF"):
        read(Csv(), b"a,b\r1,2\r")


def test_the_order_of_columns_and_members_does_not_change_a_row() -> None:
    [one] = Csv().rows(BytesIO(b"a,b\n1,2\n"))
    [two] = Csv().rows(BytesIO(b"b,a\n2,1\n"))
    assert one == two
    [three] = JsonLines().rows(BytesIO(b'{"b":"2","a":"1"}\n'))
    assert three == one


def test_line_numbers_stay_right_after_quoted_line_breaks_and_blank_lines() -> None:
    lines = Lines()
    list(Csv().rows(BytesIO(b'a\n"1\n1"\n\n2\nx,y\n3\n'), lines))
    assert [lines.line_of(place) for place in range(4)] == [2, 5, 6, 7]


@pytest.mark.parametrize("form", [Csv(delimiter="\t", columns=("a", "b")), JsonLines(row_bytes_max=100), JsonArray()])
def test_a_format_is_read_back_as_it_was_stored(form: Format) -> None:
    assert read_recipe(packed_recipe(form)) == form


@pytest.mark.parametrize("recipe", ["", "[]", "{}", '{"version":2,"form":"csv"}', '{"version":1,"form":"xlsx"}'])
def test_a_recipe_of_another_version_is_never_guessed(recipe: str) -> None:
    with pytest.raises(UnreadableFile) as unreadable:
        read_recipe(recipe)
    assert unreadable.value.code == "RECIPE_UNKNOWN"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-7", "utf-8-sig", "no-such", 7])
def test_an_encoding_must_have_line_feeds_of_one_byte(encoding: Any) -> None:
    with pytest.raises(PolicyError, match="encoding must be"):
        Csv(encoding=encoding)


@pytest.mark.parametrize("options", [{"delimiter": ""}, {"delimiter": '"'}, {"quote": "\n"}, {"columns": ("a", "a")}])
def test_a_wrong_dialect_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(PolicyError):
        Csv(**options)


def test_a_charset_that_is_not_declared_is_refused() -> None:
    assert format_for("Text/CSV; charset=UTF8; header=present", (Csv(),)) == Csv()
    with pytest.raises(ImportRefused, match="charset must be utf-8"):
        format_for("text/csv; charset=latin-1", (Csv(),))
