"""The reference: from the lists on the pages of ``reference/`` to tables with the first sentence of every docstring.

A page lists dotted names and whole modules: of a module its ``__all__``, or the classes and functions that it
defines. A public name without a docstring is refused. What no page lists is not public and may change
without notice. ``conf.py`` puts the tables in the place of the lists, and the whole docstrings below.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).resolve().parent / "reference"
_ITEM: Final = re.compile(r"^- (everything in )?`([\w.]+)`$", re.MULTILINE)
MARK: Final = "<!-- from here on written by docs/make_reference.py -->"
_LIST: Final = re.compile(rf"(?:{_ITEM.pattern}\n)+\nThe site \(`make docs`\)[^\n]+\n", re.MULTILINE)

# Values have no docstring of their own that a program can read.
VALUES: Final = {
    "semel.functions.this_permit": "The default of the parameter that takes the permit.",
    "semel.testing.conformance.CASES": "Every case by its name, which says what must hold.",
    "semel.testing.required.REQUIRED": "The required tests by name, in their order.",
    "verification.simulate.FORMAT": "The version of recordings; a recording of another one is refused.",
    "verification.explore.MODES": "Everything that is explored, by name.",
    "verification.explore.VARIANTS": "Unsafe variants of the protocol, each of which the explorer must refuse.",
    "verification.mutants.MUTANTS": "Every mutant.",
    "verification.mutants.PARTS": "The parts of the kit that are let at each mutant, by name.",
    "semel.client.Outcome": "What a command ended with: Done, Refused, InDoubt or NotYet.",
    "semel.workers.Finding": "What a reconciler answers: SucceededWith, StepSucceeded, DidNotHappen or StillUnknown.",
    "semel.telemetry.EVENTS": "Every event with the names of its labels.",
}


def resolve(name: str) -> Any:
    """The object of a dotted name. Raises LookupError where there is none."""
    module, _, attribute = name.rpartition(".")
    try:
        home = import_module(module)
        # The package's own word first: a function may be named as the module that it comes from.
        return getattr(home, attribute) if hasattr(home, attribute) else import_module(name)
    except ModuleNotFoundError as error:
        raise LookupError(f"there is no {name}") from error


def exported_names(module: str) -> list[str]:
    """The public names of a module: its ``__all__``, or the classes and functions that it defines."""
    home = import_module(module)
    listed = getattr(home, "__all__", None)
    if listed is not None:
        return sorted(listed, key=lambda name: (name.isupper(), name.lower()))
    own = [
        name
        for name, value in vars(home).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isroutine(value))
        and getattr(value, "__module__", None) == module
    ]
    return [*own, *(name.rpartition(".")[2] for name in VALUES if name.rpartition(".")[0] == module)]


def written_by_hand(text: str) -> str:
    """A page without what ``make_reference.py`` adds to it for readers on a code host."""
    return text.partition(MARK)[0]


def names_of(text: str) -> Iterator[str]:
    """Every dotted name that a page lists."""
    for everything, name in _ITEM.findall(written_by_hand(text)):
        if everything:
            yield from (f"{name}.{each}" for each in exported_names(name))
        else:
            yield name


def sentence(name: str) -> str:
    """The first sentence of a name's docstring, as Markdown. Raises LookupError where there is none."""
    if name in VALUES:
        return VALUES[name]
    value = resolve(name)
    text = inspect.getdoc(value) if not inspect.isclass(value) else value.__doc__
    if not text or text.startswith(f"{name.rpartition('.')[2]}("):  # what a dataclass or a named tuple writes itself
        raise LookupError(f"{name} is public and has no docstring")
    return first_sentence(text)


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, as Markdown."""
    first = inspect.cleandoc(text).split("\n\n")[0].replace("\n", " ")
    first = re.split(r"(?<=[.:?!])\s+(?=[A-Z`])", first)[0].rstrip(":")
    first = re.sub(r":\w+:`~?([^`]+)`", lambda found: f"`{found[1].rpartition('.')[2]}`", first)
    return first.replace("``", "`").replace("|", "\\|")


@cache
def first_names() -> dict[int, str]:
    """Each listed object with the name under which it is described: the first one, page by page."""
    found: dict[int, str] = {}
    for path in sorted(FOLDER.glob("*.md"), key=lambda path: (path.stem != "semel", path.stem)):
        for name in names_of(path.read_text("utf-8")):
            if name not in VALUES:
                found.setdefault(id(resolve(name)), name)
    return found


def rows(text: str) -> list[tuple[str, str, str]]:
    """What a page lists: each name, what it is in a sentence, and the name under which it is described."""
    firsts = first_names()
    found = []
    for name in names_of(text):
        first = firsts.get(id(resolve(name)), name)
        found.append((name, sentence(name), name if name in VALUES else first))
    return found


def without_list(text: str, table: str) -> str:
    """The page with a table in the place of its list. Raises LookupError where it has none."""
    made, count = _LIST.subn(lambda _: table, written_by_hand(text))
    if count != 1:
        raise LookupError("a page of reference has one list of names, and below it the sentence on the site")
    return made
