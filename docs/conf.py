"""The site: Sphinx reads the Markdown pages as they are, and four things are added while it reads.

- The navigation is the lists of links on ``index.md``, section by section, so that a page which no list names fails
  the build. A link to a page that is about to be written waits in a comment. The decisions stand in their own index
  alone: in the navigation they would be most of every page, and half of the time of a build.
- The pages of ``reference/`` get a table and the whole docstring of every name that they list.
- CONTRIBUTING.md and CHANGELOG.md, which live above this folder, become pages.
- Docstrings are written to be read in the source; ``_docstring`` completes what reStructuredText wants to be told.

Build with ``make docs``.
"""

from __future__ import annotations

import gc
import inspect
import re
import sys
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS))

import docstrings  # noqa: E402 - the line above is what makes it importable

import semel.errors  # noqa: E402

project = "Semel"
author = "the authors of Semel"
copyright = author
version = release = semel.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["**/.*"]
root_doc = "index"
templates_path: list[str] = []
nitpicky = False
# Output in examples is cut with three dots, which no lexer of JSON or Python accepts.
suppress_warnings = ["misc.highlighting_failure"]

myst_heading_anchors = 4
myst_links_external_new_tab = False

default_role = "code"
smartquotes = False
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
maximum_signature_line_length = 80
toc_object_entries = False  # headings say it; members would make the list as long as the page

html_theme = "furo"
html_title = f"Semel {release}"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
pygments_style = "friendly"

# Python looks for garbage so often while pages grow that this was a quarter of a build: now after so many pages.
gc.disable()
_GARBAGE_EVERY = 100
_pages = count(1)

_ABOVE = {"contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md"}
_navigations: dict[tuple[tuple[str, Any], ...], str] = {}
_DECISION = re.compile(r"decisions/\d+")
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_ITEM = re.compile(r"^- \[([^\]]+)\]\(([\w/.-]+)\.md\)(.*)$", re.MULTILINE)
_ERRORS = "|".join(name for name, value in vars(semel.errors).items() if inspect.isclass(value))
_SECTION = re.compile(r"^Parameters \((.*)\):$")
_RAISES = re.compile(rf"\b(?<![`.])({_ERRORS})\b(?!`)")


def _read(app: Sphinx, docname: str, source: list[str]) -> None:
    """What the site adds to a page."""
    if next(_pages) % _GARBAGE_EVERY == 0:
        gc.collect()
        gc.freeze()  # what is left stays
    if docname in _ABOVE:
        app.env.note_dependency(str(DOCS.parent / _ABOVE[docname]))
        text = (DOCS.parent / _ABOVE[docname]).read_text("utf-8")
        source[0] = re.sub(r"\]\((?:docs/)?(?!\w+:)", lambda found: "](" if "docs/" in found[0] else "](../", text)
    source[0] = re.sub(
        r"\]\((?:\.\./)+(CONTRIBUTING|CHANGELOG)\.md", lambda found: _to_page(docname, found[1]), source[0]
    )
    source[0] = source[0].replace("](../README.md", "](index.md")
    source[0] = re.sub(r"\[[\w./-]+\.md\]\(", "[](", source[0])  # a file's name: the site says the page's title
    if docname == "index":
        source[0] += _navigation(source[0])
    if _DECISION.search(docname):
        app.env.metadata[docname]["orphan"] = True
    if docname.startswith("reference/"):
        source[0] = _with_docstrings(source[0])


def _to_page(docname: str, name: str) -> str:
    return f"]({'../' * docname.count('/')}{name.lower()}.md"


def _navigation(text: str) -> str:
    """A hidden table of contents for every section that lists pages."""
    made = []
    parts = _HEADING.split(text)
    for caption, section in zip(["", *parts[1::2]], parts[0::2], strict=True):
        pages = _ITEM.findall(section)
        if pages:
            heading = f":caption: {caption}\n" if caption else ""
            made.append("\n\n```{toctree}\n:hidden:\n" + heading + "\n" + _entries(pages) + "\n```\n")
    return "".join(made)


def _entries(pages: list[tuple[str, str, str]]) -> str:
    """The lines of a table of contents, in the list's own words."""
    return "\n".join(f"{text} <{page}>" for text, page, _ in pages)


def _with_docstrings(text: str) -> str:
    """A page of the reference: a table in the place of its list, with links, and below it what the docstrings say."""
    lines = ["| name | what it is |", "| --- | --- |"]
    entries = []
    for name, said, first in docstrings.rows(text):
        lines.append(f"| {{py:obj}}`{name} <{first}>` | {said} |")
        if first == name:
            kind = _kind(name)
            heading = f"## {name.rpartition('.')[2]}\n\n" if kind in ("class", "exception") else ""
            entries.append(f"{heading}```{{eval-rst}}\n{_directive(kind, name, said)}\n```\n")
    return "\n".join((docstrings.without_list(text, "\n".join(lines) + "\n"), *entries))


def _kind(name: str) -> str:
    if name in docstrings.VALUES:
        return "data"
    value = docstrings.resolve(name)
    if inspect.isclass(value):
        return "exception" if issubclass(value, BaseException) else "class"
    return "function"


def _directive(kind: str, name: str, said: str) -> str:
    if kind == "data":
        return f".. py:data:: {name}\n\n   {said}"
    options = "\n   :members:" if kind == "class" else ""
    value = docstrings.resolve(name)
    if kind == "class" and (hasattr(value, "__members__") or hasattr(value, "_fields")):
        options += "\n   :undoc-members:"
    if value is semel.Permit:
        options += "\n   :inherited-members: object"  # what a feature adds to a permit lies in the feature's room
    return f".. auto{kind}:: {name}{options}"


def _share_navigation(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """The navigation beside a decision is the same beside all of them: none is in it, and they are in one folder."""
    make = context.get("toctree")
    if make is not None and _DECISION.search(page):

        def make_shared(**options: Any) -> str:
            form = tuple(options.items())
            if form not in _navigations:
                _navigations[form] = make(**options)
            return _navigations[form]

        context["toctree"] = make_shared


def _docstring(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Indented text after a paragraph is an example, and the names of errors lead to them."""
    if lines[0].startswith("Alias for field number"):
        lines[:] = []
    made: list[str] = []
    literal = False
    for number, line in enumerate(lines):
        line = _SECTION.sub(r"*\1.*\n\nArgs:", line)
        indented = line.startswith("    ")
        if indented and not literal and not lines[number - 1] and _is_prose(lines, number):
            made[-1:] = ["", "::", ""]
        literal = indented or (literal and not line)
        if not indented and not line.startswith(">>>") and not (number and lines[number - 1].startswith(">>>")):
            line = _RAISES.sub(lambda found: f":exc:`~semel.errors.{found[1]}`", line)
        made += line.split("\n")
    lines[:] = made


def _is_prose(lines: list[str], number: int) -> bool:
    """Whether the last line above, beyond empty ones, is a sentence: no list, no directive."""
    above = next((line for line in reversed(lines[:number]) if line), "")
    return not above.startswith((" ", "-", "*", "..")) and not above.endswith("::")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", _read)
    app.connect("html-page-context", _share_navigation, priority=400)  # before the theme asks for it
    app.connect("autodoc-process-docstring", _docstring, priority=400)  # before napoleon's
    return {"parallel_read_safe": True, "parallel_write_safe": True}
