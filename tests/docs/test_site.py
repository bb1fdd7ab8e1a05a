"""The site is built as `make docs` builds it: a broken link, a page that no list names or a docstring that cannot
be read fails here, and every public name is in the reference."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from sphinx.util.inventory import InventoryFile

import semel
from tests.docs.pages import DOCS, PAGES, ROOT, blocks
from tests.servers.running import once

SECONDS_MAX = 300.0  # half a minute on an idle core
# Of these modules everything is public. Elsewhere a name is public by being on a page of the reference.
WHOLE = (
    "semel.errors",
    "semel.core.flow",
    "semel.functions",
    "semel.core.model",
    "semel.policy",
    "semel.core.contract",
    "semel.telemetry",
    "semel.testing.conformance",
    "semel.testing.faults",
    "semel.testing.idempotent",
    "semel.testing.interleave",
    "semel.testing.required",
    "verification.simulate",
    "semel.workers",
)


class Built:
    """What a build warned of, and what it put where."""

    def __init__(self, folder: Path, warnings: str, *, failed: bool) -> None:
        self.folder = folder
        self.warnings = warnings
        self.failed = failed

    def names(self) -> set[str]:
        with (self.folder / "objects.inv").open("rb") as file:
            found = InventoryFile.loads(file.read(), uri="")
        return {name for kind in found.data if kind.startswith("py:") for name in found.data[kind]}


def build(source: Path, target: Path) -> Built:
    """A build by the words of the Makefile."""
    [line] = [line for line in (ROOT / "Makefile").read_text("utf-8").splitlines() if "-m sphinx" in line]
    options = line.split("-m ")[1].replace("build/.trees docs build/site", "").split()
    command = [sys.executable, "-m", *options, str(target / ".trees"), "-c", str(DOCS), str(source), str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS_MAX)
    return Built(target, done.stderr, failed=done.returncode != 0)


@pytest.fixture(scope="module")
def site() -> Built:
    """The site, built once in a run: its tests are spread over the workers."""

    def make(folder: Path) -> None:
        built = build(DOCS, folder / "site")
        (folder / "built.json").write_text(json.dumps({"warnings": built.warnings, "failed": built.failed}))

    home = once("site", make)
    return Built(home / "site", **json.loads((home / "built.json").read_text()))


@pytest.mark.no_cover  # with the build, which runs in its own process
def test_the_site_is_built_without_a_warning(site: Built) -> None:
    assert not site.failed, site.warnings
    assert site.warnings == ""


def test_every_page_is_there(site: Built) -> None:
    pages = [path.relative_to(DOCS).with_suffix(".html") for path in PAGES if path.is_relative_to(DOCS)]
    assert [str(page) for page in pages if not (site.folder / page).exists()] == []


def test_files_outside_of_docs_are_pages_too(site: Built) -> None:
    assert "What is not wanted" in (site.folder / "contributing.html").read_text("utf-8")
    assert "0.1.0" in (site.folder / "changelog.html").read_text("utf-8")
    assert 'href="contributing.html"' in (site.folder / "index.html").read_text("utf-8")


def test_the_state_of_every_record_is_drawn(site: Built) -> None:
    assert "states.svg" in (site.folder / "internals/states.html").read_text("utf-8")


def test_the_site_makes_no_outside_request(site: Built) -> None:
    """No script, style or picture comes from another host: it can be read without a network."""
    asked = ('src="http', 'rel="stylesheet" href="http', "@import", "url(http")
    files = [*site.folder.rglob("*.html"), *site.folder.rglob("*.css")]
    assert [path.name for path in files if any(word in path.read_text("utf-8") for word in asked)] == []


# --- the reference ---


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(DOCS)
    return import_module("docstrings")


def public() -> Iterator[tuple[str, object]]:
    for name in semel.__all__:
        yield f"semel.{name}", getattr(semel, name)
    for module in WHOLE:
        home = import_module(module)
        for name, value in vars(home).items():
            own = getattr(value, "__module__", None) == module and (inspect.isclass(value) or inspect.isfunction(value))
            if not name.startswith("_") and (own or name in getattr(home, "__all__", ())):
                yield f"{module}.{name}", value


def test_every_public_name_is_in_the_built_reference(site: Built) -> None:
    documented = {id(found) for found in map(_found, site.names()) if found is not None}
    names = site.names()
    assert [name for name, value in public() if name not in names and id(value) not in documented] == []


def _found(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError):
        return None  # a member of a class


def test_a_public_name_without_a_docstring_is_refused(reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / "reference/semel.md").read_text("utf-8")
    assert "semel.Policy" in [name for name, _, _ in reference.rows(text)]
    monkeypatch.setattr(semel.Policy, "__doc__", None)
    with pytest.raises(LookupError, match=r"semel\.Policy"):
        reference.rows(text)


def test_the_reference_on_a_code_host_is_as_the_docstrings_are(reference: Any) -> None:
    make = import_module("make_reference")
    pages = {path.name: path.read_text("utf-8") for path in sorted(reference.FOLDER.glob("*.md"))}
    stale = [name for name, text in pages.items() if make.page(text) != text]
    assert stale == [], "run: python docs/make_reference.py"
    for words in ("### `semel.errors.InvalidKey`", "### `semel.command(", "- `renew(grant)`"):
        assert any(words in text for text in pages.values()), words


def test_the_tree_of_errors_is_that_of_the_code() -> None:
    tree, *_ = [block.text for block in blocks((DOCS / "reference/errors.md").read_text("utf-8"))]
    assert tree.strip() in inspect.cleandoc(import_module("semel.errors").__doc__ or "").replace("\n    ", "\n")


def test_a_function_is_not_taken_for_the_module_of_its_name(reference: Any) -> None:
    assert callable(reference.resolve("semel.testing.required.suite"))
    with pytest.raises(LookupError, match="nothing"):
        reference.resolve("semel.nothing")


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    """A link to nowhere, an anchor that is not there, and a page that no list names."""
    (tmp_path / "index.md").write_text("# A\n\n## Start\n\n- [B](b.md)\n- [gone](gone.md)\n", "utf-8")
    (tmp_path / "b.md").write_text("# B\n\n[there](index.md#nothing)\n", "utf-8")
    (tmp_path / "lost.md").write_text("# C\n", "utf-8")
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static/site.css").write_text("", "utf-8")
    built = build(tmp_path, tmp_path / "built")
    assert built.failed
    for part in ("gone", "'nothing'", "lost.md: WARNING: document isn't included in any toctree"):
        assert part in built.warnings
