"""Django: a project that its own runner tests, in its own process, since Django's settings are a process's; and
the same project behind gunicorn and uvicorn, on one store.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.frameworks.served import GUNICORN, Served, environment, serving
from tests.servers.postgres import postgres

SITE = "tests.frameworks.django_site"


def django(folder: Path, *arguments: str, **more: str) -> str:
    command = [sys.executable, "-W", "error", "-m", "django", *arguments]
    variables = environment(folder, DJANGO_SETTINGS_MODULE=f"{SITE}.settings", **more)
    ran = subprocess.run(
        command,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


VIEWS = (
    f"{SITE}.tests",
    f"{SITE}.tests_bulk",
    f"{SITE}.tests_orm",
    f"{SITE}.tests_resumed",
)  # where the database makes a difference


def test_the_project_passes_its_tests_under_atomic_requests_and_on_postgresql(tmp_path: Path) -> None:
    """Three processes at once: each waits for more than half of its time."""
    runs: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
        "plain": ((SITE,), {}),
        "atomic-requests": (VIEWS, {"SHOP_ATOMIC_REQUESTS": "yes"}),
        "postgresql": (("--noinput", *VIEWS), {"SHOP_POSTGRES": postgres()}),
    }
    with ThreadPoolExecutor(len(runs)) as pool:
        said = {}
        for name, (arguments, variables) in runs.items():
            folder = tmp_path / name
            folder.mkdir()
            said[name] = pool.submit(django, folder, "test", *arguments, **variables)
    assert [name for name, ran in said.items() if "OK" not in ran.result()] == []


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Served]]:
    folder = tmp_path_factory.mktemp("django")
    for alias in ("default", "other"):
        assert "Semel's tables" in django(folder, "migrate", "--database", alias)
    with ExitStack() as stack:
        wsgi = stack.enter_context(serving(folder, *GUNICORN, f"{SITE}.servers:wsgi"))
        asgi = stack.enter_context(
            serving(folder, "uvicorn", "--port", "{port}", "--lifespan", "off", f"{SITE}.servers:asgi")
        )
        yield {"gunicorn": wsgi, "uvicorn": asgi}


PATHS = ("/atomic", "/external", "/idempotent", "/rest/")


@pytest.mark.parametrize("path", PATHS)
def test_duplicates_at_two_servers_have_one_effect_and_one_answer(servers: dict[str, Served], path: str) -> None:
    what, key = uuid.uuid4().hex[:12], str(uuid.uuid4())
    with ThreadPoolExecutor(8) as pool:
        asked = [
            pool.submit(server.until_final, path, {"what": what}, key) for server in servers.values() for _ in range(4)
        ]
        answers = [each.result() for each in asked]
    assert {(each.status, each.body) for each in answers} == {(201, answers[0].body)}
    assert sum(not each.replayed for each in answers) == 1
    assert servers["gunicorn"].effects().count(what) == 1


def test_an_async_view_whose_client_has_gone_runs_to_its_end(servers: dict[str, Served]) -> None:
    served, key, what = servers["uvicorn"], str(uuid.uuid4()), uuid.uuid4().hex[:12]
    gate = served.folder / "gate"
    os.mkfifo(gate)
    body = json.dumps({"what": what, "do": "gate"})
    head = f"POST /idempotent HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer alice\r\nIdempotency-Key: {key}\r\n"
    with socket.create_connection(("127.0.0.1", served.port)) as client:
        client.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        writer = gate.open("wb")  # opens when the view reads
    assert served.effects().count(what) == 0
    writer.close()
    gate.unlink()
    gate.touch()  # another run of the view would not wait
    answer = served.until_final("/idempotent", json.loads(body), key)
    assert (answer.status, answer.replayed) == (201, True)
    assert served.effects().count(what) == 1


def test_the_command_line_works_on_the_projects_store(servers: dict[str, Served]) -> None:
    served, what = servers["gunicorn"], uuid.uuid4().hex[:12]
    key = str(uuid.uuid4())
    assert served.ask("/external", {"what": what}, key=key).status == 201
    assert "SUCCEEDED" in django(served.folder, "semel", "explain", key)


def test_worker_and_check_set_up_the_project_of_the_environment(servers: dict[str, Served]) -> None:
    folder = servers["gunicorn"].folder

    def semel(settings: str, *words: str) -> subprocess.CompletedProcess[str]:
        variables = environment(folder, DJANGO_SETTINGS_MODULE=settings)
        command = [sys.executable, "-m", "semel.cli", *words]
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)

    url, sink = f"sqlite:///{folder}/shop.sqlite3", f"python:{SITE}.views:answer"  # whose module imports models
    worked = semel(f"{SITE}.settings", "worker", "--once", "--url", url, "--sink", sink)
    assert (worked.returncode, worked.stderr) == (0, "")
    away = semel("no.settings", "worker", "--once", "--url", url, "--sink", sink)
    assert away.returncode == 2
    assert away.stderr.startswith("semel: the Django project of $DJANGO_SETTINGS_MODULE (no.settings) cannot be set up")
    assert len(away.stderr.splitlines()) == 1
    checked = semel(f"{SITE}.settings", "check", f"{SITE}.urls")
    assert "rest.charge" in checked.stdout


def test_a_wrong_setting_is_a_check_error_and_serves_no_command(tmp_path: Path) -> None:
    """In a process that has not imported the views yet, which declare their operations."""
    (tmp_path / "misspelt.py").write_text(
        f"from {SITE}.settings import *\nSEMEL = {{'TENENT': 'shop', 'CALLER': 'semel.http.caller.single_caller'}}\n"
    )
    variables = environment(tmp_path, DJANGO_SETTINGS_MODULE="misspelt", PYTHONPATH=f"{tmp_path}:{os.getcwd()}")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "error", *words]
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)

    checked = run("-m", "django", "check")
    assert checked.returncode == 1
    assert "(semel.E001) SEMEL has the unknown setting 'TENENT'; did you mean 'TENANT'?" in checked.stderr
    assert "Traceback" not in checked.stderr
    listed = run("-m", "django", "semel", "list")
    assert (listed.returncode, "did you mean 'TENANT'?" in listed.stderr, "Traceback" in listed.stderr) == (
        2,
        True,
        False,
    )
    asked = (
        "import django; django.setup()\n"
        "from django.test import Client\n"
        "client = Client(raise_request_exception=False)\n"
        "headers = {'Authorization': 'Bearer alice', 'Idempotency-Key': 'key-1'}\n"
        "asked = [client.post('/external', {}, headers=headers)]\n"
        "asked.append(client.get('/operations/?key=key-1', headers=headers))\n"
        "asked.append(client.post('/approvals/1', [{'n': 1}], content_type='application/json', headers=headers))\n"
        "print([each.status_code for each in asked])\n"
    )
    assert run("-c", asked).stdout == "[500, 500, 500]\n"
