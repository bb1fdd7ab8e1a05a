"""Write below each list of ``reference/`` what the docstrings say, for readers on a code host.

python docs/make_reference.py            write the pages
python docs/make_reference.py --check    exit code 1 where a page is not as the code is
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

_DOCS: Final = Path(__file__).resolve().parent
sys.path[:0] = [str(_DOCS), str(_DOCS.parent)]

import docstrings  # noqa: E402 - the line above is what makes it importable

_ROLE: Final = re.compile(r":\w+:`~?([^`]+)`")
_LINK: Final = re.compile(r"`([^`<]+) <([^`>]+)>`_+")


def page(text: str) -> str:
    """A page whose list is followed by every docstring, in Markdown.

    Parameters: ``text`` the page as it is; what was written below its list before is left out.
    """
    text = docstrings.written_by_hand(text)
    whole = "\n".join([text.rstrip("\n"), "", docstrings.MARK, "", *_sections(text)])
    return re.sub(r"\n{3,}", "\n\n", whole).rstrip("\n") + "\n"


def _sections(text: str) -> Iterator[str]:
    for name, said, first in docstrings.rows(text):
        if name in docstrings.VALUES or first != name:
            yield from (f"### `{name}`", "", said if first == name else f"The same as `{first}`.", "")
            continue
        value = docstrings.resolve(name)
        yield from (f"### `{name}{_parameters(value)}`", "", *_markdown(inspect.cleandoc(value.__doc__ or "")), "")
        methods = list(_methods(value)) if inspect.isclass(value) else []
        yield from ([*methods, ""] if methods else [])


def _methods(kind: type) -> Iterator[str]:
    """The public methods and properties that a class defines itself, each with its docstring's first sentence."""
    for name, member in vars(kind).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if name.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        call = "" if isinstance(member, property) else _parameters(function)
        yield f"- `{name}{call}`: {docstrings.first_sentence(function.__doc__)}"


def _parameters(value: Any) -> str:
    """The parameters' names of a function; nothing for a class, whose docstring describes them."""
    if not inspect.isfunction(value):
        return ""
    names: list[str] = []
    for parameter in inspect.signature(value).parameters.values():
        stars = [parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD]
        star = "*" * (stars.index(parameter.kind) + 1) if parameter.kind in stars else ""
        if parameter.kind is parameter.KEYWORD_ONLY and not any(name.startswith("*") for name in names):
            names.append("*")
        names.append(f"{star}{parameter.name}")
    return f"({', '.join(name for name in names if name not in ('self', 'cls'))})"


def _markdown(text: str) -> Iterator[str]:
    """A docstring's lines: its indented blocks and its examples become blocks of text, its parameters a list."""
    for part in re.split(r"\n{2,}", text):
        lines = part.split("\n")
        if lines[0].startswith((">>>", "    ")):
            yield from ("```text", *lines, "```", "")
        elif len(lines) > 1 and lines[0].endswith(":") and lines[1].startswith("    "):
            yield from (lines[0], "", *_entries(lines[1:]), "")
        else:
            prose = re.sub(r"::$", ":", " ".join(lines) if not _is_list(lines) else part)
            yield from (_inline(prose), "")


def _entries(lines: list[str]) -> Iterator[str]:
    """The parameters of a docstring, one list item each: a line that is indented further belongs to the one above."""
    whole = re.sub(r"\n {5,}", " ", "\n".join(lines))
    for line in whole.split("\n"):
        names, colon, text = line.strip().partition(": ")
        yield _inline(f"- `{names}`: {text}" if colon and re.fullmatch(r"[\w, *]+", names) else f"- {line.strip()}")


def _inline(text: str) -> str:
    """Roles and links of reStructuredText in a line, as Markdown has them."""
    prose = _ROLE.sub(lambda found: f"`{found[1].rpartition('.')[2]}`", _LINK.sub(r"[\1](\2)", text))
    return prose.replace("``", "`")


def _is_list(lines: list[str]) -> bool:
    return any(line.lstrip().startswith(("- ", "* ", "|", ">>>")) for line in lines)


def main(arguments: list[str]) -> int:
    """Write the pages, or compare them."""
    stale = []
    for path in sorted(docstrings.FOLDER.glob("*.md")):
        text = path.read_text("utf-8")
        made = page(text)
        if made != text:
            stale.append(path.name)
            if "--check" not in arguments:
                path.write_text(made, "utf-8")
    if "--check" in arguments and stale:
        sys.stderr.write(f"semel: {', '.join(stale)} is not as the code is; run: python docs/make_reference.py\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
