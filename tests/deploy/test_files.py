"""The files in deploy/ are what their tools read, and every command in them is one that Semel has."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

from semel.cli.main import grammar
from semel.workers.health import ANSWER_SECONDS, LIVE, READY
from tests.servers.needed import needs, program

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8")))


def parse(words: list[str]) -> Any:
    """A command line of Semel's as it would be understood; anything else is given back as it is."""
    return grammar()[0].parse_args(words[1:]) if Path(words[0]).name == "semel" else words


def pod(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["spec"]["template"]["spec"]
    return found


def load_documents(name: str) -> dict[str, Any]:
    [found] = [document for document in DOCUMENTS if document["metadata"]["name"] == name]
    return found


@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.name)
def test_systemd_can_parse_the_unit(file: Path) -> None:
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's names have case
    unit.read_string(file.read_text("utf-8"))
    assert set(unit.sections()) == {"Unit", "Service", "Install"}
    service = unit["Service"]
    for name in ("ExecStartPre", "ExecStart"):
        if name in service:
            parse(shlex.split(service[name]))
    assert service["KillSignal"] == "SIGTERM"
    assert service["Restart"] == "always"


@needs("systemd")
@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.name)
def test_systemd_itself_finds_nothing_wrong(file: Path, tmp_path: Path) -> None:
    text = file.read_text("utf-8")
    for path in re.findall(r"/opt/shop/venv/bin/\w+", text):
        text = text.replace(path, "/bin/true")
    unit = tmp_path / file.name
    unit.write_text(text.replace("User=semel", "User=root").replace("User=shop", "User=root"))
    command = [str(program("systemd")), "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert file.name not in done.stderr, done.stderr


def test_the_image_runs_its_process_directly_and_as_no_superuser() -> None:
    lines = [line for line in (DEPLOY / "Dockerfile").read_text("utf-8").splitlines() if line and line[0] != "#"]
    words = [line.partition(" ")[0] for line in lines]
    assert words[0] == "FROM"
    assert set(words) <= {"FROM", "RUN", "WORKDIR", "COPY", "USER", "CMD"}
    assert words.index("USER") < words.index("CMD")
    assert json.loads(lines[-1].removeprefix("CMD "))[0] == "uvicorn"


def test_the_linter_of_dockerfiles_finds_nothing() -> None:
    linter = Path(sysconfig.get_path("scripts")) / "hadolint"
    done = subprocess.run([linter, DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document["metadata"]["name"])
def test_a_manifest_matches_the_schema_of_its_api(document: dict[str, Any]) -> None:
    # Not above: it compiles 38 grammars when it is imported, and each worker of a run imports every module of tests.
    import kubernetes_validate

    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    misspelled = {**document, "spec": {**document["spec"], "templat": {}}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(misspelled, kubernetes_validate.latest_version(), strict=True)


def test_every_file_in_deploy_is_tested() -> None:
    assert {file.name for file in DEPLOY.iterdir()} == {*(file.name for file in UNITS), "Dockerfile", "kubernetes.yaml"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document["metadata"]["name"])
def test_a_manifest_has_the_fields_that_kubernetes_requires(document: dict[str, Any]) -> None:
    assert {"apiVersion", "kind", "metadata", "spec"} <= set(document)
    [container] = pod(document)["containers"]
    assert {"name", "image"} <= set(container)
    if "command" in container:
        parse(container["command"])
    if document["kind"] == "Deployment":
        assert document["spec"]["selector"]["matchLabels"] == document["spec"]["template"]["metadata"]["labels"]
        ports = {each["containerPort"] for each in container["ports"]}
        for probe in ("livenessProbe", "readinessProbe"):
            assert probe not in container or container[probe]["httpGet"]["port"] in ports


def test_the_manifests_probes_are_those_that_the_worker_answers() -> None:
    [container] = pod(load_documents("shop-worker"))["containers"]
    assert (container["livenessProbe"]["httpGet"]["path"], container["readinessProbe"]["httpGet"]["path"]) == (
        LIVE,
        READY,
    )
    assert parse(container["command"]).health == ("0.0.0.0", container["ports"][0]["containerPort"])
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["timeoutSeconds"] > ANSWER_SECONDS


def test_a_rolling_restart_gives_handlers_the_time_that_they_may_take() -> None:
    spec = pod(load_documents("shop"))
    [container] = spec["containers"]
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    command = (DEPLOY / "Dockerfile").read_text("utf-8").rpartition("CMD ")[2]
    words = json.loads(command)
    graceful = int(words[words.index("--timeout-graceful-shutdown") + 1])
    assert spec["terminationGracePeriodSeconds"] >= graceful + pause
