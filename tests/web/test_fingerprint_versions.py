"""A release whose algorithm gives other fingerprints: what was recorded before it is still recognised.

There is one version today. The next one is played here: under it, the case of a media type counts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from semel import recipe
from semel.errors import PolicyError
from semel.http.caller import from_state
from semel.http.fingerprint import fingerprinter as fingerprint
from semel.http.fingerprint.fingerprinter import Members, Recipe, Version
from semel.http.routing import Operation
from semel.policy import Policy
from tests.web.conftest import MakeWeb

OLD = Policy(fingerprint=Recipe(version=1))
UNREADABLE = (500, "IDEMPOTENCY_RECORD_UNREADABLE")


@pytest.fixture(autouse=True)
def next_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Semel that knows version 2 as well."""
    first = fingerprint.VERSIONS[1]

    def media(value: str) -> Any:
        kind, _, further = first.media(value)
        return kind, value, further

    monkeypatch.setitem(fingerprint.VERSIONS, 2, Version(media, first.subject, first.request))
    monkeypatch.setattr(recipe, "RECIPE_VERSIONS", (1, 2))


def deploy(web: Any, policy: Policy) -> None:
    """Another version of the application, on the same store."""
    operations = [Operation("/payments", policy)]
    web.middleware = type(web.middleware)(web.app, web.engine, caller=from_state("user"), operations=operations)


def new(**configuration: Any) -> Policy:
    return Policy(fingerprint=Recipe(version=2, **configuration))


JSON = [("Content-Type", "application/json")]
OTHER = [("Content-Type", "Application/JSON")]


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_record_of_the_former_version_is_replayed_without_being_named(make_web: MakeWeb, pieces: int) -> None:
    body = [b'{"amount":', b" 5}"] if pieces == 2 else b'{"amount": 5}'
    web = make_web(policy=OLD)
    web.call(headers=JSON, body=body)
    deploy(web, new())
    assert web.call(headers=JSON, body=body).replayed
    assert web.call(headers=JSON, body=b'{"amount": 6}').status == 422
    assert len(web.seen) == 1


def test_a_record_is_judged_by_the_version_that_it_was_made_under(make_web: MakeWeb) -> None:
    web = make_web(policy=OLD)
    web.call(key="made-under-version-1", headers=JSON)
    deploy(web, new())
    web.call(key="made-under-version-2", headers=JSON)
    assert web.call(key="made-under-version-1", headers=OTHER).replayed  # as it always was for this record
    assert web.call(key="made-under-version-2", headers=OTHER).status == 422


def test_two_versions_share_a_store_while_the_new_one_names_the_old(make_web: MakeWeb) -> None:
    """The first deployment keeps writing what every process can read; the second one moves on."""
    web = make_web(policy=OLD)
    pinned = Policy(fingerprint=Recipe(version=1))
    for writer, reader in ((OLD, pinned), (pinned, OLD)):
        key = f"written-by-{id(writer)}"
        deploy(web, writer)
        assert web.call(key=key).status == 201
        deploy(web, reader)
        assert web.call(key=key).replayed
    assert {row.recipe for row in web.records()} == {OLD.recipe.id}


def test_a_process_that_does_not_know_the_new_version_runs_nothing(
    make_web: MakeWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = make_web(policy=new())
    web.call()
    monkeypatch.setattr(recipe, "RECIPE_VERSIONS", (1,))
    deploy(web, OLD)
    got = web.call()
    assert (got.status, got.code) == UNREADABLE
    assert len(web.seen) == 1


def test_configuration_and_version_change_together(make_web: MakeWeb) -> None:
    """The former configuration is named; its former version is found automatically."""
    web = make_web(policy=Policy(fingerprint=Recipe(version=1, json_depth_max=32)))
    web.call()
    deploy(web, replace(new(), fingerprints_known=(Recipe(version=2, json_depth_max=32),)))
    assert web.call().replayed


def test_a_recipe_names_its_version() -> None:
    one, two = Recipe(version=1), Recipe(version=2)
    assert (one.id.partition(".")[0], two.id.partition(".")[0]) == ("1", "2")
    assert one.id.partition(".")[2] == two.id.partition(".")[2]
    assert (two.former, one.former) == ((one,), ())
    assert Recipe(version=2, body=Members(("a",))).former == (Recipe(version=1, body=Members(("a",))),)


@pytest.mark.parametrize("version", [0, 3, -1, True, "1", 1.0, None])
def test_an_unknown_version_is_refused(version: Any) -> None:
    with pytest.raises(PolicyError, match=r"version must be one that this Semel knows \(1, 2\)"):
        Recipe(version=version)


def test_every_version_that_can_be_named_has_its_algorithm() -> None:
    assert tuple(sorted(fingerprint.VERSIONS)) == recipe.RECIPE_VERSIONS
    assert recipe.RECIPE_VERSION in recipe.RECIPE_VERSIONS
