"""The commands of each README run unchanged, and print what it shows."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg
import pytest

from tests.docs.pages import ROOT, links
from tests.examples.readme import run_readme
from tests.servers.postgres import postgres

TOLD: dict[str, dict[str, str]] = {
    "bookings": {},  # and the URL of its own database
    "cases": {},
    "django": {},
    "flask": {},
    "grpc": {},
    "imports": {},
    "litestar": {},
    "orders": {},
    "proxy": {},
    "quart": {},
    "strawberry": {},
    "payments": {"PROVIDER_URL": "http://127.0.0.1:8001"},
}


@pytest.mark.parametrize("name", [name for name in TOLD if name != "bookings"])
def test_the_commands_of(name: str, tmp_path: Path) -> None:
    run_readme(name, tmp_path, TOLD[name])


def test_the_commands_of_bookings(tmp_path: Path) -> None:
    name = f"semel_readme_{os.getpid()}"
    with psycopg.connect(postgres(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        try:
            # By this name, since the addresses that a page shows are replaced by others.
            url = postgres().rpartition("/")[0].replace("127.0.0.1", "localhost") + f"/{name}"
            run_readme("bookings", tmp_path, {"DATABASE_URL": url})
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize("name", TOLD)
def test_the_links_of(name: str) -> None:
    page = ROOT / "examples" / name / "README.md"
    inside = [link for link in links(page.read_text("utf-8")) if "://" not in link]
    assert inside, "it leads nowhere"
    assert [link for link in inside if not (page.parent / link.partition("#")[0]).exists()] == []


def test_every_example_has_its_readme() -> None:
    assert {path.parent.name for path in (ROOT / "examples").glob("*/README.md")} == set(TOLD)
    assert {path.parent.name for path in (ROOT / "examples").glob("*/__init__.py")} == set(TOLD)
